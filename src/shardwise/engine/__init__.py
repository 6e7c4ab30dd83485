"""One training step, for any number of strategies: time and memory."""

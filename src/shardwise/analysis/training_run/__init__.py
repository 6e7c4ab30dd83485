"""A training run: duration, cost and energy, with failures and checkpoints."""

"""Published figures of predecessors, and their predictions of measured runs."""

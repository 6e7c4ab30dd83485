"""The best way to run a model on a system: every strategy of a declared space, with reasons."""

"""What a user writes: model, system, strategy and stack, read from files and validated."""

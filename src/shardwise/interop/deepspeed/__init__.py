"""DeepSpeed: its logs."""

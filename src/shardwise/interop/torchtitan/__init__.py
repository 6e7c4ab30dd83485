"""torchtitan: its logs."""

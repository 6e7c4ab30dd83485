"""MaxText: its logs."""

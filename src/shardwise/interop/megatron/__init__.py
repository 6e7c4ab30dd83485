"""Megatron-LM: its logs."""

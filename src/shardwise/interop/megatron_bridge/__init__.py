"""Megatron-Bridge and NeMo: their logs."""

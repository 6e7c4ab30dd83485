"""Megatron-LM, and the configuration of Megatron-Core that launchers share."""

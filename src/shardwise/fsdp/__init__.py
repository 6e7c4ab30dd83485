"""Which modules of a PyTorch model become FSDP2 units."""

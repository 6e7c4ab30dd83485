"""fsdp_ilp: its module statistics and its formulas."""

"""AMPeD: its configuration files, its statistics and its formulas."""

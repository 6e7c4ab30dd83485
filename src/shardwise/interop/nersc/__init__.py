"""NERSC transformer-perf-estimates: its files, its statistics and its formulas."""

"""Search, sweep and comparison of strategies."""

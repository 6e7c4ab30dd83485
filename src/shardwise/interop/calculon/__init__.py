"""Calculon: its files, its statistics and its formulas."""

"""Sweeps: vary figures of a system, a model or a strategy, and search or estimate at each point."""

"""Sweeps: what changes when figures of a system, a model or a run do."""

"""Scenarios side by side: what was asked differently, what came out, and what bears on it."""

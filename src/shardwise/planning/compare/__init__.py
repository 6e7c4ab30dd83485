"""Scenarios side by side: inputs that differ, results that differ, and their causes."""

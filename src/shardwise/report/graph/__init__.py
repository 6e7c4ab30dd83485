"""Compute graphs as JSON, DOT and SVG."""

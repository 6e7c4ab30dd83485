"""Figures that a file looks up or calculates, and files that build on a base."""

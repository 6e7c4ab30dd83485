"""Figures that a file looks up or calculates in place of giving them, and files with a base."""

"""Calibrate the figures of a system: tables of measured kernels, measured runs, and fits."""

"""Figures of a system from measurements: tables of kernels, predictions of their rows, fits."""

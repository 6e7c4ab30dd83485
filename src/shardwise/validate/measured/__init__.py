"""Measured training runs: what others published, what we predict for it, and how far apart."""

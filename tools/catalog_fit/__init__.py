"""Fit the figures of the catalog to measured runs."""

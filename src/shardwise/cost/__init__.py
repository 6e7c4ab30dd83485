"""How long operations take: kernels, collectives, and what of them is exposed."""

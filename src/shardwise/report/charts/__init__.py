"""Charts, one module for each kind of result."""

"""Tables for the terminal, one module for each kind of result."""

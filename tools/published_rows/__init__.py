"""Published training runs as their sources describe them, and what their words mean here."""

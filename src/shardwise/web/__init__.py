"""The explorer: a local page and the REST API that it shares its answers with."""

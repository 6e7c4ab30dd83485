"""Charts of measured runs show each run where it belongs."""

"""Files of other systems, read as what they are."""

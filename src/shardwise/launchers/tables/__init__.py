"""Tables of launch files and diagnoses."""

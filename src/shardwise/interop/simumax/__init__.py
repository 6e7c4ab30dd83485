"""SimuMax: its files."""

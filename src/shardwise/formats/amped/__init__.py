"""AMPeD's configuration and lookup tables, and what they are as fields of our nouns."""

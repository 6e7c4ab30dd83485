"""Which software runs: a typed record, the words for it, and one resolver to a stack."""

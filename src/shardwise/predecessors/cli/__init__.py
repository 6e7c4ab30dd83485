"""Options and verbs that answer by the formulas of predecessors."""

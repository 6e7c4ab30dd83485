"""Files and formulas of other tools: one folder for each."""

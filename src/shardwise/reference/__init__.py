"""The predecessors' formulas exactly as published, faults included.

Oracles to compare with: they share nothing with our own model, and only the verbs that compare
import from here.
"""

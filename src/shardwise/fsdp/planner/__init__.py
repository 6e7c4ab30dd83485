"""The search for the best wrapping: which modules may be units, what they cost, and the proof."""

"""One step of one strategy, action by action: when each runs, and what its rank holds then."""

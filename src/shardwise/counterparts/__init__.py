"""The predecessors' statistics, and what stands for each of them in an `Estimate`."""

"""One step of one strategy, pass by pass: when each runs, and the memory of its rank then."""

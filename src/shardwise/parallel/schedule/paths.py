"""Longest paths through a step: where ranks wait, and how that adds up.

A step takes as long as the longest chain of passes that wait for each other. Such a chain comes to
a rank, follows its work without a gap, and leaves it again. It can come and leave at few actions,
the gates: the first and the last pass of each kind, where the rank changes what it does. What
counts there is the wait: time the rank has stood idle so far. From gate to gate waits only grow,
and a wait spreads from rank to rank with the pass that starts late. Between two gates the pace of
a rank is that of the passes it does in turn; ranks come to the next gate one after the other, so
a chain may stay on a rank whose pace is slow there until another one goes over. So a step takes

    max over ranks of (wait at a gate + work of the rank + wait from a later gate to the end),

which is exact where those gates are all that matter (each schedule says), else a little short,
since every such chain is in the step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.parallel.schedule.ranks import NEVER, Passes

__all__ = ["SAME", "Gate", "Gates", "longest"]

# Two times of a rank within this part of each other are the same: sums of different order.
SAME = 1e-9

Spread = Callable[[Floats, Passes], Floats]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """An action at which a rank waits for others: from the start of the step, or to its end."""

    wait_s: Floats
    """Time the rank has stood idle when it starts (to the end: will stand idle after it)."""
    work_s: Floats
    """Time of the rank's own passes before it (to the end: after it)."""


class Gates:
    """Gates from the start of the step on, or, mirrored, from its end back.

    Most micro-batches pass all gates of the start before those of the end. With `few` the order of
    any two gates is looked at.
    """

    def __init__(self, wait_s: Floats, *, few: bool) -> None:
        self.few = few
        self.found = [Gate(wait_s=wait_s, work_s=np.zeros(wait_s.shape))]
        self.longest_wait_s = wait_s
        """Wait of the rank at the last gate, whichever it has waited at."""

    def starts(self, work_s: Floats) -> Floats:
        """When a pass can start as far as the rank itself decides, after so much own work."""
        if not self.few:
            return self.longest_wait_s + work_s
        wait = np.zeros(work_s.shape)
        limit = work_s * (1 + SAME)
        for gate in self.found:
            np.maximum(wait, (gate.work_s <= limit) * gate.wait_s, out=wait)
        return wait + work_s

    def spread(
        self, work_s: Floats, spread: Spread, passes: Passes, over_s: Floats | float = 0.0
    ) -> None:
        """Add a gate whose late starts pass on to other ranks.

        `over_s` are starts that come from elsewhere.
        """
        self.reach(work_s, spread(np.maximum(self.starts(work_s), over_s), passes))

    def reach(self, work_s: Floats, start_s: Floats, *, there: Bools | None = None) -> None:
        """Add a gate whose start is known, in the rows where it is there at all."""
        wait = start_s - work_s
        if there is not None:
            wait = np.minimum(wait, np.where(there, np.inf, NEVER))
        self.found.append(Gate(wait_s=wait, work_s=work_s))
        self.longest_wait_s = np.maximum(self.longest_wait_s, wait)


def longest(heads: Gates, busy_s: Floats, tails: Gates) -> Floats:
    """Longest path over all ranks: idle up to a gate, busy from there to another, idle then [s]."""
    if not heads.few:
        return (heads.longest_wait_s + busy_s + tails.longest_wait_s).max(axis=0)
    best = np.zeros(busy_s.shape)
    for tail in tails.found:
        left = (busy_s - tail.work_s) * (1 - SAME)
        wait = np.zeros(busy_s.shape)
        for head in heads.found:
            np.maximum(wait, (head.work_s < left) * head.wait_s, out=wait)
        np.maximum(best, wait + tail.wait_s, out=best)
    longest_path: Floats = (busy_s + best).max(axis=0)
    return longest_path

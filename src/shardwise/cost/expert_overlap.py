"""Exchanges among experts that run beside the compute of another micro-batch."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.cost.layer_cost import LayerCost
from shardwise.cost.layer_times import ByAxis

__all__ = ["with_expert_overlap"]


def with_expert_overlap(block: LayerCost, rows: Bools, taken: Floats) -> LayerCost:
    """Hide exchanges of a layer's experts beside forward and backward of paired micro-batches.

    The forward pass of one micro-batch runs with the backward pass of another, and the exchanges
    of each beside the compute C of both (arXiv 2412.19437, section 3.2.1). They take the share u of
    the processor from it: hidden = min(X, C / (1 - u)), exposed = X - (1 - u) hidden, of the
    exposed exchanges X of both passes; each keeps its part.

    Parameters
    ----------
    rows
        Rows that overlap them.
    taken
        u.
    """
    times = block.times
    compute = times.forward_s + times.backward_s + times.recompute_s
    exposed = times.exposed_forward_s.ep + times.exposed_backward_s.ep
    hidden = np.minimum(exposed, compute / (1 - taken))
    left = (exposed - (1 - taken) * hidden) / np.where(exposed > 0, exposed, 1.0)
    share = np.where(rows, left, 1.0)

    def kept(side: ByAxis) -> ByAxis:
        return replace(side, ep=side.ep * share)

    times = replace(
        times,
        exposed_forward_s=kept(times.exposed_forward_s),
        exposed_backward_s=kept(times.exposed_backward_s),
    )
    return replace(block, times=times)

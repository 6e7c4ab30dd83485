"""What every rank of a pipeline holds over a step."""

from dataclasses import dataclass

import numpy as np

from shardwise.analysis.timeline.actions import KINDS, Actions
from shardwise.analysis.timeline.passes import StagePasses
from shardwise.arrays import Bools, Floats, Ints
from shardwise.parallel.schedule.orders import BACKWARD, FORWARD

__all__ = ["MemoryAtActions", "fullest", "held_at_actions"]

_F, _B, _W = range(len(KINDS))
# Layers whose offloaded activations are here: the one that computes and the one in transit.
_LAYERS_HERE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAtActions:
    """What the rank of an action holds from its start to its end [byte]; one value per action."""

    activations: Floats
    """Kept between forward and backward, this micro-batch's from the start of its forward on."""
    after: Floats
    """Of these, what is left when it has ended."""
    live: Floats
    """Held for a moment, at the fullest one of the action."""


def held_at_actions(actions: Actions, passes: StagePasses, *, offloaded: bool) -> MemoryAtActions:
    """Add up what is kept: from the start of F to the end of W, or of a B that does both.

    Of what is offloaded two layers are here. The two of a pair hold the same: what the forward
    keeps, what the backward has not released yet, and the larger of what each needs for a moment.
    """
    kept, after = _running(actions, passes.kept_bytes[actions.stage])
    if offloaded:
        moved, moved_after = _running(actions, passes.movable_bytes[actions.stage])
        layers, layers_after = _running(actions, passes.moving_layers[actions.stage])
        kept = kept - moved * _away(layers)
        after = after - moved_after * _away(layers_after)
    looked_up, looked_up_after = _running(actions, passes.looked_up_bytes[actions.stage])
    live = np.select(
        [actions.kind == _F, actions.kind == _B],
        [passes.of[kind].live_bytes[actions.stage] for kind in (FORWARD, BACKWARD)],
        0.0,
    )
    first = np.flatnonzero(actions.paired)
    live[first] = live[first + 1] = np.maximum(live[first], live[first + 1])
    return MemoryAtActions(activations=kept + looked_up, after=after + looked_up_after, live=live)


def _away(layers: Floats) -> Floats:
    """Share that is in the second tier of what so many layers keep there."""
    share: Floats = 1.0 - np.minimum(1.0, _LAYERS_HERE / np.maximum(layers, 1.0))
    return share


def _running(actions: Actions, amount: Floats) -> tuple[Floats, Floats]:
    """What is there while each action runs, and when it has ended."""
    taken = np.where(actions.kind == _F, amount, 0.0)
    left = np.where(_releases(actions), amount, 0.0)
    first = np.searchsorted(actions.rank, np.unique(actions.rank))
    during, after = np.empty_like(amount), np.empty_like(amount)
    for start, end in zip(first, [*first[1:], len(actions)], strict=True):
        ends = np.cumsum(taken[start:end] - left[start:end])
        after[start:end] = ends
        during[start:end] = ends + left[start:end]
    return during, after


def _releases(actions: Actions) -> Bools:
    return (actions.kind == _W) | actions.whole


def fullest(total: Floats, rank: Ints) -> Ints:
    """For each rank, the first of its actions at which it holds most."""
    order = np.lexsort((np.arange(len(rank)), -total, rank))
    first: Ints = order[np.searchsorted(rank[order], np.unique(rank))]
    return first

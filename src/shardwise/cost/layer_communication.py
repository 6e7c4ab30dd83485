"""Communication of a list of operations: times of its collectives, by axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, total
from shardwise.config.enums import RecomputePart
from shardwise.config.strategy_fields import COMM_AXES, COUNTED_WITH
from shardwise.cost.operations import CollectiveCost, OperationCost
from shardwise.ops.operation import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAxis:
    """A time of each axis that communicates inside layers [s]."""

    tp: Floats
    cp: Floats
    ep: Floats

    @property
    def total(self) -> Floats:
        """All axes together."""
        return self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A time of each axis [s]; None: no operation communicates on it."""

    tp: Floats | None
    cp: Floats | None
    ep: Floats | None

    def total(self, zero: Floats, expert_share: Floats | float = 1.0) -> Floats:
        """All axes together; of ep, a share."""
        expert = None if self.ep is None else expert_share * self.ep
        return total([one for one in (self.tp, self.cp, expert) if one is not None], zero)

    def added_to(self, times: ByAxis, rows: Bools) -> ByAxis:
        """Add them to other times in some rows."""

        def added(axis: str) -> Floats:
            time: Floats = getattr(times, axis)
            own: Floats | None = getattr(self, axis)
            return time if own is None else time + np.where(rows, own, 0.0)

        return ByAxis(**{axis: added(axis) for axis in COMM_AXES})

    def where(self, rows: Bools) -> ByAxis:
        """These in some rows, zeros in the others."""

        def selected(axis: str) -> Floats:
            own: Floats | None = getattr(self, axis)
            return np.zeros(rows.shape) if own is None else np.where(rows, own, 0.0)

        return ByAxis(**{axis: selected(axis) for axis in COMM_AXES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Communication time of one direction, forward or backward [s]."""

    alone: Sums
    exposed: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCommunication:
    """Communication of a list of operations, independent of recompute."""

    forward: Communication
    backward: Communication
    segments: tuple[Communication, ...]
    """Forward, of each segment of `LayerWork`."""


def layer_communication(costs: Sequence[OperationCost]) -> LayerCommunication:
    """Add up the times of the collectives of operations.

    Parameters
    ----------
    costs
        Costs of the operations, in forward order; times of collectives of shape (n,).
    """
    collectives = [timed for c in costs for timed in c.collectives]
    return LayerCommunication(
        forward=_communication(_of_forward(collectives)),
        backward=_communication(
            [c for c in collectives if c.collective.phase is not Phase.FORWARD]
        ),
        segments=tuple(
            _communication(_of_forward([one for c in group for one in c.collectives]))
            for group in reruns_of(costs).values()
        ),
    )


def reruns_of(costs: Sequence[OperationCost]) -> dict[int, list[OperationCost]]:
    """Operations that are run again, by the bits of exactly the recompute parts that do so."""
    found: dict[int, list[OperationCost]] = {}
    for cost in costs:
        found.setdefault(RecomputePart.bits(cost.operation.reruns_with), []).append(cost)
    return {parts: found[parts] for parts in sorted(found) if parts}


def _of_forward(collectives: Sequence[CollectiveCost]) -> list[CollectiveCost]:
    return [c for c in collectives if c.collective.phase is Phase.FORWARD]


def _communication(collectives: Sequence[CollectiveCost]) -> Communication:
    """Add up times by axis."""

    def by_axis(name: str) -> Sums:
        times: dict[str, list[Floats]] = {axis: [] for axis in COMM_AXES}
        for cost in collectives:
            times[COUNTED_WITH[cost.collective.axis]].append(getattr(cost, name))
        return Sums(
            **{axis: total(some, some[0]) if some else None for axis, some in times.items()}
        )

    return Communication(alone=by_axis("time_s"), exposed=by_axis("exposed_s"))

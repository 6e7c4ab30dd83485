"""What the rules of FSDP2 need of a profile, a setting and its possible units, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.fsdp.planner.collectives import CollectiveTimes
from shardwise.fsdp.planner.units import Edge, LastGradients, ModuleSizes
from shardwise.fsdp.profile import Profile, bytes_before

NOTHING = -1e18
"""Less than any number of bytes."""
_LARGE = 1e15
"""A buffer so large that latencies are negligible [byte]."""
_SAFETY = 1 - 1e-6
"""Keeps a bound below the rounding error of the sum that it bounds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Grid:
    """Segments of a step at its positions: forward at each entry, backward at each exit."""

    profile: Profile

    @cached_property
    def forward(self) -> Ints:
        """Segment at which each position begins forward; after the last, the root's exit."""
        starts = [module.forward[0] for module in self.profile.modules]
        return np.array([*starts, self.profile.modules[0].forward[1]])

    @cached_property
    def ends(self) -> Ints:
        """Segment at which the backward compute of each module ends.

        FSDP2 holds a module whose inputs need no gradient to the end of the step, but its compute
        ends when a module that ran before it begins.
        """
        modules = self.profile.modules
        found = np.array([module.backward[1] for module in modules])
        starts = np.array([module.backward[0] for module in modules])
        for place, module in enumerate(modules):
            if module.reduced_last and place > 0:
                before = np.ones(place, dtype=bool)
                at = module.parent
                while at >= 0:
                    before[at] = False
                    at = modules[at].parent
                later = starts[:place][before & (starts[:place] >= starts[place])]
                found[place] = later.min(initial=found[place])
        return found

    @cached_property
    def backward(self) -> Ints:
        """Segment at which all positions from each on are through backward."""
        found = np.full(len(self.profile.modules) + 1, self.profile.modules[0].backward[0])
        for place in range(len(self.profile.modules) - 1, 0, -1):
            module = self.profile.modules[place]
            runs = module.backward[1] > module.backward[0]
            found[place] = max(found[place + 1], self.ends[place] if runs else 0)
        found[0] = len(self.profile.seconds)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Spans:
    """Times and peak bytes of any range of segments.

    Callers subtract the gradients of weights that were complete before a segment
    (`reduced_gradients`): those of units are reduced by then, the rules count those of the root.
    """

    profile: Profile
    shard_gradients: Floats
    """Sharded gradients complete at the end of each segment [byte]."""

    @cached_property
    def _elapsed(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.profile.seconds)])

    def seconds(self, first: int, after: int) -> float:
        """Compute time of `[first, after)` [s]."""
        return float(self._elapsed[max(first, after)] - self._elapsed[first])

    def peak(self, first: int, after: int) -> float:
        """Peak of `[first, after)`; minus infinity if it is empty [byte]."""
        return float(self.profile.resident_bytes[first:after].max(initial=-np.inf))

    def reduced_gradients(self, segment: int) -> float:
        """Gradients complete before a segment, less their shards [byte]."""
        if segment == 0:
            return 0.0
        unsharded = self.profile.gradient_bytes[segment - 1]
        return float(unsharded - self.shard_gradients[segment - 1])

    def start(self, segment: int) -> float:
        """Resident bytes as a segment begins [byte]."""
        return bytes_before(self.profile, segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """Units that may begin at a position; columns of shape (units, 1)."""

    gather_s: Floats
    gather_again_s: Floats
    """In backward."""
    reduce_s: Floats
    reduced_last: Floats
    """1 if it is reduced at the end of the step."""
    forward_s: Floats
    """Of the unit and of the root's modules after it."""
    backward_s: Floats
    root_backward_s: Floats
    """Backward of the root's modules after it."""
    gathered: Floats
    """Bytes of its weights, and of the all-gather buffer."""
    gathered_again: Floats
    """Bytes of the all-gather buffer in backward."""
    unsharded: Floats
    """Bytes that stay unsharded between forward and backward."""
    reduced: Floats
    gradients: Floats
    """Less their shards."""
    forward_start: Floats
    """Resident bytes as it begins forward."""
    forward_peak: Floats
    root_forward_peak: Floats
    """Of the root's modules after it."""
    backward_start: Floats
    """Here and below, gradients complete before are left out."""
    backward_peak: Floats
    root_backward_peak: Floats
    """Of the root's modules after it, which run backward before it."""
    backward_end: Floats
    reduce_output: Floats
    """Output of the reduce-scatter, with the last gradient, less all gradients; at least 0."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepCosts:
    """A profile in a setting, with the units it may have."""

    profile: Profile
    sizes: ModuleSizes
    collectives: CollectiveTimes
    edges: Sequence[Sequence[Edge]]
    """Units that may begin at each position."""

    @cached_property
    def _grid(self) -> Grid:
        return Grid(profile=self.profile)

    @cached_property
    def spans(self) -> Spans:
        """Times and peaks of ranges of segments."""
        added = np.zeros(len(self.profile.seconds))
        sharded, unsharded = self.sizes.shard_gradients, self.sizes.gradients
        for parameter in self.profile.parameters:
            holder = parameter.holders[0]
            if parameter.gradient_segment >= 0 and unsharded[holder] > 0:
                share = parameter.numel * self._compute_bytes / unsharded[holder]
                added[parameter.gradient_segment] += sharded[holder] * share
        return Spans(profile=self.profile, shard_gradients=np.cumsum(added))

    @cached_property
    def _compute_bytes(self) -> float:
        """Bytes of a gathered number."""
        numels = sum(
            p.numel for p in self.profile.parameters if p.trainable and p.gradient_segment >= 0
        )
        return float(self.sizes.gradients.sum()) / numels if numels else 0.0

    @cached_property
    def constant_bytes(self) -> float:
        """Sharded weights, optimizer state and fixed bytes, the same in every plan [byte]."""
        sharded = float(self.sizes.shard.sum() + self.sizes.state.sum())
        return sharded + self.profile.fixed_bytes

    @cached_property
    def units(self) -> Sequence[UnitCosts | None]:
        """Units by position; one evaluation of the collectives for all of them."""
        flat = [edge for edges in self.edges for edge in edges]
        if not flat:
            return [None for _ in self.edges]
        columns = self._columns(flat)
        found: list[UnitCosts | None] = []
        at = 0
        for edges in self.edges:
            rows = slice(at, at + len(edges))
            own = {name: values[rows, None] for name, values in columns.items()}
            found.append(UnitCosts(**own) if edges else None)
            at += len(edges)
        return found

    def _columns(self, edges: Sequence[Edge]) -> dict[str, Floats]:
        sizes = self.sizes
        sums = {
            name: np.concatenate([[0.0], np.cumsum(getattr(sizes, name))])
            for name in ("gathered", "reduced", "gradients", "shard_gradients", "scattered")
        }
        first = np.array([edge.first for edge in edges])
        end = np.array([edge.end for edge in edges])
        own = {name: values[end] - values[first] for name, values in sums.items()}
        unsharded = np.array([not edge.unit.reshard_after_forward for edge in edges])
        # A unit without a backward pass is not gathered again.
        once = unsharded | np.array([_no_backward(self.profile, edge) for edge in edges])
        gather = self.collectives.gather_s(own["gathered"])
        last = LastGradients(profile=self.profile, element_bytes=round(self._compute_bytes))
        last_gradient = np.array([last.between(edge.first, edge.end) for edge in edges])
        rows = [self._times_and_peaks(edge) for edge in edges]
        return {
            "gather_s": gather,
            "gather_again_s": np.where(once, 0.0, gather),
            "reduce_s": self.collectives.reduce_s(own["reduced"]),
            "gathered": own["gathered"],
            "gathered_again": np.where(once, 0.0, own["gathered"]),
            "unsharded": np.where(unsharded, own["gathered"], 0.0),
            "reduced": own["reduced"],
            "gradients": own["gradients"] - own["shard_gradients"],
            "reduce_output": np.maximum(own["scattered"] + last_gradient - own["gradients"], 0.0),
            **{name: np.array([row[name] for row in rows]) for name in rows[0]},
        }

    def _times_and_peaks(self, edge: Edge) -> dict[str, float]:
        """Times and peaks of a unit, and of the root's modules after it."""
        profile, spans, grid = self.profile, self.spans, self._grid
        first, last = profile.modules[edge.first], profile.modules[edge.last]
        begin, end = first.forward[0], last.forward[1]
        after = int(grid.forward[edge.end])
        back, back_end = last.backward[0], int(grid.ends[edge.first])
        before = int(grid.backward[edge.end])
        reduced = spans.reduced_gradients(before)
        return {
            "reduced_last": float(first.reduced_last),
            "forward_s": spans.seconds(begin, after),
            "backward_s": spans.seconds(back, back_end),
            "root_backward_s": spans.seconds(before, back),
            "forward_start": spans.start(begin),
            "forward_peak": spans.peak(begin, end),
            "root_forward_peak": spans.peak(end, after),
            "backward_start": spans.start(back) - reduced,
            "backward_peak": spans.peak(back, back_end) - reduced,
            "root_backward_peak": spans.peak(before, back) - reduced,
            "backward_end": spans.start(back_end) - reduced,
        }

    @cached_property
    def root_modules(self) -> Floats:
        """Of each module left in the root: forward and backward [s], and their peaks [byte]."""
        spans, grid = self.spans, self._grid
        rows = []
        for place in range(len(self.profile.modules)):
            forward = int(grid.forward[place]), int(grid.forward[place + 1])
            backward = int(grid.backward[place + 1]), int(grid.backward[place])
            rows.append(
                (
                    spans.seconds(*forward),
                    spans.seconds(*backward),
                    spans.peak(*forward),
                    spans.peak(*backward) - spans.reduced_gradients(backward[0]),
                )
            )
        return np.array(rows)

    @cached_property
    def longest_collectives(self) -> tuple[Floats, Floats]:
        """Longest gather and reduce-scatter of a unit from each position on [s]."""
        found = np.zeros((2, len(self.edges) + 1))
        for place, units in reversed(list(enumerate(self.units))):
            found[:, place] = found[:, place + 1]
            if units is not None:
                longest = float(units.gather_s.max()), float(units.reduce_s.max())
                found[:, place] = np.maximum(found[:, place], longest)
        return found[0], found[1]

    @cached_property
    def all_run_backward(self) -> bool:
        """Whether every unit has a backward pass."""
        return not any(_no_backward(self.profile, edge) for edges in self.edges for edge in edges)

    @cached_property
    def all_gathered_again(self) -> bool:
        """Whether every unit is gathered again in backward."""
        freed = all(units is None or not units.unsharded.any() for units in self.units)
        return freed and self.all_run_backward

    @cached_property
    def root_slopes(self) -> tuple[float, float]:
        """Least time of a gathered byte and of a reduced byte in a large collective [s/byte]."""
        large = np.array([_LARGE])
        gather = float(self.collectives.gather_s(large)[0]) / _LARGE
        reduce = float(self.collectives.reduce_s(large)[0]) / _LARGE
        return gather * _SAFETY, reduce * _SAFETY

    @cached_property
    def slopes(self) -> tuple[float, float]:
        """Least time of gathering and of reducing a gathered byte [s/byte]."""
        gathered = self.sizes.gathered
        ratio = self.sizes.reduced / np.where(gathered > 0, gathered, 1.0)
        least = float(np.min(ratio[gathered > 0], initial=np.inf))
        gather, reduce = self.root_slopes
        return gather, reduce * (least if np.isfinite(least) else 0.0)

    @cached_property
    def remaining(self) -> Floats:
        """From each position on: bytes to gather, compute forward and backward; (3, positions)."""
        grid, spans = self._grid, self.spans
        sums = np.concatenate([np.cumsum(self.sizes.gathered[::-1])[::-1], [0.0]])
        forward = [spans.seconds(int(at), int(grid.forward[-1])) for at in grid.forward]
        backward = [spans.seconds(int(grid.backward[-1]), int(at)) for at in grid.backward]
        return np.array([sums, forward, backward])

    @cached_property
    def optimizer_step(self) -> float:
        """Bytes of the optimizer's step in addition to `constant_bytes` [byte]."""
        left = self.spans.start(len(self.profile.seconds)) - float(self.profile.gradient_bytes[-1])
        return left + float(self.sizes.optimizer_step.sum())

    @cached_property
    def largest_gradient(self) -> Floats:
        """Largest gradient of a parameter that each module holds itself [byte]."""
        found = np.zeros(len(self.profile.modules))
        for parameter in self.profile.parameters:
            if parameter.trainable and parameter.gradient_segment >= 0:
                size = parameter.numel * self._compute_bytes
                found[parameter.holders[0]] = max(found[parameter.holders[0]], size)
        return found

    @cached_property
    def gradient_ratio(self) -> float:
        """Bytes of gradients for each byte of the input of their reduce-scatter."""
        reduced = float(self.sizes.reduced.sum())
        return float(self.sizes.gradients.sum()) / reduced if reduced else 0.0

    @cached_property
    def output_ratio(self) -> float:
        """Output of a reduce-scatter for each byte of its input."""
        reduced = float(self.sizes.reduced.sum())
        return float(self.sizes.scattered.sum()) / reduced if reduced else 0.0

    @cached_property
    def reduced_last_bytes(self) -> Floats:
        """Most that units reduced last, from each position on, add to what ran before [byte]."""
        found = np.zeros(len(self.edges) + 1)
        for place in range(len(self.edges) - 1, -1, -1):
            found[place] = found[place + 1]
            units = self.units[place]
            if units is not None:
                added = (units.reduced_last * (units.gathered + units.gradients))[:, 0]
                ends = [edge.end for edge in self.edges[place]]
                found[place] = max(found[place], float(np.max(added + found[ends])))
        return found

    @cached_property
    def root_gradient_ratio(self) -> float:
        """Most bytes of gradients, less their shards, of a gathered byte of the root."""
        extra = self.sizes.gradients - self.sizes.shard_gradients
        gathered = self.sizes.gathered
        return float(np.max(extra / np.where(gathered > 0, gathered, 1.0), initial=0.0))

    @cached_property
    def largest_reduce(self) -> float:
        """Largest input of a reduce-scatter of a unit [byte]."""
        found = [float(units.reduced.max()) for units in self.units if units is not None]
        return max(found, default=0.0)

    @cached_property
    def floors(self) -> Floats:
        """Activations that any plan holds at some moment from each position on [byte]."""
        spans, grid = self.spans, self._grid
        found = np.zeros(len(self.edges) + 1)
        loss = self.profile.forward_segments
        found[-1] = spans.peak(int(grid.forward[-1]), int(grid.backward[-1]))
        for place in range(len(self.edges) - 1, -1, -1):
            forward = spans.peak(int(grid.forward[place]), int(grid.forward[place + 1]))
            after = int(grid.backward[place])
            back = spans.peak(int(grid.backward[place + 1]), after) - spans.reduced_gradients(after)
            found[place] = max(found[place + 1], forward, back if after > loss else 0.0)
        return found

    @cached_property
    def loss_peaks(self) -> tuple[float, float]:
        """Peak after the root's forward, and before its backward [byte]."""
        modules, begin = self.profile.modules, self.profile.forward_segments
        forward = self.spans.peak(modules[0].forward[1], begin)
        return forward, self.spans.peak(begin, modules[0].backward[0])


def _no_backward(profile: Profile, edge: Edge) -> bool:
    first, after = profile.modules[edge.last].backward
    return first == after

"""The rules of FSDP2 as a shortest path: what each unit adds to exposed time and to memory.

Exposed time, with units 1..K in the order they run, gathers A, reduce-scatters R, compute F and B
of a unit, f and b of the modules of the root between units, and the root's own A_0 and R_0:

    A_0 + max(0, A_1 - f_0) + sum over k of max(0, A_(k+1) - F_k - f_k)              forward
    + max(0, A_K - b_K) + sum over k of max(0, A_(k-1) + R_(k+1) - B_k - b_(k-1))    backward
    + max(0, R_1 - b_0) + R_0

with f_k, b_k between units k and k+1, b_0 before the first unit (and not in B_1's term), A_0 = 0
and R_(K+1) = 0 in the sums. FSDP2 prefetches one unit; in backward the prefetch shares the network
with the reduce-scatter of the unit before. A unit that stays unsharded after forward has no gather
in backward. A unit whose inputs need no gradient is reduced at the end, exposed. If the root has no
weights, there is no root group to prefetch the last unit before backward.

Peak memory is that of `memory.memory_peak`, moment by moment; each moment depends on a unit, its
neighbors, what earlier units left unsharded, and what the root owns.

`StepCosts` holds what the rules need of a profile, a setting and its possible units, as columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
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


_MIB = 2.0**20

(
    _COST, FORWARD_S, SLACK, _GATHER_S, AGAIN_S, _ROOT_EMPTY, _NO_UNIT, ANY_UNIT,
    ROOT, ROOT_GRADIENTS, ROOT_REDUCED, _ROOT_LARGEST, UNSHARDED,
    _FIRST_PEAK, _FORWARD_PEAK, _BACKWARD_PEAK, _UNIT_PEAK, _ROOT_PEAK, _BUFFER, _NEXT_BUFFER,
    REDUCED_LAST, _REDUCE_PEAK,
) = range(22)  # fmt: skip
"""Rows of the labels.

Time: cost, with the root's bytes at the rate of a large collective; minus the forward compute that
hides the next gather; minus the unused rest of the last unit's backward; its gather in backward
while the root owns nothing; that gather minus the root's backward compute since.

Neither: 1 while the root owns nothing, and so prefetches nothing; 1 without a unit; 1 with one.

Memory: weights of the root, their gradients less their shards, the input of their reduce-scatter,
the largest gradient among them; weights that stay unsharded. Peaks: before the first unit; forward
since; backward of all but the last unit; of the last unit, and of the root's modules after it,
without the reduce-scatter that follows. The last unit's all-gather buffers: forward, and before its
backward. Of units reduced last: weights and gradients, and the most that their end adds to them.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fsdp2Rules:
    """Costs of the units of a step under FSDP2 (`search.Rules`)."""

    step: StepCosts
    root_s: dict[complex, float] = field(default_factory=dict)
    """Known times of the root's own collectives, by its bytes: gathered, and i times reduced."""
    most_root: float = np.inf
    """Most weights that the root may own [byte]."""

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that do not affect memory."""
        return (_COST, *self.paid_rows, _GATHER_S)

    @property
    def paid_rows(self) -> Sequence[int]:
        """Times that one later term of the cost takes in, and never more than once."""
        return (FORWARD_S, SLACK, AGAIN_S)

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that do not affect time."""
        return (ROOT_GRADIENTS, _ROOT_LARGEST, *range(UNSHARDED, _REDUCE_PEAK + 1))

    @cached_property
    def targets(self) -> Sequence[Ints]:
        """A module goes to the root, or a unit begins."""
        return [
            np.array([place + 1, *(edge.end for edge in edges)])
            for place, edges in enumerate(self.step.edges)
        ]

    def start(self) -> Floats:
        """No unit, and nothing in the root."""
        label = np.zeros((_REDUCE_PEAK + 1, 1))
        label[_ROOT_EMPTY] = label[_NO_UNIT] = 1.0
        peaks = [_FIRST_PEAK, _FORWARD_PEAK, _BACKWARD_PEAK, _UNIT_PEAK, _ROOT_PEAK, _REDUCE_PEAK]
        label[peaks] = NOTHING
        return label

    def extend(self, position: int, labels: Floats) -> Floats:
        """Leave a module to the root, or begin each of its units."""
        new = np.repeat(labels[:, None], len(self.targets[position]), axis=1)
        self._leave_to_root(position, labels, new[:, 0])
        units = self.step.units[position]
        if units is not None:
            self._add_time(units, labels, new[:, 1:])
            self._add_memory(units, labels, new[:, 1:])
            self._clip(np.array([edge.end for edge in self.step.edges[position]]), new[:, 1:])
        self._clip(position + 1, new[:, 0])
        return new

    def _leave_to_root(self, place: int, labels: Floats, new: Floats) -> None:
        forward_s, backward_s, forward_peak, backward_peak = self.step.root_modules[place]
        sizes, any_unit = self.step.sizes, labels[ANY_UNIT] > 0
        new[FORWARD_S] -= forward_s
        new[AGAIN_S] -= np.where(any_unit, backward_s, 0.0)
        new[SLACK] -= np.where(any_unit, 0.0, backward_s)
        gather, reduce = self.step.root_slopes
        new[_COST] += gather * sizes.gathered[place] + reduce * sizes.reduced[place]
        new[ROOT] += sizes.gathered[place]
        new[_ROOT_EMPTY] = (new[ROOT] == 0).astype(float)
        new[_GATHER_S] *= new[_ROOT_EMPTY]
        new[ROOT_GRADIENTS] += sizes.gradients[place] - sizes.shard_gradients[place]
        new[ROOT_REDUCED] += sizes.reduced[place]
        new[_ROOT_LARGEST] = np.maximum(labels[_ROOT_LARGEST], self.step.largest_gradient[place])
        now = labels[UNSHARDED] + labels[_BUFFER] + forward_peak
        before, since = labels[_FIRST_PEAK], labels[_FORWARD_PEAK]
        new[_FORWARD_PEAK] = np.where(any_unit, np.maximum(since, now), since)
        new[_FIRST_PEAK] = np.where(any_unit, before, np.maximum(before, forward_peak))
        new[_ROOT_PEAK] = np.maximum(
            labels[_ROOT_PEAK], labels[UNSHARDED] + backward_peak - new[ROOT_GRADIENTS]
        )

    def _add_time(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        new[_COST] += np.maximum(units.gather_s + labels[FORWARD_S], 0.0)
        hidden = (1 - units.reduced_last) * units.reduce_s
        exposed = np.maximum(hidden + labels[SLACK], 0.0)
        new[_COST] += exposed + units.reduced_last * units.reduce_s
        new[FORWARD_S] = -units.forward_s
        new[SLACK] = labels[AGAIN_S] - units.backward_s
        new[_GATHER_S] = units.gather_again_s * labels[_ROOT_EMPTY]
        new[AGAIN_S] = units.gather_again_s - units.root_backward_s
        new[_NO_UNIT], new[ANY_UNIT] = 0.0, 1.0

    def _add_memory(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        any_unit = labels[ANY_UNIT] > 0
        before, reduced_now = labels[UNSHARDED], 1 - units.reduced_last
        unsharded = before + units.unsharded
        start = units.forward_start + units.gathered
        # The old buffer is alive until the new weights are copied out.
        entry = before + start + units.gathered + labels[_BUFFER]
        first = np.maximum(labels[_FIRST_PEAK], start + units.gathered)
        new[_FIRST_PEAK] = np.where(any_unit, labels[_FIRST_PEAK], first)
        since = labels[_FORWARD_PEAK]
        forward = np.where(any_unit, np.maximum(since, entry), since)
        running = before + units.forward_peak + 2 * units.gathered
        after = unsharded + units.root_forward_peak + units.gathered
        new[_FORWARD_PEAK] = np.maximum(np.maximum(forward, running), after)
        waiting = np.maximum(labels[_UNIT_PEAK], labels[_ROOT_PEAK] + labels[_NEXT_BUFFER])
        done = np.maximum(labels[_BACKWARD_PEAK], waiting + reduced_now * units.reduced)
        # A unit reduced last is unsharded, with its gradients, while all before it run backward.
        last = units.reduced_last * (units.gathered + units.gradients)
        reduces = units.reduced + units.reduce_output
        ends = before + labels[_NEXT_BUFFER] + reduces + units.backward_end - labels[ROOT_GRADIENTS]
        ends = np.where(units.reduced_last > 0, NOTHING, ends)
        new[_BACKWARD_PEAK] = np.maximum(done + last, ends)
        begins = before + units.gathered + units.gathered_again + units.backward_start
        begins = np.where(units.gathered_again > 0, begins, NOTHING)
        running = before + units.gathered + labels[_NEXT_BUFFER] + units.backward_peak
        new[_UNIT_PEAK] = np.maximum(begins, running) - labels[ROOT_GRADIENTS]
        new[_ROOT_PEAK] = unsharded + units.root_backward_peak - labels[ROOT_GRADIENTS]
        new[UNSHARDED] = unsharded
        new[_BUFFER], new[_NEXT_BUFFER] = units.gathered, units.gathered_again
        new[REDUCED_LAST] += last
        # Units reduced last end one after the other; only shards of those before remain.
        ending = reduces - units.gathered - labels[REDUCED_LAST]
        ending = np.where(units.reduced_last > 0, ending, NOTHING)
        new[_REDUCE_PEAK] = np.maximum(labels[_REDUCE_PEAK], ending)

    def _clip(self, place: int | Ints, new: Floats) -> None:
        """Clip compute to the longest collective that it may still hide, so that labels agree."""
        gathers, reduces = self.step.longest_collectives
        gather, reduce = np.asarray(gathers[place]), np.asarray(reduces[place])
        if gather.ndim:
            gather, reduce = gather[:, None], reduce[:, None]
        new[FORWARD_S] = np.maximum(new[FORWARD_S], -gather)
        new[SLACK] = np.maximum(new[SLACK], -reduce)
        new[AGAIN_S] = np.maximum(new[AGAIN_S], -(reduce + gather))

    def finish(self, labels: Floats) -> Floats:
        """Exposed time of the full step [s]."""
        cost = labels[_COST] + np.maximum(labels[SLACK], 0.0)
        exposed = np.where(labels[_ROOT_EMPTY] > 0, labels[_GATHER_S], labels[AGAIN_S])
        cost = cost + np.maximum(exposed, 0.0)
        return np.asarray(cost + self._root_rest_s(labels))

    def remaining_cost(self, position: int, labels: Floats, budget: float) -> Floats:
        """The root's own collectives, and what remaining compute cannot hide of the others [s].

        What is left is gathered once at least, in units or with the root, and reduced. Per byte
        that takes at least s_a and s_r, the slopes for large buffers. With x of the P bytes left to
        the root, whose collectives nothing hides, and windows f and b of compute forward and
        backward, it exposes at least the minimum over x of

            max(0, s_a (P - x) - f) + max(0, s_a g + s_r (P - x) - b) + (s_a + s_r) x

        where g is gathered again in backward: all that is not in the root, or at least what the
        budget does not let stay from forward to backward. This is convex in x, so its minimum is
        at an end or where a window is just filled.
        """
        step = self.step
        gathered, forward, backward = step.remaining[:, position]
        gather, reduce = step.slopes
        again = gather if step.all_gathered_again else 0.0
        again_s: Floats | float = 0.0
        if np.isfinite(budget) and not step.all_gathered_again and step.all_run_backward:
            # The last module ends forward when all that stays is there.
            room = budget - step.constant_bytes - max(step.floors[-2:])
            stay = np.maximum(room - labels[UNSHARDED] - labels[ROOT], 0.0)
            again_s = gather * np.maximum(gathered - stay, 0.0)
        forward_left_s = forward - labels[FORWARD_S]
        backward_left_s = backward - labels[SLACK] - labels[AGAIN_S] - again_s
        best = np.full(labels.shape[1], np.inf)
        rest = self._root_rest_s(labels)
        for in_units in (
            np.zeros_like(forward_left_s),
            np.full_like(forward_left_s, gathered),
            forward_left_s / gather,
            backward_left_s / max(again + reduce, 1e-30),
        ):
            units = np.clip(in_units, 0.0, gathered)
            exposed = np.maximum(gather * units - forward_left_s, 0.0)
            exposed += np.maximum((again + reduce) * units - backward_left_s, 0.0)
            best = np.minimum(best, exposed + (gather + reduce) * (gathered - units))
        return rest + best

    def _root_rest_s(self, labels: Floats) -> Floats:
        """What the root's own collectives take in addition to the cost so far [s].

        Few sizes occur, and each is evaluated once.
        """
        sizes, places = np.unique(labels[ROOT] + 1j * labels[ROOT_REDUCED], return_inverse=True)
        new = [size for size in sizes.tolist() if size not in self.root_s]
        if new:
            gather, reduce = self.step.root_slopes
            gathered, reduced = np.real(new), np.imag(new)
            times = self.step.collectives.gather_s(gathered) - gather * gathered
            times += self.step.collectives.reduce_s(reduced) - reduce * reduced
            self.root_s.update(zip(new, times.tolist(), strict=True))
        return np.array([self.root_s[size] for size in sizes.tolist()])[places]

    def peak(self, position: int, labels: Floats) -> Floats:
        """Peak so far; at the last position also of the loss and of the end of the step [byte]."""
        step = self.step
        root, gradients = labels[ROOT], labels[ROOT_GRADIENTS]
        gathered = np.where(labels[_ROOT_EMPTY] > 0, 0.0, labels[_NEXT_BUFFER])
        waiting = np.maximum(labels[_UNIT_PEAK], labels[_ROOT_PEAK] + gathered)
        forward = labels[_FORWARD_PEAK]
        if position == len(step.edges):
            loss, backward = step.loss_peaks
            forward = np.maximum(forward, labels[UNSHARDED] + loss)
            waiting = np.maximum(waiting, labels[UNSHARDED] + backward)
        moments = [
            root + labels[UNSHARDED] + step.floors[position],
            2 * root + labels[_FIRST_PEAK],
            root + forward,
            root + gradients + np.maximum(labels[_BACKWARD_PEAK], waiting),
        ]
        if position == len(step.edges):
            end = step.spans.start(len(step.profile.seconds))
            end -= step.spans.reduced_gradients(len(step.profile.seconds))
            # The root's last gradient is at most its largest; the output lives at the same time.
            scattered = step.output_ratio * labels[ROOT_REDUCED]
            unsharded = labels[ROOT_REDUCED] * step.gradient_ratio
            output = np.maximum(scattered + labels[_ROOT_LARGEST] - unsharded, 0.0)
            last = labels[REDUCED_LAST]
            moments.append(end + gradients + labels[ROOT_REDUCED] + output + last)
            moments.append(end + last + labels[_REDUCE_PEAK])
            moments.append(np.full_like(root, step.optimizer_step))
        return np.asarray(step.constant_bytes + np.max(moments, axis=0))

    def harmless(self, position: int, labels: Floats, budget: float) -> Floats:
        """Labels with peaks raised to what fits whatever the root will own.

        In addition to what is there now, the root gets at most what is left, and at most what the
        budget leaves in addition to the remaining peak.
        """
        if not np.isfinite(budget) or position == len(self.step.edges):
            return labels
        labels = labels.copy()
        room = budget - self.step.constant_bytes
        left = room - self.step.floors[position] - labels[ROOT] - labels[UNSHARDED]
        left = np.minimum(left, self.most_root - labels[ROOT])
        more = np.clip(left, 0.0, self.step.remaining[0, position])
        root = labels[ROOT] + more
        gradients = labels[ROOT_GRADIENTS] + more * self.step.root_gradient_ratio
        reduce = self.step.largest_reduce
        labels[_FIRST_PEAK] = np.maximum(labels[_FIRST_PEAK], room - 2 * root)
        labels[_FORWARD_PEAK] = np.maximum(labels[_FORWARD_PEAK], room - root)
        room = room - self.step.reduced_last_bytes[position] - root - gradients
        labels[_BACKWARD_PEAK] = np.maximum(labels[_BACKWARD_PEAK], room)
        labels[_UNIT_PEAK] = np.maximum(labels[_UNIT_PEAK], room - reduce)
        least = room - reduce - labels[_NEXT_BUFFER]
        labels[_ROOT_PEAK] = np.maximum(labels[_ROOT_PEAK], least)
        return labels

    @property
    def byte_s(self) -> float:
        """Time to gather and reduce a byte of weights in a large collective [s/byte]."""
        return sum(self.step.slopes)

    def sketch(self, labels: Floats) -> tuple[Floats, Floats]:
        """Labels with time and what stays unsharded, to the MiB; the latter [byte]."""
        kept = labels[ROOT] + labels[ROOT_GRADIENTS] + labels[UNSHARDED]
        few = labels.copy()
        few[[ROOT, ROOT_REDUCED, *self.memory_rows]] = 0.0
        few[UNSHARDED] = np.ceil(kept / _MIB)
        return few, kept

"""The best wrapping of a profile within a memory budget, with its proof, and alternatives to it.

These are the front of memory and time, and the wrappings that people use without a planner.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import perf_counter

import numpy as np

from shardwise.errors import InputError
from shardwise.fsdp.plan import DTYPE_BYTES, Checkpointing, Reshard, Setting, Unit, Wrapping
from shardwise.fsdp.planner.collectives import CollectiveTimes
from shardwise.fsdp.planner.evaluate import Evaluated, evaluate
from shardwise.fsdp.planner.root_range import root_ranges
from shardwise.fsdp.planner.rules import Fsdp2Rules, StepCosts
from shardwise.fsdp.planner.search import Path, least_peak, optimum, shortest_path
from shardwise.fsdp.planner.units import allowed, module_sizes, possible_units
from shardwise.fsdp.profile import Profile, repeated_blocks, with_checkpoints

_RESHARD: dict[Reshard, tuple[bool, ...]] = {
    "always": (True,),
    "never": (False,),
    "choose": (True, False),
}
_EQUAL = 1e-9
"""Plans whose relative difference in time is smaller are equally good."""
_FEW = 32
"""Labels per position for a bound without a budget."""
_BYTE = 1.0
"""Sums in another order differ by less; budgets hold to the byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The best wrapping found, with a bound on the optimum."""

    plan: Evaluated
    budget_bytes: float
    bound_s: float
    """No wrapping of the space within the budget costs less [s]."""
    elapsed_s: float
    labels: int
    """Partial plans that the search extended."""

    @property
    def cost_s(self) -> float:
        """What was minimized: exposed communication and recomputation [s]."""
        return self.plan.exposed_s + self.plan.recompute_s

    @property
    def optimal(self) -> bool:
        """Whether the bound is reached: nothing better exists in the space."""
        return self.bound_s >= self.cost_s * (1 - _EQUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastPeak:
    """The plan of least memory that was found."""

    path: Path
    plan: Evaluated

    @property
    def bytes(self) -> float:
        """Its peak [byte]."""
        return self.plan.peak.total_bytes


@dataclass(frozen=True, eq=False, kw_only=True)
class Planner:
    """A profile in a setting, and the space of wrappings to choose from.

    The space: any set of modules none of which is inside another, or groups of up to `most_grouped`
    neighbors in one call; for each unit whether it is freed after forward; with `checkpoint` set
    to `choose`, the first k blocks checkpointed for any k, units not inside them. (Of equal blocks
    the first are the best to checkpoint, because their activations would live longest.)
    """

    profile: Profile
    setting: Setting
    collectives: CollectiveTimes
    reshard: Reshard = "choose"
    checkpoint: Checkpointing = "none"
    blocks: tuple[int, ...] | None = None
    """Positions that may be checkpointed; None: the blocks of the model's lists."""
    most_grouped: int = 2
    seconds: float = 10.0
    """Time limit of a proof, for the best plan as for the least memory [s]."""
    _known: dict[int, Fsdp2Rules] = field(default_factory=dict)
    """Rules by the number of blocks checkpointed."""
    _peaks: dict[int, LeastPeak] = field(default_factory=dict)
    """Least peaks by the same."""
    _bounds: dict[int, float] = field(default_factory=dict)
    """Bounds on the cost without a budget by the same [s]."""

    def __post_init__(self) -> None:
        if self.setting.shards < 2:  # noqa: PLR2004 - one rank has nobody to share with
            problem = "FSDP shards over two ranks or more; on one there is nothing to plan"
            raise InputError.of("gpus", self.setting.shards, problem)
        dtype = self.setting.compute_dtype
        sizes = {parameter.element_bytes for parameter in self.profile.parameters}
        if sizes - {DTYPE_BYTES[dtype]}:
            problem = f"the profile computes with weights of {max(sizes):g} bytes each"
            raise InputError.of("compute_dtype", dtype, problem)

    @cached_property
    def checkpointable(self) -> tuple[int, ...]:
        """Positions of the blocks that may be checkpointed, in the order they run."""
        return repeated_blocks(self.profile) if self.blocks is None else self.blocks

    def _counts(self) -> tuple[int, ...]:
        """Numbers of blocks that may be checkpointed together."""
        every = len(self.checkpointable)
        return {"none": (0,), "all": (every,), "choose": tuple(range(every + 1))}[self.checkpoint]

    def rules(self, checkpointed: int = 0) -> Fsdp2Rules:
        """Rules of the space with the first blocks checkpointed."""
        if checkpointed not in self._known:
            places = self.checkpointable[:checkpointed]
            profile = with_checkpoints(self.profile, places)
            sizes = module_sizes(profile, self.setting)
            edges = possible_units(
                profile, sizes, reshard=_RESHARD[self.reshard], most_grouped=self.most_grouped
            )
            inside = np.zeros(len(edges), dtype=bool)
            for place in places:
                inside[place + 1 : profile.modules[place].end] = True
            edges = [[] if inside[place] else found for place, found in enumerate(edges)]
            step = StepCosts(
                profile=profile, sizes=sizes, collectives=self.collectives, edges=edges
            )
            self._known[checkpointed] = Fsdp2Rules(step=step)
        return self._known[checkpointed]

    def wrapping_from_path(self, path: Path, checkpointed: int = 0) -> Wrapping:
        """The wrapping that a path stands for."""
        edges = self.rules(checkpointed).step.edges
        chosen = [edges[place][number - 1] for place, number in path.edges if number > 0]
        names = [self.profile.modules[at].name for at in self.checkpointable[:checkpointed]]
        return Wrapping(units=tuple(edge.unit for edge in chosen), checkpointed=tuple(names))

    def evaluate(self, wrapping: Wrapping) -> Evaluated:
        """Evaluate a wrapping in this setting."""
        return evaluate(self.profile, self.setting, self.collectives, wrapping)

    @property
    def least_peak_bytes(self) -> float:
        """Smallest budget that any wrapping of the space fits in [byte]."""
        return self._least_peak(self._counts()[-1]).bytes

    @property
    def least_peak_proven(self) -> bool:
        """Whether no wrapping of the space has a smaller peak; else time ran out."""
        return self._least_peak(self._counts()[-1]).path.proven

    def _least_peak(self, checkpointed: int) -> LeastPeak:
        if checkpointed not in self._peaks:
            path = least_peak(self.rules(checkpointed), seconds=self.seconds)
            plan = self.evaluate(self.wrapping_from_path(path, checkpointed))
            self._peaks[checkpointed] = LeastPeak(path=path, plan=plan)
        return self._peaks[checkpointed]

    def _cost_bound(self, checkpointed: int) -> float:
        """No wrapping costs less, whatever the budget [s]."""
        if checkpointed not in self._bounds:
            until = perf_counter() + self.seconds
            rules = self.rules(checkpointed)
            path = shortest_path(rules, np.inf, most_labels=_FEW, only="time", until=until)
            self._bounds[checkpointed] = path.bound
        return self._bounds[checkpointed]

    def best(self, budget_bytes: float = np.inf, *, most_labels: float = np.inf) -> Planned | None:
        """The best wrapping within a budget; None if nothing fits."""
        began = perf_counter()
        best: tuple[Path, int, float] | None = None
        bound, labels = np.inf, 0
        for count, again_s in self._checkpoint_counts(budget_bytes):
            if best is not None and again_s >= best[2]:
                break
            known_bound = self._cost_bound(count)
            left = self.seconds - (perf_counter() - began)
            path = optimum(
                self.rules(count),
                budget_bytes + _BYTE,
                seconds=max(left, 0.0),
                most_labels=most_labels,
                known_bound=known_bound,
                parts=partial(root_ranges, self.rules(count)),
            )
            labels += path.labels
            bound = min(bound, path.bound + again_s)
            if path.edges and (best is None or path.cost + again_s < best[2]):
                best = path, count, path.cost + again_s
        if best is not None:
            plan = self.evaluate(self.wrapping_from_path(best[0], best[1]))
            plan = self._with_whole_blocks(plan, budget_bytes)
        elif np.isfinite(bound) and self.least_peak_bytes <= budget_bytes + _BYTE:
            # Time ran out before a plan was found, but the one of least memory fits.
            plan = self.with_larger_units(self._least_peak(self._counts()[-1]).plan, budget_bytes)
        else:
            return None
        return Planned(
            plan=plan,
            budget_bytes=budget_bytes,
            bound_s=bound,
            elapsed_s=perf_counter() - began,
            labels=labels,
        )

    def _with_whole_blocks(self, plan: Evaluated, budget_bytes: float) -> Evaluated:
        """An equally fast plan with as many of the last blocks as possible as one unit each.

        Where compute hides all communication, many plans are equally good; this one reads best.
        """
        blocks = repeated_blocks(self.profile)
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            other = self._wrap_blocks(plan, blocks[middle:])
            as_fast = other is not None and (
                other.peak.total_bytes <= budget_bytes + _BYTE
                and other.step_s <= plan.step_s + _EQUAL * (plan.exposed_s + plan.recompute_s)
            )
            if other is not None and as_fast:
                plan, high = other, middle
            else:
                low = middle + 1
        return plan

    def with_larger_units(self, plan: Evaluated, budget_bytes: float) -> Evaluated:
        """A plan with modules as one unit each, outer ones first, where that fits and is faster."""
        covered = 0
        for place, module in enumerate(self.profile.modules):
            if place < covered or module.end == place + 1:
                continue
            other = self._wrap_blocks(plan, [place])
            if other is None or other.peak.total_bytes > budget_bytes + _BYTE:
                continue
            if other.step_s < plan.step_s:
                plan, covered = other, module.end
        return plan

    def _wrap_blocks(self, plan: Evaluated, blocks: Sequence[int]) -> Evaluated | None:
        """The plan with some blocks as one unit each, in place of all units that overlap them."""
        profile, edges = self.profile, self.rules(len(plan.wrapping.checkpointed)).step.edges
        block_units = {
            at: edge.unit
            for at in blocks
            for edge in edges[at]
            if edge.last == at and edge.unit.reshard_after_forward
        }
        if len(block_units) < len(blocks):
            return None
        covered = np.zeros(len(profile.modules), dtype=bool)
        for at in blocks:
            covered[at : profile.modules[at].end] = True
        placed: dict[int, Unit] = {}
        for unit in plan.wrapping.units:
            places = [profile.positions[name] for name in unit.modules]
            inside = [bool(covered[place : profile.modules[place].end].any()) for place in places]
            if not all(inside):  # as the last block with the norm behind it: leave them together
                placed[places[0]] = unit
                for place in places:
                    block_units.pop(place, None)
        placed |= block_units
        units = tuple(placed[at] for at in sorted(placed))
        return self.evaluate(Wrapping(units=units, checkpointed=plan.wrapping.checkpointed))

    def _checkpoint_counts(self, budget_bytes: float) -> Iterator[tuple[int, float]]:
        """Numbers of blocks to checkpoint from the fewest that fit, and the time that adds [s].

        With more blocks checkpointed what fits still fits, so bisection finds the fewest.
        """
        counts = self._counts()
        low, high = 0, 0 if np.isinf(budget_bytes) else len(counts) - 1
        while low < high:
            middle = (low + high) // 2
            fits = self._least_peak(counts[middle]).bytes <= budget_bytes + _BYTE
            low, high = (low, middle) if fits else (middle + 1, high)
        total_s = float(self.profile.seconds.sum())
        for count in counts[low:]:
            yield count, float(self.rules(count).step.profile.seconds.sum()) - total_s


_LESS = 1e-6
"""Least relative distance of the next budget of the front."""
_LABELS = 50_000
"""Labels of a round of proof for each budget of the front: more seldom find a better plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A common wrapping and its costs."""

    name: str
    plan: Evaluated


def compare_common_wrappings(planner: Planner) -> tuple[NamedPlan, ...]:
    """The wrappings that people use without a planner, in the planner's setting."""
    found = common_wrappings(planner)
    return tuple(NamedPlan(name=name, plan=planner.evaluate(found[name])) for name in found)


def common_wrappings(planner: Planner) -> dict[str, Wrapping]:
    """Root only; every block; blocks, embedding and head.

    Blocks are those of the model's lists. The embedding comes before the first block; the final
    norm and the head come after the last and share a call; tied weights stay in the root.
    """
    profile = planner.profile
    may = allowed(profile, module_sizes(profile, planner.setting))
    blocks = [at for at in repeated_blocks(profile) if may[at]]
    every = tuple(Unit(modules=(profile.modules[at].name,)) for at in blocks)
    found = {"root only": Wrapping(units=())}
    if not blocks:
        return found
    again = planner.checkpoint == "all"
    names = tuple(profile.modules[at].name for at in planner.checkpointable) if again else ()
    found["root only"] = Wrapping(units=(), checkpointed=names)
    found["every block"] = Wrapping(units=every, checkpointed=names)
    leaves = [at for at in np.flatnonzero(may) if profile.modules[at].end == at + 1]
    before = [Unit(modules=(profile.modules[at].name,)) for at in leaves if at < blocks[0]]
    last = profile.modules[blocks[-1]].end
    after = tuple(profile.modules[at].name for at in leaves if at >= last)
    ends = (Unit(modules=after),) if after else ()
    if before or ends:
        found["blocks + embedding + head"] = Wrapping(
            units=(*before, *every, *ends), checkpointed=names
        )
    return found


def front(
    planner: Planner,
    *,
    points: int = 12,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Planned, ...]:
    """Best wrappings from the fastest to the least memory, each the best for its budget."""
    fastest = planner.best()
    if fastest is None:
        return ()
    least = planner.least_peak_bytes
    found = [fastest]
    budgets = np.linspace(fastest.plan.peak.total_bytes, least, max(points, 2))[1:]
    for number, budget in enumerate(budgets, start=1):
        peak = found[-1].plan.peak.total_bytes
        # The last plan may need less than its budget; then it is the answer for the next one too.
        if budget < peak * (1 - _LESS) or (number == len(budgets) and budget < peak):
            best = planner.best(float(budget) * (1 + 1e-12), most_labels=_LABELS)
            if best is not None:
                found.append(best)
        if progress is not None:
            progress(number, len(budgets))
    pareto: list[Planned] = []
    for plan in sorted(found, key=lambda p: (p.plan.step_s, p.plan.peak.total_bytes)):
        if not pareto or plan.plan.peak.total_bytes < pareto[-1].plan.peak.total_bytes:
            pareto.append(plan)
    return tuple(pareto)


def smallest_gpus(
    planner_of: Callable[[int], Planner], budget_bytes: float, candidates: Sequence[int]
) -> int | None:
    """Fewest GPUs of the candidates that some wrapping fits on; None if none does.

    Shards shrink with more ranks, so bisection applies.
    """
    ordered = sorted(candidates)
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        fits = planner_of(ordered[middle]).least_peak_bytes <= budget_bytes
        low, high = (low, middle) if fits else (middle + 1, high)
    return ordered[low] if low < len(ordered) else None


def largest_batch(
    planner_of: Callable[[int], Planner], budget_bytes: float, most: int = 4096
) -> int | None:
    """Largest batch of one rank that some wrapping fits with; None if not even 1 does."""
    low, high = 0, 1
    while high <= most and planner_of(high).least_peak_bytes <= budget_bytes:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        fits = planner_of(middle).least_peak_bytes <= budget_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low or None

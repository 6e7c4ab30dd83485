"""Alternatives to the best wrapping: the front of memory and time, and common wrappings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.fsdp.plan import Unit, Wrapping
from shardwise.fsdp.planner.evaluate import Evaluated
from shardwise.fsdp.planner.planner import Planned, Planner
from shardwise.fsdp.planner.units import allowed, module_sizes
from shardwise.fsdp.profile import repeated_blocks

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

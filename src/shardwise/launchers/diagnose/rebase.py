"""The machine as it was measured: slow components put into the figures of system and stack.

Estimates of other strategies on it count what is slow: a slow link makes changes that use it less
worth, and those that avoid it more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate
from shardwise.launchers.diagnose.results import Cause, Finding, PossibleCause
from shardwise.launchers.kineto.kernels import CommAxis
from shardwise.units import LEAST_SHARE

_MOST = 100.0
"""Largest factor that figures of a stack allow."""
_STACK_FACTORS = {
    Cause.SLOW_PRODUCTS: "matmul_time_factor",
    Cause.SLOW_ATTENTION: "attention_time_factor",
    Cause.SLOW_KERNELS: "memory_traffic_factor",
}
_ALL_TO_ALL = "all_to_all"
"""Also what libraries of expert parallelism send, with kernels of their own."""
_KINDS = {
    CommAxis.TP: ("all_reduce", "all_gather", "reduce_scatter"),
    CommAxis.CP: ("p2p", "all_gather", "all_to_all"),
    CommAxis.EP: (_ALL_TO_ALL,),
    CommAxis.PP: ("p2p",),
    CommAxis.DP: ("all_reduce", "all_gather", "reduce_scatter"),
}
_PER_STEP = (
    Cause.HOST_STALLS,
    Cause.DATA_LOADING,
    Cause.WAITS_FOR_RANKS,
    Cause.SLOW_COPIES,
    Cause.NOT_HIDDEN,
)
_ROUNDS = 12
_CLOSE = 1e-3


def with_findings(
    model: Model, system: System, strategy: Strategy, findings: Sequence[Finding]
) -> tuple[System, Stack]:
    """Return system and stack with the slow components of a trace."""
    stack = strategy.loaded_stack(system)
    added = sum(one.excess_s for one in findings if one.cause in _PER_STEP)
    changed = {"step_overhead": stack.step_overhead + added}
    for one in findings:
        if one.cause in _STACK_FACTORS and one.ratio is not None:
            name = _STACK_FACTORS[one.cause]
            changed[name] = min(getattr(stack, name) * one.ratio, _MOST)
    for one in findings:
        if one.cause in (Cause.SLOW_LINK, Cause.SLOW_COLLECTIVE) and one.ratio is not None:
            kinds = None if one.cause is Cause.SLOW_LINK else _KINDS[CommAxis(one.component)]
            system = _slowed_axis(model, system, strategy, one, kinds)
    return system, stack_with(stack, changed)


def stack_with(stack: Stack, changed: Mapping[str, object]) -> Stack:
    """Return a stack with other figures."""
    return stack.model_copy(update=dict(changed))


def slowed_tier(
    system: System, name: str, factor: float, kinds: Sequence[str] | None = None
) -> System:
    """Return the system with slower collectives of a tier: latencies and transfers times a factor.

    Parameters
    ----------
    kinds
        Kinds of collectives; None: all.
    """
    fields = system.to_dict()
    for position, tier in enumerate(fields["network"]):
        if tier["name"] != name:
            continue
        for kind, rates in tier["collectives"].items():
            if kinds is None or kind in kinds:
                _slow(rates, factor)
        if kinds is None or _ALL_TO_ALL in kinds:
            share = "fabric_efficiency" if position else "link_efficiency"
            for kernels in fields["expert_kernels"].values():
                for one in kernels.values():
                    one[share] = max(one[share] / factor, LEAST_SHARE)
    return System.validated(fields)


def _slow(rates: dict[str, Any], factor: float) -> None:
    for figure in ("latency", "latency_per_member"):
        rates[figure] *= factor
    shares = rates["efficiency"].items()
    rates["efficiency"] = {n: max(share / factor, LEAST_SHARE) for n, share in shares}
    if rates.get("bulk"):
        for figure in ("latency", "latency_per_member"):
            rates["bulk"][figure] *= factor
        rates["bulk"]["small_rate"] /= factor


def _slowed_axis(
    model: Model,
    system: System,
    strategy: Strategy,
    finding: Finding,
    kinds: Sequence[str] | None,
) -> System:
    """Slow the tier of an axis until its communication takes as long as it was measured to."""
    axis, ratio = finding.component, min(finding.ratio or 1.0, _MOST)
    alone = estimate(model, system, strategy).comm_s[axis].total
    factor, changed = ratio, slowed_tier(system, finding.tier, ratio, kinds)
    for _ in range(_ROUNDS):
        found = estimate(model, changed, strategy).comm_s[axis].total / alone
        if abs(found / ratio - 1) < _CLOSE:
            break
        # Inner tiers are as fast as before, and a library of experts may have another limit: only
        # the rest grows with the factor.
        grows = max(found - 1, (ratio - 1) / 2)
        factor = min(1 + (factor - 1) * (ratio - 1) / grows, _MOST)
        changed = slowed_tier(system, finding.tier, factor, kinds)
    return changed


def possible_causes(
    model: Model, system: System, strategy: Strategy, step_s: float, tiers: Sequence[str]
) -> Iterator[PossibleCause]:
    """Yield what alone would make a step take as long as measured: products, a tier, the host.

    Parameters
    ----------
    step_s
        Measured [s].
    """
    stack = strategy.loaded_stack(system)
    predicted = estimate(model, system, strategy).step_time_s

    def with_products(factor: float) -> float:
        slow = stack_with(stack, {"matmul_time_factor": stack.matmul_time_factor * factor})
        other = strategy.model_copy(update={"stack": slow})
        return estimate(model, system, other).step_time_s

    factor = _solved(with_products, step_s, _MOST / stack.matmul_time_factor)
    if factor is not None:
        yield PossibleCause(cause=Cause.SLOW_PRODUCTS, what="products", factor=factor, added_s=None)
    for name in tiers:

        def with_tier(factor: float, name: str = name) -> float:
            return estimate(model, slowed_tier(system, name, factor), strategy).step_time_s

        factor = _solved(with_tier, step_s, _MOST)
        if factor is not None:
            yield PossibleCause(cause=Cause.SLOW_LINK, what=name, factor=factor, added_s=None)
    added = step_s - predicted
    yield PossibleCause(cause=Cause.HOST_STALLS, what="host", factor=None, added_s=added)


def _solved(time_of: Callable[[float], float], step_s: float, most: float) -> float | None:
    """Return the factor at which a time is met, by bisection; None if it is not below the most."""
    low, high = 1.0, 2.0
    try:
        while time_of(high) < step_s:
            low, high = high, 2 * high
            if high > most:
                return None
        while high / low > 1 + _CLOSE:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if time_of(middle) < step_s else (low, middle)
    except InputError:
        return None
    return high

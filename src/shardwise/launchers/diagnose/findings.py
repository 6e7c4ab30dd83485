"""What is slower than predicted beyond the error range of the prediction, and why.

A component is a finding where it takes more than its predicted time times the error range of a
component (`Compared.component_factor`), and the excess is at least a hundredth of the step. Idle
time must exceed the prediction by a quarter of the error of the step, too.
"""

from collections.abc import Iterator

from shardwise.config.system import System
from shardwise.launchers.diagnose.components import Compared
from shardwise.launchers.diagnose.measured import MeasuredSteps
from shardwise.launchers.diagnose.results import Cause, Finding, MeasuredRun, PredictedRun
from shardwise.launchers.kineto.kernels import CommAxis, KernelClass

_UNEVEN = 0.05
"""Standard deviation over the median of steps that is no longer usual."""
_LEAST_SHARE = 0.01
_HALF = 0.5
_OWN_CAUSE = 0.25
_KERNELS = {
    KernelClass.PRODUCTS: (
        Cause.SLOW_PRODUCTS,
        "matrix products",
        "clocks limited by power or heat, or a library without kernels for these shapes",
    ),
    KernelClass.ATTENTION: (
        Cause.SLOW_ATTENTION,
        "attention",
        "another kernel than the one assumed, or clocks limited by power or heat",
    ),
    KernelClass.OTHER: (
        Cause.SLOW_KERNELS,
        "element-wise kernels",
        "kernels that are not fused, or slow memory",
    ),
}
_ALL_SLOW = "all kernels are slower: clocks limited by power or heat, or a shared accelerator"
_WORDS = {
    CommAxis.TP: "tensor-parallel communication",
    CommAxis.CP: "context-parallel communication",
    CommAxis.EP: "communication between experts",
    CommAxis.PP: "messages between stages",
    CommAxis.DP: "data-parallel communication",
}
_INSIDE = (CommAxis.TP, CommAxis.CP, CommAxis.EP)


def traced_findings(compared: Compared, system: System) -> Iterator[Finding]:
    """Yield what the trace shows."""
    yield from _slow_kernels(compared)
    yield from _slow_communication(compared, system)
    predicted, measured = compared.predicted.memcpy_s, compared.traced.memcpy_s
    if _exceeds(compared, predicted, measured):
        yield _finding(
            compared,
            Cause.SLOW_COPIES,
            KernelClass.MEMCPY,
            predicted,
            measured,
            "copies between host and device: pageable memory, or a slow link to the host",
        )
    yield from _idle(compared)


def _exceeds(compared: Compared, predicted: float, measured: float) -> bool:
    """Whether a component is a finding."""
    beyond = measured > compared.component_factor * predicted
    return beyond and measured - predicted >= compared.least_s


def _finding(
    compared: Compared,
    cause: Cause,
    component: str,
    predicted: float,
    measured: float,
    text: str,
    *,
    tier: str = "",
    ratio: float | None = None,
    growth: float = 0.0,
) -> Finding:
    excess = measured - predicted
    gain = min(excess * (1 + growth), compared.median_s)
    if ratio is None and predicted > 0:
        ratio = measured / predicted
    return Finding(
        cause=cause,
        component=component,
        tier=tier,
        excess_s=excess,
        ratio=ratio,
        gain_s=gain,
        gain_share=gain / compared.median_s,
        text=text,
    )


def _slow_kernels(compared: Compared) -> Iterator[Finding]:
    predicted, measured = compared.predicted.kernels_s, compared.kernels_s
    slow = [kind for kind in _KERNELS if _exceeds(compared, predicted[kind], measured[kind])]
    for kind in slow:
        cause, what, why = _KERNELS[kind]
        reason = _ALL_SLOW if len(slow) == len(_KERNELS) else why
        yield _finding(
            compared,
            cause,
            kind,
            predicted[kind],
            measured[kind],
            f"{what}: {reason}",
            growth=compared.idle_growth,
        )


def _slow_communication(compared: Compared, system: System) -> Iterator[Finding]:
    """Communication whose exposed time exceeds the prediction, with its cause.

    Fast ones among equal collectives tell slow transfers from waiting; other axes on the same tier
    tell a slow link from a slow kind of collective. Waits for another pipeline stage are idle time
    (`_idle`).
    """
    predicted = compared.predicted
    slow = []
    for axis in _WORDS:
        measured = compared.communication(axis).exposed_s
        measured -= compared.pipeline_waiting_s if axis is CommAxis.PP else 0.0
        if _exceeds(compared, predicted.exposed_s[axis], measured):
            slow.append((axis, measured))
    for axis, measured in slow:
        traced, expected = compared.communication(axis), predicted.total_s[axis]
        limit = compared.component_factor * expected
        tier = system.network[predicted.tiers[axis]].name if axis in predicted.tiers else ""
        if traced.total_s <= limit:
            cause = Cause.NOT_HIDDEN
            text = "takes as long as predicted, but compute hides less of it: overlap is off"
        elif axis is not CommAxis.PP and traced.total_s - traced.waiting_s <= limit:
            cause = Cause.WAITS_FOR_RANKS
            text = "fast collectives are as fast as predicted, the others wait for a slow rank"
        elif not _fast_on_tier_of(compared, axis):
            cause = Cause.SLOW_LINK
            text = f"slow links of {tier}, or slow processors of its collectives"
        else:
            cause = Cause.SLOW_COLLECTIVE
            text = f"its collectives are slow, others on {tier} are not"
        yield _finding(
            compared,
            cause,
            axis,
            predicted.exposed_s[axis],
            measured,
            f"{_WORDS[axis]}: {text}",
            tier=tier,
            ratio=traced.total_s / expected if expected else None,
            growth=compared.idle_growth if axis in _INSIDE else 0.0,
        )


def _fast_on_tier_of(compared: Compared, axis: CommAxis) -> bool:
    """Whether another axis communicates on the same tier as fast as predicted."""
    predicted = compared.predicted
    for other, tier in predicted.tiers.items():
        traced = compared.traced.communication.get(other)
        if other is axis or tier != predicted.tiers.get(axis) or traced is None:
            continue
        transfer = traced.total_s - traced.waiting_s
        if transfer <= compared.component_factor * predicted.total_s[other]:
            return True
    return False


def _idle(compared: Compared) -> Iterator[Finding]:
    """Idle time beyond bubble, host and fixed time: stalls of the host, or between the steps.

    The bubble shows as waiting sends and receives, or as idle: what of it does not wait in them is
    idle.
    """
    predicted = compared.predicted
    waiting = compared.pipeline_waiting_s
    own = max(predicted.idle_s - predicted.bubble_s, 0.0)
    bubble = compared.bubble_s
    if waiting - bubble >= compared.least_idle_s and waiting > compared.component_factor * bubble:
        text = "sends and receives wait for other stages longer than the bubble: uneven or slow"
        yield _finding(
            compared, Cause.WAITS_FOR_RANKS, CommAxis.PP, bubble, waiting, f"{text} stages"
        )
    expected = own + max(bubble - waiting, 0.0)
    excess = compared.idle_s - expected
    if excess < compared.least_idle_s or compared.idle_s <= compared.component_factor * expected:
        return
    traced = compared.traced
    between = min(max(traced.between_s - predicted.fixed_s, traced.loading_s, 0.0), excess)
    inside = excess - between
    loads = (
        "the device waits for the data loader"
        if traced.loading_s >= _HALF * between
        else ("the device is idle between the steps: data loading, logging or checks on the host")
    )
    # The last gap of a step is one of many between kernels: a small share is no cause of its own.
    both = min(between, inside) >= max(compared.least_idle_s, _OWN_CAUSE * excess)
    if both or between > inside:
        amount = between if both else excess
        yield _stall(compared, Cause.DATA_LOADING, expected, amount, loads)
    if both or between <= inside:
        amount = inside if both else excess
        text = "gaps between kernels: the host launches them late, or synchronizes"
        yield _stall(compared, Cause.HOST_STALLS, expected, amount, text)


def _stall(compared: Compared, cause: Cause, expected: float, excess: float, text: str) -> Finding:
    ratio = compared.idle_s / expected if expected else None
    return _finding(compared, cause, "idle", 0.0, excess, text, ratio=ratio)


def logged_findings(
    steps: MeasuredSteps,
    measured: MeasuredRun,
    predicted: PredictedRun,
    *,
    explained_s: float,
) -> Iterator[Finding]:
    """Yield what the log alone shows: slow and uneven steps, memory, the level of all.

    Parameters
    ----------
    explained_s
        What findings of a trace explain of the step [s].
    """
    median = measured.step_time_s

    def finding(cause: Cause, gain: float, text: str, ratio: float | None = None) -> Finding:
        return Finding(
            cause=cause,
            component="",
            tier="",
            excess_s=gain,
            ratio=ratio,
            gain_s=gain,
            gain_share=gain / median,
            text=text,
        )

    if (lost := steps.slow_loss_s) >= _LEAST_SHARE * median:
        period = steps.period
        every = "" if period is None else f", one every {period} steps"
        text = f"{steps.slow.sum()} of {len(steps.times_s)} steps are slow{every}: checkpoints, "
        yield finding(Cause.PERIODIC_STEPS, lost, f"{text}evaluation or garbage collection")
    if steps.spread > _UNEVEN:
        text = (
            f"steps vary by {100 * steps.spread:.0f} %: data loading, or other jobs on the network"
        )
        yield finding(Cause.UNEVEN_STEPS, median - steps.fast_s, text)
    over = measured.memory_bytes, predicted.memory_high
    if over[0] is not None and over[1] is not None and over[0] > over[1]:
        ratio = over[0] / predicted.memory_bytes if predicted.memory_bytes else None
        text = "the peak of memory is above its interval: an option that the launch file lacks, "
        yield finding(Cause.MEMORY, 0.0, f"{text}fragmentation or a leak", ratio)
    excess = median - predicted.step_time_s
    if median > predicted.high_s and explained_s < _HALF * excess:
        ratio = median / predicted.step_time_s
        rest = excess - explained_s
        what = "steps are slower than the interval of the prediction"
        yield finding(Cause.UNKNOWN, rest, f"{what}; a trace shows the cause", ratio)

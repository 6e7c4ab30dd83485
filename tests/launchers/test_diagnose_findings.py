"""Findings of a traced step that equals its prediction but for one component."""

import math
from dataclasses import replace

import pytest

from diagnosed_runs import CASES, kernel_seconds
from shardwise import Model, Strategy, System, estimate
from shardwise.launchers.diagnose.components import Compared
from shardwise.launchers.diagnose.findings import traced_findings
from shardwise.launchers.diagnose.predicted import predicted_step
from shardwise.launchers.diagnose.rebase import slowed_tier, with_findings
from shardwise.launchers.diagnose.results import Cause, Finding
from shardwise.launchers.kineto.kernels import CommAxis, KernelClass
from shardwise.launchers.kineto.steps import TracedCommunication, TracedSteps

SYSTEM = System.load("h100-sxm")
CASE = CASES["tensor and pipeline"]
MODEL = Model.load(CASE.model)
STRATEGY = Strategy.validated(CASE.strategy).resolved(MODEL, SYSTEM.stack)
FACTOR = 1.12


@pytest.fixture(scope="module")
def predicted():
    """The components of the case on its last stage."""
    return predicted_step(MODEL, SYSTEM, STRATEGY, stage=1)


def _clean(predicted):
    """A trace that is as predicted."""
    return TracedSteps(
        source="trace.json",
        rank=16,
        world_size=32,
        steps=3,
        step_s=predicted.step_s,
        products_s=predicted.kernels_s[KernelClass.PRODUCTS],
        attention_s=predicted.kernels_s[KernelClass.ATTENTION],
        other_kernels_s=predicted.kernels_s[KernelClass.OTHER],
        communication={
            axis: TracedCommunication(
                total_s=total, exposed_s=predicted.exposed_s[axis], waiting_s=0.0, kernels=10
            )
            for axis, total in predicted.total_s.items()
            if total
        },
        memcpy_s=0.0,
        idle_s=predicted.idle_s,
        between_s=predicted.fixed_s,
        loading_s=0.0,
    )


def _found(predicted, traced, *, median_s=None):
    step = predicted.step_s - _busy(_clean(predicted)) + _busy(traced)
    traced = replace(traced, step_s=step)
    compared = Compared(
        traced=traced, predicted=predicted, factor=FACTOR, median_s=median_s or traced.step_s
    )
    return list(traced_findings(compared, SYSTEM))


def _busy(traced):
    exposed = sum(one.exposed_s for one in traced.communication.values())
    kernels = traced.products_s + traced.attention_s + traced.other_kernels_s
    return kernels + exposed + traced.memcpy_s + traced.idle_s


def _with(traced, axis, **changes):
    one = replace(traced.communication[axis], **changes)
    return replace(traced, communication={**traced.communication, axis: one})


def test_nothing_is_found_in_a_step_as_predicted(predicted):
    """Nor where every component is 5 % slower: that is an error of the level."""
    clean = _clean(predicted)
    names = ("products_s", "attention_s", "other_kernels_s", "idle_s")
    slower = replace(clean, **{name: 1.05 * getattr(clean, name) for name in names})

    assert _found(predicted, clean) == []
    assert _found(predicted, slower) == []


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("products_s", Cause.SLOW_PRODUCTS),
        ("attention_s", Cause.SLOW_ATTENTION),
        ("other_kernels_s", Cause.SLOW_KERNELS),
    ],
)
def test_kernels_that_take_half_again_as_long_are_found(predicted, name, cause):
    """The excess of a slow stage is the gain, where the stage itself waits no longer."""
    clean = _clean(predicted)
    (one,) = _found(predicted, replace(clean, **{name: 1.5 * getattr(clean, name)}))

    assert (one.cause, one.component) == (cause, name.removesuffix("_s"))
    assert one.ratio == pytest.approx(1.5)
    assert one.gain_s == pytest.approx(0.5 * getattr(clean, name))


def test_a_bubble_that_grows_is_gained_too(predicted):
    """Where all stages are slow, the trace shows a longer wait, and it is no stall."""
    clean = _clean(predicted)
    longer = 0.5 * clean.products_s
    bubble = predicted.bubble_s * longer / predicted.passes_s
    slow = replace(clean, products_s=1.5 * clean.products_s, idle_s=clean.idle_s + bubble)
    (one,) = _found(predicted, slow)

    assert one.gain_s == pytest.approx(longer + bubble)


def test_all_kernels_slow_is_one_reason(predicted):
    """Products, attention and other kernels alike: clocks, or a shared accelerator."""
    clean = _clean(predicted)
    names = ("products_s", "attention_s", "other_kernels_s")
    slow = replace(clean, **{name: 1.6 * getattr(clean, name) for name in names})
    found = _found(predicted, slow)

    assert len(found) == 3
    assert all("all kernels are slower" in one.text for one in found)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"total_s": 2.0, "exposed_s": 3.0}, Cause.SLOW_LINK),
        ({"total_s": 1.0, "exposed_s": 3.0}, Cause.NOT_HIDDEN),
        ({"total_s": 2.0, "exposed_s": 3.0, "waiting_s": 1.0}, Cause.WAITS_FOR_RANKS),
    ],
)
def test_communication_is_slow_waits_or_is_not_hidden(predicted, changes, cause):
    """By its time with what is hidden, and that of the fast ones among equal collectives."""
    clean = _clean(predicted)
    own = clean.communication[CommAxis.TP]
    scales = {"total_s": own.total_s, "exposed_s": own.exposed_s, "waiting_s": own.total_s}
    slow = {name: factor * scales[name] for name, factor in changes.items()}
    (one,) = _found(predicted, _with(clean, CommAxis.TP, **slow))

    assert (one.cause, one.component, one.tier) == (cause, "tp", "nvlink")
    assert one.gain_s == pytest.approx(2 * own.exposed_s)


def test_a_slow_axis_among_fast_ones_is_no_slow_link(predicted):
    """Messages between stages on the same tier are as fast as predicted, or slow as well."""
    clean = _clean(predicted)
    own, sends = clean.communication[CommAxis.DP], clean.communication[CommAxis.PP]
    slow = _with(clean, CommAxis.DP, total_s=3 * own.total_s, exposed_s=own.exposed_s + 0.2)
    both = _with(slow, CommAxis.PP, total_s=3 * sends.total_s)

    assert [one.cause for one in _found(predicted, slow)] == [Cause.SLOW_COLLECTIVE]
    assert [one.cause for one in _found(predicted, both)] == [Cause.SLOW_LINK]
    assert all(one.tier == "fabric" for one in _found(predicted, both))


def test_waiting_for_another_stage_is_the_bubble_up_to_its_length(predicted):
    """A bubble in receives instead of gaps is no finding; a longer one waits for a stage."""
    clean = _clean(predicted)
    sends = clean.communication[CommAxis.PP]

    def waiting(seconds):
        longer = _with(
            clean,
            CommAxis.PP,
            total_s=sends.total_s + seconds,
            exposed_s=sends.exposed_s + seconds,
            waiting_s=seconds,
        )
        return replace(longer, idle_s=clean.idle_s - predicted.bubble_s)

    assert _found(predicted, waiting(predicted.bubble_s)) == []
    (one,) = _found(predicted, waiting(predicted.bubble_s + 0.4))
    assert (one.cause, one.component) == (Cause.WAITS_FOR_RANKS, "pp")
    assert one.gain_s == pytest.approx(0.4)


def test_a_stall_is_found_where_the_bubble_is_in_receives(predicted):
    """The bubble counts once: as waiting or as idle time."""
    clean = _clean(predicted)
    sends, bubble = clean.communication[CommAxis.PP], predicted.bubble_s
    changes = {"total_s": sends.total_s + bubble, "exposed_s": sends.exposed_s + bubble}
    slow = _with(clean, CommAxis.PP, waiting_s=bubble, **changes)
    (one,) = _found(predicted, replace(slow, idle_s=clean.idle_s - bubble + 0.5))

    assert one.cause == Cause.HOST_STALLS
    assert one.gain_s == pytest.approx(0.5)


def test_less_than_a_hundredth_of_the_step_is_no_finding(predicted):
    """Messages between stages that take twice their time cost a third of a hundredth."""
    clean = _clean(predicted)
    sends = clean.communication[CommAxis.PP]
    slow = {"total_s": 2 * sends.total_s, "exposed_s": 2 * sends.exposed_s}

    assert sends.exposed_s < 0.01 * predicted.step_s
    assert _found(predicted, _with(clean, CommAxis.PP, **slow)) == []


@pytest.mark.parametrize(
    ("between", "loading", "causes"),
    [
        (0.0, 0.0, {Cause.HOST_STALLS: 0.5}),
        (0.5, 0.0, {Cause.DATA_LOADING: 0.5}),
        (0.0, 0.5, {Cause.DATA_LOADING: 0.5}),
        (0.2, 0.2, {Cause.DATA_LOADING: 0.2, Cause.HOST_STALLS: 0.3}),
    ],
)
def test_idle_time_is_of_the_host_or_between_the_steps(predicted, between, loading, causes):
    """What lies between the steps, or while the data loader is waited for, is data loading."""
    clean = _clean(predicted)
    slow = replace(
        clean,
        idle_s=clean.idle_s + 0.5,
        between_s=clean.between_s + between,
        loading_s=loading,
    )
    found = {one.cause: one.gain_s for one in _found(predicted, slow)}

    assert found == pytest.approx(causes)


def test_what_the_profiler_adds_is_no_stall(predicted):
    """Steps of the trace that are longer than those of the log have the profiler's host time."""
    clean = _clean(predicted)
    slow = replace(clean, idle_s=clean.idle_s + 0.5)

    assert _found(predicted, slow, median_s=predicted.step_s) == []
    assert _found(predicted, slow, median_s=predicted.step_s + 0.5) != []


def test_copies_are_found(predicted):
    """Copies that nothing hides and nothing predicts."""
    (one,) = _found(predicted, replace(_clean(predicted), memcpy_s=0.3))

    assert (one.cause, one.ratio, one.gain_s) == (Cause.SLOW_COPIES, None, pytest.approx(0.3))


def test_the_error_range_of_a_component_makes_that_of_the_step(predicted):
    """Independent errors of log F, weighted by shares, have the size of log f."""
    clean = _clean(predicted)
    one = Compared(traced=clean, predicted=predicted, factor=FACTOR, median_s=clean.step_s)
    shares = [part.predicted_s / predicted.step_s for part in one.listed()]

    assert sum(shares) == pytest.approx(1)
    size = math.sqrt(sum((share * math.log(one.component_factor)) ** 2 for share in shares))
    assert size == pytest.approx(math.log(FACTOR))
    assert FACTOR < one.component_factor < FACTOR**4


def test_the_machine_as_measured_takes_as_long(predicted):
    """Slow products and a slow tier in the figures give the measured times of both."""
    clean = _clean(predicted)
    own = clean.communication[CommAxis.TP]
    slow = replace(clean, products_s=1.5 * clean.products_s)
    slow = _with(slow, CommAxis.TP, total_s=2.5 * own.total_s, exposed_s=6 * own.exposed_s)
    found = _found(predicted, slow)
    system, stack = with_findings(MODEL, SYSTEM, STRATEGY, found)
    changed = STRATEGY.model_copy(update={"stack": stack})
    again = predicted_step(MODEL, system, changed, stage=1)

    assert again.kernels_s[KernelClass.PRODUCTS] == pytest.approx(slow.products_s, rel=0.01)
    assert again.total_s[CommAxis.TP] == pytest.approx(2.5 * own.total_s, rel=0.01)
    assert again.total_s[CommAxis.DP] < 1.6 * predicted.total_s[CommAxis.DP]


@pytest.mark.parametrize(
    ("model", "fields", "axis"),
    [
        ("llama3-8b", {"gpus": 64, "gbs": 64, "zero": 1, "dp_shard": 8}, "dp"),
        ("qwen3-30b-a3b", {"gpus": 32, "ep": 16, "gbs": 64, "dispatcher": "deepep"}, "ep"),
        ("qwen3-30b-a3b", {"gpus": 32, "ep": 16, "gbs": 64, "dispatcher": "all_to_all"}, "ep"),
    ],
)
def test_a_tier_is_slowed_until_its_axis_takes_as_long(model, fields, axis):
    """Replicas in two tiers, and experts whose library has other limits than the tier."""
    own = Model.load(model)
    strategy = Strategy.validated(fields | {"any_software": True}).resolved(own, SYSTEM.stack)
    before = estimate(own, SYSTEM, strategy).comm_s[axis].total
    finding = Finding(
        cause=Cause.SLOW_LINK,
        component=axis,
        tier="fabric",
        excess_s=1.0,
        ratio=2.5,
        gain_s=1.0,
        gain_share=0.1,
        text="",
    )
    system, _ = with_findings(own, SYSTEM, strategy, [finding])

    assert estimate(own, system, strategy).comm_s[axis].total == pytest.approx(
        2.5 * before, rel=0.01
    )


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_kernels_are_those_of_the_listed_operations(recompute):
    """Sums over all operations of a step, with what recompute repeats and the update."""
    fields = CASES["replicas"].strategy | {"recompute": recompute}
    own = Strategy.validated(fields).resolved(MODEL, SYSTEM.stack)
    found = estimate(MODEL, SYSTEM, own, operations=True)
    kernels = predicted_step(MODEL, SYSTEM, own).kernels_s
    kinds = ("matmul", "attention", "memory")

    assert list(kernels.values()) == pytest.approx([kernel_seconds(found, one) for one in kinds])


def test_a_slowed_tier_changes_only_what_uses_it(predicted):
    """Twice the time on the outer tier: messages between stages double, tensor ranks do not."""
    other = predicted_step(MODEL, slowed_tier(SYSTEM, "fabric", 2.0), STRATEGY, stage=1)

    assert other.total_s[CommAxis.PP] == pytest.approx(2 * predicted.total_s[CommAxis.PP])
    assert other.total_s[CommAxis.TP] == predicted.total_s[CommAxis.TP]
    kinds = predicted_step(MODEL, slowed_tier(SYSTEM, "fabric", 2.0, ("p2p",)), STRATEGY, stage=1)
    assert kinds.total_s[CommAxis.DP] == predicted.total_s[CommAxis.DP]

"""What of the exchanges among replicas hides behind which pass: groups of hybrid sharding too.

By hand for 8 replicas in groups of 2 on one link, of a model of 4 layers: what is exchanged lasts
so many times as long as a byte of each weight would, and each pass as long as the estimate says.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from shardwise import Estimate

pytestmark = pytest.mark.any_software

some = examples(25)
MODEL = samples.model(vocab=10)
MICRO_BATCHES = 3
SOFTWARE = st.fixed_dictionaries(
    {
        "dp_contention": st.sampled_from([0.3, 1.0]),
        "dp_tail": st.sampled_from([0.0, 0.2, 1.0]),
        "gathers_behind": st.booleans(),
    }
)
COLUMNS = st.fixed_dictionaries(
    {
        "zero": st.integers(0, 3),
        "dp_shard": st.sampled_from([None, 2, 4, 8]),
        "fsdp_prefetch": st.integers(0, 1),
        "fsdp_reshard": st.booleans(),
        "grad_sync": st.sampled_from(["step", "micro_batch"]),
        "training": st.booleans(),
    }
)
RATES = st.floats(8, 14).map(lambda exponent: 10**exponent)


def run(bandwidth: float, software: dict[str, Any] | None = None, **columns: Any) -> Estimate:
    """8 replicas; what a strategy may not have is left out."""
    network = [samples.tier(bandwidth=bandwidth) | {"processor_share": columns.pop("u", 0)}]
    given = {"dp": 8, "gbs": 16 * MICRO_BATCHES} | columns
    if given.get("zero", 0) == 0 or given.get("dp_shard") is None:
        given.pop("dp_shard", None)
    if given.get("zero", 0) < 3:
        given.pop("fsdp_reshard", None)
        given.pop("fsdp_prefetch", None)
    return samples.run(MODEL, software, samples.system(network=network), **given)


def slower(one: Estimate, other: Estimate) -> bool:
    return one.step_time_s > other.step_time_s * (1 + 1e-12)


@some
@given(RATES, SOFTWARE, COLUMNS, st.sampled_from([0, 0.25]))
def test_more_overlap_is_never_slower(
    bandwidth: float, software: dict[str, Any], columns: dict[str, Any], u: float
) -> None:
    """At all, behind the first forward pass, or ahead; what it takes alone stays what it is."""
    usual = run(bandwidth, software, u=u, **columns)
    apart = run(bandwidth, software, u=u, dp_overlap=False, **columns)
    behind = run(bandwidth, software | {"gathers_behind": True}, u=u, **columns)
    ahead = run(bandwidth, software, u=u, **columns | {"fsdp_prefetch": 1})
    assert not slower(usual, apart)
    assert not slower(behind, usual)
    assert not slower(ahead, usual)
    alone, exposed = usual.comm_s["dp"].total, usual.comm_s["dp"].exposed
    assert 0 <= exposed <= alone * (1 + 1e-12)
    assert apart.comm_s["dp"].exposed == pytest.approx(alone)
    for other in (apart, behind, ahead):
        assert other.comm_s["dp"].total == pytest.approx(alone)


def halves(result: Estimate) -> tuple[float, float]:
    """Forward and backward of one micro-batch [s]."""
    parts = result.time_s["forward"], result.time_s["backward"]
    return parts[0] / MICRO_BATCHES, parts[1] / MICRO_BATCHES


def left(time: float, window: float) -> float:
    return max(0.0, time - window)


@some
@given(RATES, st.booleans())
def test_groups_add_up_behind_the_last_backward_pass(bandwidth: float, behind: bool) -> None:
    """ZeRO 1: half of 4 bytes scattered, then 2 x 3/4 of the other half; half of 2 gathered."""
    result = run(bandwidth, {"gathers_behind": behind}, zero=1, dp_shard=2)
    forward, backward = halves(result)
    byte = result.stages[0].parameters / bandwidth
    gradients, weights = (4 / 2 + 2 * 3 / 4 * 4 / 2) * byte, 2 / 2 * byte
    exposed = left(gradients, backward) + left(weights, forward if behind else 0)
    assert result.comm_s["dp"].total == pytest.approx(gradients + weights)
    assert result.comm_s["dp"].exposed == pytest.approx(exposed, rel=1e-9, abs=1e-15)


@some
@given(RATES, st.booleans(), st.booleans())
def test_groups_add_up_in_what_shards_leave(bandwidth: float, ahead: bool, again: bool) -> None:
    """ZeRO 3: half of 2 bytes gathered for each pass, half of 4 scattered after backward.

    Without prefetch gathers hide behind nothing; what is sent does, as it does with it.
    """
    columns = {"fsdp_prefetch": int(ahead), "fsdp_reshard": again}
    result = run(bandwidth, zero=3, dp_shard=2, **columns)
    forward, backward = halves(result)
    byte = result.stages[0].parameters / bandwidth
    gather, scatter, groups = byte, 2 * byte, 3 * byte
    twice = gather if again else 0.0
    beside = scatter + (twice if ahead else 0.0)
    waits = left(gather, forward if ahead else 0) + (0.0 if ahead else twice)
    exposed = MICRO_BATCHES * (waits + left(beside, backward))
    exposed += left(groups, left(backward, beside))
    alone = MICRO_BATCHES * (gather + twice + scatter) + groups
    assert result.comm_s["dp"].total == pytest.approx(alone)
    assert result.comm_s["dp"].exposed == pytest.approx(exposed, rel=1e-9, abs=1e-15)


def test_a_processor_that_shares_lasts_longer() -> None:
    """A quarter is taken: the pass lasts 4/3 as long, and so much more of it is left for groups."""
    any_rate = run(1e9, zero=3, dp_shard=2)
    forward, backward = halves(any_rate)
    byte = backward / 5
    bandwidth = any_rate.stages[0].parameters / byte
    free, shared = (run(bandwidth, zero=3, dp_shard=2, u=u) for u in (0, 0.25))

    def exposed(time: float, window: float) -> float:
        return time - 0.75 * min(time, window / 0.75)

    beside = 3 * byte
    rest = backward - beside * 0.75
    expected = MICRO_BATCHES * (exposed(byte, forward) + exposed(beside, backward))
    expected += exposed(3 * byte, rest)
    assert shared.comm_s["dp"].exposed == pytest.approx(expected)
    assert slower(shared, free)

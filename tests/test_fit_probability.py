"""The probability that a plan fits."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import Estimate, Strategy, System, estimate, estimate_many
from shardwise.analysis.fit_probability import (
    EXPERT_IMBALANCE,
    FRAGMENTATION,
    Margins,
    fits_probability,
    states_load,
    verdict_of,
)

DENSE = ("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 64, "tp": 2})
EXPERTS = ("qwen3-30b-a3b", "h100-sxm", {"gpus": 64, "ep": 8, "gbs": 256, "zero": 1})


def margins(*, more=0.1, less=0.2, fragmentation=1.0, runtime=0.0) -> Margins:
    """Margins of one row."""
    return Margins(*(np.array([one]) for one in (more, less, fragmentation, runtime)))


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (100.0, 0.5),  # the prediction is the median
        (100 * math.exp(0.1), 0.9),  # the upper end of the interval
        (100 * math.exp(-0.2), 0.1),  # its lower end
        (100 * math.exp(0.1 * 1.644854 / 1.281552), 0.95),  # quantiles of the normal distribution
        (0.0, 0.0),
    ],
)
def test_quantiles(capacity: float, expected: float) -> None:
    """A tenth of peaks exceed each end of the interval, and half of them the prediction."""
    found = fits_probability(np.array([100.0]), capacity, margins())
    assert found == pytest.approx(expected, abs=1e-6)


def test_slack_and_runtime_at_the_limit() -> None:
    """100 GiB of tensors with 4 % of fragmentation and 2 GiB of the runtime need 106 GiB."""
    found = fits_probability(np.array([100.0]), 106.0, margins(fragmentation=1.04, runtime=2.0))
    assert found == pytest.approx(0.5)
    table = estimate_many(*DENSE[:2], **DENSE[2], stack="megatron-core-2025").table
    own = Margins.of(System.load("h100-sxm"), table)
    assert own.fragmentation == pytest.approx(1 + FRAGMENTATION * 0.05)
    assert own.runtime_bytes == 2 * 2**30


@given(
    total=st.floats(1e-3, 1e15),
    capacities=st.tuples(*[st.floats(0, 1e15)] * 2),
    row=st.builds(
        margins,
        more=st.floats(0, 2),
        less=st.floats(0, 2),
        fragmentation=st.floats(1, 2),
        runtime=st.floats(0, 1e14),
    ),
)
def test_more_memory_is_never_less_likely_to_do(total, capacities, row) -> None:
    """The probability is from 0 to 1, and does not fall with the capacity."""
    less, more = (fits_probability(np.array([total]), c, row)[0] for c in sorted(capacities))
    assert 0 <= less <= more <= 1


@given(
    total=st.floats(1, 1e12),
    probability=st.floats(0.01, 0.99),
    row=st.builds(
        margins,
        more=st.floats(0.01, 1),
        less=st.floats(0.01, 1),
        fragmentation=st.floats(1, 2),
        runtime=st.floats(0, 1e10),
    ),
)
def test_needed_bytes_are_the_quantile(total, probability, row) -> None:
    """What is needed for a probability fits with exactly this probability."""
    needed = row.needed(np.array([total]), probability)
    found = fits_probability(np.array([total]), needed, row)[0]
    assert found == pytest.approx(probability, abs=1e-4)


def test_end_of_the_interval_of_an_estimate() -> None:
    """Tensors at the end of their interval leave one plan in ten without memory."""
    result = estimate(*DENSE[:2], **DENSE[2])
    memory, interval = result.memory_bytes, result.memory_interval
    assert interval is not None
    size = math.log(interval.total_high / memory.total)
    deviation = size / NormalDist().inv_cdf(0.9)
    stack = Strategy(**DENSE[2]).loaded_stack(System.load("h100-sxm"))
    room = memory.capacity - stack.runtime_memory
    kept = memory.total * (1 + FRAGMENTATION * (stack.allocator_slack - 1))
    expected = NormalDist().cdf(math.log(room / kept) / deviation)
    assert result.fits_probability == pytest.approx(expected, rel=1e-9)


def test_rows_have_the_probability_of_their_estimates() -> None:
    """One row or many, dense or experts: the same figure, and NaN where there is none."""
    for model, system, fields in (DENSE, EXPERTS):
        sizes = [1, 2, 4]
        found = estimate_many(model, system, micro_batch_size=sizes, **fields).fits_probability
        each = [estimate(model, system, mbs=mbs, **fields).fits_probability for mbs in sizes]
        assert found == pytest.approx(each, rel=1e-12)
        assert 0 < min(each) < max(each)
        full = estimate_many(model, system, micro_batch_size=sizes, **fields).table.to_columns()
        again = estimate_many(model, system, full).fits_probability
        assert again == pytest.approx(found, rel=1e-12)  # all fields: the load is not stated
    forward = estimate_many(*DENSE[:2], **DENSE[2], training=False)
    assert np.isnan(forward.fits_probability).all()


def test_experts_get_an_uneven_load_unless_stated() -> None:
    """Memory must hold the load of natural routing; a stated load is not changed."""
    model, system, fields = EXPERTS
    fields = fields | {"mbs": 4}
    plan = estimate(model, system, **fields)
    even = estimate(model, system, **fields, expert_imbalance=1.0)
    uneven = estimate(model, system, **fields, expert_imbalance=EXPERT_IMBALANCE)
    assert dict(plan.fits_assumes) == {"expert_imbalance": EXPERT_IMBALANCE}
    assert not even.fits_assumes
    assert plan.fits_probability == uneven.fits_probability < even.fits_probability
    assert plan.memory_bytes == even.memory_bytes  # only the probability assumes it
    again = estimate(model, system, plan.strategy)  # all fields, which the user did not state
    assert again.fits_probability == plan.fits_probability


def test_a_result_states_no_load() -> None:
    """A strategy with every field at its default states nothing; a changed load is stated."""
    full = Strategy(gpus=8, gbs=8).to_dict()
    assert not states_load(Strategy(**full))
    assert states_load(Strategy(**full | {"expert_imbalance": 1.2}))
    assert states_load(Strategy(gpus=8, gbs=8, expert_imbalance=1.0))
    assert not states_load(Strategy(gpus=8, gbs=8))


def test_verdicts() -> None:
    """From 90 % a plan fits, up to 10 % it does not, and what is unknown is as predicted."""
    assert verdict_of(0.9, fits=False) == "fits"
    assert verdict_of(0.899, fits=True) == verdict_of(0.101, fits=False) == "on the edge"
    assert verdict_of(0.1, fits=True) == "does not fit"
    assert verdict_of(None, fits=True) == "fits"
    assert verdict_of(None, fits=False) == "does not fit"


def test_answers_are_in_json_and_come_back() -> None:
    """JSON has probability, assumption and verdict; a saved estimate reads them again."""
    result = estimate(*EXPERTS[:2], **EXPERTS[2])
    data = json.loads(json.dumps(result.to_dict()))
    assert data["fits_probability"] == result.fits_probability
    assert data["fits_assumes"] == {"expert_imbalance": EXPERT_IMBALANCE}
    assert data["verdict"] == "fits"
    assert Estimate.read(data) == result
    old = {n: v for n, v in data.items() if n not in ("fits_probability", "verdict")}
    assert Estimate.read(old).verdict is None


def test_host_memory_that_is_too_small() -> None:
    """What is offloaded must fit into the second tier, which has no spread."""
    system = System.load("h100-sxm").to_dict()
    tiers = system["accelerator"]["memory"]
    fields = DENSE[2] | {"offload_optimizer": True}
    assert estimate(DENSE[0], "h100-sxm", **fields).fits_probability > 0.5
    tiers[1] |= {"capacity": 1e9, "host": None}
    assert estimate(DENSE[0], system, **fields).fits_probability == 0

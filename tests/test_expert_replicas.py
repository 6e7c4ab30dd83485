"""Ranks of experts beside those of the rest: where they sit, what they hold and exchange, by hand.

Sample: DeepSeek's kind with a dense layer and 3 of 8 experts of 32 x 64 x 3 weights.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import Estimate
from shardwise.config.strategy_table import Table
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

GB = 1e9
LINK = 100 * GB
MODEL = samples.deepseek()
EXPERT = 3 * 64 * 32
EXPERTS = 3 * 8 * EXPERT
DENSE = count_parameters(MODEL).total - EXPERTS


def test_the_sample_has_so_many_weights_in_experts() -> None:
    """Up, gate and down of 8 experts in each of 3 layers."""
    told = count_parameters(MODEL).breakdown
    assert told["moe.up"] + told["moe.down"] == EXPERTS


def extents(**columns: Any) -> dict[str, list[int]]:
    """Members of each axis of experts in a node of 8 and in all."""
    table = Table.of(MODEL, {"gbs": 96, "stack": samples.stack()} | columns)
    found = place(samples.system(), table)
    return {axis: getattr(found, axis)[:, 0].tolist() for axis in ("etp", "ep", "edp")}


@each_row(
    ("columns", "expected"),
    [
        # 8 in a node, 32 in all: experts' tensor ranks innermost, then experts, then replicas.
        ({"tp": 4, "dp": 8, "etp": 2, "ep": 8}, {"etp": [2, 2], "ep": [4, 8], "edp": [1, 2]}),
        ({"tp": 4, "dp": 8, "ep": 4}, {"etp": [1, 1], "ep": [4, 4], "edp": [2, 8]}),
        ({"tp": 2, "cp": 2, "dp": 8, "ep": 8}, {"etp": [1, 1], "ep": [8, 8], "edp": [1, 4]}),
        ({"dp": 32, "ep": 1}, {"etp": [1, 1], "ep": [1, 1], "edp": [8, 32]}),
        # Stages inside leave half of a node to the rest.
        (
            {"pp": 2, "tp": 4, "dp": 4, "ep": 8, "placement": "pp-tp-cp-dp"},
            {"etp": [1, 1], "ep": [4, 8], "edp": [1, 2]},
        ),
        # Replicas between nodes by a tier of their own: 4 tensor ranks are all a node has.
        (
            {"tp": 4, "dp": 4, "tp_tier": 0, "dp_tier": 1, "ep": 8},
            {"etp": [1, 1], "ep": [4, 8], "edp": [1, 2]},
        ),
    ],
)
def test_experts_lie_over_the_ranks_of_the_rest(
    columns: dict[str, Any], expected: dict[str, list[int]]
) -> None:
    """They share what tp, cp and dp take of each tier."""
    assert extents(**columns) == expected


degrees = st.sampled_from([1, 2, 4, 8])


@examples(100)
@given(degrees, degrees, degrees, st.sampled_from([1, 2]), degrees, degrees, st.integers(0, 23))
def test_experts_take_all_ranks_once(
    tp: int, cp: int, dp: int, pp: int, etp: int, ep: int, order: int
) -> None:
    """On every tier the three multiply to tp x cp x dp; in all they are the degrees."""
    if tp * cp * dp % (etp * ep):
        return
    columns = {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "etp": etp, "ep": ep, "placement": order}
    table = Table.of(MODEL, {"gbs": 96, "stack": samples.stack()} | columns)
    found = place(samples.system(), table)
    np.testing.assert_array_equal(found.etp * found.ep * found.edp, found.tp * found.cp * found.dp)
    whole = tuple(int(getattr(found, axis)[-1, 0]) for axis in ("etp", "ep", "edp"))
    assert whole == (etp, ep, tp * cp * dp // (etp * ep))
    assert table.expert_replicas.tolist() == [whole[-1]]


def run(**columns: Any) -> Estimate:
    """8 replicas on one tier of links, two micro-batches each, nothing hidden."""
    machine = samples.system(network=[samples.tier(bandwidth=LINK)])
    given = {"dp": 8, "gbs": 32, "dp_overlap": False} | columns
    return samples.run(MODEL, None, machine, **given)


def test_ranks_hold_their_experts_only() -> None:
    """A quarter of them on 4 groups; whole beside split tensors; an eighth on 4 groups of 2."""
    for columns, share in (
        ({"ep": 1}, 1),
        ({"ep": 4}, 4),
        ({"ep": 4, "etp": 2}, 8),
        ({"ep": 8}, 8),
    ):
        result = run(zero=0, **columns)
        parameters = DENSE + EXPERTS / share
        assert result.stages[0].parameters == parameters
        held = result.memory_bytes
        each = (held.weights, held.gradients, held.optimizer)
        assert each == (2 * parameters, 4 * parameters, 12 * parameters)
    one, two = (run(tp=tp, dp=8 // tp, ep=2, zero=0, gbs=32 // tp) for tp in (1, 2))
    split = one.stages[0].parameters - two.stages[0].parameters
    # Tensor parallelism splits neither experts nor what each token passes before its heads.
    norms = 4 * (2 * 64 + 24 + 16) + 64
    whole = norms + 4 * 64 * (24 + 16 + 4) + 3 * 64 * 8
    assert split == (DENSE - whole) / 2


def test_optimizer_states_are_split_among_replicas_of_experts() -> None:
    """Of 8 ranks in 4 groups 2 hold the same experts; gradients and weights likewise."""
    experts = EXPERTS / 4
    first = run(ep=4, zero=1).memory_bytes
    assert first.optimizer == pytest.approx(12 * (DENSE / 8 + experts / 2))
    assert (first.weights, first.gradients) == (2 * (DENSE + experts), 4 * (DENSE + experts))
    second = run(ep=4, zero=2).memory_bytes
    assert second.gradients == pytest.approx(4 * (DENSE / 8 + experts / 2))
    fp32 = run(ep=4, zero=3, dtype="fp32").memory_bytes
    assert fp32.weights == pytest.approx(4 * (DENSE / 8 + experts / 2))
    # A single replica of each expert has all of its state.
    assert run(ep=8, zero=1).memory_bytes.optimizer == pytest.approx(12 * (DENSE + EXPERTS) / 8)
    hybrid = run(ep=4, zero=1, dp_shard=4).memory_bytes.optimizer
    assert hybrid == pytest.approx(12 * (DENSE / 4 + experts / 1))


def spent(**columns: Any) -> float:
    """Bytes that would take as long as the exchange among replicas at the rate of the link."""
    return run(**columns).time_s["dp_comm"] * LINK


def test_gradients_of_experts_are_reduced_among_their_replicas() -> None:
    """In 4 groups of 8 ranks: dense among 8, experts among 2; 4 bytes a gradient, 2 a weight."""
    experts = EXPERTS / 4
    assert spent(ep=4, zero=0) == pytest.approx(2 * 4 * (7 / 8 * DENSE + experts / 2))
    assert spent(ep=4, zero=1) == pytest.approx((4 + 2) * (7 / 8 * DENSE + experts / 2))
    assert spent(ep=8, zero=1) == pytest.approx((4 + 2) * 7 / 8 * DENSE)
    assert spent(ep=1, zero=1) == pytest.approx((4 + 2) * 7 / 8 * (DENSE + EXPERTS))
    # Two micro-batches each.
    assert spent(ep=4, zero=2) == pytest.approx((2 * 4 + 2) * (7 / 8 * DENSE + experts / 2))
    assert spent(ep=4, zero=3) == pytest.approx(2 * (4 + 2 * 2) * (7 / 8 * DENSE + experts / 2))


def test_tensor_ranks_are_replicas_of_unsplit_experts() -> None:
    """tp 2, dp 1: nothing dense is exchanged; whole experts are on both ranks, unless split too."""
    columns = {"tp": 2, "dp": 1, "gbs": 4, "zero": 0}
    assert spent(**columns) == pytest.approx(2 * 4 * EXPERTS / 2)
    assert spent(**columns, etp=2) == 0
    assert spent(**columns, ep=2) == 0


def test_replicas_of_experts_are_nearer_or_farther() -> None:
    """2 nodes of 8, 100 GB/s inside and 1 GB/s between: experts in 8 groups meet across nodes.

    In 2 groups 4 of their replicas are in a node and both nodes have some: all send at once.
    """
    tiers = [samples.tier("inside", domain=8), samples.tier("between", bandwidth=1 * GB)]
    machine = samples.system(network=tiers)

    def seconds(ep: int) -> float:
        columns: dict[str, Any] = {"dp": 16, "gbs": 64, "ep": ep, "dp_overlap": False, "zero": 0}
        return samples.run(MODEL, None, machine, **columns).time_s["dp_comm"]

    dense = 2 * 15 / 16 * 4 * DENSE / (8 * GB)
    assert seconds(16 // 2) == pytest.approx(dense + 2 * 1 / 2 * 4 * EXPERTS / 8 / (1 * GB))
    assert seconds(2) == pytest.approx(dense + 2 * 7 / 8 * 4 * EXPERTS / 2 / (4 * GB))


def test_the_update_of_experts_is_of_their_shard() -> None:
    """30 bytes for each weight that a rank updates, 1.5 sweeps over all gradients it holds."""
    owned = DENSE / 8 + EXPERTS / 4 / 2
    expected = 30 * owned + 1.5 * 4 * (DENSE + EXPERTS / 4)
    assert run(ep=4, zero=1).time_s["optimizer"] * 1e12 == pytest.approx(expected)

"""Stages with unequal numbers of layers: what they hold, and how long a step takes."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from pipeline_simulation import simulate
from profiles import examples
from samples import run
from shardwise import Estimate, Model, estimate
from shardwise.arrays import columns_in, gather
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.engine.zero import stage_parameters
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.pipeline_layout import by_stage, layers_on_ranks, most_layers

pytestmark = pytest.mark.any_software

fast = examples(60)
LAYER = 12 * 64**2 + 13 * 64
SBH = 64 * 64
KEPT = 34 * SBH + 4 * 64 * 8
EMBEDDING, HEAD, NORM = (1000 + 32) * 64, 1000 * 64, 2 * 64


def deep(depth: int, **fields: Any) -> Model:
    """The GPT sample with more layers."""
    return samples.model(samples.layer(count=depth), **fields)


def spread(depth: int, stages: int) -> np.ndarray:
    """Layers on each stage of an even spread."""
    table = Table.of(deep(1), {"pp": stages, "dp": 1, "gbs": 1, "stack": samples.stack()})
    return np.array(layers_on_ranks(depth, table, 0))


@given(st.integers(1, 200), st.integers(1, 200))
def test_stages_share_all_layers_and_differ_by_one(depth: int, stages: int) -> None:
    """Longer ones first; the longest has depth / stages, rounded up."""
    on = spread(depth, stages)
    assert on.sum() == depth
    assert on[0] == most_layers(depth, np.array([stages]))[0]
    assert (np.diff(on) <= 0).all()
    assert on[0] - on[-1] <= 1


def test_ten_layers_on_four_stages() -> None:
    """3, 3, 2 and 2: their weights, and what 4, 3, 2 and 1 micro-batches in flight keep."""
    stages = run(deep(10), pp=4, gbs=16, zero=0).stages
    assert [stage.layers for stage in stages] == [3, 3, 2, 2]
    parameters = [3 * LAYER + EMBEDDING, 3 * LAYER, 2 * LAYER, 2 * LAYER + NORM + HEAD]
    assert [stage.parameters for stage in stages] == parameters
    assert [stage.weights for stage in stages] == [2 * held for held in parameters]
    assert [stage.optimizer for stage in stages] == [12 * held for held in parameters]
    kept = [4 * (3 * KEPT + SBH), 3 * 3 * KEPT, 2 * 2 * KEPT, 2 * KEPT]
    assert [stage.activations for stage in stages] == kept


def test_stages_have_the_same_memory_alone_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many stages `evaluate` computes at a time, it finds the same peak, bit for bit."""
    alone = {"pp": 4, "gbs": 8, "stack": samples.stack()}
    rows = [
        {"stage_layers": [4, 3, 2, 1]},
        {"stage_layers": [1, 2, 3, 4], "recompute": "full", "recompute_layers": 1},
        {"vpp": 2, "schedule": "interleaved", "stage_layers": [1, 2, 1, 1, 1, 2, 1, 1]},
        {"schedule": "zb-v", "stage_layers": [2, 1, 1, 1, 1, 1, 1, 2]},
        {"schedule": "dualpipe", "gbs": 16},
    ]
    model, machine = deep(10, tied_embeddings=True), samples.system()
    strategies = [Strategy.validated(alone | {"dp": 1} | row) for row in rows]
    table = Table.of(model, [one.resolved(model, machine) for one in strategies])
    found = evaluate(model, machine, table)
    for number in (1, 2 * len(rows)):
        monkeypatch.setattr("shardwise.engine.evaluate._ROWS_AT_ONCE", number)
        other = evaluate(model, machine, table)
        np.testing.assert_array_equal(found.peak_memory_stage, other.peak_memory_stage)
        for one, column in zip(columns_in(found.memory), columns_in(other.memory), strict=True):
            np.testing.assert_array_equal(one, column)


def test_the_longest_stage_decides_update_and_gradient_communication() -> None:
    """Without positions and final norm, both ends have the words: the first has a layer more."""
    model = deep(5, position="alibi", final_norm=False)
    result = run(model, pp=2, dp=2, gbs=8, zero=0, dp_overlap=False)
    held = [stage.parameters for stage in result.stages]
    assert held == [3 * LAYER + HEAD, 2 * LAYER + HEAD]
    assert result.time_s["optimizer"] == pytest.approx(held[0] * 36e-12)
    words = 4 * HEAD / 100e9  # copies of the words on both stages
    assert result.time_s["dp_comm"] == pytest.approx(4 * held[0] / 100e9 + words)


def parts(result: Estimate) -> float:
    return sum(result.time_s[part] for part in ("forward", "backward", "recompute", "tp_comm"))


def test_a_longer_first_stage_is_the_critical_one() -> None:
    """With one word: 8 micro-batches of its 3 layers, while the others of 2 wait.

    Before its first backward its first micro-batch passes both others, where 2 activations and a
    gradient come in, while it does 2 more forwards. After its last forward its two backwards before
    the last one take longer than the others' turns. Gradients alone come in, 8 of them.
    """
    result = run(deep(7, vocab=1, final_norm=False), pp=3, gbs=16)
    first, second, third = (stage.micro_batch_s for stage in result.stages)
    assert first > third > second
    assert parts(result) == pytest.approx(8 * first)
    forward, backward = (result.time_s[name] / 8 for name in ("forward", "backward"))
    hop = 2 * SBH / 100e9
    assert 2 * forward < second + third + hop < 2 * backward
    assert result.time_s["bubble"] == pytest.approx(second + third + 3 * hop - 2 * forward)
    assert result.time_s["pp_comm"] == pytest.approx(8 * hop)


def test_a_layer_outweighs_a_short_head() -> None:
    """With 100 words the head takes longer than the embedding, but less than a layer more."""
    result = run(deep(3, vocab=100), pp=2, gbs=16, operations=True)
    rows = [row for row in result.operations or () if row.part in ("embedding", "head")]
    ends = {part: sum(r.time_s for r in rows if r.part == part) for part in ("embedding", "head")}
    assert ends["head"] > ends["embedding"]
    first, last = (stage.micro_batch_s for stage in result.stages)
    assert first > last
    assert parts(result) == pytest.approx(8 * first)


def test_a_slow_head_outweighs_a_layer() -> None:
    """With 50,000 words the last stage decides, though it has a layer less."""
    result = run(deep(5, vocab=50_000), pp=2, gbs=16)
    first, last = (stage.micro_batch_s for stage in result.stages)
    assert [stage.layers for stage in result.stages] == [3, 2]
    assert last > first
    assert parts(result) == pytest.approx(8 * last)


def test_recompute_of_the_average_stage_counts_in_hfu() -> None:
    """5 layers run again on 2 accelerators, whichever stage they are on."""
    model = deep(5)
    layer = 24 * 64**2 + 2 * 32 * 64
    staged = run(model, pp=2, gbs=8, recompute="full")
    again = 4 * 64 * 5 * layer / 2 / staged.step_time_s / 100e12
    assert staged.hfu - staged.mfu == pytest.approx(again)


def test_chunks_divide_the_longest_stage() -> None:
    """11 layers on 2 stages, 6 and 5, in chunks of 2, the last one of 1."""
    model = deep(11, dropout=False)
    stages = run(model, pp=2, vpp=3, gbs=16).stages
    kept = KEPT - 2 * SBH
    # 2 (p - 1 - i) + (v - 1) p + 1 chunks in flight: 7 and 5, of these at times no last one.
    assert [stage.layers for stage in stages] == [6, 5]
    held = [stage.activations for stage in stages]
    assert held == pytest.approx([7 * 2 * kept, 5 * 2 * kept])


def simulated(model: Model, table: Table) -> tuple[float, float, list[float], int]:
    """Times of a step without hops: closed form and simulation; of each stage; the slowest."""
    machine = samples.system(network=[samples.tier(bandwidth=1e30)])
    result = evaluate(model, machine, table)
    blocks, stages = result.step.costs, int(table.pp[0])
    passes: list[list[list[float]]] = []
    for name in ("forward_pass_s", "backward_pass_s"):
        layer = float(getattr(blocks.kinds[0].times, name)[0])
        times = [[layer * count] for count in spread(model.depth, stages).tolist()]
        times[0][0] += float(getattr(blocks.embedding.times, name)[0])
        times[-1][0] += float(getattr(blocks.head.times, name)[0])
        passes.append(times)
    step = simulate(*passes, int(table.micro_batches[0]))
    whole = [sum(map(sum, pair)) for pair in zip(*passes, strict=True)]
    closed = float(sum(result.time_s[part][0] for part in ("forward", "backward", "bubble")))
    return closed, step.time, whole, stages - 1 if result.step.critical.work[-1][0] else 0


@fast
@given(
    st.integers(1, 24),
    st.integers(2, 8),
    st.integers(1, 20),
    st.sampled_from([1, 100, 1000, 20_000]),
)
def test_the_step_of_uneven_stages_is_that_of_the_simulation(
    depth: int, pp: int, m: int, vocab: int
) -> None:
    """Whichever stage is slowest, and with fewer micro-batches than stages as well."""
    assume(pp <= depth)
    model = deep(depth, vocab=vocab, final_norm=False)
    given = {"dp": 1, "gbs": m, "pp": pp, "stack": samples.stack()}
    closed, exact, whole, slowest = simulated(model, Table.of(model, given))
    assert whole[slowest] >= max(whole) * (1 - 1e-9)
    assert closed == pytest.approx(exact, rel=1e-9)


@examples(12)
@given(st.integers(1, 24), st.booleans(), st.sampled_from(["model", "multihead", "multiquery"]))
def test_all_stages_and_ranks_hold_the_model_once(depth: int, tied: bool, attention: str) -> None:
    """All layers are on some stage; ranks together hold the model and copies of what is not split.

    Copies: norms, biases after sums, positions; tied words on a second stage; key-value heads
    where there are more ranks. With every number of stages and ranks.
    """
    model = deep(depth, tied_embeddings=tied)
    degrees = list(product([1, 2, 4, 8], range(1, min(depth, 12) + 1)))
    columns = dict(zip(("tp", "pp"), zip(*degrees, strict=True), strict=True))
    given = {"dp": 1, "gbs": 1, "attention": attention}
    table = Table.of(model, columns | given | {"stack": samples.stack()})
    evaluation = evaluate(model, samples.system(), table)
    whole = depth * 6 * 64 + 2 * 64 + 32 * 64
    kv_heads = 1 if attention == "multiquery" else 8
    total = count_parameters(model.with_attention(attention)).total
    for row, (tp, pp) in enumerate(degrees):
        blocks, runs = gather((evaluation.step.costs, evaluation.step.groups), slice(row, row + 1))
        dense, expert = stage_parameters(blocks, by_stage(runs))
        assert not expert.any()
        copied = depth * 2 * (64 + 1) * 8 * (max(tp, kv_heads) - kv_heads)
        words = 1000 * 64 if tied and pp > 1 else 0
        expected = total + (tp - 1) * whole + copied + words
        assert dense.sum() * tp == pytest.approx(expected, rel=1e-12)
    result = estimate(model, samples.system(), given | {"tp": 2, "pp": min(depth, 5)})
    assert result.parameters == total
    assert sum(stage.layers for stage in result.stages) == depth

"""What ranks exchange and keep: kinds of exchange, regathering, fused activation, multi-query.

GPT sample, micro-batches of 2 x 32 tokens in bf16: activations of 64 x 64 x 2 bytes. Links of
100 GB/s within 8 accelerators, of 10 GB/s beyond, without latency.
"""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import run
from shardwise import Estimate, Model, System

pytestmark = pytest.mark.any_software

SIZE = 8192
HOP = SIZE / 100e9
TOKENS = 64


def uneven_links(**scales: float) -> System:
    """Links on which some kinds of exchange pass other shares of their buffer than a ring's."""
    inside, between = samples.system().to_dict()["network"]
    for kind, scale in scales.items():
        inside["collectives"][kind] = {**inside["collectives"][kind], "scale": scale, "offset": 0}
    return samples.system(network=[inside, between])


def hop(result: Estimate) -> float:
    """The transfer that comes in to either of 2 stages for one micro-batch."""
    return result.time_s["pp_comm"]


def test_scattering_at_the_edge_costs_what_it_adds() -> None:
    """Scatter and gather of half the activation are the all-reduce: half of it is handed over."""
    edges = run(tp=2, pp=2, tp_exchange="p2p_rs_ag")
    assert hop(edges) == pytest.approx(HOP / 2)
    assert hop(run(tp=2, pp=2, tp_exchange="all_reduce")) == pytest.approx(HOP)
    assert hop(run(tp=2, pp=2, tp_exchange="rs_ag")) == pytest.approx(HOP / 2)
    # To another node: an eighth at 10 GB/s.
    assert hop(run(tp=8, pp=2, tp_exchange="p2p_rs_ag")) == pytest.approx(SIZE / 8 / 10e9)


@each_row(
    ("scales", "expected"),
    [
        ({"reduce_scatter": 1}, 1 / 2 + 1 + 1 / 2 - 1),
        ({"all_gather": 2}, 1 / 2 + 1 / 2 + 2 - 1),
        ({"all_reduce": 1.25}, 1 / 2 + 1 / 2 + 1 / 2 - 1.25),
        ({"all_reduce": 10}, 0),
    ],
)
def test_edge_by_hand(scales: dict[str, float], expected: float) -> None:
    """Transfer of a half + scatter + gather - all-reduce, in activations; at least nothing."""
    machine = uneven_links(**scales)
    result = run(machine=machine, tp=2, pp=2, tp_exchange="p2p_rs_ag")
    assert hop(result) == pytest.approx(expected * HOP)


def test_scattering_at_the_edge_needs_ranks_and_stages() -> None:
    """On one stage it is an all-reduce in every figure; on one rank a whole activation moves."""
    for columns in ({"tp": 2}, {"tp": 4, "dp": 2, "gbs": 8}):
        edges, plain = (run(tp_exchange=kind, **columns) for kind in ("p2p_rs_ag", "all_reduce"))
        apart = {"strategy": {}, "assumed": {}, "unmeasured_features": (), "interval": None}
        assert edges.model_copy(update=apart) == plain.model_copy(update=apart)
    assert hop(run(pp=2, tp_exchange="p2p_rs_ag")) == pytest.approx(HOP)


def test_inside_a_stage_it_is_an_all_reduce() -> None:
    """Times of the ranks and memory of 2 stages are the same; half as much is handed over."""
    edges, plain = (run(tp=2, pp=2, tp_exchange=kind) for kind in ("p2p_rs_ag", "all_reduce"))
    assert edges.memory_bytes == plain.memory_bytes
    (edge,), (layer,) = edges.layers, plain.layers
    assert 2 * edge.boundary_bytes == layer.boundary_bytes == SIZE
    assert edge == layer.model_copy(update={"boundary_bytes": SIZE / 2})
    same = set(edges.time_s) - {"pp_comm", "bubble"}
    assert {part: edges.time_s[part] for part in same} == {
        part: plain.time_s[part] for part in same
    }


@each_row("tp", [2, 4])
def test_layers_communicate_full_activations(tp: int) -> None:
    """Forward 2 and backward 2 all-reduces; or 4 and 4 halves of them, and 2 gathered again."""
    reduced = run(tp=tp, tp_exchange="all_reduce").layers[0]
    split = run(tp=tp, tp_exchange="rs_ag").layers[0]
    part = (tp - 1) / tp * HOP
    volumes = {"tp_forward": (2, 4), "tp_backward": (2, 4), "tp_again": (0, 2)}
    for name, (whole, halves) in volumes.items():
        one, two = getattr(reduced, name), getattr(split, name)
        assert (one.volume_bytes, two.volume_bytes) == (whole * SIZE, halves * SIZE)
        assert (one.time_s, two.time_s) == pytest.approx((whole * 2 * part, halves * part))


def test_full_recompute_communicates_forward_again() -> None:
    """2 all-reduces; with split sequences 4 halves beside the 2 that are gathered again anyway."""
    for kind, again in (("all_reduce", 2), ("rs_ag", 6)):
        layer = run(tp=2, tp_exchange=kind, recompute="full").layers[0]
        assert layer.tp_again.volume_bytes == again * SIZE


def test_inputs_saved_in_full_are_not_gathered_again() -> None:
    """Half an activation more for each of the 2 inputs of a layer, and 2 gathers less.

    The head's input is gathered again and kept too: beside the logits, on the last stage.
    """
    parts, whole = (run(tp=2, tp_regather=again) for again in (True, False))
    more = 2 * SIZE / 2
    assert whole.layers[0].kept_bytes - parts.layers[0].kept_bytes == more
    assert whole.memory_bytes.activations - parts.memory_bytes.activations == 4 * more
    assert whole.memory_bytes.buffers - parts.memory_bytes.buffers == SIZE / 2
    assert parts.layers[0].tp_again.volume_bytes == 2 * SIZE
    assert whole.layers[0].tp_again.volume_bytes == 0
    assert parts.layers[0].tp_backward == whole.layers[0].tp_backward
    less = parts.time_s["tp_comm"] - whole.time_s["tp_comm"]
    assert less == pytest.approx((4 * 2 + 1) * HOP / 2)
    assert parts.time_s["backward"] == whole.time_s["backward"]


@each_row("exchange", ["all_reduce", "p2p_rs_ag"])
def test_only_what_is_split_is_gathered_again(exchange: str) -> None:
    """Where sequences are whole it makes no difference; nor on one rank."""
    for columns in ({"tp": 2, "pp": 2}, {"tp": 1}):
        one, two = (
            run(tp_exchange=exchange, tp_regather=again, **columns) for again in (True, False)
        )
        assert one.time_s == two.time_s
        assert one.memory_bytes == two.memory_bytes


@each_row(("model", "inner", "kept"), [(samples.model(), 256, 1), (samples.llama(), 192, 2)])
@each_row("tp", [1, 2])
def test_fused_activation_keeps_one_inner_activation_less(
    model: Model, inner: int, kept: int, tp: int
) -> None:
    """GELU keeps its input or its output, not both; SwiGLU two of three.

    Backward writes the one that is missing a second time, at 1 TB/s.
    """
    size = TOKENS * inner / tp * 2
    plain, fused = (run(model, tp=tp, fused_activation=on) for on in (False, True))
    assert plain.layers[0].kept_bytes - fused.layers[0].kept_bytes == size
    assert plain.memory_bytes.activations - fused.memory_bytes.activations == 4 * size
    more = fused.time_s["backward"] - plain.time_s["backward"]
    assert more == pytest.approx(4 * size / 1e12)
    assert fused.time_s["forward"] == plain.time_s["forward"]
    operations = run(model, tp=tp, fused_activation=True, operations=True).operations or ()
    rows = [row for row in operations if row.operation in ("mlp.activation", "mlp.down")]
    assert sum(row.saved_bytes for row in rows) == kept * size


def heads(attention: str, **columns: Any) -> Estimate:
    """Llama's sample: 8 query heads of width 8, of the model 2 of keys and values."""
    return run(samples.llama(), attention=attention, **columns)


def test_one_key_value_head_or_one_per_query_head() -> None:
    """Weights of 8 + 2 k heads: 64 x 8 more for each head of keys and of values."""
    model = heads("model")
    for attention, kv_heads in (("multiquery", 1), ("multihead", 8)):
        other = heads(attention)
        more = 4 * 64 * 8 * 2 * (kv_heads - 2)
        assert other.parameters - model.parameters == more
        assert other.stages[0].parameters - model.stages[0].parameters == more
        assert other.memory_bytes.weights - model.memory_bytes.weights == 2 * more
        # Keys and values of 64 tokens in 2 bytes, for each layer.
        kept = 4 * TOKENS * 8 * 2 * (kv_heads - 2) * 2
        assert other.memory_bytes.activations - model.memory_bytes.activations == kept
        flops = 2 * TOKENS * 64 * 8 * 2 * (kv_heads - 2)
        assert other.layers[0].forward.matrix_flops - model.layers[0].forward.matrix_flops == flops


def test_ranks_hold_copies_of_the_one_head() -> None:
    """Of 8 query heads each of 8 ranks has one, and the same keys and values."""
    one, eight = (heads("multiquery", tp=tp).layers[0].parameters for tp in (1, 8))
    norms, output, mlp = 2 * 64, 64 * 64, 3 * 64 * 192
    assert one == norms + 64 * 8 * (8 + 2) + output + mlp
    assert eight == norms + 64 * 8 * (1 + 2) + (output + mlp) / 8
    assert heads("multiquery", tp=8).parameters == heads("multiquery").parameters


def test_attention_of_the_model_by_its_name() -> None:
    """GPT's has one per query head: multihead changes nothing, multiquery takes 7 of 8 away."""
    assert run(attention="multihead").parameters == run().parameters
    less = run().parameters - run(attention="multiquery").parameters
    assert less == 4 * 2 * 7 * (64 * 8 + 8)


def test_utilisation_counts_the_heads_that_run() -> None:
    """6 FLOPs for each weight that is there, and the scores of all query heads at half."""
    for attention, kv_heads in (("model", 2), ("multiquery", 1), ("multihead", 8)):
        result = heads(attention)
        layer = 2 * 64 + 64 * 8 * (8 + 2 * kv_heads) + 64 * 64 + 3 * 64 * 192
        flops = 6 * (4 * layer + 64 + 64_000) + 6 * 4 * 32 * 64
        assert result.mfu == pytest.approx(TOKENS * flops / result.step_time_s / 100e12)


def test_a_hidden_sum_saves_nothing_at_the_edge() -> None:
    """On links so fast that a ring hides every exchange, the gather of the next stage remains."""
    inside = samples.tier("inside", domain=8, bandwidth=1e13)
    machine = samples.system(network=[inside, samples.tier("between", bandwidth=10e9)])
    columns = {"machine": machine, "tp": 2, "pp": 2, "tp_exchange": "p2p_rs_ag"}
    assert hop(run(tp_overlap="none", **columns)) == pytest.approx(SIZE / 2 / 1e13)
    hidden = run(tp_overlap="ring", **columns)
    layer = hidden.layers[0].tp_forward
    assert layer.exposed_s == 0 < layer.time_s
    assert hop(hidden) == pytest.approx(SIZE / 2 / 1e13 + SIZE / 2 / 1e13)

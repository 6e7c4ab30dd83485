"""Every kernel and exchange of a strategy, and that they add up to its step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from drawn_strategies import legal, machines, models
from drawn_strategies import rows as drawn_rows
from profiles import examples
from rows import each_row
from samples import run
from shardwise import Model, System, estimate

pytestmark = pytest.mark.any_software

LAYER = 12 * 64**2 + 13 * 64


@each_row(
    "columns",
    [
        {},
        {"tp": 4, "sequence_parallel": False},
        {"tp": 4, "sequence_parallel": True, "mbs": 4, "gbs": 4},
        {"tp": 2, "recompute": "selective"},
        {"tp": 2, "recompute": "full"},
    ],
)
@each_row("attention", ["flash", "unfused"])
def test_operations_add_up_to_the_step(columns: dict[str, Any], attention: str) -> None:
    """On one stage and micro-batch: kernels to forward and backward, exchanges, weights, bytes."""
    result = run(software={"attention": attention}, operations=True, **columns)
    rows = result.operations
    assert rows is not None
    once = [row for row in rows if row.part == "step"]
    rows = tuple(row for row in rows if row.part != "step")
    kernels = [row for row in rows if row.group == 1]
    exchanges = [row for row in rows if row.group > 1]
    passes = dict.fromkeys(("forward", "input_grad", "weight_grad", "recompute"), 0.0)
    for row in kernels:
        passes[row.phase] += row.count * row.time_s
    assert result.time_s["forward"] == pytest.approx(passes["forward"])
    backward = passes["input_grad"] + passes["weight_grad"]
    assert result.time_s["backward"] == pytest.approx(backward)
    assert result.time_s["recompute"] == pytest.approx(passes["recompute"])
    assert {row.operation.partition(".")[0] for row in once} == {"optimizer"}
    assert result.time_s["optimizer"] == pytest.approx(sum(row.time_s for row in once))
    exposed = sum(row.count * row.exposed_s for row in exchanges)
    assert result.time_s["tp_comm"] == pytest.approx(exposed)
    assert result.comm_s["tp"].total == pytest.approx(sum(r.count * r.time_s for r in exchanges))
    weights = sum(row.count * row.weight_bytes for row in rows)
    assert result.memory_bytes.weights == pytest.approx(weights)
    saved = sum(row.count * row.saved_bytes for row in rows if row.part != "head")
    assert result.memory_bytes.activations == pytest.approx(saved)


def test_operations_tell_what_happens_between_micro_batches() -> None:
    """Transfers, collectives among replicas and the optimizer, with group and members near."""
    rows = run(operations=True, tp=8, pp=2, dp=2, gbs=16, zero=1).operations or ()
    once = {row.operation: row for row in rows if row.part == "step"}
    update = {"optimizer.gradients", "optimizer.update", "optimizer.weights"}
    assert set(once) == {"stage_transfers", "gradients", "weights", "embeddings", *update}
    # 4 micro-batches there and back, an eighth of 8192 bytes; 32 accelerators in nodes of 8.
    assert once["stage_transfers"].volume_bytes == 2 * 4 * 8192 / 8
    assert once["stage_transfers"].extents == (1, 2)
    assert once["gradients"].kind == "reduce_scatter"
    assert once["weights"].kind == "all_gather"
    assert once["gradients"].group == once["weights"].group == 2
    last = 2 * LAYER + 2 * 64 + 64_000
    for zero, size in ((0, 4), (1, 4 + 2)):
        rows = run(operations=True, pp=2, dp=2, gbs=16, zero=zero).operations or ()
        sent = [row.volume_bytes for row in rows if row.operation in ("gradients", "weights")]
        assert sum(sent) == size * max(last, 2 * LAYER + 1032 * 64)


def test_one_replica_reduces_only_tied_embeddings() -> None:
    """64,000 words of 4 bytes between the first and the last stage; untied, nothing."""
    rows = run(operations=True, pp=2, gbs=4).operations or ()
    (row,) = (row for row in rows if row.part == "step" and "embed" in row.operation)
    assert (row.kind, row.volume_bytes, row.group) == ("all_reduce", 64_000 * 4, 2)
    untied = run(samples.model(tied_embeddings=False), operations=True, pp=2, gbs=4).operations
    kinds = {row.operation for row in untied or () if row.part == "step"}
    assert kinds == {
        "stage_transfers",
        *(f"optimizer.{n}" for n in ("gradients", "update", "weights")),
    }


def test_transformer_xl_positions_never_run_in_one_kernel() -> None:
    """Scores of queries against positions are a product of their own: two of them, and softmax."""
    rows = run(samples.model(position="relative-xl"), operations=True).operations or ()
    assert not [row for row in rows if row.kind == "attention"]
    core = [r for r in rows if r.operation == "attention.core" and r.phase == "forward"]
    assert len(core) == 3


def test_operations_name_what_bounds_them() -> None:
    """Bytes bound a norm, FLOPs a large product, the launch a small one, links an exchange."""
    wide = samples.layer(
        attention={"heads": 64, "kv_heads": 64, "head_dim": 128}, mlp={"ffn": 32768}
    )
    model = samples.model(wide, hidden=8192, seq_len=4096)
    result = run(model, operations=True, tp=2, sequence_parallel=False)
    bound = {(row.operation, row.kind): row.bound for row in result.operations or ()}
    assert bound["mlp.norm", "memory"] == "memory"
    assert bound["mlp.up", "matmul"] == "compute"
    assert bound["attention.core", "attention"] == "compute"
    assert bound["mlp.up", "all_reduce"] == "network"
    slow = samples.system(matmul={"launch": 1})
    small = run(machine=slow, operations=True).operations or ()
    assert {row.bound for row in small if row.kind == "matmul"} == {"launch"}


def test_operations_list_the_weights_of_t5_positions() -> None:
    """8 heads x 32 buckets are among the weights of the operations too."""
    result = run(samples.model(position="relative-bias"), operations=True)
    weights = sum(row.count * row.weight_bytes for row in result.operations or ())
    assert result.memory_bytes.weights == pytest.approx(weights)


def test_parts_of_the_update_by_hand() -> None:
    """At 1 TB/s, with fp32 gradients and states of two moments: 6, 28 and 2 bytes for a weight."""
    result = run(operations=True, zero=0)
    weights = 4 * LAYER + 2 * 64 + 1032 * 64
    parts = {r.operation: r.bytes for r in result.operations or () if r.part == "step"}
    assert parts == {
        "optimizer.gradients": 1.5 * 4 * weights,
        "optimizer.update": (4 + 2 * 4 + 2 * 8) * weights,
        "optimizer.weights": 2 * weights,
    }
    assert result.time_s["optimizer"] == pytest.approx(36 * weights / 1e12)


@each_row("zero", [1, 2, 3])
def test_dense_and_expert_collectives_by_hand(zero: int) -> None:
    """Dense weights among 4 replicas, those of 4 of 8 experts among the 2 that have the same ones.

    With ZeRO-3 both are sent for each of 3 micro-batches, and weights again for backward.
    """
    model = samples.deepseek()
    columns: dict[str, Any] = {"dp": 4, "ep": 2, "mbs": 1, "gbs": 12, "zero": zero}
    result = run(model, operations=True, **columns)
    rows = {r.operation: r for r in result.operations or () if r.axis == "dp"}
    experts = 3 * 4 * 3 * 64 * 32
    dense = result.stages[0].parameters - experts
    times = {1: (1, 1), 2: (3, 1), 3: (3, 3)}[zero]
    names = ("weights_forward", "weights_backward") if zero == 3 else ("weights",)
    expected = {
        name + suffix: (times[n > 0] * size * weights, members)
        for n, (name, size) in enumerate((("gradients", 4), *((name, 2) for name in names)))
        for suffix, weights, members in (("", dense, 4), (".experts", experts, 2))
    }
    assert {name: (row.volume_bytes, row.group) for name, row in rows.items()} == expected


@examples(60)
@given(models, machines, st.lists(drawn_rows(), min_size=1, max_size=3))
def test_collectives_and_update_add_up(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Of any strategy: rows of dp to its communication, alone and exposed; the update's to it."""
    table = legal(model, machine, given)
    for row in range(len(table)):
        result = estimate(model, machine, table.strategy(row), operations=True)
        rows = [one for one in result.operations or () if one.part == "step"]
        sent = [one for one in rows if one.axis == "dp"]
        assert sum(r.time_s for r in sent) == pytest.approx(result.comm_s["dp"].total)
        assert sum(r.exposed_s for r in sent) == pytest.approx(result.time_s["dp_comm"])
        assert len({one.operation for one in rows}) == len(rows)
        update = sum(r.time_s for r in rows if r.operation.startswith("optimizer."))
        assert update == pytest.approx(result.time_s["optimizer"])

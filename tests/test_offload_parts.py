"""Offload of chosen activations: what each part keeps by hand, and what holds for any of them.

Micro-batches of 2 x 32 tokens of width 64 in bf16, so that T rows of the stream are T x 128 bytes.
"""

import json
from dataclasses import fields
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from shardwise import InputError, Model, Strategy, System, estimate, estimate_many, trace
from shardwise.cli import run as cli
from shardwise.cost.walk import FORWARD_ONLY, FULL, Step, walk
from shardwise.evaluate import Evaluation, evaluate
from shardwise.memory import MEMORY_PARTS, StageMemory, stage_memory
from shardwise.ops.kept import part_of
from shardwise.ops.kinds import register_layer
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import linear
from shardwise.ops.mtp import mtp_operations
from shardwise.ops.operation import Operation, RankWork
from shardwise.results import Estimate
from shardwise.strategy import OFFLOAD_PARTS, SCHEDULES
from shardwise.table import Table
from shardwise.tabulate import bits_of
from shardwise.timeline.held import HeldAtActions
from shardwise.timeline.step import StepTimeline, rank_totals

fast = settings(deadline=None, max_examples=30)
T = 64
ROWS = T * 64 * 2
SUMS = T * 8 * 4
SLOW, SLACK = 1e9, 1 + 1e-12
EVERY = (1 << len(OFFLOAD_PARTS)) - 1
DENSE = samples.llama()
SPARSE = samples.deepseek().to_dict()["layers"][1]
EXPERTS = samples.llama(layers=[SPARSE])
MIXED = samples.deepseek(mtp=1)
PARALLEL = samples.model(samples.layer(parallel=True))
NORMED = samples.model(samples.layer(attention={"qk_norm": "head"}, norms="both"), dropout=False)


def machine(bandwidth: float = SLOW) -> System:
    """With a second tier behind a link."""
    sizes = {"hbm": 1e12, "host": bandwidth}
    memory = [{"name": n, "capacity": 80e9, "bandwidth": rate} for n, rate in sizes.items()]
    return samples.system(memory=memory)


def away(model: Model, *parts: str, **columns: Any) -> Estimate:
    """With some parts in the second tier; with all of a layer if none is named."""
    told = {"offload_activations": True, "offload_parts": parts or None}
    return samples.run(model, machine=machine(), **(told | columns))


# Projections read the normed stream; SwiGLU is 192 wide; 2 of 8 heads for keys and for values.
OF_DENSE = {
    "attention_norm": ROWS,
    "qkv": ROWS,
    "core_attention": T * (64 + 16 + 16) * 2 + SUMS,
    "attention_out": ROWS,
    "mlp_norm": ROWS,
    "mlp": ROWS + T * 192 * 2,
    "activation": T * 2 * 192 * 2,
}
# Latents of 24 and 16, before and after their norms; 8 heads of 12, 12 and 8; 2 experts for each
# token, 32 wide, beside one shared one 64 wide, whose input the router keeps with its 8 logits.
OF_EXPERTS = {
    "attention_norm": ROWS,
    "qkv": ROWS + T * (24 + 24 + 16 + 16) * 2,
    "core_attention": T * 8 * (12 + 12 + 8) * 2 + SUMS,
    "attention_out": ROWS,
    "mlp_norm": ROWS,
    "mlp": ROWS,
    "router": ROWS + T * 8 * 8,
    "expert_up": 2 * ROWS,
    "activation": T * 2 * 64 * 2 + 2 * T * 2 * 32 * 2,
    "expert_down": 2 * T * 32 * 2,
}
# What dropout keeps beside: a byte for each element, of both branches.
OF_PARALLEL = {
    "attention_norm": ROWS + T * 64,
    "qkv": ROWS,
    "core_attention": 3 * ROWS + SUMS,
    "attention_out": ROWS,
    "mlp": T * 256 * 2,
    "activation": T * 256 * 2,
}
# Four norms with an input each, and one of 8 heads each of queries and keys.
OF_NORMED = {
    "attention_norm": 2 * ROWS,
    "qkv": 3 * ROWS,
    "core_attention": 3 * ROWS + SUMS,
    "attention_out": ROWS,
    "mlp_norm": 2 * ROWS,
    "mlp": ROWS + T * 256 * 2,
    "activation": T * 256 * 2,
}
BY_HAND = [(DENSE, 4, OF_DENSE), (EXPERTS, 3, OF_EXPERTS)]
BY_HAND += [(PARALLEL, 4, OF_PARALLEL), (NORMED, 4, OF_NORMED)]


@pytest.mark.parametrize(("model", "layers", "kept"), BY_HAND)
def test_bytes_of_every_part_by_hand(model: Model, layers: int, kept: dict[str, int]) -> None:
    """Of all layers of a micro-batch away, two here; once out and once in over the link."""
    plain = away(model, offload_activations=False)
    assert plain.layers[0].kept_bytes == sum(kept.values())
    for part in OFFLOAD_PARTS:
        if part not in kept:
            with pytest.raises(InputError, match=f"has no {part}; nothing would be offloaded"):
                away(model, part)
            continue
        one = away(model, part)
        assert one.memory_bytes.offloaded == layers * kept[part]
        less = plain.memory_bytes.activations - one.memory_bytes.activations
        assert less == (layers - 2) * kept[part]
        assert one.memory_bytes.buffers == plain.memory_bytes.buffers
        assert one.comm_s["offload"].total == pytest.approx(2 * layers * kept[part] / SLOW)


def test_what_a_module_keeps_beside_its_layer_is_another_part() -> None:
    """Two norms, a projection from 2 h, final norm and head in 2 bytes, logits in 4."""
    beside = 2 * ROWS + 2 * ROWS + ROWS + ROWS + T * 1000 * 4
    one = away(samples.llama(mtp=1), "other")
    assert one.memory_bytes.offloaded == beside
    assert away(samples.llama(mtp=1), "qkv").memory_bytes.offloaded == 5 * ROWS


def test_the_link_shows_what_takes_longer_than_a_pass() -> None:
    """Each way less the pass beside it, of 4 layers and 4 micro-batches."""
    result = away(DENSE, "core_attention", "activation", gbs=8)
    layer = result.layers[0]
    backward = layer.input_grad.time_s + layer.weight_grad.time_s
    each = (OF_DENSE["core_attention"] + OF_DENSE["activation"]) / SLOW
    assert each > backward > layer.forward.time_s
    expected = 4 * 4 * (2 * each - layer.forward.time_s - backward)
    assert result.time_s["offload"] == pytest.approx(expected)
    forward = layer.forward.time_s
    assert result.required_bandwidth.offload == pytest.approx(each * SLOW / forward)
    assert result.required_bandwidth.offload_activations == pytest.approx(each * SLOW / forward)


def test_two_of_the_layers_that_keep_any_of_it_stay() -> None:
    """Of 5 layers 3 have experts: 1 of these is away; without them, 3 of 5 are."""
    model = samples.deepseek().to_dict()
    kinds = [kind | {"count": n} for kind, n in zip(model["layers"], (2, 3), strict=True)]
    mixed = Model.validated(model | {"layers": kinds})
    plain = away(mixed, offload_activations=False).memory_bytes.activations
    rows = away(mixed, "expert_up").memory_bytes
    assert (plain - rows.activations, rows.offloaded) == (2 * ROWS, 3 * 2 * ROWS)
    norms = away(mixed, "mlp_norm").memory_bytes
    assert (plain - norms.activations, norms.offloaded) == (3 * ROWS, 5 * ROWS)
    two = [kind | {"count": n} for kind, n in zip(model["layers"], (3, 2), strict=True)]
    few = Model.validated(model | {"layers": two})
    whole = away(few, offload_activations=False).memory_bytes.activations
    assert away(few, "expert_up").memory_bytes.activations == whole


def test_what_is_run_again_is_not_there_to_move() -> None:
    """A part that is run again, one that is not, and one whose input is rebuilt by a norm."""
    again: dict[str, Any] = {"recompute": "selective", "recompute_parts": ("moe",)}
    assert away(EXPERTS, "expert_up", "activation", **again).memory_bytes.offloaded == 0
    assert (
        away(EXPERTS, "expert_up", "qkv", **again).memory_bytes.offloaded == 3 * (OF_EXPERTS["qkv"])
    )
    norm = again | {"recompute_parts": ("attention_norm",)}
    assert away(DENSE, "qkv", **norm).memory_bytes.offloaded == 0
    assert away(DENSE, "attention_norm", **norm).memory_bytes.offloaded == 4 * ROWS


def test_the_checkpoint_belongs_to_the_first_operation() -> None:
    """Full recompute of 3 of 4 layers: their inputs are the norm's; the last keeps all it does."""
    whole: dict[str, Any] = {"recompute": "full"}
    assert away(DENSE, "attention_norm", **whole).memory_bytes.offloaded == 4 * ROWS
    assert away(DENSE, "mlp", "qkv", **whole).memory_bytes.offloaded == 0
    some = whole | {"recompute_layers": 3}
    assert away(DENSE, "attention_norm", **some).memory_bytes.offloaded == 4 * ROWS
    assert away(DENSE, "mlp", **some).memory_bytes.offloaded == OF_DENSE["mlp"]
    post = samples.model(samples.layer(norms="post"))
    assert away(post, "qkv", **whole).memory_bytes.offloaded == 4 * ROWS
    assert away(post, "attention_norm", **whole).memory_bytes.offloaded == 0


def test_fused_and_quantised_kernels_keep_less_of_a_part() -> None:
    """A fused activation writes its product again; products keep inputs in a byte, and a core not.

    What the core has written is kept in 16 bits, for its own backward kernel.
    """
    fused = away(DENSE, "mlp", fused_activation=True)
    assert fused.memory_bytes.offloaded == 4 * ROWS
    eight_bits = samples.system(
        memory=machine().to_dict()["accelerator"]["memory"],
        matrix={"bf16": 100e12, "fp8": 200e12},
    )
    told = {"offload_activations": True, "quantization": "fp8_tensor"}
    for part, kept in (
        ("qkv", ROWS / 2),
        ("attention_out", ROWS),
        ("mlp", OF_DENSE["mlp"] / 2),
        ("activation", OF_DENSE["activation"]),
    ):
        one = samples.run(DENSE, machine=eight_bits, offload_parts=(part,), **told)
        assert one.memory_bytes.offloaded == 4 * kept, part


def test_adapters_count_with_their_product() -> None:
    """Rank-wide intermediates beside the inputs that they read: of queries, keys and values."""
    tuned = {"lora_rank": 4, "lora_parts": ("attention",)}
    assert away(DENSE, "qkv", **tuned).memory_bytes.offloaded == 4 * (ROWS + T * 4 * 2)
    assert away(DENSE, "attention_out", **tuned).memory_bytes.offloaded == 4 * (ROWS + T * 4 * 2)


def test_forward_only_nothing_is_kept_to_move() -> None:
    """Neither time nor bytes."""
    once = away(DENSE, "qkv", training=False)
    assert once.comm_s["offload"].total == once.memory_bytes.offloaded == 0


def every_operation() -> list[Operation]:
    """Operations of layers of all kinds, with and without fused kernels."""
    gated = samples.deepseek({"shared_gate": True})
    queries = SPARSE["attention"]["latent"] | {"q_rank": None}
    direct = SPARSE | {"attention": SPARSE["attention"] | {"latent": queries}}
    models = [
        *(DENSE, EXPERTS, PARALLEL, NORMED, MIXED, gated, samples.llama(layers=[direct])),
        *(samples.model(position=word) for word in ("relative-xl", "relative-bias")),
    ]
    work = [samples.rank_work(), samples.rank_work(flash=False, fused_norm=False)]
    return [
        operation
        for model, one in product(models, work)
        for layer in model.layers
        for operation in layer_operations(model, layer, one)
    ]


def test_every_operation_of_a_layer_has_a_part() -> None:
    """None of ours is another's; only what a module does beside its layer is."""
    assert {part_of(operation.name) for operation in every_operation()} == {*OFFLOAD_PARTS[:-1]}
    beside = {
        operation.name
        for operation in mtp_operations(MIXED, samples.rank_work())
        if part_of(operation.name) == "other"
    }
    ends = (
        "embedding",
        "embedding_norm",
        "hidden_norm",
        "projection",
        "final_norm",
        "head",
        "loss",
    )
    assert beside == {f"mtp.{name}" for name in ends}


def test_layers_of_registered_kinds_are_another_part() -> None:
    """All that they keep under names of their own; a rule knows nothing of the rest of them."""

    def mixer(model: Model, _: Any, work: RankWork) -> list[Operation]:
        return [linear("mixer", work, tokens=work.tokens, inputs=model.hidden, outputs=64.0)]

    register_layer("offload-mixer", mixer)
    kind = samples.layer(count=4) | {"kind": "offload-mixer"}
    model = samples.llama(layers=[kind])
    assert away(model, "other").memory_bytes.offloaded == 4 * ROWS
    assert away(model, "router").memory_bytes.offloaded == 0


def step(saved: float, part: int, **fields: Any) -> Step:
    """One operation of a part."""
    plain: dict[str, Any] = {"reruns": 0, "drops": 0} | fields
    zero, size = samples.column(0, 0, 0), samples.column(*[saved] * 3)
    rebuilt = size if plain["drops"] else zero
    return Step(saved=size, rebuilt=rebuilt, ahead=zero, back=zero, part=part, **plain)


def test_rows_of_a_walk_name_parts_of_their_own() -> None:
    """All, the first, and the other two of 10, 20 and 30 bytes; the last is run again by a part."""
    steps = [step(10, 1), step(20, 2), step(30, 4, reruns=1, drops=1)]
    parts = np.array([0, 1, 6])
    checkpoint = samples.column(8, 8, 8)
    assert walk(steps, 0, checkpoint, parts).movable.tolist() == [60, 10, 50]
    assert walk(steps, 1, checkpoint, parts).movable.tolist() == [30, 10, 20]
    assert walk(steps, FULL, checkpoint, parts).movable.tolist() == [8, 8, 0]
    assert walk(steps, FORWARD_ONLY, checkpoint, parts).movable.tolist() == [0, 0, 0]
    assert walk(steps, 0, checkpoint).movable.tolist() == [60, 60, 60]


WAYS: list[dict[str, Any]] = [
    {"schedule": schedule, "vpp": 2 if schedule == "interleaved" else 1, **again}
    for schedule in SCHEDULES
    for again in (
        {"recompute": "none", "recompute_layers": None},
        {"recompute": "selective", "recompute_layers": None},
        {"recompute": "full", "recompute_layers": 1},
        {"recompute": "full", "recompute_layers": None},
    )
]
DEEP = {
    "dense": samples.llama(layers=[samples.layer(count=8)]),
    "mixed": Model.validated(
        MIXED.to_dict()
        | {
            "layers": [
                kind | {"count": n}
                for kind, n in zip(MIXED.to_dict()["layers"], (3, 5), strict=True)
            ]
        }
    ),
}


@cache
def evaluated(kind: str, parts: int) -> tuple[Evaluation, list[StageMemory]]:
    """Every schedule with every recompute on two stages, and both stages of each.

    Parameters
    ----------
    parts
        Bits of the parts that are away; 0: all of a layer.
    """
    columns = {name: [way[name] for way in WAYS] for name in WAYS[0]}
    given = {"pp": 2, "dp": 2, "gbs": 16, "stack": samples.stack(), "offload_activations": True}
    table = Table.of(DEEP[kind], columns | given | {"offload_parts": [parts] * len(WAYS)})
    result = evaluate(DEEP[kind], machine(), table)
    stages = [(run, at) for run in result.runs for at in (run.first, run.last)]
    return result, [stage_memory(table, result.blocks, run, at) for run, at in stages]


def columns_of(kind: str, parts: int) -> dict[str, np.ndarray]:
    """Every figure of times and memory, by name."""
    result, stages = evaluated(kind, parts)
    found = {f"{part} time": time for part, time in result.time_s.items()}
    found |= {f"{axis} alone": alone for axis, (alone, _) in result.comm_s.items()}
    for number, stage in enumerate([result.memory, *stages]):
        found |= {f"{f.name} {number}": getattr(stage, f.name) for f in fields(StageMemory)}
    return found


@pytest.mark.parametrize("kind", DEEP)
def test_all_parts_are_all_of_a_layer(kind: str) -> None:
    """Times and memory of every schedule and recompute, to the last bit."""
    whole, named = columns_of(kind, 0), columns_of(kind, EVERY)
    for name, column in whole.items():
        np.testing.assert_array_equal(column, named[name], err_msg=name)
    assert (whole["offload time"] > 0).all()
    assert (whole["offloaded 1"] > 0).all()


@pytest.mark.parametrize("kind", DEEP)
def test_every_byte_is_of_one_part(kind: str) -> None:
    """Over all parts, each alone, second tier and link have what they have of a whole layer."""
    whole, stages = evaluated(kind, 0)
    alone = [evaluated(kind, 1 << place) for place in range(len(OFFLOAD_PARTS))]
    for number, stage in enumerate(stages):
        moved = sum(several[number].offloaded for _, several in alone)
        np.testing.assert_allclose(moved, stage.offloaded, rtol=1e-12)
    for way in ("offload_forward_s", "offload_backward_s"):
        for number, whole_s in enumerate(layer_times_of(whole, way)):
            apart = sum(layer_times_of(one, way)[number] for one, _ in alone)
            np.testing.assert_allclose(apart, whole_s, rtol=1e-12)


def layer_times_of(result: Evaluation, name: str) -> list[np.ndarray]:
    """One time of a layer of each kind."""
    return [getattr(part.times, name) for part in result.blocks.layers if part is not None]


sets = st.integers(1, EVERY)


@fast
@given(st.sampled_from(list(DEEP)), sets, sets)
def test_more_parts_never_hold_more_in_the_first_tier(kind: str, some: int, others: int) -> None:
    """On no stage; the second tier and the link have no less, and nothing else changes."""
    (_, fewer), (_, more) = evaluated(kind, some), evaluated(kind, some | others)
    for before, after in zip(fewer, more, strict=True):
        assert (after.total <= before.total * SLACK).all()
        assert (after.offloaded >= before.offloaded).all()
        for part in {*MEMORY_PARTS} - {"activations"}:
            np.testing.assert_array_equal(getattr(after, part), getattr(before, part))
    before, after = (evaluated(kind, parts)[0] for parts in (some, some | others))
    for name, grows in (("offload_exposed_s", np.greater_equal), ("forward_s", np.equal)):
        pairs = zip(layer_times_of(after, name), layer_times_of(before, name), strict=True)
        assert all(grows(many, few).all() for many, few in pairs)


def test_rows_of_a_table_are_estimates_of_their_own() -> None:
    """Several recomputes and parts in one table, with rows that offload nothing or all of it."""
    parts = (None, ("core_attention",), ("attention_norm", "mlp_norm"))
    ways = list(product(("none", "selective", "full"), parts))
    columns: dict[str, list[Any]] = {
        "recompute": [*(again for again, _ in ways), "none"],
        "offload_parts": [*(some for _, some in ways), None],
        "offload_activations": [*(True for _ in ways), False],
    }
    given = {"dp": 1, "mbs": 2, "gbs": 8, "stack": samples.stack()}
    table = estimate_many(MIXED, machine(), given | columns)
    for row in range(len(table)):
        one = {name: column[row] for name, column in columns.items()}
        alone = estimate(MIXED, machine(), given | one)
        assert table.step_time_s[row] == alone.step_time_s
        assert table.memory_total_bytes[row] == alone.memory_bytes.total
        assert table.memory_offloaded_bytes[row] == alone.memory_bytes.offloaded
    assert len({*table.memory_offloaded_bytes.tolist()}) == len(table) - 2


def timeline(parts: tuple[str, ...] | None, way: dict[str, Any]) -> tuple[StepTimeline, Estimate]:
    """Of a dense layer and three with experts on two stages."""
    told = {"offload_activations": True, "offload_parts": parts, "stack": samples.stack()}
    given = {"dp": 1, "pp": 2, "mbs": 2, "gbs": 16} | told | way
    called = samples.deepseek(vocab=64), machine(), given
    return trace(*called).timeline, estimate(*called)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("parts", [("expert_up",), ("activation", "mlp_norm")])
def test_the_timeline_holds_what_the_estimate_says(parts: tuple[str, ...], schedule: str) -> None:
    """Every rank at its fullest, with some layers that are run again and without."""
    for again in ({}, {"recompute": "selective", "recompute_layers": 1}):
        line, result = timeline(parts, {"schedule": schedule} | again)
        peaks = [stage.peak.bytes for stage in result.stages]
        assert rank_totals(line).peak_bytes == pytest.approx(peaks, rel=1e-9)
        assert line.step_s == pytest.approx(result.step_time_s, rel=1e-9)
        held, kind, rank = line.held, line.actions.kind, line.actions.rank
        np.testing.assert_allclose(held.after[kind == 0], held.activations[kind == 0])
        keeps = np.flatnonzero((kind[1:] > 0) & (rank[1:] == rank[:-1]))
        np.testing.assert_allclose(held.after[keeps], held.activations[keeps + 1])
        assert held.after[-1] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("way", WAYS[1::4], ids=lambda way: way["schedule"])
def test_a_timeline_of_all_parts_is_that_of_whole_layers(way: dict[str, Any]) -> None:
    """Action by action, in every schedule."""
    (named, _), (whole, _) = (timeline(parts, way) for parts in (OFFLOAD_PARTS, None))
    np.testing.assert_array_equal(named.actions.end_s, whole.actions.end_s)
    for column in fields(HeldAtActions):
        pair = (getattr(line.held, column.name) for line in (named, whole))
        np.testing.assert_array_equal(*pair)


def test_none_null_and_nothing_are_all_of_a_layer() -> None:
    """In strategies, columns and frames; a list names parts in any order, as a text too."""
    rows = [None, ("mlp", "qkv"), ("qkv",)]
    strategies = [Strategy(dp=2, gbs=2, offload_parts=row) for row in rows]
    table = Table.of(DENSE, strategies)
    bits = [0, bits_of(["qkv", "mlp"], "offload_parts"), bits_of(["qkv"], "offload_parts")]
    assert table.offload_parts.tolist() == bits
    assert [table.strategy(row).offload_parts for row in range(3)] == [
        None,
        ("qkv", "mlp"),
        ("qkv",),
    ]
    given = {"dp": 2, "gbs": 2}
    assert Table.of(DENSE, given).offload_parts.tolist() == [0]
    for column in (
        [None, "mlp+qkv", "qkv"],
        ["", "mlp qkv", ["qkv"]],
        [float("nan"), ("qkv", "mlp"), bits[2]],
        np.array([None, "qkv,mlp", "qkv"], dtype=object),
        np.array(bits),
    ):
        assert Table.of(DENSE, given | {"offload_parts": column}).offload_parts.tolist() == bits
    one = Table.of(DENSE, given | {"offload_parts": ("qkv", "mlp"), "tp": [1, 1, 1]})
    assert one.offload_parts.tolist() == [bits[1]] * 3
    told = {"offload_activations": True, "offload_parts": [None, "qkv mlp", "qkv"]}
    frame = estimate_many(DENSE, machine(), given | told).to_frame()
    again = Table.of(DENSE, frame.select(list(Strategy.model_fields)))
    assert again.offload_parts.tolist() == bits


def test_no_part_at_all_is_refused() -> None:
    """An empty list, a word that is none, and bits that stand for none."""
    for value, told in (
        ((), "must name a part; to offload nothing, offload_activations is false"),
        (("moe",), "allowed: attention_norm, qkv, core_attention"),
    ):
        with pytest.raises(InputError, match=told):
            Strategy.validated({"offload_parts": value})
        with pytest.raises(InputError, match=told):
            Table.of(DENSE, {"dp": 1, "gbs": 1, "offload_parts": [value]})
    with pytest.raises(InputError, match="no set"):
        Table.of(DENSE, {"dp": 1, "gbs": 1, "offload_parts": [EVERY + 1]})


def test_people_read_which_parts_are_offloaded(capsys: pytest.CaptureFixture[str]) -> None:
    """In an estimate after a flag, and in a search as a column; machines get a list."""
    called = ["llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "64"]
    chosen = ["--offload-activations", "--offload-parts", "mlp,qkv"]
    assert cli(["estimate", *called, "--tp", "2", *chosen]) == 0
    assert "offloaded activations of qkv+mlp" in " ".join(capsys.readouterr().out.split())
    assert cli(["estimate", *called, "--tp", "2", *chosen, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["offload_parts"] == ["qkv", "mlp"]
    fixed = "tp=2,pp=1,mbs=1,recompute=none,zero=1,tp_overlap=stack,offload_activations=true"
    fixed += ",placement=tp-cp-dp-pp,offload_weights=false,offload_optimizer=false"
    fixed += ",tp_exchange=rs_ag,tp_regather=true,dp_overlap=true,fused_activation=false"
    allow = "offload_parts=qkv,mlp+qkv,none"
    assert cli(["search", *called, "--fix", fixed, "--allow", allow, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tried = [one["strategy"]["offload_parts"] for one in found["best"]]
    assert {tuple(parts or ()) for parts in tried} == {("qkv",), ("qkv", "mlp"), ()}
    assert cli(["search", *called, "--fix", fixed, "--allow", allow]) == 0
    shown = capsys.readouterr().out
    assert "offl. parts" in shown
    assert "qkv+mlp" in shown

"""What holds for any legal strategy, whatever its fields: overlap, offload, forward only, tiers."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import samples
from shardwise import Model, Strategy, System, estimate, estimate_many
from shardwise.arrays import gather
from shardwise.evaluate import Evaluation, evaluate
from shardwise.memory import MEMORY_PARTS, stage_memory
from shardwise.placement import place
from shardwise.rules import broken_rule
from shardwise.stages import by_stage
from shardwise.step import TIME_PARTS
from shardwise.table import Table
from shardwise.words import (
    ATTENTIONS,
    CP_EXCHANGES,
    OFFLOAD_PARTS,
    OPTIMIZERS,
    PLACEMENTS,
    RECOMPUTE_PARTS,
    RECOMPUTES,
    SCHEDULES,
    TP_EXCHANGES,
    TP_OVERLAPS,
)

fast = settings(deadline=None, max_examples=15)
SLACK = 1 + 1e-9
FLAGS = ("offload_weights", "offload_activations", "offload_optimizer")
AXES = ("tp", "cp", "dp", "pp")
WIDE = samples.layer(
    count=11,
    attention={"heads": 16, "kv_heads": 4, "head_dim": 64, "bias": "qkv"},
    mlp={"ffn": 4096, "activation": "swiglu"},
)
MODELS = [
    samples.model(WIDE, hidden=1024, vocab=32_001, seq_len=2048),
    samples.llama(layers=[WIDE], hidden=1024, vocab=501, seq_len=2048),
]


def with_host(machine: System, bandwidth: float) -> System:
    """A machine with a second memory tier, whose links take a part of the processor."""
    told = machine.to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": bandwidth}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    told["network"] = [tier | {"processor_share": 0.15} for tier in told["network"]]
    return System.validated(told)


MACHINES = [
    with_host(System.load("h100-sxm"), 50e9),
    with_host(samples.system(), 1e9),
    with_host(
        samples.system(
            node=4,
            network=[
                samples.tier("inside", domain=4, latency=1e-6),
                samples.tier("rack", domain=16, bandwidth=20e9, latency=5e-6),
                samples.tier("all", bandwidth=5e9, latency=1e-5, links_per_node=2),
            ],
        ),
        20e9,
    ),
]
models, machines = st.sampled_from(MODELS), st.sampled_from(MACHINES)
tier = st.sampled_from([None, None, None, 0, 1])
PARTS = [part for part in RECOMPUTE_PARTS if part not in ("mla_up", "moe")]
parts = st.sets(st.sampled_from(PARTS), min_size=1).map(lambda some: tuple(sorted(some)))
offloaded = st.none() | st.sets(st.sampled_from(OFFLOAD_PARTS[:6]), min_size=1).map(tuple)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Strategies of the models above, most of them legal."""
    pp, dp = draw(st.sampled_from([1, 2, 3, 4, 5, 11])), draw(st.sampled_from([1, 2, 3, 8]))
    mbs = draw(st.sampled_from([1, 2]))
    recompute, zero = draw(st.sampled_from(RECOMPUTES)), draw(st.sampled_from([0, 1, 2, 3]))
    longest, moves = -(-11 // pp), draw(st.booleans())
    chunks = st.sampled_from([v for v in (1, 2, 3, 4) if longest % v == 0])
    return {
        "tp": draw(st.sampled_from([1, 2, 4, 8, 16])),
        "pp": pp,
        "vpp": draw(chunks) if pp > 1 else 1,
        "dp": dp,
        "micro_batch_size": mbs,
        "global_batch_size": dp * mbs * draw(st.integers(2, 12)),
        "seq_len": draw(st.sampled_from([512, 2048])),
        "dtype": draw(st.sampled_from(["fp16", "fp32"])),
        "attention": draw(st.sampled_from(ATTENTIONS)),
        "cp": draw(st.sampled_from([1, 1, 2, 4])),
        "cp_exchange": draw(st.sampled_from(CP_EXCHANGES)),
        "recompute": recompute,
        "recompute_parts": draw(parts) if recompute == "selective" else ("core_attention",),
        "recompute_layers": draw(st.sampled_from([None, 1, 4])) if recompute != "none" else None,
        "zero": zero,
        "dp_shard": draw(st.sampled_from([None, 1, dp])) if zero else None,
        "fsdp_reshard": zero < 3 or draw(st.booleans()),
        "fsdp_prefetch": draw(st.sampled_from([0, 1, 2])),
        "optimizer": draw(st.sampled_from(OPTIMIZERS)),
        "loss_as_layer": draw(st.sampled_from([False, False, True])),
        "document_len": draw(st.sampled_from([None, 128])),
        "training": draw(st.sampled_from([True, True, True, False])),
        "tp_exchange": draw(st.sampled_from(TP_EXCHANGES)),
        "tp_overlap": draw(st.sampled_from(TP_OVERLAPS)),
        "tp_regather": draw(st.booleans()),
        "dp_overlap": draw(st.booleans()),
        "fused_activation": draw(st.booleans()),
        "offload_weights": draw(st.booleans()),
        "offload_activations": moves,
        "offload_parts": draw(offloaded) if moves else None,
        "offload_optimizer": draw(st.booleans()),
        "placement": draw(st.sampled_from(PLACEMENTS)),
        "tp_tier": draw(tier),
        "cp_tier": draw(tier),
        "dp_tier": draw(tier),
        "pp_tier": draw(tier),
        "stack": draw(st.sampled_from(["megatron-core-2025", "megatron-lm-2022"])),
    }


tables = st.lists(rows(), min_size=4, max_size=10)


def legal(model: Model, machine: System, given: list[dict[str, Any]]) -> Table:
    """Table of the legal ones."""
    table = Table.of(model, {name: [row[name] for row in given] for name in given[0]})
    keep = np.flatnonzero(broken_rule(model, machine, table) < 0)
    assume(len(keep) > 0)
    return table.take(keep)


def changed(table: Table, **columns: object) -> Table:
    """Return the table with one value in each of some columns."""
    return replace(table, **{n: np.full(len(table), value) for n, value in columns.items()})


_EDGES = TP_EXCHANGES.index("p2p_rs_ag")


def same_stage(one: Evaluation, other: Evaluation) -> np.ndarray:
    """Rows of which the same stage is the slowest in both: all parts are on it as often."""
    parts = zip(one.slowest.work, other.slowest.work, strict=True)
    return np.logical_and.reduce([before == after for before, after in parts])


@fast
@given(models, machines, tables)
def test_overlap_is_never_slower(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Of exchanges of ranks and of replicas: slowed products are inside what is exposed.

    From two micro-batches on, as what hides behind a pass may grow by what the pass shrinks; and
    where the same stage stays the slowest, as what is met once a step is that stage's. Where a
    stage waits for offload, the sum that p2p_rs_ag scatters at its edge is only saved unhidden.
    """
    table = legal(model, machine, given)
    bare_table = changed(table, tp_overlap=TP_OVERLAPS.index("none"))
    bare = evaluate(model, machine, bare_table)
    for overlap in ("stack", "ring", "pipe"):
        hiding = changed(table, tp_overlap=TP_OVERLAPS.index(overlap))
        result = evaluate(model, machine, hiding)
        same = same_stage(result, bare)
        same &= ~(
            (table.tp_exchange == _EDGES) & (table.offload_activations | table.offload_weights)
        )
        assert (result.time_s["tp_comm"] <= bare.time_s["tp_comm"] * SLACK)[same].all()
        assert (result.step_time_s <= bare.step_time_s * SLACK)[same].all()
        for part in ("forward", "backward", "recompute"):
            assert (result.time_s[part] == bare.time_s[part])[same].all()
    late, early = (evaluate(model, machine, changed(table, dp_overlap=on)) for on in (False, True))
    assert (early.step_time_s <= late.step_time_s * SLACK).all()
    assert (early.time_s["dp_comm"] <= late.comm_s["dp"][0] * SLACK).all()


@fast
@given(models, machines, tables, st.sampled_from(FLAGS))
def test_offload_never_raises_the_first_tier(
    model: Model, machine: System, given: list[dict[str, Any]], flag: str
) -> None:
    """On every stage; what leaves it is in the second tier; no exchange gets longer."""
    table = legal(model, machine, given)
    here, there = (changed(table, **{flag: on}) for on in (False, True))
    whole, less = (evaluate(model, machine, either) for either in (here, there))
    assert (less.memory.total <= whole.memory.total * SLACK).all()
    assert (less.reserved_bytes <= whole.reserved_bytes * SLACK).all()
    for row in range(len(table)):
        one = slice(row, row + 1)
        before, after = (
            stage_memory(
                side.take(one), gather(result.blocks, one), by_stage(gather(result.runs, one))
            )
            for side, result in ((here, whole), (there, less))
        )
        moved = after.offloaded - before.offloaded
        part = flag.removeprefix("offload_")
        at_once = ~(before.in_update | after.in_update)
        held, kept = getattr(before, part), getattr(after, part)
        assert (moved >= 0).all()
        assert (kept <= held * SLACK)[at_once].all()
        assert (held <= (kept + moved) * SLACK)[at_once].all()
        # Of what other layers keep, less is away at the fullest moment of one.
        unchanged = {*MEMORY_PARTS} - {part, "buffers" if part == "activations" else part}
        for other in unchanged:
            assert (getattr(before, other) == getattr(after, other))[at_once].all()
    comm = {
        axis: (whole.comm_s[axis][0], less.comm_s[axis][0]) for axis in ("tp", "cp", "pp", "dp")
    }
    same = same_stage(whole, less)
    for before_s, after_s in comm.values():
        assert (before_s == after_s)[same].all()


@fast
@given(models, machines, tables, st.floats(1, 100))
def test_a_faster_link_is_never_slower(
    model: Model, machine: System, given: list[dict[str, Any]], factor: float
) -> None:
    """From two micro-batches on, where the same stage stays the slowest; without end it is free."""
    table = legal(model, machine, given)
    rate = machine.accelerator.memory[1].bandwidth
    before, after, free = (
        evaluate(model, with_host(machine, bandwidth), table)
        for bandwidth in (rate, rate * factor, 1e30)
    )
    same = same_stage(before, after)
    assert (after.step_time_s <= before.step_time_s * SLACK)[same].all()
    assert (after.comm_s["offload"][0] <= before.comm_s["offload"][0] * SLACK)[same].all()
    assert (free.time_s["offload"] < 1e-12).all()
    assert (after.memory.total == before.memory.total).all()


@fast
@given(models, machines, tables)
def test_forward_only_is_the_forward_part_of_training(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Where the same stage is the slowest; nothing else, and never more memory."""
    table = legal(model, machine, given)
    both, once = (changed(table, training=on) for on in (True, False))
    training, forward = (evaluate(model, machine, either) for either in (both, once))
    same = same_stage(training, forward)
    assert (forward.time_s["forward"] == training.time_s["forward"])[same].all()
    for part in ("backward", "recompute", "optimizer"):
        assert (forward.time_s[part] == 0).all()
    # Split weights are gathered forward too, once instead of twice.
    assert (forward.time_s["dp_comm"] == 0)[table.zero < 3].all()
    assert (forward.comm_s["dp"][0] <= training.comm_s["dp"][0] * SLACK).all()
    for part in ("tp_comm", "cp_comm", "pp_comm", "offload"):
        assert (forward.time_s[part] <= training.time_s[part] * SLACK)[same].all()
    assert (forward.step_time_s <= training.step_time_s * SLACK).all()
    assert (forward.memory.total <= training.memory.total * SLACK).all()
    for part in ("gradients", "optimizer", "activations"):
        assert (getattr(forward.memory, part) == 0).all()
    assert (forward.recompute_flops == 0).all()


@fast
@given(models, machines, tables)
def test_a_row_is_the_estimate_of_its_strategy(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Times, memory and utilisation of each, and the parts sum to the step."""
    table = legal(model, machine, given)
    many = estimate_many(model, machine, [table.strategy(row) for row in range(len(table))])
    for row in range(len(table)):
        one = estimate(model, machine, table.strategy(row))
        assert many.step_time_s[row] == pytest.approx(one.step_time_s, rel=1e-12)
        assert sum(one.time_s.values()) == pytest.approx(one.step_time_s, rel=1e-12)
        assert (many.mfu[row], many.hfu[row]) == pytest.approx((one.mfu, one.hfu), rel=1e-12)
        assert bool(many.fits[row]) is one.fits
        for part in TIME_PARTS:
            assert one.time_s[part] >= 0
            assert many.time_s[part][row] == pytest.approx(one.time_s[part], rel=1e-12)
        for part in MEMORY_PARTS:
            told = getattr(one.memory_bytes, part)
            assert many.memory_bytes[part][row] == pytest.approx(told, rel=1e-12)
        assert sum(stage.layers for stage in one.stages) == model.depth
        for comm in one.comm_s.values():
            assert 0 <= comm.exposed <= comm.total * SLACK


ONE_FIELD: dict[str, list[Any]] = {
    "attention": list(ATTENTIONS),
    "training": [True, False],
    "tp_exchange": list(TP_EXCHANGES),
    "tp_overlap": list(TP_OVERLAPS),
    "tp_regather": [True, False],
    "dp_overlap": [True, False],
    "fused_activation": [True, False],
    **{flag: [False, True] for flag in FLAGS},
    **{f"{axis}_tier": [None, 0, 1] for axis in AXES},
    "pp": [1, 2, 3, 4],
    "global_batch_size": [4, 8, 12],
    "cp": [1, 2, 4],
    "document_len": [None, 100, 256],
    "zero": [0, 1, 2, 3],
    "dp_shard": [None, 1],
    "optimizer": list(OPTIMIZERS),
    "recompute": list(RECOMPUTES),
    "first_stage_layers": [None, 3, 8],
    "last_stage_layers": [None, 3, 8],
    "stage_layers": [None, (1, 10), (7, 4)],
}
GIVEN: dict[str, dict[str, Any]] = {
    "cp_exchange": {"cp": 2, "values": list(CP_EXCHANGES)},
    "cp_tier": {"cp": 2, "values": [None, 0, 1]},
    "recompute_layers": {"recompute": "full", "values": [None, 1, 3]},
    "recompute_parts": {
        "recompute": "selective",
        "values": [("core_attention",), ("mlp",), ("activation", "mlp_norm")],
    },
    "offload_parts": {"offload_activations": True, "values": [None, ("mlp",), ("qkv", "mlp")]},
    "fsdp_reshard": {"zero": 3, "values": [True, False]},
    "fsdp_prefetch": {"zero": 3, "values": [0, 1, 2]},
    "embedding_as_layer": {"pp": 3, "values": [False, True]},
    "loss_as_layer": {"pp": 5, "values": [False, True]},
    "placement": {"dp": 8, "gbs": 16, "values": ["tp-cp-dp-pp", "pp-dp-tp-cp"]},
    "schedule": {"gbs": 16, "values": [s for s in SCHEDULES if s != "interleaved"]},
}


@pytest.mark.parametrize("field", [*ONE_FIELD, *GIVEN])
def test_rows_that_differ_in_one_field_are_told_apart(field: str) -> None:
    """What is evaluated once for equal rows is not shared by these."""
    given = {"tp": 2, "pp": 2, "dp": 2, "gbs": 8, "seq_len": 512, "dtype": "fp16"}
    given |= GIVEN.get(field, {})
    values = given.pop("values", ONE_FIELD.get(field))
    if field == "global_batch_size":
        del given["gbs"]
    rows = estimate_many(MODELS[0], MACHINES[1], given | {field: values})
    found = set()
    for row, value in enumerate(values):
        one = estimate(MODELS[0], MACHINES[1], given | {field: value})
        assert rows.step_time_s[row] == one.step_time_s
        assert rows.memory_total_bytes[row] == one.memory_bytes.total
        assert rows.mfu[row] == one.mfu
        found.add((one.step_time_s, one.memory_bytes.total))
    assert len(found) > 1


@fast
@given(models, machines, tables)
def test_tables_survive_columns_and_frames(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """As columns, as a data frame and as strategies they come back equal, tiers or none."""
    table = legal(model, machine, given)
    frame = estimate_many(model, machine, table.to_columns()).to_frame()
    again = [
        Table.of(model, table.to_columns()),
        Table.of(model, frame.select(list(Strategy.model_fields))),
        Table.of(model, [table.strategy(row) for row in range(len(table))]),
        Table.of(model, [table.strategy(row).to_dict() for row in range(len(table))]),
    ]
    named = {"stack", "stacks"}  # by name in columns and frames
    for other in again:
        for field in fields(Table):
            if field.name not in named:
                np.testing.assert_array_equal(
                    getattr(other, field.name), getattr(table, field.name)
                )
        for row in range(len(table)):
            assert other.strategy(row) == table.strategy(row)


@fast
@given(models, machines, tables, st.sets(st.sampled_from(AXES), min_size=1))
def test_tiers_that_the_placement_would_give_change_nothing(
    model: Model, machine: System, given: list[dict[str, Any]], axes: set[str]
) -> None:
    """Axes that lie on one tier by placement, some or all of them told to lie there."""
    table = changed(legal(model, machine, given), **{f"{axis}_tier": -1 for axis in AXES})
    extents = place(machine, table)
    told = {}
    for axis in axes:
        found, degree = getattr(extents, axis), getattr(table, axis)
        jumps = np.argmax(found == degree, axis=0)
        tiers = np.arange(len(found))[:, np.newaxis]
        one_tier = (found == np.where(tiers >= jumps, degree, 1)).all(axis=0)
        told[f"{axis}_tier"] = np.where(one_tier, jumps, -1)
    explicit = replace(table, **told)
    assert (broken_rule(model, machine, explicit) < 0).all()
    for axis in AXES:
        np.testing.assert_array_equal(
            getattr(place(machine, explicit), axis), getattr(extents, axis)
        )
    one, two = (evaluate(model, machine, either) for either in (table, explicit))
    np.testing.assert_array_equal(one.step_time_s, two.step_time_s)
    for part in TIME_PARTS:
        np.testing.assert_array_equal(one.time_s[part], two.time_s[part])


def test_tiers_without_a_value_survive_in_every_form() -> None:
    """None, nulls of a data frame and NaN of a column are one thing; some, all or none of them."""
    strategies = [Strategy(dp=2, gbs=2, tp_tier=tier) for tier in (None, 0, 1)]
    table = Table.of(MODELS[0], strategies)
    assert table.tp_tier.tolist() == [-1, 0, 1]
    for tiers in ([None, 0, 1], [float("nan"), 0, 1], np.array([None, 0, 1], dtype=object)):
        assert Table.of(MODELS[0], {"dp": 2, "gbs": 2, "tp_tier": tiers}).tp_tier.tolist() == [
            -1,
            0,
            1,
        ]
    frame = estimate_many(MODELS[0], MACHINES[0], strategies[:1]).to_frame()
    assert Table.of(MODELS[0], frame.select(list(Strategy.model_fields))).tp_tier.tolist() == [-1]

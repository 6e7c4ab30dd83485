"""What holds for any parts of offloaded activations: in every schedule, table and timeline."""

import json
from dataclasses import fields
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Strategy, estimate, estimate_many, trace
from shardwise.analysis.results import Estimate
from shardwise.analysis.timeline.step import MemoryAtActions, StepTimeline, rank_totals
from shardwise.cli import run as cli
from shardwise.config.enums import OffloadPart, Schedule
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.engine.memory import MEMORY_PARTS, StageMemory, stage_memory
from test_offload_parts import DENSE, MIXED, machine

pytestmark = pytest.mark.any_software

fast = examples(20)
SLACK = 1 + 1e-12
EVERY = (1 << len(OffloadPart)) - 1
UNLIKE = ("interleaved", "zb-v")
WAYS: list[dict[str, Any]] = [
    {"schedule": schedule, "vpp": 2 if schedule == "interleaved" else 1, **again}
    for schedule in Schedule
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
    stages = [(run, at) for run in result.step.groups for at in (run.first, run.last)]
    return result, [stage_memory(table, result.step.costs, run, at) for run, at in stages]


def columns_of(kind: str, parts: int) -> dict[str, np.ndarray]:
    """Every figure of times and memory, by name."""
    result, stages = evaluated(kind, parts)
    found = {f"{part} time": time for part, time in result.time_s.items()}
    found |= {f"{axis} alone": alone for axis, (alone, _) in result.comm_s.items()}
    for number, stage in enumerate([result.memory, *stages]):
        found |= {f"{f.name} {number}": getattr(stage, f.name) for f in fields(StageMemory)}
    return found


@each_row("kind", DEEP)
def test_all_parts_are_all_of_a_layer(kind: str) -> None:
    """Times and memory of every schedule and recompute, to the last bit."""
    whole, named = columns_of(kind, 0), columns_of(kind, EVERY)
    for name, column in whole.items():
        np.testing.assert_array_equal(column, named[name], err_msg=name)
    assert (whole["offload time"] > 0).all()
    assert (whole["offloaded 1"] > 0).all()


@each_row("kind", DEEP)
def test_every_byte_is_of_one_part(kind: str) -> None:
    """Over all parts, each alone, second tier and link have what they have of a whole layer.

    Where chunks are unlike, each part may have its highest at another moment than the whole.
    """
    whole, stages = evaluated(kind, 0)
    alone = [evaluated(kind, 1 << place) for place in range(len(OffloadPart))]
    for number, stage in enumerate(stages):
        moved = sum(several[number].offloaded for _, several in alone)
        assert (moved >= stage.offloaded * (1 - 1e-12)).all()
        alike = [kind != "mixed" or way["schedule"] not in UNLIKE for way in WAYS]
        np.testing.assert_allclose(moved[alike], stage.offloaded[alike], rtol=1e-12)
    for way in ("offload_forward_s", "offload_backward_s"):
        for number, whole_s in enumerate(layer_times_of(whole, way)):
            apart = sum(layer_times_of(one, way)[number] for one, _ in alone)
            np.testing.assert_allclose(apart, whole_s, rtol=1e-12)


def layer_times_of(result: Evaluation, name: str) -> list[np.ndarray]:
    """One time of a layer of each kind."""
    return [getattr(part.times, name) for part in result.step.costs.layers if part is not None]


sets = st.integers(1, EVERY)


@fast
@given(st.sampled_from(list(DEEP)), sets, sets)
def test_more_parts_never_hold_more_in_the_first_tier(kind: str, some: int, others: int) -> None:
    """On no stage; the second tier and the link have no less, and nothing else changes.

    What lives for a moment may: less of what other layers keep is away then.
    """
    (_, fewer), (_, more) = evaluated(kind, some), evaluated(kind, some | others)
    for before, after in zip(fewer, more, strict=True):
        assert (after.total <= before.total * SLACK).all()
        assert (after.offloaded >= before.offloaded).all()
        for part in {*MEMORY_PARTS} - {"activations", "buffers"}:
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


@each_row("schedule", ["1f1b", "gpipe", "zb-h1"])
@each_row("parts", [("expert_up",), ("activation", "mlp_norm")])
def test_the_timeline_holds_what_the_estimate_says(parts: tuple[str, ...], schedule: str) -> None:
    """Every rank at its fullest, with some layers that are run again and without."""
    for again in ({}, {"recompute": "selective", "recompute_layers": 1}):
        line, result = timeline(parts, {"schedule": schedule} | again)
        peaks = [stage.peak.bytes for stage in result.stages]
        assert rank_totals(line).peak_bytes == pytest.approx(peaks, rel=1e-9)
        assert line.step_s == pytest.approx(result.step_time_s, rel=1e-9)
        held, kind, rank = line.memory_at_actions, line.actions.kind, line.actions.rank
        np.testing.assert_allclose(held.after[kind == 0], held.activations[kind == 0])
        keeps = np.flatnonzero((kind[1:] > 0) & (rank[1:] == rank[:-1]))
        np.testing.assert_allclose(held.after[keeps], held.activations[keeps + 1])
        assert held.after[-1] == pytest.approx(0, abs=1e-6)


@each_row("way", WAYS[1::4])
def test_a_timeline_of_all_parts_is_that_of_whole_layers(way: dict[str, Any]) -> None:
    """Action by action, in every schedule."""
    (named, _), (whole, _) = (timeline(parts, way) for parts in (OffloadPart, None))
    np.testing.assert_array_equal(named.actions.end_s, whole.actions.end_s)
    for column in fields(MemoryAtActions):
        pair = (getattr(line.memory_at_actions, column.name) for line in (named, whole))
        np.testing.assert_array_equal(*pair)


def test_none_null_and_nothing_are_all_of_a_layer() -> None:
    """In strategies, columns and frames; a list names parts in any order, as a text too."""
    rows = [None, ("mlp", "qkv"), ("qkv",)]
    strategies = [Strategy(dp=2, gbs=2, offload_parts=row) for row in rows]
    table = Table.of(DENSE, strategies)
    bits = [0, OffloadPart.bits(["qkv", "mlp"]), OffloadPart.bits(["qkv"])]
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
    assert (
        cli(["search", *called, "--fix", fixed, "--allow", allow, "--all-variants", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    tried = [one["strategy"]["offload_parts"] for one in found["best"]]
    assert {tuple(parts or ()) for parts in tried} == {("qkv",), ("qkv", "mlp"), ()}
    assert cli(["search", *called, "--fix", fixed, "--allow", allow, "--all-variants"]) == 0
    shown = capsys.readouterr().out
    assert "offl. parts" in shown
    assert "qkv+mlp" in shown

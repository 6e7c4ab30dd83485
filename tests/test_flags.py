"""The page on flags names for every field of a strategy what it changes: no more, no less."""

import re
from collections import defaultdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samples
from shardwise import Model, Strategy, System, estimate
from shardwise.arrays import Bools, Floats
from shardwise.evaluate import evaluate
from shardwise.memory import MEMORY_PARTS
from shardwise.ops.parameters import count_parameters
from shardwise.rules import broken_rule
from shardwise.slowest import SlowestStage
from shardwise.step import TIME_PARTS
from shardwise.strategy import ATTENTIONS, PLACEMENTS, RECOMPUTES, TP_EXCHANGES, TP_OVERLAPS
from shardwise.table import Table

PAGE = Path(__file__).parent.parent / "docs" / "flags.md"
HELD = (*MEMORY_PARTS, "offloaded")
OUTPUTS = (*TIME_PARTS, *(f"{part} bytes" for part in HELD), "parameters")
NEVER = ("cp_comm", "ep_comm")
ALL = {
    "times": [part for part in TIME_PARTS if part not in (*NEVER, "other")],
    "memory": list(HELD),
}
SHORT_FOR = {"gpus": "dp", "sequence_parallel": "tp_exchange", "schedule": "vpp"}
BASES = 600

SPARE: dict[str, Any] = {
    "tp_hidden": 0.3,
    "tp_backward_async": True,
    "dp_contention": 0.5,
    "dp_tail": 0.1,
    "pp_hidden": 0.2,
}
STACKS = [
    samples.stack(**SPARE, step_overhead=1e-3),
    samples.stack(**SPARE, attention="unfused", gradient_dtype="compute", host_launch=2e-6),
    samples.stack(name="scatters", pp_scatter_gather=True, weight_gradient_buffers=True),
]
VALUES: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 3, 4],
    "cp": [1],
    "ep": [1],
    "etp": [1],
    "dp": [1, 2, 4],
    "vpp": [1, 2],
    "micro_batch_size": [1, 2, 4],
    "global_batch_size": [16, 32, 48],
    "seq_len": [16, 32],
    "dtype": ["fp16", "fp32"],
    "attention": list(ATTENTIONS),
    "recompute": list(RECOMPUTES),
    "zero": [0, 1],
    "training": [True, True, False],
    "tp_exchange": list(TP_EXCHANGES),
    "tp_overlap": list(TP_OVERLAPS),
    "tp_regather": [True, False],
    "dp_overlap": [True, False],
    "fused_activation": [True, False],
    "offload_weights": [True, False],
    "offload_activations": [True, False],
    "offload_optimizer": [True, False],
    "placement": [PLACEMENTS[0], "pp-dp-tp-cp", "dp-tp-cp-pp"],
    "tp_tier": [-1, 0, 1],
    "cp_tier": [-1, 0, 1],
    "dp_tier": [-1, 0, 1],
    "pp_tier": [-1, 0, 1],
    "stack": STACKS,
}


def machine() -> System:
    """Two tiers of links that differ in all they can, and a second memory tier behind a link."""
    network = [
        samples.tier("inside", domain=8, latency=1e-7) | {"processor_share": 0.1},
        samples.tier("between", bandwidth=10e9, latency=1e-6) | {"processor_share": 0.2},
    ]
    memory = [
        {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12},
        {"name": "host", "capacity": 1e12, "bandwidth": 20e9},
    ]
    return samples.system(network=network, memory=memory)


def grouped() -> Model:
    """A gated layer with 2 key-value heads of 8, six times."""
    layer = samples.layer(
        count=6, attention={"kv_heads": 2}, mlp={"activation": "swiglu", "bias": False}
    )
    return samples.model(layer)


def base(number: int) -> dict[str, Any]:
    """Strategy of a number: each field a value that has nothing to do with the others'."""

    def drawn(name: str) -> int:
        return int.from_bytes(blake2b(f"{name} {number}".encode(), digest_size=4).digest())

    return {name: values[drawn(name) % len(values)] for name, values in VALUES.items()}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@cache
def legal_bases() -> list[dict[str, Any]]:
    """Those of the bases that are legal, about a third."""
    rows = [base(number) for number in range(BASES)]
    legal = broken_rule(grouped(), machine(), Table.of(grouped(), columns_of(rows))) < 0
    return [row for row, keep in zip(rows, legal, strict=True) if keep]


def outputs(table: Table) -> tuple[dict[str, Floats], Floats, Floats]:
    """All outputs of legal rows; the stage that times are of; the stage and moment of memory."""
    model = grouped()
    result = evaluate(model, machine(), table)
    slowest = SlowestStage.of(model, table, result.blocks)
    counted = [count_parameters(model.with_attention(kind)).total for kind in ATTENTIONS]
    columns = result.time_s | {f"{part} bytes": getattr(result.memory, part) for part in HELD}
    columns["parameters"] = np.array(counted, dtype=np.float64)[table.attention]
    return columns, slowest.head, 2 * result.fullest_stage + result.memory.in_update


@cache
def observed() -> dict[str, set[str]]:
    """For each field the outputs that change, in at least one base, when it alone is changed."""
    model, found = grouped(), defaultdict(set)
    for name, values in VALUES.items():
        found[name] |= set()
        pairs = [
            (row, row | {name: value})
            for row in legal_bases()
            for value in values
            if value != row[name]
        ]
        if not pairs:
            continue
        before, after = (
            Table.of(model, columns_of([pair[side] for pair in pairs])) for side in (0, 1)
        )
        legal = np.flatnonzero(broken_rule(model, machine(), after) < 0)
        was, stage, peak = outputs(before.take(legal))
        now, stage_now, peak_now = outputs(after.take(legal))
        for output in OUTPUTS:
            followed = comparable(output, stage == stage_now, peak == peak_now)
            differs = ~np.isclose(was[output], now[output], rtol=1e-9, atol=0)
            if np.any(differs & followed):
                found[name].add(output)
    return found


def comparable(output: str, same_stage: Bools, same_peak: Bools) -> Bools:
    """Rows in which the output is of the same stage (and moment) before and after."""
    if output in TIME_PARTS:
        return same_stage
    return same_peak if output.endswith(" bytes") else np.ones_like(same_stage)


def named(cell: str, kind: str) -> set[str]:
    """Parts that a cell of the table names: a list, all of them, or all but a list."""
    words = re.findall(r"[a-z_]+", cell)
    if words[:2] == ["all", "but"]:
        return set(ALL[kind]) - set(words[2:])
    return {part for word in words for part in (ALL[kind] if word == "all" else [word])}


def promised() -> dict[str, set[str]]:
    """What the page says that each field changes."""
    found: dict[str, set[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `"):
            continue
        fields, times, memory = cells
        outputs = named(times, "times") | {f"{part} bytes" for part in named(memory, "memory")}
        for field in re.findall(r"`(\w+)`", fields):
            assert field not in found
            found[field] = outputs | ({"parameters"} if field == "attention" else set())
    return found


def test_the_page_names_every_field_once_and_known_parts_only() -> None:
    """A new field needs a line on the page, and values to try here."""
    assert set(promised()) == set(Strategy.model_fields) == set(VALUES) | set(SHORT_FOR)
    assert set().union(*promised().values()) == set(OUTPUTS) - set(NEVER)


@pytest.mark.parametrize("field", VALUES)
def test_a_field_changes_what_the_page_says(field: str) -> None:
    """Over some four hundred strategies nothing else changes, and each part named does in one."""
    assert observed()[field] == promised()[field]


def test_the_bases_use_every_value_of_every_field() -> None:
    """Enough of them are legal, and no value is left out."""
    assert len(legal_bases()) > BASES / 2
    for field, values in VALUES.items():
        assert all(any(row[field] == value for row in legal_bases()) for value in values)


@pytest.mark.parametrize(("short", "field"), SHORT_FOR.items())
def test_short_forms_change_what_their_field_changes(short: str, field: str) -> None:
    """The page has both in one line."""
    assert promised()[short] == promised()[field]


def test_short_forms_are_their_fields() -> None:
    """16 accelerators, 4 in a replica; sequence_parallel names one of two exchanges."""
    given = {"tp": 2, "pp": 2, "gbs": 16, "vpp": 1, "stack": STACKS[0]}

    def outcome(**fields: Any) -> dict[str, Any]:
        return estimate(grouped(), machine(), given | fields).to_dict() | {"assumed": None}

    assert outcome(gpus=16) == outcome(dp=4)
    for split, exchange in ((True, "rs_ag"), (False, "all_reduce")):
        short = outcome(dp=4, sequence_parallel=split)
        assert short == outcome(dp=4, tp_exchange=exchange)
    assert outcome(dp=4, vpp=3) == outcome(dp=4, vpp=3, schedule="interleaved")
    assert outcome(dp=4) == outcome(dp=4, schedule="1f1b")


def test_other_follows_the_rest_of_the_step() -> None:
    """A tenth of it for each doubling of the nodes, beside the fixed part, in every base."""
    slow = STACKS[0].model_copy(update={"straggler_per_doubling": 0.1})
    table = Table.of(grouped(), columns_of(legal_bases()) | {"stack": slow})
    times = evaluate(grouped(), machine(), table).time_s
    rest = sum(time for part, time in times.items() if part != "other")
    doublings = np.log2(np.ceil(table.gpus / 8))
    assert doublings.max() >= 3
    np.testing.assert_allclose(times["other"], 1e-3 + 0.1 * doublings * rest, rtol=1e-12)

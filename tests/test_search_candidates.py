"""Which strategies a search tries: layouts, options and choices, each once."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import samples
from naive_search import FIELDS, OFFLOADS, USUAL
from shardwise import InputError, Model, System, estimate_many
from shardwise.memory import MEMORY_PARTS
from shardwise.rules import broken_rule
from shardwise.searcher.candidates import CHOICE_FIELDS, OPTION_FIELDS, Box, Candidates
from shardwise.searcher.effects import EFFECTS, NEUTRAL, idle_rows, kinds_of, most_layers_on_a_rank
from shardwise.searcher.layouts import LAYOUT_FIELDS
from shardwise.searcher.run import count
from shardwise.searcher.space import SPACE_FIELDS, Space
from shardwise.step import TIME_PARTS
from shardwise.strategy import Strategy
from shardwise.table import Table
from shardwise.words import RECOMPUTES, TP_EXCHANGES, TP_OVERLAPS

MODEL = samples.model()


def with_host(machine: System) -> System:
    """A machine with a second memory tier."""
    told = machine.to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": 1e9}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    return System.validated(told)


SYSTEM = with_host(samples.system())


def candidates(system: System = SYSTEM, model: Model = MODEL, **fields: Any) -> Candidates:
    """Candidates of a space, by default of 8 accelerators and batches of 8."""
    usual = {"gpus": 8, "gbs": 8} if "global_batch_size" not in fields else {"gpus": 8}
    return Candidates.of(model, system, Space.validated(usual | fields))


def table_of(found: Candidates) -> Table:
    """All candidates in order."""
    return found.strategies(np.arange(len(found)))


def keys(table: Table, names: tuple[str, ...] = FIELDS) -> list[tuple[Any, ...]]:
    """Fields of each row."""
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def rows_of(boxes: tuple[Box, ...]) -> Table:
    """Candidates of boxes as they are evaluated: rows with all their choices, one by one."""
    tables = []
    for box in boxes:
        rows = box.table()
        row, choice = (i.ravel() for i in np.indices((len(rows), len(box.choices))))
        chosen = {name: getattr(rows, name)[choice, 0] for name in CHOICE_FIELDS}
        plain = rows.replaced(box.choices.take(np.zeros(len(rows), np.int64)), CHOICE_FIELDS).take(
            row
        )
        tables.append(plain.replaced(Table.of(MODEL, {"dp": 1, "gbs": 1, **chosen}), CHOICE_FIELDS))
    return Table.joined(tables)


def test_every_field_is_of_a_layout_an_option_or_a_choice():
    """Three groups without overlap make up all fields of a space, and of a strategy but one."""
    groups = (*LAYOUT_FIELDS, *OPTION_FIELDS, *CHOICE_FIELDS)
    assert len(set(groups)) == len(groups)
    assert set(groups) == set(SPACE_FIELDS) == set(Strategy.model_fields) - {"sequence_parallel"}


def test_numbers_name_the_strategies_that_are_evaluated():
    """Candidate n of a box is row n // choices with choice n mod choices; there and back."""
    found = candidates(tp=[1, 2], training=[True, False], stack=["calculon", "nemo-2025"], mbs=1)
    assert keys(table_of(found)) == keys(rows_of(found.legal + found.illegal))
    for box in found.legal:
        row, choice = (i.ravel() for i in np.indices((len(box.table()), len(box.choices))))
        numbers = box.numbers(row, choice)
        assert numbers.tolist() == list(range(box.start, box.start + len(box)))


def test_strategies_come_in_the_order_of_their_numbers():
    """Whatever the order, and across boxes; the same number twice is the same strategy twice."""
    found = candidates(mbs=[1, 2], dtype=["bf16", "fp16"], tp_overlap="none", recompute="none")
    every = keys(table_of(found))
    wanted = np.random.default_rng(0).integers(0, len(found), 300)  # out of order, some twice
    assert keys(found.strategies(wanted)) == [every[number] for number in wanted]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_pieces_of_a_box_are_the_box(size):
    """Numbers and strategies go on from piece to piece."""
    box = candidates(training=[True, False], recompute="all").legal[-1]
    pieces = list(box.cut(size))
    assert sum(map(len, pieces)) == len(box)
    assert all(len(p.layouts) == 1 or len(p.layouts) * len(p.options) <= size for p in pieces)
    ends = [piece.start + len(piece) for piece in pieces]
    assert [piece.start for piece in pieces] == [box.start, *ends[:-1]]
    numbers = [np.arange(piece.start, piece.start + len(piece)) for piece in pieces]
    found = [piece.strategies(some) for piece, some in zip(pieces, numbers, strict=True)]
    assert keys(Table.joined(found)) == keys(box.strategies(np.concatenate(numbers)))


def test_no_strategy_is_tried_twice_on_one_scale():
    """All fields together tell candidates apart."""
    found = candidates(training=[True, False], dtype="bf16,fp32", tp_tier=[None, 0, 1], mbs=[1, 2])
    assert len(set(keys(table_of(found)))) == len(found) > 1000


def test_largest_batches_of_different_limits_may_meet():
    """4 replicas run 8 sequences under limits of 8 and of 9: once for each limit."""
    found = candidates(gbs=[8, 9], batch="largest", dp=4, mbs=1, zero=0)
    assert [scale.global_batch_size for scale in found.scales] == [8, 9]
    first, second = np.split(np.array(keys(table_of(found)), dtype=object), 2)
    assert first.tolist() == second.tolist()
    assert set(map(tuple, first)) == set(keys(table_of(candidates(dp=4, mbs=1, zero=0))))


def test_every_candidate_has_values_of_the_space():
    """Of rejected ones, too: no field falls back to a usual value."""
    space: dict[str, Any] = {
        "placement": ["dp-tp-cp-pp", "pp-dp-tp-cp"],
        "tp": [1, 2, 3],
        "pp": [1, 2, 5],
        "vpp": [1, 3],
        "mbs": [2, 3],
        "schedule": ["interleaved", "1f1b"],
        "pp_tier": [1, 0],
        "zero": 0,
        "tp_overlap": "ring",
        "dtype": "fp16",
    }
    found = candidates(**space)
    assert found.illegal
    table = table_of(found)
    for name, values in space.items():
        field = {"mbs": "micro_batch_size"}.get(name, name)
        allowed = values if isinstance(values, list) else [values]
        assert {getattr(table.strategy(i), field) for i in range(0, len(table), 7)} <= {*allowed}


LEGAL: dict[str, list[Any]] = {
    "recompute": list(RECOMPUTES),
    "tp_exchange": [word for word in TP_EXCHANGES if word != "summa"],
    "tp_overlap": list(TP_OVERLAPS),
    "zero": [0, 1],
    **{n: [False, True] for n in ("tp_regather", "dp_overlap", "fused_activation", *OFFLOADS[1:])},
}
MODELS = {
    "learned": MODEL,
    "grouped": samples.llama(),
    "kinds": samples.model(samples.layer(count=2), samples.layer(count=1, mlp={"ffn": 512})),
    "calculon": Model.load("calculon-megatron-126m"),
    "experts": samples.deepseek(),
}
SYSTEMS = {
    "sample": SYSTEM,
    "h100": with_host(System.load("h100-sxm")),
    "calculon": System.load("calculon-a100-80g"),
    "rack": with_host(System.load("gb200-nvl72")),
}
STACKS = ("megatron-core-2025", "megatron-lm-2022", "calculon")


VALUES: dict[str, list[Any]] = {
    **LEGAL,
    "zero": [0, 1, 2, 3],
    "cp_exchange": ["ring", "all_gather"],
    "quantized_weights": [False, True],
    "recompute_layers": [None, 1, 2, 3, 4, 6],
    "recompute_parts": [("core_attention",), ("attention", "mlp_norm"), ("activation",)],
    "fsdp_reshard": [True, False],
    "fsdp_prefetch": [0, 1, 3],
    "optimizer": ["adamw", "sgd", "adafactor"],
    "expert_capacity": [None, 1.5],
    "expert_imbalance": [1.0, 1.5],
    "dispatch_dtype": ["dtype", "fp8"],
    "expert_overlap": [False, True],
    "lora_parts": [("attention",), ("attention", "mlp")],
    "offload_parts": [None, ("qkv",), ("activation", "core_attention")],
    "tp_exchange": list(TP_EXCHANGES),
    "summa_panels": [None, 2, 4],
}
REFUSED = ("lora_parts", "expert_capacity", "expert_imbalance")  # where they have no effect
FIGURES = ("step_time_s", "memory_reserved_bytes", "memory_offloaded_bytes", "mfu", "hfu")


def drawn_row(random: np.random.Generator, model: Model, index: int) -> dict[str, Any]:
    """A strategy of any kind."""
    row = {field: values[random.integers(len(values))] for field, values in VALUES.items()}
    row |= {name: value for name, value in NEUTRAL.items() if name in row and random.integers(4)}
    for name, (one, other) in {"tp": (1, 2), "cp": (1, 1), "dp": (1, 4), "pp": (1, 2)}.items():
        row[name] = int(random.choice([one, other]))
    row["ep"] = int(random.choice([1, 2])) if model.has_experts else 1
    if random.integers(4) == 0:
        row |= {"cp": 2, "stack": STACKS[0]}
    row["tp2"] = 2 if row["tp_exchange"] == "summa" and random.integers(2) else 1
    row |= {"training": bool(random.integers(3))}
    row |= {"stack": STACKS[index % 3] if row["cp"] == 1 else STACKS[0]}
    ranks = row["tp"] * row["tp2"] * row["cp"]
    row |= {"gpus": ranks * row["dp"] * row["pp"], "global_batch_size": 8}
    row |= {"micro_batch_size": int(random.choice([1, 2])), "dtype": "fp16", "vpp": 1}
    return row | {"offload_weights": bool(random.integers(2))}


@cache
def drawn_rows(architecture: str) -> list[dict[str, Any]]:
    """Strategies of any kind, for one model."""
    random = np.random.default_rng(7)
    return [drawn_row(random, MODELS[architecture], index) for index in range(600)]


def pairs(architecture: str, system: System, name: str) -> tuple[Table, Table]:
    """Legal strategies in which another value of a field changes nothing, and with that value."""
    model, rows = MODELS[architecture], drawn_rows(architecture)
    others = np.random.default_rng(8).integers(len(VALUES[name]), size=len(rows))
    columns = {field: [row[field] for row in rows] for field in rows[0]}
    changed = {name: [VALUES[name][other] for other in others]}
    one, other = (Table.of(model, told) for told in (columns, columns | changed))
    legal = np.logical_and.reduce([broken_rule(model, system, t) < 0 for t in (one, other)])
    one, other = one.take(legal), other.take(legal)
    idle = np.zeros(len(one), dtype=np.bool_)
    layers = most_layers_on_a_rank(model, one)
    for kind, where in kinds_of(model, one, layers=layers, panels=True):
        for training in (False, True):
            of_kind = replace(kind, training=training)
            rows_of_kind = where[one.training[where] == training]
            both = [idle_rows(of_kind, t.take(rows_of_kind), name) for t in (one, other)]
            idle[rows_of_kind] = both[0] & both[1]
    return one.take(idle), other.take(idle)


@pytest.mark.parametrize(
    ("architecture", "machine"),
    [
        *zip(MODELS, SYSTEMS, strict=False),
        ("learned", "rack"),
        ("grouped", "calculon"),
        ("kinds", "sample"),
        ("experts", "h100"),
    ],
)
def test_what_is_without_effect_changes_nothing(architecture, machine):
    """Times, memory and their parts are equal to the last bit, whatever the value."""
    model, system = MODELS[architecture], SYSTEMS[machine]
    with_experts = ("dispatch_dtype",) if model.has_experts else ("expert_overlap",)
    names = [name for name in EFFECTS if name not in (*REFUSED, *with_experts)]
    both = [pairs(architecture, system, name) for name in names]
    rows = [len(one) for one, _ in both]
    assert min(rows) > 0
    of_row = np.repeat(names, rows)
    found, again = (
        estimate_many(model, system, Table.joined(tables)) for tables in zip(*both, strict=True)
    )
    for figure in FIGURES:
        assert not {*of_row[getattr(found, figure) != getattr(again, figure)]}, figure
    for part in TIME_PARTS:
        assert not {*of_row[found.time_s[part] != again.time_s[part]]}, part
    for part in MEMORY_PARTS:
        assert not {*of_row[found.memory_bytes[part] != again.memory_bytes[part]]}, part


def test_what_has_an_effect_is_tried():
    """Every field but those without effect comes with all its values on a layout."""
    found = candidates(tp=2, pp=2, dp=2, mbs=1, vpp=1, placement="tp-cp-dp-pp")
    table = table_of(found)
    for name, values in LEGAL.items():
        assert len(set(getattr(table, name).tolist())) == len(values)
    for box in found.legal:
        combinations = keys(box.options.take(slice(None)), OPTION_FIELDS)
        regather = [c for c in combinations if c[OPTION_FIELDS.index("tp_regather")] is False]
        split = TP_EXCHANGES.index("rs_ag")
        assert {c[OPTION_FIELDS.index("tp_exchange")] for c in regather} == {split}


def test_a_field_without_effect_keeps_its_first_value():
    """On one replica nothing is sharded: the first stage of ZeRO, whichever it is."""
    for first, second in ((0, 1), (1, 0)):
        alone = table_of(candidates(dp=1, zero=[first, second]))
        assert {*alone.zero.tolist()} == {first}


def test_a_field_without_effect_keeps_a_value_that_can_be_had():
    """There is no ZeRO-4, and without a second tier nothing can be offloaded."""
    assert {*table_of(candidates(dp=1, zero=[4, 1])).zero.tolist()} == {1}
    plain = candidates(samples.system(), training=False, offload_optimizer=[True, False], mbs=1)
    assert not np.any(table_of(plain).offload_optimizer)
    only = candidates(dp=1, zero=4)
    assert {*table_of(only).zero.tolist()} == {4}


def test_other_rules_say_the_same_of_choices_and_of_rows():
    """Options and choices are checked apart from layouts; together they are the whole verdict."""
    layout = {"tp": [1, 2], "pp": [1, 2], "mbs": [1, 2]}
    found = candidates(samples.system(), zero=[0, 4], seq_len=[30, 64], dtype="bf16,fp16", **layout)
    table = table_of(found)
    refused = estimate_many(MODEL, samples.system(), table).refused >= 0
    legal = len(rows_of(found.legal))
    assert np.all(refused[legal:])
    assert 0 < np.count_nonzero(refused[:legal]) < legal


FIXED = {
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "vpp": 1,
    "micro_batch_size": 2,
    "gpus": 8,
    "global_batch_size": 16,
    "schedule": "1f1b",
    "seq_len": 16,
    "dtype": "fp16",
    "training": False,
    "attention": "multiquery",
    "stack": "calculon",
    "offload_weights": True,
    "tp_tier": 1,
}


@pytest.mark.parametrize("name", FIXED)
def test_fixing_a_field_is_filtering(name):
    """The candidates with that value, and no others."""
    space: dict[str, Any] = {
        "gpus": [8, 16] if name == "gpus" else 8,
        "global_batch_size": [8, 16],
        "seq_len": [32, 16],
        "dtype": ["bf16", "fp16"],
        "training": [True, False],
        "attention": ["model", "multiquery"],
        "stack": ["megatron-core-2025", "calculon"],
        "offload_weights": [False, True],
        "tp_tier": [None, 1],
        **{n: USUAL[n][0] for n in ("recompute", "tp_overlap", "zero", "placement")},
        **dict.fromkeys(("tp_regather", "dp_overlap"), True),
        **dict.fromkeys(("fused_activation", *OFFLOADS[1:]), False),
        "tp_exchange": "rs_ag",
    }
    if name not in ("stack", "dtype", "attention"):
        space |= {field: space[field][:1] for field in ("stack", "dtype", "attention")}
    whole = rows_by_name(candidates(**space))
    alone = rows_by_name(candidates(**space | {name: FIXED[name]}))
    place_of = FIELDS.index(name)
    if name == "tp_tier":  # where tp is 1 it does nothing, and the first value stays
        whole = {row for row in whole if row[FIELDS.index("tp")] > 1}
        alone = {row for row in alone if row[FIELDS.index("tp")] > 1}
    expected = {row for row in whole if row[place_of] == FIXED[name]}
    assert alone == expected
    assert 0 < len(expected) <= len(whole)


def rows_by_name(found: Candidates) -> set[tuple[Any, ...]]:
    """Legal candidates with words as words."""
    legal = sum(map(len, found.legal))
    table = found.strategies(np.arange(legal))
    columns = table.to_columns()
    plain = [
        np.nan_to_num(columns[n], nan=-1) if columns[n].dtype == float else columns[n]
        for n in FIELDS
    ]
    return set(zip(*(column.tolist() for column in plain), strict=True))


def test_a_schedule_that_chunks_contradict_is_refused_where_both_are_given():
    """Two chunks without interleaving: candidates, all refused by the rule for it."""
    assert count(MODEL, SYSTEM, gpus=8, gbs=8, pp=2, vpp=2, schedule="1f1b")[1].keys() == {
        "schedule"
    }
    implied, refused = count(MODEL, SYSTEM, gpus=8, gbs=8, pp=2, schedule="1f1b")
    assert implied > 0
    assert refused == {}


def test_more_replicas_than_sequences_are_counted_once():
    """8 replicas cannot share 4 sequences: refused, with one micro-batch and one placement."""
    found = candidates(gbs=4, dp=8, placement="all")
    assert (found.legal, [len(box.layouts) for box in found.illegal]) == ((), [1])
    _, refused = count(MODEL, SYSTEM, gpus=8, gbs=4, dp=8)
    assert refused == {"batch": len(found)}


@pytest.mark.parametrize(
    ("missing", "told"),
    [("gpus", "gpus: is missing: give it"), ("global_batch_size", r".*: give it \(gbs\)")],
)
def test_what_nothing_implies_must_be_given(missing, told):
    """One fault that names the field and what wants it."""
    given = {"gpus": 8, "global_batch_size": 8}
    del given[missing]
    with pytest.raises(InputError, match=f"^search: {told}$"):
        Candidates.of(MODEL, SYSTEM, Space.validated(given))


def test_the_length_of_a_sequence_may_come_from_the_model_or_the_space():
    """A model that names none needs one."""
    with pytest.raises(InputError, match="seq_len: is missing"):
        candidates(model=samples.llama(seq_len=None))
    given = candidates(model=samples.llama(seq_len=None), seq_len=[16, 64])
    assert {*table_of(given).seq_len.tolist()} == {16, 64}
    assert {*table_of(candidates(model=samples.llama(), mbs=1)).seq_len.tolist()} == {32}

"""Fields without effect: no other value changes an estimate, and the first one is kept."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import samples
from naive_search import OFFLOADS
from shardwise import Model, System, estimate_many
from shardwise.config.enums import Recompute, TpExchange, TpOverlap
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.effects import (
    EFFECTS,
    NEUTRAL,
    idle_rows,
    kinds_of,
    most_layers_on_a_rank,
)
from shardwise.planning.search.candidates import OPTION_FIELDS
from strategy_values import values_of
from tried_candidates import MODEL, SYSTEM, candidates, keys, table_of, with_host

pytestmark = pytest.mark.any_software

LEGAL: dict[str, list[Any]] = {
    "recompute": list(Recompute),
    "tp_exchange": [word for word in TpExchange if word != "summa"],
    "tp_overlap": list(TpOverlap),
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
WORDS = ("cp_exchange", "quantized_weights", "fsdp_reshard", "grad_sync", "dispatcher")
WORDS += ("dispatch_dtype", "expert_overlap", "tp_exchange", "weight_dtype", "master_dtype")
WORDS += ("moment_dtype", "gradient_dtype", "reduce_dtype")
WORDS += ("cuda_graphs",)
VALUES: dict[str, list[Any]] = {
    **LEGAL,
    **{name: values_of(COLUMNS[name]) for name in WORDS},
    "zero": [0, 1, 2, 3],
    "recompute_layers": [None, 1, 2, 3, 4, 6],
    "recompute_parts": [("core_attention",), ("attention", "mlp_norm"), ("activation",)],
    "fsdp_prefetch": [0, 1, 3],
    "optimizer": ["adamw", "sgd", "adafactor"],
    "expert_capacity": [None, 1.5],
    "expert_imbalance": [1.0, 1.5],
    "lora_parts": [("attention",), ("attention", "mlp")],
    "lora_targets": [None, ("q_proj",), ("o_proj", "down_proj")],
    "adapter": ["lora", "dora"],
    "base_weights": ["stack", "nf4", "int8"],
    "reference_model": ["usual", "copy"],
    "checkpoint_place": ["device", "host"],
    "data_lengths": [None, (8, 12, 20), (2, 5, 9)],
    "batching": ["padded", "packed"],
    "offload_parts": [None, ("qkv",), ("activation", "core_attention")],
    "summa_panels": [None, 2, 4],
    "expert_kernel": ["stack", "loop", "calls", "grouped"],
    "graph_scope": [None, ("attn",), ("attn", "mlp")],
    "cpu_optimizer": ["stack", "none", "unfused"],
    "host_threads": [None, 2],
    "offload_nvme": [False, True],
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
    legal = np.logical_and.reduce([first_violation(model, system, t) < 0 for t in (one, other)])
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
    of_experts = ("dispatch_dtype", "expert_kernel")
    with_experts = of_experts if model.has_experts else ("expert_overlap",)
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
        split = TpExchange.RS_AG.code
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

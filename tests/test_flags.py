"""The page on flags names for every field of a strategy what it changes: no more, no less."""

import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from shardwise import Model, Strategy, System, estimate
from shardwise.arrays import Bools, Floats
from shardwise.config.enums import (
    PLACEMENTS,
    AttentionKind,
    Loss,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import Host
from shardwise.engine.evaluate import evaluate
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import first_violation
from strategy_values import values_of_every

pytestmark = pytest.mark.any_software

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "flags.md"
HELD = (*MEMORY_PARTS, "offloaded")
OUTPUTS = (*TIME_PARTS, *(f"{part} bytes" for part in HELD), "parameters")
ALL = {
    "times": [part for part in TIME_PARTS if part != "other"],
    "memory": list(HELD),
}
SHORT_FOR = {"gpus": "dp", "sequence_parallel": "tp_exchange"}
LAYOUT = {"pp", "vpp", "schedule", "first_stage_layers", "last_stage_layers", "stage_layers"}
LAYOUT |= {"embedding_as_layer", "loss_as_layer"}
BASES = 1700

SPARE: dict[str, Any] = {
    "tp_hidden": 0.3,
    "tp_backward_async": True,
    "dp_contention": 0.5,
    "dp_tail": 0.1,
    "pp_hidden": 0.2,
}
STACKS = [
    samples.stack(flex_permute_traffic_factor=0.5, **SPARE, step_overhead=1e-3),
    samples.stack(
        **SPARE,
        attention_kernel="unfused",
        gradient_dtype="compute",
        host_launch=2e-6,
        compile="layers",
    ),
    samples.stack(
        name="scatters",
        pp_scatter_gather=True,
        weight_gradient_buffers=True,
        shared_graph_pools=False,
    ),
]
OWN: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8],
    "tp2": [1, 1, 2],
    "cp": [1, 2, 2],
    "ep": [1, 1, 2, 4],
    "etp": [1, 1, 2],
    "dp": [1, 2, 4],
    "vpp": [1, 2],
    "micro_batch_size": [1, 2, 4],
    "global_batch_size": [16, 32, 48],
    "seq_len": [16, 32],
    "dtype": ["fp16", "fp32"],
    "document_len": [None, None, 8],
    "data_lengths": [None, None, (4, 8, 20)],
    "batching": ["padded", "padding_free", "packed"],
    "quantization": ["none", "none", "none", "fp8_tensor"],
    "quantized_weights": [False, False, True],
    "dispatch_dtype": ["dtype", "dtype", "fp8"],
    "recompute_parts": [("core_attention",), ("mlp_norm",), ("activation", "moe")],
    "recompute_layers": [None, None, 1, 2],
    "zero": [0, 1, 2, 3],
    "dp_shard": [None, None, 1, 2],
    "fsdp_prefetch": [0, 1, 2],
    "loss": ["stack"] * 4 + [word for word in Loss if word != "stack"],
    "optimizer": ["adamw", "adamw-8bit", "adafactor", "muon"],
    "training": [True, True, False],
    "frozen": [(), (), (), ("mlp",), ("attention", "norms")],
    "lora_rank": [0, 0, 0, 0, 2],
    "lora_parts": [*[("attention", "mlp")] * 8, ("attention",)],
    "lora_targets": [None, None, ("q_proj", "down_proj"), ("k_proj", "gate_proj")],
    "adapter": ["lora", "lora", "dora"],
    "base_weights": ["stack", "stack", "nf4", "nf4_single", "int8", "int4", "fp32", "dtype"],
    "task": ["pretrain"] * 4 + ["sft", "dpo", "orpo", "kto", "rm"],
    "reference_model": ["usual", "usual", "copy", "copy_host", "precomputed"],
    "loss_tokens": [1.0, 1.0, 0.25],
    "checkpoint_place": ["device", "host"],
    "schedule": [None, None, None, None, "gpipe", "zb-h1", "zb-v", "dualpipe"],
    "first_stage_layers": [None, None, None, 1, 3],
    "last_stage_layers": [None, None, None, 1],
    "stage_layers": [None, None, (2, 4), (1, 3, 2), (1, 2, 1, 2)],
    "embedding_as_layer": [False, False, True],
    "loss_as_layer": [False, False, True],
    "expert_capacity": [None, None, 0.5, 2.0],
    "expert_imbalance": [1.0, 1.0, 1.5],
    "summa_panels": [None, None, 2, 16],
    "expert_kernel": ["stack", "stack", "loop", "calls", "grouped"],
    "cuda_graphs": ["none", "stack", "partial", "partial", "full"],
    "graph_scope": [None, ("attn",), ("mlp", "moe")],
    "compile": ["stack", "none", "loss", "layers", "whole"],
    "fused_activation": [True, False],
    "offload_weights": [True, False],
    "offload_activations": [True, False],
    "offload_parts": [None, None, ("qkv", "activation"), ("router", "mlp_norm")],
    "offload_optimizer": [True, False],
    "cpu_optimizer": ["stack", "none", "none", "unfused", "superoffload"],
    "host_threads": [None, None, 2],
    "offload_nvme": [False, False, True],
    "placement": [PLACEMENTS[0], "pp-dp-tp-cp", "dp-tp-cp-pp"],
    "extents": [None, None, "tp=1"],
    "attention_kernel": ["stack", "stack", "stack", "unfused", "efficient"],
    "tp_tier": [-1, -1, -1, 0, 1],
    "cp_tier": [-1, -1, -1, 0, 1],
    "dp_tier": [-1, -1, -1, 0, 1],
    "pp_tier": [-1, -1, -1, 0, 1],
    "stack": STACKS,
}
VALUES = values_of_every(OWN, without=("gpus",))
FULL_HEAD = ("fused_linear", "chunked_recompute")
"""Losses that need the full head on a rank."""


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
    rates = {"cores": 64, "memory_bandwidth": 1e12, "core_bandwidth": 2e9}
    host = Host(**rates, nvme_read=2e8, nvme_write=1e8)
    matrix = {"bf16": 100e12, "fp16": 100e12, "fp32": 50e12, "fp8": 200e12}
    slower = {"other_kernels": {"efficient": 2}}
    found = samples.system(network=network, memory=memory, matrix=matrix, attention=slower)
    return found.model_copy(update={"host": host})


def grouped() -> Model:
    """A gated layer with 2 key-value heads of 8, six times."""
    layer = samples.layer(
        count=6, attention={"kv_heads": 2}, mlp={"activation": "swiglu", "bias": False}
    )
    return samples.model(layer)


def experts() -> Model:
    """Two dense layers and four of experts, with latent attention."""
    told = samples.deepseek().to_dict()
    kinds = [kind | {"count": n} for kind, n in zip(told["layers"], (2, 4), strict=True)]
    return Model.validated(told | {"layers": kinds})


MODELS = {"dense": grouped(), "experts": experts()}


def is_unfused(row: dict[str, Any]) -> bool:
    """Whether attention is, which excludes context parallelism and 2D products."""
    words = row["attention_kernel"], row["stack"].attention_kernel
    return words[0] == "unfused" or (words[0] == "stack" and words[1] == "unfused")


def base(number: int) -> dict[str, Any]:
    """Strategy of a number: fields have values that have nothing to do with the others'.

    But for those that would be refused with them.
    """

    def drawn(name: str) -> int:
        return int.from_bytes(blake2b(f"{name} {number}".encode(), digest_size=4).digest())

    row = {name: values[drawn(name) % len(values)] for name, values in VALUES.items()}
    first = {name: values[0] for name, values in VALUES.items()}
    updates = row["offload_optimizer"] and row["training"]
    updates &= row["optimizer"] not in ("muon", "adamw-8bit")
    idle = {
        "cpu_optimizer": not updates,
        **dict.fromkeys(
            ("host_threads", "offload_nvme"), not updates or row["cpu_optimizer"] == "none"
        ),
        "recompute_parts": row["recompute"] != "selective",
        "recompute_layers": row["recompute"] == "none",
        "dp_shard": row["zero"] == 0 or row["dp"] % (row["dp_shard"] or 1) != 0,
        "fsdp_reshard": row["zero"] < 3,
        "schedule": row["vpp"] > 1 or row["pp"] == 1 or not row["training"],
        "stage_layers": row["pp"] * row["vpp"] != len(row["stage_layers"] or ()) or number % 3 == 2,
        "expert_imbalance": row["expert_capacity"] is not None,
        "quantized_weights": row["quantization"] == "none",
        "quantization": row["dtype"] == "fp32",
        "cp": row["dtype"] == "fp32" or is_unfused(row),
        "vpp": row["pp"] == 1,
        "offload_parts": not row["offload_activations"],
        "graph_scope": row["cuda_graphs"] != "partial",
        # with replicas, whatever changes when they wait for each other would change all times
        "data_lengths": row["document_len"] is not None or row["dp"] > 1,
        "lora_rank": not row["training"],
        "lora_parts": not (row["lora_rank"] and row["training"]),
        "lora_targets": not (row["lora_rank"] and row["training"])
        or row["lora_parts"] != ("attention", "mlp"),
        "adapter": not (row["lora_rank"] and row["training"]) or row["tp"] * row["tp2"] > 1,
        "base_weights": not row["training"]
        or not (row["lora_rank"] or row["frozen"])
        or row["quantization"] != "none",
        "task": not row["training"] or row["pp"] > 1,
        "reference_model": row["task"] not in ("dpo", "kto")
        or not row["training"]
        or row["pp"] > 1,
        "checkpoint_place": row["recompute"] != "full"
        or row["offload_activations"]
        or not row["training"],
        "frozen": row["lora_rank"] > 0 or not row["training"],
        "cp_exchange": row["tp"] * row["cp"] > 8,
        "attention": number % 2 == 1,
        "tp2": row["dtype"] == "fp32" or is_unfused(row),
        "loss": row["tp_exchange"] == "summa"
        or row["loss"] in (("loss_parallel",) if row["tp"] == 1 else FULL_HEAD),
    }
    if row["tp_exchange"] == "summa" and number % 2 == 0:
        beside = ("cp", "quantization", "quantized_weights", "lora_rank", "lora_parts")
        idle |= dict.fromkeys(beside, True)
        idle["tp_overlap"] = row["tp_overlap"] in ("ring", "pipe")
        idle["frozen"] = not row["training"]
        idle["summa_panels"] = row["tp"] * (1 if idle["tp2"] else row["tp2"]) == 1
    else:
        idle |= {"tp2": True, "summa_panels": True}
    spread = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")
    idle |= dict.fromkeys(spread, not idle["stage_layers"])
    if number % 3:
        idle |= dict.fromkeys(spread, True)
    if number % 4:
        idle |= {field: True for field in VALUES if field.endswith("_tier")}
    if number % 2 == 0:
        alone = ("ep", "etp", "expert_capacity", "expert_imbalance", "expert_overlap")
        idle |= dict.fromkeys((*alone, "dispatcher", "dispatch_dtype", "expert_kernel"), True)
    if number % 2:  # experts route the tokens of each rank
        row["tp_exchange"] = "rs_ag" if row["tp"] > 1 else row["tp_exchange"]
    return row | {name: first[name] for name, gone in idle.items() if gone}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["schedule"] = [
        row["schedule"] or ("interleaved" if row["vpp"] > 1 else "1f1b") for row in rows
    ]
    return columns


@cache
def legal_bases(kind: str) -> list[dict[str, Any]]:
    """Those of the bases that are legal for a model, about a third."""
    model = MODELS[kind]
    rows = [base(number) for number in range(BASES)]
    legal = first_violation(model, machine(), Table.of(model, columns_of(rows))) < 0
    return [row for row, keep in zip(rows, legal, strict=True) if keep]


def outputs(model: Model, table: Table) -> tuple[dict[str, Floats], Any, Any]:
    """All outputs of legal rows; the stage that times are of; the stage and moment of memory."""
    result = evaluate(model, machine(), table)
    counted = [count_parameters(model.with_attention(kind)).total for kind in AttentionKind]
    columns = result.time_s | {f"{part} bytes": getattr(result.memory, part) for part in HELD}
    columns["parameters"] = np.array(counted, dtype=np.float64)[table.attention]
    stage = np.stack(result.step.critical.work)
    peak = np.stack([result.peak_memory_stage, result.memory.part, result.memory.in_update])
    return columns, stage, peak


@cache
def of_bases(kind: str) -> tuple[dict[str, Floats], Any, Any]:
    """Outputs of the legal bases of a model."""
    return outputs(MODELS[kind], Table.of(MODELS[kind], columns_of(legal_bases(kind))))


@cache
def of_variants(kind: str) -> tuple[list[str], Any, tuple[dict[str, Floats], Any, Any]]:
    """Legal strategies that differ from a base in one field: that field, the base, their outputs.

    All fields stand in one table, as one of many rows takes hardly longer than one of few.
    """
    model, found = MODELS[kind], []
    for name, every in VALUES.items():
        values = [value for n, value in enumerate(every) if value not in every[:n]]
        for at, row in enumerate(legal_bases(kind)):
            found += [(name, at, row | {name: value}) for value in values if value != row[name]]
    table = Table.of(model, columns_of([row for _, _, row in found]))
    legal = np.flatnonzero(first_violation(model, machine(), table) < 0)
    base_of = np.array([at for _, at, _ in found])[legal]
    return [found[n][0] for n in legal], base_of, outputs(model, table.take(legal))


def changed(kind: str, name: str) -> set[str]:
    """Outputs that change, in at least one base of a model, when a field alone is changed."""
    fields, bases, (columns, stages, peaks) = of_variants(kind)
    at = np.flatnonzero([field == name for field in fields])
    now = {output: column[at] for output, column in columns.items()}
    stage_now, peak_now = stages[:, at], peaks[:, at]
    columns, stages, peaks = of_bases(kind)
    was = {output: column[bases[at]] for output, column in columns.items()}
    stage, peak = stages[:, bases[at]], peaks[:, bases[at]]
    if name in LAYOUT:  # what stands there changes: the stage is the one with the head, or not
        stage, stage_now = stage[-1:] > 0, stage_now[-1:] > 0
        peak, peak_now = peak[[0, 2]], peak_now[[0, 2]]
    if name == "recompute_layers":  # the stage is the one with the same layers, recomputed or not
        stage, stage_now = _layers(stage), _layers(stage_now)
        peak, peak_now = peak[[0, 2]], peak_now[[0, 2]]
    found = set()
    for output in OUTPUTS:
        same_stage, same_peak = (stage == stage_now).all(axis=0), (peak == peak_now).all(axis=0)
        followed = comparable(output, same_stage, same_peak)
        differs = ~np.isclose(was[output], now[output], rtol=1e-9, atol=0)
        if np.any(differs & followed):
            found.add(output)
    return found


def _layers(stages: Any) -> Any:
    """Layers of each kind on a stage, then the rest."""
    kinds = (len(stages) - 3) // 2
    return np.concatenate([stages[:kinds] + stages[kinds : 2 * kinds], stages[2 * kinds :]])


@cache
def observed(name: str) -> set[str]:
    """Of both models."""
    return set().union(*(changed(kind, name) for kind in MODELS))


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
    assert set().union(*promised().values()) == set(OUTPUTS)


@each_row("field", VALUES)
def test_a_field_changes_what_the_page_says(field: str) -> None:
    """Over some hundred strategies nothing else changes, and each part named does in one."""
    assert observed(field) == promised()[field]


def test_the_bases_use_every_value_of_every_field() -> None:
    """Enough of them are legal, and no value is left out."""
    rows = [row for kind in MODELS for row in legal_bases(kind)]
    assert len(rows) > BASES / 3
    for field, values in VALUES.items():
        assert all(any(row[field] == value for row in rows) for value in values), field


@each_row(("short", "field"), SHORT_FOR.items())
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
    table = Table.of(grouped(), columns_of(legal_bases("dense")) | {"stack": slow})
    times = evaluate(grouped(), machine(), table).time_s
    rest = sum(time for part, time in times.items() if part != "other")
    doublings = np.log2(np.ceil(table.gpus / 8))
    assert doublings.max() >= 3
    np.testing.assert_allclose(times["other"], 1e-3 + 0.1 * doublings * rest, rtol=1e-12)

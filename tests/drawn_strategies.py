"""Strategies of all kinds drawn at random, and models and machines for which most are legal."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

import samples
from profiles import examples
from shardwise import Model, System
from shardwise.config.enums import (
    PLACEMENTS,
    AttentionKind,
    CpExchange,
    GradSync,
    OffloadPart,
    Optimizer,
    Recompute,
    RecomputePart,
    TpExchange,
    TpOverlap,
)
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import first_violation

fast = examples(15)
SLACK = 1 + 1e-9
FLAGS = ("offload_weights", "offload_activations", "offload_optimizer")
WIDE = samples.layer(
    count=11,
    attention={"heads": 16, "kv_heads": 4, "head_dim": 64, "bias": "qkv"},
    mlp={"ffn": 4096, "activation": "swiglu"},
)
MODELS = [
    samples.model(WIDE, hidden=1024, vocab=32_001, seq_len=2048),
    samples.llama(layers=[WIDE], hidden=1024, vocab=501, seq_len=2048),
]


REAL = {"h2d_efficiency": 0.8, "d2h_efficiency": 0.6, "duplex": 1.2, "shared_by": 2}
"""A link to the host that is slower out than in, and slower still both ways at once."""


def with_host(machine: System, bandwidth: float, **host_memory: float) -> System:
    """A machine with a second memory tier, whose links take a part of the processor."""
    told = machine.to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": bandwidth, "host": host_memory or None}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    told["network"] = [tier | {"processor_share": 0.15} for tier in told["network"]]
    return System.validated(told)


MACHINES = [
    with_host(System.load("h100-sxm"), 50e9, reserved=1e11, **REAL),
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
ABSENT = ("mla_up", "moe", "experts", "shared_experts", "mixer_gate", "streams")
"""Recompute parts that the models above lack."""
PARTS = [part for part in RecomputePart if part not in ABSENT]
parts = st.sets(st.sampled_from(PARTS), min_size=1).map(lambda some: tuple(sorted(some)))
offloaded = st.none() | st.sets(st.sampled_from(list(OffloadPart)[:6]), min_size=1).map(tuple)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Strategies of the models above, most of them legal."""
    pp, dp = draw(st.sampled_from([1, 2, 3, 4, 5, 11])), draw(st.sampled_from([1, 2, 3, 8]))
    mbs = draw(st.sampled_from([1, 2]))
    recompute, zero = draw(st.sampled_from(Recompute)), draw(st.sampled_from([0, 1, 2, 3]))
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
        "attention": draw(st.sampled_from(AttentionKind)),
        "cp": draw(st.sampled_from([1, 1, 2, 4])),
        "cp_exchange": draw(st.sampled_from(CpExchange)),
        "recompute": recompute,
        "recompute_parts": draw(parts) if recompute == "selective" else ("core_attention",),
        "recompute_layers": draw(st.sampled_from([None, 1, 4])) if recompute != "none" else None,
        "zero": zero,
        "dp_shard": draw(st.sampled_from([None, 1, dp])) if zero else None,
        "fsdp_reshard": zero < 3 or draw(st.booleans()),
        "fsdp_prefetch": draw(st.sampled_from([0, 1, 2])),
        "grad_sync": draw(st.sampled_from(GradSync)),
        "optimizer": draw(st.sampled_from(Optimizer)),
        "loss_as_layer": draw(st.sampled_from([False, False, True])),
        "document_len": draw(st.sampled_from([None, 128])),
        "training": draw(st.sampled_from([True, True, True, False])),
        "tp_exchange": draw(st.sampled_from(TpExchange)),
        "tp_overlap": draw(st.sampled_from(TpOverlap)),
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
    keep = np.flatnonzero(first_violation(model, machine, table) < 0)
    assume(len(keep) > 0)
    return table.take(keep)


def changed(table: Table, **columns: object) -> Table:
    """Return the table with one value in each of some columns."""
    return replace(table, **{n: np.full(len(table), value) for n, value in columns.items()})

"""Calculon's files as fields of `Model`, `System` and `Strategy`.

What cannot be expressed is refused by name, never dropped; values that those types would refuse are
refused here under the keys of the file.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from shardwise.config.base import MOST_LAYERS
from shardwise.errors import Fault, allowed_words, refuse
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonMemory,
    CalculonModel,
    CalculonNetwork,
    CalculonProcessor,
    CalculonSystem,
)
from shardwise.units import LEAST_SHARE

DTYPES = {"float8": "fp8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
FLOAT8 = "fp8_tensor"
"""Quantization recipe that float8 is translated to and from."""
RECOMPUTES = {"full": "full", "attn_only": "selective", "none": "none"}
TP_EXCHANGES = {"ar": "all_reduce", "p2p_rs_ag": "p2p_rs_ag", "rs_ag": "rs_ag"}

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "p2p")
GIB, GB, TERA, GIGA, MEGA = 2**30, 1e9, 1e12, 1e9, 1e6
# Vocabulary of Calculon's parameter calculator, which its model files do not name.
VOCAB = 51_200
_SOURCE = "Calculon's file"
_LEAST_RATE = 1.0  # of a `System` [byte/s, FLOP/s]
# Flags and shardwise files go through `Model`, `System` and `Strategy` on their way to Calculon.
_THEIRS = "--reference calculon takes it where the strategy is an execution file without flags"


def model_fields(model: CalculonModel, name: str, source: str = "") -> dict[str, Any]:
    """The layers that Calculon assumes, with the vocabulary of its parameter calculator."""
    if model.num_blocks > MOST_LAYERS:
        problem = f"must be at most {MOST_LAYERS}"
        _refuse(iter([("num_blocks", model.num_blocks, problem)]), source)
    heads = {"heads": model.attn_heads, "kv_heads": model.attn_heads, "head_dim": model.attn_size}
    return {
        "name": name,
        "description": "Imported from a Calculon model: ungated, multi-head, no final norm.",
        "hidden": model.hidden,
        "vocab": VOCAB,
        "seq_len": model.seq_size,
        "layers": [
            {
                "count": model.num_blocks,
                "attention": heads | {"bias": "all"},
                "mlp": {"ffn": model.feedforward, "activation": "gelu", "bias": True},
            }
        ],
        "norm": "layernorm",
        "final_norm": False,
        "position": "learned",
        "tied_embeddings": True,
        "dropout": True,
        "sources": {
            "": {"kind": "published", "text": f"{_SOURCE} {name}"},
            "vocab": {"kind": "published", "text": "fixed in Calculon's parameter calculator"},
        },
    }


def system_fields(system: CalculonSystem, name: str, source: str = "") -> dict[str, Any]:
    """A Calculon system: curves by the size of an operation, latencies that add up."""
    _refuse(_system_faults(system), source)
    memory = [_memory("hbm", system.mem1)]
    if system.mem2.GiB:
        memory.append(_memory("host", system.mem2))
    accelerator = {
        "name": name,
        "multiprocessors": None,
        "matrix": _peaks(system.matrix),
        "vector": _peaks(system.vector),
        "memory": memory,
        "matmul_curve": _curves(system.matrix),
        "vector_curve": _curves(system.vector),
        "attention": None,
        "memory_bound": {"efficiency": 1, "launch": 0},
        "processing": system.processing_mode,
    }
    return {
        "name": name,
        "description": "Imported from a Calculon system.",
        "accelerator": accelerator,
        "node": {"accelerators": system.networks[0].size},
        "network": [_tier(i, network) for i, network in enumerate(system.networks)],
        "sources": {
            "": {"kind": "published", "text": f"{_SOURCE} {name}"},
            **{
                f"network.{i}.collectives.all_to_all": {
                    "kind": "assumed",
                    "text": "not in Calculon; as all_gather",
                }
                for i in range(len(system.networks))
            },
        },
    }


def _peaks(engine: Mapping[str, CalculonProcessor]) -> dict[str, float]:
    return {DTYPES[name]: unit.tflops * TERA for name, unit in engine.items()}


def _curves(engine: Mapping[str, CalculonProcessor]) -> dict[str, Any]:
    return {DTYPES[name]: _curve(unit.gflops_efficiency, GIGA) for name, unit in engine.items()}


def _curve(rows: tuple[tuple[float, float], ...], unit: float) -> dict[str, Any]:
    """Rows descend in the file; points ascend here."""
    return {"points": [[least * unit, share] for least, share in reversed(rows)]}


def _memory(name: str, memory: CalculonMemory) -> dict[str, Any]:
    return {
        "name": name,
        "capacity": memory.GiB * GIB,
        "bandwidth": memory.GBps * GB,
        "efficiency": _curve(memory.MB_efficiency, MEGA),
    }


def _tier(index: int, network: CalculonNetwork) -> dict[str, Any]:
    rates: dict[str, Any] = {
        "latency": network.latency,
        "latency_per_member": 0,
        "efficiency": {1: network.efficiency},
    }
    collectives = {}
    for kind in COLLECTIVES:
        scale, offset = getattr(network.ops, kind)
        collectives[kind] = rates | {"scale": scale, "offset": offset}
    return {
        "name": f"network {index}",
        "domain": network.size,
        "bandwidth": network.bandwidth * GB,
        "must_be_filled": network.must_be_filled,
        "processor_share": network.processor_usage,
        "join_exponent": 1,
        "collectives": collectives | {"all_to_all": collectives["all_gather"]},
    }


def _refuse(faults: Iterator[tuple[str, object, str]], source: str) -> None:
    """Raise what is wrong, if anything: fields, their values (`...`: not shown) and why."""
    found = [
        Fault(
            source=source,
            field=field,
            value=value,
            has_value=value is not ...,
            problem=f"{problem}; {_THEIRS}",
        )
        for field, value, problem in faults
    ]
    refuse(found)


def _system_faults(system: CalculonSystem) -> Iterator[tuple[str, object, str]]:
    for where, engine in (("matrix", system.matrix), ("vector", system.vector)):
        for name, unit in engine.items():
            yield from _engine_faults(f"{where}.{name}", name, unit)
    if "float32" not in system.vector:
        for name in system.matrix:
            if name in DTYPES and name not in system.vector:
                problem = "is missing; matrix has it, and vector no float32 to go by instead"
                yield f"vector.{name}", ..., problem
    for where, memory in (("mem1", system.mem1), ("mem2", system.mem2)):
        if memory.GiB:
            yield from _range(f"{where}.GiB", memory.GiB, GIB, 0)
            yield from _range(f"{where}.GBps", memory.GBps, GB, _LEAST_RATE)
            yield from _row_faults(f"{where}.MB_efficiency", memory.MB_efficiency)
    yield from _network_faults(system.networks)


def _network_faults(networks: tuple[CalculonNetwork, ...]) -> Iterator[tuple[str, object, str]]:
    for index, network in enumerate(networks):
        yield from _range(f"networks[{index}].bandwidth", network.bandwidth, GB, _LEAST_RATE)
        yield from _range(f"networks[{index}].efficiency", network.efficiency, 1, LEAST_SHARE)
    for index, (inner, outer) in enumerate(pairwise(networks), start=1):
        if outer.size <= inner.size or outer.size % inner.size:
            problem = f"must be a larger multiple of networks[{index - 1}].size {inner.size}"
            problem += ", as networks lie inside one another here"
            yield f"networks[{index}].size", outer.size, problem


def _engine_faults(
    where: str, name: str, unit: CalculonProcessor
) -> Iterator[tuple[str, object, str]]:
    if name not in DTYPES:
        problem = f"unknown datatype; {allowed_words(name, DTYPES)}"
        yield where, ..., problem
        return
    yield from _range(f"{where}.tflops", unit.tflops, TERA, _LEAST_RATE)
    yield from _row_faults(f"{where}.gflops_efficiency", unit.gflops_efficiency)


def _row_faults(
    where: str, rows: tuple[tuple[float, float], ...]
) -> Iterator[tuple[str, object, str]]:
    for row, (_, share) in enumerate(rows):
        yield from _range(f"{where}[{row}][1]", share, 1, LEAST_SHARE)


def _range(
    field: str, value: float, unit: float, least: float
) -> Iterator[tuple[str, object, str]]:
    if value * unit < least:
        yield field, value, f"must be at least {least / unit:g} here"
    elif math.isinf(value * unit):
        yield field, value, "is too large to compute with here"


def _types(datatype: str) -> dict[str, Any]:
    """Fields of a datatype. The rest of float8 is fp16, which Calculon's systems have."""
    if datatype != "float8":
        return {"dtype": DTYPES[datatype]}
    return {"dtype": "fp16", "quantization": FLOAT8, "quantized_weights": True}


def strategy_fields(execution: CalculonExecution) -> dict[str, Any]:
    """A Calculon execution, run by software that adds nothing of its own.

    float8 is the recipe with one scale per tensor and weights stored in that type alone. Only
    products of weights run in it; Calculon counts everything else in one byte, too.
    """
    return {
        "gpus": execution.num_procs,
        "tp": execution.tensor_par,
        "pp": execution.pipeline_par,
        "dp": execution.data_par,
        "vpp": execution.pipeline_interleaving,
        "micro_batch_size": execution.microbatch_size,
        "global_batch_size": execution.batch_size,
        **_types(execution.datatype),
        "attention": execution.attention_type,
        "recompute": RECOMPUTES[execution.activation_recompute],
        "zero": int(execution.optimizer_sharding),
        "training": execution.training,
        "tp_exchange": TP_EXCHANGES[execution.tensor_par_comm_type],
        "tp_overlap": execution.tensor_par_overlap,
        "tp_regather": execution.seq_par_ag_redo,
        "dp_overlap": execution.data_par_overlap,
        "fused_activation": execution.fused_activation,
        "offload_weights": execution.weight_offload,
        "offload_activations": execution.activations_offload,
        "offload_optimizer": execution.optimizer_offload,
        "tp_tier": execution.tensor_par_net,
        "pp_tier": execution.pipeline_par_net,
        "dp_tier": execution.data_par_net,
        "placement": "tp-cp-pp-dp",  # the order of Calculon's ranks
        "stack": "calculon",
    }

"""Calculon's files as fields of our nouns, and back.

Both ways work on plain mappings. What one side cannot say is refused by name, never dropped.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.formats.calculon_files import (
    CalculonExecution,
    CalculonMemory,
    CalculonModel,
    CalculonNetwork,
    CalculonProcessor,
    CalculonSystem,
)

__all__ = ["DTYPES", "model_fields", "strategy_fields", "system_fields"]

DTYPES = {"float8": "fp8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
RECOMPUTES = {"full": "full", "attn_only": "selective", "none": "none"}
EXCHANGES = {"ar": "all_reduce", "p2p_rs_ag": "p2p_rs_ag", "rs_ag": "rs_ag"}

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "p2p")
GIB, GB, TERA, GIGA, MEGA = 2**30, 1e9, 1e12, 1e9, 1e6
# Words in the table of Calculon's parameter calculator, which its model files do not name.
VOCABULARY = 51_200
_SOURCE = "Calculon's file"


def model_fields(model: CalculonModel, name: str) -> dict[str, Any]:
    """The layers that Calculon assumes, with the words that its parameter calculator adds."""
    heads = {"heads": model.attn_heads, "kv_heads": model.attn_heads, "head_dim": model.attn_size}
    return {
        "name": name,
        "description": "Imported from a Calculon model: ungated, multi-head, no final norm.",
        "hidden": model.hidden,
        "vocab": VOCABULARY,
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


def system_fields(system: CalculonSystem, name: str) -> dict[str, Any]:
    """A Calculon system: curves by the size of an operation, latencies that add up."""
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
    return {_dtype(name): unit.tflops * TERA for name, unit in engine.items()}


def _curves(engine: Mapping[str, CalculonProcessor]) -> dict[str, Any]:
    return {_dtype(name): _curve(unit.gflops_efficiency, GIGA) for name, unit in engine.items()}


def _dtype(name: str) -> str:
    if name in DTYPES:
        return DTYPES[name]
    problem = f"allowed: {', '.join(DTYPES)}"
    raise InputError(Fault(field="matrix", value=name, has_value=True, problem=problem))


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


def strategy_fields(execution: CalculonExecution) -> dict[str, Any]:
    """A Calculon execution, run by software that adds nothing of its own."""
    return {
        "gpus": execution.num_procs,
        "tp": execution.tensor_par,
        "pp": execution.pipeline_par,
        "dp": execution.data_par,
        "vpp": execution.pipeline_interleaving,
        "micro_batch_size": execution.microbatch_size,
        "global_batch_size": execution.batch_size,
        "dtype": DTYPES[execution.datatype],
        "attention": execution.attention_type,
        "recompute": RECOMPUTES[execution.activation_recompute],
        "zero": int(execution.optimizer_sharding),
        "training": execution.training,
        "tp_exchange": EXCHANGES[execution.tensor_par_comm_type],
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
        "stack": "calculon",
    }

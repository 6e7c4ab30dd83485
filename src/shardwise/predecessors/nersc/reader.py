"""NERSC's systems and models as fields of `System` and `Model`; see `docs/from/nersc.md`."""

from typing import Any

from shardwise.predecessors.nersc.files import NerscModel, NerscSystem

TERA, GIGA = 1e12, 1e9
EFFICIENCY = 0.8
"""Share of a peak that every kernel reaches (arXiv 2410.00273, section 3; layers.py)."""
LATENCY = 20e-6
"""Compute time of a kernel without work [s] (layers.py of the same)."""
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
_TYPES = ("fp16", "bf16")
_TYPED = ("matrix", "vector", "matmul_curve", "vector_curve")


def model_fields(model: NerscModel, name: str) -> dict[str, Any]:
    """An encoder of equal layers without embedding and head."""
    return {
        "name": name,
        "description": "Imported from a NERSC model: layers alone, each token sees all others.",
        "hidden": model.e,
        "vocab": 0,
        "seq_len": model.l,
        "layers": [
            {
                "count": model.depth,
                "attention": {
                    "heads": model.h,
                    "kv_heads": model.h,
                    "head_dim": model.e // model.h,
                    "causal": False,
                    "bias": "output",
                },
                "mlp": {"ffn": model.ffn, "activation": "gelu", "bias": True},
            }
        ],
        "norm": "layernorm",
        "final_norm": False,
        "position": "sinusoidal",
        "dropout": True,
        "left_out": ["embedding", "head"],
        "sources": {
            "": {"kind": "published", "text": f"NERSC's dictionary {name}"},
            "vocab": {"kind": "published", "text": "NERSC models layers alone"},
        },
    }


def system_fields(system: NerscSystem, name: str) -> dict[str, Any]:
    """A NERSC system: the larger of compute and memory time, latencies that add up."""
    curve = {"points": [[0, EFFICIENCY]]}
    vector = dict.fromkeys(_TYPES, system.vector_flops_fp16 * TERA)
    if system.vector_flops_fp32 is not None:
        vector["fp32"] = system.vector_flops_fp32 * TERA
    hbm = {
        "name": "hbm",
        "capacity": system.hbm_capacity * GIGA,
        "bandwidth": system.hbm_bandwidth * GIGA,
    }
    inside = _tier("nvlink", system.nvlink_bandwidth, system.nvlink_eff, system.nvlink_latency)
    between = _tier("ib", system.ib_bandwidth, system.ib_eff, system.ib_latency)
    links = None if system.nic_factor == 1 else round(system.nic_factor * system.nvlink_size)
    return {
        "name": name,
        "description": "Imported from a NERSC system.",
        "accelerator": {
            "name": name,
            "multiprocessors": None,
            "matrix": dict.fromkeys(_TYPES, system.matrix_flops_fp16 * TERA),
            "vector": vector,
            "memory": [hbm],
            "matmul_curve": dict.fromkeys(_TYPES, curve),
            "vector_curve": dict.fromkeys(vector, curve),
            "attention": None,
            "memory_bound": {"efficiency": 1, "launch": 0},
            "processing": "roofline",
            "compute_latency": LATENCY,
        },
        "node": {"accelerators": system.nvlink_size},
        "network": [
            inside | {"domain": system.nvlink_size},
            between | {"domain": None, "links_per_node": links},
        ],
        "sources": {
            "": {"kind": "published", "text": f"NERSC's file {name}"},
            **{f"accelerator.{field}.bf16": _ASSUMED["bf16"] for field in _TYPED},
            "node": _ASSUMED["node"],
            "network.0.collectives.all_to_all": _ASSUMED["all_to_all"],
            "network.1.collectives.all_to_all": _ASSUMED["all_to_all"],
        },
    }


_ASSUMED = {
    "bf16": {"kind": "assumed", "text": "as fp16; NERSC has one type of 16 bits"},
    "node": {"kind": "assumed", "text": "NERSC has no servers; one is an NVLink domain"},
    "all_to_all": {"kind": "assumed", "text": "not in NERSC; as all_gather"},
}


def _tier(name: str, bandwidth: float, efficiency: float, latency: float) -> dict[str, Any]:
    rates = {
        "latency": latency,
        "latency_per_member": latency,
        "efficiency": {1: efficiency},
    }
    return {
        "name": name,
        "bandwidth": bandwidth * GIGA,
        "join_exponent": 1,
        "collectives": dict.fromkeys(_COLLECTIVES, rates),
    }

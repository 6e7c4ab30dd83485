"""Stored results of NERSC's perf-estimates (see data/nersc/README.md) and its systems as ours."""

import gzip
import json
from functools import cache
from pathlib import Path

from shardwise import Model, System
from shardwise.predecessors.nersc.reference import NerscModel, NerscSystem

DATA = Path(__file__).parent / "data" / "nersc"
RUNS = json.loads(gzip.decompress((DATA / "runs.json.gz").read_bytes()))
BATCH = 4096


@cache
def nersc_model(name):
    """A model of its table."""
    return NerscModel.validated(RUNS["models"][name])


@cache
def nersc_system(name, domain=None):
    """A system file of its own, with domains of another size."""
    size = {} if domain is None else {"nvlink_size": domain}
    return NerscSystem.validated(RUNS["systems"][name] | size)


def our_model(name):
    """A model of its table as ours."""
    theirs = RUNS["models"][name]
    width = theirs["e"] // theirs["h"]
    heads = {"heads": theirs["h"], "kv_heads": theirs["h"], "head_dim": width}
    mlp = {"ffn": theirs["f"], "activation": "gelu", "bias": True}
    layer = {"count": theirs["depth"], "attention": heads | {"bias": "all"}, "mlp": mlp}
    return Model.load(
        {
            "name": name.lower().replace("_", "-"),
            "hidden": theirs["e"],
            "vocab": 51200,
            "seq_len": theirs["l"],
            "layers": [layer],
            "norm": "layernorm",
            "position": "learned",
            "dropout": True,
        }
    )


def our_system(name, domain=8):
    """A system file of its own as our system: one kernel rate, no overlap, latencies per hop."""
    theirs = RUNS["systems"][name]
    vector = {kind: f"{theirs[f'vector_flops_{kind}']} TFLOP/s" for kind in ("fp16", "fp32")}
    return System.load(
        {
            "name": f"nersc-{name.lower()}",
            "accelerator": {
                "name": name,
                "multiprocessors": None,
                "matrix": {"fp16": f"{theirs['matrix_flops_fp16']} TFLOP/s"},
                "vector": vector,
                "memory": [
                    {
                        "name": "hbm",
                        "capacity": f"{theirs['hbm_capacity']} GB",
                        "bandwidth": f"{theirs['hbm_bandwidth']} GB/s",
                    }
                ],
                "matmul_curve": {"fp16": {"points": [[0, 0.8]]}},
                "attention": None,
                "memory_bound": {"efficiency": 1, "launch": "20 us"},
                "processing": "roofline",
            },
            "node": {"accelerators": domain},
            "network": [_tier(theirs, "nvlink", domain), _tier(theirs, "ib", None)],
        }
    )


def _tier(theirs, name, domain):
    latency = f"{theirs[f'{name}_latency'] * 1e6:g} us"
    rates = {
        "latency": latency,
        "latency_per_member": latency,
        "efficiency": {1: theirs[f"{name}_eff"]},
    }
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    return {
        "name": name,
        "domain": domain,
        "bandwidth": f"{theirs[f'{name}_bandwidth']} GB/s",
        "join_exponent": 1,
        "collectives": dict.fromkeys(kinds, rates),
    }

"""Samples of a machine whose rates are known: what its system says of each benchmark."""

import json
from pathlib import Path
from typing import Any

from shardwise.config.system import System
from shardwise.validate.calibrate.predictions import predictions
from shardwise.validate.calibrate.tables import table_of

MACHINE = {"device": "cpu", "name": "Made Up 1", "memory_bytes": 64e9, "cores": 4, "ranks": 2,
           "local_ranks": 2, "threads": 2, "torch": "2.13", "on": "2026-11-27"}  # fmt: skip
LAUNCH_US = 2.0


def true_system(**chip: Any) -> System:
    """A server of two ranks with two threads each."""
    record = System.load("cpu-server").to_dict()
    one = record["accelerator"]
    one |= {"multiprocessors": 2, "matrix": {"fp32": 190e9}, "vector": {"fp32": 12e9}}
    one["matmul"] = {
        "fp32": one["matmul"]["fp32"]
        | {"efficiency": 0.95, "fill_tiles": 0.01, "weight_grad_share": 0.6}
    }
    one["memory"][0] |= {"bandwidth": 10e9, "shared_bandwidth": None}
    one["memory_bound"] = {"efficiency": 1.0, "launch": 1e-6}
    record["host"] |= {"cores": 4}
    for rates in record["network"][0]["collectives"].values():
        rates |= {"latency": 2.5 * rates["latency"], "efficiency": {2: 0.21}}
    record["accelerator"] = one | chip
    return System.validated(record, source="true")


def samples_of(system: System, path: Path, *, noise: tuple[float, ...] = (1.0,)) -> Path:
    """Write what benchmarks on a system would measure, once for each factor of noise."""
    rows: dict[str, list[dict[str, Any]]] = {
        "train_gemm": [
            {"layout": layout, "m": m, "n": n, "k": k, "groups": 1, "accumulate": 0,
             "out_dtype": "fp32", "dtype": "fp32"}
            for layout in ("TN", "NN", "NT")
            for m in (128, 512, 2048) for n in (256, 1024, 4096) for k in (256, 1024)
        ],
        "elementwise": [
            {"kernel": name, "bytes": 2**p, "flops": flops * 2**p // 8}
            for name, flops in (("copy", 0), ("norm", 8)) for p in (14, 18, 20, 22, 24, 26, 29)
        ],
        "collective": [
            {"op": op, "nodes": 1, "gpus_per_node": 2, "size_bytes": 2**p}
            for op in ("all_reduce", "all_gather", "p2p") for p in range(10, 27, 2)
        ],
    }  # fmt: skip
    lines = [json.dumps({"machine": MACHINE})]
    for kind, some in rows.items():
        wanted = [row | {"gpu": "x", "latency_us": 1.0} for row in some]
        (found,) = predictions(table_of("made", kind, wanted), {"x": system})
        for number, factor in enumerate(noise):
            for row, us in zip(some, found.predicted_us.tolist(), strict=True):
                more = 0.0 if kind == "collective" else LAUNCH_US
                one = {"kind": kind, **row, "us": us * factor + more, "round": number}
                lines.append(json.dumps(one))
    lines.append(json.dumps({"kind": "launch", "call": "add", "us": LAUNCH_US, "round": 0}))
    lines.append(json.dumps({"kind": "launch", "call": "linear", "us": 27.0, "round": 0}))
    alone = {"kind": "alone", "kernel": "copy", "bytes": 2**29, "flops": 0}
    lines.append(json.dumps(alone | {"us": 2**29 / 15e9 * 1e6, "round": 0}))
    update = {"kind": "optimizer", "place": "device", "elements": 10**6, "round": 0}
    lines.append(json.dumps(update | {"us": 28 * 10**6 / 16e9 * 1e6}))
    refused = {"kind": "train_attention", "kernel": "x", "refused": "no", "round": 0}
    lines.append(json.dumps(refused))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def accelerator_samples(system: System, path: Path, *, slower: float) -> Path:
    """Write what benchmarks on 8 accelerators would measure that are slower by a factor."""
    machine = MACHINE | {"device": "cuda", "name": "Made Up 2", "cores": 96, "ranks": 8}
    machine |= {"local_ranks": 8, "threads": 12}
    attention = [
        {"kernel": kernel, "dtype": dtype, "direction": direction, "batch": 1, "seq": seq,
         "heads": 8, "kv_heads": 8, "head_dim": 128, "head_dim_v": 128}
        for kernel, dtype in (("cudnn", "bf16"), ("flash2", "bf16"), ("efficient", "bf16"),
                              ("efficient", "fp32"))
        for direction in ("fwd", "bwd") for seq in (1024, 4096, 16384)
    ]  # fmt: skip
    factors = {"cudnn": 1.0, "flash2": 1.3, "efficient": 1.6}
    wanted = [row | {"gpu": "x", "kernel": "best", "latency_us": 1.0} for row in attention]
    (found,) = predictions(table_of("made", "train_attention", wanted), {"x": system})
    rows = [
        {"kind": "train_attention", **row, "us": us * slower * factors[str(row["kernel"])]}
        for row, us in zip(attention, found.predicted_us.tolist(), strict=True)
    ]
    products = [
        {"layout": layout, "m": m, "n": n, "k": 4096, "groups": 1, "accumulate": 0,
         "out_dtype": "bf16", "dtype": "bf16"}
        for layout in ("TN", "NN", "NT") for m in (1024, 8192) for n in (1024, 4096, 14336)
    ]  # fmt: skip
    wanted = [row | {"gpu": "x", "latency_us": 1.0} for row in products]
    (found,) = predictions(table_of("made", "train_gemm", wanted), {"x": system})
    rows += [
        {"kind": "train_gemm", **row, "us": us * slower}
        for row, us in zip(products, found.predicted_us.tolist(), strict=True)
    ]
    size = 2**28
    rates = {"h2d": 50e9, "d2h": 40e9, "both": 33e9}
    rows += [
        {"kind": "host_copy", "direction": way, "bytes": size, "us": size / rate * 1e6}
        for way, rate in rates.items()
    ]
    rows.append({"kind": "optimizer", "place": "host", "elements": 2**26,
                 "us": 28 * 2**26 / (12 * 15e9) * 1e6})  # fmt: skip
    rows.append({"kind": "launch", "call": "linear", "us": 9.0})
    lines = [{"machine": machine}, *(row | {"round": 0} for row in rows)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path

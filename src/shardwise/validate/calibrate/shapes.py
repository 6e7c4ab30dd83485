"""Tables of kernels from files of other tools: output of nccl-tests, and systems with tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.config import files
from shardwise.config.system import ShapeTable, System
from shardwise.errors import InputError
from shardwise.validate.calibrate.tables import KernelTable, table_of

_OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Collectives by the names of nccl-tests' programs, `all_reduce_perf` ..., longest names first."""
_PROGRAM = re.compile(rf"({'|'.join(_OPS)})(?:_perf)?")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\b")
_LAYOUTS = {"any": "TN", "forward": "TN", "input_grad": "NN", "weight_grad": "NT"}
_FP32, _ADDED = 4, 8  # bytes moved per element of a result: written, and read before
_HERE = "here"


@dataclass(slots=True)
class _Run:
    """Output of one program."""

    op: str | None
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank."""

    def columns(
        self, path: str, size: int, redop: str, rates: tuple[float, float]
    ) -> dict[str, Any]:
        """Columns of a row; of a program without a name by its reduction and rates."""
        nodes, ranks = len(set(self.hosts.values())), len(self.hosts)
        if not ranks or ranks % nodes:
            problem = "does not list its ranks (# Rank ...), as many on each server"
            raise InputError.at(path, problem)
        op = self.op
        if op is None and redop != "none" and rates[0] > 0:
            op = "all_reduce" if rates[1] / rates[0] >= 1 else "reduce_scatter"
        if op is None:
            allowed = ", ".join(_OPS)
            problem = f"does not say its collective; name the file after it: {allowed}"
            raise InputError.at(path, problem)
        return {"op": op, "nodes": nodes, "gpus_per_node": ranks // nodes, "size_bytes": size}


def nccl_tests_table(paths: Sequence[str]) -> KernelTable:
    """Read the output of nccl-tests: times out of place, of one program or several in a file.

    Raises
    ------
    InputError
        If a file has no rows, or does not say its ranks or collective.
    """
    rows = [row for path in paths for row in _nccl_rows(path)]
    return table_of(",".join(paths), "collective", rows)


def _nccl_rows(path: str) -> list[dict[str, Any]]:
    named = _PROGRAM.search(Path(path).name)
    run, found = _Run(op=_OPS[named[1]] if named else None), []
    for line in files.read_text(path).splitlines():
        if line.startswith("# nThread"):
            run = _Run(op=run.op)
        elif rank := _RANK.match(line):
            run.hosts[int(rank[1])] = rank[2]
        elif line.startswith("#") and "starting" in line and (program := _PROGRAM.search(line)):
            run.op = _OPS[program[1]]
        elif (row := _ROW.match(line)) and int(row[1]) and float(row[6]):
            rates = float(row[7]), float(row[8])
            columns = run.columns(path, int(row[1]), row[4], rates)
            found.append(columns | {"gpu": _HERE, "latency_us": float(row[6])})
    if not found:
        raise InputError.at(path, "has no rows of nccl-tests: size, count, type, redop, root, time")
    return found


def tables_of_shapes(path: str) -> list[KernelTable]:
    """Tables of the shapes of a system, such as SimuMax's: time = FLOPs / (share x peak).

    Raises
    ------
    InputError
        If the file is no system, or has no tables of shapes.
    """
    chip = System.load(path).accelerator
    products = [
        row
        for kind in ("matmul_table", "grouped_table")
        for dtype, table in getattr(chip, kind).items()
        for row in _product_rows(str(dtype), table, chip.matrix[dtype], kind == "grouped_table")
    ]
    attention = [
        row
        for dtype, table in chip.attention_table.items()
        for row in _attention_rows(str(dtype), table, chip.matrix[dtype])
    ]
    kinds = {"train_gemm": products, "train_attention": attention}
    if not products and not attention:
        raise InputError.at(path, "has no tables of shapes and is no folder of tables")
    return [table_of(path, kind, rows) for kind, rows in kinds.items() if rows]


def _shapes(table: ShapeTable) -> Iterator[tuple[str, Mapping[str, float], float]]:
    """Phase, sizes and share of the peak of each measured shape."""
    part = 0.5 if table.counts_all_pairs else 1.0
    for phase, rows in table.rows.items():
        for *sizes, share in rows:
            yield phase, dict(zip(table.sizes, sizes, strict=True)), share * part


def _product_rows(
    dtype: str, table: ShapeTable, peak: float, grouped: bool
) -> Iterator[dict[str, Any]]:
    if dtype not in ("bf16", "fp16", "fp32"):
        return
    kinds = {"weight_grad": "grouped_bwd_grad_w", "input_grad": "grouped_bwd_grad_act"}
    for phase, of, share in _shapes(table):
        groups = of.get("groups", of.get("batch", 1.0))
        size = of.get("output_bytes", _FP32 if dtype == "fp32" else _FP32 / 2)
        flops = 2 * groups * of["m"] * of["n"] * of["k"]
        layout = kinds.get(phase, "grouped_fwd") if grouped else _LAYOUTS[phase]
        wide = size >= _FP32
        yield {"layout": layout, "dtype": dtype, "out_dtype": "fp32" if wide else dtype} | {
            "gpu": _HERE,
            "accumulate": float(size >= _ADDED),
            "groups": groups,
            **{name: of[name] for name in ("m", "n", "k")},
            "latency_us": 1e6 * flops / (share * peak),
        }


def _attention_rows(dtype: str, table: ShapeTable, peak: float) -> Iterator[dict[str, Any]]:
    if dtype not in ("bf16", "fp16", "fp32"):
        return
    names = {"sequences": "batch", "seq_len": "seq", "v_head_dim": "head_dim_v"}
    for phase, of, share in _shapes(table):
        backward = phase != "forward"
        d, v = of["head_dim"], of["v_head_dim"]
        pairs = of["sequences"] * of["heads"] * of["seq_len"] ** 2 / 2
        flops = 2 * pairs * (3 * d + 2 * v if backward else d + v)
        yield {names.get(name, name): np.ceil(value) for name, value in of.items()} | {
            "gpu": _HERE,
            "dtype": dtype,
            "direction": "bwd" if backward else "fwd",
            "latency_us": 1e6 * flops / (share * peak),
        }

"""Tables of kernels for a calibration, from a trace of PyTorch's profiler with record_shapes.

Operators have the shapes of their operands, and device kernels the number of the operator that
launched them ("External id"); a trace of a processor has the time of the operators alone. Kernels
of NCCL have their message and group. Equal kernels are one row: the median, and of collectives, in
which ranks also wait for others, a low quantile.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.launchers.kineto.events import trace_events
from shardwise.validate.calibrate.tables import KernelTable, table_of

_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Byte": 1, "Char": 1, "Long": 8, "Int": 4}
_OPERANDS = {"aten::mm": 0, "aten::addmm": 1}
"""Place of the first operand of a product."""
_ATTENTION = re.compile(r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(\w*)")
_CAUSAL = {"flash": (4, 11), "efficient": (6, 12), "cudnn": (6, 13)}
"""Place of is_causal among the arguments of a kernel, forward and backward."""
_COLLECTIVES = (
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"all_?gather"), "all_gather"),
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?to_?all"), "all_to_all"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"^(send|recv)"), "p2p"),
)
_TRANSFER = 0.2
_MATRIX, _HEADS = 2, 4

Rows = dict[tuple[tuple[str, Any], ...], list[float]]


def tables_of_trace(path: str | Path, system: System) -> list[KernelTable]:
    """Read products, causal attention and collectives of a trace.

    Parameters
    ----------
    system
        System with the number of accelerators of a server.

    Raises
    ------
    InputError
        If the file is no trace or has none of these with its shapes.
    """
    operators: dict[int, tuple[str, dict[str, Any], float]] = {}
    kernels: dict[int, float] = defaultdict(float)
    rows: dict[str, Rows] = {"train_gemm": {}, "train_attention": {}, "collective": {}}
    for event in trace_events(path, {}):
        args, duration = _timed(event)
        category, number = event.get("cat"), args.get("External id")
        if category == "cpu_op" and isinstance(number, int):
            found = _operator(str(event.get("name")), args)
            if found is not None:
                operators[number] = (*found, duration)
        elif category == "kernel":
            if "Collective name" in args:
                _add(rows["collective"], _collective(args, system), duration)
            elif isinstance(number, int):
                kernels[number] += duration
    for number, (kind, columns, own_us) in operators.items():
        us = kernels.get(number, 0.0) if kernels else own_us
        if us > 0:
            _add(rows[kind], columns, us)
    tables = [_table(str(path), kind, some) for kind, some in rows.items() if some]
    if not tables:
        problem = "has no products, attention or collectives with shapes: use record_shapes=True"
        raise InputError.at(path, problem)
    return tables


def _timed(event: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Arguments of an event and its time [us]; none of what is no event with a time."""
    args, duration = event.get("args"), event.get("dur")
    if not isinstance(args, dict) or not isinstance(duration, (int, float)) or duration <= 0:
        return {}, 0.0
    return args, float(duration)


def _add(rows: Rows, columns: Mapping[str, Any] | None, us: float) -> None:
    if columns is not None:
        rows.setdefault(tuple(columns.items()), []).append(us)


def _table(path: str, kind: str, rows: Rows) -> KernelTable:
    level = _TRANSFER if kind == "collective" else 0.5
    found = [dict(key) | {"gpu": "here", "latency_us": float(np.quantile(us, level))}
             for key, us in rows.items()]  # fmt: skip
    return table_of(path, kind, found)


def _operator(name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Kind of table and columns of an operator; None if it is another one, or has no shapes."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    try:
        if name in _OPERANDS:
            return "train_gemm", _product(dims, types, args, _OPERANDS[name])
        if match := _ATTENTION.fullmatch(name):
            columns = _attention(match[1], match[2], dims, types, args)
            return None if columns is None else ("train_attention", columns)
    except (KeyError, IndexError, ValueError, TypeError):  # an operand without shape or of ints
        return None
    return None


def _product(dims: Any, types: Any, args: Mapping[str, Any], at: int) -> dict[str, Any]:
    (m, k), (_, n) = dims[at], dims[at + 1]
    dtype = _DTYPES[types[at]]
    strides = args.get("Input Strides") or [[]] * (at + _MATRIX)
    turned = [len(one) == _MATRIX and one[0] == 1 < one[1] for one in strides[at : at + _MATRIX]]
    layout = "NT" if turned[0] else "NN" if strides[at + 1] and not turned[1] else "TN"
    return {"layout": layout, "m": m, "n": n, "k": k, "groups": 1, "accumulate": 0} | {
        "dtype": dtype,
        "out_dtype": dtype,
    }


def _attention(
    kernel: str, rest: str, dims: Any, types: Any, args: Mapping[str, Any]
) -> dict[str, Any] | None:
    backward = rest.endswith("backward")
    values = args.get("Concrete Inputs") or []
    place = _CAUSAL[kernel][backward] - (rest.startswith("_for_cpu") and backward) * 4
    if len(values) <= place or str(values[place]) != "True":
        return None
    q, k, v = dims[1:4] if backward else dims[:3]
    if len(q) != _HEADS or q[2] != k[2]:
        return None
    return {
        "direction": "bwd" if backward else "fwd",
        "dtype": _DTYPES[types[1 if backward else 0]],
        "batch": q[0],
        "seq": q[2],
        "heads": q[1],
        "kv_heads": k[1],
        "head_dim": q[3],
        "head_dim_v": v[3],
    }


def _collective(args: Mapping[str, Any], system: System) -> dict[str, Any] | None:
    """Columns of a kernel of NCCL, whose group is on the servers that its ranks say."""
    name = str(args["Collective name"]).lower()
    op = next((op for pattern, op in _COLLECTIVES if pattern.search(name)), None)
    size = _BYTES.get(str(args.get("dtype")), 0)
    elements = [args.get(f"{way} msg nelems", 0) for way in ("In", "Out")]
    members = args.get("Group size")
    if op is None or not size or not isinstance(members, int) or members < _MATRIX:
        return None
    ranks = [int(one) for one in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))]
    inside = system.node.accelerators
    nodes = len({rank // inside for rank in ranks}) if len(ranks) == members else 0
    nodes = nodes or -(-members // inside)
    if members % nodes:
        return None
    largest = max(one for one in elements if isinstance(one, int))
    return {"op": op, "nodes": nodes, "gpus_per_node": members // nodes} | {
        "size_bytes": size * largest
    }

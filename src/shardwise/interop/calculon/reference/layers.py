"""Statistics of every operation of a block: what Calculon's `-l` adds (section 1.11).

Calculon 0.1.0, commit caa4b11.
"""

from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.calculon.files import CalculonModel, CalculonSystem
from shardwise.interop.calculon.reference.block import (
    Exchange,
    Pass,
    operation_times,
    operations_of,
)
from shardwise.interop.calculon.reference.columns import Columns
from shardwise.interop.calculon.reference.fused import FUSED_NAMES, MULTIQUERY_NAMES
from shardwise.interop.calculon.reference.operations import NAMES, Operations
from shardwise.interop.calculon.reference.optimizer import optimizer_pass, state_bytes
from shardwise.interop.calculon.reference.shapes import Shapes

__all__ = ["layers_of"]


def layers_of(
    model: CalculonModel, system: CalculonSystem, columns: Columns
) -> list[dict[str, Any]]:
    """The 48 fields of each operation of a table of one row; empty places are left out."""
    operations, shape = operations_of(model, columns)
    times = operation_times(operations, shape, columns, system)
    optimizer = optimizer_pass(operations.weights, columns, system)
    b, weights = columns.element_bytes, operations.weights
    fields: dict[str, Floats] = {
        "inputs_size": operations.inputs,
        "outputs_size": operations.outputs,
        **_pass("fw", times.fw),
        **_exchanges("fw_tp_comm", times.fw_tp, shape),
        **_pass("agrad", times.agrad),
        **_exchanges("bw_tp_comm", times.agrad_tp, shape),
        **_pass("wgrad", times.wgrad),
        **_exchanges("recomm", times.recomm_late, shape),
        **_pass("optim", optimizer),
        "weight": b * weights,
        "activation": operations.activation_bytes,
        "weight_grad": b * weights / columns.optimizer_shards,
        "activation_grad": operations.gradient_bytes,
        "optimizer": state_bytes(b) * weights / columns.optimizer_shards,
    }
    return [
        {"name": name} | {field: float(values[place, 0]) for field, values in fields.items()}
        for place, name in _names(operations, shape)
    ]


def _names(operations: Operations, shape: Shapes) -> list[tuple[int, str]]:
    """Places that are not empty, and what Calculon calls them."""
    names = dict(enumerate(NAMES))
    if shape.fused[0]:
        names |= FUSED_NAMES
        names |= MULTIQUERY_NAMES if shape.multiquery[0] else {}
        used = operations.inputs[:, 0] > 0
        names = {place: name for place, name in names.items() if used[place]}
    return sorted(names.items())


def _pass(name: str, work: Pass) -> dict[str, Floats]:
    intensity = np.divide(
        work.flops, work.mem_accessed, out=np.zeros_like(work.flops), where=work.mem_accessed > 0
    )
    return {
        f"{name}_flops": work.flops,
        f"{name}_mem_accessed": work.mem_accessed,
        f"{name}_arithmetic_intensity": intensity,
        f"{name}_processing_time": work.time,
    }


def _exchanges(name: str, pair: tuple[Exchange, Exchange], shape: Shapes) -> dict[str, Floats]:
    """A tile of a fused product's communication is a T-th of it."""
    found = {}
    tiles = np.where(shape.fused, shape.tp, 1)
    for field in ("tile", "size", "time", "time_exposed"):
        for kind, exchange in zip(("base", "edge"), pair, strict=True):
            values = {
                "tile": exchange.size / tiles,
                "size": exchange.size,
                "time": exchange.time,
                "time_exposed": exchange.exposed,
            }
            found[f"{kind}block_{name}_{field}"] = values[field]
    return found

"""Calculon's 96 statistics and its 48 fields of each operation (section 1.11).

Calculon 0.1.0, commit caa4b11. Names are Calculon's. Units: seconds, bytes, FLOP, byte/s.
"""

from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.predecessors.calculon.files import DATATYPES, CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference.block import (
    Communication,
    Pass,
    operation_times,
    operations_of,
    optimizer_pass,
    state_bytes,
)
from shardwise.predecessors.calculon.reference.columns import Columns
from shardwise.predecessors.calculon.reference.memory import MemoryComponents
from shardwise.predecessors.calculon.reference.operations import NAMES, Operations, Shapes
from shardwise.predecessors.calculon.reference.step import Batch
from shardwise.predecessors.calculon.reference.tensor_parallel import FUSED_NAMES, MULTIQUERY_NAMES
from shardwise.predecessors.calculon.reference.times import TERA

_PASS = ("flops", "flops_time", "mem_accessed", "mem_time", "time")
_PARTS = (
    ("weights", "weight_space"),
    ("activations", "act_space"),
    ("checkpoints", "act_checkpoint_size"),
    ("activation_gradients", "act_grad_space"),
    ("weight_gradients", "weight_grad_space"),
    ("optimizer", "optimizer_space"),
)


def _stat_fields() -> tuple[str, ...]:
    def block(name: str) -> list[str]:
        return [f"block_{name}_{field}" for field in _PASS]

    def communication(name: str) -> list[str]:
        return [f"{kind}block_{name}{end}" for end in ("", "_exposed") for kind in ("base", "edge")]

    return (
        *block("fw"),
        *communication("fw_tp_time"),
        *block("re"),
        *communication("recomm_time"),
        *block("agrad"),
        *communication("agrad_tp_time"),
        *block("wgrad"),
        *block("optim"),
        *(
            f"{kind}block_{n}_size"
            for n in ("fw_tp", "bw_tp", "recomm")
            for kind in ("base", "edge")
        ),
        "block_fw_pp_size",
        "block_bw_pp_size",
        "block_dp_size",
        "tp_bw_overlap_req",
        "dp_bw_overlap_req_chunk",
        "dp_bw_overlap_req_tail",
        "block_weight_space",
        "block_act_working_space",
        "block_act_storage_space",
        "block_act_checkpoint_size",
        "block_weight_grad_space",
        "block_weight_grad_space_no_sharding",
        "block_act_grad_space",
        "block_optimizer_space",
        *(f"{name}_with_offload" for _, name in _PARTS),
        *(name for _, name in _PARTS),
        "fw_time",
        "bw_time",
        "optim_step_time",
        "recompute_time",
        "recomm_link_time",
        "recomm_exposed_time",
        "bubble_time",
        *(
            f"{axis}_comm_{kind}_time"
            for kind in ("link", "exposed")
            for axis in ("tp", "pp", "dp")
        ),
        "fw_offload_exposed_time",
        "bw_offload_exposed_time",
        "total_time",
        "act_offload_bw_req",
        "weight_offload_bw_req",
        "optim_offload_bw_req",
        "offload_mem_bw_req",
        "proc_mem_tier1_cap_req",
        "proc_mem_tier2_cap_req",
        "useful_flops",
        "compute_efficiency",
        "system_efficiency",
        "total_efficiency",
        "sample_rate",
    )


STAT_FIELDS: tuple[str, ...] = _stat_fields()
"""The names of the statistics in Calculon's order."""


def statistics_of(batch: Batch, columns: Columns, system: CalculonSystem) -> dict[str, Floats]:
    """The 96 statistics of each row, in Calculon's order; NaN where it gives none."""
    found: dict[str, Floats] = {
        **_work(batch),
        **_communications(batch),
        **_spaces(batch),
        **_times(batch),
        **_efficiencies(batch, columns, system),
    }
    return {name: found[name] for name in STAT_FIELDS}


def _work(batch: Batch) -> dict[str, Floats]:
    block = batch.block

    def of(name: str, work: Pass) -> dict[str, Floats]:
        return {f"block_{name}_{field}": getattr(work, field) for field in _PASS}

    return (
        of("fw", block.fw)
        | of("re", block.re)
        | of("agrad", block.agrad)
        | of("wgrad", block.wgrad)
        | of("optim", batch.optimizer)
    )


def _communications(batch: Batch) -> dict[str, Floats]:
    block, found = batch.block, {}
    pairs = (
        ("fw_tp_time", "fw_tp_size", block.fw_tp),
        ("agrad_tp_time", "bw_tp_size", block.agrad_tp),
        ("recomm_time", "recomm_size", block.recomm),
    )
    for time, size, pair in pairs:
        for kind, communication in zip(("base", "edge"), pair, strict=True):
            found[f"{kind}block_{time}"] = communication.time
            found[f"{kind}block_{time}_exposed"] = communication.exposed
            found[f"{kind}block_{size}"] = communication.size
    return found | {
        "block_fw_pp_size": batch.transfer.fw_size,
        "block_bw_pp_size": batch.transfer.bw_size,
        "block_dp_size": batch.dp.size,
        "tp_bw_overlap_req": block.bandwidth_needed,
        "dp_bw_overlap_req_chunk": batch.dp.chunk_bandwidth,
        "dp_bw_overlap_req_tail": batch.dp.tail_bandwidth,
    }


def _spaces(batch: Batch) -> dict[str, Floats]:
    spaces, memory = batch.memory_use.spaces, batch.memory_use.memory
    block, offload = memory.block, batch.offload

    def of(parts: MemoryComponents, end: str) -> dict[str, Floats]:
        return {f"{name}{end}": getattr(parts, field) for field, name in _PARTS}

    return {
        "block_weight_space": block.weights,
        "block_act_working_space": spaces.working,
        "block_act_storage_space": spaces.storage,
        "block_act_checkpoint_size": spaces.checkpoint,
        "block_weight_grad_space": block.gradient,
        "block_weight_grad_space_no_sharding": block.gradient_unsharded,
        "block_act_grad_space": spaces.gradient,
        "block_optimizer_space": block.optimizer,
        **of(memory.resident, "_with_offload"),
        **of(memory.total, ""),
        "act_offload_bw_req": offload.activations,
        "weight_offload_bw_req": offload.weights,
        "optim_offload_bw_req": offload.optimizer,
        "offload_mem_bw_req": offload.together,
        "proc_mem_tier1_cap_req": memory.tier1,
        "proc_mem_tier2_cap_req": memory.tier2,
    }


def _times(batch: Batch) -> dict[str, Floats]:
    step = batch.step
    return {
        "fw_time": step.fw,
        "bw_time": step.bw,
        "optim_step_time": step.optimizer,
        "recompute_time": step.recompute,
        "recomm_link_time": step.recomm_link,
        "recomm_exposed_time": step.recomm,
        "bubble_time": step.bubble,
        "tp_comm_link_time": step.tp_link,
        "pp_comm_link_time": step.pp,
        "dp_comm_link_time": batch.dp.link,
        "tp_comm_exposed_time": step.tp,
        "pp_comm_exposed_time": step.pp,
        "dp_comm_exposed_time": step.dp,
        "fw_offload_exposed_time": step.fw_offload,
        "bw_offload_exposed_time": step.bw_offload,
        "total_time": step.total,
    }


def _efficiencies(batch: Batch, columns: Columns, system: CalculonSystem) -> dict[str, Floats]:
    """Shares of the matrix peak and of the time.

    perfect = k_p N useful_flops / peak: the optimizer's FLOPs count for every micro-batch [Q12].
    """
    block, depth, step = batch.block, batch.memory_use.depth, batch.step
    useful = block.fw.flops + block.agrad.flops + block.wgrad.flops + batch.optimizer.flops
    perfect = depth.blocks * depth.microbatches * useful / _matrix_peak(columns, system)
    work = step.fw + step.bw + step.optimizer
    return {
        "useful_flops": useful,
        "compute_efficiency": perfect / work,
        "system_efficiency": work / step.total,
        "total_efficiency": perfect / step.total,
        "sample_rate": columns.batch_size / step.total,
    }


def _matrix_peak(columns: Columns, system: CalculonSystem) -> Floats:
    """Peak of the matrix engine for each row's datatype [FLOP/s]."""
    peaks = np.full(len(DATATYPES), np.nan)
    for code, name in enumerate(DATATYPES):
        if name in system.matrix:
            peaks[code] = system.matrix[name].tflops * TERA
    return peaks[columns.datatype]


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
        **_operation_pass("fw", times.fw),
        **_operation_communications("fw_tp_comm", times.fw_tp, shape),
        **_operation_pass("agrad", times.agrad),
        **_operation_communications("bw_tp_comm", times.agrad_tp, shape),
        **_operation_pass("wgrad", times.wgrad),
        **_operation_communications("recomm", times.recomm_late, shape),
        **_operation_pass("optim", optimizer),
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


def _operation_pass(name: str, work: Pass) -> dict[str, Floats]:
    intensity = np.divide(
        work.flops, work.mem_accessed, out=np.zeros_like(work.flops), where=work.mem_accessed > 0
    )
    return {
        f"{name}_flops": work.flops,
        f"{name}_mem_accessed": work.mem_accessed,
        f"{name}_arithmetic_intensity": intensity,
        f"{name}_processing_time": work.time,
    }


def _operation_communications(
    name: str, pair: tuple[Communication, Communication], shape: Shapes
) -> dict[str, Floats]:
    """A tile of a fused product's communication is a T-th of it."""
    found = {}
    tiles = np.where(shape.fused, shape.tp, 1)
    for field in ("tile", "size", "time", "time_exposed"):
        for kind, communication in zip(("base", "edge"), pair, strict=True):
            values = {
                "tile": communication.size / tiles,
                "size": communication.size,
                "time": communication.time,
                "time_exposed": communication.exposed,
            }
            found[f"{kind}block_{name}_{field}"] = values[field]
    return found

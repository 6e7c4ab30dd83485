"""From models, systems and executions to Calculon's statistics, by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather
from shardwise.errors import ShardwiseError
from shardwise.predecessors.calculon.files import (
    DATATYPES,
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
    check_together,
)
from shardwise.predecessors.calculon.reference.block import (
    Communication,
    Pass,
    operation_times,
    operations_of,
    optimizer_pass,
    state_bytes,
)
from shardwise.predecessors.calculon.reference.columns import TERA, Columns
from shardwise.predecessors.calculon.reference.operations import (
    FUSED_NAMES,
    MULTIQUERY_NAMES,
    NAMES,
    Operations,
    Shapes,
)
from shardwise.predecessors.calculon.reference.step import (
    Batch,
    MemoryComponents,
    batch_of,
    memory_use_of,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a table of executions."""

    verdict: Ints
    """Position in `VERDICTS`; 0 is feasible."""
    values: dict[str, Floats]
    """The 96 statistics by name, in the order of `STAT_FIELDS`.

    NaN where Calculon gives no figure, and in rows that fail before memory is known; a row that
    only lacks memory has them, and `proc_mem_tier1_cap_req` is how much it needs.
    """

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]

    def row(self, index: int) -> dict[str, float | int | None]:
        """Return one row, with None for NaN."""
        return {
            name: float(column[index]) if math.isfinite(column[index]) else None
            for name, column in self.values.items()
        }


def evaluate(model: CalculonModel, system: CalculonSystem, executions: Columns) -> Statistics:
    """Evaluate a table of executions that have passed `check_together` with model and system.

    A row is evaluated as if it stood alone, but costs a fraction of a microsecond to a few.
    """
    verdict = placement_verdict(model, system, executions)
    placed = np.flatnonzero(verdict == 0)
    some = gather(executions, placed)
    values = {name: np.full(len(executions), np.nan) for name in STAT_FIELDS}
    if placed.size:
        memory_use = memory_use_of(model, some)
        memory = memory_use.memory
        verdict[placed] = memory_verdict(memory.tier1, memory.tier2, system)
        batch = batch_of(model, system, some, memory_use)
        for name, column in statistics_of(batch, some, system).items():
            values[name][placed] = column
    return Statistics(verdict=verdict, values=values)


def statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> dict[str, float | int | None]:
    """Evaluate one execution.

    Raises
    ------
    InputError
        If the execution does not go with the model and the system.
    Infeasible
        If Calculon refuses it, with its reason.
    """
    check_together(model, system, execution)
    columns = Columns.of([execution])
    found = evaluate(model, system, columns)
    reason = VERDICTS[int(found.verdict[0])]
    if reason:
        needs = {
            "tier1": float(found["proc_mem_tier1_cap_req"][0]),
            "tier2": float(found["proc_mem_tier2_cap_req"][0]),
        }
        raise Infeasible(reason, explain(reason, model, system, execution, needs))
    return found.row(0)


def layer_statistics(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution
) -> list[dict[str, Any]]:
    """List the operations of a block as Calculon's `-l`: 48 fields each.

    Inference does not change them: Calculon shows the times of a backward pass.
    """
    statistics(model, system, execution)  # refuses what cannot run
    columns = Columns.of([execution])
    columns = replace(columns, training=np.ones_like(columns.training))
    return layers_of(model, system, columns)


VERDICTS = (
    "",
    "network_too_small",
    "network_not_filled",
    "interleaving_gt_blocks",
    "interleaving_not_factor",
    "offload_needs_3_blocks",
    "mem_tier1",
    "mem_tier2",
)
"""Reasons in the order of Calculon's checks; a verdict is a position, 0 is feasible."""

Axes = tuple[Ints | int, Ints | int, Ints | int]

_LEAST_BLOCKS = 3
_GIB = 2.0**30

_SENTENCES = {
    "network_too_small": "network {network} connects {size} processors, but {placed} are placed "
    "on it (tensor, pipeline and data parallelism: {degrees})",
    "network_not_filled": "network {network} must be filled, but the {placed} processors placed "
    "on it do not divide its {size} (tensor, pipeline and data parallelism: {degrees})",
    "interleaving_gt_blocks": "pipeline_interleaving {chunks} is more than the blocks per "
    "processor, {blocks}",
    "interleaving_not_factor": "pipeline_interleaving {chunks} does not divide the blocks per "
    "processor, {blocks}",
    "offload_needs_3_blocks": "offloading needs at least 3 blocks per processor; there are "
    "{blocks}",
    "mem_tier1": "mem1 needs {tier1_gib:.6g} GiB and has {mem1_gib:.6g} GiB",
    "mem_tier2": "mem2 needs {tier2_gib:.6g} GiB and has {mem2_gib:.6g} GiB",
}


class Infeasible(ShardwiseError):  # noqa: N818 - an answer, not a fault
    """Calculon refuses an execution: `reason` of `VERDICTS`, and a sentence with the reason."""

    def __init__(self, reason: str, sentence: str) -> None:
        self.reason = reason
        self.sentence = sentence
        super().__init__(sentence)


def placement_verdict(model: CalculonModel, system: CalculonSystem, columns: Columns) -> Ints:
    """Check networks, interleaving and offload; the first check that fails counts."""
    c = columns
    blocks = -(-model.num_blocks // c.pipeline_par)
    offloads = c.weight_offload | c.activations_offload | c.optimizer_offload
    degrees = (c.tensor_par, c.pipeline_par, c.data_par)
    networks = (c.tensor_par_net, c.pipeline_par_net, c.data_par_net)
    return _first(
        [
            *_network_checks(system, degrees, networks),
            ("interleaving_gt_blocks", c.pipeline_interleaving > blocks),
            ("interleaving_not_factor", blocks % c.pipeline_interleaving > 0),
            ("offload_needs_3_blocks", offloads & (blocks < _LEAST_BLOCKS)),
        ]
    )


def network_verdict(system: CalculonSystem, degrees: Axes, networks: Axes) -> Ints:
    """Check that what is placed on each network fits; axes are tensor, pipeline, data."""
    return _first(_network_checks(system, degrees, networks))


def _network_checks(
    system: CalculonSystem, degrees: Axes, networks: Axes
) -> list[tuple[str, Bools]]:
    checks: list[tuple[str, Bools]] = []
    for index, network in enumerate(system.networks):
        placed = _placed(degrees, networks, index)
        checks.append(("network_too_small", placed > network.size))
        if network.must_be_filled:
            checks.append(("network_not_filled", network.size % placed > 0))
    return checks


def memory_verdict(tier1: Floats, tier2: Floats, system: CalculonSystem) -> Ints:
    """Check the needs of each tier [bytes] against its capacity."""
    return _first(
        [
            ("mem_tier1", tier1 > system.mem1.GiB * _GIB),
            ("mem_tier2", tier2 > system.mem2.GiB * _GIB),
        ]
    )


def _placed(degrees: Axes, networks: Axes, network: int) -> Ints:
    """Product of the degrees placed on a network."""
    placed = np.ones_like(networks[0])
    for degree, net in zip(degrees, networks, strict=True):
        placed = placed * np.where(net == network, degree, 1)
    return placed


def _first(checks: list[tuple[str, Bools]]) -> Ints:
    codes = np.zeros(checks[0][1].shape, dtype=np.int64)
    for name, failed in reversed(checks):
        codes = np.where(failed, VERDICTS.index(name), codes)
    return codes


def explain(
    reason: str,
    model: CalculonModel,
    system: CalculonSystem,
    execution: CalculonExecution,
    memory_bytes: Mapping[str, float],
) -> str:
    """Return why an execution is infeasible; `memory_bytes` are the needs of each tier."""
    e = execution
    degrees = (e.tensor_par, e.pipeline_par, e.data_par)
    facts: dict[str, Any] = {
        "degrees": " x ".join(map(str, degrees)),
        "chunks": e.pipeline_interleaving,
        "blocks": -(-model.num_blocks // e.pipeline_par),
        "mem1_gib": system.mem1.GiB,
        "mem2_gib": system.mem2.GiB,
        "tier1_gib": memory_bytes["tier1"] / _GIB,
        "tier2_gib": memory_bytes["tier2"] / _GIB,
    }
    networks = (e.tensor_par_net, e.pipeline_par_net, e.data_par_net)
    for index, network in enumerate(system.networks):
        used = [d for d, n in zip(degrees, networks, strict=True) if n == index]
        facts |= {"network": index, "size": network.size, "placed": math.prod(used)}
        if facts["placed"] > network.size or (
            network.must_be_filled and network.size % math.prod(used)
        ):
            break
    return _SENTENCES[reason].format(**facts)

"""Which fields have an effect on a strategy: a field without effect is tried with one value."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import (
    ZERO_GRADIENTS,
    ZERO_WEIGHTS,
    CudaGraphs,
    Dispatcher,
    Dtype,
    Quantization,
    Recompute,
    Schedule,
    TpExchange,
)
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.distinct import distinct_rows
from shardwise.parallel.pipeline_layout import stage_groups
from shardwise.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The properties of a layout that decide which options and choices have an effect on it."""

    tp: bool
    """Whether there is tensor parallelism."""
    cp: bool
    """Whether there is context parallelism."""
    dp: bool
    """Whether weights have several replicas."""
    experts: bool
    """Whether there are experts."""
    dispatches: bool
    """Whether experts dispatch tokens to other ranks."""
    uneven: bool
    """Whether ranks may get different numbers of tokens."""
    both_ways: bool
    """Whether the schedule pairs a forward with a backward pass."""
    layers: int
    """Layers of the rank that has most; 0 where nothing depends on that."""
    panels: int
    """Least panels of 2D products; 0 where nothing depends on that."""
    training: bool = True


def kinds_of(
    model: Model, layouts: Table, *, layers: Ints | None = None, panels: bool = False
) -> list[tuple[Kind, Ints]]:
    """Group layouts by kind; return each kind with its rows, those that split least first.

    Parameters
    ----------
    layers
        Layers of the rank that has most in each row, where something depends on that.
    panels
        Whether something depends on the least panels.
    """
    replicas = layouts.replicas
    if model.has_experts:
        replicas = np.maximum(replicas, layouts.expert_replicas)
    several = np.full(len(layouts), model.has_experts)
    columns = {
        "tp": layouts.tp * layouts.tp2 > 1,
        "cp": layouts.cp > 1,
        "dp": replicas > 1,
        "experts": several,
        "dispatches": several & (layouts.ep * layouts.etp > 1),
        "uneven": several & (layouts.ep > 1),
        "both_ways": several & (layouts.schedule == Schedule.DUALPIPE.code),
        "layers": np.zeros(len(layouts), dtype=np.int64) if layers is None else layers,
        "panels": np.lcm(layouts.tp, layouts.tp2) if panels else 0 * layouts.tp,
    }
    firsts, where = distinct_rows(list(columns.values()))
    found = []
    for position in np.lexsort([columns[name][firsts] for name in reversed(columns)]):
        first = firsts[position]
        values = {name: column[first].item() for name, column in columns.items()}
        found.append((Kind(**values), np.flatnonzero(where == position)))
    return found


def most_layers_on_a_rank(model: Model, layouts: Table) -> Ints:
    """Return the layers of the rank that has most, as `recompute_layers` counts them."""
    counted = [
        np.where(
            layouts.schedule == Schedule.DUALPIPE.code,
            run.contents.chunks[run.key, :, :-1].sum(axis=2).max(axis=1),  # of each stage alone
            run.layers,
        )
        for run in stage_groups(model, layouts)
    ]
    return np.max(counted, axis=0).astype(np.int64)


Idle = Callable[[Kind, Table], Bools | bool]


def _idle_zero(kind: Kind, table: Table) -> Bools:
    """ZeRO stages that split nothing.

    Gradients and optimizer state exist only in training; weights that are gathered layer by layer
    need memory even on one replica.
    """
    splits = table.zero >= (ZERO_GRADIENTS if kind.training else ZERO_WEIGHTS)
    splits &= table.zero <= ZERO_WEIGHTS
    return ~splits if not (kind.dp and kind.training) else np.zeros_like(splits)


def _idle_types(kind: Kind, table: Table) -> Bools:
    """Types of what training stores; with products in fp32 all but the moments are fp32."""
    return (table.dtype == Dtype.FP32.code) | (not kind.training)


EFFECTS: dict[str, Idle] = {
    "tp_exchange": lambda kind, _: not kind.tp,
    "tp_overlap": lambda kind, _: not kind.tp,
    "tp_regather": lambda kind, table: (
        (not (kind.tp and kind.training)) | (table.tp_exchange != TpExchange.RS_AG.code)
    ),
    "summa_panels": lambda kind, table: (
        (not kind.tp)
        | (table.tp_exchange != TpExchange.SUMMA.code)
        | np.isin(table.summa_panels, (0, kind.panels))
    ),
    "cp_exchange": lambda kind, _: not kind.cp,
    "quantized_weights": lambda _, table: table.quantization == Quantization.NONE.code,
    "expert_capacity": lambda kind, _: not kind.experts,
    "expert_imbalance": lambda kind, _: not kind.uneven,
    "dispatcher": lambda kind, _: not kind.dispatches,
    "dispatch_dtype": lambda kind, _: not kind.experts,
    "expert_overlap": lambda kind, _: not (kind.dispatches and kind.training) or kind.both_ways,
    "expert_kernel": lambda kind, _: not kind.experts,
    "graph_scope": lambda _, table: table.graphs != CudaGraphs.PARTIAL.code,
    "recompute": lambda kind, _: not kind.training,
    "recompute_parts": lambda _, table: table.recompute != Recompute.SELECTIVE.code,
    "recompute_layers": lambda kind, table: (
        (table.recompute == Recompute.NONE.code) | _is_all(kind, table)
    ),
    "lora_parts": lambda _, table: (table.lora_rank == 0) | (table.lora_targets > 0),
    "lora_targets": lambda _, table: table.lora_rank == 0,
    "adapter": lambda _, table: table.lora_rank == 0,
    "batching": lambda _, table: table.data_lengths < 0,
    "base_weights": lambda _, table: (table.lora_rank == 0) & (table.frozen == 0),
    "reference_model": lambda kind, table: ~table.has_reference | (not kind.training),
    "checkpoint_place": lambda kind, table: (
        (table.recompute != Recompute.FULL.code) | table.offload_activations | (not kind.training)
    ),
    "optimizer": lambda kind, _: not kind.training,
    "weight_dtype": _idle_types,
    "master_dtype": _idle_types,
    "moment_dtype": lambda kind, _: not kind.training,
    "gradient_dtype": _idle_types,
    "reduce_dtype": _idle_types,
    "fused_activation": lambda kind, _: not kind.training,
    "offload_activations": lambda kind, _: not kind.training,
    "offload_parts": lambda kind, table: ~table.offload_activations | (not kind.training),
    "zero": _idle_zero,
    "fsdp_reshard": lambda _, table: table.zero < ZERO_WEIGHTS,
    "fsdp_prefetch": lambda _, table: table.zero < ZERO_WEIGHTS,
    "grad_sync": lambda kind, table: (table.zero < ZERO_GRADIENTS) | (not kind.training),
    "dp_overlap": lambda kind, table: (
        ~np.asarray(kind.dp & (kind.training | (table.zero >= ZERO_WEIGHTS)))
    ),
    "offload_optimizer": lambda kind, _: not kind.training,
    "cpu_optimizer": lambda _, table: ~table.may_update_on_host,
    "host_threads": lambda _, table: ~table.updates_on_host,
    "offload_nvme": lambda _, table: ~table.updates_on_host,
}
"""When another value of a field changes nothing; each field follows the fields it reads."""


def _is_all(kind: Kind, table: Table) -> Bools:
    """Whether recompute applies to all layers of every rank."""
    number = table.recompute_layers
    return (number == 0) | ((number >= kind.layers) & (kind.layers > 0))


# Fields that must have one value where they have no effect, or a constraint refuses them.
NEUTRAL: dict[str, Any] = {
    name: Strategy.model_fields[name].default
    for name in (
        "recompute_parts",
        "recompute_layers",
        "summa_panels",
        "quantized_weights",
        "lora_parts",
        "lora_targets",
        "adapter",
        "base_weights",
        "reference_model",
        "checkpoint_place",
        "offload_parts",
        "cpu_optimizer",
        "host_threads",
        "offload_nvme",
        "expert_capacity",
        "expert_imbalance",
        "expert_overlap",
        "expert_kernel",
        "graph_scope",
        "fsdp_reshard",
    )
} | {"dispatcher": Dispatcher.ALL_TO_ALL}


def idle_rows(kind: Kind, table: Table, name: str) -> Bools:
    """Return the rows of options or choices in which another value of a field changes nothing."""
    if name not in EFFECTS:
        return np.zeros(len(table), dtype=np.bool_)
    idle = EFFECTS[name](kind, table)
    return np.broadcast_to(np.asarray(idle, dtype=np.bool_), (len(table),))

"""Executions as columns, and the times that efficiency curves and networks give to work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.calculon.files import (
    ATTENTIONS,
    COMM_TYPES,
    DATATYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonExecution,
    CalculonMemory,
    CalculonProcessor,
    CalculonSystem,
    Curve,
)

WORDS: dict[str, tuple[str, ...]] = {
    "datatype": DATATYPES,
    "attention_type": ATTENTIONS,
    "activation_recompute": RECOMPUTES,
    "tensor_par_comm_type": COMM_TYPES,
    "tensor_par_overlap": OVERLAPS,
}
"""The fields whose values are words; their columns have the word's position here."""

MULTIQUERY = ATTENTIONS.index("multiquery")
FULL, ATTN_ONLY = RECOMPUTES.index("full"), RECOMPUTES.index("attn_only")
AR, P2P_RS_AG, RS_AG = (COMM_TYPES.index(word) for word in ("ar", "p2p_rs_ag", "rs_ag"))
NO_OVERLAP, PIPE = OVERLAPS.index("none"), OVERLAPS.index("pipe")

_BYTES = np.array([{"float8": 1.0, "float32": 4.0}.get(word, 2.0) for word in DATATYPES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The 23 fields of executions that have passed `CalculonExecution` and `check_together`.

    Words are integers: positions in `WORDS`.
    """

    num_procs: Ints
    tensor_par: Ints
    pipeline_par: Ints
    data_par: Ints
    tensor_par_net: Ints
    pipeline_par_net: Ints
    data_par_net: Ints
    batch_size: Ints
    microbatch_size: Ints
    datatype: Ints
    fused_activation: Bools
    attention_type: Ints
    activation_recompute: Ints
    pipeline_interleaving: Ints
    optimizer_sharding: Bools
    tensor_par_comm_type: Ints
    tensor_par_overlap: Ints
    seq_par_ag_redo: Bools
    data_par_overlap: Bools
    weight_offload: Bools
    activations_offload: Bools
    optimizer_offload: Bools
    training: Bools

    def __len__(self) -> int:
        return int(self.num_procs.size)

    @classmethod
    def of(cls, executions: Sequence[CalculonExecution]) -> "Columns":
        """Return executions as columns."""

        def column(name: str) -> Any:
            values = [getattr(execution, name) for execution in executions]
            if name in WORDS:
                values = [WORDS[name].index(value) for value in values]
            flags = bool(values) and isinstance(values[0], bool)
            return np.array(values, dtype=np.bool_ if flags else np.int64)

        return cls(**{field.name: column(field.name) for field in fields(cls)})

    def row(self, index: int) -> CalculonExecution:
        """Return one row as an execution."""

        def value(name: str) -> Any:
            cell = getattr(self, name)[index].item()
            return WORDS[name][cell] if name in WORDS else cell

        return CalculonExecution.parse({field.name: value(field.name) for field in fields(self)})

    def words(self) -> dict[str, NDArray[Any]]:
        """Return the columns with words instead of their positions in `WORDS`."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return columns | {name: np.array(words)[columns[name]] for name, words in WORDS.items()}

    @property
    def element_bytes(self) -> Floats:
        """Bytes per element of the datatype, of all that is computed, stored and sent."""
        return _BYTES[self.datatype]

    @property
    def microbatches(self) -> Ints:
        """Micro-batches per replica and step: batch / (data_par x microbatch)."""
        return self.batch_size // (self.data_par * self.microbatch_size)

    @property
    def optimizer_shards(self) -> Ints:
        """Replicas that share the optimizer state and the reduced gradients."""
        return np.where(self.optimizer_sharding, self.data_par, 1)


MEGA, GIGA, TERA = 1e6, 1e9, 1e12

NetworkOperation = Literal["p2p", "reduce_scatter", "all_gather", "all_reduce"]


def efficiency(size: Floats, curve: Curve, unit: float) -> Floats:
    """Share of the peak: of the first row (thresholds descend) with threshold x unit <= size."""
    thresholds, shares = np.array(curve[::-1]).T
    return shares[np.searchsorted(thresholds * unit, size, side="right") - 1]


def flop_time(
    flops: Floats, matrix: Bools | bool, system: CalculonSystem, datatype: Ints
) -> Floats:
    """Compute time [s] = FLOPs / (peak x efficiency(FLOPs)).

    Parameters
    ----------
    flops
        Of each operation; rows along the last axis.
    matrix
        Whether the matrix engine does it, or the vector engine.
    datatype
        Of each row, as a position in `DATATYPES`.
    """
    if matrix is True or matrix is False:
        return _engine_time(flops, system.matrix if matrix else system.vector, datatype)
    on_matrix = _engine_time(flops, system.matrix, datatype)
    return np.where(matrix, on_matrix, _engine_time(flops, system.vector, datatype))


def _engine_time(
    flops: Floats, processors: Mapping[str, CalculonProcessor], datatype: Ints
) -> Floats:
    time = np.empty_like(flops)
    for code in np.unique(datatype):
        processor = processors[DATATYPES[code]]
        rows = datatype == code
        some = flops[..., rows]
        share = efficiency(some, processor.gflops_efficiency, GIGA)
        time[..., rows] = some / (processor.tflops * TERA * share)
    return time


def memory_time(size: Floats, memory: CalculonMemory) -> Floats:
    """Time [s] to move bytes = bytes / (bandwidth x efficiency(bytes))."""
    return size / (memory.GBps * GIGA * efficiency(size, memory.MB_efficiency, MEGA))


def processing_time(compute_s: Floats, memory_s: Floats, system: CalculonSystem) -> Floats:
    """Time [s] of an operation: the larger of the two (roofline) or their sum (no_overlap)."""
    if system.processing_mode == "roofline":
        return np.maximum(compute_s, memory_s)
    return compute_s + memory_s


def network_time(
    size: Floats,
    operation: NetworkOperation,
    participants: Ints | int,
    system: CalculonSystem,
    network: Ints,
) -> Floats:
    """Time [s] = latency + bytes x scalar x (1 + offset / participants) / (bandwidth x efficiency).

    The latency is charged once, whatever the number of participants, and for 0 bytes too.
    """
    networks = system.networks
    rate = np.array([n.bandwidth * GIGA * n.efficiency for n in networks])[network]
    latency = np.array([n.latency for n in networks])[network]
    offset = np.array([getattr(n.ops, operation)[1] or 0.0 for n in networks])[network]
    volume = size * volume_factor(operation, system, network) * (1 + offset / participants)
    return latency + volume / rate


def volume_factor(operation: NetworkOperation, system: CalculonSystem, network: Ints) -> Floats:
    """The scalar of an operation: its volume over its data among many participants."""
    return np.array([getattr(n.ops, operation)[0] for n in system.networks])[network]


def processor_usage(system: CalculonSystem, network: Ints) -> Floats:
    """Share of the compute that a network uses while its traffic is hidden."""
    return np.array([n.processor_usage for n in system.networks])[network]

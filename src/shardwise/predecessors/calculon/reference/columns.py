"""Executions as columns: one row or millions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

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

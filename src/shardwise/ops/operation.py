"""What a layer does: operations, each with kernels, collectives, weights and saved bytes.

All quantities are columns: one value for each row of a table, for one rank and one micro-batch.
Work that a row does not do is zero in that row.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shardwise.arrays import Bools, Floats, Ints

__all__ = [
    "Collective",
    "CollectiveKind",
    "FlashAttention",
    "Kernel",
    "Matmul",
    "MemoryBound",
    "Operation",
    "Phase",
    "RankWork",
    "zeros",
]


class Phase(StrEnum):
    """When a kernel or collective runs."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    """Backward: the gradient of the input, on the way to the layer before."""
    WEIGHT_GRAD = "weight_grad"
    """Backward: the gradient of the weights."""


class CollectiveKind(StrEnum):
    """What a group exchanges."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    P2P = "p2p"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank has to do of one micro-batch: the columns that operations are built from."""

    sequences: Floats
    """Sequences in the micro-batch."""
    seq_len: Floats
    """Tokens of a sequence on this rank's context-parallel group."""
    tp: Floats
    """Tensor-parallel degree."""
    sequence_parallel: Bools
    """Whether norms and residuals are split along the sequence."""
    attention: Ints
    """Position in `strategy.ATTENTIONS`."""
    regather: Bools
    """Whether what sequence parallelism splits is kept in parts and gathered again in backward."""
    fused_activation: Bools
    """Whether the activation of the MLP is computed again beside its gradient instead of kept."""
    element_bytes: Floats
    """Size of a weight or activation [byte]."""
    gradient_bytes: Floats
    """Size of an accumulated weight gradient [byte]."""
    flash: Bools
    """Whether attention is one fused kernel."""
    loss_forward_bytes: Floats
    """Bytes the loss moves per logit, forward."""
    loss_backward_bytes: Floats
    loss_saved_bytes: Floats
    """Bytes per logit held between forward and backward of the loss."""

    @property
    def tokens(self) -> Floats:
        """Tokens of the micro-batch."""
        return self.sequences * self.seq_len

    @property
    def split_tokens(self) -> Floats:
        """Tokens of norms and residuals on one rank: 1/tp of them with sequence parallelism."""
        return self.tokens / np.where(self.sequence_parallel, self.tp, 1.0)

    @property
    def kept_tokens(self) -> Floats:
        """Tokens of the input of a column-parallel product that stay on one rank for backward."""
        return np.where(self.regather, self.split_tokens, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`batch` products (m, k) x (k, n)."""

    phase: Phase
    m: Floats
    n: Floats
    k: Floats
    input_bytes: Floats
    """Size of an element of the operands [byte]."""
    output_bytes: Floats
    """Bytes moved per element of the result: twice its size where it is accumulated."""
    batch: Floats

    @property
    def flops(self) -> Floats:
        """2 m n k per product [FLOP]."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> Floats:
        """Operands read and result written once [byte]."""
        operands = self.input_bytes * (self.m * self.k + self.n * self.k)
        return self.batch * (operands + self.output_bytes * self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention:
    """Attention in one kernel: scores are computed tile by tile and never written."""

    phase: Phase
    sequences: Floats
    seq_len: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: float
    causal: bool
    element_bytes: Floats

    @property
    def flops(self) -> Floats:
        """Two products forward, five backward; half of the scores when causal [FLOP].

        Forward: 2 x 2 s^2 d per head and sequence. Backward computes the scores again and the
        gradients of scores, queries, keys and values.
        """
        products = 2 if self.phase is Phase.FORWARD else 5
        half = 0.5 if self.causal else 1.0
        scores = self.sequences * self.heads * self.seq_len**2
        return 2 * products * half * scores * self.head_dim

    @property
    def bytes(self) -> Floats:
        """Queries, keys, values and output; backward also their gradients [byte]."""
        per_token = 2 * (self.heads + self.kv_heads) * self.head_dim * self.element_bytes
        passes = 1 if self.phase is Phase.FORWARD else 2
        return passes * self.sequences * self.seq_len * per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """An element-wise kernel or reduction: its time is that of its bytes."""

    phase: Phase
    bytes: Floats
    """Least bytes read and written [byte]; the stack says how many more it moves."""
    flops: Floats
    """Vector FLOPs."""


Kernel = Matmul | FlashAttention | MemoryBound


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An exchange among the members of one axis."""

    phase: Phase
    kind: CollectiveKind
    axis: str
    bytes: Floats
    """The whole buffer: gathered, before scattering, or reduced [byte]; 0: not in this row."""
    behind: Phase | None = None
    """Phase of the same operation whose product it may run behind, if the stack does so."""
    split_with: Phase | None = None
    """Phase whose product it may be cut in pieces with, each piece behind the one before."""
    stack_splits: bool = False
    """Whether stacks that cut exchanges in pieces by themselves do so with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a layer on one rank."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    collectives: tuple[Collective, ...] = ()
    parameters: Floats
    """Weights held by this rank."""
    saved_bytes: Floats
    """Kept from forward to backward when nothing is recomputed [byte]."""
    working_bytes: Floats
    """Live beside what is saved while its backward runs: gradients and copies [byte]."""
    core: bool = False
    """Whether it belongs to the attention core, which selective recompute runs again."""
    core_bytes: Floats | None = None
    """Part of `saved_bytes` that selective recompute does not keep [byte]."""


def zeros(work: RankWork) -> Floats:
    """A column of zeros."""
    return np.zeros_like(work.tp)

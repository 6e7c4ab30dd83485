"""What a layer does: operations, each with kernels, collectives, weights and saved bytes.

All quantities are columns: one value for each row of a table, for one rank and one micro-batch.
Work that a row does not do is zero in that row.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.records import dataclass, replace

FP32_BYTES = 4
"""Size of an fp32 number [byte]."""


class Phase(StrEnum):
    """When a kernel or collective runs."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    """Backward: the gradient of the input, for the layer before."""
    WEIGHT_GRAD = "weight_grad"
    """Backward: the gradient of the weights."""


class CollectiveKind(StrEnum):
    """Collective of a group, or point-to-point message."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    P2P = "p2p"
    BROADCAST = "broadcast"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """Work of one rank on one micro-batch: the columns that operations are built from."""

    sequences: Floats
    """Sequences in the micro-batch."""
    seq_len: Floats
    """Tokens of a sequence on this rank: 1 / (cp tp2) of the sequence."""
    document_len: Floats
    """Longest span of tokens that attend to each other: a packed document, or the full sequence."""
    tp: Floats
    """Tensor-parallel degree."""
    tp2: Floats
    """Second tensor-parallel degree: ranks that split the sequence, and the rows of weights."""
    summa: Bools
    """Whether products are 2D, split by both degrees."""
    panels: Floats
    """Panels of each 2D product; 1 for other products."""
    cp: Floats
    """Context-parallel degree."""
    cp_exchange: Ints
    """Code of `CpExchange`."""
    ep: Floats
    """Expert-parallel degree: ranks that share the experts of a layer."""
    etp: Floats
    """Tensor-parallel degree inside experts."""
    capacity: Floats
    """Capacity of an expert over its even load; more tokens are dropped, fewer are padded. 0: no
    limit."""
    imbalance: Floats
    """Tokens of the most loaded rank's experts over those of an even load."""
    vocab_multiple: Floats
    """Rows of the vocabulary on one rank are padded to a multiple of this."""
    sequence_parallel: Bools
    """Whether norms and residuals are split along the sequence."""
    attention: Ints
    """Code of `AttentionKind`."""
    regather: Bools
    """Whether inputs that sequence parallelism splits are saved as shards and gathered again in
    backward."""
    fused_activation: Bools
    """Whether the activation of the MLP is recomputed with its gradient instead of saved."""
    element_bytes: Floats
    """Size of a weight or activation [byte]."""
    frozen_bytes: Floats
    """Size of a frozen weight of a product as it is stored [byte]."""
    unpacks_frozen: Bools
    """Whether several kernels make the 16-bit copy of a frozen weight in fewer bits."""
    quantization: Ints
    """Code of `Quantization`."""
    quantized_attention: Bools
    """Whether the attention core reads operands of 8 bits."""
    quantized_head: Bools
    """Whether the recipe quantizes the head, too."""
    masked_selection: Bools
    """Whether latent attention scores all keys, and a mask leaves out those not selected."""
    dispatch_bytes: Floats
    """Size of an element of tokens on the way to their experts [byte]."""
    sends_once: Bools
    """Whether one library call sorts tokens and sends them (dispatchers deepep and hybridep)."""
    gathers_tokens: Bools
    """Whether the ep x etp ranks gather all of their tokens (dispatcher all_gather)."""
    training: Bools
    """Whether quantized inputs are saved for backward."""
    gradient_bytes: Floats
    """Size of an accumulated weight gradient [byte]."""
    flash: Bools
    """Whether attention is one fused kernel."""
    fused_norm: Bools
    """Whether RMSNorm is one kernel."""
    fused_layer_norm: Bools
    """Whether LayerNorm is one kernel."""
    fused_rope: Bools
    """Whether one kernel rotates queries and keys."""
    fused_swiglu: Bools
    """Whether a gated activation is one kernel."""
    activation_input_bytes: Floats
    """Size of an element of the input of the MLP's activation, as saved for backward [byte]."""
    dense_table: Bools
    """Whether the gradient of the embedding is a full table."""
    adds_expert_bias: Bools
    """Whether kernels of their own add the biases of experts to their outputs."""
    loops_experts: Bools
    """Whether a Python loop runs the modules of one expert after the other."""
    fused_accumulation: Bools
    """Whether products accumulate their weight gradients over micro-batches."""
    loss_forward_bytes: Floats
    """Bytes the loss of the stack moves per logit, forward."""
    loss_backward_bytes: Floats
    loss_saved_bytes: Floats
    """Peak bytes per logit saved from forward to backward of the loss of the stack."""
    loss_chunk_tokens: Floats
    """Tokens of a chunk of the loss; 0: as usual."""
    loss: Ints
    """Code of `Loss`, the one in effect."""
    loss_tokens: Floats
    """Share of the tokens that reach the head."""
    compares_answers: Bools
    """Whether the loss reads log-probabilities of answers (tasks dpo, orpo, kto)."""
    runs_reference: Bools
    """Whether a reference model runs while the logits of the policy are saved."""
    fp32_log_probabilities: Bools
    """Whether log-probabilities of answers are computed from fp32 logits."""
    rates_answers: Bools
    """Whether the head is one column, the rating of an answer (task rm)."""
    own_loss: Bools
    """Whether these figures of the stack are figures of this loss."""

    @property
    def tokens(self) -> Floats:
        """Tokens of the micro-batch."""
        return self.sequences * self.seq_len

    @property
    def sequence(self) -> Floats:
        """Tokens of a full sequence."""
        return self.seq_len * self.cp * self.tp2

    @property
    def split_tokens(self) -> Floats:
        """Tokens of norms and residuals on one rank: 1/tp of them with sequence parallelism.

        With 2D products it has 1/tp of the width of all its tokens: as many elements.
        """
        return self.tokens / np.where(self.sequence_parallel | self.summa, self.tp, 1.0)

    @property
    def saved_tokens(self) -> Floats:
        """Tokens of the input of a column-parallel product that one rank saves for backward."""
        return np.where(self.regather | self.summa, self.split_tokens, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Panels of a 2D product, along the width of its input, which its weights reduce.

    Chunks of tokens, one after the other, are panels of the other operand.
    """

    count: Floats
    """Number of panels, a kernel each; 1: one product."""
    ranks: Floats
    """Ranks that share the rows of the weights."""
    chunks: Floats | float = 1.0
    """Number of chunks of tokens, a kernel each."""

    @property
    def kernels(self) -> Floats:
        """Products that run one after the other."""
        return self.count * self.chunks


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
    grouped: bool = False
    """Whether they are grouped products of experts, each with its own weights."""
    quantized: bool = False
    """Whether they run in the number format of each row's recipe."""
    panels: Panels | None = None
    """Panels of each of them; None: not split."""

    @property
    def own_rows(self) -> Floats:
        """Rows of a weight gradient on this rank."""
        return self.m if self.panels is None else self.m / self.panels.ranks

    def panel(self, panels: Panels) -> "Matmul":
        """The mean panel of each.

        A forward product is split along its reduction: all panels but the first read the sum of the
        ones before. Gradients are split along their result: each panel reads all of dY. Chunks of
        tokens split the rows of a product, and the reduction of a weight gradient.
        """
        count, chunks = panels.count, panels.chunks
        product = replace(self, panels=None)
        if self.phase is Phase.FORWARD:
            summed = self.output_bytes * (2 * count - 1) / count
            return replace(product, m=self.m / chunks, k=self.k / count, output_bytes=summed)
        if self.phase is Phase.INPUT_GRAD:
            return replace(product, m=self.m / chunks, n=self.n / count)
        return replace(product, m=self.m / count, k=self.k / chunks)

    @property
    def flops(self) -> Floats:
        """2 m n k per product [FLOP]."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> Floats:
        """Operands read and result written once, or for every panel [byte]."""
        if self.panels is not None:
            return self.panels.kernels * self.panel(self.panels).bytes
        operands = self.input_bytes * (self.m * self.k + self.n * self.k)
        return self.batch * (operands + self.output_bytes * self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention:
    """Attention in one kernel: scores are computed tile by tile and never written."""

    phase: Phase
    sequences: Floats
    seq_len: Floats
    """Queries of a sequence on this rank."""
    keys: Floats
    """Keys of a sequence that they attend to: all, or those in a window, chunk or document."""
    heads: Floats
    kv_heads: Floats
    head_dim: float
    """Width of a head of queries and keys."""
    v_head_dim: float
    """Width of a head of values and of the output."""
    causal: bool
    element_bytes: Floats

    @property
    def scores(self) -> Floats:
        """Pairs of a query and a key that are scored: half of them when causal.

        In a causal triangle (a packed document, a chunk, the sequence) half of the pairs count; a
        window of w keys slides over longer triangles and is counted in `keys` already.
        """
        half = 0.5 if self.causal else 1.0
        return half * self.sequences * self.heads * self.seq_len * self.keys

    @property
    def flops(self) -> Floats:
        """Two products forward, five backward [FLOP].

        Forward: 2 d_qk + 2 d_v per score. Backward recomputes the scores (d_qk) and computes the
        gradients of scores (d_v), queries and keys (d_qk each), and values (d_v).
        """
        qk, v = self.head_dim, self.v_head_dim
        widths = qk + v if self.phase is Phase.FORWARD else 3 * qk + 2 * v
        return 2 * self.scores * widths

    @property
    def bytes(self) -> Floats:
        """Queries, keys, values and output; backward also their gradients [byte].

        Keys and values of other context-parallel ranks are read, too.
        """
        qk_and_v = (self.head_dim + self.v_head_dim) * self.element_bytes
        keys = np.maximum(self.seq_len, self.keys)
        passes = 1 if self.phase is Phase.FORWARD else 2
        read = self.seq_len * self.heads + keys * self.kv_heads
        return passes * self.sequences * read * qk_and_v


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedAttention(FlashAttention):
    """Attention of each query to keys of its own: selected, compressed, or in a window.

    `keys` is their mean number, so that `causal` is false. Such kernels have rates of their own.
    """

    gathered_bytes: Floats
    """Keys and values that one pass over all queries reads, and their places [byte]."""
    index: bool = False
    """Whether it only scores the keys, to select some: no output, and no recompute in backward."""

    @property
    def flops(self) -> Floats:
        """As of a dense kernel; an indexer's backward has two products of scores [FLOP]."""
        qk, v = self.head_dim, self.v_head_dim
        widths = qk + v
        if self.phase is not Phase.FORWARD:
            widths = 2 * (qk + v) if self.index else 3 * qk + 2 * v
        return 2 * self.scores * widths

    @property
    def bytes(self) -> Floats:
        """Queries, output and gathered keys; backward also their gradients [byte]."""
        passes = 1 if self.phase is Phase.FORWARD else 2
        widths = self.head_dim + (0 if self.index else self.v_head_dim)
        own = self.sequences * self.seq_len * self.heads * widths * self.element_bytes
        return np.where(self.heads > 0, passes * (own + self.gathered_bytes), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """An element-wise kernel or reduction: its time is that of its bytes."""

    phase: Phase
    bytes: Floats
    """Least bytes read and written [byte]; the stack says how many more it moves."""
    flops: Floats
    """Vector FLOPs."""
    kind: str = "default"
    """Class of kernels for which a system may have separate rates: `system.MemoryClass`."""
    passes: Floats | float = 1.0
    """Kernels that do it one after the other, for each expert; counted of experts alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Core of a mixer: kernels that work on chunks of tokens and pass a state on between them."""

    phase: Phase
    kind: str
    """Kind of the mixer."""
    state_flops: Floats
    """FLOPs between tokens and the state [FLOP]."""
    chunk_flops: Floats
    """FLOPs among the tokens of a chunk [FLOP]."""
    bytes: Floats
    """Bytes read and written [byte]."""
    items: Floats
    """States that are passed on at the same time: sequences x heads."""

    @property
    def flops(self) -> Floats:
        """FLOPs of matrix products; of Mamba-1, element-wise ones [FLOP]."""
        return self.state_flops + self.chunk_flops


Kernel = Matmul | FlashAttention | MemoryBound | Scan
PRODUCTS = (Matmul, FlashAttention, Scan)
"""Kernels whose FLOPs are those of matrix units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How many experts a token is sent to, and which may be chosen together."""

    experts: int
    top_k: int
    groups: int | None = None
    """Groups of equal size that the experts form; None: one to each domain."""
    top_groups: int | None = None
    """Groups that the experts of a token are chosen from; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens that a collective sends to experts or back."""

    routing: Routing
    row_bytes: Floats
    """Size of a token [byte]."""
    combines: bool
    """Whether copies return and are added; if not, tokens are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective, or messages, among the members of one axis."""

    phase: Phase
    kind: CollectiveKind
    axis: str
    """tp, tp2, cp, ep or etp."""
    bytes: Floats
    """The full buffer: gathered, before scattering, or reduced [byte]; 0: not in this row."""
    behind: Phase | None = None
    """Phase of the same operation whose product it may overlap, if the stack does so."""
    split_with: Phase | None = None
    """Phase whose product it may be split with, each piece overlapping the one before."""
    stack_splits: bool = False
    """Whether stacks that split communication by default do so with this one."""
    tokens: Tokens | None = None
    """What it is made of, where it sends tokens to experts or back: one message may serve several
    experts of a rank, or ranks of a domain."""
    in_ring: bool = False
    """Whether it is a message to the next member, once per other member, each overlapping a piece
    of the product of phase `behind`."""
    panels: Floats | None = None
    """Panels that it is split in with the 2D product of its phase; None: not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a layer on one rank."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    collectives: tuple[Collective, ...] = ()
    parameters: Floats
    """Weights on this rank."""
    joined: tuple[Floats, ...] = ()
    """Outputs of each of the modules of a model that are one product here; none: it is one."""
    trained_parameters: Floats | None = None
    """Those of them that are trained; None: all."""
    quantized_parameters: Floats | None = None
    """Those of them that products read quantized; None: none."""
    tensors: Floats | float = 1.0
    """Tensors of the same size that its weights are."""
    saved_bytes: Floats
    """Saved from forward to backward when nothing is recomputed [byte]."""
    working_bytes: Floats
    """Live in addition to saved bytes while its backward runs: gradients and copies [byte]."""
    forward_working_bytes: Floats | None = None
    """The same while its forward runs: inputs and outputs; None: as much [byte]."""
    host_calls: Floats | float = 1.0
    """Modules and functions that the software runs for it, in each direction."""
    host_waits: Floats | None = None
    """Times that the host waits for its result in a forward pass; None: never."""
    expert: bool = False
    """Whether the weights are those of routed experts, which have their own replicas."""
    routed: bool = False
    """Whether its sizes vary with the routing of tokens: partial CUDA graphs leave it out."""
    reruns_with: frozenset[str] = frozenset()
    """Parts of `RecomputePart` whose recompute runs its forward again."""
    rerun_share: float = 1.0
    """Share of its forward that the part `every_other` runs again."""
    dropped_with: frozenset[str] = frozenset()
    """Recompute parts that rebuild what it saved."""
    half_rebuilt_bytes: Floats | None = None
    """Saved bytes that the part `every_other` rebuilds; None: all, where it rebuilds any [byte]."""

    @property
    def trained(self) -> Floats:
        """Weights that have gradients."""
        return self.parameters if self.trained_parameters is None else self.trained_parameters

    @property
    def read_quantized(self) -> Floats:
        """Weights that products read quantized, as a column."""
        quantized = self.quantized_parameters
        return np.zeros(self.parameters.shape) if quantized is None else quantized

    def rebuilt_by(self, parts: Iterable[str]) -> Floats:
        """Saved bytes that are dropped where these parts are recomputed [byte]."""
        rebuilding = self.dropped_with & set(parts)
        if not rebuilding:
            return np.zeros(self.saved_bytes.shape)
        if rebuilding == {"every_other"} and self.half_rebuilt_bytes is not None:
            return np.minimum(self.half_rebuilt_bytes, self.saved_bytes)
        return self.saved_bytes


def zeros(work: RankWork) -> Floats:
    """A column of zeros."""
    return np.zeros(work.tp.shape)


def kernel_in(kernel: Kernel, rows: Bools) -> Kernel:
    """The same kernel in some rows, none in the others."""

    def only(column: Floats) -> Floats:
        return np.where(rows, column, 0.0)

    if isinstance(kernel, Matmul):
        return replace(kernel, batch=only(kernel.batch))
    if isinstance(kernel, MemoryBound):
        return replace(kernel, bytes=only(kernel.bytes), flops=only(kernel.flops))
    if isinstance(kernel, FlashAttention):
        return replace(kernel, heads=only(kernel.heads), kv_heads=only(kernel.kv_heads))
    return kernel


def operations_in(operations: Iterable[Operation], rows: Bools) -> list[Operation]:
    """The same operations in some rows, nothing in the others."""
    if rows.all():
        return list(operations)
    return [_operation_in(one, rows) for one in operations] if rows.any() else []


def _operation_in(operation: Operation, rows: Bools) -> Operation:
    names = (
        *("parameters", "trained_parameters", "quantized_parameters", "host_calls", "host_waits"),
        *("saved_bytes", "working_bytes", "forward_working_bytes", "half_rebuilt_bytes"),
    )
    columns: dict[str, Any] = {
        name: np.where(rows, column, 0.0)
        for name in names
        if (column := getattr(operation, name)) is not None
    }
    return replace(
        operation,
        kernels=tuple(kernel_in(kernel, rows) for kernel in operation.kernels),
        collectives=tuple(
            replace(one, bytes=np.where(rows, one.bytes, 0.0)) for one in operation.collectives
        ),
        **columns,
    )

"""What mixers share: projections around a convolution, a scan over chunks and a gated norm.

As attention, a mixer has column-parallel products first and a row-parallel one last, and sequence
parallelism gathers before and scatters after them. Its core has the tokens of the full sequence.
With context parallelism a rank has S / cp of them: Mamba-2 and the gated delta rule trade them for
heads with all-to-alls (Megatron-LM, mamba_context_parallel.py, gated_delta_net.py); other kinds
pass states from rank to rank (flash-linear-attention, LASP of arXiv 2501.08313).
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Floats
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    Scan,
    zeros,
)
from shardwise.records import dataclass

_ALL = frozenset({"attention"})
_GATE_FLOPS = (12.0, 24.0)
"""Vector FLOPs per element of a gated norm, forward and backward: those of a norm and of SiLU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFlops:
    """FLOPs of the core of a mixer for one token, over all heads [FLOP]."""

    state: float
    """Forward, between tokens and the state."""
    chunk: float
    """Forward, among the tokens of a chunk."""
    backward_state: float
    backward_chunk: float

    @property
    def forward(self) -> float:
        """All of forward."""
        return self.state + self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The core of a mixer on the ranks of a context-parallel group."""

    name: str
    kind: str
    flops: CoreFlops
    bytes: float
    """Moved forward for one token, over all heads; sizes of activations count as 2 [byte]."""
    backward_bytes: float
    """Bytes of backward over those of forward."""
    heads: int
    """States that are passed on separately."""
    state_bytes: float
    """State of one sequence over all heads in fp32 [byte]."""
    parameters: float
    saved_widths: float
    """Elements that it saves for one token, over all heads."""
    saved_bytes: float = 0.0
    """What it saves in fp32 for one token, over all heads [byte]."""
    host_calls: float
    """Functions that the host runs, in each direction."""
    swapped_in: Floats | None = None
    """Elements of one token that ranks trade for heads, on a rank; None: states are passed on."""
    swapped_out: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """What a mixer has between its first product and its last."""

    inputs: Floats
    """Width of the result of the first product on this rank [element]."""
    operations: list[Operation]
    outputs: int
    """Width of the input of the last product, over all heads [element]."""


def convolution(
    name: str,
    work: RankWork,
    channels: float,
    taps: int,
    *,
    bias: bool = False,
    saves: bool = True,
    gates: bool = False,
    neighbors: bool = False,
) -> Operation:
    """Depthwise causal convolution: read and write all channels; backward twice as much.

    FLOPs: 2 K for each channel, and twice that backward.

    Parameters
    ----------
    channels
        Channels of the model, which tensor parallelism splits.
    saves
        Whether it saves its input; false: the core recomputes from what it saves.
    gates
        Whether the kernel multiplies input and output with gates, which it reads in addition.
    neighbors
        Whether ranks of a context-parallel group send the last K - 1 tokens to the next one.
    """
    elements = work.tokens * channels / work.tp
    size = elements * work.element_bytes
    tail = work.sequences * (taps - 1) * channels / work.tp * work.element_bytes
    edge = np.where((work.cp > 1) & neighbors, tail, 0.0)
    kernels = tuple(
        MemoryBound(phase=phase, bytes=n * (1 + gates) * size, flops=n * taps * elements)
        for phase, n in ((Phase.FORWARD, 2.0), (Phase.INPUT_GRAD, 4.0))
    )
    return Operation(
        name=name,
        kernels=kernels,
        collectives=tuple(
            Collective(phase=phase, kind=CollectiveKind.P2P, axis="cp", bytes=edge)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
            if np.any(edge)
        ),
        parameters=np.full_like(work.tp, channels * (taps + bias)) / work.tp,
        saved_bytes=size if saves else zeros(work),
        working_bytes=2 * size,
        reruns_with=_ALL | {"qkv"},
        dropped_with=_ALL,
    )


def gated_norm(
    name: str,
    work: RankWork,
    width: int,
    *,
    parameters: Floats | float,
    normed: bool = True,
    saves_gate: bool = True,
    statistics: float = 0.0,
) -> Operation:
    """Norm of the output of the core, times an activated gate: 3 tensors forward, 5 backward.

    The output of the core and the gate are saved.

    Parameters
    ----------
    normed
        Whether there is a norm; else the gate alone.
    saves_gate
        Whether it saves the gate; false: the core saved it.
    statistics
        Bytes of statistics that it saves for a token, over all heads [byte].
    """
    elements = work.tokens * width / work.tp
    size = elements * work.element_bytes
    forward, backward = _GATE_FLOPS if normed else (5.0, 9.0)
    return Operation(
        name=name,
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=3 * size, flops=forward * elements),
            MemoryBound(phase=Phase.INPUT_GRAD, bytes=5 * size, flops=backward * elements),
        ),
        parameters=np.full_like(work.tp, parameters),
        saved_bytes=size * (1 + saves_gate) + work.tokens * statistics / work.tp,
        working_bytes=2 * size,
        reruns_with=_ALL | {"attention_out", "mixer_gate"},
        dropped_with=_ALL,
    )


def core_operation(work: RankWork, core: Core) -> Operation:
    """The scan forward and backward, with what context parallelism moves around it."""
    swapped = work.cp > 1 if core.swapped_in is not None else np.zeros_like(work.cp, dtype=bool)
    tokens = work.tokens / work.tp
    scale = work.element_bytes / 2.0
    items = work.sequences * core.heads / work.tp / np.where(swapped, work.cp, 1.0)
    flops = core.flops
    kernels = tuple(
        Scan(
            phase=phase,
            kind=core.kind,
            state_flops=tokens * state,
            chunk_flops=tokens * chunk,
            bytes=tokens * core.bytes * moved * scale,
            items=items,
        )
        for phase, state, chunk, moved in (
            (Phase.FORWARD, flops.state, flops.chunk, 1.0),
            (Phase.INPUT_GRAD, flops.backward_state, flops.backward_chunk, core.backward_bytes),
        )
    )
    saved = tokens * (core.saved_widths * work.element_bytes + core.saved_bytes)
    return Operation(
        name=core.name,
        host_calls=core.host_calls,
        kernels=kernels,
        collectives=_context(work, core),
        parameters=np.full_like(work.tp, core.parameters) / work.tp,
        saved_bytes=saved,
        working_bytes=saved,
        reruns_with=_ALL,
        dropped_with=_ALL,
    )


def _context(work: RankWork, core: Core) -> tuple[Collective, ...]:
    """All-to-alls of tokens for heads, two in each direction; or states to the next ranks."""
    if not np.any(work.cp > 1):
        return ()
    ways: Sequence[tuple[CollectiveKind, Floats]]
    if core.swapped_in is not None and core.swapped_out is not None:
        size = work.tokens * work.element_bytes
        ways = [
            (CollectiveKind.ALL_TO_ALL, size * core.swapped_in),
            (CollectiveKind.ALL_TO_ALL, size * core.swapped_out),
        ]
    else:
        states = (work.cp - 1) * work.sequences * core.state_bytes / work.tp
        ways = [(CollectiveKind.P2P, states)]
    return tuple(
        Collective(phase=phase, kind=kind, axis="cp", bytes=np.where(work.cp > 1, size, 0.0))
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        for kind, size in ways
    )


def fp32_state(elements: float) -> float:
    """Bytes of a state of so many elements, which kernels keep in fp32 [byte]."""
    return elements * FP32_BYTES

"""State-space mixers: Mamba-2 (arXiv 2405.21060) and Mamba-1 (arXiv 2312.00752).

d is the inner width, N the size of a state, C the tokens of a chunk. Mamba-2 has H heads of P = d/H
channels in G groups that share B and C.
"""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.mixer import Mamba1, Mamba2
from shardwise.config.model import Model
from shardwise.ops.linear import all_reduced, linear
from shardwise.ops.mixer_parts import (
    Core,
    CoreFlops,
    Inner,
    convolution,
    core_operation,
    fp32_state,
    gated_norm,
)
from shardwise.ops.operation import RankWork, zeros

_CALLS = 5.0
"""Functions of mamba_ssm's `mamba_split_conv1d_scan_combined` around its kernels: about 12 launches
forward and 20 backward."""
_SCAN_FLOPS = 9.0
"""Element-wise FLOPs of the selective scan for each channel and element of its state."""
_ALL = frozenset({"attention"})


def mamba2_flops(mixer: Mamba2) -> CoreFlops:
    """FLOPs of state-space duality for one token.

    Forward 4 P N for each head (tokens to state, state to tokens), 2 C P for each head (scores
    times x) and 2 C N for each group (C B^T), as the kernels of mamba_ssm compute full chunks.
    Backward 10 P N + 4 C P and 6 C N, their recompute of states and scores included.
    """
    heads, groups, chunk = mixer.heads, mixer.groups, mixer.chunk
    states = heads * mixer.head_dim * mixer.state
    return CoreFlops(
        state=4.0 * states,
        chunk=2.0 * chunk * (heads * mixer.head_dim + groups * mixer.state),
        backward_state=10.0 * states,
        backward_chunk=chunk * (4.0 * heads * mixer.head_dim + 6.0 * groups * mixer.state),
    )


def mamba1_flops(mixer: Mamba1) -> CoreFlops:
    """FLOPs of the selective scan for one token: 9 d N, all element-wise; 2.5 times backward."""
    flops = _SCAN_FLOPS * mixer.width * mixer.state
    return CoreFlops(state=flops, chunk=0.0, backward_state=2.5 * flops, backward_chunk=0.0)


def mamba2_operations(_: Model, mixer: Mamba2, work: RankWork) -> Inner:
    """Projection to z, x, B, C and dt; convolution, scan, gated norm; projection back.

    Saved are the output of the first projection and that of the scan: convolution, states and C B^T
    are recomputed in backward (mamba_ssm, `MambaSplitConv1dScanCombinedFn`). Moved forward: x
    twice, z and the output (8 P bytes for each head), chunk states in fp32 written, scanned and
    read (16 P N / C), B and C of each group twice. With context parallelism ranks trade the
    projected tokens for heads; where a rank has fewer groups than the context-parallel degree,
    B and C are sent to several ranks.
    """
    d, groups = mixer.width, mixer.groups * mixer.state
    widths = 2 * d + 2 * groups + mixer.heads
    shared = np.maximum(work.cp * work.tp / mixer.groups, 1.0)
    core = Core(
        name="mamba.core",
        kind=mixer.kind,
        flops=mamba2_flops(mixer),
        bytes=8.0 * d + 16.0 * d * mixer.state / mixer.chunk + 8.0 * groups,
        backward_bytes=2.4,
        heads=mixer.heads,
        state_bytes=fp32_state(d * mixer.state),
        parameters=3.0 * mixer.heads,
        saved_widths=widths,
        host_calls=_CALLS,
        swapped_in=(2 * d + 2 * groups * shared + mixer.heads) / work.tp,
        swapped_out=d / work.tp,
    )
    operations = [
        convolution(
            "mamba.conv",
            work,
            mixer.conv_width,
            mixer.conv,
            bias=mixer.conv_bias,
            saves=False,
        ),
        core_operation(work, core),
        gated_norm(
            "mamba.gate",
            work,
            d,
            parameters=d / work.tp if mixer.gated_norm else 0.0,
            normed=mixer.gated_norm,
            saves_gate=False,
        ),
    ]
    return Inner(inputs=widths / work.tp, operations=operations, outputs=d)


def mamba1_operations(_: Model, mixer: Mamba1, work: RankWork) -> Inner:
    """Projection to x and z; convolution; time step, B and C from x; scan; projection back.

    The products that make dt, B and C reduce over the split channels, so ranks add up their parts.
    Saved: x, dt, z and the output of the scan before its gate (mamba_ssm, `SelectiveScanFn`); the
    gated output by the last product. B, C and states in fp32 every 2048 tokens are not counted.
    """
    d, low = mixer.width, mixer.rank + 2 * mixer.state
    added = work.tokens * low * work.element_bytes
    norms = low if mixer.inner_norms else 0
    core = Core(
        name="mamba.core",
        kind=mixer.kind,
        flops=mamba1_flops(mixer),
        bytes=8.0 * d + 4.0 * mixer.state,
        backward_bytes=2.5,
        heads=d,
        state_bytes=fp32_state(d * mixer.state),
        parameters=d * mixer.state + d,
        saved_widths=3.0 * d,  # x is the input of the product before
        host_calls=2.0,
    )
    shape = np.ones_like(work.tp)
    operations = [
        convolution("mamba.conv", work, d, mixer.conv, bias=mixer.conv_bias, neighbors=True),
        linear(
            "mamba.select",
            work,
            tokens=work.tokens,
            inputs=d / work.tp,
            outputs=low * shape,
            parameters=d / work.tp * low + _replicated(work, norms),
            collectives=all_reduced(work, added),
            sixteen_bits=True,
            reruns_with=_ALL,
            dropped_with=_ALL,
        ),
        linear(
            "mamba.step",
            work,
            tokens=work.tokens,
            inputs=mixer.rank * shape,
            outputs=d / work.tp,
            bias=d / work.tp,
            sixteen_bits=True,
            reruns_with=_ALL,
            dropped_with=_ALL,
        ),
        core_operation(work, core),
    ]
    return Inner(inputs=2 * d / work.tp, operations=operations, outputs=d)


def _replicated(work: RankWork, weights: float) -> Floats:
    return zeros(work) + weights

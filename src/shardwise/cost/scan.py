"""Time of the core of a mixer: kernels over chunks of tokens that pass a state on."""

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.software.mixers import ScanRates
from shardwise.ops.operation import Phase, Scan


def scan_times(
    kernel: Scan, rates: ScanRates, *, peak: Floats, bandwidth: Floats | float
) -> tuple[Floats, Floats, Floats]:
    """Return compute, memory and total time [s]: t = max(t_c, t_m).

    Forward t_c = (F_s / (e_s P) + F_c / (e_c P)) (1 + f / n) with F_s FLOPs between tokens and
    states and F_c among the tokens of a chunk; backward (F_s + F_c) / (e_b P) (1 + f / n). n states
    are passed on at the same time, one for each sequence and head, and f of them keep half of the
    chip idle. t_m = bytes / (m B). What the host needs to launch the many small kernels is counted
    with the operation (`Operation.host_calls`), so that it vanishes under CUDA graphs.

    Parameters
    ----------
    kernel
        FLOPs [FLOP], bytes [byte] and n of each row; shape (n,).
    rates
        e_s, e_c, e_b, m and f.
    peak
        P, dense peak of the matrix units for 16 bits [FLOP/s]; shape (n,).
    bandwidth
        B, of the memory [byte/s].

    Notes
    -----
    On the published forward kernels of GB200 the mean error is 4 % (six shapes of the gated delta
    rule, two of which are bound by the host), on those of H800 and H20 5 %.
    """
    if kernel.phase is Phase.FORWARD:
        work = kernel.state_flops / rates.state_share + kernel.chunk_flops / rates.chunk_share
    else:
        work = kernel.flops / rates.backward_share
    items = np.maximum(kernel.items, 1.0)
    compute = work / peak * (1 + rates.fill / items)
    memory = kernel.bytes / (rates.memory_share * bandwidth)
    return compute, memory, np.maximum(compute, memory)

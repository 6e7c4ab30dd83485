"""What the processors of a server do: updating weights whose optimizer state is offloaded."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.system import Host

BANDWIDTH_SHARE = 0.55
"""Share of the memory bandwidth of a server that updates reach: CPU-Adam of DeepSpeed moves 34
bytes per weight in 0.22 ns on a DGX-2, 0.61 of its 256 GB/s (arXiv 2101.06840, table 4); that of
prime-rl reaches 0.38 on an HGX server (PrimeIntellect-ai/prime-rl pull 3234)."""
SUB_GROUP = 1e9
"""Weights that are updated before they are sent to the accelerator: `sub_group_size` of DeepSpeed
(runtime/zero/config.py)."""


def update_rate(host: Host, ranks: Floats, threads: Ints) -> Floats:
    """Rate at which all ranks of a server together move bytes of their updates [byte/s].

    r = min(min(n T, C) c, s B)

    Threads move bytes at the rate of a core until the memory is the limit.

    Parameters
    ----------
    host
        C cores of c byte/s each, and memory of B byte/s on all sockets.
    ranks
        n, ranks on a server; shape (rows,).
    threads
        T, threads of each rank; shape (rows,).
    """
    by_cores = np.minimum(ranks * threads, host.cores) * host.core_bandwidth
    return np.minimum(by_cores, BANDWIDTH_SHARE * host.memory_bandwidth)


def update_time(host: Host, moved_bytes: Floats, ranks: Floats, threads: Ints) -> Floats:
    """Time of an update on the host [s]: t = n b / r, with the rate r of `update_rate`.

    Parameters
    ----------
    moved_bytes
        b, bytes that the update of one rank moves [byte]; shape (rows,).
    """
    return ranks * moved_bytes / update_rate(host, ranks, threads)


def drive_time(host: Host, state_bytes: Floats, ranks: Floats) -> Floats:
    """Time of reading state from the drives of a server and writing it back [s].

    t = max(n b / R, n b / W): while one sub-group is written, the next one is read (DeepSpeed,
    runtime/swap_tensor/pipelined_optimizer_swapper.py).

    Parameters
    ----------
    state_bytes
        b, optimizer state of one rank [byte]; shape (rows,).
    """
    if host.nvme_read is None or host.nvme_write is None:
        return np.zeros_like(state_bytes)
    return ranks * state_bytes / np.minimum(host.nvme_read, host.nvme_write)


def in_groups(first_s: Floats, second_s: Floats, weights: Floats) -> Floats:
    """Time of two steps that follow each other, group by group [s].

    t = (a + b) / g + (1 - 1 / g) max(a, b), g = max(1, weights / `SUB_GROUP`): the second step of
    one group runs while the first one of the next group does.

    Parameters
    ----------
    first_s, second_s
        a and b, time of each step alone [s]; shape (rows,).
    weights
        Weights that a rank updates [elements]; shape (rows,).
    """
    groups = np.maximum(1.0, weights / SUB_GROUP)
    return (first_s + second_s) / groups + (1 - 1 / groups) * np.maximum(first_s, second_s)

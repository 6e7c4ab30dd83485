"""Time of one collective over a fast network inside domains and a slow one between them."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.interop.nersc.reference.inputs import NerscSystem

__all__ = ["collective_time", "message_times"]

_WHOLE_BUFFER = frozenset({"broadcast", "reduce"})


def collective_time(
    kind: str, volume: Floats, members: Ints, inside: Ints, system: NerscSystem
) -> Floats:
    """Time of one collective [s] (section 3).

    With n members, t of them in one domain of the fast network, D = n // t domains, and c V bytes
    that pass each member, c = (n - 1) / n, or 1 for broadcast and reduce:

        t = 1         ls (n - 1) + c V / bs
        D = 1         lf (n - 1) + c V / bf
        otherwise     a max(c V / (nic_factor t bs), c V / bf) + ls (D - 1) + lf (n - D)

    with a = 2 for an all-reduce. Faults: the all-reduce has its factor 2 in the last case alone,
    and nic_factor is ignored in the first.

    Parameters
    ----------
    kind
        The collective's name.
    volume
        V, the whole buffer [GB].
    """
    slow, fast = _rates(system)
    passing = volume if kind in _WHOLE_BUFFER else (members - 1) / members * volume
    domains = members // inside
    factor = 2.0 if kind == "allreduce" else 1.0
    steps = system.ib_latency * (domains - 1) + system.nvlink_latency * (members - domains)
    nics = system.nic_factor * inside * slow
    mixed = factor * np.maximum(passing / nics, passing / fast) + steps
    alone = system.ib_latency * (members - 1) + passing / slow
    whole = system.nvlink_latency * (members - 1) + passing / fast
    time = np.where(inside == 1, alone, np.where(domains == 1, whole, mixed))
    return np.where((members == 1) | (volume == 0), 0.0, time)


def message_times(volume: Floats, system: NerscSystem) -> tuple[Floats, Floats]:
    """Time of a message between two accelerators, on the slow and on the fast network [s]."""
    slow, fast = _rates(system)
    return system.ib_latency + volume / slow, system.nvlink_latency + volume / fast


def _rates(system: NerscSystem) -> tuple[float, float]:
    """Bs and bf, what the networks reach [GB/s]."""
    slow = system.ib_bandwidth * system.ib_eff
    return slow, system.nvlink_bandwidth * system.nvlink_eff

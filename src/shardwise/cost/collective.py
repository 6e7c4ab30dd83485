"""Time of a collective over the network tiers that its group spans."""

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.ops.operation import CollectiveKind
from shardwise.system import Collective, System

__all__ = ["collective_time", "transfer_time"]

# Latency and bandwidth join with an exponent below one, which stands for the change of protocol
# between small and large messages. Fitted to NCCL on 1 to 8 GPUs of seven kinds (ai-dynamo/
# aiconfigurator, commit 095f58a) and on 1 to 128 nodes of A100 (NERSC transformer-perf-estimates,
# commit 54278b0): 0.54 to 0.69 everywhere.
_JOIN_EXPONENT = 0.6


def collective_time(
    system: System,
    kind: CollectiveKind,
    buffer_bytes: Floats,
    extents: Ints,
    bandwidth_share: Floats | float = 1.0,
) -> Floats:
    """Time of one collective of a group laid over the tiers by its extents [s].

    On each tier the group has x = E_t / E_(t-1) members or domains to connect and, inside each of
    them, g = E_(t-1) accelerators that send at once. With n members in all and the bytes that
    pass each, c S = (n-1)/n S (all-reduce twice that):

    latency L = sum over tiers of (alpha_t + lambda_t (x - 2)), for x > 1 (all-reduce beyond the
    first tier: log2(x) - 1 instead of x - 2); transfer W = max over tiers of c S / (g b_t BW_t),
    for x > 1; t = (L^0.6 + W^0.6)^(1/0.6).

    Parameters
    ----------
    buffer_bytes
        S, the whole buffer [byte]; where zero, nothing is exchanged.
    extents
        E_t, members within one domain of each tier; shape (tiers, rows).
    bandwidth_share
        Part of the bandwidth that this collective gets.
    """
    members = extents[-1].astype(np.float64)
    passes = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    volume = passes * (members - 1) / members * buffer_bytes
    latency = np.zeros_like(volume)
    transfer = np.zeros_like(volume)
    inner = np.ones_like(members)
    for index, tier in enumerate(system.network):
        reach = extents[index] / inner
        spans = reach > 1
        if np.any(spans):
            rates = tier.collectives[kind.value]
            doubling = kind is CollectiveKind.ALL_REDUCE and index > 0
            hops = np.log2(reach) - 1 if doubling else reach - 2
            latency += np.where(spans, rates.latency + rates.latency_per_member * hops, 0.0)
            efficiency = _efficiency(rates, reach if index == 0 else inner)
            rate = inner * efficiency * system.tier_bandwidth(index) * bandwidth_share
            transfer = np.maximum(transfer, np.where(spans, volume / rate, 0.0))
        inner = extents[index].astype(np.float64)
    return np.where(buffer_bytes > 0, _joined(latency, transfer), 0.0)


def transfer_time(system: System, message_bytes: Floats, extents: Ints) -> Floats:
    """Time of one message to the next member of an axis, over the outermost tier it spans [s].

    The slowest neighbour decides: if the members do not all share a domain of a tier, some message
    crosses to the next one. t = (L^0.6 + W^0.6)^(1/0.6) with W = S / (b_t BW_t).
    """
    time = np.zeros_like(message_bytes, dtype=np.float64)
    inner = np.ones_like(message_bytes, dtype=np.float64)
    for index, tier in enumerate(system.network):
        spans = (extents[index] > inner) & (message_bytes > 0)
        if np.any(spans):
            rates = tier.collectives["p2p"]
            efficiency = _efficiency(rates, np.ones_like(inner))
            transfer = message_bytes / (efficiency * system.tier_bandwidth(index))
            latency = np.full_like(transfer, rates.latency)
            time = np.where(spans, _joined(latency, transfer), time)
        inner = extents[index].astype(np.float64)
    return time


def _joined(latency: Floats, transfer: Floats) -> Floats:
    return (latency**_JOIN_EXPONENT + transfer**_JOIN_EXPONENT) ** (1 / _JOIN_EXPONENT)


def _efficiency(rates: Collective, members: Floats) -> Floats:
    """Interpolate the share of the bandwidth in the logarithm of the members."""
    known = sorted(rates.efficiency)
    shares = [rates.efficiency[count] for count in known]
    if len(known) == 1:
        return np.full_like(members, shares[0])
    return np.interp(np.log(members), np.log(known), shares)

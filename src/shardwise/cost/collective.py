"""Time of a collective over the network tiers that its group spans.

Latency and transfer join with an exponent x of the tier, which stands for the change of protocol
between small and large messages where it is below one. Fitted to NCCL on 1 to 8 GPUs of seven kinds
(ai-dynamo/aiconfigurator, commit 095f58a) and on 1 to 128 nodes of A100 (NERSC
transformer-perf-estimates, commit 54278b0) it is 0.54 to 0.69 everywhere, hence 0.6 by default.
With 1 they add up, as in Calculon 0.1.0 (commit caa4b11, calculon/network.py).

NCCL has two protocols for the rings of gathers and scatters: one of low latency, whose rate does
not grow with the links, and one of high bandwidth that pays more for each member. Between nodes,
where both were seen, a tier may give them apart (`network.Bulk`).
"""

import numpy as np

from shardwise.arrays import Floats, Ints, interpolated
from shardwise.config.network import Bulk, Collective
from shardwise.config.system import System
from shardwise.ops.operation import CollectiveKind

NO_DATA = 1e-30
"""A buffer whose collective takes the latency alone [byte]; with 0 there would be none."""
_PASSED_ON = (CollectiveKind.P2P, CollectiveKind.BROADCAST, CollectiveKind.REDUCE)


def collective_time(
    system: System,
    kind: CollectiveKind,
    buffer_bytes: Floats,
    extents: Ints,
    bandwidth_share: Floats | float = 1.0,
    far_share: Floats | float = 1.0,
) -> Floats:
    """Time of one collective of a group laid over the tiers by its extents [s].

    On each tier the group has x = E_t / E_(t-1) members or domains to connect and, inside each of
    them, g = E_(t-1) accelerators that send at once. With n members in all, c_t S bytes pass each
    of them: c_t = scale (1 + offset / n) where the tier gives these, else as in a ring (n-1)/n,
    twice that for an all-reduce. In an all-to-all every member sends its own buffer: beyond the
    first tier g is 1, and only what leaves the domain inside counts, c_t = 1 - E_(t-1) / n. What is
    broadcast or reduced to one member is passed on from one to the next in pieces, so that all of
    it passes each of them: c_t = 1.

    latency L = sum over tiers of (alpha_t + lambda_t (x - 2)), for x > 1 (all-reduce beyond the
    first tier: log2(x) - 1 instead of x - 2). A tier with the links of the tier inside, where the
    group has y > 1 to connect, adds only the hops that it has more than there, lambda_t y (x - 1)
    (all-reduce: lambda_t log2(x)). Transfer W = max over tiers of c_t S / (g b_t BW_t),
    for x > 1; t = (L^j + W^j)^(1/j) with the join exponent j of the outermost of these tiers. Where
    that one has a protocol of its own for large buffers, t = min(L + c S / r, (B^k + W^k)^(1/k))
    with the rate r of small ones and B = beta + mu (n - 2), k of large ones.

    Parameters
    ----------
    system
        Network tiers with latencies, bandwidths and efficiencies.
    kind
        All-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce or p2p.
    buffer_bytes
        S, the full buffer [byte]; where zero, there is no communication; shape (n,).
    extents
        E_t, members within one domain of each tier; shape (tiers, rows).
    bandwidth_share
        Share of the bandwidth that this collective gets; a number or shape (n,).
    far_share
        Share of an all-to-all's bytes beyond the first tier that are sent, where copies for one
        domain travel once; a number or shape (n,).
    """
    runs = (buffer_bytes > 0) & (extents[-1] > 1)
    if not runs.any():
        return np.zeros(np.broadcast_shapes(buffer_bytes.shape, extents[-1].shape))
    members = extents[-1].astype(np.float64)
    latency = np.zeros_like(members * buffer_bytes)
    transfer, join = np.zeros(latency.shape), np.ones(latency.shape)
    inner, within = np.ones(members.shape), np.ones(members.shape)
    outermost = np.full(members.shape, -1)
    for index, tier in enumerate(system.network):
        reach = extents[index] / inner
        spans = reach > 1
        if spans.any():
            rates = tier.rates_of(kind.value)
            doubling = kind is CollectiveKind.ALL_REDUCE and index > 0
            hops = np.log2(reach) - 1 if doubling else reach - 2
            waiting = rates.latency + rates.latency_per_member * hops
            if tier.same_links:
                more = rates.latency_per_member * (hops + 1) * (1 if doubling else within)
                waiting = np.where(within > 1, more, waiting)
            latency += np.where(spans, waiting, 0.0)
            efficiency = _efficiency(rates, reach if index == 0 else inner)
            rate = efficiency * system.tier_bandwidth(index) * bandwidth_share
            passing = _passing(kind, rates, members)
            if kind is not CollectiveKind.ALL_TO_ALL:
                rate = rate * inner
            elif index > 0:
                leaving = 1 - inner / members if rates.scale is None else passing
                passing = leaving * far_share
            volume = passing * buffer_bytes
            transfer = np.maximum(transfer, np.where(spans, volume / rate, 0.0))
            join = np.where(spans, tier.join_exponent, join)
            outermost = np.where(spans, index, outermost)
        within = reach
        inner = extents[index].astype(np.float64)
    time = _joined(latency, transfer, join)
    for index, tier in enumerate(system.network):
        rates = tier.rates_of(kind.value)
        if rates.bulk is not None and (outermost == index).any():
            small = _passing(kind, rates, members) * buffer_bytes / bandwidth_share
            two = _two_protocols(rates.bulk, latency, small, transfer, members)
            time = np.where(outermost == index, two, time)
    return np.where(runs, time, 0.0)


def _two_protocols(
    bulk: Bulk, latency: Floats, passing_bytes: Floats, transfer: Floats, members: Floats
) -> Floats:
    """Time of the faster of the protocols of small and of large buffers [s].

    Notes
    -----
    Fitted to the gathers and scatters of NERSC's times on 2 to 128 nodes, the median error from 1
    to 32 MiB is 8 % (with one protocol 17 %), above 1.3 % (5 %); left out one number of nodes at a
    time, 8 and 1.5 %.
    """
    small = latency + passing_bytes / bulk.small_rate
    waiting = bulk.latency + bulk.latency_per_member * (members - 2)
    return np.minimum(small, _joined(waiting, transfer, bulk.join_exponent))


def transfer_time(system: System, message_bytes: Floats, extents: Ints) -> Floats:
    """Time of one message to the next member of an axis, over the outermost tier it spans [s].

    The slowest neighbor decides: if the members do not all share a domain of a tier, some message
    crosses to the next one. t = (L^j + W^j)^(1/j) with W = c S / (b_t BW_t), c the scale of the
    tier's p2p (1 where it gives none) and j its join exponent.

    Parameters
    ----------
    system
        Network tiers with latencies and bandwidths.
    message_bytes
        S, one message [byte]; where zero, there is none; shape (n,).
    extents
        Members of the axis within one domain of each tier; shape (tiers, n).
    """
    time = np.zeros_like(message_bytes, dtype=np.float64)
    inner = np.ones_like(message_bytes, dtype=np.float64)
    for index, tier in enumerate(system.network):
        spans = (extents[index] > inner) & (message_bytes > 0)
        if spans.any():
            rates = tier.collectives["p2p"]
            efficiency = _efficiency(rates, np.ones_like(inner))
            passing = _passing(CollectiveKind.P2P, rates, inner) * message_bytes
            transfer = passing / (efficiency * system.tier_bandwidth(index))
            latency = np.full_like(transfer, rates.latency)
            time = np.where(spans, _joined(latency, transfer, tier.join_exponent), time)
        inner = extents[index].astype(np.float64)
    return time


def _passing(kind: CollectiveKind, rates: Collective, members: Floats) -> Floats:
    """Bytes that pass each of n members over those of the buffer."""
    if rates.scale is not None:
        offset = 0.0 if rates.offset is None else rates.offset
        return rates.scale * (1 + offset / members)
    if kind in _PASSED_ON:
        return np.ones_like(members)
    passes = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    return passes * (members - 1) / members


def _joined(latency: Floats, transfer: Floats, exponent: Floats | float) -> Floats:
    joined: Floats = (latency**exponent + transfer**exponent) ** (1 / exponent)
    return joined


def _efficiency(rates: Collective, members: Floats) -> Floats:
    """Interpolate the share of the bandwidth in the logarithm of the members."""
    known = sorted(rates.efficiency)
    shares = [rates.efficiency[count] for count in known]
    if len(known) == 1:
        return np.full_like(members, shares[0])
    return interpolated(np.log(members), np.log(known), shares)

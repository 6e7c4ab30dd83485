"""Sending the tokens of experts: which ranks they reach, and how long DeepEP and HybridEP take.

Both libraries send a token once to each domain and rank that has some of its experts (dispatch),
and add what these return on the way back (combine). A few multiprocessors move the rows.
"""

from functools import lru_cache
from math import comb

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.enums import Dispatcher
from shardwise.config.network import SendKernel
from shardwise.config.strategy_table import Table
from shardwise.config.system import DispatchLibrary, System
from shardwise.distinct import distinct_rows
from shardwise.ops.operation import Routing

# How the times of multiprocessors and links join. Left free, the fits of the kernels below find
# 3 to 6 on Hopper; on Blackwell, where no link is full, any value fits.
_JOIN = 3.0
_MOST_SHARE = 0.9
"""As much of the multiprocessors as a stack may say."""
LIBRARIES: dict[DispatchLibrary, Dispatcher] = {
    "deepep": Dispatcher.DEEPEP,
    "hybridep": Dispatcher.HYBRIDEP,
}


def reached_places(places: Floats, domains: Floats, routing: Routing) -> Floats:
    """Expected number of equal places (ranks or domains) that have some of a token's experts.

    k of E experts are drawn without repetition, E / P of them on each of P places:
    R = P (1 - C(E - E/P, k) / C(E, k)). With node-limited routing the experts form G groups, G' of
    them are drawn first, all sets alike, and k of their n = G' E / G experts then. A place in a
    group (P >= G) is met with probability G'/G (1 - C(n - E/P, k) / C(n, k)). One of g = G / P
    groups is missed with probability sum over j of h(j) C(n - j E/G, k) / C(n, k), where
    h(j) = C(g, j) C(G - g, G' - j) / C(G, G') for j of its groups being drawn.

    Parameters
    ----------
    places
        P; shape (n,).
    domains
        Domains of the innermost tier, each a group where the routing does not number its groups;
        shape (n,).
    routing
        E, k, G and G'.
    """
    places, domains = np.broadcast_arrays(
        np.asarray(places, dtype=np.float64), np.asarray(domains, dtype=np.float64)
    )
    firsts, position = distinct_rows([places, domains])
    pairs = zip(places[firsts].tolist(), domains[firsts].tolist(), strict=True)
    return np.array([_reached(place, domain, routing) for place, domain in pairs])[position]


@lru_cache(maxsize=4096)
def _reached(places: float, domains: float, routing: Routing) -> float:
    """`reached_places` of one number of places."""
    experts, chosen = float(routing.experts), routing.top_groups
    groups = domains if routing.groups is None else float(routing.groups)
    own = experts / places
    if chosen is None or chosen >= groups:
        return places * (1 - _missed(experts, own, routing.top_k))
    candidates = experts * chosen / groups
    if places >= groups:
        return places * chosen / groups * (1 - _missed(candidates, own, routing.top_k))
    low = int(groups // places)  # places that do not divide the groups have low or low + 1
    more = groups / places - low
    missed = [_missed_groups(low + extra, groups, routing) for extra in range(2 if more else 1)]
    return places * (1 - float(np.interp(more, (0, 1)[: len(missed)], missed)))


def _missed_groups(own: int, groups: float, routing: Routing) -> float:
    """Probability that no expert of a token is in so many of the groups."""
    chosen, number = routing.top_groups or 0, int(groups)
    experts = routing.experts / groups
    drawn = range(max(0, chosen - (number - own)), min(own, chosen) + 1)
    ways = [comb(own, j) * comb(number - own, chosen - j) for j in drawn]
    missed = [_missed(experts * chosen, experts * j, routing.top_k) for j in drawn]
    return sum(w * m for w, m in zip(ways, missed, strict=True)) / sum(ways)


def _missed(candidates: float, own: float, top_k: int) -> float:
    """Probability that none of k experts drawn from candidates is one's own."""
    drawn = np.arange(top_k)
    left = np.maximum(candidates - drawn, 1.0)
    return float(np.prod(np.maximum(candidates - own - drawn, 0.0) / left))


def send_time(
    system: System,
    kernel: SendKernel,
    *,
    tokens: Floats,
    row_bytes: Floats,
    routing: Routing,
    multiprocessors: Floats | float,
    extents: Ints,
) -> Floats:
    """Time of a dispatch or combine kernel of DeepEP or HybridEP, alone [s].

    With T tokens of r bytes on a rank, that reach R of the E_last ranks and F of the
    D = E_last / E_0 domains of E_0 ranks (`reached_places`), s multiprocessors move
    m = T (R (r + row_bytes) + token_share r + token_bytes) bytes, relay_factor times as slowly with
    several domains: t_m = m / (s rate). What goes to other ranks of a domain crosses its links,
    t_l = T R r (1 - 1/E_0) / (link_efficiency BW_0). What goes to other domains crosses the tiers
    t beyond, t_f = max over t of T F r (1 - E_(t-1) / E_last) / (fabric_efficiency BW_t); it is
    relayed there. t = latency + latency_per_doubling log2(D) + (t_m^3 + t_l^3 + t_f^3)^(1/3).

    Parameters
    ----------
    tokens
        T; where zero, nothing is sent; shape (n,).
    row_bytes
        r [byte]; shape (n,).
    multiprocessors
        s; a number or shape (n,).
    extents
        E_t, ranks within one domain of each tier; shape (tiers, n).

    Notes
    -----
    Fitted to 4,861 dispatches and as many combines of DeepEP inside a node of H100, H200, B200 and
    GB200, and on 2 and 4 nodes of H100 (ai-dynamo/aiconfigurator, commit 095f58a): mean errors of
    4 to 8 %; docs/accuracy/kernels.md has them by accelerator and size, and what was left out.
    """
    inside, members = extents[0].astype(np.float64), extents[-1].astype(np.float64)
    domains = members / inside
    ranks = reached_places(members, domains, routing)
    sent = tokens * row_bytes
    moved = sent * (ranks + kernel.token_share)
    moved = moved + tokens * (ranks * kernel.row_bytes + kernel.token_bytes)
    moved = moved * np.where(domains > 1, kernel.relay_factor, 1.0)
    by_processors = moved / (multiprocessors * kernel.rate)
    link_rate = kernel.link_efficiency * system.tier_bandwidth(0)
    by_links = sent * ranks * (1 - 1 / inside) / link_rate
    by_fabric = np.zeros(by_links.shape)
    reached = reached_places(domains, domains, routing)
    for tier in range(1, len(system.network)):
        rate = kernel.fabric_efficiency * system.tier_bandwidth(tier)
        leaving = sent * reached * (1 - extents[tier - 1] / members)
        spans = extents[tier] > extents[tier - 1]
        by_fabric = np.maximum(by_fabric, np.where(spans, leaving / rate, 0.0))
    joined = (by_processors**_JOIN + by_links**_JOIN + by_fabric**_JOIN) ** (1 / _JOIN)
    waiting = kernel.latency + kernel.latency_per_doubling * np.log2(domains)
    return np.where((tokens > 0) & (members > 1), waiting + joined, 0.0)


def dispatch_multiprocessors(table: Table) -> Floats:
    """Multiprocessors that the library of each row's dispatcher uses; 1 for other dispatchers."""
    deepep = table.by_stack(lambda stack: stack.deepep_multiprocessors)
    hybridep = table.by_stack(lambda stack: stack.hybridep_multiprocessors)
    codes = [Dispatcher.DEEPEP.code, Dispatcher.HYBRIDEP.code]
    return np.select([table.dispatcher == code for code in codes], [deepep, hybridep], 1.0)


def dispatch_processor_share(system: System, table: Table) -> Floats:
    """Share of the multiprocessors that communication of experts takes from concurrent compute.

    Those of the library over those of the chip where the system has figures of its kernels, else
    what the stack says.
    """
    share: Floats = table.by_stack(lambda stack: stack.expert_overlap_processors)
    chip = table.on(system).accelerator.multiprocessors
    if chip is None or not system.expert_kernels:
        return share
    known = [LIBRARIES[name].code for name in system.expert_kernels]
    used = np.minimum(dispatch_multiprocessors(table) / chip, _MOST_SHARE)
    return np.where(np.isin(table.dispatcher, known), used, share)

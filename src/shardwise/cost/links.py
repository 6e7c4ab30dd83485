"""What collectives inside layers run on, and their times alone; sending tokens to experts.

DeepEP and HybridEP send a token once to each domain and rank that has some of its experts
(dispatch), and add what these return on the way back (combine). A few multiprocessors move the
rows.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints, among, columns_in, gather
from shardwise.config.enums import Dispatcher
from shardwise.config.network import SendKernel
from shardwise.config.strategy_fields import LAYER_AXES
from shardwise.config.strategy_table import Table
from shardwise.config.system import DispatchLibrary, System
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.distinct import distinct_rows
from shardwise.ops.operation import Collective, CollectiveKind, Routing, Tokens
from shardwise.parallel.placement import Extents
from shardwise.records import dataclass, replace

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
    return np.where(among(table.dispatcher, known), used, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What collectives run on, and what they may overlap, as columns.

    Rows that differ only in these share their kernels: there may be more rows than of a `Machine`.
    """

    system: System
    extents: Mapping[str, Ints]
    """Extents of each axis that communicates inside layers; shape (tiers, rows)."""
    communication_factor: Floats
    """Time of collectives inside layers over their time alone."""
    expert_communication_factor: Floats
    """The same for collectives of experts."""
    tp_overlap: Ints
    """Code of `TpOverlap`."""
    tp_hidden: Floats
    tp_backward_async: Bools
    dispatcher: Ints
    """Code of `Dispatcher`."""
    dispatch_multiprocessors: Floats
    """Multiprocessors that send tokens to experts."""
    several_systems: bool
    """Whether figures of the system are columns."""
    one_accelerator: bool = True
    """Whether none of them are of the accelerator: kernels are those of the system as it is."""
    kernels: Ints | None = None
    """The row of the machine that each row has its kernels of; None: as many rows, in order."""

    @classmethod
    def of(
        cls, system: System, table: Table, extents: Extents, kernels: Ints | None = None
    ) -> "Links":
        """Gather the rates of each row."""
        on = table.on(system)
        return cls(
            system=on,
            extents={axis: getattr(extents, axis) for axis in LAYER_AXES},
            communication_factor=table.by_stack(lambda stack: stack.exchange_time_factor),
            expert_communication_factor=table.by_stack(lambda stack: stack.expert_exchange_factor),
            tp_overlap=table.tp_overlap,
            tp_hidden=table.by_stack(lambda stack: stack.tp_hidden),
            tp_backward_async=table.by_stack(lambda stack: stack.tp_backward_async),
            dispatcher=table.dispatcher,
            dispatch_multiprocessors=dispatch_multiprocessors(table),
            several_systems=table.systems is not None,
            one_accelerator=on.accelerator is system.accelerator,
            kernels=kernels,
        )

    @classmethod
    def silent(cls, system: System, rows: int) -> "Links":
        """Rows without communication: every axis has one member."""
        one, none = np.ones(rows), np.zeros(rows, dtype=np.bool_)
        alone = np.ones((len(system.network), rows), dtype=np.int64)
        return cls(
            system=system,
            extents=dict.fromkeys(LAYER_AXES, alone),
            communication_factor=one,
            expert_communication_factor=one,
            tp_overlap=np.zeros(rows, dtype=np.int64),
            tp_hidden=0 * one,
            tp_backward_async=none,
            dispatcher=np.zeros(rows, dtype=np.int64),
            dispatch_multiprocessors=one,
            several_systems=False,
        )

    @property
    def columns(self) -> list[Column]:
        """All that distinguishes rows of the same kernels."""
        own = columns_in(replace(self, kernels=None))
        return [*own, *(row for extents in self.extents.values() for row in extents)]

    def of_kernels(self, column: Column) -> Any:
        """The value of each row, of a column of the rows of the machine."""
        return column if self.kernels is None else column[self.kernels]

    def take(self, rows: Ints | slice) -> "Links":
        """Some of the rows, of one system."""
        extents = {axis: extents[:, rows] for axis, extents in self.extents.items()}
        return replace(gather(self, rows), extents=extents)

    def factor_of(self, collective: Collective) -> Floats:
        """Time of a collective in a step over its time alone.

        Tokens that ep gathers or reduce-scatters go through the kernels of other axes.
        """
        swaps = collective.kind is CollectiveKind.ALL_TO_ALL
        if collective.axis == "etp" or (collective.axis == "ep" and swaps):
            return self.expert_communication_factor
        return self.communication_factor


class CollectiveTimes:
    """Times of collectives alone, and what they use of the processor; equal ones are found once."""

    __slots__ = ("_alike", "_alone", "_shares", "links")

    def __init__(self, links: Links) -> None:
        self.links = links
        self._alone: dict[tuple[object, ...], Floats] = {}
        self._alike: dict[str, Ints] = {}
        self._shares: dict[str, Floats] = {}

    def alone_s(self, collective: Collective) -> Floats:
        """Time of a collective that no product hides [s]."""
        one = collective
        what: tuple[object, ...] = (one.kind, one.axis, one.in_ring, one.bytes.tobytes())
        if one.tokens is not None:
            sent = one.tokens
            what += (sent.routing, sent.combines, sent.row_bytes.tobytes())
        if what not in self._alone:
            self._alone[what] = self._alone_s(collective)
        return self._alone[what]

    def _alone_s(self, collective: Collective) -> Floats:
        links = self.links
        if links.several_systems or len(links.tp_hidden) == 1:
            return _alone_s(_taken(collective, links.of_kernels), links)
        keys = [collective.bytes]
        if collective.tokens is not None:
            keys.append(np.broadcast_to(collective.tokens.row_bytes, collective.bytes.shape))
        of_code, codes = distinct_rows(keys)
        codes = links.of_kernels(codes)
        firsts, position = distinct_rows([codes, self._alike_on(collective.axis)])
        chosen = of_code[codes[firsts]]
        found = _alone_s(_taken(collective, lambda column: column[chosen]), links.take(firsts))
        return found[position]

    def processor_share(self, axis: str) -> Floats:
        """Share of the processor that communication of an axis uses."""
        if axis not in self._shares:
            self._shares[axis] = processor_share(self.links.system, self.links.extents[axis])
        return self._shares[axis]

    def _alike_on(self, axis: str) -> Ints:
        """Equal numbers in rows where equal bytes take as long on an axis."""
        links = self.links
        if axis not in self._alike:
            factors = (links.communication_factor, links.expert_communication_factor)
            sends = (links.dispatcher, links.dispatch_multiprocessors)
            columns = [*links.extents[axis], *factors, *(sends if axis == "ep" else ())]
            self._alike[axis] = distinct_rows(columns)[1]
        return self._alike[axis]


def _taken(collective: Collective, select: Callable[[Column], Any]) -> Collective:
    """The collective with its columns of other rows."""
    tokens = collective.tokens
    if tokens is not None:
        rows = np.broadcast_to(tokens.row_bytes, collective.bytes.shape)
        tokens = replace(tokens, row_bytes=select(rows))
    return replace(collective, bytes=select(collective.bytes), tokens=tokens)


def _alone_s(collective: Collective, links: Links) -> Floats:
    """Time of a collective: of n - 1 messages to the next member in a ring."""
    extents = links.extents[collective.axis]
    if collective.in_ring:
        others = np.maximum(extents[-1] - 1, 1)
        time = others * transfer_time(links.system, collective.bytes / others, extents)
    elif collective.tokens is None:
        time = collective_time(links.system, collective.kind, collective.bytes, extents)
    else:
        time = _tokens_s(collective, collective.tokens, links, extents)
    return time * np.where(
        slowed_by_compute(links.system, extents), links.factor_of(collective), 1.0
    )


def _tokens_s(collective: Collective, tokens: Tokens, links: Links, extents: Ints) -> Floats:
    """Time of sending tokens to experts or back.

    By the kernels of the row's dispatcher where the system has their figures. Else as an all-to-all
    of all copies, or of one copy for each rank and domain where the dispatcher sends those.
    """
    system, routing = links.system, tokens.routing
    copies, sent, far_share = routing.top_k, np.ones(extents.shape[1]), np.ones(extents.shape[1])
    once = np.array([word.sends_once for word in Dispatcher])[links.dispatcher]
    if once.any():
        domains = extents[-1] / extents[0]
        near = reached_places(extents[-1].astype(np.float64), domains, routing)
        far = reached_places(domains, domains, routing)
        sent = np.where(once, near / copies, 1.0)
        far_share = np.where(once, far / near, 1.0)
    time = collective_time(
        system, collective.kind, collective.bytes * sent, extents, far_share=far_share
    )
    for name, kernels in system.expert_kernels.items():
        rows = links.dispatcher == LIBRARIES[name].code
        if rows.any():
            kernel = send_time(
                system,
                kernels.combine if tokens.combines else kernels.dispatch,
                tokens=collective.bytes / (copies * tokens.row_bytes),
                row_bytes=tokens.row_bytes,
                routing=routing,
                multiprocessors=links.dispatch_multiprocessors,
                extents=extents,
            )
            time = np.where(rows, kernel, time)
    return time


def processor_share(system: System, extents: Ints) -> Floats:
    """Share of the processor that communication of an axis uses: the largest of its tiers.

    Parameters
    ----------
    extents
        Extents of the axis; shape (tiers, n).
    """
    shares = np.zeros(extents.shape[1])
    inner = np.ones(extents.shape[1], dtype=np.int64)
    for extent, tier in zip(extents, system.network, strict=True):
        shares = np.where(extent > inner, np.maximum(shares, tier.processor_share), shares)
        inner = extent
    return shares


def slowed_by_compute(system: System, extents: Ints) -> Bools:
    """Whether concurrent compute slows communication of an axis.

    The outermost tier that it spans decides, as for the join of latency and transfer.

    Parameters
    ----------
    extents
        Extents of the axis; shape (tiers, n).
    """
    slowed = np.ones(extents.shape[1], dtype=np.bool_)
    inner = np.ones(extents.shape[1], dtype=np.int64)
    for extent, tier in zip(extents, system.network, strict=True):
        slowed = np.where(extent > inner, tier.slowed_by_compute, slowed)
        inner = extent
    return slowed

"""What collectives inside layers run on, and their times alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints, gather
from shardwise.config.enums import Dispatcher
from shardwise.config.strategy_fields import LAYER_AXES
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.dispatch import (
    LIBRARIES,
    dispatch_multiprocessors,
    reached_places,
    send_time,
)
from shardwise.distinct import distinct_rows
from shardwise.ops.operation import Collective, CollectiveKind, Tokens
from shardwise.parallel.placement import Extents


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
    kernels: Ints | None = None
    """The row of the machine that each row has its kernels of; None: as many rows, in order."""

    @classmethod
    def of(
        cls, system: System, table: Table, extents: Extents, kernels: Ints | None = None
    ) -> "Links":
        """Gather the rates of each row."""
        return cls(
            system=table.on(system),
            extents={axis: getattr(extents, axis) for axis in LAYER_AXES},
            communication_factor=table.by_stack(lambda stack: stack.exchange_time_factor),
            expert_communication_factor=table.by_stack(lambda stack: stack.expert_exchange_factor),
            tp_overlap=table.tp_overlap,
            tp_hidden=table.by_stack(lambda stack: stack.tp_hidden),
            tp_backward_async=table.by_stack(lambda stack: stack.tp_backward_async),
            dispatcher=table.dispatcher,
            dispatch_multiprocessors=dispatch_multiprocessors(table),
            several_systems=table.systems is not None,
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

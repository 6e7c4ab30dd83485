"""Which ranks communicate: the rank of every accelerator and the groups of every axis.

Ranks are numbered from the innermost network tier out, so that accelerators of one node, and of one
domain of any tier, have consecutive ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.enums import EXTENT_AXES, PLACEMENTS, Schedule
from shardwise.config.extents import axis_order
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.placement import fixed_tiers, place

# From the innermost out (Megatron-LM core, parallel_state.py).
EXPERT_AXES = ("etp", "ep", "edp")
# Every rank is a record of its own; the largest clusters have a few hundred thousand.
_MOST_RANKS = 1 << 20
_NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroups:
    """The communication groups of one axis."""

    degree: int
    """Members of a group."""
    extents: tuple[int, ...]
    """Members within one domain of each network tier, inside out."""
    groups: Ints
    """Ranks by group and coordinate on the axis, shape (groups, degree); rows by first rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """A network tier, and what of it the ranks use."""

    name: str
    domain: int
    """Ranks that one domain connects."""
    domains: int
    """Domains with ranks."""
    bandwidth: float
    """Of one accelerator in one direction while all of a node communicate [byte/s]."""
    links_per_node: int | None
    """Links that the accelerators of a node share; None: each has its own."""
    carries: tuple[str, ...]
    """Axes whose groups this is the outermost tier of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeers:
    """One rank: its place and the ranks that it communicates with."""

    rank: int
    node: int
    stage: int
    """Pipeline stage: its coordinate on pp."""
    tp: int
    """Coordinate on this axis; likewise below."""
    tp2: int | None
    """None without 2D products."""
    cp: int
    dp: int
    pp: int
    tp_peers: tuple[int, ...]
    """The other ranks of its group, in order; likewise below."""
    tp2_peers: tuple[int, ...]
    cp_peers: tuple[int, ...]
    dp_peers: tuple[int, ...]
    pp_peers: tuple[int, ...]
    etp: int | None
    """Coordinate on this axis of experts; None without experts; likewise below."""
    ep: int | None
    edp: int | None
    etp_peers: tuple[int, ...]
    """The other ranks that hold shards of the same experts."""
    ep_peers: tuple[int, ...]
    """The other ranks of its all-to-all of tokens."""
    edp_peers: tuple[int, ...]
    """The other ranks that hold the same experts."""
    previous_rank: int | None
    """Rank of the previous pipeline stage: activations come from it, gradients go to it."""
    next_rank: int | None
    """Rank of the next pipeline stage."""
    embedding_peer: int | None
    """Rank with the other copy of the embedding: on the last stage for the first, or vice versa."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Ranks and communication groups of a strategy; columns hold one item per rank."""

    model: str
    system: str
    strategy: dict[str, Any]
    """All fields, defaults filled in."""
    accelerators_per_node: int
    """That have a rank: all of them, or fewer where an axis is fixed to an outer tier."""
    tiers: tuple[str, ...]
    """Names of the network tiers, inside out."""
    network: tuple[TierUse, ...]
    """The same tiers with rates and axes."""
    axes: Mapping[str, AxisGroups]
    """By axis."""
    coordinates: Mapping[str, Ints]
    """By axis, the coordinate of each rank on it."""
    node: Ints
    """Nodes are filled in the order of the ranks."""
    previous_rank: Ints
    """Rank of the previous pipeline stage, -1 for none."""
    next_rank: Ints
    """Rank of the next pipeline stage, -1 for none."""
    embedding_groups: Ints
    """Ranks of first and last stage that each hold a copy of the embedding, for a tied head or for
    multi-token prediction; shape (groups, 2)."""

    def __len__(self) -> int:
        return len(self.node)

    def group(self, axis: str, rank: int) -> list[int]:
        """Return the ranks of the group on an axis that a rank belongs to."""
        groups = self.axes[axis].groups
        first = np.argmax(np.any(groups == rank, axis=1))
        return groups[first].tolist()

    def of(self, rank: int) -> RankPeers:
        """Return one rank's place and peers.

        Raises
        ------
        InputError
            If there is no such rank.
        """
        if not 0 <= rank < len(self):
            problem = f"no such rank; allowed: 0 to {len(self) - 1}"
            raise InputError(Fault(field="rank", value=rank, has_value=True, problem=problem))
        at = {axis: int(column[rank]) for axis, column in self.coordinates.items()}
        return RankPeers(
            rank=rank,
            node=int(self.node[rank]),
            stage=at["pp"],
            tp=at["tp"],
            tp2=at.get("tp2"),
            cp=at["cp"],
            dp=at["dp"],
            pp=at["pp"],
            tp_peers=self._others("tp", rank),
            tp2_peers=self._others("tp2", rank),
            cp_peers=self._others("cp", rank),
            dp_peers=self._others("dp", rank),
            pp_peers=self._others("pp", rank),
            etp=at.get("etp"),
            ep=at.get("ep"),
            edp=at.get("edp"),
            etp_peers=self._others("etp", rank),
            ep_peers=self._others("ep", rank),
            edp_peers=self._others("edp", rank),
            previous_rank=_or_none(self.previous_rank[rank]),
            next_rank=_or_none(self.next_rank[rank]),
            embedding_peer=_or_none(self._embedding_peer()[rank]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON.

        A rank names its groups by their positions in `axes`, so that the total size grows with the
        number of ranks, not with its square; `of` lists the peers of one.
        """
        columns = {"rank": np.arange(len(self)), "node": self.node, "stage": self.coordinates["pp"]}
        columns |= self.coordinates
        for axis, described in self.axes.items():
            position = np.empty(len(self), dtype=np.int64)
            position[described.groups] = np.arange(len(described.groups))[:, None]
            columns[f"{axis}_group"] = position
        lists: dict[str, list[object]] = {name: c.tolist() for name, c in columns.items()}
        maybe = {"previous_rank": self.previous_rank, "next_rank": self.next_rank}
        maybe["embedding_peer"] = self._embedding_peer()
        for name, column in maybe.items():
            lists[name] = [_or_none(other) for other in column.tolist()]
        return {
            "model": self.model,
            "system": self.system,
            "strategy": self.strategy,
            "nodes": int(self.node[-1]) + 1,
            "accelerators_per_node": self.accelerators_per_node,
            "tiers": list(self.tiers),
            "network": [asdict(tier) | {"carries": list(tier.carries)} for tier in self.network],
            "axes": {
                axis: {
                    "degree": described.degree,
                    "extents": list(described.extents),
                    "groups": described.groups.tolist(),
                }
                for axis, described in self.axes.items()
            },
            "embedding_groups": self.embedding_groups.tolist(),
            "ranks": [
                dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)
            ],
        }

    def _others(self, axis: str, rank: int) -> tuple[int, ...]:
        members = self.group(axis, rank) if axis in self.axes else []
        return tuple(member for member in members if member != rank)

    def _embedding_peer(self) -> Ints:
        """For each rank, who holds the other copy of the embedding; -1 for nobody."""
        peer = np.full(len(self), _NOBODY, dtype=np.int64)
        peer[self.embedding_groups] = self.embedding_groups[:, ::-1]
        return peer


def peers_of(model: Model, system: System, strategy: Strategy) -> Peers:
    """Number the ranks of a strategy and list its communication groups.

    Parameters
    ----------
    model
        Architecture: decides what is legal, and whether the last stage has a copy of the embedding.
    strategy
        Degrees, placement, schedule; None is filled in as for an estimate.

    Raises
    ------
    InputError
        If the strategy is not legal, or has too many ranks to list.
    """
    resolved = strategy.resolved(model, system)
    table = Table.of(model, [resolved])
    refuse_illegal(model, system, table)
    if int(table.gpus[0]) > _MOST_RANKS:
        fault = Fault(
            source="strategy",
            field="gpus",
            value=int(table.gpus[0]),
            has_value=True,
            problem=f"too many ranks to list; allowed: up to {_MOST_RANKS}",
        )
        raise InputError(fault)
    placed = place(system, table)
    extents = {axis: getattr(placed, axis)[:, 0] for axis in EXTENT_AXES}
    coordinates = rank_coordinates(extents, axis_order(PLACEMENTS[int(table.placement[0])]))
    shown = [axis for axis in EXTENT_AXES if axis != "tp2" or table.tp2[0] > 1]
    axes = _groups(extents, coordinates, shown)
    if model.has_experts:
        within = {axis: getattr(placed, axis)[:, 0] for axis in EXPERT_AXES}
        of_experts = _expert_coordinates(within, coordinates["pp"])
        axes |= _groups(within, of_experts | {"pp": coordinates["pp"]}, EXPERT_AXES)
        coordinates = coordinates | of_experts
    pipelines = axes["pp"].groups
    explicit = bool(np.any(fixed_tiers(table) >= 0)) or int(table.extents[0]) >= 0
    per_node = _used_of_a_node(system, extents) if explicit else system.node.accelerators
    around = int(table.schedule[0]) == Schedule.INTERLEAVED.code
    copied = model.tied_embeddings or model.mtp > 0
    shares = copied and axes["pp"].degree > 1 and not table.joins_ends[0]
    # Domains of each tier that have ranks, and the axes that reach it and none beyond.
    ranks = int(table.gpus[0])
    outermost = {
        axis: sum(extent < one.degree for extent in one.extents)
        for axis, one in axes.items()
        if one.degree > 1
    }
    sizes = [min(tier.domain or ranks, ranks) for tier in system.network]
    return Peers(
        model=model.name,
        system=system.name,
        strategy=resolved.to_dict(),
        accelerators_per_node=per_node,
        tiers=tuple(tier.name for tier in system.network),
        network=tuple(
            TierUse(
                name=tier.name,
                domain=size,
                domains=-(-ranks // size),
                bandwidth=float(system.tier_bandwidth(place)),
                links_per_node=tier.links_per_node,
                carries=tuple(axis for axis, reach in outermost.items() if reach == place),
            )
            for place, (tier, size) in enumerate(zip(system.network, sizes, strict=True))
        ),
        axes=axes,
        coordinates={axis: coordinates[axis] for axis in axes},
        node=np.arange(pipelines.size) // per_node,
        previous_rank=_neighbors(pipelines[:, ::-1], around=around),
        next_rank=_neighbors(pipelines, around=around),
        embedding_groups=pipelines[:, [0, -1]] if shares else pipelines[:0, [0, -1]],
    )


def _groups(
    extents: Mapping[str, Ints], coordinates: Mapping[str, Ints], axes: Sequence[str]
) -> dict[str, AxisGroups]:
    return {
        axis: AxisGroups(
            degree=int(extents[axis][-1]),
            extents=tuple(extents[axis].tolist()),
            groups=axis_groups(coordinates, axis),
        )
        for axis in axes
    }


def _expert_coordinates(extents: Mapping[str, Ints], stage: Ints) -> dict[str, Ints]:
    """Coordinates on the axes of experts, which lie over all axes of one stage together.

    The ranks of a stage are numbered in their order, and these numbers have the digits of etp, ep
    and the replicas of experts, from the innermost tier out.
    """
    numbered = rank_coordinates(extents, EXPERT_AXES)
    order = np.argsort(stage, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order)) % len(numbered["ep"])
    return {axis: column[number] for axis, column in numbered.items()}


def _used_of_a_node(system: System, extents: Mapping[str, Ints]) -> int:
    """Accelerators of a node that have a rank, where tiers or extents are set."""
    node = system.node.accelerators
    used = node
    for index, tier in enumerate(system.network):
        if tier.domain is not None and tier.domain <= node:
            members = prod(int(reach[index]) for reach in extents.values())
            used = members * (node // tier.domain)
    return min(used, node)


def rank_coordinates(extents: Mapping[str, Ints], order: Sequence[str]) -> dict[str, Ints]:
    """Coordinate of each rank on each axis.

    A rank is a number in mixed radix. Its digits, least significant first, are for each tier from
    the inside out, and on it for each axis in the order of placement, the share of the axis that
    the tier adds: e[t] / e[t-1] members, with e[-1] = 1. The coordinate on an axis is the number
    that its own digits make, so it grows with the rank where the other coordinates stay.

    Parameters
    ----------
    extents
        By axis, its members in one domain of each tier, inside out, e[t]; the last is its degree.
    order
        Axes as placed, innermost first.
    """
    ranks = np.arange(prod(int(extents[axis][-1]) for axis in order))
    coordinates = {axis: np.zeros_like(ranks) for axis in order}
    stride = 1
    inner = dict.fromkeys(order, 1)
    for tier in range(len(extents[order[0]])):
        for axis in order:
            extent = int(extents[axis][tier])
            added = extent // inner[axis]
            coordinates[axis] += ranks // stride % added * inner[axis]
            stride *= added
            inner[axis] = extent
    return coordinates


def axis_groups(coordinates: Mapping[str, Ints], axis: str) -> Ints:
    """Ranks that differ in the coordinate on one axis alone, in its order.

    Parameters
    ----------
    coordinates
        By axis, the coordinate of each rank; every combination occurs once.

    Returns
    -------
    Shape (groups, degree), rows by their first rank.
    """
    others = [column for name, column in coordinates.items() if name != axis]
    degree = int(coordinates[axis].max()) + 1
    groups = np.lexsort((coordinates[axis], *others)).reshape(-1, degree)
    return groups[np.argsort(groups[:, 0])]


def _neighbors(pipelines: Ints, *, around: bool) -> Ints:
    """For each rank, the one that follows in its row; -1 at the end, or the first if `around`."""
    following = np.roll(pipelines, -1, axis=1)
    if not around:
        following[:, -1] = _NOBODY
    neighbor = np.empty(pipelines.size, dtype=np.int64)
    neighbor[pipelines] = following
    return neighbor


def _or_none(rank: Any) -> int | None:
    return None if rank == _NOBODY else int(rank)

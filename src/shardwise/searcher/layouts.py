"""Layouts of a space: degrees, chunks, batch and where the axes sit, with what breaks a rule."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import isqrt
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Ints, once_per
from shardwise.model import Model
from shardwise.placement import given_tiers, place
from shardwise.rules import RULES, broken_rule
from shardwise.searcher.space import Space
from shardwise.strategy import PLACED_AXES, SCHEDULES, TIER_FIELDS
from shardwise.system import System
from shardwise.table import Table

__all__ = ["LAYOUT_FIELDS", "Layouts", "divisors", "layouts_of"]

_DEGREES = ("gpus", "tp", "cp", "ep", "etp", "pp", "dp")
LAYOUT_FIELDS = (
    *_DEGREES,
    "vpp",
    "schedule",
    "micro_batch_size",
    "global_batch_size",
    "placement",
    *TIER_FIELDS,
)
_OF_NETWORK = ("placement", *TIER_FIELDS)
_NETWORK_RULES = tuple(rule for rule in RULES if "tier" in rule.reason)
_LAYOUT_RULES = tuple(r for r in RULES if r.of_layout and r not in _NETWORK_RULES)
_INTERLEAVED = SCHEDULES.index("interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts of one number of GPUs and one batch."""

    legal: Table
    """What is no field of a layout holds the first value of the space."""
    illegal: Table
    """Those that break a rule."""
    broken: Ints
    """Position in `RULES` of the rule that each of these breaks."""


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def layouts_of(
    model: Model, system: System, space: Space, first: Mapping[str, Any], gpus: int, batch: int
) -> Layouts:
    """Lay a model out over a number of GPUs in every way of the space.

    Layouts whose members sit in the same domains of every tier count once, as the first of them.
    Those whose layers cost the same stand together.

    Parameters
    ----------
    first
        The first value of every field that is none of a layout.
    batch
        The global batch, or what it may not exceed.
    """
    columns = list(zip(*_unplaced(model, system, space, gpus, batch), strict=True))
    if not columns:
        columns = [()] * len(_UNPLACED)
    named = {n: np.array(c, dtype=np.int64) for n, c in zip(_UNPLACED, columns, strict=True)}
    network = {name: values[0] for name, values in _of_network(system, space).items()}
    table = Table.of(model, {**first, **network, "gpus": gpus, **named})
    broken = broken_rule(model, system, table, _LAYOUT_RULES)
    unplaced = table.take(broken < 0)
    placed, refused = _placed(model, system, space, unplaced)
    wrong = table.take(broken >= 0)
    legal = placed.take(refused < 0)
    return Layouts(
        legal=legal.take(np.lexsort((legal.micro_batch_size, legal.tp))),
        illegal=Table.joined([wrong, placed.take(refused >= 0)]),
        broken=np.concatenate([broken[broken >= 0], refused[refused >= 0]]),
    )


_UNPLACED = ("tp", "cp", "ep", "etp", "pp", "dp", "vpp", "schedule", "gbs", "mbs")


def _unplaced(
    model: Model, system: System, space: Space, gpus: int, batch: int
) -> Iterator[tuple[int, ...]]:
    """Yield degrees, chunks, schedule and batch, in the order of `_UNPLACED`."""
    allowed = {"tp": _unbroken(model, system, gpus, "tp", ("heads", "ffn"))}
    allowed["pp"] = _unbroken(model, system, gpus, "pp", ("layers", "layer_kinds"))
    others = {axis: space.values(axis, system) for axis in ("tp", "cp", "ep", "etp", "pp")}
    tried = [allowed.get(a) or divisors(gpus) if v is None else v for a, v in others.items()]
    replicas = space.values("dp", system)
    for tp, cp, ep, etp, pp in product(*tried):
        dp, rest = divmod(gpus, tp * cp * pp)
        if rest or (replicas is not None and dp not in replicas):
            continue
        for (vpp, schedule), (whole, micro) in product(
            _chunks(model, system, space, pp), _batches(system, space, batch, dp)
        ):
            yield tp, cp, ep, etp, pp, dp, vpp, schedule, whole, micro


def _unbroken(
    model: Model, system: System, gpus: int, axis: str, reasons: tuple[str, ...]
) -> list[int]:
    """Degrees of an axis alone that divide the GPUs and break none of some rules."""
    degrees = divisors(gpus)
    table = Table.of(model, {axis: degrees, "dp": 1, "gbs": 1, "seq_len": 1})
    rules = [rule for rule in RULES if rule.reason in reasons]
    broken = broken_rule(model, system, table, rules)
    return [degree for degree, rule in zip(degrees, broken.tolist(), strict=True) if rule < 0]


def _chunks(model: Model, system: System, space: Space, pp: int) -> list[tuple[int, int]]:
    """Chunks per stage, each with its schedule; what has none is left to the rules if given."""
    given = space.values("vpp", system)
    tried = given
    if tried is None:
        alone = pp == 1 or pp > model.depth
        tried = (1,) if alone else tuple(divisors(-(-model.depth // pp)))
    named = [SCHEDULES.index(word) for word in space.values("schedule", system) or ()]
    found = []
    for chunks in tried:
        own = [s for s in named if (s == _INTERLEAVED) == (chunks > 1)]
        found += [(chunks, s) for s in own or (named[:1] if given else ())]
    return found


def _batches(system: System, space: Space, batch: int, dp: int) -> list[tuple[int, int]]:
    """Global batch and micro-batch; what the replicas cannot share is left to the rules."""
    whole = batch // dp * dp if space.batch == "largest" else batch
    given = space.values("micro_batch_size", system)
    if not whole or whole % dp:
        return [(batch, micro) for micro in given or (1,)]
    return [(whole, micro) for micro in given or divisors(whole // dp)]


def _of_network(system: System, space: Space) -> dict[str, tuple[Any, ...]]:
    return {name: space.values(name, system) or (None,) for name in _OF_NETWORK}


def _placed(model: Model, system: System, space: Space, unplaced: Table) -> tuple[Table, Ints]:
    """Every row with every placement of its own, and the rule that it breaks, or -1."""
    values = _of_network(system, space)
    combined = list(zip(*product(*values.values()), strict=True))
    named: dict[str, Any] = dict(zip(_OF_NETWORK, map(list, combined), strict=True))
    networks = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1, **named})
    degrees = (unplaced.tp, unplaced.cp, unplaced.dp, unplaced.pp)

    def of_degrees(rows: Ints) -> _Placements:
        return _placements(model, system, unplaced.take(rows), networks)

    found, where = once_per(degrees, of_degrees)
    tried = found.tried[where]  # rows x networks
    row, network = np.nonzero(tried)
    table = unplaced.take(row).replaced(networks.take(network), _OF_NETWORK)
    return table, found.broken[where][row, network]


@dataclass(frozen=True, slots=True)
class _Placements:
    """Arrays of shape (degrees, networks)."""

    tried: Bools
    broken: Ints


def _placements(model: Model, system: System, degrees: Table, networks: Table) -> _Placements:
    """Which networks differ, for each row of degrees, and which rule they break."""
    shape = len(degrees), len(networks)
    row, network = (index.ravel() for index in np.indices(shape))
    table = degrees.take(row).replaced(networks.take(network), _OF_NETWORK)
    tried = ~_without_effect(table, networks)
    broken = np.full(tried.shape, -1, dtype=np.int64)
    if tried.any():
        broken[tried] = broken_rule(model, system, table.take(tried), _NETWORK_RULES)
        known = np.all(given_tiers(table) < len(system.network), axis=0)
        placed = np.flatnonzero(tried & known)  # the rules only ask for extents beyond that
        extents = place(system, table.take(placed))
        every = np.concatenate([getattr(extents, axis) for axis in PLACED_AXES])
        firsts, _ = once_per([row[placed], *every], lambda first: first)
        tried[placed] = False
        tried[placed[firsts]] = True
    return _Placements(tried.reshape(shape), broken.reshape(shape))


def _without_effect(table: Table, networks: Table) -> Bools:
    """Rows that give what does nothing another value than the first."""
    tiers = given_tiers(table)
    alone = np.stack([getattr(table, axis) == 1 for axis in PLACED_AXES])
    same = np.any(alone & (tiers != given_tiers(networks)[:, :1]), axis=0)
    placed_elsewhere = np.all(alone | (tiers >= 0), axis=0)
    return same | (placed_elsewhere & (table.placement != networks.placement[0]))

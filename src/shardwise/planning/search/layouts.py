"""Layouts of a space: degrees, stages, batch and where the axes sit, with what breaks a rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import EXTENT_AXES, TIER_FIELDS, Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows, evaluate_distinct
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.placement import fixed_tiers, place
from shardwise.planning.search.extents import divisors, seatings
from shardwise.planning.search.layer_splits import SPREAD_FIELDS, LayerSplits
from shardwise.planning.search.space import Space

__all__ = ["LAYOUT_FIELDS", "Layouts", "expert_degrees", "layouts_of"]
__all__ += ["long_enough", "same_but"]

_DEGREES = ("gpus", "tp", "tp2", "cp", "ep", "etp", "pp", "dp")
LAYOUT_FIELDS = (
    *_DEGREES,
    "vpp",
    "schedule",
    "stage_layers",
    *SPREAD_FIELDS,
    "micro_batch_size",
    "global_batch_size",
    "dp_shard",
    "placement",
    "extents",
    *TIER_FIELDS,
)
_OF_NETWORK = ("placement", "extents", *TIER_FIELDS)
_NETWORK_RULES = tuple(r for r in CONSTRAINTS if "tier" in r.reason or r.field == "extents")
_LAYOUT_RULES = tuple(r for r in CONSTRAINTS if r.layout_only and r not in _NETWORK_RULES)
_PLACED_BY = (*EXTENT_AXES, "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts of one number of GPUs and one batch."""

    legal: Table
    """What is no field of a layout holds the first value of the space."""
    illegal: Table
    """Those that break a rule."""
    broken: Ints
    """Position in `CONSTRAINTS` of the rule that each of these breaks."""


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
    spreads = LayerSplits(model, system, space)
    columns = list(zip(*_unplaced(model, system, space, spreads, gpus, batch), strict=True))
    if not columns:
        columns = [()] * len(_UNPLACED)
    named = {n: np.array(c, dtype=np.int64) for n, c in zip(_UNPLACED, columns, strict=True)}
    spread = spreads.take(named.pop("spread"))
    network = {name: values[0] for name, values in _of_network(system, space).items()}
    table = Table.of(model, {**first, **network, "gpus": gpus, **named})
    table = replace(table, **spread)
    broken = first_violation(model, system, table, _LAYOUT_RULES)
    unplaced = table.take(broken < 0)
    placed, refused = _placed(model, system, space, unplaced)
    wrong = table.take(broken >= 0)
    legal = placed.take(refused < 0)
    keys = [legal.micro_batch_size, same_but(legal, space.kept), legal.tp]
    return Layouts(
        legal=legal.take(np.lexsort(keys if space.kept else (keys[0], keys[2]))),
        illegal=Table.joined([wrong, placed.take(refused >= 0)]),
        broken=np.concatenate([broken[broken >= 0], refused[refused >= 0]]),
    )


def same_but(layouts: Table, kept: Sequence[str]) -> Ints:
    """Numbers that are equal where layouts differ in nothing but fields of which one value is kept.

    Where the layers of the stages are balanced, all fields that spread layers are such.
    """
    varied = {*kept, *(SPREAD_FIELDS if "stage_layers" in kept else ())}
    columns = [getattr(layouts, name) for name in LAYOUT_FIELDS if name not in varied]
    return distinct_rows(columns)[1]


_UNPLACED = (
    *("tp", "tp2", "cp", "ep", "etp", "pp", "dp", "dp_shard"),
    *("vpp", "schedule", "spread", "gbs", "mbs"),
)


def _unplaced(
    model: Model, system: System, space: Space, spreads: LayerSplits, gpus: int, batch: int
) -> Iterator[tuple[int, ...]]:
    """Yield degrees, chunks, schedule, stages and batch, in the order of `_UNPLACED`."""
    allowed = {"tp": _unbroken(model, system, gpus, "tp", ("heads", "ffn"))}
    allowed["tp2"] = _unbroken(model, system, gpus, "tp2", ("summa_widths",))
    allowed["cp"] = long_enough(model, space, divisors(gpus), system)
    allowed["pp"] = _unbroken(model, system, gpus, "pp", ("layers",))
    degrees = [space.values(axis, system) or allowed[axis] for axis in ("tp", "tp2", "cp", "pp")]
    experts = _Experts(model, system, space, gpus)
    replicas = space.values("dp", system)
    for tp, tp2, cp, pp in product(*degrees):
        dp, rest = divmod(gpus, tp * tp2 * cp * pp)
        if rest or (replicas is not None and dp not in replicas):
            continue
        batches = _batches(system, space, batch, dp)
        shards = _shards(system, space, dp)
        for (vpp, schedule), (ep, etp) in product(
            _chunks(model, system, space, pp), experts.degrees(tp, tp * tp2 * cp * dp)
        ):
            for spread, shard, (whole, micro) in product(
                spreads.of(pp, vpp, schedule), shards, batches
            ):
                yield tp, tp2, cp, ep, etp, pp, dp, shard, vpp, schedule, spread, whole, micro


def _unbroken(
    model: Model, system: System, gpus: int, axis: str, reasons: tuple[str, ...]
) -> list[int]:
    """Degrees of an axis alone that divide the GPUs and break none of some rules."""
    degrees = divisors(gpus)
    table = Table.of(model, {axis: degrees, "dp": 1, "gbs": 1, "seq_len": 1})
    rules = [rule for rule in CONSTRAINTS if rule.reason in reasons]
    broken = first_violation(model, system, table, rules)
    return [degree for degree, rule in zip(degrees, broken.tolist(), strict=True) if rule < 0]


def long_enough(model: Model, space: Space, degrees: Sequence[int], system: System) -> list[int]:
    """Degrees of context parallelism that split some sequence of the space into two parts each."""
    lengths = [n or model.seq_len or 1 for n in space.values("seq_len", system) or ()]
    return [cp for cp in degrees if cp == 1 or any(n % (2 * cp) == 0 for n in lengths)]


class _Experts:
    """Degrees of experts; those that a space leaves open are all that obey the rules."""

    def __init__(self, model: Model, system: System, space: Space, gpus: int) -> None:
        self._ep, self._etp = (space.values(axis, system) for axis in ("ep", "etp"))
        self._eps = _unbroken(model, system, gpus, "ep", ("ep_experts", "ep"))
        self._etps = _unbroken(model, system, gpus, "etp", ("etp_experts", "etp"))

    def degrees(self, tp: int, ranks: int) -> list[tuple[int, int]]:
        """Pairs of ep and etp beside a degree of tp, over tp x cp x dp ranks."""
        pairs = expert_degrees(self._ep or self._eps, self._etp or self._etps, tp)
        given = self._ep is not None and self._etp is not None
        return [(ep, etp) for ep, etp in pairs if given or ranks % (ep * etp) == 0]


def expert_degrees(eps: Sequence[int], etps: Sequence[int | str], tp: int) -> list[tuple[int, int]]:
    """Pairs of ep and etp, of which etp may be as tp, each once."""
    told = dict.fromkeys(tp if isinstance(etp, str) else etp for etp in etps)
    return list(product(eps, told))


def _shards(system: System, space: Space, dp: int) -> list[int]:
    """Replicas that share shards, 0 for all of them; all of them are no number of their own."""
    tried = space.values("dp_shard", system)
    if dp == 1:
        return [0]
    if tried is None:
        return [0, *(n for n in divisors(dp) if n < dp)]
    several = [n or 0 for n in tried]
    return [n for n in several if n != dp or 0 not in several]


def _chunks(model: Model, system: System, space: Space, pp: int) -> list[tuple[int, int]]:
    """Chunks per stage, each with its schedule; what has none is left to the rules if given."""
    given = space.values("vpp", system)
    tried = given
    if tried is None:
        alone = pp == 1 or pp > model.depth
        tried = (1,) if alone else tuple(divisors(-(-model.depth // pp)))
    named = [Schedule(word).code for word in space.values("schedule", system) or ()]
    found = []
    for chunks in tried:
        own = [s for s in named if (s == Schedule.INTERLEAVED.code) == (chunks > 1)]
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
    if space.values("extents", system) is None:
        return _seated(model, system, unplaced)
    values = _of_network(system, space)
    combined = list(zip(*product(*values.values()), strict=True))
    named: dict[str, Any] = dict(zip(_OF_NETWORK, map(list, combined), strict=True))
    networks = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1, **named})

    def of_degrees(some: Table) -> _Placements:
        return _placements(model, system, some, networks)

    distinct = evaluate_distinct(of_degrees, unplaced)
    found, where = distinct.values, distinct.position
    tried = found.tried[where]  # rows x networks
    row, network = np.nonzero(tried)
    table = unplaced.take(row).replaced(networks.take(network), _OF_NETWORK)
    return table, found.broken[where][row, network]


def _seated(model: Model, system: System, unplaced: Table) -> tuple[Table, Ints]:
    """Every row with all extents that fill the domains, and the rule that it breaks, or -1."""

    def of_degrees(some: Table) -> list[list[str]]:
        degrees = np.stack([getattr(some, axis) for axis in _PLACED_BY]).T.tolist()
        return [seatings(system, one[:-2], (one[-2], one[-1])) for one in degrees]

    distinct = evaluate_distinct(of_degrees, unplaced)
    every, where = distinct.values, distinct.position
    texts = {text: code for code, text in enumerate(dict.fromkeys(t for one in every for t in one))}
    codes = [np.array([texts[text] for text in one], dtype=np.int64) for one in every]
    rows = np.repeat(np.arange(len(unplaced)), [len(every[position]) for position in where])
    extents = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(codes[position] for position in where)]
    )
    table = replace(unplaced.take(rows), extents=extents, extent_lists=tuple(texts))
    return table, first_violation(model, system, table, _NETWORK_RULES)


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
        broken[tried] = first_violation(model, system, table.take(tried), _NETWORK_RULES)
        known = np.all(fixed_tiers(table) < len(system.network), axis=0)
        placed = np.flatnonzero(tried & known)  # the rules only ask for extents beyond that
        extents = place(system, table.take(placed))
        every = np.concatenate([getattr(extents, axis) for axis in _PLACED_BY])
        firsts, _ = distinct_rows([row[placed], *every])
        tried[placed] = False
        tried[placed[firsts]] = True
    return _Placements(tried.reshape(shape), broken.reshape(shape))


def _without_effect(table: Table, networks: Table) -> Bools:
    """Rows that give what does nothing another value than the first."""
    tiers = fixed_tiers(table)
    alone = np.stack([getattr(table, axis) == 1 for axis in EXTENT_AXES])
    alone[:2] = alone[0] & alone[1]  # tp and tp2 have one tier
    same = np.any(alone & (tiers != fixed_tiers(networks)[:, :1]), axis=0)
    placed_elsewhere = np.all(alone | (tiers >= 0), axis=0)
    return same | (placed_elsewhere & (table.placement != networks.placement[0]))

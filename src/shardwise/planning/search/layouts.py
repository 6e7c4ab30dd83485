"""Enumerate the layouts of a space: degrees, layer splits, batch and placement.

Layouts that break a rule are counted apart, with the rule. Layer splits that give every stage the
same layers count once.

A space tries placement orders and tiers, or, with ``extents: all``, every way to fill the domains.
A domain is filled as far as the degrees allow: leaving room in it would only move communication to
slower tiers.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Ints, divisors
from shardwise.config.enums import EXTENT_AXES, TIER_FIELDS, Schedule
from shardwise.config.extents import extents_text
from shardwise.config.model import Model
from shardwise.config.strategy_fields import (
    EXPERT_DEGREES,
    LAYER_AXES,
    LAYOUT_FIELDS,
    REPLICA_DEGREES,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows, evaluate_distinct
from shardwise.parallel.constraints import CONSTRAINTS, Constraint, first_violation
from shardwise.parallel.constraints.software import SOFTWARE_LAYOUT_CONSTRAINT
from shardwise.parallel.pipeline_layout import layers_on_ranks, most_layers
from shardwise.parallel.placement import fixed_tiers, place
from shardwise.planning.search.space import SPLIT_FIELDS, Space
from shardwise.records import dataclass, replace

NETWORK_FIELDS = ("placement", "extents", *TIER_FIELDS)
NETWORK_RULES = tuple(r for r in CONSTRAINTS if "tier" in r.reason or r.field == "extents")
_PLACED_AXES = (*EXTENT_AXES, "ep", "etp")
_PP = EXTENT_AXES.index("pp")
_Members = tuple[int, ...]
"""Members of each axis that a tier adds."""


def placed(model: Model, system: System, space: Space, layouts: Table) -> tuple[Table, Ints]:
    """Return every layout with each of its distinct placements.

    With the position in `CONSTRAINTS` of the rule that each row breaks, or -1.
    """
    if space.values("extents", system) is None:
        return _with_all_extents(model, system, layouts)
    values = [space.values(name, system) or (None,) for name in NETWORK_FIELDS]
    combined = list(zip(*product(*values), strict=True))
    named: dict[str, object] = dict(zip(NETWORK_FIELDS, map(list, combined), strict=True))
    networks = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 1, **named})

    def of_degrees(degrees: Table) -> Ints:
        return _distinct_networks(model, system, degrees, networks)

    found = evaluate_distinct(of_degrees, layouts)
    outcome = found.values[found.position]  # layouts x networks
    row, network = np.nonzero(outcome >= _LEGAL)
    table = layouts.take(row).replaced(networks.take(network), NETWORK_FIELDS)
    return table, outcome[row, network]


_SKIPPED, _LEGAL = -2, -1


def _distinct_networks(model: Model, system: System, degrees: Table, networks: Table) -> Ints:
    """The rule that each network breaks, `_LEGAL`, or `_SKIPPED` if another one places the same.

    Shape (degrees, networks).
    """
    shape = len(degrees), len(networks)
    row, network = (index.ravel() for index in np.indices(shape))
    table = degrees.take(row).replaced(networks.take(network), NETWORK_FIELDS)
    tried = ~_without_effect(table, networks)
    outcome = np.full(tried.shape, _SKIPPED, dtype=np.int64)
    if tried.any():
        outcome[tried] = first_violation(model, system, table.take(tried), NETWORK_RULES)
        known = np.all(fixed_tiers(table) < len(system.network), axis=0)
        valid = np.flatnonzero(tried & known)  # the rules reject tiers that do not exist
        valid = valid[np.argsort(outcome[valid] >= 0, kind="stable")]  # legal ones stand for others
        extents = place(system, table.take(valid))
        columns = np.concatenate([getattr(extents, axis) for axis in _PLACED_AXES])
        firsts, _ = distinct_rows([row[valid], *columns])
        outcome[np.delete(valid, firsts)] = _SKIPPED
    return outcome.reshape(shape)


def _without_effect(table: Table, networks: Table) -> Bools:
    """Rows that change a field without effect from the first value."""
    tiers = fixed_tiers(table)
    single = np.stack([getattr(table, axis) == 1 for axis in EXTENT_AXES])
    single[:2] = single[0] & single[1]  # tp and tp2 have one tier
    same = np.any(single & (tiers != fixed_tiers(networks)[:, :1]), axis=0)
    without_order = np.all(single | (tiers >= 0), axis=0)
    return same | (without_order & (table.placement != networks.placement[0]))


def _with_all_extents(model: Model, system: System, layouts: Table) -> tuple[Table, Ints]:
    """Every layout with all extents that fill the domains, and the rule that it breaks, or -1."""

    def of_degrees(degrees: Table) -> list[list[str]]:
        rows = np.stack([getattr(degrees, axis) for axis in _PLACED_AXES]).T.tolist()
        return [all_extents(system, one[:-2], (one[-2], one[-1])) for one in rows]

    found = evaluate_distinct(of_degrees, layouts)
    every, where = found.values, found.position
    texts = {text: code for code, text in enumerate(dict.fromkeys(t for one in every for t in one))}
    codes = [np.array([texts[text] for text in one], dtype=np.int64) for one in every]
    rows = np.repeat(np.arange(len(layouts)), [len(every[position]) for position in where])
    extents = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(codes[position] for position in where)]
    )
    table = replace(layouts.take(rows), extents=extents, extent_lists=tuple(texts))
    return table, first_violation(model, system, table, NETWORK_RULES)


def all_extents(
    system: System, degrees: Sequence[int], experts: tuple[int, int] = (1, 1)
) -> list[str]:
    """Return every way to fill the domains, as extents; one of them sets none.

    Parameters
    ----------
    degrees
        By axis, in the order of `EXTENT_AXES`.
    experts
        ep and etp: every number of expert groups in a domain of the first tier is tried.
    """
    found = []
    for tiers in _fillings(system, tuple(degrees), 0, 1):
        named = [dict(zip(EXTENT_AXES, members, strict=True)) for members in tiers]
        for groups in _expert_groups(tiers[:1], degrees, experts):
            first = [named[0] | ({"ep": groups} if groups else {})] if named else []
            found.append(extents_text([*first, *named[1:]]))
    return found


def _fillings(
    system: System, left: _Members, tier: int, inner: int
) -> Iterator[tuple[_Members, ...]]:
    """Members that a tier and those outside it add, except the outermost, which takes the rest."""
    if tier == len(system.network) - 1:
        yield ()
        return
    domain = system.network[tier].domain or 1
    node = max(system.node.accelerators // inner, 1)
    for members in _domain_fillings(left, domain // inner, node):
        rest = tuple(degree // added for degree, added in zip(left, members, strict=True))
        for outer in _fillings(system, rest, tier + 1, domain):
            yield (members, *outer)


@lru_cache(maxsize=1 << 14)
def _domain_fillings(left: _Members, room: int, node: int) -> tuple[_Members, ...]:
    """Members that fill a domain best: full nodes, or a share that divides a node."""
    if prod(left) <= room:
        return (left,)
    every = list(_parts(left, room))
    sizes = {prod(members) for members in every}
    full_nodes = {size for size in sizes if size % min(node, room) == 0}
    best = max(full_nodes or {size for size in sizes if min(node, room) % size == 0})
    return tuple(members for members in every if prod(members) == best)


def _parts(left: _Members, room: int) -> Iterator[_Members]:
    """All divisors of the degrees whose product is at most the room; outer axes vary fastest."""
    if not left:
        yield ()
        return
    for members in divisors(left[0]):
        if members <= room:
            for rest in _parts(left[1:], room // members):
                yield (members, *rest)


def _expert_groups(
    tiers: Sequence[_Members], degrees: Sequence[int], experts: tuple[int, int]
) -> list[int]:
    """Expert groups in a domain of the first tier, 0 for as many as possible."""
    ep, etp = experts
    if not tiers or ep == 1:
        return [0]
    room = prod(tiers[0]) // tiers[0][_PP]
    split = gcd(etp, room)
    most = gcd(ep, room // split)
    replicas = prod(degrees) // degrees[_PP] // (ep * etp)
    fewer = [n for n in divisors(most) if n < most and replicas % (room // (split * n)) == 0]
    return [0, *reversed(fewer)]


_BEFORE_PLACEMENT = (
    *LAYER_AXES,
    *("pp", "dp", "dp_shard"),
    *("vpp", "schedule", "split", "gbs", "mbs"),
)
_LAYOUT_RULES = tuple(r for r in CONSTRAINTS if r.layout_only and r not in NETWORK_RULES)
_SPLIT_RULES = tuple(
    rule
    for rule in CONSTRAINTS
    if rule.reason
    in ("layers", "half_stages", "stage_list", "stage_list_sum", "stage_list_only", "spread")
)
_UNEVEN_RULES = (*_SPLIT_RULES, SOFTWARE_LAYOUT_CONSTRAINT)
# Balanced stages: the first and the last may have this many layers less than an even share.
_LESS_FIRST, _LESS_LAST = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts of one number of GPUs and one batch."""

    legal: Table
    """Fields that are not of a layout have the first value of the space."""
    illegal: Table
    """Layouts that break a rule."""
    broken: Ints
    """Position in `CONSTRAINTS` of the rule that each of these breaks."""


def layouts_of(
    model: Model, system: System, space: Space, first: Mapping[str, Any], gpus: int, batch: int
) -> Layouts:
    """Enumerate every way of a space to lay out a model on a number of GPUs.

    Of layouts that place their members in the same domains of every tier, only the first counts.
    Layouts with equal layer costs are adjacent.
    """
    splits = LayerSplits(model, system, space)
    columns = list(zip(*_without_placement(model, system, space, splits, gpus, batch), strict=True))
    if not columns:
        columns = [()] * len(_BEFORE_PLACEMENT)
    named = {
        n: np.array(c, dtype=np.int64) for n, c in zip(_BEFORE_PLACEMENT, columns, strict=True)
    }
    split = splits.take(named.pop("split"))
    network = {name: (space.values(name, system) or (None,))[0] for name in NETWORK_FIELDS}
    table = Table.of(model, {**first, **network, "gpus": gpus, **named})
    table = replace(table, **split)
    if any(len(space.values(name, system) or ()) > 1 for name in ("stack", "any_software")):
        table = replace(table, any_software=np.ones(len(table), dtype=np.bool_))  # options decide
    broken = first_violation(model, system, table, _LAYOUT_RULES)
    with_placement, misplaced = placed(model, system, space, table.take(broken < 0))
    legal = with_placement.take(misplaced < 0)
    keys = [legal.micro_batch_size, legal.tp]
    if space.selected:
        keys.insert(1, groups_without(legal, space.selected))
    return Layouts(
        legal=legal.take(np.lexsort(keys)),
        illegal=Table.joined([table.take(broken >= 0), with_placement.take(misplaced >= 0)]),
        broken=np.concatenate([broken[broken >= 0], misplaced[misplaced >= 0]]),
    )


def groups_without(layouts: Table, fields: Sequence[str]) -> Ints:
    """Group numbers of layouts that differ in nothing but some fields.

    With `stage_layers` these include all fields that split the layers.
    """
    varied = {*fields, *(SPLIT_FIELDS if "stage_layers" in fields else ())}
    columns = [getattr(layouts, name) for name in LAYOUT_FIELDS if name not in varied]
    return distinct_rows(columns)[1]


def _without_placement(
    model: Model, system: System, space: Space, splits: "LayerSplits", gpus: int, batch: int
) -> Iterator[tuple[int, ...]]:
    """Yield degrees, chunks, schedule, split and batch, in the order of `_BEFORE_PLACEMENT`."""
    allowed = {"tp": _allowed_degrees(model, system, gpus, "tp", ("heads", "mixer_heads", "ffn"))}
    allowed["tp2"] = _allowed_degrees(model, system, gpus, "tp2", ("summa_widths",))
    allowed["cp"] = long_enough(model, space, divisors(gpus), system)
    allowed["pp"] = _allowed_degrees(model, system, gpus, "pp", ("layers",))
    for axis, degrees_of in allowed.items():
        most = space.most(axis, model, system)
        allowed[axis] = [degree for degree in degrees_of if degree <= most]
    degrees = [space.values(axis, system) or allowed[axis] for axis in REPLICA_DEGREES]
    listed = [space.values(axis, system) for axis in EXPERT_DEGREES]
    eps = listed[0] or _allowed_degrees(model, system, gpus, "ep", ("ep_experts", "ep"))
    etps = listed[1] or _allowed_degrees(model, system, gpus, "etp", ("etp_experts", "etp"))
    replicas = space.values("dp", system)
    pipelines: dict[int, list[tuple[int, int]]] = {}
    for tp, tp2, cp, pp in product(*degrees):
        dp, rest = divmod(gpus, tp * tp2 * cp * pp)
        if rest or (replicas is not None and dp not in replicas):
            continue
        experts = [
            (ep, etp)
            for ep, etp in expert_degrees(eps, etps, tp)
            if None not in listed or tp * tp2 * cp * dp % (ep * etp) == 0
        ]
        batches = _batches(system, space, batch, dp)
        shards = _shards(system, space, dp)
        if pp not in pipelines:
            pipelines[pp] = _chunks(model, system, space, splits, pp)
        for (vpp, schedule), (ep, etp) in product(pipelines[pp], experts):
            for split, shard, (size, micro) in product(
                splits.of(pp, vpp, schedule), shards, batches
            ):
                yield tp, tp2, cp, ep, etp, pp, dp, shard, vpp, schedule, split, size, micro


def _allowed_degrees(
    model: Model, system: System, gpus: int, axis: str, reasons: tuple[str, ...]
) -> Sequence[int]:
    """Degrees of one axis that divide the GPUs and obey some rules, by reason."""
    degrees = divisors(gpus)
    table = Table.of(model, {axis: degrees, "dp": 1, "gbs": 1, "seq_len": 1})
    rules = [rule for rule in CONSTRAINTS if rule.reason in reasons]
    broken = first_violation(model, system, table, rules)
    return [degree for degree, rule in zip(degrees, broken.tolist(), strict=True) if rule < 0]


def long_enough(model: Model, space: Space, degrees: Sequence[int], system: System) -> list[int]:
    """Return the cp degrees that split some sequence of the space into 2 cp equal chunks."""
    lengths = [n or model.seq_len or 1 for n in space.values("seq_len", system) or ()]
    return [cp for cp in degrees if cp == 1 or any(n % (2 * cp) == 0 for n in lengths)]


def expert_degrees(eps: Sequence[int], etps: Sequence[int | str], tp: int) -> list[tuple[int, int]]:
    """Return the pairs of ep and etp, each once; an etp of ``"tp"`` follows tp."""
    distinct = dict.fromkeys(tp if isinstance(etp, str) else etp for etp in etps)
    return list(product(eps, distinct))


def _shards(system: System, space: Space, dp: int) -> list[int]:
    """Replicas that share shards; 0 stands for all of them."""
    tried = space.values("dp_shard", system)
    if dp == 1:
        return [0]
    if tried is None:
        return [0, *(n for n in divisors(dp) if n < dp)]
    several = [n or 0 for n in tried]
    return [n for n in several if n != dp or 0 not in several]


def _chunks(
    model: Model, system: System, space: Space, splits: "LayerSplits", pp: int
) -> list[tuple[int, int]]:
    """Chunks per stage with their schedules; the rules check chunks that a space lists."""
    listed = space.values("vpp", system)
    tried, more = listed, set[int]()
    if tried is None:
        single = pp == 1 or pp > model.depth
        usual, *others = ((1,),) if single else numbers_of_chunks(model.depth, pp)
        tried, more = usual, set(*others).difference(usual)
    schedules = [Schedule(word).code for word in space.values("schedule", system) or ()]
    found = []
    for chunks in (*tried, *sorted(more)):
        own = [s for s in schedules if (s == Schedule.INTERLEAVED.code) == (chunks > 1)]
        if chunks in more:
            own = [schedule for schedule in own if splits.lists(pp, chunks, schedule)]
        found += [(chunks, s) for s in own or (schedules[:1] if listed else ())]
    return found


def numbers_of_chunks(depth: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """Chunks of a stage: those that divide its share of the layers, rounded up.

    Where stages cannot share the layers, then also those that divide the share of the layers with
    the embedding and the head, for stacks to which layers are listed by chunk.
    """
    most = divisors(-(-depth // pp))
    return (most, divisors(-(-(depth + 2) // pp))) if depth % pp else (most,)


def _batches(system: System, space: Space, batch: int, dp: int) -> list[tuple[int, int]]:
    """Global batch and micro-batch; the rules check batches that the replicas cannot share."""
    size = batch // dp * dp if space.batch == "largest" else batch
    listed = space.values("micro_batch_size", system)
    if not size or size % dp:
        return [(batch, micro) for micro in listed or (1,)]
    return [(size, micro) for micro in listed or divisors(size // dp)]


# Layers of the first and the last stage (0: unset), whether embedding and head count as a layer,
# and the position of a list of layers per stage (-1: none).
_Split = tuple[int, int, bool, bool, int]
_EVEN = (0, 0, False, False, -1)


# Schedules in which the first rank has the first layers and the last rank the last ones.
_IN_ORDER = [
    schedule.code for schedule in Schedule if schedule not in (Schedule.ZB_V, Schedule.DUALPIPE)
]


class LayerSplits:
    """Ways to split the layers of a model over the stages of a pipeline, by number.

    Where the stages cannot share them evenly, what the stacks have for it and the space leaves open
    is tried: a list of layers by chunk, or else layers of the first and the last stage, and
    embedding and loss as a layer.
    """

    def __init__(self, model: Model, system: System, space: Space) -> None:
        self._model, self._system, self._space = model, system, space
        self._balanced = "stage_layers" in space.selected
        listed = space.values("stage_layers", system) or (None,)
        self._lists = [one for one in listed if one is not None]
        codes = [-1 if one is None else self._lists.index(one) for one in listed]
        tried = [[v or 0 for v in space.values(n, system) or ()] for n in SPLIT_FIELDS]
        self._tried: list[_Split] = [
            (first, last, bool(embedding), bool(loss), code)
            for first, last, embedding, loss, code in product(*tried, codes)
        ]
        self._splits: dict[_Split, int] = {}
        self._known: dict[tuple[int, int, int], list[int]] = {}
        self._tables = dict[tuple[int, ...], Table]()  # one row of each software

    def of(self, pp: int, vpp: int, schedule: int) -> list[int]:
        """Numbers of the splits over a pipeline, none twice; none where layers do not fit."""
        key = pp, vpp, schedule
        if key not in self._known:
            self._known[key] = [
                self._splits.setdefault(split, len(self._splits))
                for split in self._distinct(pp, vpp, schedule)
            ]
        return self._known[key]

    def lists(self, pp: int, vpp: int, schedule: int) -> bool:
        """Whether splits over a pipeline list the layers of each chunk."""
        numbers = self.of(pp, vpp, schedule)
        every = list(self._splits)
        return any(every[number][4] >= 0 for number in numbers)

    def take(self, numbers: Ints) -> dict[str, Any]:
        """Columns of a table, by the numbers of splits."""
        return self._columns([*self._splits] or [_EVEN], numbers)

    def _columns(self, splits: Sequence[_Split], rows: Ints) -> dict[str, Any]:
        """Columns of a table, by the positions of splits."""
        every = np.array(splits, dtype=np.int64)[rows]
        columns: dict[str, Any] = dict(zip(SPLIT_FIELDS, every.T, strict=False))
        columns |= {name: columns[name].astype(np.bool_) for name in SPLIT_FIELDS[2:]}
        return columns | {"stage_layers": every[:, 4], "stage_lists": tuple(self._lists)}

    def _distinct(self, pp: int, vpp: int, schedule: int) -> list[_Split]:
        """Splits of which no two give every stage the same layers, including illegal ones."""
        splits = self._tried
        found: dict[Any, _Split] = {}
        uneven = pp > 1 and self._model.depth % (pp * vpp) > 0 and schedule in _IN_ORDER
        listed = uneven_layers(self._model.depth, pp * vpp) if uneven else None
        if listed is not None:
            for chunks, split in self._uneven(pp, vpp, schedule, listed):
                found.setdefault((True, chunks), split)
        if pp == 1:  # there is nothing to split
            splits = [(0, 0, False, False, split[4]) for split in splits]
        elif self._balanced:
            places = 2 * pp if schedule == Schedule.ZB_V.code else pp
            ends = list(_balanced_ends(self._model.depth, places))
            splits = [(*end, *split[2:]) for split in splits for end in ends]
        elif splits == [_EVEN] and found:
            return list(found.values())
        splits = list(dict.fromkeys(splits))
        if len(splits) == 1 and not found:
            return splits
        for layers, split in self._with_layers(splits, (pp, vpp, schedule), _SPLIT_RULES):
            if layers is not None or not self._balanced:
                found.setdefault((layers is not None, layers or split), split)
        return list(found.values()) or splits[:1]

    def _uneven(
        self, pp: int, vpp: int, schedule: int, listed: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], _Split]]:
        """Legal splits, with their layers, of a depth that the chunks cannot share evenly.

        A stack that lists the layers of each chunk needs no other means. Where the rules of
        software are lifted, what obeys them is tried, too.
        """
        depth = self._model.depth
        others: list[_Split] = [(*ends, False, False, -1) for ends in _uneven_ends(depth, pp, vpp)]
        others += [
            (0, 0, embedding, loss, -1)
            for embedding, loss in ((True, True), (True, False), (False, True))
            if (depth + embedding + loss) % (pp * vpp) == 0
        ]
        self._lists += [listed] if listed not in self._lists else []
        lists: list[_Split] = [(*_EVEN[:4], self._lists.index(listed))]
        lifted = self._space.values("any_software", self._system) or ()
        for stack, any_software in product(
            self._space.stacks(self._system), dict.fromkeys((False, *lifted))
        ):
            software = {"stack": stack, "any_software": any_software}
            for means in (lists, others, [_EVEN]):
                splits = [split for split in means if self._is_open(split)]
                every = self._with_layers(splits, (pp, vpp, schedule), _UNEVEN_RULES, software)
                if legal := [(layers, split) for layers, split in every if layers is not None]:
                    yield from legal
                    break

    def _is_open(self, split: _Split) -> bool:
        """Whether the space leaves the fields of a split open or has their values."""
        *ends, code = split
        values = *(end or None for end in ends), None if code < 0 else self._lists[code]
        for name, value in zip((*SPLIT_FIELDS, "stage_layers"), values, strict=True):
            tried = getattr(self._space, name)
            if isinstance(tried, tuple) and value not in (one or None for one in tried):
                return False
        return True

    def _with_layers(
        self,
        splits: Sequence[_Split],
        stages: tuple[int, int, int],
        rules: Sequence[Constraint],
        software: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[tuple[int, ...] | None, _Split]]:
        """Splits with the layers of each chunk; None where they break a rule."""
        if not splits:
            return
        key = tuple(map(id, (software or {}).values()))  # of stacks that the space keeps
        if key not in self._tables:
            one = {"dp": 1, "gbs": 1, "seq_len": 1, **(software or {})}
            self._tables[key] = Table.of(self._model, one)
        pp, vpp, schedule = stages
        values = {"pp": pp, "gpus": pp, "global_batch_size": pp, "vpp": vpp, "schedule": schedule}
        columns = {name: np.full(len(splits), value) for name, value in values.items()}
        columns |= self._columns(splits, np.arange(len(splits)))
        table = self._tables[key].take(np.zeros(len(splits), np.int64)).changed(**columns)
        broken = first_violation(self._model, self._system, table, rules).tolist()
        for row, (split, rule) in enumerate(zip(splits, broken, strict=True)):
            layers = tuple(layers_on_ranks(self._model.depth, table, row)) if rule < 0 else None
            yield layers, split


def _uneven_ends(depth: int, stages: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Layers of the first and the last stage where those between have an even share, rounded up.

    Both are multiples of the chunks; the last, which has the head, has least at first.
    """
    most = -(-depth // stages)
    both = depth - (stages - 2) * most
    for last in range(max(1, both - most), min(most, both - 1) + 1):
        if last % chunks == 0 == (both - last) % chunks:
            yield both - last, last


def uneven_layers(depth: int, places: int) -> tuple[int, ...] | None:
    """Layers of each chunk where the chunks of a pipeline cannot share them evenly.

    All have the same number, rounded up, but the last and the first, which have the head and the
    embedding as well: what is too much is taken from them in turn. Where that is more than they
    have, the first chunks after the first have one layer more than the others. None where the
    layers come out even, or there are fewer than chunks.
    """
    most = -(-depth // places)
    less = most * places - depth
    if not less or (less > 2 * most and depth < places):
        return None
    if less > 2 * most:
        fewest, more = divmod(depth, places)
        return (fewest, *[fewest + 1] * more, *[fewest] * (places - more - 1))
    last = -(-less // 2)
    return (most - (less - last), *[most] * (places - 2), most - last)


def _balanced_ends(depth: int, stages: int) -> Iterator[tuple[int, int]]:
    """Layers of the first and the last stage around an even share, which comes first.

    Fewer layers on these stages make up for the embedding and the head; the stages between share
    the rest evenly.
    """
    share = int(most_layers(depth, np.array(stages)))
    yield 0, 0
    if stages == 2:  # noqa: PLR2004 - the first and the last stage are all
        for more in range(min(_LESS_LAST, depth - share) + 1):
            yield share + more, depth - share - more
        return
    for first in range(share, max(0, share - _LESS_FIRST) - 1, -1):
        for last in range(share, max(0, share - _LESS_LAST) - 1, -1):
            yield first, last

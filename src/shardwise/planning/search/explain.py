"""`explain`: why not this strategy, and which changes of a few fields improve it.

The distance of a candidate is the number of fields that a user changes to get from the strategy to
it. Fields that follow from others or have no effect do not count.
"""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from shardwise.analysis.results import Estimate
from shardwise.arrays import Bools, Ints
from shardwise.config.enums import EXTENT_AXES, PLACED_AXES, TIER_FIELDS, Schedule, TpExchange
from shardwise.config.model import Model, ModelLike
from shardwise.config.software.resolve import stack_on
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_columns import default_dispatchers
from shardwise.config.strategy_fields import (
    CHOICE_FIELDS,
    FOLLOWING_FIELDS,
    LAYER_AXES,
    LAYOUT_FIELDS,
    OFFLOADS,
)
from shardwise.config.strategy_input import StrategyLike
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.distinct import evaluate_distinct
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, InputError, check_function
from shardwise.estimator import estimate
from shardwise.parallel.constraints import illegal_faults
from shardwise.parallel.constraints.software import reports_of
from shardwise.parallel.effects import EFFECTS, Kind, idle_rows, kinds_of, most_layers_on_a_rank
from shardwise.parallel.placement import place
from shardwise.planning.search.candidates import OPTION_FIELDS, Box, Candidates
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.layouts import LayerSplits, expert_degrees
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.plans import plans_of
from shardwise.planning.search.progress import Progress, Reporter
from shardwise.planning.search.query import Question, SearchQuery, load_space
from shardwise.planning.search.ranking import OBJECTIVES, Ranked, as_integers, best_of_each
from shardwise.planning.search.results import (
    BrokenRule,
    Change,
    Explanation,
    FieldChange,
    Loss,
    OutsideSpace,
    Shortage,
)
from shardwise.planning.search.scan import Evaluated, Findings, merged, scan
from shardwise.planning.search.space import SPACE_FIELDS, SPLIT_FIELDS, Space
from shardwise.records import dataclass, replace

_NETWORK = ("placement", "extents", *TIER_FIELDS)
_NO_TIER = ("none", "placement")
_PLAIN = ("gpus", *LAYER_AXES, "pp", "vpp", "micro_batch_size", "global_batch_size")
# These have no effect on one stage, and on one replica.
_STAGE_FIELDS, _REPLICA_FIELDS = (*SPLIT_FIELDS, "stage_layers"), ("dp_shard",)
_BY_CHUNKS = [Schedule.ONE_F_ONE_B.code, Schedule.INTERLEAVED.code]
# These count as changed only where a user set an impossible value.
_FOLLOWING = {*FOLLOWING_FIELDS} & {*LAYOUT_FIELDS}
_SOURCE = "strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStrategy:
    """A strategy with the rules that it breaks, and which of its fields count as changes."""

    model: Model
    system: System
    row: Table
    """The strategy, defaults filled in; one row."""
    broken: Mapping[str, Fault]
    """One fault for each rule that it breaks, by the rule's reason."""
    follows_tp: bool
    """Whether `tp_exchange` is unset: it follows from whether there is a tensor-parallel group."""
    follows_stack: bool
    """Whether `dispatcher` is unset: it follows from the stack."""
    counted: frozenset[str]
    """Fields that count as changed although they follow from others or have no effect."""
    follows_batch: bool
    """Whether the global batch is the largest multiple of the replicas."""

    @classmethod
    def of(
        cls, model: Model, system: System, space: Space, strategy: StrategyLike
    ) -> "UserStrategy":
        """Read a strategy; an unset field is the only value of the space, or the default.

        Raises
        ------
        InputError
            If a field cannot be read, or is missing and nothing implies it.
        """
        own = _set_fields(strategy)
        fields = _single_values(system, space.settled(model, system), own) | own
        degrees = _fault_of_degrees(model, fields)
        named = {name: value for name, value in fields.items() if value is not None}
        row = Table.of(model, named, system)
        if space.batch == "largest" and "global_batch_size" not in own:
            most, dp = int(row.global_batch_size[0]), int(row.dp[0])
            row = replace(row, global_batch_size=np.array([most // dp * dp or most]))
        broken = illegal_faults(model, system, row)
        if degrees is not None:
            broken["degrees"] = degrees
            if fields.get("dp") is None:  # the default is no number of replicas
                broken.pop("batch", None)
        blamed = {fault.field for fault in broken.values()} - {"dp"}
        if "degrees" in broken:
            blamed.add("dp")
        return cls(
            model=model,
            system=system,
            row=row,
            broken=broken,
            follows_tp=fields.keys().isdisjoint(("tp_exchange", "sequence_parallel")),
            follows_stack="dispatcher" not in fields,
            counted=frozenset(blamed & own.keys()),
            follows_batch=space.batch == "largest",
        )

    def without_effect(self) -> frozenset[str]:
        """Fields, except those of the network, of which another value changes nothing."""
        training = bool(self.row.training[0])
        idle = {n for n in EFFECTS if idle_rows(self._kind(self.row, training), self.row, n)[0]}
        idle |= {*_STAGE_FIELDS} if self.row.pp[0] == 1 else set()
        return frozenset(idle | ({*_REPLICA_FIELDS} if self.row.dp[0] == 1 else set()))

    def outside(self, space: Space) -> dict[str, tuple[object, ...]]:
        """Fields whose value a space does not try, with the values that it tries."""
        mine = self.row.strategy(0)
        idle = self.without_effect()
        space = space.settled(self.model, self.system)
        found = {}
        for name in SPACE_FIELDS:
            values = None if name in (*_NETWORK, *idle) else self._tried(space, name)
            if values is not None and getattr(mine, name) not in values:
                found[name] = values
            most = space.most(name, self.model, self.system)
            if most < math.inf and getattr(mine, name) > most:
                found[name] = (f"up to {most:g}",)
        return found | self._network_outside(space)

    def _tried(self, space: Space, name: str) -> tuple[Any, ...] | None:
        """Values of a field in a space, in the form of `Strategy`; None for all that are legal."""
        values = space.values(name, self.system)
        if values is None:
            return None
        if name == "stack":
            return tuple(stack_on(value, self.system) for value in values)
        if name == "etp":
            return tuple(etp for _, etp in expert_degrees((1,), values, int(self.row.tp[0])))
        if name == "global_batch_size" and self.follows_batch:
            dp = int(self.row.dp[0])
            return tuple(batch // dp * dp or batch for batch in values)
        if name in _STAGE_FIELDS:
            return self._splits_tried(space, name)
        default: object = self.model.seq_len if name == "seq_len" else None
        if name == "dispatcher":
            default = self.row.stacks[int(self.row.stack[0])].dispatcher
        return tuple(default if value is None else value for value in values)

    def _splits_tried(self, space: Space, name: str) -> tuple[Any, ...]:
        """Values of a field that splits the layers over as many stages and chunks."""
        splits = LayerSplits(self.model, self.system, space)
        own = (int(getattr(self.row, field)[0]) for field in ("pp", "vpp", "schedule"))
        numbers = np.array(splits.of(*own), dtype=np.int64)
        rows = self.row.take(np.zeros(numbers.size, dtype=np.int64))
        table = replace(rows, **splits.take(numbers))
        every = [getattr(table.strategy(row), name) for row in range(len(table))]
        return tuple(dict.fromkeys(every))

    def _network_outside(self, space: Space) -> dict[str, tuple[object, ...]]:
        """Placement and tiers, if no values of a space place the members as the strategy does."""
        tried = {name: space.values(name, self.system) or (None,) for name in _NETWORK}
        combined = list(zip(*product(*tried.values()), strict=True))
        columns: dict[str, object] = dict(zip(_NETWORK, map(list, combined), strict=True))
        networks = Table.of(self.model, {"dp": 1, "gbs": 1, "seq_len": 1, **columns})
        same = self.row.take(np.zeros(len(networks), dtype=np.int64))
        if not np.all(_placed_differently(self.system, same, same.replaced(networks, _NETWORK))):
            return {}
        mine = self.row.strategy(0)
        unused = {f"{axis}_tier" for axis in PLACED_AXES if getattr(mine, axis) == 1}
        unused -= {"tp_tier"} if mine.tp2 > 1 else set()
        return {n: v for n, v in tried.items() if n not in unused and getattr(mine, n) not in v}

    def distances(self, box: Box) -> tuple[Ints, Ints]:
        """Fields to change for each row of `Box.table`, and, in addition, for each choice."""
        layouts = _counts(self._layout_changes(box.layouts), len(box.layouts))
        training = bool(box.options.training[0])
        options = self._option_changes(box.layouts, box.options, training, OPTION_FIELDS)
        choices = self._option_changes(box.layouts, box.choices, training, CHOICE_FIELDS)
        rows = layouts[:, np.newaxis] + _counts(options, len(box.options))
        return rows.ravel(), _counts(choices, len(box.choices))

    def changed(self, candidate: Table) -> tuple[str, ...]:
        """Fields to change for a candidate of one row, in the order of `Strategy`."""
        training = bool(candidate.training[0])
        masks = self._layout_changes(candidate) | self._option_changes(
            candidate, candidate, training, (*OPTION_FIELDS, *CHOICE_FIELDS)
        )
        return tuple(name for name in SPACE_FIELDS if name in masks and masks[name][0])

    def _layout_changes(self, layouts: Table) -> dict[str, Bools]:
        """Fields of layouts that differ, row by row."""
        names = [n for n in _PLAIN if n != "global_batch_size" or not self.follows_batch]
        names += sorted(self.counted.intersection((*_FOLLOWING, *_PLAIN)) - set(names))
        differ = {name: getattr(layouts, name) != getattr(self.row, name)[0] for name in names}
        differ |= self._stage_changes(layouts)
        network = evaluate_distinct(self._network_changes, layouts)
        return differ | {name: column[network.position] for name, column in network.values.items()}

    def _stage_changes(self, layouts: Table) -> dict[str, Bools]:
        """Layer splits and shards that differ, where there are several stages or replicas.

        A schedule that follows from the chunks does not count.
        """
        own = self.row
        several = layouts.pp > 1
        differ = {n: (getattr(layouts, n) != getattr(own, n)[0]) & several for n in SPLIT_FIELDS}
        mine = own.stage_lists[int(own.stage_layers[0])] if own.stage_layers[0] >= 0 else None
        same = np.array([*(mine == theirs for theirs in layouts.stage_lists), mine is None])
        differ["stage_layers"] = ~same[layouts.stage_layers] & several
        shards = [np.where(n < layouts.dp, n, 0) for n in (own.dp_shard[0], layouts.dp_shard)]
        differ["dp_shard"] = shards[0] != shards[1]
        if "schedule" not in self.counted:
            follows = np.isin(layouts.schedule, _BY_CHUNKS) & np.isin(own.schedule, _BY_CHUNKS)
            differ["schedule"] = (layouts.schedule != own.schedule[0]) & ~follows
        return differ

    def _network_changes(self, layouts: Table) -> dict[str, Bools]:
        """Placement and tiers, where the user's would place the members differently."""
        mine = self.row.take(np.zeros(len(layouts), dtype=np.int64))

        def moved(*fields: str) -> Bools:
            return _placed_differently(self.system, layouts, layouts.replaced(mine, fields))

        elsewhere = moved(*_NETWORK)
        explicit = (layouts.extents >= 0) | (mine.extents >= 0)
        extents, elsewhere = elsewhere & explicit, elsewhere & ~explicit
        by_tiers = elsewhere & moved(*TIER_FIELDS)
        differ = {"placement": elsewhere & (moved("placement") | ~by_tiers), "extents": extents}
        for axis, name in zip(PLACED_AXES, TIER_FIELDS, strict=True):
            other = getattr(layouts, name) != getattr(mine, name)
            several = getattr(layouts, axis) > 1
            several |= (layouts.tp2 > 1) & (axis == "tp")
            differ[name] = by_tiers & other & several
        for name in self.counted.intersection(_NETWORK):
            one, other = (_words_or_codes(table, name) for table in (layouts, mine))
            differ[name] = one != other
        return differ

    def _option_changes(
        self, layouts: Table, options: Table, training: bool, names: tuple[str, ...]
    ) -> dict[str, Bools]:
        """Other fields that differ, row by row, on layouts of one kind."""
        mine = {name: getattr(self.row, name)[0] for name in names if name != "stack"}
        if "tp_exchange" in mine and self.follows_tp:
            usual = self.row.stacks[0].field_defaults.get("tp_exchange", TpExchange.RS_AG)
            mine["tp_exchange"] = (usual if layouts.tp[0] > 1 else TpExchange.ALL_REDUCE).code
        if "dispatcher" in mine and self.follows_stack:
            degrees = {"ep": layouts.ep[:1], "etp": layouts.etp[:1]}
            stacks = {"stack": options.stack, "stacks": options.stacks}
            mine["dispatcher"] = default_dispatchers(self.model, degrees | stacks)
        differ: dict[str, Bools] = {n: getattr(options, n) != value for n, value in mine.items()}
        if "stack" in names:
            same = [stack == self.row.stacks[0] for stack in options.stacks]
            differ["stack"] = ~np.array(same)[options.stack]
        if "data_lengths" in names:
            own_list, listed = (as_integers(t, "data_lengths") for t in (self.row, options))
            differ["data_lengths"] = listed != own_list[0]
        kind = self._kind(layouts, training)
        for name in (set(names) & set(EFFECTS)) - self.counted:
            own: dict[str, Any] = {name: np.full(len(options), mine[name])}
            idle = idle_rows(kind, options, name) & idle_rows(kind, replace(options, **own), name)
            differ[name] = differ[name] & ~idle
        return differ

    def _kind(self, layouts: Table, training: bool) -> Kind:
        """The kind of layouts that are all of one kind."""
        first = layouts.take(slice(0, 1))
        layers = most_layers_on_a_rank(self.model, first)
        ((kind, _),) = kinds_of(self.model, first, layers=layers, panels=True)
        return replace(kind, training=training)


def _set_fields(strategy: StrategyLike) -> dict[str, object]:
    """Fields that a user set, in the form of `Strategy`."""
    if isinstance(strategy, Mapping):
        strategy = {
            name: None if name in TIER_FIELDS and str(value).lower() in _NO_TIER else value
            for name, value in strategy.items()
        }
    loaded = Strategy.load(strategy)
    fields = {name: getattr(loaded, name) for name in loaded.set_fields()}
    return {
        name: value for name, value in fields.items() if value is not None or name in TIER_FIELDS
    }


def _single_values(system: System, space: Space, own: Mapping[str, object]) -> dict[str, object]:
    """Fields that the user did not set and that have one value in the space."""
    found = {}
    for name in SPACE_FIELDS:
        values = space.values(name, system)
        follows = name == "schedule" or (name == "tp_exchange" and "sequence_parallel" in own)
        follows |= name == "etp" and values == (1,)  # the default of a space, not of each stack
        if name not in own and values is not None and len(values) == 1 and not follows:
            found[name] = values[0]
    if isinstance(found.get("etp"), str):  # the word for "as tp"
        found["etp"] = own.get("tp", found.get("tp", 1))
    return found


def _fault_of_degrees(model: Model, fields: Mapping[str, object]) -> Fault | None:
    """The fault of degrees whose product is not the number of accelerators.

    Raises
    ------
    InputError
        If a field is missing.
    """
    try:
        Strategy.validated(fields, source=_SOURCE).resolved(model)
    except InputError as error:
        missing = [fault for fault in error.faults if not fault.has_value]
        if missing:
            raise InputError(missing) from None
        return error.faults[0]
    return None


def _placed_differently(system: System, one: Table, other: Table) -> Bools:
    """Rows in which some axis has other extents."""
    first, second = place(system, one), place(system, other)
    moved = [getattr(first, axis) != getattr(second, axis) for axis in EXTENT_AXES]
    return np.any(moved, axis=(0, 1))


def _words_or_codes(table: Table, name: str) -> NDArray[Any]:
    """A column that two tables can be compared by: extents as text, as their codes may differ."""
    return table.to_columns()[name] if name == "extents" else getattr(table, name)


def _counts(differ: Mapping[str, Bools], length: int) -> Ints:
    return np.sum([*differ.values(), np.zeros(length, dtype=np.bool_)], axis=0, dtype=np.int64)


# A smaller share of a step is no reason to change anything.
_WORTH = 1e-6
# Scores that differ by a smaller share are equal: the last digits depend on the other rows.
_ROUNDING = 1e-12


def explain(
    model: ModelLike,
    system: SystemLike,
    space: Space | Mapping[str, Any] | str | Path | None,
    strategy: StrategyLike,
    *,
    objective: str | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    limit_on: str | None = None,
    fits: float | str | None = None,
    progress: Progress | None = None,
    **fixed: Unpack[SpaceKeywords],
) -> Explanation:
    """Explain why a strategy is illegal, too big, or slower than the best, and how to improve it.

    Parameters
    ----------
    space
        The strategies to compare with, as for `search`; GPUs and batch are by default those of
        the strategy.
    strategy
        A `Strategy`, its fields as a mapping, or a file. An unset field has the value of the
        space if that has only one, else its default.
    objective, max_memory, reserve, limit_on, progress, **fixed
        As for `search`.
    fits
        Probability with which the strategies to compare with must fit, as for `search`; None: their
        predicted memory must, as that of the user's strategy.

    Returns
    -------
    Explanation
        What is wrong with the strategy, or what is better; `help(shardwise.Explanation)` lists its
        fields.

    Raises
    ------
    InputError
        If an argument is wrong; one fault for each. A broken rule is no fault.

    Examples
    --------
    >>> from shardwise import explain
    >>> mine = explain("llama3-8b", "h100-sxm", {"pp": 1}, {"tp": 8, "zero": 0}, gpus=8, gbs=64)
    >>> mine.legal, mine.fits, mine.rank == 1
    (True, True, False)
    """
    started = time.perf_counter()
    check_function("progress", progress)
    the_model, the_system = Model.load(model), System.load(system).limited_on(limit_on)
    declared = load_space(space, fixed)
    query = Question(
        space=declared,
        objective=objective,
        max_memory=max_memory,
        reserve=reserve,
        fits=fits,
        top=1,
    ).on(the_model, the_system)
    user = UserStrategy.of(the_model, the_system, declared, strategy)
    # The space with the GPUs and the batch of the strategy, where it sets none.
    own = {n: int(getattr(user.row, n)[0]) for n in ("gpus", "global_batch_size")}
    missing = {name: value for name, value in own.items() if not getattr(declared, name)}
    searched = declared.fixed(missing, source="strategy") if missing else declared
    candidates = Candidates.of(the_model, the_system, searched)
    mine = None if user.broken else estimate(the_model, the_system, user.row.strategy(0))
    shortages = () if mine is None else _shortages(query, mine)
    score = None
    if mine is not None and not shortages:
        step_s = np.array([mine.step_time_s])
        score = float(OBJECTIVES[query.objective](step_s, user.row, the_system)[0])
    report = Reporter(progress, candidates)
    findings, neighbors, complete = _scan_all(query, candidates, user, score, report)
    best: Estimate | None = None
    differs: tuple[FieldChange, ...] = ()
    if len(findings.best):
        row = candidates.strategies(findings.best.number)
        best = estimate(the_model, the_system, row.strategy(0))
        differs = _field_changes(user, user.changed(row), row.strategy(0))
    outside = user.outside(searched)
    table = replace(user.row, named=searched.named)
    avoided = tuple(str(one) for one in reports_of(the_model, the_system, table, avoided=True))
    fields = user.row.strategy(0).to_dict()
    feasible = score is not None
    is_candidate = feasible and not (outside or avoided) and _is_sure(query, mine)
    return Explanation(
        model=the_model.name,
        system=the_system.name,
        space=declared.model_dump(mode="json", exclude_unset=True),
        objective=query.objective,
        capacity_bytes=query.capacity_bytes,
        strategy=fields,
        legal=mine is not None,
        broken=tuple(
            BrokenRule(
                reason=reason, field=fault.field, value=_name(fault.value), problem=fault.problem
            )
            for reason, fault in user.broken.items()
        ),
        fits=None if mine is None else not shortages,
        shortages=shortages,
        in_space=not (outside or avoided),
        outside=tuple(
            OutsideSpace(field=name, value=_name(fields[name]), tried=tuple(map(_name, tried)))
            for name, tried in outside.items()
        ),
        avoided=avoided,
        estimate=mine,
        candidates=len(candidates),
        feasible=findings.feasible,
        better=neighbors.better if feasible else None,
        rank=neighbors.better + 1 if is_candidate else None,
        best=best,
        loss=_loss(mine, best) if feasible else None,
        differs=differs,
        changes=_changes(query, candidates, user, neighbors, score),
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbors:
    """Feasible candidates by their distance from the user's strategy."""

    better: int
    """Number of candidates with a better score."""
    changes: Ints
    """Distances at which there are candidates: numbers of changed fields."""
    best: Ranked
    """The best candidate at each distance."""

    @classmethod
    def empty(cls) -> "_Neighbors":
        return cls(better=0, changes=np.empty(0, np.int64), best=Ranked.empty())

    @staticmethod
    def joined(parts: "Sequence[_Neighbors]") -> "_Neighbors":
        changes, best = best_of_each(
            np.concatenate([part.changes for part in parts])[:, np.newaxis],
            Ranked.joined([part.best for part in parts]),
        )
        better = sum(part.better for part in parts)
        return _Neighbors(better=better, changes=changes[:, 0], best=best)


class _NeighborObserver:
    """Measures how far every feasible candidate of a box is from the user's strategy."""

    def __init__(
        self, query: SearchQuery, user: UserStrategy, score: float | None, box: Box
    ) -> None:
        self._query, self._box = query, box
        self._limit = -np.inf if score is None else score * (1 - _ROUNDING)
        self._row_distances, self._choice_distances = user.distances(box)
        self.neighbors = _Neighbors.empty()

    def options(self, broken: Ints) -> None:
        """Ignore candidates that break a rule."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Add the best candidates of a chunk at each distance."""
        timed = chunk.timed
        if timed is None:
            return
        step_s = timed.timing.step_time_s
        score = OBJECTIVES[self._query.objective](step_s, timed.table, self._query.system)
        score = np.where(timed.feasible, score, np.inf)
        rows = chunk.rows[timed.rows]
        distance = self._choice_distances[:, np.newaxis] + self._row_distances[rows]
        least = np.full(len(SPACE_FIELDS) + 1, np.finfo(np.float64).max)
        least[self.neighbors.changes] = self.neighbors.best.score
        choice, row = np.nonzero(score <= least[distance])
        ranked = Ranked(
            number=self._box.numbers(rows[row], choice),
            score=score[choice, row],
            second=np.zeros(row.size),
            step_time_s=step_s[choice, row],
        )
        changes, best = best_of_each(distance[choice, row][:, np.newaxis], ranked)
        better = int(np.count_nonzero(score < self._limit))
        here = _Neighbors(better=better, changes=changes[:, 0], best=best)
        self.neighbors = _Neighbors.joined([self.neighbors, here])


def _scan_all(
    query: SearchQuery,
    candidates: Candidates,
    user: UserStrategy,
    score: float | None,
    report: Reporter,
) -> tuple[Findings, _Neighbors, bool]:
    """Scan every candidate; return what was found, and whether it is complete."""
    findings, neighbors = Findings.empty(), _Neighbors.empty()
    legal = sum(map(len, candidates.legal))
    try:
        for piece in (piece for box in candidates.legal for piece in box.cut(PIECE_ROWS)):
            observer = _NeighborObserver(query, user, score, piece)
            findings = merged([findings, scan(query, piece, observer)], query)
            neighbors = _Neighbors.joined([neighbors, observer.neighbors])
            report(findings.candidates, legal, findings.best)
    except KeyboardInterrupt:
        return findings, neighbors, False
    return findings, neighbors, True


def _is_sure(query: SearchQuery, mine: Estimate | None) -> bool:
    """Whether a strategy that fits as predicted fits with the probability of the question."""
    likely = None if mine is None else mine.fits_probability
    return likely is None or likely >= (query.fit.probability or 0.0)


def _shortages(query: SearchQuery, mine: Estimate) -> tuple[Shortage, ...]:
    """Memory tiers that are too small, each with the stage that needs most of it."""
    tiers = query.system.accelerator.memory
    found = []
    peak = max(mine.stages, key=lambda stage: stage.needed)
    if peak.needed > query.capacity_bytes:
        parts = {part: getattr(peak, part) for part in MEMORY_PARTS}
        parts["runtime"] = peak.needed - peak.total
        found.append(_shortage(tiers[0].name, peak.stage, query.capacity_bytes, parts))
    most = max(mine.stages, key=lambda stage: stage.offloaded)
    if len(tiers) > 1 and most.offloaded > tiers[1].usable_bytes:
        parts = _offloaded(query, mine, most.stage)
        found.append(_shortage(tiers[1].name, most.stage, float(tiers[1].usable_bytes), parts))
    return tuple(found)


def _shortage(tier: str, stage: int, usable_bytes: float, parts: Mapping[str, float]) -> Shortage:
    needed = sum(parts.values())
    return Shortage(
        tier=tier,
        stage=stage,
        needed_bytes=needed,
        usable_bytes=usable_bytes,
        excess_bytes=needed - usable_bytes,
        parts={n: parts[n] for n in sorted(parts, key=lambda n: -parts[n]) if parts[n]},
    )


def _offloaded(query: SearchQuery, mine: Estimate, stage: int) -> dict[str, float]:
    """Bytes that a stage offloads of weights, optimizer state and activations."""
    off: dict[str, object] = dict.fromkeys(OFFLOADS, False)
    found = {}
    for flag in OFFLOADS:
        part = flag.removeprefix("offload_")
        if mine.strategy[flag]:
            named = mine.strategy["offload_parts"] if part == "activations" else None
            fields = {**mine.strategy, **off, flag: True, "offload_parts": named}
            only = estimate(query.model, query.system, Strategy.validated(fields))
            found[part] = only.stages[stage].offloaded
    return found


def _field_changes(
    user: UserStrategy, names: Sequence[str], other: Strategy
) -> tuple[FieldChange, ...]:
    mine, theirs = user.row.strategy(0).to_dict(), other.to_dict()
    return tuple(FieldChange(field=n, given=mine[n], value=theirs[n]) for n in names)


def _changes(
    query: SearchQuery,
    candidates: Candidates,
    user: UserStrategy,
    neighbors: _Neighbors,
    score: float | None,
) -> tuple[Change, ...]:
    """The best candidate at every distance, up to the first that is as good as any."""
    ranked, distances = neighbors.best, neighbors.changes
    if not len(ranked):
        return ()
    last = int(np.argmax(ranked.score <= ranked.score.min() * (1 + _WORTH)))
    first = 1 if score is not None and distances[0] == 0 else 0
    plans = plans_of(query, candidates, ranked.number[first : last + 1])
    found, least = [], np.inf if score is None else score
    for position, plan in enumerate(plans, first):
        row = candidates.strategies(ranked.number[position : position + 1])
        found.append(
            Change(
                changes=int(distances[position]),
                fields=_field_changes(user, user.changed(row), row.strategy(0)),
                plan=plan,
                improves=bool(ranked.score[position] < least * (1 - _WORTH)),
            )
        )
        least = min(least, ranked.score[position])
    return tuple(found)


def _loss(mine: Estimate | None, best: Estimate | None) -> Loss | None:
    """Step time minus that of the best, by part, if the two do the same work."""
    if mine is None or best is None:
        return None
    work = ("gpus", "global_batch_size", "seq_len", "training")
    if any(mine.strategy[name] != best.strategy[name] for name in work):
        return None
    parts = {part: mine.time_s[part] - best.time_s[part] for part in TIME_PARTS}
    return Loss(
        step_time_s=mine.step_time_s,
        best_step_time_s=best.step_time_s,
        difference_s=mine.step_time_s - best.step_time_s,
        parts_s={part: parts[part] for part in sorted(parts, key=lambda part: -parts[part])},
    )


def _name(value: object) -> object:
    """A value as users write it: a stack by its name."""
    return value.name if isinstance(value, Stack) else value

"""The nearest plan: the fewest changed fields that make a strategy legal, small enough, accepted.

Candidates differ from the strategy in one field, then two, and so on. Model, accelerators, batch
and sequence stay. Of the candidates with the fewest changes, the one with the shortest step wins.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, islice, product
from math import isnan, log, prod
from typing import Any

import numpy as np

from shardwise.analysis import Result
from shardwise.analysis.fit_probability import SURE, states_load
from shardwise.arrays import Floats, Ints, divisors
from shardwise.config.enums import Recompute
from shardwise.config.fine_tuning import targets_in_brief
from shardwise.config.model import Model
from shardwise.config.stack import DEFAULT_STACK, Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_columns import numbers_for
from shardwise.config.strategy_fields import (
    COLUMNS,
    DEGREES,
    EXPERT_DEGREES,
    FIELDS,
    FOLLOWING_FIELDS,
    LINE_FIELDS,
    OFFLOADS,
    RANK_DEGREES,
    REPLICA_DEGREES,
    Kind,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate_many
from shardwise.parallel.constraints import software
from shardwise.planning.search.layouts import uneven_layers
from shardwise.planning.search.results import FieldChange
from shardwise.records import dataclass
from shardwise.shown import Brief

Accepts = Callable[[Strategy], bool]

FIXED = frozenset(
    {
        *("gpus", "global_batch_size", "seq_len", "training", "document_len", "attention"),
        *("expert_imbalance", "stack", "any_software", "dp"),
    }
)
"""Fields that never change: what is trained and on what. `dp` follows from the other degrees."""
_LAYOUT = (
    *("gpus", "global_batch_size", "seq_len", "stack", "any_software"),
    *(name for name in DEGREES if name != "dp"),
)
# Beyond so many, every other changed field must be one that is at fault.
_FREE_CHANGES = 2
_MOST_CHANGES = 5
# Candidates of one number of changes that are evaluated, and of these, that are checked one by one.
_MOST_ROWS = 1 << 17
_MOST_CHECKED = 2000


class NearestPlan(Brief, Result):
    """A legal plan that fits, and how it differs from the strategy of the user.

    Examples
    --------
    >>> from shardwise import CannotExportError, export
    >>> try:
    ...     export("torchtitan", "llama3-8b", "h100-sxm", gpus=8, tp=2, zero=1, gbs=8)
    ... except CannotExportError as error:
    ...     if error.nearest is not None:
    ...         print([(one.field, one.given, one.value) for one in error.nearest.changes])
    [('zero', 1, 2)]
    """

    strategy: Mapping[str, Any]
    """All fields, defaults filled in."""
    changes: tuple[FieldChange, ...]
    """In the order of `Strategy`, without fields that follow from others."""
    step_time_s: float
    fits_probability: float | None = None
    """Probability that it fits; None forward only."""
    flags: str = ""
    """Flags of the command line that make these changes."""


def set_fields(
    model: Model, resolved: Strategy, described: str | None = None, on: System | str = DEFAULT_STACK
) -> dict[str, Any]:
    """Return the fields but the stack that a user must set for a resolved strategy.

    Parameters
    ----------
    described
        The stack as the user names it, on a system: what it means may depend on the other fields.
    """
    layout = {name: getattr(resolved, name) for name in _LAYOUT}
    usual = {name: FIELDS[name].default for name in _LAYOUT} | {"seq_len": model.seq_len}
    implied = Strategy(**layout).resolved(model)
    every = {name: getattr(resolved, name) for name in COLUMNS if name != "stack"}
    found: dict[str, Any] = {}
    missing = [n for n in every if every[n] != (usual[n] if n in usual else getattr(implied, n))]
    while missing:  # what is set changes what the stack has by default: a recipe, its weights
        found |= {name: every[name] for name in missing}
        named = Strategy(**found | {"stack": described or resolved.stack})
        implied = named.resolved(model, on)
        missing = [n for n in every if n not in found and every[n] != getattr(implied, n)]
    return {name: found[name] for name in every if name in found}


def flag_words(name: str, value: object) -> list[str]:
    """Return a field of a strategy as a flag of the command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    if name == "lora_targets" and isinstance(value, (list, tuple)):
        value = targets_in_brief(value).split("+")
    if isinstance(value, (list, tuple)):
        return [f"--{dashed}", ",".join(map(str, value)) or "none"]
    return [] if value is None else [f"--{dashed}", shlex.quote(str(value))]


def plan_words(model: Model, strategy: Strategy, described: object, on: System) -> list[str]:
    """Return the flags of a plan on a system, with its software.

    Parameters
    ----------
    described
        Software of the space that it is of: a description stands for the stack that it means.
    """
    plain = strategy.to_dict()
    stack, text = plain["stack"], None
    if not isinstance(stack, str) and isinstance(described, (list, tuple)):
        stack = next(iter(described), None) if len(described) == 1 else None
        text = stack if isinstance(stack, str) else None
    named = set_fields(model, strategy, text, on)
    if strategy.recompute != Recompute.SELECTIVE:
        named.pop("recompute_parts", None)  # of no effect
    words = [word for name in named for word in flag_words(name, plain[name])]
    return [*words, "--stack", shlex.quote(stack)] if isinstance(stack, str) else words


def nearest_plan(
    model: Model,
    system: System,
    strategy: Strategy,
    accepts: Accepts = lambda _: True,
    *,
    at_fault: Collection[str] = (),
    probability: float | None = None,
    without: Collection[str] = (),
    most_changes: int = _MOST_CHANGES,
) -> NearestPlan | None:
    """Return the nearest legal plan that fits and is accepted; None if none is found.

    Parameters
    ----------
    model, system
        They stay, as do accelerators, batch and sequence.
    strategy
        The plan of the user; it names the stack whose rules apply. Where its degrees do not divide
        the accelerators, the search starts from the closest that do.
    accepts
        Whether a legal plan that fits will do.
    at_fault
        Fields to change first. Of more than two changes, all but two are of these.
    probability
        With which a plan must fit; None: it must fit as predicted.
    without
        Fields that stay.
    most_changes
        Number of fields that may change.

    Raises
    ------
    InputError
        If a field is missing that nothing implies.
    """
    possible = with_possible_degrees(strategy)
    base = possible.resolved(model, system)
    offending = {"tp_exchange" if name == "sequence_parallel" else name for name in at_fault}
    space = _Changes.of(model, system, base, offending, strategy, probability, without)
    for number in range(int(possible is strategy), most_changes + 1):
        found = space.best(number, accepts)
        if found is not None:
            return found
    return None


def change_to_fit(model: Model, system: System, strategy: Strategy) -> NearestPlan | None:
    """Return the change of one field with which a plan surely fits; None if there is none.

    Of several it is that with the shortest step, of offload only where nothing else does.
    """
    for without in (OFFLOADS, ()):
        found = nearest_plan(
            *(model, system, strategy), probability=SURE, without=without, most_changes=1
        )
        if found is not None:
            words = [word for one in found.changes for word in flag_words(one.field, one.value)]
            return found.model_copy(update={"flags": " ".join(words)})
    return None


def with_possible_degrees(strategy: Strategy) -> Strategy:
    """Return a strategy whose degrees divide its accelerators; itself if they do.

    The fewest degrees change, and of the ways to change as many those by the least factors:
    sum of |log(new / old)|.
    """
    gpus, own = strategy.gpus, [getattr(strategy, name) for name in REPLICA_DEGREES]
    if gpus is None or (strategy.dp in (None, gpus / prod(own)) and gpus % prod(own) == 0):
        return strategy
    if gpus % prod(own):
        tried = [[one] if one == 1 else sorted({one, *divisors(gpus)}) for one in own]
        fitting: list[tuple[int, ...]]
        fitting = [degrees for degrees in product(*tried) if gpus % prod(degrees) == 0]

        def distance(degrees: Sequence[int]) -> tuple[int, float]:
            ratios = [new / old for new, old in zip(degrees, own, strict=True)]
            return sum(ratio != 1 for ratio in ratios), sum(abs(log(ratio)) for ratio in ratios)

        closest = min(fitting, key=distance)
        own = list(closest)
    return strategy.model_copy(update=dict(zip(REPLICA_DEGREES, own, strict=True)) | {"dp": None})


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """Values that each field may change to."""

    model: Model
    system: System
    own: Strategy
    """What the user set."""
    base: Strategy
    """The same with all fields filled in, and degrees that divide the accelerators."""
    following: frozenset[str]
    """Fields that follow from others, unless they are among the changes."""
    values: Mapping[str, tuple[Any, ...]]
    offending: frozenset[str]
    unstated: frozenset[str]
    """Fields that memory may have another value of (`fit_probability.loaded_unevenly`)."""
    probability: float | None
    """With which a plan must fit; None: as predicted."""

    @classmethod
    def of(
        cls,
        model: Model,
        system: System,
        base: Strategy,
        offending: set[str],
        own: Strategy,
        probability: float | None,
        without: Collection[str],
    ) -> "_Changes":
        needed = set_fields(model, base)
        names = [
            n
            for n in COLUMNS
            if n not in {*FIXED, *without} and (n in offending or not COLUMNS[n].role.work)
        ]
        values = {name: changed_values(name, model, system, base) for name in names}
        return cls(
            model=model,
            system=system,
            own=own,
            base=base,
            following=frozenset(n for n in FOLLOWING_FIELDS if n == "dp" or n not in needed),
            values={name: own for name, own in values.items() if own},
            offending=frozenset(offending & values.keys()),
            unstated=frozenset(() if states_load(own) else ("expert_imbalance",)),
            probability=probability,
        )

    def best(self, number: int, accepts: Accepts) -> NearestPlan | None:
        """The fastest accepted plan with a number of changes."""
        rows = list(islice(self._rows(number), _MOST_ROWS))
        if not rows:
            return None
        step_s, sure, strategies = self._evaluated(rows)
        order = np.argsort(step_s, kind="stable")
        for position in order[np.isfinite(step_s[order])][:_MOST_CHECKED].tolist():
            found = strategies(position)
            if accepts(found):
                plan = self._plan(found, rows[position], float(step_s[position]))
                likely = float(sure[position])
                return plan.model_copy(
                    update={"fits_probability": None if isnan(likely) else likely}
                )
        return None

    def _rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Changes by field; those of more fields at fault come first."""
        others = [name for name in self.values if name not in self.offending]
        at_fault = [name for name in self.values if name in self.offending]
        for free in range(min(number, _FREE_CHANGES) + 1):
            for some in combinations(at_fault, number - free):
                for more in combinations(others, free):
                    names = (*some, *more)
                    for row in product(*(self.values[name] for name in names)):
                        yield dict(zip(names, row, strict=True))

    def _evaluated(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[Floats, Floats, Callable[[int], Strategy]]:
        """Step times [s], infinite where a row is illegal or does not fit.

        Also the probability of each to fit, and the strategies.
        """
        groups: dict[frozenset[str], list[int]] = {}
        for position, row in enumerate(rows):
            groups.setdefault(self.following.intersection(row), []).append(position)
        tables: dict[tuple[Stack, ...], list[Table]] = {}
        places: dict[tuple[Stack, ...], list[int]] = {}
        for explicit, members in groups.items():
            columns = self._columns(explicit, [rows[at] for at in members])
            table = Table.of(self.model, columns, self.system)
            tables.setdefault(table.stacks, []).append(table)
            places.setdefault(table.stacks, []).extend(members)
        step_s, sure = np.full(len(rows), np.inf), np.full(len(rows), np.nan)
        place = np.zeros(len(rows), dtype=np.int64)
        table_of = np.zeros(len(rows), dtype=np.int64)
        joined = [Table.joined(some) for some in tables.values()]
        for number, (table, positions) in enumerate(zip(joined, places.values(), strict=True)):
            found = estimate_many(self.model, self.system, table)
            least, likely = self.probability, found.fits_probability
            fits = found.fits if least is None or np.isnan(likely).all() else likely >= least
            step_s[positions] = np.where((found.refused < 0) & fits, found.step_time_s, np.inf)
            sure[positions] = likely
            table_of[positions], place[positions] = number, np.arange(len(positions))
        return step_s, sure, lambda at: joined[table_of[at]].strategy(int(place[at]))

    def _columns(
        self, explicit: frozenset[str], rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Columns of rows; fields that follow from others are left out unless they change."""
        codes: dict[str, Ints] = {}
        for at, row in enumerate(rows):
            for name, value in row.items():
                if name not in codes:
                    codes[name] = np.zeros(len(rows), dtype=np.int64)
                codes[name][at] = self._places[name][value]
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            if name in self.following - explicit or name in self.unstated:
                continue
            own = getattr(self.base, name)
            if name in codes:
                columns[name] = self._numbers[name][codes[name]]
            elif isinstance(own, tuple) or own is None:
                columns[name] = numbers_for(name, [own]).repeat(len(rows))
            else:
                columns[name] = own
        return columns

    @cached_property
    def _places(self) -> Mapping[str, Mapping[Any, int]]:
        """Number of each value that a field changes to; 0 is its own."""
        return {n: {v: i for i, v in enumerate(own, start=1)} for n, own in self.values.items()}

    @cached_property
    def _numbers(self) -> Mapping[str, Any]:
        """Values of each field by number, for columns."""
        return {n: numbers_for(n, (getattr(self.base, n), *v)) for n, v in self.values.items()}

    def _plan(self, found: Strategy, row: Mapping[str, Any], step_time_s: float) -> NearestPlan:
        before, after = self.base.to_dict(), found.to_dict()
        before |= {name: getattr(self.own, name) for name in RANK_DEGREES}
        changed = {name for name in REPLICA_DEGREES if before[name] != after[name]} | row.keys()
        if before["dp"] not in (None, after["dp"]):
            changed |= {"dp"}
        changes = (
            FieldChange(field=n, given=before[n], value=after[n])
            for n in COLUMNS
            if n in changed and before[n] != after[n]
        )
        return NearestPlan(strategy=after, changes=tuple(changes), step_time_s=step_time_s)


def changed_values(name: str, model: Model, system: System, base: Strategy) -> tuple[Any, ...]:
    """Return what a field may change to: other values that the stack of the strategy lists.

    Degrees divide the accelerators; sets of words lose some words; layers of stages are as even
    as they can be.
    """
    stack = base.loaded_stack(system)
    own = getattr(base, name)
    tried = _every(name, model, system, base, stack)
    return tuple(v for v in dict.fromkeys(tried) if v != own and software.can_run(stack, name, v))


def _every(
    name: str, model: Model, system: System, base: Strategy, stack: Stack
) -> tuple[Any, ...]:
    field = COLUMNS[name]
    unset = (None,) if field.optional else ()
    values: Iterable[Any] = ()
    match field.kind:
        case Kind.FLAG:
            values = (False, True)
        case Kind.WORD:
            values = field.words
        case Kind.SET:
            values = _subsets(name, base, stack)
        case Kind.TIER:
            values = range(len(system.network))
        case Kind.LIST if name == "stage_layers" and base.pp > 1:
            values = (uneven_layers(model.depth, base.pp * base.vpp),)
        case Kind.WHOLE | Kind.NUMBER:
            values = _numbers(name, model, base)
    return (*unset, *values)


def _subsets(name: str, base: Strategy, stack: Stack) -> Iterator[tuple[Any, ...]]:
    """The default, subsets of a set of words, and what recipes of the stack recompute."""
    own = getattr(base, name) or ()
    if FIELDS[name].default is not None:
        yield FIELDS[name].default
    least = 0 if FIELDS[name].default == () else 1
    for number in range(least, len(own) + 1):
        yield from combinations(own, number)
    if name == "recompute_parts":
        yield from stack.recompute_sets


def _numbers(name: str, model: Model, base: Strategy) -> tuple[int | float, ...]:
    """Numbers that a field may be: of a degree, divisors of the accelerators."""
    if COLUMNS[name].role.every:
        return COLUMNS[name].role.every
    if name in (*REPLICA_DEGREES, *EXPERT_DEGREES, "dp_shard"):
        return divisors(base.gpus or 1)
    match name:
        case "micro_batch_size":
            return divisors(base.global_batch_size or 1)
        case "vpp":
            return divisors(model.depth)
        case "recompute_layers":
            return tuple(range(1, model.depth + 1))
    default = FIELDS[name].default
    return () if default is None else (default,)


def blamed_fields(error: InputError) -> set[str]:
    """Fields of a strategy that faults are of."""
    names = {fault.field for fault in error.faults}
    if "dp" in names:
        names |= {*REPLICA_DEGREES} & {*LINE_FIELDS}
    return names & FIELDS.keys()

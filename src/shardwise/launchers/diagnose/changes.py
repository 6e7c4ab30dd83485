"""Legal changes of one or two fields of a strategy, with the gain that the measured run expects."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.config.enums import MemoryLimit, Schedule
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import (
    COLUMNS,
    DEGREES,
    FIELDS,
    LAYER_AXES,
    LINE_FIELDS,
    SHORT_NAMES,
    Kind,
)
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate_many
from shardwise.parallel.effects import EFFECTS, idle_rows, kinds_of
from shardwise.planning.search.space import Space

Fields = dict[str, Any]

_DEGREES = tuple(
    name for name in (*LAYER_AXES, "pp", "vpp", "micro_batch_size") if name in LINE_FIELDS
)
"""Numbers that are halved and doubled."""
_FOLLOW = ("dp", "sequence_parallel")
"""Fields that follow from others: a change of those leaves them open."""
_BY_CHUNKS = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
_LEAST_GAIN = 0.01
"""Share of the step that a change must gain, and a second field on top of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Fields to set, and what comes of it."""

    fields: Mapping[str, Any]
    strategy: Strategy
    """Defaults filled in."""
    step_time_s: float
    """By the estimate on the machine as measured [s]."""
    memory_bytes: float


def best_changes(
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    stack: Stack,
    most: int,
    memory_factor: float,
    can_write: Callable[[Strategy], bool],
) -> tuple[float, list[Change]]:
    """Return the step time of a strategy, and the best changes of one and two fields.

    A change of two fields counts only if it gains a hundredth of the step more than each of them.

    Parameters
    ----------
    memory_factor
        Measured over predicted memory, where it was more.
    """
    own = strategy.resolved(model, system)
    base = _open_fields(strategy, own) | {"stack": stack}
    legal = list(_sets(model, system, own, base))
    table = estimate_many(model, system, [found for _, found in legal])
    memory = system.accelerator.memory[0]
    is_reserved = memory.limit_on == MemoryLimit.RESERVED
    needed = table.memory_reserved_bytes if is_reserved else table.memory_total_bytes
    fits = table.fits & (needed * memory_factor <= memory.capacity)
    times = np.where(fits, table.step_time_s, np.inf)
    times[0] = table.step_time_s[0]
    now = float(times[0])
    alone = {_key(one): float(t) for (one, _), t in zip(legal, times, strict=True) if len(one) == 1}
    found: list[Change] = []
    for row in np.argsort(times, kind="stable").tolist():
        one, candidate = legal[row]
        seconds = float(times[row])
        if len(found) == most or not seconds < now * (1 - _LEAST_GAIN):
            break
        parts = [alone.get(_key({name: value}), np.inf) for name, value in one.items()]
        if len(one) > 1 and seconds > min(*parts, now) - _LEAST_GAIN * now:
            continue
        if not can_write(candidate):
            continue
        found.append(
            Change(
                fields=one,
                strategy=candidate,
                step_time_s=seconds,
                memory_bytes=float(table.memory_reserved_bytes[row]),
            )
        )
    return now, found


def resolvable(before_s: float, after_s: float) -> bool:
    """Whether measurements of such runs can tell two predicted times apart."""
    return before_s / after_s >= distinguishable_ratio()


def _open_fields(strategy: Strategy, own: Strategy) -> Fields:
    """Fields that the strategy sets, without those that follow from others."""
    names = [SHORT_NAMES.get(name, name) for name in strategy.set_fields()]
    fields = {n: getattr(own, n) for n in names if n in COLUMNS and n not in _FOLLOW}
    if own.schedule in _BY_CHUNKS:
        fields.pop("schedule", None)
    if own.tp == 1:
        fields.pop("tp_exchange", None)
    elif "sequence_parallel" in strategy.model_fields_set:
        fields["tp_exchange"] = own.tp_exchange
    if own.ep == 1:
        fields.pop("dispatcher", None)
    return fields | {"gpus": own.gpus}


def _sets(
    model: Model, system: System, own: Strategy, base: Fields
) -> Iterator[tuple[Fields, Strategy]]:
    """Nothing, and every change of one or two fields, with the strategy that comes of it."""
    singles = list(_singles(model, system, own, base))
    sets = [{}, *singles]
    sets += [a | b for a, b in combinations(singles, 2) if a.keys() != b.keys()]
    for one in sets:
        found = _resolved(model, system, _changed(base, one))
        if found is not None:
            yield one, found


def _singles(model: Model, system: System, own: Strategy, base: Fields) -> Iterator[Fields]:
    """Every change of one field: half and twice a degree, other values that a search tries."""
    for name in _DEGREES:
        now = getattr(own, name)
        if name == "ep" and not model.has_experts:
            continue
        halves = [now // 2] if now % 2 == 0 else []
        for value in (*halves, 2 * now):
            yield {name: value}
    space = Space.validated({"stack": [base["stack"]]}).settled(model, system)
    row = Table.of(model, [own])
    ((kind, _),) = kinds_of(model, row)
    for name, column in COLUMNS.items():
        if name in (*DEGREES, *_DEGREES, "schedule") or column.role.work:
            continue
        if column.kind in (Kind.TIER, Kind.LIST, Kind.STACK):
            continue
        if name in EFFECTS and idle_rows(kind, row, name)[0]:
            continue
        for value in space.values(name, system) or ():
            if value != getattr(own, name):
                yield {name: value}


def _changed(base: Fields, change: Fields) -> Fields:
    """Set some fields, and leave open what follows from them."""
    changed = change.keys()
    return {n: v for n, v in base.items() if changed.isdisjoint(FIELDS[n].role.follows)} | change


def _resolved(model: Model, system: System, fields: Fields) -> Strategy | None:
    """Return the strategy, or None where degrees do not divide the accelerators."""
    try:
        return Strategy.validated(fields).resolved(model, system)
    except InputError:
        return None


def _key(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in fields.items())


def changed_fields(
    own: Strategy, other: Strategy, names: Sequence[str]
) -> list[tuple[str, Any, Any]]:
    """Return names and values of the fields that change, as plain values."""
    mine, theirs = own.to_dict(), other.to_dict()
    return [(name, mine[name], theirs[name]) for name in names]

"""A strategy as a user sets it: an object, a mapping, a file, keywords, or keywords over these."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from shardwise.config.expressions.formula import canonical_names
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS, FOLLOWING_FIELDS, REPLICA_DEGREES
from shardwise.errors import Fault, InputError, refuse

StrategyLike = Strategy | Mapping[str, Any] | str | Path
_MISSING = "is missing: set its fields (gpus=64, tp=8, gbs=128), or pass a mapping or a file"


def strategy_of(strategy: StrategyLike | None, fields: Mapping[str, object]) -> Strategy:
    """Return a strategy with other values for some fields.

    Parameters
    ----------
    strategy
        None: the fields are all that is set.

    Raises
    ------
    InputError
        If there is neither, or anything in them is wrong.
    """
    if not fields:
        return Strategy.load(_required(strategy))
    named = {canonical_names(Strategy).get(name, name) for name in fields}
    own = {} if strategy is None else explicit_fields(strategy)
    return Strategy.load({n: value for n, value in own.items() if n not in named} | dict(fields))


def grid_columns(grid: Mapping[str, object], fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the columns of all combinations of values; the last field varies fastest.

    Raises
    ------
    InputError
        If it is no mapping of fields to lists, a list is empty, or a field is set twice.
    """
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(Fault.of("grid", grid, 'must be lists by field: {"tp": [1, 2]}'))
    short = canonical_names(Strategy)
    set_too = {short.get(name, name) for name in fields}
    values: list[list[Any]] = []
    faults = []
    for name, column in grid.items():
        many = isinstance(column, Iterable) and not isinstance(column, (str, Mapping))
        values.append(list(column) if many else [column])  # type: ignore[call-overload]
        if not values[-1]:
            faults.append(Fault(field=f"grid.{name}", problem="an empty list"))
        elif short.get(name, name) in set_too:
            faults.append(Fault(field=f"grid.{name}", problem="is also set as an argument"))
    refuse(faults)
    return dict(zip(grid, map(list, zip(*product(*values), strict=True)), strict=True))


def columns_of(strategies: object, fields: Mapping[str, object]) -> object:
    """Return strategies with other values for some columns.

    Parameters
    ----------
    strategies
        A mapping of columns, a data frame, a list of strategies, or None.
    fields
        Keywords of a user: columns, or single values for all rows.

    Raises
    ------
    InputError
        If there is neither, or the strategies are a list, which has no columns.
    """
    if not fields:
        return _required(strategies)
    if strategies is None:
        return fields
    if isinstance(strategies, Sequence):
        problem = "columns go with a mapping or a data frame; set them in each strategy of the list"
        raise InputError(Fault(source="strategies", field=next(iter(fields)), problem=problem))
    if not isinstance(strategies, Mapping) and hasattr(strategies, "columns"):
        frame: Any = strategies
        strategies = {name: frame[name].to_numpy() for name in frame.columns}
    if not isinstance(strategies, Mapping):
        return strategies
    short = canonical_names(Strategy)
    named = {short.get(name, name) for name in fields}
    return {n: c for n, c in strategies.items() if short.get(n, n) not in named} | dict(fields)


def _required(value: Any) -> Any:
    if value is None:
        raise InputError(Fault(source="strategy", problem=_MISSING))
    return value


def explicit_fields(strategy: StrategyLike) -> dict[str, Any]:
    """Fields that a strategy names, as plain values, with levels in place of their extents.

    A `Strategy` that was made already has its extents.

    Raises
    ------
    InputError
        If anything in it is wrong.
    """
    loaded, resolved = Strategy.explained(strategy)
    return loaded.explicit_fields(resolved.data)


def overriding(
    own: Mapping[str, Any], fields: Mapping[str, Any], *, resolved: bool = True
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return fields over those of a strategy, without what follows from them, and what that is.

    Parameters
    ----------
    own
        Fields of a strategy.
    fields
        What a user changes, by full or short name.
    resolved
        Whether `own` also has the fields that others decide.

    Returns
    -------
    dict, dict
        The fields; and by field that is left out the one that it belongs to.
    """
    short = canonical_names(Strategy)
    changed = {short.get(name, name): value for name, value in fields.items()}
    left_out = {
        other: name
        for name in FIELDS
        if name in changed
        for other, field in FIELDS.items()
        if name in field.role.follows and other in own and other not in changed
    }
    degree = next((name for name in ("gpus", *REPLICA_DEGREES) if name in changed), None)
    if degree is not None and "dp" in {*own} - {*changed} and "gpus" in {*own, *changed}:
        left_out["dp"] = degree
    if resolved and changed:
        left_out |= {name: "" for name in FOLLOWING_FIELDS if name not in changed}
    return {name: v for name, v in own.items() if name not in left_out} | changed, left_out


def work_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a strategy that say what is trained and with what: those a search keeps.

    Accelerators, batch, sequence, types and software. The number of accelerators is the product of
    the degrees where only those are set.
    """
    known = (name for name in fields if name in FIELDS)
    work = {name: fields[name] for name in known if FIELDS[name].role.work}
    if "gpus" not in work and isinstance(fields.get("dp"), int):
        work["gpus"] = math.prod(fields.get(name, 1) for name in ("dp", "tp", "tp2", "cp", "pp"))
    return work

"""Strategies on the systems of their points, and how step times depend on every figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan

import numpy as np

from shardwise.analysis.row_intervals import interval_factors
from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import FULL_DUPLEX, System
from shardwise.config.system_columns import FigurePath, SystemColumns, SystemRows, figures_of
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.estimator import evaluated_columns
from shardwise.planning.search.plans import interval_fields
from shardwise.planning.search.ranking import dollars_per_token
from shardwise.planning.sweep.axes import Figure, influencing_figures
from shardwise.planning.sweep.results import Influence, PointPlan

# Rows evaluated at a time: their columns stay in the cache.
_CHUNK = 1 << 14


def times_on(
    model: Model,
    base: System,
    systems: SystemColumns,
    table: Table,
    on: Ints,
    *,
    stated: bool = False,
) -> dict[str, Floats]:
    """Return times, rates and memory of legal strategies, each on one of the systems.

    Parameters
    ----------
    on
        Position of each row's system.
    stated
        Whether the user states the load of experts.
    """
    found: list[dict[str, Floats]] = []
    for start in range(0, len(table), _CHUNK):
        rows = slice(start, start + _CHUNK)
        some = replace(table.take(rows), systems=SystemRows(columns=systems, position=on[rows]))
        columns = evaluated_columns(model, base, some, "causal", stated=stated)
        chip = some.on(base).accelerator
        columns["capacity"] = np.broadcast_to(chip.memory[0].capacity, len(some))
        if base.price is not None:
            usd = dollars_per_token(columns["step_time_s"], some, some.on(base))
            columns["usd_per_billion_tokens"] = usd * 1e9
        found.append(columns)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def plans_on(
    model: Model,
    base: System,
    systems: SystemColumns,
    table: Table,
    on: Ints,
    *,
    stated: bool = False,
) -> list[PointPlan]:
    """Return legal strategies as plans, each on one of the systems."""
    if not len(table):
        return []
    found = times_on(model, base, systems, table, on, stated=stated)
    columns = {name: column.tolist() for name, column in found.items()}
    likely = [None if isnan(one) else one for one in columns["fits_probability"]]
    priced = columns.get("usd_per_billion_tokens", [None] * len(table))
    strategies = _distinct_strategies(table)
    factors = _factors(model, base, table, strategies)
    return [
        PointPlan(
            strategy=strategies[row],
            step_time_s=columns["step_time_s"][row],
            tokens_per_s=columns["tokens_per_s"][row],
            tokens_per_s_per_gpu=columns["tokens_per_s"][row] / int(table.gpus[row]),
            mfu=columns["mfu"][row],
            memory_reserved_bytes=columns["reserved"][row],
            usd_per_billion_tokens=priced[row],
            **interval_fields(columns["step_time_s"][row], factors[row]),
            fits_probability=likely[row],
            fits=columns["fits"][row] == 1.0,
            time_s={part: columns[f"{part}_s"][row] for part in TIME_PARTS},
            memory_bytes={
                **{part: columns[f"{part}_bytes"][row] for part in MEMORY_PARTS},
                **{part: columns[part][row] for part in ("total", "reserved", "offloaded")},
                "capacity": columns["capacity"][row],
            },
        )
        for row in range(len(table))
    ]


def _factors(
    model: Model, base: System, table: Table, strategies: Sequence[dict[str, object]]
) -> list[tuple[float, float] | None]:
    """The error range of every row; rows of one strategy share it."""
    firsts: dict[int, int] = {}
    for row, strategy in enumerate(strategies):
        firsts.setdefault(id(strategy), row)
    some = table.take(np.array(list(firsts.values())))
    known = dict(zip(firsts, interval_factors(model, base, some), strict=True))
    return [known[id(strategy)] for strategy in strategies]


def _distinct_strategies(table: Table) -> Sequence[dict[str, object]]:
    """The strategy of every row; equal rows share one."""
    columns = table.to_columns()
    keys = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    known: dict[str, dict[str, object]] = {}
    found = []
    for row, key in enumerate(map(repr, keys)):
        if key not in known:
            known[key] = table.strategy(row).to_dict()
        found.append(known[key])
    return found


# Half the width of a central difference: its error is about 1e-8 of the elasticity, that of
# rounding the times about 1e-12.
_STEP = 1e-4
_MOST_FACTOR = 2.0
_AT_MOST_ONE = ("efficiency", "h2d_efficiency", "d2h_efficiency", "join_exponent")
"""Shares, which are at most 1."""
_PROCESSOR_SHARE, _MOST_SHARE = "processor_share", 0.9
# None, both ends of the difference, the better value and the worse one.
_CHANGES = 5
_SHARED_BY, _DUPLEX = "shared_by", "duplex"
# Points to change at a time: each makes a hundred rows and a hundred columns.
_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A figure of the system of one point, times a factor."""

    point: int
    figure: Figure
    factor: float


def influences(
    model: Model, base: System, systems: SystemColumns, table: Table, on: Ints
) -> list[tuple[Influence, ...]]:
    """Return the elasticities of each row's step time to the figures of its system, largest first.

    e = (ln t(x (1 + h)) - ln t(x (1 - h))) / (ln (1 + h) - ln (1 - h)), all rows and figures at
    once.
    """
    figures = influencing_figures(base)
    found: list[tuple[Influence, ...]] = []
    for start in range(0, len(table), _POINTS):
        rows = np.arange(start, min(start + _POINTS, len(table)))
        found += _influences(model, base, systems, table.take(rows), on[rows], figures)
    return found


def _influences(
    model: Model,
    base: System,
    systems: SystemColumns,
    table: Table,
    on: Ints,
    figures: Sequence[Figure],
) -> list[tuple[Influence, ...]]:
    here = [_values(systems, int(place)) for place in on]
    helpful = [[helpful_factor(figure, values) for figure in figures] for values in here]
    harmful = [[harmful_factor(figure, values) for figure in figures] for values in here]
    changes = [
        _Change(point=row, figure=figure, factor=factor)
        for row in range(len(table))
        for figure, better, worse in zip(figures, helpful[row], harmful[row], strict=True)
        for factor in (1.0, 1 + _STEP, 1 - _STEP, better, worse)
    ]
    points = np.array([change.point for change in changes])
    changed = changed_systems(
        systems, on[points], [(change.figure, change.factor) for change in changes]
    )
    each = np.arange(len(changes))
    columns = times_on(model, base, changed, table.take(points), each)
    shape = len(table), len(figures), _CHANGES
    times, fits = (columns[name].reshape(shape) for name in ("step_time_s", "fits"))
    return [
        _ranked(figures, (helpful[row], harmful[row]), here[row], times[row], fits[row])
        for row in range(len(table))
    ]


def _ranked(
    figures: Sequence[Figure],
    factors: tuple[Sequence[float], Sequence[float]],
    values: Mapping[FigurePath, float],
    times: Floats,
    fits: Floats,
) -> tuple[Influence, ...]:
    span = np.log1p(_STEP) - np.log1p(-_STEP)
    elasticity = (np.log(times[:, 1]) - np.log(times[:, 2])) / span
    found = [
        Influence(
            figure=figure.name,
            kind="hardware" if figure.is_hardware else "constant",
            unit=figure.unit,
            value=values[figure.paths[0]] if len(figure.paths) == 1 else None,
            elasticity=float(elasticity[place]),
            factor=factors[0][place],
            step_time_s=float(times[place, 3]),
            saved=float(1 - times[place, 3] / times[place, 0]),
            best_step_time_s=None,
            best_saved=None,
            worse_factor=factors[1][place],
            worse_step_time_s=float(times[place, 4]),
            lost=float(times[place, 4] / times[place, 0] - 1),
            worse_fits=bool(fits[place, 4] == 1.0),
            best_worse_step_time_s=None,
            best_lost=None,
        )
        for place, figure in enumerate(figures)
    ]
    return tuple(sorted(found, key=lambda one: (one.kind != "hardware", -abs(one.elasticity))))


def helpful_factor(figure: Figure, values: Mapping[FigurePath, float]) -> float:
    """Return the factor that improves a figure: 1/2 where lower is better, else 2.

    Shares increase to 1 at most, the duplex of a link to 2; a link is shared by 1 at least.
    """
    last = figure.paths[0][-1]
    if last in (_SHARED_BY, _DUPLEX):
        limit = 1.0 if last == _SHARED_BY else FULL_DUPLEX
        factor = limit / values[figure.paths[0]]
        return float(np.clip(factor, 1 / _MOST_FACTOR, _MOST_FACTOR))
    if figure.lower_is_better:
        return 1 / _MOST_FACTOR
    if any(word in _AT_MOST_ONE for path in figure.paths for word in path):
        most = max(values[path] for path in figure.paths)
        return max(1.0, min(_MOST_FACTOR, 1 / most))
    return _MOST_FACTOR


def harmful_factor(figure: Figure, values: Mapping[FigurePath, float]) -> float:
    """Return the factor that worsens a figure: 2 where lower is better, else 1/2.

    Shares of the processors that communication takes increase to 0.9 at most, the duplex of a link
    decreases to 1.
    """
    if figure.paths[0][-1] == _DUPLEX:
        return max(1 / _MOST_FACTOR, 1 / values[figure.paths[0]])
    if not figure.lower_is_better:
        return 1 / _MOST_FACTOR
    if any(_PROCESSOR_SHARE in path for path in figure.paths):
        most = max(values[path] for path in figure.paths)
        return _MOST_FACTOR if not most else max(1.0, min(_MOST_FACTOR, _MOST_SHARE / most))
    return _MOST_FACTOR


def changed_systems(
    systems: SystemColumns, on: Ints, changes: Sequence[tuple[Figure, float]]
) -> SystemColumns:
    """Return systems with one figure each times a factor."""
    known = figures_of(systems.base)
    paths = {*systems.figures, *(path for figure, _ in changes for path in figure.paths)}
    columns = {
        path: systems.figures[path][on].astype(np.float64)
        if path in systems.figures
        else np.full(len(changes), known[path], dtype=np.float64)
        for path in paths
    }
    for place, (figure, factor) in enumerate(changes):
        for path in figure.paths:
            columns[path][place] *= factor
    return SystemColumns(base=systems.base, figures=columns, count=len(changes))


def _values(systems: SystemColumns, place: int) -> dict[FigurePath, float]:
    """All figures of one of the systems."""
    own = {path: float(column[place]) for path, column in systems.figures.items()}
    return {**figures_of(systems.base), **own}

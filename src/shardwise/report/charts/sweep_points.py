"""Points of a sweep for charts: lines along an axis, values shown, names and hover texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10

from shardwise.errors import InputError, nearest
from shardwise.planning.search.results import Plan
from shardwise.planning.sweep.results import Axis, PointPlan, SweepPoint, SweepResult
from shardwise.report.charts.common import LINES, chart_error, log_axis, spans_much
from shardwise.report.charts.plans import OBJECTIVE_MEASURES, Measure, hover_text, short_name
from shardwise.report.console import GIB

SYSTEM = "system"
"""Name of the systems of a sweep as an axis of a chart."""

_SECONDS_PER_DAY = 86_400
_MANY_TICKS = 12
_LEAST_GAP = 0.04
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
# Shown unit and its size, by the unit inside.
_SHOWN_IN = {
    "bytes": ("GiB", GIB),
    "byte/s": ("GB/s", 1e9),
    "FLOP/s": ("TFLOP/s", 1e12),
    "seconds": ("us", 1e-6),
    "watts": ("W", 1.0),
    "x": ("times the original", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that differ on one axis only: a line of a chart."""

    name: str
    points: tuple[SweepPoint, ...]
    hue: int
    """Number of its color: its system, where there are several."""
    kind: int
    """Number of its mark among lines of that color."""

    @property
    def color(self) -> str:
        """Color of the line."""
        return LINES[self.hue % len(LINES)]

    @property
    def mark(self) -> str:
        """Symbol of its points."""
        return _SYMBOLS[self.kind % len(_SYMBOLS)]

    @property
    def feasible(self) -> list[tuple[SweepPoint, PointPlan]]:
        """Points that have a strategy which fits, with the best one."""
        found = ((point, best_of(point)) for point in self.points)
        return [(point, plan) for point, plan in found if plan is not None]


def varied(result: SweepResult) -> tuple[Axis, ...]:
    """Axes on which there are several values; of those that advance together the first."""
    found: list[Axis] = []
    for axis in result.axes:
        if len(axis.labels) > 1 and not any(_together(result, axis, one) for one in found):
            found.append(axis)
    return tuple(found)


def _together(result: SweepResult, one: Axis, other: Axis) -> bool:
    """Whether two axes are at the same place at every point."""
    a, b = result.axes.index(one), result.axes.index(other)
    return all(point.at[a] == point.at[b] for point in result.points)


def axis_named(result: SweepResult, name: str = "") -> Axis:
    """Return an axis by its name, or the only one that is varied."""
    names = [axis.name for axis in result.axes]
    if name in names:
        return result.axes[names.index(name)]
    several = varied(result)
    if not name and len(several) == 1:
        return several[0]
    if name:
        raise missing(f"an axis {name}", f"it has {', '.join(names) or 'none'}")
    if several:
        raise missing("one axis only", f"name one of {', '.join(a.name for a in several)}")
    raise missing("an axis with several values", "sweep over some figure, as in gpus='64..512'")


def missing(what: str, remedy: str) -> InputError:
    """Return the error that a sweep does not have what a chart shows."""
    return chart_error(what, remedy, whose="sweep")


def best_of(point: SweepPoint) -> PointPlan | None:
    """The best strategy of a point; None if there is none that fits."""
    return next((plan for plan in point.best if plan.fits), None)


def reason(point: SweepPoint) -> str:
    """Why a point has no strategy that fits, in a line."""
    if point.best:
        memory = point.best[0].memory_bytes
        used, room = memory["reserved"] / GIB, memory["capacity"] / GIB
        return f"does not fit: {used:.1f} of {room:.1f} GiB"
    problem = point.problem or "no feasible strategy"
    counts = [f"{name.replace('_', ' ')} {n:,}" for name, n in list(point.rejected.items())[:3]]
    return f"{problem} ({', '.join(counts)})" if counts else problem


def only(
    result: SweepResult,
    *,
    systems: str | Sequence[str] = (),
    at: Mapping[str, str | Sequence[str]] | None = None,
) -> SweepResult:
    """Return the part of a sweep on some systems, at some values of its axes.

    Parameters
    ----------
    systems
        Names of those to keep; all if omitted.
    at
        Labels to keep, by the name of their axis.

    Raises
    ------
    InputError
        If the sweep has no such system, axis or label.
    """
    wanted = {name: _several(labels) for name, labels in (at or {}).items()}
    axes = [(axis_named(result, name), labels) for name, labels in wanted.items()]
    names = _selected("system", result.systems, _several(systems))
    labels = {axis.name: _selected(axis.name, axis.labels, some) for axis, some in axes}
    places = [
        [axis.labels.index(label) for label in labels.get(axis.name, axis.labels)]
        for axis in result.axes
    ]
    points = tuple(
        point.model_copy(update={"at": tuple(map(list.index, places, point.at))})
        for point in result.points
        if point.system in names
        and all(place in some for place, some in zip(point.at, places, strict=True))
    )
    narrowed = tuple(
        axis.model_copy(update={"labels": labels.get(axis.name, axis.labels)})
        for axis in result.axes
    )
    return result.model_copy(update={"systems": names, "axes": narrowed, "points": points})


def _several(words: str | Sequence[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def _selected(what: str, known: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Known names that are wanted, in their order; all if none is."""
    for name in wanted:
        if name not in known:
            hint = nearest(name, list(known)) or f"; it has {', '.join(known)}"
            raise missing(f"{what} {name}", hint.removeprefix("; "))
    return tuple(name for name in known if not wanted or name in wanted)


def series(result: SweepResult, axis: Axis | None) -> list[Series]:
    """Part points into lines along an axis: one for each system and value of the others.

    None for the axis makes a line of each point.
    """
    others = [
        result.axes.index(other)
        for other in result.axes
        if axis is None or not _together(result, axis, other)
    ]
    lines: dict[tuple[str, tuple[int, ...]], list[SweepPoint]] = {}
    for point in result.points:
        key = (point.system, tuple(point.at[place] for place in others))
        lines.setdefault(key, []).append(point)
    kinds = list(dict.fromkeys(values for _, values in lines))
    found = []
    for number, ((system, values), points) in enumerate(lines.items()):
        hue, kind = number, number // len(LINES)
        if len(result.systems) > 1:
            hue, kind = result.systems.index(system), kinds.index(values)
        name = point_name(result, points[0], along=axis)
        found.append(Series(name=name, points=tuple(points), hue=hue, kind=kind))
    return found


def point_name(result: SweepResult, point: SweepPoint, *, along: Axis | None = None) -> str:
    """System and values in which a point differs from others, except along one axis."""
    words = [point.system] if len(result.systems) > 1 else []
    words += [
        f"{short_name(axis.name)} {label_of(result, axis, point)}"
        for axis in varied(result)
        if along is None or not _together(result, axis, along)
    ]
    return ", ".join(words) or point.system


def label_of(result: SweepResult, axis: Axis, point: SweepPoint) -> str:
    """Value of a point on an axis, as the user wrote it."""
    return axis.labels[point.at[result.axes.index(axis)]]


def point_hover(result: SweepResult, point: SweepPoint, plan: Plan | None = None) -> str:
    """Text that is shown when the mouse rests on a point, as lines of HTML."""
    words = [f"<b>{point.system}</b>"]
    words += [
        f"{short_name(axis.name)} {axis.labels[place]}"
        for axis, place in zip(result.axes, point.at, strict=True)
    ]
    if plan is None:
        return f"{', '.join(words)}<br>{reason(point)}"
    capacity = next(p.memory_bytes["capacity"] for p in point.best)
    return f"{', '.join(words)}<br>{hover_text(plan, capacity)}"


def time_for(result: SweepResult, tokens: float | None) -> Measure:
    """The time that charts show: days for some tokens, else that of a step.

    Where steps are not of the same size, it is that of a million tokens.
    """
    if tokens is not None:
        return Measure(
            title=f"time to train on {_amount(tokens)} tokens",
            unit="days",
            value=lambda plan: tokens / plan.tokens_per_s / _SECONDS_PER_DAY,
        )
    steps = {
        plan.strategy["global_batch_size"] * plan.strategy["seq_len"]
        for point in result.points
        for plan in point.best
    }
    if len(steps) <= 1:
        return OBJECTIVE_MEASURES["step_time"]
    return Measure(
        title="time of a million tokens",
        unit="s",
        value=lambda plan: 1e6 / plan.tokens_per_s,
    )


def shown_for(result: SweepResult, tokens: float | None) -> Measure:
    """The objective of a sweep, or the time where tokens are specified."""
    if tokens is not None or result.objective == "step_time":
        return time_for(result, tokens)
    return OBJECTIVE_MEASURES[result.objective]


def _amount(number: float) -> str:
    for size, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if number >= size:
            return f"{number / size:g}{word}"
    return f"{number:g}"


def number_of(axis: Axis, point: SweepPoint) -> float:
    """Value of a point on an axis of numbers, in the unit that it is shown in."""
    return shown_in(axis, point.values[axis.name])


def shown_in(axis: Axis, value: float) -> float:
    """A value on an axis, in the unit that it is shown in."""
    _, size = _SHOWN_IN.get(axis.unit or "", ("", 1.0))
    return float(value) / size


def is_numeric(result: SweepResult, axis: Axis) -> bool:
    """Whether all values of an axis are numbers."""
    values = [point.values[axis.name] for point in result.points]
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def number_axis(axis: Axis, points: Sequence[SweepPoint]) -> dict[str, object]:
    """An axis of numbers with a tick at each value, as far as there is room for them."""
    values = sorted({number_of(axis, point) for point in points})
    unit, _ = _SHOWN_IN.get(axis.unit or "", ("", 1.0))
    title = short_name(axis.name) + (f" [{unit}]" if unit else "")
    shown: dict[str, object] = {"title": {"text": title}}
    logarithmic = values[0] > 0 and spans_much(values)
    if logarithmic:
        shown |= log_axis(values)
    place: Callable[[float], float] = log10 if logarithmic else float
    width = place(values[-1]) - place(values[0])
    gaps = [place(b) - place(a) for a, b in pairwise(values)]
    if len(values) <= _MANY_TICKS and all(gap >= _LEAST_GAP * width for gap in gaps):
        words = [f"{v:,.0f}" if v >= 1000 else f"{v:.4g}" for v in values]  # noqa: PLR2004
        shown |= {"tickvals": values, "ticktext": words}
    return shown


def sweep_words(result: SweepResult) -> str:
    """Model, systems, accelerators and batch of a sweep, in a line."""
    *most, last = result.systems
    names = f"{', '.join(most)} and {last}" if most else last
    words = [f"{result.model} on {names}"]
    plans = [plan for point in result.points for plan in point.best]
    for field, form in (("gpus", "{} GPUs"), ("global_batch_size", "global batch {}")):
        values = [plan.strategy[field] for plan in plans]
        if values:
            least, most_of = min(values), max(values)
            words.append(form.format(least if least == most_of else f"{least} to {most_of}"))
    lengths = {plan.strategy["seq_len"] for plan in plans}
    if len(lengths) == 1:
        words[-1] += f" x {lengths.pop()} tokens"
    return ", ".join(words)

"""What a sweep found, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.sweep.results import Influence, PointPlan, SweepPoint, SweepResult
from shardwise.report.console import chance, gib, percent, plain_table, seconds, show
from shardwise.report.tables.strategy_line import briefly
from shardwise.units import UNITS, counted, readable

_MOST_ROWS = 64
_MOST_SENSITIVITIES = 4
_IN_WORDS = 3
# Elasticities below this say that a figure does nothing.
_LEAST = 1e-3


def print_sweep(result: SweepResult) -> None:
    """Print every point, what was assumed, and what would help most."""
    show(_headline(result))
    alone = len(result.points) == 1 and bool(result.points[0].sensitivity)
    if not alone:
        table, common = _points(result) if result.searched else (_breakdown(result), "")
        notes = [*([common] if common else []), *_below(result)]
        show(table, Text("\n".join(notes), style="dim"))
    sensitive = [point for point in result.points if point.sensitivity]
    for point in sensitive[:_MOST_SENSITIVITIES]:
        show(_hardware(result, point), Text("\n".join(_in_words(result, point))))
        show(Text(), _fitted(point), Text(_rest(point, "constant")))
    if len(sensitive) > _MOST_SENSITIVITIES:
        rest = len(sensitive) - _MOST_SENSITIVITIES
        show(Text(f"\nsensitivities of {rest} more points: see --json", style="dim"))


def print_figures(systems: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print what may be varied of systems."""
    for name, figures in systems.items():
        table = plain_table("parameter", "value", title=name)
        for figure in figures:
            value = figure["value"]
            shown = (
                f"{figure['figures']} figures" if value is None else _shown(value, figure["unit"])
            )
            table.add_row(figure["figure"], shown)
        show(table)


def _headline(result: SweepResult) -> Text:
    text = Text("\n")
    text.append(f"{result.model} on {', '.join(result.systems)}", style="bold")
    points = counted(len(result.points), "point")
    if result.searched:
        each = result.candidates // max(len(result.points), 1)
        points += f", the best of {each:,} strategies each"
        points += "" if result.objective == "step_time" else f" by {result.objective}"
    text.append(f"\n{points}\n")
    if not result.complete:
        text.append("interrupted: these points are done\n", style="bold red")
    return text


def _shown_points(result: SweepResult) -> Sequence[SweepPoint]:
    step = -(-len(result.points) // _MOST_ROWS)
    return result.points[::step] if step else ()


def _place(result: SweepResult, point: SweepPoint) -> list[str]:
    """Where a point lies: its system if there are several, its value on each axis."""
    several = [point.system] if len(result.systems) > 1 else []
    labels = [axis.labels[place] for axis, place in zip(result.axes, point.at, strict=True)]
    return [*several, *labels]


def _heads(result: SweepResult) -> list[str]:
    return [*(["system"] if len(result.systems) > 1 else []), *(a.name for a in result.axes)]


def _points(result: SweepResult) -> tuple[Table, str]:
    """The best strategies of every point, and what all of them have in common."""
    heads = _heads(result)
    plans = [plan for point in result.points for plan in point.best]
    by_tokens = len({_tokens(plan) for plan in plans}) > 1
    figures = ["step time", *(["tokens/s"] if by_tokens else []), "speed-up", "MFU", "memory GiB"]
    figures.append("fits")
    table = plain_table(
        *(*heads, *figures, "strategy"),
        left=len(heads),
        texts=("strategy",),
        optional=("MFU", "memory GiB"),
        wraps=("strategy",),
        notes={"tokens/s": "speed-up: by tokens/s, as the tokens of a step differ"},
    )
    # Tokens/s that speed-ups are relative to: of the system as it is (1x), else of the first.
    found = [point for point in result.points if point.best]
    as_it_is = [point for point in found if _is_unchanged(result, point)]
    base = next((point.best[0].tokens_per_s for point in as_it_is or found), 1.0)
    shown = _shown_points(result)
    lines, common = briefly([plan.strategy for point in shown for plan in point.best])
    words = iter(lines)
    for point in shown:
        place = _place(result, point)
        if not point.best:
            table.add_row(*place, *["-"] * len(figures), point.problem or "")
        for rank, plan in enumerate(point.best):
            table.add_row(
                *(place if rank == 0 else [""] * len(place)),
                seconds(plan.step_time_s),
                *([f"{plan.tokens_per_s:,.0f}"] if by_tokens else []),
                f"{plan.tokens_per_s / base:.3f}",
                percent(plan.mfu),
                gib(plan.memory_reserved_bytes),
                chance(plan.fits_probability),
                next(words),
            )
    return table, common


def _is_unchanged(result: SweepResult, point: SweepPoint) -> bool:
    """Whether all values of a point are 1x."""
    return all(axis.labels[at] == "1x" for axis, at in zip(result.axes, point.at, strict=True))


def _tokens(plan: PointPlan) -> int:
    """Tokens of a step."""
    return int(plan.strategy["global_batch_size"] * plan.strategy["seq_len"])


def _breakdown(result: SweepResult) -> Table:
    """The parts of the step of the strategy that was fixed."""
    plans = [plan for point in result.points for plan in point.best]
    parts = [part for part in TIME_PARTS if any(plan.time_s[part] for plan in plans)]
    heads = _heads(result)
    short = [part.replace("_comm", "") for part in parts]
    least = sorted(parts, key=lambda part: max(plan.time_s[part] for plan in plans))
    optional = ["MFU", *(part.replace("_comm", "") for part in least)]
    table = plain_table(
        *heads, "step time", *short, "MFU", "memory GiB", "fits", left=len(heads), optional=optional
    )
    for point in _shown_points(result):
        place = _place(result, point)
        if not point.best:
            table.add_row(*place, Text(point.problem or "", overflow="fold"))
            continue
        plan = point.best[0]
        table.add_row(
            *place,
            seconds(plan.step_time_s),
            *(seconds(plan.time_s[part]) for part in parts),
            percent(plan.mfu),
            (gib(plan.memory_reserved_bytes) + ("" if plan.fits else " (full)")),
            chance(plan.fits_probability),
        )
    return table


def _below(result: SweepResult) -> list[str]:
    """What there is to say of the table."""
    lines = []
    shown = len(_shown_points(result))
    if shown < len(result.points):
        lines.append(f"{shown} of {len(result.points):,} points; see --json for all")
    if any(not plan.fits for point in result.points for plan in point.best):
        lines.append("(full): more than the memory")
    return [*lines, *(f"assumed: {line}" for line in result.assumed)]


def _hardware(result: SweepResult, point: SweepPoint) -> Table:
    """What a better or worse figure of the hardware would gain or lose at a point."""
    place = ", ".join([point.system, *_place(result, point)[len(result.systems) > 1 :]])
    title = (
        f"Sensitivity to the hardware on {place}: a step of {seconds(point.best[0].step_time_s)}"
    )
    again = result.reoptimised
    heads = ["parameter", "now", "elasticity"]
    for side, effect in (("better", "saves"), ("worse", "costs")):
        heads += [side, effect]
        heads += [f"{effect},\nsame plan"] if again else []
    table = plain_table(*heads, title=title, optional=("now", "elasticity"))
    for one in _ranked(point, "hardware"):
        better = [f"{one.factor:.3g}x", percent(_saved(one))]
        worse = [f"{one.worse_factor:.3g}x", _lost(one, again=again)]
        if again:
            better.append(percent(one.saved))
            worse.append(_lost(one, again=False))
        table.add_row(*_figure(one), *better, *worse)
    return table


def _fitted(point: SweepPoint) -> Table:
    """How much the answer depends on the constants of the model."""
    title = "Constants of the cost model, with the same plan"
    heads = ("parameter", "now", "elasticity", "better", "saves", "worse", "costs")
    table = plain_table(*heads, title=title, optional=("now",))
    for one in _ranked(point, "constant"):
        better = (f"{one.factor:.3g}x", percent(one.saved))
        table.add_row(*_figure(one), *better, f"{one.worse_factor:.3g}x", percent(one.lost))
    return table


def _figure(one: Influence) -> list[str]:
    """Name, current value and elasticity of a figure."""
    now = "several" if one.value is None else _shown(one.value, one.unit)
    return [one.figure, now, f"{one.elasticity:+.3f}"]


def _ranked(point: SweepPoint, kind: str) -> list[Influence]:
    """The figures of a kind that matter, by what they save."""
    own = [one for one in point.sensitivity if one.kind == kind and _matters(one)]
    return sorted(own, key=lambda one: -_saved(one)) if kind == "hardware" else own


def _in_words(result: SweepResult, point: SweepPoint) -> list[str]:
    """The first gains, and how many figures change next to nothing."""
    ranked = _ranked(point, "hardware")
    lines = [_said(one) for one in ranked[:_IN_WORDS] if _saved(one) >= _LEAST]
    if result.reoptimised and ranked:
        lines.append("saves, costs: with the best plan for the changed hardware")
    rest = _rest(point, "hardware")
    return [*lines, rest] if rest else lines


def _rest(point: SweepPoint, kind: str) -> str:
    small = sum(one.kind == kind and not _matters(one) for one in point.sensitivity)
    words = {"hardware": "parameters of the hardware", "constant": "constants"}[kind]
    return f"{small} other {words} change the step by less than {percent(_LEAST)}" if small else ""


def _matters(one: Influence) -> bool:
    sizes = (abs(one.elasticity), one.best_saved or 0.0, one.best_lost or 0.0, one.lost)
    return max(sizes) >= _LEAST or not one.worse_fits


def _saved(one: Influence) -> float:
    return one.saved if one.best_saved is None else one.best_saved


def _lost(one: Influence, *, again: bool) -> str:
    """What the worse figure costs, with the best plan again or the same one."""
    if again:
        return "nothing fits" if one.best_lost is None else percent(one.best_lost)
    return percent(one.lost) if one.worse_fits else "does not fit"


def _said(one: Influence) -> str:
    line = f"{one.factor:.3g}x {one.figure} would save {percent(_saved(one))}"
    if one.best_saved is not None and one.best_saved - one.saved >= _LEAST:
        line += f", {percent(one.saved)} without a new plan"
    return line


def _shown(value: float, unit: str | None) -> str:
    return readable(value, unit, 4) if unit in UNITS else f"{value:.4g}"

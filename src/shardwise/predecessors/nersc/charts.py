"""What NERSC's search found, as charts: rates over GPUs, what a step and its memory consist of."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from shardwise.report.charts.common import (
    LINES,
    TIME_COLORS,
    Figure,
    chart_error,
    component_bar,
    log_axis,
    plotly,
    styled,
    write_page,
)
from shardwise.report.charts.maps import Map
from shardwise.report.charts.plans import Quantity

Row = Mapping[str, Any]
"""A configuration under NERSC's names, with its place: `nvs`, `gpus`, `rank`, and what else varies
(`system`, `method`, figures of the system)."""

Axes = Mapping[str, Sequence[float]]
"""Values by varied figure."""

_NO_AXES: Axes = {}
_SHOWN = {
    "throughput": Quantity(title="sequences/s of NERSC's model", lower_is_better=False),
    "days": Quantity(title="training days of NERSC's model"),
}
_TIMES = {
    "t_comp": ("compute", TIME_COLORS["backward"]),
    "t_mem": ("memory beyond compute", TIME_COLORS["forward"]),
    "t_tp_comm": ("tp communication", TIME_COLORS["tp_comm"]),
    "t_dp_comm": ("dp communication", TIME_COLORS["dp_comm"]),
    "t_pp_comm": ("pp transfer", TIME_COLORS["pp_comm"]),
    "t_bubble": ("pipeline bubble", TIME_COLORS["bubble"]),
}
_MEMORY = {
    "wts_mem": ("weights", LINES[0]),
    "wts_grad_mem": ("gradients", LINES[1]),
    "wts_optimizer_states_mem": ("optimizer", LINES[2]),
    "acts_mem": ("activations", LINES[3]),
}
_PLACES = ("system", "method", "nvs", "gpus")
_TENTH = 10
_MOST_LINES = 14
_MOST_BARS = 48
_AXES_OF_A_MAP = 2


def charts(rows: Sequence[Row], *, axes: Axes = _NO_AXES) -> dict[str, Figure]:
    """Draw what rows show, by name."""
    best = [row for row in rows if row["rank"] == 1]
    if not best:
        raise chart_error("a feasible configuration", "nothing can be drawn")
    if not all(_is_figure(row[name]) for row in rows for name in ("throughput", "memory", "gpus")):
        problem = "numbers above 0 as throughput, memory and GPUs"
        raise chart_error(problem, "write it as .csv to see them")
    drawn: dict[str, Figure] = {}
    along = next(iter(axes)) if len(axes) == 1 else "gpus"
    lines = _by(best, [name for name in (*_PLACES, *axes) if name != along])
    shown = "days" if all(_is_figure(row.get("days")) for row in rows) else "throughput"
    if len({row[along] for row in best}) > 1 and len(lines) <= _MOST_LINES:
        drawn["rates"] = _rates(rows, lines, along, axes, shown)
    if len(axes) == _AXES_OF_A_MAP:
        for place, group in _by(best, _PLACES).items():
            name = "-".join(["map", *(str(value) for value in place)])
            drawn[name] = _map(group, axes, shown)
    known = [
        name
        for name in (*_TIMES, *_MEMORY)
        if all(isinstance(row.get(name), (int, float)) for row in best)
    ]
    groups = (
        {(): best} if len(best) <= _MOST_BARS else _by(best, [n for n in _PLACES if n != along])
    )
    for place, group in groups.items():
        ending = "".join(f"-{value}" for value in place)
        if all(_is_figure(row.get("t")) for row in best) and _TIMES.keys() & set(known):
            parts = _only(_TIMES, known)
            drawn[f"time{ending}"] = _bars(group, parts, "t", "share of the step", axes)
        if _MEMORY.keys() & set(known):
            parts = _only(_MEMORY, known)
            drawn[f"memory{ending}"] = _bars(group, parts, None, "memory of a GPU [GB]", axes)
    return drawn


def write_charts(rows: Sequence[Row], path: str | Path, *, axes: Axes = _NO_AXES) -> None:
    """Write all charts on one page, by the ending of the file: .html, .json, .png or .svg."""
    counts = len({tuple(row.get(name) for name in (*_PLACES, *axes)) for row in rows})
    facts = [f"{len(rows):,} configurations of {counts:,} searches, the best of each drawn."]
    write_page(path, "NERSC's search", facts, charts(rows, axes=axes))


def _is_figure(value: object) -> bool:
    """Whether a value can stand on a logarithmic axis."""
    return isinstance(value, (int, float)) and 0 < value < inf


def _only(parts: Mapping[str, tuple[str, str]], known: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The parts that files of every age have."""
    return {name: look for name, look in parts.items() if name in known}


def _by(rows: Sequence[Row], names: Sequence[str]) -> dict[tuple[object, ...], list[Row]]:
    """Rows by their values of some columns, in order."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in names if n in row), []).append(row)
    return groups


def _label(row: Row, names: Sequence[str]) -> str:
    """Place of a row: `nersc-b200, 1d, domains of 8`."""
    words = {"system": "{}", "method": "{}", "nvs": "domains of {}", "gpus": "{:,} GPUs"}
    found = [words.get(n, n + " {:.6g}").format(row[n]) for n in names if n in row]
    return ", ".join(found)


def _hover(row: Row, axes: Axes) -> str:
    degrees = [f"{n} {row[n]}" for n in ("tp", "tp1", "tp2", "pp", "dp", "mbs", "nb") if n in row]
    lines = [_label(row, (*_PLACES, *axes)), ", ".join(degrees)]
    lines.append(f"<b>{row['throughput']:.6g} sequences/s</b>")
    lines += [f"{row['days']:.4g} training days"] if "days" in row else []
    return "<br>".join([*lines, f"memory {row['memory']:.4g} GB"])


def _rates(
    rows: Sequence[Row],
    lines: Mapping[tuple[object, ...], Sequence[Row]],
    along: str,
    axes: Axes,
    shown: str,
) -> Figure:
    """Best and last listed rate or training days over the GPUs, or over one varied figure."""
    figure, scatter = plotly().Figure(), plotly().Scatter
    others = [name for name in (*_PLACES, *axes) if name != along]
    tenth = {
        tuple(row.get(name) for name in (*others, along)): row[shown]
        for row in rows
        if row["rank"] == _TENTH
    }
    for number, line in enumerate(lines.values()):
        color = LINES[number % len(LINES)]
        ordered = sorted(line, key=lambda row: float(row[along]))
        figure.add_trace(
            scatter(
                x=[row[along] for row in ordered],
                y=[row[shown] for row in ordered],
                mode="lines+markers",
                name=_label(ordered[0], others),
                line={"color": color},
                customdata=[_hover(row, axes) for row in ordered],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
        places = [tuple(row.get(name) for name in (*others, along)) for row in ordered]
        listed = [place for place in places if place in tenth]
        figure.add_trace(
            scatter(
                x=[place[-1] for place in listed],
                y=[tenth[place] for place in listed],
                mode="markers",
                marker={"symbol": "line-ew-open", "color": color, "size": 10},
                name="tenth",
                showlegend=False,
                hovertemplate="tenth: %{y:.6g}<extra></extra>",
            )
        )
    found = [row[shown] for line in lines.values() for row in line]
    values = [float(row[along]) for line in lines.values() for row in line]
    figure.update_yaxes(title=_SHOWN[shown].title, **log_axis(found))
    figure.update_xaxes(title="GPUs" if along == "gpus" else along, **log_axis(values))
    title = "Fewest training days" if shown == "days" else "Best rates"
    return styled(figure, title, "lines: the best; dashes: the tenth")


def _map(rows: Sequence[Row], axes: Axes, shown: str) -> Figure:
    """Best rate, or fewest training days, over two varied figures of the system."""
    down, across = axes
    best = {(row[down], row[across]): row for row in rows}
    labels = sorted(set(axes[down])), sorted(set(axes[across]))
    cells = [[best.get((r, c)) for c in labels[1]] for r in labels[0]]
    drawn = Map(
        names=(down, across),
        labels=([f"{value:.6g}" for value in labels[0]], [f"{value:.6g}" for value in labels[1]]),
        shown=_SHOWN[shown],
        values=[[None if cell is None else cell[shown] for cell in row] for row in cells],
        hover=[["nothing fits" if c is None else _hover(c, axes) for c in row] for row in cells],
    )
    return drawn.heat_map(_label(rows[0], _PLACES), upwards=True)


def _bars(
    rows: Sequence[Row],
    parts: Mapping[str, tuple[str, str]],
    whole: str | None,
    title: str,
    axes: Axes,
) -> Figure:
    """Components of the best configurations; where `whole` names a figure, as shares of it.

    Of more than `_MOST_BARS` configurations, that many evenly spaced ones.
    """
    figure = plotly().Figure()
    number = len(rows)
    if number > _MOST_BARS:
        rows = [rows[at * (number - 1) // (_MOST_BARS - 1)] for at in range(_MOST_BARS)]
    labels = [_label(row, (*_PLACES, *axes)) for row in rows]
    for name, (words, color) in parts.items():
        values = [row[name] / (row[whole] if whole else 1.0) for row in rows]
        hover = [f"{words}: {row[name]:.4g} {'s' if whole else 'GB'}" for row in rows]
        figure.add_trace(
            component_bar(
                words,
                color,
                values,
                labels,
                customdata=hover,
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title=title, **({"tickformat": ".0%"} if whole else {}))
    figure.update_yaxes(autorange="reversed")
    subtitle = "the best configuration of each search"
    subtitle += "" if len(rows) == number else f": {len(rows)} of {number:,}"
    height = 220 + 24 * len(rows)
    name = title.split(" [", maxsplit=1)[0]
    return styled(figure, name[:1].upper() + name[1:], subtitle, height=height)

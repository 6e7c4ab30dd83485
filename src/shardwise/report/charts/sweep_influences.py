"""What would help most, as a chart: elasticities of the step time to figures of the system."""

from collections.abc import Sequence
from itertools import chain

from shardwise.planning.sweep.results import Influence, SweepPoint, SweepResult
from shardwise.report.charts.common import LINES, Figure, dressed, graphs, subplots
from shardwise.report.charts.sweep_points import best_of, missing, place_words, sweep_words, told

__all__ = ["MOST_TORNADOES", "tornado"]

_HUNDRED = 100.0
MOST_TORNADOES = 6
"""Points whose sensitivities stand beside one another."""

_MOST_FIGURES = 15
# Of an axis beside its longest bar, for words.
_ROOM = 1.3
# Less than this is nothing: of the elasticity, or of the step time where it is searched again.
_LEAST_ELASTICITY = 1e-4


def tornado(result: SweepResult) -> Figure:
    """Draw how the step time answers to each figure of the system, the most influential on top.

    A bar of -0.4 says: one per cent more makes the step 0.4 % shorter. Beside it stands what
    doubling (or halving what is better less) saves, and with the strategy that is best then.
    Several points are drawn side by side.

    Raises
    ------
    InputError
        If the sweep has no sensitivities or those of too many points, or plotly is not installed.
    """
    points = [point for point in result.points if point.sensitivity]
    if not points:
        raise missing("sensitivities", "sweep with sensitivity=True")
    if len(points) > MOST_TORNADOES:
        problem = f"sensitivities of so few points that {MOST_TORNADOES} colours show them"
        raise missing(problem, "draw a part: only(result, systems=..., at={axis: label})")
    names = _ranked(points)
    figure = subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04)
    for number, point in enumerate(points):
        _add_bars(figure, result, point, names, LINES[number], alone=len(points) == 1)
    dressed(
        figure,
        "What would help most",
        f"{sweep_words(result)}; the figures that matter",
        height=240 + (20 + 16 * len(points)) * len(names),
    )
    order = {"categoryorder": "array", "categoryarray": names, "autorange": "reversed"}
    figure.update_yaxes(**order, showgrid=False)
    figure.update_xaxes(title="% of step time for 1 % more", row=1, col=1)
    figure.update_xaxes(title="saved by twice as much, or half [%]", row=1, col=2)
    known = list(chain.from_iterable(point.sensitivity for point in points))
    most = max(max(one.saved, one.best_saved or 0.0) for one in known)
    figure.update_xaxes(range=[0, _ROOM * _HUNDRED * max(most, _LEAST_ELASTICITY)], row=1, col=2)
    figure.add_vline(x=0, line={"color": "#57606a", "width": 1})
    again = any(one.best_saved is not None for one in known)
    legend = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
    figure.update_layout(bargap=0.25, showlegend=again or len(points) > 1, legend=legend)
    return figure


def _ranked(points: Sequence[SweepPoint]) -> list[str]:
    """Figures by the size of their elasticity, those that matter also after another search."""
    sizes: dict[str, tuple[float, float]] = {}
    for one in chain.from_iterable(point.sensitivity for point in points):
        before, again = sizes.get(one.figure, (0.0, 0.0))
        now = (max(before, abs(one.elasticity)), max(again, one.best_saved or 0.0))
        sizes[one.figure] = now
    most = sorted(sizes, key=lambda name: -max(sizes[name]))[:_MOST_FIGURES]
    matter = [name for name in most if max(sizes[name]) >= _LEAST_ELASTICITY]
    return sorted(matter, key=lambda name: (-sizes[name][0], -sizes[name][1]))


def _add_bars(
    figure: Figure,
    result: SweepResult,
    point: SweepPoint,
    names: Sequence[str],
    colour: str,
    *,
    alone: bool,
) -> None:
    """Elasticities of one point at the left, at the right what is saved."""
    known = {one.figure: one for one in point.sensitivity}
    own = [known[name] for name in names if name in known]
    place = told(result, point, best_of(point))
    words = {
        "y": [one.figure for one in own],
        "orientation": "h",
        "customdata": [f"<b>{one.figure}</b>: {_saving(one)}<br><br>{place}" for one in own],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    bar = graphs().Bar
    name = place_words(result, point)
    look = {"marker": {"color": colour}, "legendgroup": name, "name": name}
    figure.add_trace(bar(x=[one.elasticity for one in own], **words, **look), row=1, col=1)
    texts = {"textposition": "outside", "cliponaxis": False} if alone else {"textposition": "none"}
    figure.add_trace(
        bar(
            x=[_HUNDRED * one.saved for one in own],
            text=[f"{one.factor:.3g}x: {_HUNDRED * one.saved:.1f} %" for one in own],
            **texts,
            **words,
            **look,
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    again = [one for one in own if one.best_saved is not None]
    if alone and again:
        figure.add_trace(
            bar(
                x=[_HUNDRED * (one.best_saved or 0.0) for one in again],
                **{**words, "y": [one.figure for one in again]},
                text=[f"{_HUNDRED * (one.best_saved or 0.0):.1f} %" for one in again],
                **texts,
                marker={"color": LINES[1]},
                name="with the best strategy then",
            ),
            row=1,
            col=2,
        )


def _saving(one: Influence) -> str:
    text = f"{one.factor:.3g}x saves {_HUNDRED * one.saved:.1f} %"
    if one.best_saved is None:
        return text
    return f"{text}, {_HUNDRED * one.best_saved:.1f} % with the best strategy then"

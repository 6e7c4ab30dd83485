"""What would help most, as a chart: elasticities of the step time to figures of the system."""

from itertools import chain

from shardwise.report.figures import LINES, Figure, dressed, graphs
from shardwise.report.sweep_points import best_of, missing, place_words, sweep_words, told
from shardwise.sweeper.results import Influence, SweepResult

__all__ = ["MOST_TORNADOES", "tornado"]

_HUNDRED = 100.0
MOST_TORNADOES = 6
"""Points whose sensitivities stand beside one another."""

_MOST_FIGURES = 15
# Beside so many bars there is room for words.
_FEW = 2
# Less than this part of the step time for all of a figure is nothing.
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
    go = graphs()
    points = [point for point in result.points if point.sensitivity]
    if not points:
        raise missing("sensitivities", "sweep with sensitivity=True")
    if len(points) > MOST_TORNADOES:
        problem = f"sensitivities of so few points that {MOST_TORNADOES} colours show them"
        raise missing(problem, "draw a part: only(result, systems=..., at={axis: label})")
    sizes: dict[str, float] = {}
    for one in chain.from_iterable(point.sensitivity for point in points):
        sizes[one.figure] = max(sizes.get(one.figure, 0.0), abs(one.elasticity))
    ranked = sorted(sizes, key=lambda name: -sizes[name])[:_MOST_FIGURES]
    names = [name for name in ranked if sizes[name] >= _LEAST_ELASTICITY]
    figure = go.Figure()
    for number, point in enumerate(points):
        known = {one.figure: one for one in point.sensitivity}
        own = [known[name] for name in names if name in known]
        plan = best_of(point)
        hover = told(result, point, plan) if plan is not None else told(result, point)
        figure.add_trace(
            go.Bar(
                x=[one.elasticity for one in own],
                y=[one.figure for one in own],
                orientation="h",
                marker={"color": LINES[number]},
                text=[_saving(one) for one in own] if len(points) <= _FEW else None,
                textposition="outside",
                cliponaxis=False,
                customdata=[f"<b>{one.figure}</b>: {_saving(one)}<br><br>{hover}" for one in own],
                hovertemplate="%{customdata}<extra></extra>",
                name=place_words(result, point),
            )
        )
    dressed(
        figure,
        "What would help most",
        f"{sweep_words(result)}; of {len(sizes)} figures those that matter",
        height=220 + (12 + 18 * len(points)) * len(names),
    )
    order = {"categoryorder": "array", "categoryarray": names, "autorange": "reversed"}
    figure.update_yaxes(**order, showgrid=False)
    figure.update_xaxes(title="per cent of step time for one per cent more of the figure")
    figure.add_vline(x=0, line={"color": "#57606a", "width": 1})
    figure.update_layout(bargap=0.25, margin={"r": 120}, showlegend=len(points) > 1)
    return figure


def _saving(one: Influence) -> str:
    text = f"{one.factor:g}x saves {_HUNDRED * one.saved:.1f} %"
    if one.best_saved is None:
        return text
    return f"{text}, {_HUNDRED * one.best_saved:.1f} % with the best strategy then"

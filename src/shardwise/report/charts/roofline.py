"""The operations of a strategy under the roofline of its accelerator."""

from collections import defaultdict

from shardwise.analysis.results import Estimate, OperationEstimate
from shardwise.config.system import System
from shardwise.report.charts.common import (
    ACCENT,
    AXIS,
    GREY,
    LINES,
    Drawn,
    Trace,
    layout_of,
    log_axis,
)
from shardwise.report.console import seconds

_TERA = 1e12
_PHASES = ("forward", "input_grad", "weight_grad", "recompute", "step")
_PHASE_NAMES = {
    "forward": "forward",
    "input_grad": "gradient of the input",
    "weight_grad": "gradient of the weight",
    "recompute": "recompute",
    "step": "optimizer",
}
_SMALLEST, _LARGEST = 7.0, 38.0


def roofline(result: Estimate, system: System) -> Drawn:
    """Draw each kernel at its FLOP/byte and FLOP/s; the area of a point is its time in the step.

    The roof is the lower of the memory bandwidth times FLOP/byte and the peak of the matrix units
    for the dtype. Arithmetic intensity is in FLOP per byte of accelerator memory.
    """
    traces: list[Trace] = []
    kernels = [one for one in result.operations or () if _is_drawn(one)]
    peak, bandwidth = _peak(result), float(system.accelerator.memory[0].bandwidth)
    by_phase: dict[str, list[OperationEstimate]] = defaultdict(list)
    for one in kernels:
        by_phase[one.phase].append(one)
    longest = max((_time(one) for one in kernels), default=1.0)
    for phase, color in zip(_PHASES, LINES, strict=False):
        if by_phase[phase]:
            traces.append(_points(by_phase[phase], _PHASE_NAMES[phase], color, longest))
    intensities = [one.flops / one.bytes for one in kernels] or [1.0]
    ridge = peak / bandwidth
    ends = sorted({min(intensities) / 2, ridge, max([*intensities, ridge]) * 2})
    traces.append(
        {
            "type": "scatter",
            "x": ends,
            "y": [min(peak, bandwidth * x) / _TERA for x in ends],
            "mode": "lines",
            "name": "roof",
            "line": {"color": ACCENT, "width": 2},
            "hovertemplate": "%{y:,.0f} TFLOP/s at %{x:,.0f} FLOP/byte<extra>roof</extra>",
        }
    )
    words = (
        f"{peak / _TERA:,.0f} TFLOP/s and {bandwidth / _TERA:.2f} TB/s of {system.name}; "
        "area: time in the step"
    )
    layout = layout_of("Roofline of the kernels", words)
    layout["margin"] |= {"l": 60, "r": 20}
    rates = [one.flops / one.time_s / _TERA for one in kernels] or [1.0]
    for axis, title, values in (
        ("xaxis", "arithmetic intensity [FLOP/byte]", ends),
        ("yaxis", "rate [TFLOP/s]", [*rates, peak / _TERA]),
    ):
        layout[axis] = AXIS | {"title": {"text": title}} | log_axis(values)
    return {"data": traces, "layout": layout}


def _is_drawn(one: OperationEstimate) -> bool:
    """Whether an operation is a kernel with FLOPs: collectives and copies have no rate."""
    return not one.axis and one.flops > 0 and one.bytes > 0 and one.time_s > 0


def _time(one: OperationEstimate) -> float:
    """Time of all occurrences of a kernel in the model, per micro-batch [s]."""
    return one.time_s * max(1, one.count)


def _points(rows: list[OperationEstimate], name: str, color: str, longest: float) -> Trace:
    return {
        "type": "scatter",
        "x": [one.flops / one.bytes for one in rows],
        "y": [one.flops / one.time_s / _TERA for one in rows],
        "mode": "markers",
        "name": name,
        "marker": {
            "color": color,
            "opacity": 0.75,
            "line": {"color": GREY, "width": 1},
            "size": [
                _SMALLEST + (_LARGEST - _SMALLEST) * (_time(one) / longest) ** 0.5 for one in rows
            ],
        },
        "text": [f"{one.part} {one.operation}" for one in rows],
        "customdata": [[seconds(one.time_s), one.count, one.bound] for one in rows],
        "hovertemplate": (
            "<b>%{text}</b><br>%{y:,.1f} TFLOP/s at %{x:,.1f} FLOP/byte<br>"
            "%{customdata[0]} x %{customdata[1]}, bound by %{customdata[2]}"
            f"<extra>{name}</extra>"
        ),
    }


def _peak(result: Estimate) -> float:
    """Peak of the matrix units for the type of the products [FLOP/s]."""
    return result.model_tflops_per_gpu * _TERA / result.mfu

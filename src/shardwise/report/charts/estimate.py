"""An estimate as charts: components of the step and of the memory, operations, and all stages."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.analysis.results import Estimate, OperationEstimate, StageEstimate
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COUNTED_WITH
from shardwise.config.system import System
from shardwise.estimator import estimate
from shardwise.report.charts.common import (
    BUTTONS,
    COMPONENT_NAMES,
    MEMORY_COLORS,
    TIME_COLORS,
    Drawn,
    Figure,
    component_bar,
    expected_mark,
    limit_line,
    memory_components,
    plotly,
    styled,
    write_page,
)
from shardwise.report.charts.plans import degrees, options_of
from shardwise.report.console import GIB, gpu_count, percent, seconds
from shardwise.report.tables.estimate import PART_NAMES, verdict

TIME_GROUPS = {
    "compute": ("forward", "backward", "recompute", "optimizer"),
    "exchange": ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "offload"),
    "waiting": ("bubble",),
    "other": ("other",),
}
"""What a rank does in a step, and the parts of its time that this is."""
MEMORY_GROUPS = {
    "weights and their state": ("weights", "gradients", "optimizer"),
    "activations and buffers": ("activations", "buffers"),
    "allocator and runtime": ("runtime",),
    "free": ("free",),
}
MEMORY_NAMES = {
    "optimizer": "optimizer state",
    "runtime": "allocator and runtime",
}
NO_LIMIT = 2.0**50
"""Bytes of a tier that stand for one without limit; of that no share can be free."""
MOST_PASSES = 100_000
"""Of micro-batches through virtual stages, of which a timeline is drawn: they take some seconds."""
_MOST_BARS = 1500
"""Passes that a timeline draws, so that a report stays below 2 MB."""
# Schedules in which the first rank has both ends of the model.
_BOTH_ENDS = ("zb-v", "dualpipe")
# Axes whose communication counts as another's.
_PASSES = {
    "forward": "forward",
    "input_grad": "backward",
    "weight_grad": "backward",
    "recompute": "recompute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component of a total."""

    key: str
    """Unique: its own name, after that of the component it belongs to."""
    name: str
    group: str
    value: float
    """In seconds or bytes."""
    hover: str
    """Text on hovering over it, as lines of HTML."""


def time_parts(result: Estimate) -> list[Part]:
    """Return the parts of the step, which add up to it; parts that take no time are left out."""
    return [
        Part(
            key=part,
            name=PART_NAMES[part],
            group=group,
            value=result.time_s[part],
            hover=_time_hover(result, part),
        )
        for group, parts in TIME_GROUPS.items()
        for part in parts
        if result.time_s[part] > 0
    ]


def _time_hover(result: Estimate, part: str) -> str:
    time_s = result.time_s[part]
    lines = [
        f"<b>{PART_NAMES[part]}</b>",
        f"{seconds(time_s)}, {percent(time_s / result.step_time_s)} of the step",
    ]
    moved = result.comm_s.get(part.removesuffix("_comm"))
    if moved is not None and moved.total > 0:
        hidden = moved.total - moved.exposed
        lines.append(f"alone it would take {seconds(moved.total)}")
        lines.append(f"{seconds(hidden)} of that is hidden" if hidden > 0 else "none is hidden")
    return "<br>".join(lines)


def comm_part(axis: str) -> str:
    """The part of the step that is the exposed communication of an axis, or offload."""
    return axis if axis in PART_NAMES else f"{axis}_comm"


def memory_parts(result: Estimate) -> list[Part]:
    """Return the memory of the peak-memory stage by component, free memory included.

    If it does not fit, nothing is free, and the parts add up to what is needed.
    """
    memory = result.memory_bytes
    sizes = {name: getattr(memory, name) for name in ("weights", "gradients", "optimizer")}
    sizes |= {name: getattr(memory, name) for name in ("activations", "buffers")}
    sizes["runtime"] = memory.reserved - memory.total
    unlimited = memory.capacity >= NO_LIMIT
    sizes["free"] = 0.0 if unlimited else max(0.0, memory.capacity - memory.reserved)
    total = sum(sizes.values())
    return [
        Part(
            key=name,
            name=MEMORY_NAMES.get(name, name),
            group=group,
            value=sizes[name],
            hover=f"<b>{MEMORY_NAMES.get(name, name)}</b><br>{sizes[name] / GIB:.2f} GiB, "
            f"{percent(sizes[name] / total)} of {total / GIB:.2f} GiB",
        )
        for group, names in MEMORY_GROUPS.items()
        for name in names
        if sizes[name] > 0
    ]


def operation_parts(result: Estimate) -> list[Part]:
    """Return what every operation has of each part of the step; the group is that part.

    Operations are listed for one layer of each kind. How many of it the critical stage runs
    follows from its number of layers; where several kinds share the stages, each stage is assumed
    to have them in the shares of the model. What the operations of a part take is then scaled to
    that part, so that parts add up: where the stage is known, by what the host adds to kernels.
    """
    exposed: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in result.operations or ():
        part = _part_of(row)
        if part in result.time_s:
            name = (
                row.operation if row.part in ("step", "layer") else f"{row.part}: {row.operation}"
            )
            exposed[part][name.replace("_", " ")] += _copies(result, row) * row.exposed_s
    return [
        piece
        for part, times in exposed.items()
        if result.time_s[part] > 0
        for piece in _scaled(result, part, times)
    ]


def _part_of(row: OperationEstimate) -> str:
    """The part of the step that an operation's row is of."""
    if row.part == "step" and row.operation in ("optimizer", "offload"):
        return row.operation
    axis = COUNTED_WITH.get(row.axis, row.axis)
    return f"{axis}_comm" if axis else _PASSES.get(row.phase, row.phase)


def _scaled(result: Estimate, part: str, times: Mapping[str, float]) -> Iterator[Part]:
    """What operations have of a part, the longest first."""
    total = sum(times.values())
    for name, time_s in sorted(times.items(), key=lambda item: -item[1]):
        value = result.time_s[part] * time_s / total if total > 0 else 0.0
        if value > 0:
            share = percent(value / result.step_time_s)
            hover = f"<b>{name}</b>, {PART_NAMES[part]}<br>{seconds(value)}, {share} of the step"
            yield Part(key=f"{part}/{name}", name=name, group=part, value=value, hover=hover)


def _copies(result: Estimate, row: OperationEstimate) -> float:
    """How many of a row's part of the model the critical stage runs for a micro-batch."""
    if row.part == "step":
        return 1.0
    critical = max(result.stages, key=lambda stage: stage.micro_batch_s)
    if row.part == "layer":
        return critical.layers * row.count / sum(layer.count for layer in result.layers)
    last = len(result.stages) - 1
    both = last == 0 or (result.strategy["schedule"] in _BOTH_ENDS and critical.stage == 0)
    place = 0 if row.part == "embedding" else last
    return float(row.count * (both or critical.stage == place))


_STEP = "step"
_STAGE = "all"
_HIDDEN = "hidden behind compute"
_MOST_OPERATIONS = 20
# Pixels: of a bar with its gap, and of everything above and below the bars.
_BAR_HEIGHT, _AROUND = 34, 210
# Room for text behind the longest bar, as a share of it.
_ROOM = 1.28
# Columns are no wider than if there were so many.
_FEW_STAGES = 4
_BAR = 0.7


def time_bars(result: Estimate) -> Figure:
    """Draw the step as a stack of its components, with its interval, and each component below.

    Hidden communication follows the exposed communication of its axis.
    """
    parts = sorted(time_parts(result), key=lambda part: -part.value)
    figure = _bars(parts, TIME_COLORS, _STEP, 1.0)
    moved = {comm_part(axis): time.total - time.exposed for axis, time in result.comm_s.items()}
    hidden = {PART_NAMES[key]: value for key, value in moved.items() if value > 0}
    if hidden:
        colors = [TIME_COLORS[key] for key, value in moved.items() if value > 0]
        figure.add_trace(
            plotly().Bar(
                x=list(hidden.values()),
                y=list(hidden),
                orientation="h",
                marker={"color": colors, "opacity": 0.45, "pattern": {"shape": "/"}},
                customdata=[seconds(value) for value in hidden.values()],
                hovertemplate="%{y}: %{customdata} hidden behind compute<extra></extra>",
                name=_HIDDEN,
                showlegend=True,
            )
        )
    texts = {part.name: (part.value, seconds(part.value)) for part in parts}
    for name, value in hidden.items():
        exposed, text = texts.get(name, (0.0, "none exposed"))
        texts[name] = exposed + value, f"{text} + {seconds(value)} hidden"
    _add_texts(figure, texts)
    subtitle, most = f"{seconds(result.step_time_s)} in all", result.step_time_s
    interval = result.interval
    if interval is not None:
        ends = interval.low_s, interval.high_s
        figure.add_trace(expected_mark([result.step_time_s], [ends], [_STEP]))
        subtitle += f", {seconds(ends[0])} to {seconds(ends[1])} in 8 of 10 runs"
        most = ends[1]
    axis = ("time of a step [s]", max(most, *(end for end, _ in texts.values())))
    return _ranked(figure, "Where the step goes", subtitle, len(texts) + 1, axis)


def memory_bars(result: Estimate) -> Figure:
    """Draw the memory of the peak-memory stage as a stack, with its interval and the capacity."""
    parts = [part for part in memory_parts(result) if part.key != "free"]
    parts.sort(key=lambda part: -part.value)
    figure = _bars(parts, MEMORY_COLORS, _STAGE, GIB)
    texts = {part.name: (part.value / GIB, f"{part.value / GIB:.2f} GiB") for part in parts}
    _add_texts(figure, texts)
    memory, interval = result.memory_bytes, result.memory_interval
    most = memory.reserved / GIB
    if interval is not None:
        ends = interval.reserved_low / GIB, interval.reserved_high / GIB
        figure.add_trace(expected_mark([most], [ends], [_STAGE]))
        most = max(most, ends[1])
    if memory.capacity < NO_LIMIT:
        limit_line(figure, "capacity", "top", x=memory.capacity / GIB)
        most = max(most, memory.capacity / GIB)
    title = "Memory of the peak-memory stage"
    axis = "memory of a GPU [GiB]"
    return _ranked(figure, title, _fit_words(result), len(parts) + 1, (axis, most))


def operation_bars(result: Estimate) -> Figure | None:
    """Draw the operations that take most of the step, if they were requested."""
    pieces = sorted(operation_parts(result), key=lambda piece: -piece.value)[:_MOST_OPERATIONS]
    if not pieces:
        return None
    figure = plotly().Figure()
    labels = [f"{piece.name}, {_short(piece.group)}" for piece in pieces]
    for group in dict.fromkeys(piece.group for piece in pieces):
        own = [n for n, piece in enumerate(pieces) if piece.group == group]
        values = [pieces[n].value for n in own]
        figure.add_trace(
            component_bar(
                PART_NAMES[group],
                TIME_COLORS[group],
                values,
                [labels[n] for n in own],
                text=[seconds(value) for value in values],
                textposition="outside",
                cliponaxis=False,
                customdata=[pieces[n].hover for n in own],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    share = percent(sum(piece.value for piece in pieces) / result.step_time_s)
    subtitle = f"the {len(pieces)} longest are {share} of the step"
    axis = ("time in a step [s]", pieces[0].value)
    _ranked(figure, "Operations of the critical stage", subtitle, len(pieces), axis)
    return figure.update_yaxes(categoryorder="array", categoryarray=labels)


def _short(part: str) -> str:
    return COMPONENT_NAMES.get(part, part)


def _bars(parts: Sequence[Part], colors: Mapping[str, str], total: str, unit: float) -> Figure:
    """Components, each in the stack of all and in a row of its own."""
    figure = plotly().Figure()
    for part in parts:
        value = part.value / unit
        figure.add_trace(
            component_bar(
                part.name,
                colors[part.key],
                [value, value],
                [total, part.name],
                customdata=[part.hover, part.hover],
                hovertemplate="%{customdata}<extra></extra>",
                showlegend=False,
            )
        )
    return figure


def _add_texts(figure: Figure, texts: Mapping[str, tuple[float, str]]) -> None:
    """Write the amount of each row behind its bar; ends and texts by row."""
    figure.add_trace(
        plotly().Scatter(
            x=[end for end, _ in texts.values()],
            y=list(texts),
            text=[f" {text}" for _, text in texts.values()],
            mode="text",
            textposition="middle right",
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
            name="amounts",
        )
    )


def _ranked(
    figure: Figure, title: str, subtitle: str, rows: int, axis: tuple[str, float]
) -> Figure:
    """Dress a chart of bars; the axis has a name and a largest value."""
    styled(figure, title, subtitle, height=_AROUND + _BAR_HEIGHT * rows)
    figure.update_layout(barmode="stack", bargap=0.3, modebar={"remove": BUTTONS})
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title=axis[0], range=[0, _ROOM * axis[1]])
    return figure


def memory_stages(result: Estimate) -> Figure:
    """Draw the memory of every stage as columns, with a line at the capacity."""
    figure = plotly().Figure()
    stages = [str(stage.stage) for stage in result.stages]
    for name, color, sizes in memory_components(result.stages, MEMORY_NAMES):
        figure.add_trace(
            component_bar(
                name,
                color,
                sizes,
                stages,
                vertical=True,
                customdata=[_stage_hover(stage) for stage in result.stages],
                hovertemplate=f"<b>{name} %{{y:.2f}} GiB</b><br>%{{customdata}}<extra></extra>",
            )
        )
    if result.memory_bytes.capacity < NO_LIMIT:
        limit_line(figure, "capacity", "top left", y=result.memory_bytes.capacity / GIB)
    title = "Memory by stage" if len(stages) > 1 else "Memory"
    styled(figure, title, _fit_words(result), height=470)
    figure.update_layout(
        barmode="stack",
        margin={"l": 60, "r": 20},
        modebar={"remove": BUTTONS},
    )
    figure.update_traces(width=min(_BAR, _BAR * len(stages) / _FEW_STAGES))
    figure.update_xaxes(title="pipeline stage", type="category")
    figure.update_yaxes(title="memory of a GPU [GiB]", rangemode="tozero")
    return figure


def _stage_hover(stage: StageEstimate) -> str:
    return "<br>".join(
        [
            f"stage {stage.stage}: {stage.layers} layers",
            f"total {stage.reserved / GIB:.2f} of {stage.capacity / GIB:.2f} GiB",
            f"peak in {stage.peak.operation} ({stage.peak.phase})",
        ]
    )


def charts(result: Estimate) -> dict[str, Figure]:
    """Draw all that an estimate shows, by name."""
    drawn = {"time": time_bars(result)}
    operations = operation_bars(result)
    if operations is not None:
        drawn["operations"] = operations
    drawn["memory"] = memory_bars(result)
    if len(result.stages) > 1:
        drawn["memory-stages"] = memory_stages(result)
    return drawn


def detail_charts(
    result: Estimate,
    inputs: tuple[Model, System, Strategy],
    wanted: Collection[str] = ("timeline", "roofline"),
) -> tuple[dict[str, Drawn], list[str]]:
    """Draw the pipeline of a step and its kernels under the roofline, by name.

    Returns
    -------
    drawn, notes
        Charts, and why one is not drawn.
    """
    from shardwise.report.charts.roofline import roofline  # noqa: PLC0415 - it imports this module
    from shardwise.report.charts.timeline import pipeline_timeline  # noqa: PLC0415 - slow to import
    from shardwise.report.trace import trace  # noqa: PLC0415

    drawn: dict[str, Drawn] = {}
    passes = result.micro_batches * len(result.stages) * result.strategy["vpp"]
    notes = []
    if "timeline" in wanted and result.strategy["training"]:
        if passes <= MOST_PASSES:
            timeline = trace(*inputs).timeline
            drawn["timeline"] = pipeline_timeline(timeline, most_bars=_MOST_BARS)
        else:
            notes.append(
                f"No timeline: {passes:,} passes of micro-batches are more than the "
                f"{MOST_PASSES:,} that are simulated; a smaller batch shows the same pattern."
            )
    if "roofline" in wanted:
        listed = result if result.operations else estimate(*inputs, operations=True)
        drawn["roofline"] = roofline(listed, inputs[1])
    return drawn, notes


def write_charts(result: Estimate, path: str | Path) -> None:
    """Write all charts of an estimate on one page, as `figures.write_page` does."""
    strategy = result.strategy
    run = [
        f"{gpu_count(strategy['gpus'])} = {degrees(strategy)}",
        f"micro-batch {strategy['micro_batch_size']}",
        f"global batch {strategy['global_batch_size']} x {strategy['seq_len']} tokens",
        *options_of(strategy),
    ]
    rates = [
        f"step time {seconds(result.step_time_s)}",
        f"{result.tokens_per_s:,.0f} tokens/s",
        f"{result.tokens_per_s_per_gpu:,.0f} per GPU",
        f"MFU {percent(result.mfu)}",
    ]
    facts = [", ".join(run), _fit_words(result), ", ".join(rates)]
    title = f"{result.model} on {result.system}"
    write_page(path, title, facts, charts(result))


def _fit_words(result: Estimate) -> str:
    return verdict(result)

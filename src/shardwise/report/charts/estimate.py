"""An estimate as charts: components of the step and of the memory, and all stages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.analysis.results import Estimate, StageEstimate
from shardwise.report.charts.common import (
    ACCENT,
    BUTTONS,
    EMPTY,
    GREY,
    MEMORY_COLORS,
    TIME_COLORS,
    Figure,
    component_bar,
    plotly,
    styled,
    write_page,
)
from shardwise.report.charts.estimate_parts import (
    MEMORY_NAMES,
    NO_LIMIT,
    Part,
    memory_parts,
    operation_parts,
    time_parts,
)
from shardwise.report.charts.plans import degrees, options_of
from shardwise.report.console import GIB, gpu_count, percent, seconds
from shardwise.report.tables.estimate import verdict

_GROUP_COLOURS = {
    "compute": "#005a8f",
    "exchange": "#b36b00",
    "waiting": "#8e959e",
    "other": "#4d545b",
    "weights and their state": "#00496f",
    "activations and buffers": "#a06a00",
    "allocator and runtime": GREY,
    "free": EMPTY,
}
# Slices of less than this share have no room for words of their own.
_SMALL = 0.08
# Sectors of less than this share of the total have no label.
_WORDLESS = 0.02
# How much nearer to white an operation is than the part that it belongs to.
_PALER = 0.45
_HEIGHT = 560
_MARGIN = {"l": 10, "r": 10, "t": 92, "b": 20}
# A label of a slice is broken into lines of about so many letters.
_LINE = 11
_LEGEND = {
    "orientation": "h",
    "x": 0,
    "yanchor": "top",
    "traceorder": "normal",
    "font": {"size": 12},
}
# Columns are no wider than if there were so many.
_FEW_STAGES = 4
_BAR = 0.7
_ABREAST = ("time", "time-rings", "memory", "memory-rings")


def time_pie(result: Estimate) -> Figure:
    """Draw the parts of the step as a ring, the longest first."""
    labels = {p.key: f"{p.name}  {seconds(p.value)}" for p in time_parts(result)}
    middle = f"<b>{seconds(result.step_time_s)}</b><br>a step"
    figure = _pie(time_parts(result), TIME_COLORS, labels, middle)
    return _round(figure, "Where the step goes", "parts of its time, the longest first")


def memory_pie(result: Estimate) -> Figure:
    """Draw the memory of the peak-memory stage, with free memory, as a ring."""
    parts = memory_parts(result)
    labels = {p.key: f"{p.name}  {p.value / GIB:.2f} GiB" for p in parts}
    total = sum(part.value for part in parts)
    middle = f"<b>{total / GIB:.1f} GiB</b><br>{_capacity_word(result)}"
    figure = _pie(parts, MEMORY_COLORS, labels, middle)
    return _round(figure, "Memory of the peak-memory stage", _fit_words(result))


def _pie(
    parts: Sequence[Part], colors: Mapping[str, str], labels: Mapping[str, str], middle: str
) -> Figure:
    """A ring of all parts; the small ones share one label, and each has its line in the legend."""
    ordered = sorted(parts, key=lambda part: (part.key == "free", -part.value))
    total = sum(part.value for part in parts)
    small = [part for part in ordered if part.value < _SMALL * total and part.key != "free"]
    words = {part.key: _broken(part.name, part.value / total) for part in ordered}
    if len(small) > 1:
        words |= {part.key: "" for part in small}
        share = percent(sum(part.value for part in small) / total)
        words[small[len(small) // 2].key] = f"{len(small)} smaller<br>{share}"
    figure = plotly().Figure(
        plotly().Pie(
            labels=[labels[part.key] for part in ordered],
            values=[part.value for part in ordered],
            ids=[part.key for part in ordered],
            sort=False,
            direction="clockwise",
            hole=0.45,
            marker={
                "colors": [colors[part.key] for part in ordered],
                "line": {"color": "white", "width": 1},
            },
            text=[words[part.key] for part in ordered],
            textinfo="text",
            textposition=[
                "inside" if part.value >= _SMALL * total else "outside" for part in ordered
            ],
            insidetextorientation="horizontal",
            customdata=[part.hover for part in ordered],
            hovertemplate="%{customdata}<extra></extra>",
            domain={"x": [0.04, 0.96], "y": [0.0, 0.94]},
            name="parts",
        )
    )
    figure.add_annotation(text=middle, showarrow=False, x=0.5, y=0.47, font={"size": 15})
    return figure


def _broken(name: str, share: float) -> str:
    """A name in short lines, and its share."""
    lines = [""]
    for word in name.replace("-", "- ").split():
        joint = "" if lines[-1].endswith("-") else " "
        if lines[-1] and len(lines[-1]) + len(word) >= _LINE:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]}{joint}{word}".strip()
    return "<br>".join([*lines, percent(share)])


def time_sunburst(result: Estimate) -> Figure:
    """Draw the step as rings: kinds of work inside, their parts around them, then operations."""
    parts, operations = time_parts(result), operation_parts(result)
    text = f"{seconds(result.step_time_s)}<br>a step"
    sectors = [_center(parts, text), *_sectors(parts, TIME_COLORS, text, seconds)]
    sectors += [
        _Sector(
            key=piece.key,
            name=piece.name,
            parent=piece.group,
            value=piece.value,
            color=_paler(TIME_COLORS[piece.group]),
            hover=piece.hover,
        )
        for piece in operations
    ]
    rings = "work, its parts, their operations" if operations else "kinds of work, and their parts"
    return _round(_sunburst(sectors), "The step from inside out", rings)


def memory_sunburst(result: Estimate) -> Figure:
    """Draw the memory of the peak-memory stage as rings: groups inside, components around them."""
    parts = memory_parts(result)
    text = f"{_gib(sum(part.value for part in parts))}<br>{_capacity_word(result)}"
    sectors = [_center(parts, text), *_sectors(parts, MEMORY_COLORS, text, _gib)]
    return _round(_sunburst(sectors), "The memory from inside out", "what it is for, and its parts")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sector:
    """One sector of a ring, around the one that is its parent."""

    key: str
    name: str
    parent: str
    value: float
    color: str
    hover: str


def _center(parts: Sequence[Part], text: str) -> _Sector:
    total = sum(part.value for part in parts)
    return _Sector(key=text, name=text, parent="", value=total, color="white", hover=text)


def _sectors(
    parts: Sequence[Part],
    colors: Mapping[str, str],
    centre: str,
    amount: Callable[[float], str],
) -> Iterator[_Sector]:
    """Groups, and their components around them; one that is all of its group replaces it."""
    total = sum(part.value for part in parts)
    for group in dict.fromkeys(part.group for part in parts):
        members = [part for part in parts if part.group == group]
        alone = [part.name for part in members] == [group]
        value = sum(part.value for part in members)
        if not alone:
            yield _Sector(
                key=f"group: {group}",
                name=group,
                parent=centre,
                value=value,
                color=_GROUP_COLOURS[group],
                hover=f"<b>{group}</b><br>{amount(value)}, {percent(value / total)}",
            )
        for part in members:
            yield _Sector(
                key=part.key,
                name=part.name,
                parent=centre if alone else f"group: {group}",
                value=part.value,
                color=colors[part.key],
                hover=part.hover,
            )


def _sunburst(sectors: Sequence[_Sector]) -> Figure:
    total = sectors[0].value
    return plotly().Figure(
        plotly().Sunburst(
            ids=[sector.key for sector in sectors],
            labels=[sector.name for sector in sectors],
            parents=[sector.parent for sector in sectors],
            values=[sector.value for sector in sectors],
            text=[_sector_words(sector, sector.value / total) for sector in sectors],
            textinfo="text",
            branchvalues="total",
            sort=False,
            leaf={"opacity": 1.0},
            marker={
                "colors": [sector.color for sector in sectors],
                "line": {"color": "white", "width": 1},
            },
            customdata=[sector.hover for sector in sectors],
            hovertemplate="%{customdata}<extra></extra>",
            rotation=90,
            name="rings",
        )
    )


def _sector_words(sector: _Sector, share: float) -> str:
    """The label of a sector, if there is room."""
    if not sector.parent:
        return sector.name
    return f"{sector.name}<br>{percent(share)}" if share >= _WORDLESS else ""


def memory_stages(result: Estimate) -> Figure:
    """Draw the memory of every stage as columns, with a line at the capacity."""
    figure = plotly().Figure()
    stages = [str(stage.stage) for stage in result.stages]
    for component, color in MEMORY_COLORS.items():
        if component == "free":
            continue
        sizes = [
            (stage.reserved - stage.total if component == "runtime" else getattr(stage, component))
            / GIB
            for stage in result.stages
        ]
        name = MEMORY_NAMES.get(component, component)
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
        figure.add_hline(
            y=result.memory_bytes.capacity / GIB,
            line={"color": ACCENT, "dash": "dash"},
            annotation_text="capacity",
            annotation_position="top left",
        )
    title = "Memory by stage" if len(stages) > 1 else "Memory"
    styled(figure, title, _fit_words(result), height=470)
    figure.update_layout(
        barmode="stack",
        margin={"l": 60, "r": 20},
        legend=_LEGEND | {"y": -0.2},
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
    return {
        "time": time_pie(result),
        "time-rings": time_sunburst(result),
        "memory": memory_pie(result),
        "memory-rings": memory_sunburst(result),
        "memory-stages": memory_stages(result),
    }


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
    facts = [", ".join(run), ", ".join(rates), _fit_words(result)]
    title = f"{result.model} on {result.system}"
    drawn = charts(result)
    write_page(path, title, facts, drawn, abreast=[name for name in drawn if name in _ABREAST])


def _round(figure: Figure, title: str, subtitle: str) -> Figure:
    """Dress a chart without axes, so that it is read on a narrow screen, too."""
    styled(figure, title, subtitle, height=_HEIGHT)
    figure.update_layout(margin=_MARGIN, legend=_LEGEND | {"y": -0.02})
    figure.update_layout(title={"xref": "container", "pad": {"l": 10}})
    return figure


def _fit_words(result: Estimate) -> str:
    return verdict(result.memory_bytes, fits=result.fits)


def _capacity_word(result: Estimate) -> str:
    return "in all" if result.fits else "needed"


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"


def _paler(color: str) -> str:
    """A color, nearer to white."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + _PALER * (255 - part)):02x}" for part in parts)

"""Time and memory of a strategy as bars of HTML: a browser redraws them in a few milliseconds."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.analysis.results import Estimate, StageEstimate
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.report.charts.common import COMPONENT_NAMES, GREY, MEMORY_COLORS, TIME_COLORS
from shardwise.report.charts.estimate import MEMORY_NAMES, comm_part
from shardwise.report.console import GIB, percent, seconds

_NO_LIMIT = 2.0**50
# Components of less than this share have no room for words.
_WORDLESS = 0.07
_INKS = ("#ffffff", "#000000")
# Share of white that makes a color pale.
_PALE = 0.6
_WHITE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One component of a bar."""

    name: str
    color: str
    size: float
    words: str
    """Its size with a unit."""


def time_html(found: Estimate) -> str:
    """Components of the step, with the interval of measured runs, and what communication hides."""
    step, interval = found.step_time_s, found.interval
    parts = [_time_part(name, time) for name, time in found.time_s.items() if time > 0]
    hidden = [
        _time_part(comm_part(axis), comm.total - comm.exposed, ", hidden")
        for axis, comm in found.comm_s.items()
        if comm.total - comm.exposed > _WORDLESS * _WORDLESS * step
    ]
    hidden_s = sum(part.size for part in hidden)
    longest = max(step, interval.high_s if interval else step, hidden_s)
    summary = ", ".join(f"{part.name} {part.words}" for part in parts)
    rows = [_bar(parts, longest, "exposed")]
    if interval is not None:
        words = f"8 of 10 runs: {seconds(interval.low_s)} to {seconds(interval.high_s)}"
        rows.append(_interval(interval.low_s, interval.high_s, longest, words))
    if hidden:
        rows.append(_bar(hidden, longest, "hidden", hatched=True))
    legend = _legend([*parts, *hidden], step, interval and words)
    return (
        f'<div class="sw-bars" role="img" aria-label="{html.escape("Time of a step: " + summary)}">'
        f"<h3>Time of a step</h3>{''.join(rows)}</div>{legend}"
    )


def _time_part(name: str, time: float, more: str = "") -> _Part:
    return _Part(
        name=COMPONENT_NAMES.get(name, name) + more,
        color=_pale(TIME_COLORS.get(name, GREY)) if more else TIME_COLORS.get(name, GREY),
        size=time,
        words=seconds(time),
    )


def memory_html(found: Estimate) -> str:
    """Memory of each pipeline stage against the capacity."""
    capacity = found.memory_bytes.capacity
    limited = capacity < _NO_LIMIT
    most = max(stage.reserved for stage in found.stages)
    longest = max(most, capacity) if limited else most
    known = found.memory_interval
    if known is not None:
        longest = max(longest, known.reserved_high)
    bars = [
        _bar(list(_memory_parts(stage)), longest, f"stage {stage.stage}") for stage in found.stages
    ]
    if known is not None:
        low, high = known.reserved_low, known.reserved_high
        words = f"8 of 10 runs: {low / GIB:.1f} to {high / GIB:.1f} GiB on the peak-memory stage"
        bars.append(_interval(low, high, longest, words))
    line = ""
    if limited:
        line = f'<div class="sw-limit" style="left:{_share(capacity, longest)}"></div>'
    peak = max(found.stages, key=lambda stage: stage.reserved)
    summary = f"Memory: {most / GIB:.1f} of {capacity / GIB:.1f} GiB on stage {peak.stage}"
    parts = list(_memory_parts(peak))
    where = f"peak in {html.escape(peak.peak.operation)} ({html.escape(peak.peak.phase)})"
    return (
        f'<div class="sw-bars" role="img" aria-label="{html.escape(summary)}">'
        f"<h3>Memory by stage</h3><div class='sw-stack'>{''.join(bars)}{line}</div></div>"
        f"{_legend(parts, peak.reserved, known and words)}<p class='sw-hint'>{where}</p>"
    )


def _memory_parts(stage: StageEstimate) -> Iterator[_Part]:
    for name in (*MEMORY_PARTS, "runtime"):
        size = stage.reserved - stage.total if name == "runtime" else getattr(stage, name)
        if size > 0:
            yield _Part(
                name=MEMORY_NAMES.get(name, name),
                color=MEMORY_COLORS.get(name, GREY),
                size=size,
                words=f"{size / GIB:.2f} GiB",
            )


def _bar(parts: Sequence[_Part], longest: float, name: str, *, hatched: bool = False) -> str:
    """One bar; a component says its name where it has room."""
    pieces = []
    for part in parts:
        share = part.size / longest
        title = html.escape(f"{part.name}: {part.words}")
        words = html.escape(part.name) if share > _WORDLESS else ""
        look = f"width:{_share(part.size, longest)};background-color:{part.color}"
        look += f";color:{ink_on(part.color)}"
        pieces.append(f'<span title="{title}" style="{look}">{words}</span>')
    kind = "sw-bar sw-hatched" if hatched else "sw-bar"
    return f'<div class="{kind}" title="{html.escape(name)}">{"".join(pieces)}</div>'


def ink_on(color: str) -> str:
    """Black or white, whichever has the higher contrast on a color: 4.58 or more on any.

    Contrast is (L1 + 0.05) / (L2 + 0.05) of the relative luminances (WCAG 2.1, 1.4.3).
    """
    light = _luminance(color) + 0.05
    return _INKS[1] if light / 0.05 > 1.05 / light else _INKS[0]


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _luminance(color: str) -> float:
    """Relative luminance of a color of sRGB (WCAG 2.1)."""
    shares = [channel / _WHITE for channel in _channels(color)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]  # noqa: PLR2004 - of sRGB
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _pale(color: str) -> str:
    """A color on which black can be read, and stripes that are lighter still."""
    mixed = (round(c + _PALE * (_WHITE - c)) for c in _channels(color))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _interval(low: float, high: float, longest: float, words: str) -> str:
    """A line from the lower to the upper end of the interval."""
    left, width = _share(low, longest), _share(high - low, longest)
    look = f"margin-left:{left};width:{width}"
    return f'<div class="sw-interval" title="{words}" style="{look}"></div>'


def _legend(parts: Sequence[_Part], total: float, interval: object) -> str:
    """Names, sizes and shares, and what the bracket is."""
    items = [
        f'<li><i style="background-color:{part.color}"></i>{html.escape(part.name)} '
        f"<b>{part.words}</b> {percent(part.size / total)}</li>"
        for part in parts
    ]
    if interval:
        items.append(f"<li><i class='sw-bracket'></i>{interval}</li>")
    return f"<ul class='sw-legend'>{''.join(items)}</ul>"


def _share(size: float, longest: float) -> str:
    return f"{100 * size / longest:.3f}%"

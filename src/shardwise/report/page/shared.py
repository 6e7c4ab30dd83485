"""What reports of all verbs share: the order of sections, assumptions, sources, the command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise._version import __version__
from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.base import Source
from shardwise.errors import InputError
from shardwise.report.charts.common import check_chart_file
from shardwise.report.charts.plans import short_name, value_word
from shardwise.report.charts.theme import Figure
from shardwise.report.console import percent, seconds
from shardwise.report.page.html import (
    Block,
    Chart,
    Code,
    DataTable,
    Facts,
    Lines,
    Page,
    Section,
    page_html,
)

SUFFIX = ".html"
_MOST_PLACES = 6
_ORIGINS = {
    "measured": "measured on the machine",
    "fitted": "fitted to measurements",
    "datasheet": "from a data sheet",
    "published": "published",
    "assumed": "assumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report of any verb."""

    title: str
    answer: str
    """One sentence."""
    question: Sequence[tuple[str, str]]
    """What was requested, by name."""
    charts: Mapping[str, Figure]
    results: Sequence[Block]
    assumptions: Sequence[Block]
    sources: Sequence[Block]
    command: str
    """What prints the same figures."""


def check_report_file(path: str) -> None:
    """Raise an `InputError` if a report cannot be written to a file.

    For a verb to call before it computes something that takes long.
    """
    if Path(path).suffix.lower() != SUFFIX:
        problem = f"a report is written as {SUFFIX}"
        raise InputError.at(path, problem, "report")
    check_chart_file(path)


def write_report(report: Report, path: str) -> None:
    """Write a report as one page."""
    charts = [Chart(name=f"chart-{name}", figure=one) for name, one in report.charts.items()]
    version = f"shardwise {__version__}"
    sections = [
        Section(title="Question", blocks=[Facts(items=report.question)]),
        Section(title="Charts", blocks=charts),
        Section(title="Results", blocks=report.results),
        Section(title="Assumptions and evidence", blocks=report.assumptions),
        Section(
            title="Reproduce",
            blocks=[Lines(items=[f"with {version}:"]), Code(text=report.command)],
        ),
        Section(title="Sources of figures", blocks=report.sources),
    ]
    page = Page(
        title=report.title,
        answer=report.answer,
        sections=[one for one in sections if one.blocks],
    )
    files.write_text(path, page_html(page))


def time_words(time_s: float, ends: tuple[float, float] | None) -> str:
    """A step time with its prediction interval."""
    if ends is None:
        return seconds(time_s)
    return f"{seconds(time_s)} ({seconds(ends[0])} to {seconds(ends[1])} in 8 of 10 runs)"


def requested(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return fields that a user set, by name."""
    return [
        (short_name(name), "not set" if value is None else value_word(value))
        for name, value in fields.items()
    ]


def evidence(result: Estimate) -> list[Block]:
    """Return what an estimate rests on: software, rates and measured runs."""
    software = result.software
    known = "its release can run this" if software.checked else "not checked"
    release = f" ({software.release})" if software.release else ""
    items = [("software", f"{software.stack}{release}; {known}")]
    items += [("reported", one) for one in software.reported]
    items += [(f"rates of {name}", _ORIGINS[kind]) for name, kind in result.rests_on.items()]
    interval = result.interval
    if interval is not None:
        share = percent(interval.level)
        items.append(("interval", f"{share} of runs expected inside, from {interval.runs} runs"))
        items.append(("closest measured run", interval.nearest))
    return [Facts(items=items)]


def source_table(sources: Mapping[str, Source]) -> list[Block]:
    """Return sources of figures as a table: origin, text and what they cover."""
    places: dict[tuple[str, str], list[str]] = {}
    for prefix, source in sources.items():
        places.setdefault((source.kind, " ".join(source.text.split())), []).append(prefix)
    rows = [[_several(prefixes), _ORIGINS[kind], text] for (kind, text), prefixes in places.items()]
    if not rows:
        return []
    columns = ("figures", "origin", "source")
    caption = "Where the figures of model, system and stack come from"
    return [DataTable(caption=caption, columns=columns, rows=rows, texts=(0, 1, 2))]


def _several(prefixes: Sequence[str]) -> str:
    shown = ", ".join(prefixes[:_MOST_PLACES])
    rest = len(prefixes) - _MOST_PLACES
    return f"{shown} and {rest} more" if rest > 0 else shown

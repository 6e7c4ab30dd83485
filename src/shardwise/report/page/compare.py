"""The report of a comparison."""

from shardwise.analysis.comparison import Comparison, Outcome
from shardwise.analysis.features import feature_words
from shardwise.report.charts.compare import charts
from shardwise.report.page.html import DataTable, Lines
from shardwise.report.page.printed import printed_blocks
from shardwise.report.page.shared import Report, time_words
from shardwise.report.tables.compare import (
    best_words,
    change_words,
    in_words,
    print_comparison,
    who_runs,
)


def report_of(found: Comparison, command: str) -> Report:
    """Return the report of a comparison."""
    names = [one.name for one in found.scenarios]
    question = [("scenarios", ", ".join(names)), ("runs", who_runs(found))]
    question += [
        (one.field.replace("_", " "), " / ".join(map(in_words, one.values))) for one in found.asked
    ]
    columns = ("scenario", "closest measured run", "measured runs", "features of no measured run")
    rows = [_evidence(one) for one in found.scenarios]
    return Report(
        title=f"{', '.join(names[:-1])} and {names[-1]} side by side",
        answer=_answer(found),
        question=question,
        charts=charts(found),
        results=printed_blocks(lambda: print_comparison(found)),
        assumptions=[
            DataTable(
                caption="What the intervals rest on", columns=columns, rows=rows, texts=(0, 1, 3)
            ),
            *([Lines(items=found.notes)] if found.notes else []),
        ],
        sources=[
            Lines(
                items=[
                    f"figures of {name}: shardwise systems {name}"
                    for name in dict.fromkeys(one.system for one in found.scenarios)
                ]
            )
        ],
        command=command,
    )


def _answer(found: Comparison) -> str:
    """The change to each scenario with the intervals, and the best."""
    first = found.scenarios[0]
    words = [f"{first.name} takes {_time(first)} a step"]
    words += [change_words(change, found.per) for change in found.changes]
    return f"{'; '.join([*words, *best_words(found)])}."


def _time(one: Outcome) -> str:
    known = one.interval
    return time_words(one.step_time_s, None if known is None else (known.low_s, known.high_s))


def _evidence(one: Outcome) -> list[str]:
    features = feature_words(one.unmeasured_features) if one.unmeasured_features else "-"
    if one.interval is None:
        return [one.name, "-", "-", features]
    return [one.name, one.interval.nearest, f"{one.interval.runs:,}", features]

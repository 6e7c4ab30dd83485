"""Tables of software: trainers that are known, and what a description was resolved to."""

from collections.abc import Sequence

from rich.text import Text

from shardwise.analysis.validated_runs import data_basis
from shardwise.config.software.record import Trainer
from shardwise.config.software.resolve import Match
from shardwise.report.console import percent, plain_table, show, table_of


def print_trainers(known: Sequence[Trainer]) -> None:
    """Print one line for each trainer: words for it, newest release, and facts."""
    show(
        table_of(
            known,
            {
                "trainer": lambda one: Text(one.name),
                "also written": lambda one: Text(", ".join(one.names[:3])),
                "based on": lambda one: Text(one.based_on or "-"),
                "newest release known": lambda one: Text(_newest(one)),
                "facts": lambda one: Text(str(len(one.facts))),
            },
            left=4,
            wraps=("also written",),
        )
    )


def _newest(trainer: Trainer) -> str:
    if not trainer.releases:
        return "-"
    release, month = max(trainer.releases.items(), key=lambda one: one[1])
    return f"{release} ({month})"


def match_record(match: Match) -> dict[str, object]:
    """Return what a description was resolved to, as JSON has it."""
    return {
        "software": match.software.model_dump(mode="json", exclude_defaults=True),
        "how": match.how,
        "notes": list(match.notes),
        "candidates": [
            {
                "probability": one.weight,
                "trainer": one.trainer,
                "engine": one.engine,
                "stack": one.stack.name,
                "measured_runs": data_basis(one.stack).measured_runs,
                "options": dict(one.options),
                "sources": dict(one.sources),
            }
            for one in match.candidates
        ],
    }


def print_match(match: Match) -> None:
    """Print how a description was resolved, and what each candidate does, with sources."""
    show(Text(f"{match.software.text}: {match.how}", style="bold"))
    show(*(Text(note) for note in match.notes))
    for one in match.candidates:
        engine = f", {one.engine}" if one.engine else ""
        runs = data_basis(one.stack).measured_runs
        measured = f"{runs} measured runs" if runs else "no run of this software has been measured"
        title = f"{percent(one.weight)} {one.trainer or 'unknown'}{engine}"
        show(Text(f"\n{title}: figures of {one.stack.name}, {measured}", style="bold"))
        table = plain_table("field", "value", "source", left=3, wraps=("source",))
        for name, value in one.options.items():
            table.add_row(name, Text(str(value)), Text(one.sources.get(name, "stated")))
        if one.options:
            show(table)

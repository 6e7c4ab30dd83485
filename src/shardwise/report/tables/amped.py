"""What became of an AMPeD configuration, below the estimate made of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.report.console import show

__all__ = ["print_imported"]


def print_imported(imported: Mapping[str, Any]) -> None:
    """Print where it is from, what has no meaning here by reason, and what else there is to say.

    What AMPeD would calculate is counted only; --json lists it too.
    """
    show("\n".join(_lines(imported)), style="dim")


def _lines(imported: Mapping[str, Any]) -> Iterator[str]:
    tables = imported["tables"]
    rows = ", ".join(dict.fromkeys(imported["rows"].values()))
    yield f"imported from AMPeD: {imported['file']}" + (f"; {rows} of {tables}" if tables else "")
    taken, left = imported["taken"], imported["not_used"]
    yield f"{len(taken)} of {len(taken) + len(left)} parameters say something here; not used:"
    told: dict[str, list[str]] = {}
    for one in left:
        if one["origin"] != "calculated":
            told.setdefault(one["why"], []).append(f"{one['parameter']} {one['value']}")
    for why, found in told.items():
        yield f"  {', '.join(found)}: {why}"
    calculated = sum(one["origin"] == "calculated" for one in left)
    if calculated:
        yield f"  {calculated} that AMPeD calculates: other formulas here (--json lists them)"
    for note in imported["notes"]:
        yield f"note: {note}"

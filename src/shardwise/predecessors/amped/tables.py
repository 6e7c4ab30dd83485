"""What AMPeD says of a run or of a space of runs, and how a configuration of it was read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.predecessors.amped.counterparts import AMPED, in_our_units
from shardwise.predecessors.calculon.tables import print_pairs
from shardwise.report.console import plain_table, show
from shardwise.units import readable

_DEGREES = ("data", "tensor", "pipeline")


def _own(name: str, value: float) -> str:
    """A figure in its own unit, which its name implies."""
    if name.endswith(("(s)", "overhead time")):
        return readable(value, "seconds") if value else "0"
    if name.startswith(("required_memory", "total_required", "min_required")):
        return f"{value:.6g} GB"
    return f"{value:.6g}"


def _ours(name: str, value: float | None) -> str:
    """A figure in seconds, bytes or TFLOP/s."""
    if not value:
        return "0"
    if "memory" in name:
        return readable(value, "bytes")
    return f"{value:.4g}" if name.startswith("TFLOP") else readable(value, "seconds")


def print_statistics(statistics: Mapping[str, Any]) -> None:
    """Print all lines of its breakdown under their own labels, memory, and what was assumed."""
    table = plain_table("line", "value", title="AMPeD")
    for name, value in statistics.items():
        if name != "assumed":
            table.add_row(name, _own(name, value))
    show(table)
    if assumed := [f"{name} {value:g}" for name, value in statistics.get("assumed", {}).items()]:
        show(Text(f"assumed: {', '.join(assumed)}"))


def print_refusal(message: str) -> None:
    """Say why it gives no figures."""
    show(f"AMPeD refuses this run: {message}")


def print_comparison(result: Estimate, statistics: Mapping[str, Any], *, everything: bool) -> None:
    """Print AMPeD's figures next to those of shardwise; `everything` adds nothing."""
    del everything
    print_pairs("AMPeD", AMPED, result, in_our_units(statistics), _ours)


def print_layers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Print the terms of its time model."""
    title = "One layer, one batch; times of compute as if one accelerator did all of it"
    table = plain_table("term", "time", title=title)
    for term in layers:
        value = term["seconds"]
        table.add_row(term["name"], readable(value, "seconds") if value else "0")
    show(table)


def print_permutations(found: Sequence[Mapping[str, Any]], summary: str) -> None:
    """Print the best permutations of a search, best first."""
    show(Text(summary))
    if not found:
        return
    words = [f"{word} {place}" for word in ("DP", "TP", "PP") for place in ("intra", "inter")]
    table = plain_table("", *words, "batch", "step", "time")
    for rank, entry in enumerate(found, start=1):
        degrees = (
            entry["degrees"][f"{place}_node_{word}_parallel_degree"]
            for word in _DEGREES
            for place in ("intra", "inter")
        )
        table.add_row(
            str(rank),
            *map(str, degrees),
            str(entry["batch_size"]),
            readable(entry["step_time_s"], "seconds", digits=5),
            readable(entry["time_s"], "seconds", digits=5),
        )
    show(table)


def print_imported(imported: Mapping[str, object]) -> None:
    """Print where it is from, what has no meaning here by reason, and what else there is to say.

    What AMPeD would calculate is counted only; --json lists it too.
    """
    show("\n".join(_import_lines(imported)), style="dim")


def _import_lines(imported: Mapping[str, Any]) -> Iterator[str]:
    tables = imported["tables"]
    rows = ", ".join(dict.fromkeys(imported["rows"].values()))
    yield f"imported from AMPeD: {imported['file']}" + (f"; {rows} of {tables}" if tables else "")
    used, unused = imported["taken"], imported["not_used"]
    yield f"{len(used)} of {len(used) + len(unused)} parameters say something here; not used:"
    by_reason: dict[str, list[str]] = {}
    for one in unused:
        if one["origin"] != "calculated":
            by_reason.setdefault(one["why"], []).append(f"{one['parameter']} {one['value']}")
    for why, found in by_reason.items():
        yield f"  {', '.join(found)}: {why}"
    calculated = sum(one["origin"] == "calculated" for one in unused)
    if calculated:
        yield f"  {calculated} that AMPeD calculates: other formulas here (--json lists them)"
    for note in imported["notes"]:
        yield f"note: {note}"

"""What fsdp_ilp says of a model, as tables under its own names."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.interop.fsdp_ilp.reference import FsdpIlpResult
from shardwise.report.console import plain_table, seconds, show
from shardwise.report.tables.fsdp_units import ranges
from shardwise.report.tables.fsdp_words import summary

__all__ = ["print_units"]

_MIB = 2**20
_MS_PER_S = 1e3
_FIGURES = ("p", "g", "a", "m", "ag", "rs", "fw_ag", "bw_ag", "bw_rs", "fw_e", "bw_e")
_GOES = ("bw_rs", "bw_ag", "fw_ag", "rs", "ag", "g", "a")


def print_units(result: FsdpIlpResult, record: Mapping[str, Any]) -> None:
    """Print the units and what they cost, and every module if the record has them."""
    show(_headline(result, record))
    if result.objective_ms is None:
        show(Text(_nothing(result, record), style="bold red"))
    else:
        show(_summary(result, record))
        show(Text("\n".join(["", *_units(result), ""])))
    if "modules" in record:
        show(_modules(record))


def _headline(result: FsdpIlpResult, record: Mapping[str, Any]) -> Text:
    text = Text("\n")
    text.append(f"{record['model']} by fsdp_ilp", style="bold")
    how = f"{result.solver}, {result.formulation}" if result.formulation else result.solver
    told = f"{result.world_size} GPUs, budget {result.budget_gib:.6g} GiB"
    text.append(f"\n{told}{', ' if how else ''}{how}\n")
    return text


def _nothing(result: FsdpIlpResult, record: Mapping[str, Any]) -> str:
    told = result.reason
    if (least := record.get("least_memory_budget_bytes")) is not None:
        told += f"; the least that one keeps is {ceil(least / _MIB)} MiB"
    return told


def _summary(result: FsdpIlpResult, record: Mapping[str, Any]) -> Text:
    before = record["without_fsdp"]
    compute = seconds(before["compute_ms"] / _MS_PER_S)
    exposed = seconds((result.objective_ms or 0.0) / _MS_PER_S)
    plain = f"{before['peak_gib']:.4g} GiB without FSDP and recompute"
    kept = f"{result.root_parameter_gib or 0.0:.4g} GiB of parameters stay with the root"
    reason = result.reason
    if reason and result.bound_ms is not None:
        reason += f"; none takes less than {result.bound_ms:.6g} ms"
    rows = [
        ("exposed", exposed, f"plus {compute} of compute without recompute"),
        ("peak", f"{result.peak_gib or 0.0:.4g} GiB", plain),
        ("units", str(len(result.units)), kept),
        ("status", result.status, reason),
    ]
    return summary(rows)


def _units(result: FsdpIlpResult) -> list[str]:
    return [f"  {name}" for name in ranges(result.units)]


def _modules(record: Mapping[str, Any]) -> Table:
    """Every module: GiB for p, g, a and m, ms for the others."""
    title = "p, g, a, m [GiB]; the others [ms]"
    table = plain_table("module", "unit", *_FIGURES, title=title, goes=_GOES, wraps=("module",))
    for row in record["modules"]:
        figures = [f"{row[name]:.4g}" for name in _FIGURES]
        table.add_row(row["name"], "x" if row["unit"] else "", *figures)
    return table

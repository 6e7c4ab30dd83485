"""A timeline as a table: what every pipeline rank does in a step, and when it holds most."""

from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.config.strategy_fields import RANK_DEGREES
from shardwise.report.console import both_ends, gib, gpu_count, percent, plain_table, seconds, show
from shardwise.report.trace import Trace

_MOST_RANKS = 16
_AFTER_NAMES = {
    "replicas": "data-parallel comm",
    "offload": "offload",
    "optimizer": "optimizer",
    "overhead": "overhead and stragglers",
}


def print_trace(trace: Trace) -> None:
    """Print the step, its ranks, and what follows the last pass."""
    record = trace.to_dict()
    show(_headline(record), _ranks(record), _closing(record))


def _headline(record: dict[str, Any]) -> Text:
    strategy = record["strategy"]
    degrees = " x ".join(f"{axis} {strategy[axis]}" for axis in RANK_DEGREES if strategy[axis] > 1)
    chunks = f" x {strategy['vpp']}" if strategy["vpp"] > 1 else ""
    parts = [
        gpu_count(strategy["gpus"]) + (f" = {degrees}" if degrees else ""),
        f"{strategy['schedule']}{chunks}",
        f"{record['micro_batches']} micro-batches of {strategy['micro_batch_size']}",
        f"{record['passes']:,} passes",
    ]
    text = Text("\n")
    text.append(f"{record['model']} on {record['system']}", style="bold")
    text.append("\n" + ", ".join(parts))
    return text


def _ranks(record: dict[str, Any]) -> Table:
    table = plain_table(
        *("rank", "holds", "compute", "communication", "transfers", "idle", "idle share"),
        *("peak [GiB]", "at", "in"),
        left=2,
        texts=("in",),
        optional=("in", "at", "idle", "transfers", "communication"),
    )
    for one in both_ends(record["ranks"], _MOST_RANKS):
        if one is None:
            table.add_row("...")
            continue
        table.add_row(
            str(one["rank"]),
            one["holds"],
            seconds(sum(one["compute_s"].values())),
            seconds(sum(one["exchanges_s"].values())),
            seconds(one["transfers_s"]),
            seconds(max(0.0, one["idle_s"])),
            percent(one["idle_s"] / record["passes_s"]),
            gib(one["peak_bytes"]),
            seconds(one["peak_s"]),
            one["peak_in"],
        )
    return table


def _closing(record: dict[str, Any]) -> Text:
    """How the step adds up, and what the closed form says."""
    parts = [f"passes {seconds(record['passes_s'])}"]
    parts += [
        f"{_AFTER_NAMES[name]} {seconds(time)}" for name, time in record["after_s"].items() if time
    ]
    step, estimated = record["step_time_s"], record["estimated_step_time_s"]
    text = Text(f"step {seconds(step)} = {' + '.join(parts)}")
    text.append(f"\nestimate: {seconds(estimated)}; the simulation differs by ")
    text.append(f"{100 * (step / estimated - 1):+.2f} %".replace("-0.00", "+0.00"))
    if not record["fits"]:
        text.append("\ndoes not fit in memory", style="red")
    return text

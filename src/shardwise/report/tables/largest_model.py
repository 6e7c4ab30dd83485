"""The largest model that fits: the practical answer and the limit, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.planning.search.results import LargestFit, LargestModel
from shardwise.report.charts.plans import degrees, options_of
from shardwise.report.console import GIB, count, gib, percent, plain_table, seconds, show, table_of

_OFFLOADED = ("weights", "activations", "optimizer")


_PRACTICAL = (
    "what the stack can run and recipes use, tensor parallelism inside the innermost domain, no "
    "offload"
)
_LIMIT = "everything allowed"


def print_largest(found: LargestModel) -> None:
    """Print the practical answer, then the limit: the shapes around it and its fastest strategy."""
    show(_headline(found))
    for name, allowed, fit in (
        ("practical", _PRACTICAL, found.practical),
        ("limit", _LIMIT, found),
    ):
        show(_answer(name, allowed), _ladder(fit), *_fastest(fit))


def print_shapes(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the shapes of a study: parameters, dimensions, and the ratio of width to depth."""
    table = plain_table(*(name.replace("_", " ") for name in rows[0]), optional=("ffn", "seq len"))
    for row in rows:
        cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()]
        cells[1], cells[-1] = count(row["parameters"]), f"{row['ratio']:.4g}"
        table.add_row(*cells)
    show(table)


def _headline(found: LargestModel) -> Text:
    text = Text("\n")
    where = f"{found.gpus} x {found.system}"
    if found.largest is None:
        text.append(f"none of these shapes fits on {where}", style="bold")
    else:
        text.append(f"largest dense GPT that fits on {where}", style="bold")
        text.append(f"\n  practical: {_size(found.practical)}", style="bold")
        text.append(f"\n  limit:     {_size(found)}", style="bold")
    room = f"{gib(found.capacity_bytes)} GiB of each accelerator"
    if found.second_capacity_bytes:
        room += f" and {gib(found.second_capacity_bytes)} GiB of host memory"
    batch = f"global batch {found.global_batch_size:,} x {found.seq_len:,} tokens"
    text.append(f"\n{batch}; {room} usable")
    for note in found.notes:
        text.append(f"\n{note}")
    return text


def _size(fit: LargestFit) -> str:
    """The largest shape of one answer and its parameters."""
    if fit.largest is None:
        return "none of these shapes fits"
    return f"{fit.largest.name} with {count(fit.largest.parameters)} parameters"


def _answer(name: str, allowed: str) -> Text:
    text = Text("\n")
    text.append(name, style="bold")
    text.append(f": {allowed}", style="dim")
    return text


def _ladder(found: LargestFit) -> Table:
    largest = None if found.largest is None else found.largest.name
    return table_of(
        found.ladder,
        {
            "model": lambda one: one.name,
            "parameters": lambda one: count(one.parameters),
            "hidden": lambda one: str(one.hidden),
            "layers": lambda one: str(one.layers),
            "heads": lambda one: str(one.heads),
            "ffn": lambda one: str(one.ffn),
            "fits": lambda one: "yes" if one.fits else "no",
            "free GiB": lambda one: (
                "-" if one.spare_bytes is None else f"{one.spare_bytes / GIB:+.2f}"
            ),
            "of": lambda one: one.tightest_tier or "-",
            "most free memory": lambda one: (
                "no legal strategy" if one.roomiest is None else _brief(one.roomiest)
            ),
        },
        style=lambda one: "bold" if one.name == largest else "",
        texts=("of", "most free memory"),
        optional=("heads", "ffn", "of", "free GiB"),
        wraps=("most free memory",),
    )


def _brief(strategy: Mapping[str, object]) -> str:
    """The options of a strategy that decide its memory, in a few words."""
    words = [degrees(strategy)]
    if strategy["recompute"] != "none":
        words.append(f"recompute {strategy['recompute']}")
    away = [part for part in _OFFLOADED if strategy[f"offload_{part}"]]
    if away:
        words.append("offload " + ("all" if len(away) == len(_OFFLOADED) else " and ".join(away)))
    return ", ".join(words)


def _fastest(found: LargestFit) -> list[Text]:
    best = found.best
    if best is None:
        return []
    words = [degrees(best.strategy), f"micro-batch {best.strategy['micro_batch_size']}"]
    words += options_of(best.strategy)
    figures = [
        f"step time {seconds(best.step_time_s)}",
        f"MFU {percent(best.mfu)}",
        f"{best.tokens_per_s:,.0f} tokens/s",
        f"{gib(best.memory_bytes.reserved)} GiB reserved",
    ]
    return [
        Text(f"fastest of {found.candidates:,} strategies: {', '.join(words)}"),
        Text(", ".join(figures)),
        Text(f"{found.judged} shapes evaluated", style="dim"),
    ]

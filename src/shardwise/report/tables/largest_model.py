"""The largest model that fits: the practical answer and the limit, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.planning.search.results import LargestFit, LargestModel, Shape
from shardwise.report.charts.plans import degrees, options_of
from shardwise.report.console import GIB, count, gib, percent, plain_table, seconds, show

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
    heads = (
        "hidden",
        "layers",
        "heads",
        "ffn",
        "fits",
        "free GiB",
        "of",
        "most free memory",
    )
    optional = ("heads", "ffn", "of", "free GiB")
    table = plain_table("model", "parameters", *heads, optional=optional, wraps=heads[-1:])
    for column in table.columns[-2:]:
        column.justify = "left"
    for shape in found.ladder:
        is_largest = found.largest is not None and shape.name == found.largest.name
        table.add_row(*_row(shape), style="bold" if is_largest else "")
    return table


def _row(shape: Shape) -> list[str]:
    spare, roomiest = shape.spare_bytes, "no legal strategy"
    if shape.roomiest is not None:
        roomiest = _brief(shape.roomiest)
    return [
        shape.name,
        count(shape.parameters),
        str(shape.hidden),
        str(shape.layers),
        str(shape.heads),
        str(shape.ffn),
        "yes" if shape.fits else "no",
        "-" if spare is None else f"{spare / GIB:+.2f}",
        shape.tightest_tier or "-",
        roomiest,
    ]


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

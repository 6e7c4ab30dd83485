"""Every figure of a config with how it came to be: given, looked up, calculated or a default."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from shardwise.config.base import ConfigBase, Source, Sourced
from shardwise.config.expressions.formula import kind_at
from shardwise.config.expressions.quantity import Quantity
from shardwise.config.expressions.records import PARAMETERS, Origin, Resolved
from shardwise.config.system import System
from shardwise.cost.overlap import LinkRates
from shardwise.report.console import plain_table, show, written
from shardwise.units import readable

_WORDS = {"name", "description", "sources"}
_VALUE_WIDTH = 24
_DEFAULT = "default"
_BY = "formula or table entry"
Path = tuple[str | int, ...]


def explained_figures(config: ConfigBase, resolved: Resolved) -> Iterator[dict[str, Any]]:
    """Yield a record for each figure of a config, and for each parameter of its file.

    Parameters
    ----------
    resolved
        What is known of how its figures came to be, as `ConfigBase.explained` returns it.

    Yields
    ------
    dict
        `field`, `value` in the unit used inside, `unit` (None for counts and words), `written` as
        people write it, `origin` (given, looked up, calculated, default), `by` (the formula, or
        row and field), `description` and `source` (`kind` and `text`, or None:
        nobody is the source of a default).
    """
    origins = {tuple(map(str, path)): origin for path, origin in resolved.origins.items()}
    for name, figure in resolved.parameters.items():
        own = (PARAMETERS, name)
        yield _record(own, figure.value, figure, _origin_of(origins, own), None)
    set_paths = {path for path, _ in _leaves(_fields(config, only_set=True))}
    for path, value in _leaves(_fields(config)):
        origin = _origin_of(origins, path) if path in set_paths else None
        source = None
        if origin is not None and isinstance(config, Sourced):
            source = config.source_of(".".join(map(str, path)))
        yield _record(path, value, _figure(config, path, value), origin, source)


def print_explained(config: ConfigBase, resolved: Resolved) -> None:
    """Print every figure with its origin and, as numbered notes, its source."""
    table = plain_table(
        *("figure", "value", "origin", _BY, "source"), left=5, wraps=("figure", _BY)
    )
    table.columns[1].no_wrap = False
    table.columns[1].overflow = "fold"
    table.columns[1].max_width = _VALUE_WIDTH
    notes: list[str] = []
    group = ""
    for figure in explained_figures(config, resolved):
        parent, _, leaf = figure["field"].rpartition(".")
        if parent != group:
            group = parent
            table.add_row(Text(parent, style="bold"))
        source = figure["source"]
        if source is not None and source["text"] not in notes:
            notes.append(source["text"])
        origin_note = f"{source['kind']} [{notes.index(source['text']) + 1}]" if source else ""
        table.add_row(
            Text(f"  {leaf}" if parent else leaf),
            Text(written(figure["written"])),
            figure["origin"],
            Text(": ".join(part for part in (figure["by"], figure["description"]) if part)),
            Text(origin_note),
        )
    name = getattr(config, "name", type(config).__name__.lower())
    about = getattr(config, "description", "")
    show(Text(f"{name}: {about}" if about else name, style="bold"), table)
    show(*map(Text, host_memory_lines(config)))
    for number, note in enumerate(notes, start=1):
        show(Text(f"[{number}] {note}"))


def host_memory_lines(config: ConfigBase) -> Iterator[str]:
    """Yield what copies and tensors get of each memory tier in the host, if any."""
    if not isinstance(config, System):
        return
    for tier in config.accelerator.memory:
        if tier.host is None:
            continue
        rates = LinkRates.of(tier)
        h2d, d2h = (readable(float(rate), "byte/s") for rate in (rates.h2d, rates.d2h))
        usable, whole = (readable(size, "bytes") for size in (tier.usable_bytes, tier.capacity))
        yield (
            f"{tier.name}: {h2d} in and {d2h} out per accelerator while all copy pinned memory; "
            f"both at once {tier.host.duplex:g} times the progress of one; {usable} of {whole} "
            "usable"
        )


def _fields(config: ConfigBase, *, only_set: bool = False) -> dict[str, object]:
    return config.model_dump(mode="json", exclude=_WORDS, exclude_unset=only_set)


def _record(
    path: Path,
    value: object,
    figure: Quantity | None,
    origin: Origin | None,
    source: Source | None,
) -> dict[str, Any]:
    units = figure is not None and any(figure.powers)
    return {
        "field": ".".join(map(str, path)),
        "value": value,
        "unit": figure.kind if figure is not None and units else None,
        "written": figure.written() if figure is not None and units else value,
        "origin": origin.how if origin else _DEFAULT,
        "by": origin.by if origin else "",
        "description": origin.description if origin else "",
        "source": {"kind": source.kind, "text": source.text} if source else None,
    }


def _figure(config: ConfigBase, path: Path, value: Any) -> Quantity | None:
    """A number with what its field counts; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Quantity.of(value, kind_at(type(config), path))


def _origin_of(origins: Mapping[tuple[str, ...], Origin], path: Path) -> Origin:
    """That of the longest prefix; what nobody looked up or calculated is `given`."""
    steps = tuple(map(str, path))
    prefixes = (steps[:length] for length in range(len(steps), -1, -1))
    return next((origins[p] for p in prefixes if p in origins), Origin(how="given"))


def _leaves(value: object, *path: str | int) -> Iterator[tuple[Path, object]]:
    """Yield the place and value of everything that holds nothing else."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, *path, key)
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, *path, index)
    else:
        yield path, value

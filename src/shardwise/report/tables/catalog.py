"""The catalog as tables: models, systems, stacks, and every figure of one with its source."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from shardwise.analysis.validated_runs import data_basis
from shardwise.config.base import ConfigBase, Source, Sourced
from shardwise.config.capabilities import Values, described
from shardwise.config.expressions.formula import kind_at
from shardwise.config.expressions.quantity import Quantity
from shardwise.config.expressions.records import PARAMETERS, Origin, Resolved
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.cost.overlap import LinkRates
from shardwise.ops.param_count import count_parameters
from shardwise.report.console import GIB, count, percent, plain_table, show, written
from shardwise.units import format_quantity, readable

_WORDS = {"name", "description", "sources"}
_EXPLAINED_WIDTH = 24
_DEFAULT = "default"
_BY = "formula or table entry"
Path = tuple[str | int, ...]


def explained_figures(config: ConfigBase, resolved: Resolved) -> Iterator[dict[str, Any]]:
    """Yield a record for each figure of a config, and for each parameter of its file.

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
    set_paths = {path for path, _ in _every_leaf(_fields(config, only_set=True))}
    for path, value in _every_leaf(_fields(config)):
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
    table.columns[1].max_width = _EXPLAINED_WIDTH
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


def _every_leaf(value: object, *path: str | int) -> Iterator[tuple[Path, object]]:
    """Yield the place and value of everything that holds nothing else."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _every_leaf(item, *path, key)
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from _every_leaf(item, *path, index)
    else:
        yield path, value


_VALUE_WIDTH = 18
_MOST_FIGURES = 1000
"""Figures of a config that a table shows; --json lists more."""
# More than any accelerator has: files of other systems say so where memory is to be no limit.
_NO_LIMIT = 2.0**50
_THOUSAND, _GIGA, _TERA = 1e3, 1e9, 1e12
MODEL_HEADS = (
    *("model", "parameters", "layers", "hidden", "heads", "kv heads", "ffn", "vocab", "sequence"),
)
SYSTEM_HEADS = (
    *("system", "bf16 TFLOP/s", "fp16 TFLOP/s", "fp8 TFLOP/s", "memory GiB", "memory GB/s"),
    *("domain", "inside GB/s", "beyond GB/s", "power W", "$/GPU h", "priced"),
)
STACK_HEADS = ("stack", "what it is", "release", "runs", "default of", "attention", "gradients")
SYSTEM_NOTES = (
    "domain: accelerators of the innermost network;",
    "inside, beyond: bandwidth per accelerator inside its domain, and to other domains;",
    "$/GPU h: rent, as of the day in priced; without one: set --price or a price book",
)
_NOT_NEEDED = (
    *("fp16 TFLOP/s", "power W", "priced", "domain", "fp8 TFLOP/s", "$/GPU h", "beyond GB/s"),
)
STACK_NOTES = (
    "runs: measured runs of grades A and B that are predicted with the stack; 1 source: all are",
    "one source's, from whose servers its figures cannot be separated;",
    "none (same trainer): runs of other stacks of its trainer; none: no run at all",
)
_DETAILS = re.compile(r" - |; ")
"""What follows it in the description of a stack is more than a line of a list."""
_NOT_FIGURES = {"sources", "name", "description", "release", "capabilities"}


def model_record(model: Model) -> dict[str, Any]:
    """Return a model with its numbers of parameters, as plain values."""
    counted = count_parameters(model)
    return {
        "name": model.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "embedding_parameters": counted.embedding,
        "mtp_parameters": counted.mtp,
        "breakdown": dict(counted.breakdown),
        "model": model.to_dict(),
    }


def stack_record(stack: Stack) -> dict[str, object]:
    """Return a stack with what it rests on, and the systems whose default it is."""
    return stack.to_dict() | asdict(data_basis(stack))


def print_models(models: Sequence[Model], files: Sequence[str] = ()) -> None:
    """Print one line per model, with the file of each if files are passed."""
    named = ("file", *MODEL_HEADS) if files else MODEL_HEADS
    optional = ("kv heads", "vocab", "sequence", "ffn", "heads")
    table = plain_table(*named, left=2 if files else 1, optional=optional)
    for position, model in enumerate(models):
        table.add_row(
            *(Text(file) for file in files[position : position + 1]),
            *map(Text, model_row(model)),
        )
    show(table)


def model_row(model: Model) -> Iterator[str]:
    """Yield the main figures of a model, in the order of `MODEL_HEADS`."""
    yield model.name
    yield count(count_parameters(model).total)
    yield str(model.depth)
    yield str(model.hidden)
    attention = next(iter(model.attentions), None)
    block = next((one for layer in model.layers if (one := layer.mlp or layer.moe)), None)
    yield str(attention.heads) if attention else "-"
    yield str(attention.kv_heads) if attention else "-"
    yield str(block.ffn) if block else "-"
    yield str(model.vocab)
    yield str(model.seq_len or "-")


def print_model(model: Model) -> None:
    """Print a model's figures with their sources, then its parameters by part."""
    print_figures(model)
    counted = count_parameters(model)
    table = plain_table("part", "parameters", "share")
    for part, parameters in counted.breakdown.items():
        table.add_row(part, f"{parameters:,}", percent(parameters / counted.total))
    table.add_section()
    table.add_row("total", f"{counted.total:,}", "")
    table.add_row("of it embeddings", f"{counted.embedding:,}", "")
    table.add_row("active per token", f"{counted.active:,}", "")
    if counted.mtp:
        table.add_row("plus multi-token prediction", f"{counted.mtp:,}", "")
    show(table)


def print_systems(systems: Sequence[System]) -> None:
    """Print one line per system."""
    optional = [_on_two_lines(head) for head in _NOT_NEEDED]
    table = plain_table(*map(_on_two_lines, SYSTEM_HEADS), optional=optional)
    for system in systems:
        table.add_row(*system_row(system))
    show(table, *map(Text, SYSTEM_NOTES))


def _on_two_lines(head: str) -> str:
    """The head of a column with its unit below it."""
    return head if head.startswith("$") else head.replace(" ", "\n")


def _digits(value: float, digits: int = 4) -> str:
    """So many digits, and thousands in full."""
    return f"{value:,.0f}" if value >= _THOUSAND else f"{value:.{digits}g}"


def system_row(system: System) -> Iterator[str]:
    """Yield the main figures of a system, in the order of `SYSTEM_HEADS`."""
    chip, inner = system.accelerator, system.network[0]
    memory = chip.memory[0]
    beyond = len(system.network) - 1
    power, price = system.board_power, system.price
    yield system.name
    for dtype in ("bf16", "fp16", "fp8"):
        rate = chip.matrix.get(dtype)
        yield _digits(rate / _TERA) if rate else "-"
    yield "unlimited" if memory.capacity >= _NO_LIMIT else f"{memory.capacity / GIB:.3g}"
    yield _digits(memory.bandwidth / _GIGA)
    yield str(inner.domain or "all")
    yield _digits(system.tier_bandwidth(0) / _GIGA, 3)
    yield _digits(system.tier_bandwidth(beyond) / _GIGA, 3) if beyond else "-"
    yield f"{power:,.0f}" if power else "-"
    yield f"{price.usd_per_accelerator_hour:.2f}" if price else "-"
    yield price.as_of.isoformat() if price else "-"


def print_stacks(stacks: Sequence[Stack]) -> None:
    """Print one line per stack: its runs, and the accelerators whose default it is."""
    table = plain_table(
        *STACK_HEADS,
        left=7,
        wraps=("what it is", "default of"),
        optional=("gradients", "attention", "release", "runs"),
    )
    for stack in stacks:
        table.add_row(*stack_row(stack))
    show(table, *map(Text, STACK_NOTES))


def stack_row(stack: Stack) -> Iterator[str]:
    """Yield the main facts of a stack, in the order of `STACK_HEADS`."""
    basis = data_basis(stack)
    families = dict.fromkeys(name.split("-", maxsplit=1)[0] for name in basis.default_of)
    yield stack.name
    yield re.split(_DETAILS, stack.description)[0]
    yield stack.release or "-"
    one = ", 1 source" if basis.measured_sources == 1 else ""
    none = "none (same trainer)" if basis.framework_measured else "none"
    yield f"{basis.measured_runs}{one}" if basis.measured_runs else none
    yield " ".join(families) or "-"
    yield stack.attention_kernel
    yield stack.gradient_dtype


def print_stack(stack: Stack) -> None:
    """Print a stack's figures with their sources, its release, and what that can run."""
    print_figures(stack)
    show(Text(f"release: {stack.release or 'not named'}", style="bold"))
    if stack.capabilities is None:
        show(Text("Strategies are not bound by what it can run."))
        return
    table = plain_table("field", "what the release runs", left=2, wraps=("what the release runs",))
    for name, values in stack.capabilities.fields.items():
        table.add_row(name, Text(described(values)))
    show(table)
    table = plain_table("where", "then", "because", left=3, wraps=("where", "then", "because"))
    for one in stack.capabilities.combinations.values():
        if one is not None:
            table.add_row(Text(_settings(one.when)), Text(_settings(one.then)), Text(one.because))
    show(table)
    rules = [word for word, applies in stack.capabilities.rules.items() if applies]
    if rules:
        show(Text(f"rules: {', '.join(rules)}"))
    source = stack.source_of("capabilities")
    if source is not None:
        show(Text(f"{source.kind}: {source.text}"))


def _settings(fields: Mapping[str, Values]) -> str:
    return ", ".join(f"{name} {described(values)}" for name, values in fields.items())


def print_figures(config: Sourced) -> None:
    """Print every value of a config with the origin it has, and the sources as numbered notes.

    Of a system only what it says: its defaults are choices of formulas, not figures of a machine.
    """
    table = plain_table("figure", "value", "origin", left=3, wraps=("figure",))
    table.columns[1].no_wrap = False
    table.columns[1].overflow = "fold"
    table.columns[1].max_width = _VALUE_WIDTH
    notes: dict[str, int] = {}
    group = ""
    every = list(figures_of(config))
    for parent, leaf, value, source in every[:_MOST_FIGURES]:
        if parent != group:
            group = parent
            table.add_row(Text(parent, style="bold"))
        number = notes.setdefault(source.text, len(notes) + 1) if source else 0
        origin = f"{source.kind} [{number}]" if source else ""
        table.add_row(f"  {leaf}" if parent else leaf, value, Text(origin))
    show(Text(f"{config.name}: {config.description}", style="bold"), table)
    if len(every) > _MOST_FIGURES:
        show(Text(f"{len(every) - _MOST_FIGURES:,} more figures: --json lists all"))
    show(*map(Text, host_memory_lines(config)))
    for note, number in notes.items():
        show(Text(f"[{number}] {note}"))


def figures_of(config: Sourced) -> Iterator[tuple[str, str, str, Source | None]]:
    """Yield group, name, value as people write it, and source of each figure of a config."""
    fields = config.model_dump(
        mode="json",
        context={"units": True},
        exclude=_NOT_FIGURES,
        exclude_unset=isinstance(config, System),
    )
    for path, value in _leaves(fields):
        size_of = path[-1].isdigit()  # the size that a measured value belongs to
        parent, leaf = (".".join(part) for part in (path[: -1 - size_of], path[-1 - size_of :]))
        yield parent, leaf, _with_unit(leaf, value), config.source_of(".".join(path))


def _with_unit(name: str, value: object) -> str:
    """A value as people write it; FLOPs with their unit."""
    if name.endswith("_flops") and isinstance(value, float):
        return readable(value, "FLOP/s").removesuffix("/s")
    return written(value)


def _leaves(value: object, *path: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the path and the value of every figure; points of a curve are named by their size.

    Of a table of measured shapes, how many there are and what holds elsewhere.
    """
    if isinstance(value, Mapping) and "points" in value:
        word = "at" if value.get("interpolate") else "from"
        for size, share in value["points"]:
            yield (*path, f"{word} {_size(size, in_bytes='memory' in path)}"), share
    elif isinstance(value, Mapping) and "fallback" in value:
        shapes = sum(len(rows) for rows in value["rows"].values())
        yield (*path, "shapes"), shapes
        yield (*path, "fallback"), value["fallback"]
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, *path, str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, *path, str(index))
    else:
        yield path, value


def _size(size: float, *, in_bytes: bool) -> str:
    """Write the size of an operation, in bytes or FLOPs."""
    written = format_quantity(size, "bytes" if in_bytes else "FLOP/s")
    return written.removesuffix("/s") if isinstance(written, str) else f"{written:.9g}"

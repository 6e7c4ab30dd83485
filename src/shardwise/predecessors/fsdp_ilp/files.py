"""`GPT_modules_info.json`: what the FSDP planner of scyther, and torch after it, know of a model.

Two layouts have the same content: scyther's (sanketpurandare/scyther, commit 9cd9397,
aggregate_stats.py) has the orders at the top and `modstats`; `torch.distributed._tools` nests them
under `mod_order`, has `mod_stats` and calls ac_* sac_*. Bytes and milliseconds. Their parsers sort
nothing out: a name that is missing, a negative size or NaN becomes a wrong plan there and is a
fault here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AliasChoices, Field, Strict

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import ConfigBase
from shardwise.config.files import read_mapping
from shardwise.errors import Fault, InputError, refuse, shorten

# A file of a thousand modules with its trade-off curves is some megabytes large.
_MOST_FILE_BYTES = 256 * 2**20
# Sums of sizes up to here are exact in float64, and far above any machine; a million seconds.
_MOST_BYTES, _MOST_MS = 2**50, 1e9

Size = Annotated[float, Strict(), Field(ge=0, le=_MOST_BYTES)]
Milliseconds = Annotated[float, Strict(), Field(ge=0, le=_MOST_MS)]
Name = Annotated[str, Strict(), Field(min_length=1)]
Names = tuple[Name, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """Modules in forward pre-order, the root first; each array has one entry for each."""

    source: str
    """Where it was read."""
    names: tuple[str, ...]
    post_position: Ints
    """Place of each module in forward post-order."""
    end: Ints
    """One past the last module of its subtree in pre-order."""
    is_leaf: Bools
    parameter_bytes: Floats
    """P, of the subtree."""
    gradient_bytes: Floats
    """G, of the subtree."""
    gradient_total_bytes: Floats
    """TG, gradients there already when the module's backward pass begins."""
    activation_total_bytes: Floats
    """TA, activations alive after the module's forward pass."""
    activation_gradient_bytes: Floats
    """AG, what temporaries grow by inside the module's backward pass."""
    activation_forward_bytes: Floats
    """What the module's forward pass saves, without its output."""
    input_bytes: Floats
    output_bytes: Floats
    forward_ms: Floats
    """F, of the subtree."""
    backward_ms: Floats
    """B, of the subtree."""
    recompute_ms: Floats
    """Time of recomputing the subtree; 0 for leaves."""
    recomputable_bytes: Floats
    """What recomputing could discard of it."""


class _Statistics(ConfigBase):
    """One module."""

    fqn: Name
    is_leaf: Annotated[bool, Strict()] | None = None
    param_per_module: Size
    grad_per_module: Size
    grad_total: Size
    act_total: Size
    act_grad_per_module: Size
    act_fw_per_module: Size = 0
    act_bw_per_module: Size = 0
    input_per_module: Size = 0
    output_per_module: Size = 0
    fw_runtime_per_module: Milliseconds
    bw_runtime_per_module: Milliseconds
    ac_runtime: Milliseconds = Field(
        default=0, validation_alias=AliasChoices("ac_runtime", "sac_runtime")
    )
    ac_memory: Size = Field(default=0, validation_alias=AliasChoices("ac_memory", "sac_memory"))
    # Of selective recompute, which this planner leaves out, and of the parser; not looked at.
    n_segments: Any = None
    slopes: Any = None
    intercepts: Any = None
    breakpoints: Any = None
    tradeoff_curve: Any = None
    index: Any = None
    pos_fw_post_order: Any = None


class _Orders(ConfigBase):
    """When the hooks of each module were called."""

    fw_pre_order: Annotated[Names, Field(min_length=1)]
    fw_post_order: Names
    bw_pre_order: Names | None = None
    bw_post_order: Names | None = None


class _Flat(_Orders):
    """The file as scyther writes it."""

    modstats: tuple[_Statistics, ...]


class _Nested(ConfigBase):
    """The file as torch writes it."""

    mod_order: _Orders
    mod_stats: tuple[_Statistics, ...]


_OF_FLAT = frozenset({"modstats", "fw_pre_order", "fw_post_order"})
_OF_NESTED = frozenset({"mod_stats", "mod_order"})


def looks_like(data: Mapping[str, object]) -> bool:
    """Return whether a mapping is module information, by keys that no other file has."""
    return bool(data.keys() & (_OF_FLAT | _OF_NESTED))


def read_module_info(path: str | Path) -> ModuleInfo:
    """Read a file of module information."""
    return module_info(read_mapping(path, most_bytes=_MOST_FILE_BYTES), source=str(path))


def module_info(data: Mapping[str, object], *, source: str = "module info") -> ModuleInfo:
    """Check module information in either layout and put it into forward pre-order."""
    if not looks_like(data):
        problem = "is no module information: it has neither modstats and fw_pre_order nor mod_stats"
        raise InputError(Fault(source=source, problem=problem))
    if data.keys() & _OF_NESTED:
        nested = _Nested.validated(data, source=source)
        orders, statistics, place = nested.mod_order, nested.mod_stats, "mod_order."
    else:
        flat = _Flat.validated(data, source=source)
        orders, statistics, place = flat, flat.modstats, ""
    for faults in (
        _order_faults(orders, statistics, place),
        _tree_faults(orders.fw_pre_order, place),
        _post_faults(orders, place),
    ):  # each needs those before it to hold
        refuse(Fault.of(field, value, problem, source) for field, value, problem in faults)
    return _arranged(source, orders, statistics)


def _order_faults(
    orders: _Orders, statistics: Sequence[_Statistics], place: str
) -> Iterator[tuple[str, str, str]]:
    """Names that the orders and the statistics do not share, or have twice."""
    stats = "mod_stats" if place else "modstats"
    known = {one.fqn for one in statistics}
    yield from _repeated(stats, [one.fqn for one in statistics])
    for field in ("fw_pre_order", "fw_post_order"):
        order: list[str] = getattr(orders, field)
        yield from _repeated(place + field, order)
        for name in sorted(known - set(order)):
            yield stats, name, f"has statistics, but is not in {place}{field}"
    # The backward orders are never used, and hooks do not see every module's backward pass.
    for field in ("fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"):
        for name in sorted(set(getattr(orders, field) or ()) - known):
            yield place + field, name, f"has no statistics in {stats}"


def _repeated(field: str, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield field, name, "is there twice"
        seen.add(name)


def _tree_faults(names: Sequence[str], place: str) -> Iterator[tuple[str, str, str]]:
    """Names outside the root, and subtrees that other modules interrupt."""
    field, root, known = f"{place}fw_pre_order", names[0], set(names)
    open_ = [root]
    for name in names[1:]:
        if not _below(name, root):
            yield field, name, f"is not below the root {shorten(root)}, which comes first"
            continue
        while open_ and not _below(name, open_[-1]):
            open_.pop()
        for ancestor in _prefixes(name):
            if ancestor in known and ancestor not in open_:
                yield (
                    field,
                    name,
                    f"is not called inside {shorten(ancestor)}, but apart from its subtree",
                )
                break
        open_.append(name)


def _post_faults(orders: _Orders, place: str) -> Iterator[tuple[str, str, str]]:
    """Modules that return at another time than nested calls in this pre-order do."""
    ends, depth = _ends(orders.fw_pre_order)
    expected = dict(zip(orders.fw_pre_order, (ends - 1 - depth).tolist(), strict=True))
    for found, name in enumerate(orders.fw_post_order):
        if found != expected[name]:
            where = f"but calls nested as in {place}fw_pre_order have it at {expected[name]}"
            yield f"{place}fw_post_order", name, f"is at place {found}, {where}"
            return  # all after it may be wrong


def _below(name: str, ancestor: str) -> bool:
    # Fault 1.8.13 of the original: it looks for "ancestor." anywhere in the name, so that "a.b.c"
    # would be below "b" as well. In a file whose names all begin with the root's, as here, the two
    # tests tell apart only names that repeat the root's own.
    return name.startswith(ancestor + ".")


def _prefixes(name: str) -> Iterator[str]:
    """The dotted ancestors of a name, nearest first; some are no modules with a forward pass."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _arranged(source: str, orders: _Orders, statistics: Sequence[_Statistics]) -> ModuleInfo:
    names = tuple(orders.fw_pre_order)
    by_name = {one.fqn: one for one in statistics}
    rows = [by_name[name] for name in names]
    post = {name: place for place, name in enumerate(orders.fw_post_order)}
    end, _ = _ends(names)

    def column(field: str) -> Floats:
        return np.array([getattr(row, field) for row in rows], dtype=np.float64)

    childless = end == np.arange(len(names)) + 1
    said = [row.is_leaf for row in rows]
    leaves = [c if own is None else own for own, c in zip(said, childless.tolist(), strict=True)]
    return ModuleInfo(
        source=source,
        names=names,
        post_position=np.array([post[name] for name in names], dtype=np.int64),
        end=end,
        is_leaf=np.array(leaves, dtype=np.bool_),
        parameter_bytes=column("param_per_module"),
        gradient_bytes=column("grad_per_module"),
        gradient_total_bytes=column("grad_total"),
        activation_total_bytes=column("act_total"),
        activation_gradient_bytes=column("act_grad_per_module"),
        activation_forward_bytes=column("act_fw_per_module"),
        input_bytes=column("input_per_module"),
        output_bytes=column("output_per_module"),
        forward_ms=column("fw_runtime_per_module"),
        backward_ms=column("bw_runtime_per_module"),
        recompute_ms=column("ac_runtime"),
        recomputable_bytes=column("ac_memory"),
    )


def _ends(names: Sequence[str]) -> tuple[Ints, Ints]:
    """One past the last module of each subtree, and how many modules each lies in."""
    ends = np.full(len(names), len(names), dtype=np.int64)
    depths = np.zeros(len(names), dtype=np.int64)
    open_: list[int] = []
    for place, name in enumerate(names):
        while open_ and not _below(name, names[open_[-1]]):
            ends[open_.pop()] = place
        depths[place] = len(open_)
        open_.append(place)
    return ends, depths

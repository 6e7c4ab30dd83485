"""Short names of the figures of a system: `nvlink.bandwidth`, `hbm.capacity`, `matrix.bf16`.

Tiers and memories go by the names that the system gives them, in lower case with dashes; `inner`
and `outer` are its first and last network tier. A name may stand for several figures: `matrix` for
the rates of all types, `nvlink.latency` for all latencies of that tier.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, figures_of
from shardwise.errors import Fault, InputError, nearest

__all__ = ["Figure", "canonical", "figure_names", "figures_named", "influencing_figures"]

_BETTER_LESS = frozenset(
    {
        "latency",
        "latency_per_member",
        "launch",
        "fill_depth",
        "fill_tiles",
        "longest_weight",
        "backward_ratio",
        "processor_share",
        "scale",
        "multiprocessors",
        "usd_per_accelerator_hour",
        "power",
        "board_power",
    }
)
"""Figures of which less is better, by the last word of where they stand.

At the same peak fewer multiprocessors are filled sooner.
"""
_UNITS = {
    "bandwidth": "byte/s",
    "capacity": "bytes",
    "matrix": "FLOP/s",
    "vector": "FLOP/s",
    "latency": "seconds",
    "latency_per_member": "seconds",
    "launch": "seconds",
    "power": "watts",
    "board_power": "watts",
}
_LEFT_OUT = ("usd_per_accelerator_hour", "board_power", "power", "offset")
"""What no time depends on, and what `scale` stands for."""
_LATENCIES = ("latency", "latency_per_member")
_RATES = ("matrix", "vector")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One name and the numbers of a system it stands for."""

    name: str
    paths: tuple[FigurePath, ...]
    unit: str | None
    """A key of `units.UNITS`; None for counts and shares."""

    @property
    def better_less(self) -> bool:
        """Whether less of it is better."""
        return self.paths[0][-1] in _BETTER_LESS


def figure_names(system: System) -> Mapping[str, Figure]:
    """Every name that stands for figures of a system; those of one figure come first."""
    single: dict[str, list[FigurePath]] = {}
    groups: dict[str, list[FigurePath]] = {}
    for path in figures_of(system):
        first, *others = _names_of(system, path)
        single.setdefault(first, []).append(path)
        for name in others:
            groups.setdefault(name, []).append(path)
    return {
        name: Figure(name=name, paths=tuple(paths), unit=_unit_of(paths[0]))
        for name, paths in {**single, **groups}.items()
    }


def influencing_figures(system: System) -> tuple[Figure, ...]:
    """All figures that times or room depend on, under one name each.

    Those of the collectives of a tier are taken together by what they are.
    """
    known = figure_names(system)
    names: dict[str, None] = {}
    for path in figures_of(system):
        if path[-1] not in _LEFT_OUT:
            own, *others = _names_of(system, path)
            names[others[0] if "collectives" in path else own] = None
    return tuple(known[name] for name in names)


def figures_named(system: System, name: str) -> Figure:
    """The figures of a name, or of several joined by `+`.

    Raises
    ------
    InputError
        If the system has none of that name.
    """
    known = figure_names(system)
    parts = [canonical(part) for part in name.split("+")]
    for part in parts:
        if part not in known:
            whose = f"system {system.name} has no such figure"
            allowed = f"; such as {', '.join(list(known)[:3])}" if not nearest(part, known) else ""
            problem = f"{whose}{nearest(part, known) or allowed}"
            raise InputError(Fault(source="vary", field=part, problem=problem))
    paths = tuple(dict.fromkeys(path for part in parts for path in known[part].paths))
    units = {known[part].unit for part in parts}
    return Figure(
        name="+".join(parts), paths=paths, unit=units.pop() if len(units) == 1 else "mixed"
    )


def canonical(name: str) -> str:
    """A name as it is known: lower case, dashes for spaces."""
    return name.strip().lower().replace(" ", "-")


def _unit_of(path: FigurePath) -> str | None:
    """Unit of a figure: a key of `units.UNITS`; None for counts and shares."""
    return _UNITS.get(str(path[1 if path[1:2] and path[1] in _RATES else -1]))


def _names_of(system: System, path: FigurePath) -> Iterator[str]:
    """Names of one figure, from its own to those it shares with others."""
    match path:
        case ("accelerator", "memory", int(place), word):
            yield f"{canonical(system.accelerator.memory[place].name)}.{word}"
        case ("accelerator", "attention", word, *_):
            yield f"attention.{word}"
        case ("accelerator", "memory_bound_class", kind, word):
            yield f"memory_bound.{kind}.{word}"
        case ("accelerator", "matrix" | "vector" as table, kind):
            yield f"{table}.{kind}"
            yield str(table)
        case ("accelerator", "matmul", kind, word):
            yield f"matmul.{kind}.{word}"
            yield f"matmul.{word}"
        case ("network", int(place), *rest):
            for tier in _tiers(system, place):
                yield from (f"{tier}.{word}" for word in _of_tier(rest))
        case ("price", _):
            yield "price"
        case _:
            yield ".".join(str(part) for part in path if part != "accelerator")


def _tiers(system: System, place: int) -> Iterator[str]:
    yield canonical(system.network[place].name)
    if place == 0:
        yield "inner"
    if place == len(system.network) - 1:
        yield "outer"


def _of_tier(rest: list[Any]) -> Iterator[str]:
    match rest:
        case ["links_per_node"]:
            yield "links"
        case ["collectives", kind, word, *_]:
            yield f"{kind}.{word}"
            yield "latency" if word in _LATENCIES else str(word)
        case _:
            yield ".".join(map(str, rest))

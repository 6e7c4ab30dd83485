"""Short names of the figures of a system: `nvlink.bandwidth`, `hbm.capacity`, `matrix.bf16`.

Tiers and memories have the names of the system, in lower case with dashes; `inner` and `outer` are
its first and last network tier. A name may refer to several figures: `matrix` to the rates of all
types, `nvlink.latency` to all latencies of that tier.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, figures_of
from shardwise.errors import InputError, nearest

_LOWER_IS_BETTER = frozenset(
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
        "shared_by",
        "reserved",
    }
)
"""Figures that are better when lower, by the last word of their path.

At the same peak, fewer multiprocessors fill sooner.
"""
_HARDWARE = frozenset(
    {"bandwidth", "capacity", "latency", "latency_per_member", "links_per_node"} | {"shared_by"}
)
"""Figures of the hardware by the last word of their path, in addition to rates of matrix and
vector units; all others are constants of the model that are fitted to measurements."""
_UNITS = {
    "bandwidth": "byte/s",
    "capacity": "bytes",
    "reserved": "bytes",
    "matrix": "FLOP/s",
    "vector": "FLOP/s",
    "latency": "seconds",
    "latency_per_member": "seconds",
    "launch": "seconds",
    "power": "watts",
    "board_power": "watts",
}
_WITHOUT_INFLUENCE = ("usd_per_accelerator_hour", "board_power", "power", "offset")
"""Figures that no time depends on, or that `scale` replaces."""
_LATENCIES = ("latency", "latency_per_member")
_RATES = ("matrix", "vector")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A name and the numbers of a system that it refers to."""

    name: str
    paths: tuple[FigurePath, ...]
    unit: str | None
    """A key of `units.UNITS`; None for counts and shares."""

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower value is better."""
        return self.paths[0][-1] in _LOWER_IS_BETTER

    @property
    def is_hardware(self) -> bool:
        """Whether a buyer can change it: a bandwidth, latency, capacity, rate or number of links.

        The others are constants of the model: efficiencies, launches, shapes of curves, and the
        multiprocessors that share a peak.
        """
        path = self.paths[0]
        return self.is_rate or (path[-1] in _HARDWARE and "bulk" not in path)

    @property
    def is_rate(self) -> bool:
        """Whether it is a rate of the matrix or vector units, for one type or all."""
        return self.paths[0][1] in _RATES


def figure_names(system: System) -> Mapping[str, Figure]:
    """Return every name of figures of a system; names of one figure come first."""
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
    """Return all figures that times or memory depend on, under one name each.

    Figures of all collectives of a tier share a name.
    """
    known = figure_names(system)
    names: dict[str, None] = {}
    for path in figures_of(system):
        if path[-1] not in _WITHOUT_INFLUENCE:
            own, *others = _names_of(system, path)
            names[others[0] if "collectives" in path else own] = None
    return tuple(known[name] for name in names)


def figures_named(system: System, name: str) -> Figure:
    """Return the figures of a name, or of several joined by `+`."""
    known = figure_names(system)
    parts = [canonical(part) for part in name.split("+")]
    for part in parts:
        if part not in known:
            hint = nearest(part, known) or f"; such as {', '.join(list(known)[:3])}"
            problem = f"system {system.name} has no such figure{hint}"
            raise InputError.at("vary", problem, part)
    paths = tuple(dict.fromkeys(path for part in parts for path in known[part].paths))
    units = {known[part].unit for part in parts}
    return Figure(
        name="+".join(parts), paths=paths, unit=units.pop() if len(units) == 1 else "mixed"
    )


def canonical(name: str) -> str:
    """Return the canonical form of a name: lower case, dashes for spaces."""
    return name.strip().lower().replace(" ", "-")


def _unit_of(path: FigurePath) -> str | None:
    """Unit of a figure: a key of `units.UNITS`; None for counts and shares."""
    return _UNITS.get(str(path[1 if path[1:2] and path[1] in _RATES else -1]))


def _names_of(system: System, path: FigurePath) -> Iterator[str]:
    """Names of one figure: first its own, then those it shares with others."""
    match path:
        case ("accelerator", "memory", int(place), word) | (
            "accelerator",
            "memory",
            int(place),
            "host",
            word,
        ):
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
                yield from (f"{tier}.{word}" for word in _tier_names(rest))
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


def _tier_names(rest: list[Any]) -> Iterator[str]:
    match rest:
        case ["links_per_node"]:
            yield "links"
        case ["collectives", kind, word, *_]:
            yield f"{kind}.{word}"
            yield "latency" if word in _LATENCIES else str(word)
        case _:
            yield ".".join(map(str, rest))

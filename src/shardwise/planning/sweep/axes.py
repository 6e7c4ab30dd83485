"""Axes of a sweep, read from names and values as users write them.

Values are `0.5x,1x,2x`, `450 GB/s`, `64..512` or `1..4:1`. Figures of a system have short names:
`nvlink.bandwidth`, `hbm.capacity`, `matrix.bf16`. Tiers and memories have the names of the system,
in lower case with dashes; `inner` and `outer` are its first and last network tier. A name may refer
to several figures: `matrix` to the rates of all types, `nvlink.latency` to all latencies of that
tier.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardwise.config.model import Model
from shardwise.config.plain import joined
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, figures_of, with_figures
from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.planning.sweep.changes import (
    MODEL_FIGURES,
    with_domain,
    with_links_per_accelerator,
    with_node,
)
from shardwise.planning.sweep.results import Axis
from shardwise.units import EXAMPLES, UNITS, parse_quantity, read_number, readable

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
_OF_THE_HOST = ("memory_bandwidth", "core_bandwidth", "nvme_read", "nvme_write")
_HARDWARE = frozenset(
    {"bandwidth", "capacity", "latency", "latency_per_member", "links_per_node"}
    | {"shared_by", "cores", *_OF_THE_HOST}
)
"""Figures of the hardware by the last word of their path, in addition to rates of matrix and
vector units; all others are constants of the model that are fitted to measurements."""
_UNITS = {
    "bandwidth": "byte/s",
    **dict.fromkeys(_OF_THE_HOST, "byte/s"),
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


FACTOR = "x"
_RANGE = re.compile(r"(.+?)\s*\.\.\s*(.+?)(?:\s*:\s*(.+?))?")
_NUMBER = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(.*)")
_MOST = 10_000
_LARGEST = 1e300
# Steps of a range that end this close to its end reach it.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisValue:
    """One value of an axis."""

    number: float
    """In the internal unit, or a factor on the figure of the system."""
    factor: bool
    label: str
    """As written."""

    def of(self, figure: float) -> float:
        """Return the value that it changes a figure to."""
        return figure * self.number if self.factor else self.number


def parse_values(name: str, values: object, unit: str | None) -> tuple[AxisValue, ...]:
    """Read the values of one axis.

    Parameters
    ----------
    values
        Text, numbers in the internal unit, or a list of these.
    unit
        A key of `units.UNITS`, or None for counts and shares.
    """
    found: list[AxisValue] = []
    for item in _items(values):
        try:
            found += _read(item, unit)
        except ValueError as error:
            raise InputError.of(name, item, str(error), "vary") from None
    if not found:
        raise InputError.of(name, values, "has no value to try", "vary")
    return tuple({(one.number, one.factor): one for one in reversed(found)}.values())[::-1]


def _items(values: object) -> Sequence[object]:
    if isinstance(values, str):
        return [part.strip() for part in values.split(",") if part.strip()]
    values = values.tolist() if hasattr(values, "tolist") else values  # an array of numpy
    if isinstance(values, Iterable):
        return [item for one in values for item in _items(one)]
    return [values]


def _read(item: object, unit: str | None) -> list[AxisValue]:
    if isinstance(item, bool) or not isinstance(item, (int, float, str)):
        raise ValueError(_hint(unit))  # noqa: TRY004 - becomes a fault
    if not isinstance(item, str):
        if not abs(item) < _LARGEST:
            raise ValueError(f"is no number, or too large; {_hint(unit)}")
        return [
            AxisValue(number=float(item), factor=False, label=_label_of_values(float(item), unit))
        ]
    match = _RANGE.fullmatch(item)
    if match is None:
        return [_one(item, unit)]
    low, high, step = (
        None if part is None else _one(_with_unit(part, match[2]), unit) for part in match.groups()
    )
    return _expanded(low, high, step, unit)


def _with_unit(text: str, other: str) -> str:
    """A number, with the unit of the end of its range if it has none."""
    number, tail = _NUMBER.fullmatch(text.strip()), _NUMBER.fullmatch(other.strip())
    if number is not None and not number[2] and tail is not None:
        return f"{number[1]}{tail[2]}" if tail[2] == FACTOR else f"{number[1]} {tail[2]}".strip()
    return text


def _one(text: str, unit: str | None) -> AxisValue:
    """One value: a factor, or a quantity."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(_hint(unit))
    number, tail = match.groups()
    if tail == FACTOR:
        return AxisValue(number=_float(number, unit), factor=True, label=text.strip())
    if unit is None:
        if tail:
            raise ValueError(_hint(unit))
        return AxisValue(number=_float(number, unit), factor=False, label=text.strip())
    if not tail:
        raise ValueError(f"has no unit: {_hint(unit)}")
    if unit not in UNITS:
        raise ValueError(_hint(unit))
    return AxisValue(number=parse_quantity(text, unit), factor=False, label=text.strip())


def _float(number: str, unit: str | None) -> float:
    found = read_number(number)
    if found is None:
        raise ValueError(_hint(unit))
    return found


def _hint(unit: str | None) -> str:
    examples = EXAMPLES | {"bytes": "96 GiB", "byte/s": "900 GB/s", "FLOP/s": "2 PFLOP/s"}
    if unit is None:
        return "must be a number, a range such as 64..512, or a factor such as 2x"
    if unit not in UNITS:
        return "names figures of several units; use factors, as in 2x"
    return f"must be a quantity as in {examples[unit]}, or a factor as in 2x"


def _expanded(
    low: AxisValue | None, high: AxisValue | None, step: AxisValue | None, unit: str | None
) -> list[AxisValue]:
    """Values of a range: doubled, or in steps."""
    assert low is not None  # noqa: S101 - the pattern has both ends
    assert high is not None  # noqa: S101
    if low.factor is not high.factor or (step is not None and step.factor is not low.factor):
        raise ValueError("a range has two ends of the same kind, as in 0.5x..4x")
    if not 0 < low.number <= high.number or (step is not None and step.number <= 0):
        raise ValueError("a range goes from a number above 0 to a larger one")
    most = high.number * (1 + _ROUNDING)
    if step is not None and (most - low.number) / step.number >= _MOST:
        raise ValueError(f"a range has at most {_MOST} values")
    numbers = [low.number]
    while True:
        following = numbers[-1] * 2 if step is None else low.number + len(numbers) * step.number
        if following > most:
            break
        numbers.append(following)
    shown = FACTOR if low.factor else unit
    return [
        AxisValue(number=n, factor=low.factor, label=_label_of_values(n, shown)) for n in numbers
    ]


def _label_of_values(number: float, unit: str | None) -> str:
    if unit is None or unit == FACTOR:
        return f"{number:.6g}{unit or ''}"
    return readable(number, unit, 4)


Kind = Literal["figure", "structure", "model", "strategy"]
_NICS, _NODE, _DOMAIN = "nics", "node", "domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedAxis:
    """One axis."""

    name: str
    kind: Kind
    unit: str | None
    values: tuple[Any, ...]
    """`AxisValue`s of figures, structure and models; else values of the field of the strategy."""

    def described(self, systems: Sequence[System]) -> Axis:
        """Return the axis for results."""
        labels = [v.label if isinstance(v, AxisValue) else _label(v) for v in self.values]
        unit = FACTOR if self.as_factor(systems) else self.unit
        kind: Any = "system" if self.kind in ("figure", "structure") else self.kind
        return Axis(name=self.name, kind=kind, unit=unit, labels=tuple(labels))

    def as_factor(self, systems: Sequence[System]) -> bool:
        """Whether results show factors, because the name refers to several different figures."""
        if self.kind != "figure" or not all(value.factor for value in self.values):
            return False
        known = [figures_of(system) for system in systems]
        return any(
            len({figures[path] for path in figures_named(system, self.name).paths}) > 1
            for figures, system in zip(known, systems, strict=True)
        )

    def figures(self, system: System, position: int) -> dict[FigurePath, float]:
        """Return the figures of a system at one of the values."""
        known, value = figures_of(system), self.values[position]
        return {path: value.of(known[path]) for path in figures_named(system, self.name).paths}

    def changed_system(self, system: System, position: int) -> tuple[System, list[str]]:
        """Return the system at one of the values, and notes on what else changed."""
        value: AxisValue = self.values[position]
        try:
            if self.name == _NICS:
                tier = _card_tier(system)
                links = _links_per_accelerator(system, tier)
                return with_links_per_accelerator(system, tier, value.of(links)), []
            if self.name == _NODE:
                changed, notes = with_node(system, _count(value, system.node.accelerators))
                return System.validated(changed.to_dict()), notes
            tier = _tier_of(system, self.name)
            return with_domain(system, tier, _count(value, system.network[tier].domain))
        except (ValueError, InputError) as error:
            raise InputError.of(
                self.name, value.label, f"on {system.name}: {error}", "vary"
            ) from None

    def changed_model(self, model: Model, position: int) -> Model:
        """Return the model at one of the values."""
        value: AxisValue = self.values[position]
        now = model.seq_len if self.name == "seq_len" else getattr(model, self.name)
        try:
            changed = MODEL_FIGURES[self.name](model, _count(value, now))
            return Model.validated(changed.to_dict())
        except (ValueError, InputError) as error:
            raise InputError.of(
                self.name, value.label, f"of {model.name}: {error}", "vary"
            ) from None

    def number(self, system: System, model: Model, position: int, *, as_factor: bool) -> Any:
        """Return the value at a point, in the unit of the axis."""
        value = self.values[position]
        if self.kind == "strategy":
            return value
        if self.kind == "model":
            now = model.seq_len if self.name == "seq_len" else getattr(model, self.name)
            return round(value.of(now or 0))
        if self.name == _NICS:
            return value.of(_links_per_accelerator(system, _card_tier(system)))
        if self.name == _NODE:
            return round(value.of(system.node.accelerators))
        if self.kind == "structure":
            return round(value.of(system.network[_tier_of(system, self.name)].domain or 0))
        return value.number if as_factor else next(iter(self.figures(system, position).values()))


def varied_axes(vary: object, systems: Sequence[System]) -> tuple[VariedAxis, ...]:
    """Read the axes of a sweep."""
    if not isinstance(vary, Mapping) or not all(isinstance(name, str) for name in vary):
        problem = "must be values by name, as in {'nvlink.bandwidth': '1x,2x'}"
        raise InputError(Fault(source="vary", value=vary, has_value=True, problem=problem))
    axes = tuple(_axis(name, values, systems) for name, values in vary.items())
    _refuse_shared_figures(axes, systems)
    return axes


def check_values(axes: Sequence[VariedAxis], model: Model, systems: Sequence[System]) -> None:
    """Refuse values that the model, or one of the systems, cannot have."""
    for axis in axes:
        for position in range(len(axis.values)):
            if axis.kind == "model":
                axis.changed_model(model, position)
            for system in systems:
                if axis.kind == "structure":
                    axis.changed_system(system, position)
                elif axis.kind == "figure":
                    _check_figure(axis, system, position)


def _axis(name: str, values: object, systems: Sequence[System]) -> VariedAxis:
    plain = canonical(name)
    field = SHORT_NAMES.get(plain, plain.replace("-", "_"))
    if field in MODEL_FIGURES:
        return VariedAxis(
            name=field, kind="model", unit=None, values=parse_values(field, values, None)
        )
    if field in SPACE_FIELDS:
        return VariedAxis(
            name=field, kind="strategy", unit=None, values=_field_values(field, values)
        )
    if plain in (_NICS, _NODE) or plain.split(".")[-1] == _DOMAIN:
        for system in systems:
            _tier_of(system, plain)
        parsed = parse_values(plain, values, None)
        return VariedAxis(name=plain, kind="structure", unit=None, values=parsed)
    known = {part for system in systems for part in figure_names(system)}
    others = (*MODEL_FIGURES, *SPACE_FIELDS, *SHORT_NAMES, _NICS, _NODE, _DOMAIN)
    for part in plain.split("+"):
        if part not in known:
            nearest_name = nearest(part, [*known, *others])
            hint = nearest_name or "; `shardwise sweep --figures` lists them all"
            raise InputError.at("vary", f"no such figure{hint}", part)
    figures = [figures_named(system, plain) for system in systems]
    parsed = parse_values(plain, values, figures[0].unit)
    _refuse_number_for_several(plain, parsed, systems)
    return VariedAxis(name=plain, kind="figure", unit=figures[0].unit, values=parsed)


def _field_values(field: str, values: object) -> tuple[object, ...]:
    """Values of a field of the strategy, read like those of a space."""
    try:
        parsed = getattr(Space.validated({field: values}), field)
    except InputError as error:
        raise InputError([replace(fault, source="vary") for fault in error.faults]) from None
    if parsed == "all":
        raise InputError.of(field, values, "list the values to try", "vary")
    return parsed if isinstance(parsed, tuple) else (parsed,)


def _refuse_number_for_several(
    name: str, values: Sequence[AxisValue], systems: Sequence[System]
) -> None:
    """Refuse a number for a name that refers to several figures."""
    plain = next((value for value in values if not value.factor), None)
    if plain is None:
        return
    for system in systems:
        for part in name.split("+"):
            count = len(figures_named(system, part).paths)
            if count > 1:
                problem = (
                    f"{part} refers to {count} figures of {system.name}; use factors, as in 2x"
                )
                raise InputError.of(name, plain.label, problem, "vary")


def _refuse_shared_figures(axes: Sequence[VariedAxis], systems: Sequence[System]) -> None:
    for system in systems:
        owner: dict[FigurePath, str] = {}
        for axis in axes:
            for path in _paths(axis, system):
                if path in owner:
                    problem = f"has a figure in common with {owner[path]}; vary one of the two"
                    raise InputError.at("vary", problem, axis.name)
                owner[path] = axis.name


def _paths(axis: VariedAxis, system: System) -> Sequence[FigurePath]:
    """Figures of a system that an axis determines."""
    if axis.kind == "figure":
        return figures_named(system, axis.name).paths
    if axis.kind != "structure" or axis.name == _NODE:
        return ()
    if axis.name == _NICS:
        return (("network", _card_tier(system), "links_per_node"),)
    return (("network", _tier_of(system, axis.name), _DOMAIN),)


def _check_figure(axis: VariedAxis, system: System, position: int) -> None:
    """Refuse a value that the system cannot have."""
    changed = with_figures(system, axis.figures(system, position))
    try:
        System.validated(changed.model_dump(mode="json", warnings=False))
    except InputError as error:
        fault = error.faults[0]
        problem = f"on {system.name}: {fault.field}: {fault.problem}"
        raise InputError.of(axis.name, axis.values[position].label, problem, "vary") from None


def _tier_of(system: System, name: str) -> int:
    """The tier of a name such as `nvlink.domain`; `domain` alone means the first."""
    tier = name.rpartition(".")[0] or "inner"
    names = [canonical(described.name) for described in system.network]
    if tier == "inner" or name in (_NICS, _NODE):
        return 0
    if tier == "outer":
        return len(names) - 1
    if tier not in names:
        problem = f"system {system.name} has no tier {tier}; it has {', '.join(names)}"
        raise InputError.at("vary", problem, name)
    return names.index(tier)


def _card_tier(system: System) -> int:
    """The tier of the network cards: the outermost with `links_per_node`, else the last."""
    counted = [n for n, tier in enumerate(system.network) if tier.links_per_node is not None]
    return counted[-1] if counted else len(system.network) - 1


def _links_per_accelerator(system: System, tier: int) -> float:
    links = system.network[tier].links_per_node
    return 1.0 if links is None else links / system.node.accelerators


def _count(value: AxisValue, now: int | None) -> int:
    """The count that a value changes the current one to."""
    if now is None and value.factor:
        raise ValueError("there is no current number to multiply")
    number = value.of(now or 0)
    if number < 1 or number % 1:
        raise ValueError(f"{number:g} must be a whole number of at least 1")
    return int(number)


def _label(value: object) -> str:
    """A value of a field as users write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return joined(value)
    return str(getattr(value, "name", "none" if value is None else value))


def figure_list(system: System) -> list[dict[str, Any]]:
    """Return what can vary in a system: names, values (None where they differ), units, counts."""
    known = figures_of(system)
    cards = _links_per_accelerator(system, _card_tier(system))
    structure = {
        **{
            f"{canonical(tier.name)}.{_DOMAIN}": tier.domain
            for tier in system.network
            if tier.domain is not None
        },
        _NODE: system.node.accelerators,
        _NICS: cards,
    }
    rows = [
        {"figure": name, "value": value, "unit": None, "figures": 1}
        for name, value in structure.items()
    ]
    for name, figure in figure_names(system).items():
        values = {known[path] for path in figure.paths}
        value = values.pop() if len(values) == 1 else None
        count = len(figure.paths)
        rows.append({"figure": name, "value": value, "unit": figure.unit, "figures": count})
    return rows


_KINDS = ("figure", "structure")


def edited(system: System, changes: Mapping[str, str]) -> System:
    """Return a system with other figures."""
    for axis in varied_axes(dict(changes), [system]) if changes else ():
        if axis.kind not in _KINDS:
            raise InputError.of(axis.name, changes.get(axis.name), "is no figure of a system")
        if len(axis.values) != 1:
            raise InputError.of(axis.name, changes.get(axis.name), "must be one value")
        if axis.kind == "structure":
            system = axis.changed_system(system, 0)[0]
        else:
            system = System.validated(with_figures(system, axis.figures(system, 0)).to_dict())
    return system

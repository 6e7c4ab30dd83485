"""Axes of a sweep, read from names and values as users write them."""

from collections.abc import Mapping, Sequence
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
from shardwise.planning.sweep.figures import canonical, figure_names, figures_named
from shardwise.planning.sweep.results import Axis
from shardwise.planning.sweep.values import FACTOR, AxisValue, parse_values

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

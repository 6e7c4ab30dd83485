"""Axes of a sweep: what is varied, read from names and values as people write them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardwise.config.model import Model
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, figures_of, with_figures
from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.planning.sweep.architectures import MODEL_FIGURES
from shardwise.planning.sweep.figures import canonical, figure_names, figures_named
from shardwise.planning.sweep.results import Axis
from shardwise.planning.sweep.structure import with_domain, with_links_per_accelerator, with_node
from shardwise.planning.sweep.values import FACTOR, Given, given_values

__all__ = ["Varied", "check_values", "figure_list", "varied_axes"]

Kind = Literal["figure", "structure", "model", "strategy"]
_NICS, _NODE, _DOMAIN = "nics", "node", "domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """One axis."""

    name: str
    kind: Kind
    unit: str | None
    values: tuple[Any, ...]
    """Of figures, structure and models `values.Given`, of fields of the strategy themselves."""

    def described(self, systems: Sequence[System]) -> Axis:
        """The axis as results name it."""
        labels = [v.label if isinstance(v, Given) else _told(v) for v in self.values]
        unit = FACTOR if self.as_factor(systems) else self.unit
        kind: Any = "system" if self.kind in ("figure", "structure") else self.kind
        return Axis(name=self.name, kind=kind, unit=unit, labels=tuple(labels))

    def as_factor(self, systems: Sequence[System]) -> bool:
        """Whether its values are told as factors: on figures that differ among themselves."""
        if self.kind != "figure" or not all(value.factor for value in self.values):
            return False
        known = [figures_of(system) for system in systems]
        return any(
            len({figures[path] for path in figures_named(system, self.name).paths}) > 1
            for figures, system in zip(known, systems, strict=True)
        )

    def figures(self, system: System, place: int) -> dict[FigurePath, float]:
        """The figures of a system at one of the values."""
        known, given = figures_of(system), self.values[place]
        return {path: given.of(known[path]) for path in figures_named(system, self.name).paths}

    def restructured(self, system: System, place: int) -> tuple[System, list[str]]:
        """The system at one of the values, and what was changed along with it."""
        given: Given = self.values[place]
        try:
            if self.name == _NICS:
                tier = _cards(system)
                links = _links_per_accelerator(system, tier)
                return with_links_per_accelerator(system, tier, given.of(links)), []
            if self.name == _NODE:
                changed, told = with_node(system, _whole(given, system.node.accelerators))
                return System.validated(changed.to_dict()), told
            tier = _tier_of(system, self.name)
            size = _whole(given, system.network[tier].domain)
            return with_domain(system, tier, size)
        except (ValueError, InputError) as error:
            raise _refused(self.name, given.label, f"on {system.name}: {error}") from None

    def remodelled(self, model: Model, place: int) -> Model:
        """The model at one of the values."""
        given: Given = self.values[place]
        now = model.seq_len if self.name == "seq_len" else getattr(model, self.name)
        try:
            changed = MODEL_FIGURES[self.name](model, _whole(given, now))
            return Model.validated(changed.to_dict())
        except (ValueError, InputError) as error:
            raise _refused(self.name, given.label, f"of {model.name}: {error}") from None

    def number(self, system: System, model: Model, place: int, *, as_factor: bool) -> Any:
        """The value at a point, in the unit of the axis."""
        given = self.values[place]
        if self.kind == "strategy":
            return given
        if self.kind == "model":
            now = model.seq_len if self.name == "seq_len" else getattr(model, self.name)
            return round(given.of(now or 0))
        if self.name == _NICS:
            return given.of(_links_per_accelerator(system, _cards(system)))
        if self.name == _NODE:
            return round(given.of(system.node.accelerators))
        if self.kind == "structure":
            return round(given.of(system.network[_tier_of(system, self.name)].domain or 0))
        return given.number if as_factor else next(iter(self.figures(system, place).values()))


def varied_axes(vary: object, systems: Sequence[System]) -> tuple[Varied, ...]:
    """Read the axes of a sweep.

    Raises
    ------
    InputError
        If a name is not known, or a value cannot be read.
    """
    if not isinstance(vary, Mapping):
        problem = "must be values by name, as in {'nvlink.bandwidth': '1x,2x'}"
        raise InputError(Fault(source="vary", value=vary, has_value=True, problem=problem))
    axes = tuple(_axis(name, given, systems) for name, given in vary.items())
    _no_figure_twice(axes, systems)
    return axes


def check_values(axes: Sequence[Varied], model: Model, systems: Sequence[System]) -> None:
    """Refuse values that the model, or one of the systems, may not have.

    Raises
    ------
    InputError
        For the first of them.
    """
    for axis in axes:
        for place in range(len(axis.values)):
            if axis.kind == "model":
                axis.remodelled(model, place)
            for system in systems:
                if axis.kind == "structure":
                    axis.restructured(system, place)
                elif axis.kind == "figure":
                    _check_figure(axis, system, place)


def _axis(name: str, given: object, systems: Sequence[System]) -> Varied:
    plain = canonical(name)
    field = SHORT_NAMES.get(plain, plain.replace("-", "_"))
    if field in MODEL_FIGURES:
        return Varied(name=field, kind="model", unit=None, values=given_values(field, given, None))
    if field in SPACE_FIELDS:
        return Varied(name=field, kind="strategy", unit=None, values=_field_values(field, given))
    if plain in (_NICS, _NODE) or plain.split(".")[-1] == _DOMAIN:
        for system in systems:
            _tier_of(system, plain)
        values = given_values(plain, given, None)
        return Varied(name=plain, kind="structure", unit=None, values=values)
    known = {part for system in systems for part in figure_names(system)}
    others = (*MODEL_FIGURES, *SPACE_FIELDS, *SHORT_NAMES, _NICS, _NODE, _DOMAIN)
    for part in plain.split("+"):
        if part not in known:
            hint = nearest(part, [*known, *others])
            told = hint or "; `shardwise sweep --figures` lists them all"
            raise InputError(Fault(source="vary", field=part, problem=f"no such figure{told}"))
    figures = [figures_named(system, plain) for system in systems]
    values = given_values(plain, given, figures[0].unit)
    _one_figure_each(plain, values, systems)
    return Varied(name=plain, kind="figure", unit=figures[0].unit, values=values)


def _field_values(field: str, given: object) -> tuple[Any, ...]:
    """Values of a field of the strategy, read as a space reads them."""
    try:
        values = getattr(Space.validated({field: given}), field)
    except InputError as error:
        raise InputError([_renamed(fault) for fault in error.faults]) from None
    if values == "all":
        raise _refused(field, given, "give the values to try")
    return values if isinstance(values, tuple) else (values,)


def _renamed(fault: Fault) -> Fault:
    return Fault(
        source="vary",
        field=fault.field,
        value=fault.value,
        has_value=fault.has_value,
        problem=fault.problem,
    )


def _one_figure_each(name: str, values: Sequence[Given], systems: Sequence[System]) -> None:
    """Refuse one number for figures that are not alike."""
    plain = next((value for value in values if not value.factor), None)
    for system in systems if plain is not None else ():
        for part in name.split("+"):
            figure = figures_named(system, part)
            if plain is not None and len(figure.paths) > 1:
                told = f"stands for {len(figure.paths)} figures of {system.name}"
                raise _refused(name, plain.label, f"{part} {told}; give factors, as in 2x")


def _no_figure_twice(axes: Sequence[Varied], systems: Sequence[System]) -> None:
    for system in systems:
        owner: dict[FigurePath, str] = {}
        for axis in axes:
            for path in _taken(axis, system):
                if path in owner:
                    problem = f"has a figure in common with {owner[path]}; vary one of them"
                    raise InputError(Fault(source="vary", field=axis.name, problem=problem))
                owner[path] = axis.name


def _taken(axis: Varied, system: System) -> Sequence[FigurePath]:
    """What of a system an axis decides."""
    if axis.kind == "figure":
        return figures_named(system, axis.name).paths
    if axis.kind != "structure" or axis.name == _NODE:
        return ()
    if axis.name == _NICS:
        return (("network", _cards(system), "links_per_node"),)
    return (("network", _tier_of(system, axis.name), _DOMAIN),)


def _check_figure(axis: Varied, system: System, place: int) -> None:
    """Refuse a value that the system may not have."""
    changed = with_figures(system, axis.figures(system, place))
    try:
        System.validated(changed.model_dump(mode="json", warnings=False))
    except InputError as error:
        fault = error.faults[0]
        problem = f"on {system.name}: {fault.field}: {fault.problem}"
        raise _refused(axis.name, axis.values[place].label, problem) from None


def _tier_of(system: System, name: str) -> int:
    """The tier whose domain a name is, `domain` alone that of the first."""
    tier = name.rpartition(".")[0] or "inner"
    names = [canonical(described.name) for described in system.network]
    if tier == "inner" or name in (_NICS, _NODE):
        return 0
    if tier == "outer":
        return len(names) - 1
    if tier not in names:
        problem = f"system {system.name} has no tier {tier}; it has {', '.join(names)}"
        raise InputError(Fault(source="vary", field=name, problem=problem))
    return names.index(tier)


def _cards(system: System) -> int:
    """The tier that network cards belong to: the outermost whose links are counted, or the last."""
    counted = [n for n, tier in enumerate(system.network) if tier.links_per_node is not None]
    return counted[-1] if counted else len(system.network) - 1


def _links_per_accelerator(system: System, tier: int) -> float:
    links = system.network[tier].links_per_node
    return 1.0 if links is None else links / system.node.accelerators


def _whole(given: Given, now: int | None) -> int:
    """The number of something that a value makes of what there is."""
    if now is None and given.factor:
        raise ValueError("there is no number yet to take a factor of")
    number = given.of(now or 0)
    if number < 1 or number % 1:
        raise ValueError(f"{number:g} must be a whole number of at least 1")
    return int(number)


def _refused(name: str, value: object, problem: str) -> InputError:
    return InputError(
        Fault(source="vary", field=name, value=value, has_value=True, problem=problem)
    )


def _told(value: object) -> str:
    """A value of a field as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return str(getattr(value, "name", "none" if value is None else value))


def figure_list(system: System) -> list[dict[str, Any]]:
    """What may be varied of a system: names, values (None where they differ), units, how many."""
    known = figures_of(system)
    cards = _links_per_accelerator(system, _cards(system))
    structure = {
        **{
            f"{canonical(tier.name)}.{_DOMAIN}": tier.domain
            for tier in system.network
            if tier.domain is not None
        },
        _NODE: system.node.accelerators,
        _NICS: cards,
    }
    listed = [
        {"figure": name, "value": value, "unit": None, "figures": 1}
        for name, value in structure.items()
    ]
    for name, figure in figure_names(system).items():
        values = {known[path] for path in figure.paths}
        value = values.pop() if len(values) == 1 else None
        told = {"figure": name, "value": value, "unit": figure.unit, "figures": len(figure.paths)}
        listed.append(told)
    return listed

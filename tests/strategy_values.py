"""Values for every field of `Strategy`, derived from the field: a new one is drawn at once."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from shardwise.config.strategy_fields import COLUMNS, Kind, StrategyField

# Texts, lists and stacks have no end: some of each.
_LISTED: dict[str, list[Any]] = {
    "stage_layers": [(1, 10), (7, 4), (4, 4, 3)],
    "data_lengths": [(3, 8, 20), (2, 16, 16)],
    "extents": ["tp=2", "tp=2+dp=2", "dp=2"],
    "stack": ["megatron-core-2025", "megatron-lm-2022", "nemo-2025"],
}


def values_of(field: StrategyField) -> list[Any]:
    """Some values of a field, None among them where it may be open."""
    found: list[Any] = [None] if field.optional else []
    match field.kind:
        case Kind.FLAG:
            found += [False, True]
        case Kind.WORD:
            found += field.words
        case Kind.SET:
            found += [(word,) for word in field.words]
        case Kind.LIST | Kind.STACK:
            found += _LISTED[field.name]
        case Kind.NUMBER:
            found += [
                number
                for number in (field.least or 1.0, 0.5, 1.25, 2.0)
                if field.least <= number <= field.most
            ]
        case _:
            found += [number for number in (0, 1, 2, 3, 4) if number >= field.least]
    return found


def values_of_every(
    own: Mapping[str, list[Any]], *, without: tuple[str, ...] = ()
) -> dict[str, list[Any]]:
    """Values of every field, the default first: those set here, else what the field has."""
    others = {name: field for name, field in COLUMNS.items() if name not in (*own, *without)}
    return {**own, **{name: _default_first(field) for name, field in others.items()}}


def _default_first(field: StrategyField) -> list[Any]:
    return sorted(values_of(field), key=lambda value: value != field.default)


@st.composite
def some_fields(draw: st.DrawFn, most: int = 4) -> dict[str, Any]:
    """Values of a few fields, any of them."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), max_size=most, unique=True))
    return {name: draw(st.sampled_from(values_of(COLUMNS[name]))) for name in names}

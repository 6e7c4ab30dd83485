"""Figures of other entries of the catalog, and of other files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.config.expressions.bases import Path, descend
from shardwise.config.expressions.dimensions import kind_at
from shardwise.config.expressions.formula import Part, parts_of, path_text
from shardwise.config.expressions.quantity import Quantity
from shardwise.config.expressions.records import Row, Rows

__all__ = ["RowFigures", "figure_in"]


@dataclass(slots=True, kw_only=True)
class RowFigures:
    """Looks fields of rows up, each row once."""

    find: Rows
    found: dict[str, Row] = field(default_factory=dict)

    def row(self, name: str) -> Row:
        """The row of a name.

        Raises
        ------
        ValueError
            If there is none.
        """
        if name not in self.found:
            self.found[name] = self.find(name, False)
        return self.found[name]

    def figure(self, row: str, path: str) -> Quantity:
        """A field of a row that is a figure."""
        return figure_in(self.row(row), parts_of(path), row)

    def value(self, row: str, path: str, times: float) -> Any:
        """A field of a row: a figure, or anything else if it is taken once."""
        value, _ = descend(self.row(row).fields, parts_of(path), row)
        if times == 1 and not _is_number(value):
            return value
        return self.figure(row, path) * Quantity(times)

    def sources(self, row: str, path: str, by: str, *, same: bool) -> dict[Path, dict[str, str]]:
        """Where a field that was looked up is from, and what is inside it, by place.

        Parameters
        ----------
        same
            Whether it was taken as it is, so that it is as good as the row says.
        """
        fields = self.row(row).fields
        told = fields.get("sources") or {}
        _, place = descend(fields, parts_of(path), row)
        above = [_dotted(place[:length]) for length in range(len(place), -1, -1)]
        own = next((told[prefix] for prefix in above if prefix in told), None)
        text = f"looked up: {by}" + (f" ({own['text']})" if own else "")
        kind = own["kind"] if own and same else "assumed"
        found: dict[Path, dict[str, str]] = {(): {"kind": kind, "text": text}}
        inside = f"{_dotted(place)}."
        for prefix, one in told.items() if same else ():
            if prefix.startswith(inside):
                text = f"looked up: {row} {prefix} ({one['text']})"
                steps = tuple(prefix.removeprefix(inside).split("."))
                found[steps] = {"kind": one["kind"], "text": text}
        return found


def figure_in(row: Row, parts: Sequence[Part], called: str) -> Quantity:
    """The figure at a path in a row, with what its field counts.

    Raises
    ------
    ValueError
        If there is no such field, or it is no figure.
    """
    value, place = descend(row.fields, parts, called)
    if not _is_number(value):
        told = "null" if value is None else "no figure"
        raise ValueError(f"{path_text(place)} of {called} is {told}")
    return Quantity.of(value, kind_at(row.noun, place))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _dotted(place: Path) -> str:
    return ".".join(map(str, place))

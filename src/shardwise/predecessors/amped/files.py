"""AMPeD's `config.json` and `lookup_tables.json`, typed and with every parameter decided.

AMPeD decides in this order: looked up in a table, else calculated, else the value that is written.
So does this, and it says which was used where a file has several. What AMPeD silently reads as
None, as 1 or as a fraction is a fault.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.errors import Fault, InputError, allowed_words, nearest
from shardwise.predecessors.amped.formulas import resolve
from shardwise.predecessors.amped.parameters import (
    CATEGORIES,
    DERIVED,
    Parameter,
    check,
    check_numbers,
)

ALLOWED = "a number, or text of a number with an SI prefix and a unit, such as 312 T or 1.41 GHz"
# Powers of ten.
_PREFIXES = dict(zip("nuµμmkKMGTPE", (-9, -6, -6, -6, -3, 3, 3, 6, 9, 12, 15, 18), strict=True))
_QUANTITY = re.compile(
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*([^\W\d_][\w /*^.%-]*|/[\w ]+)?"
)
# Words that begin with the letter of a prefix but have none.
_WORDS = re.compile(
    r"(GPUs?|Gpus?|MACs?|Macs?|Tokens?|P(arams|arameters)|nodes?|m(in|onth)\w*)(/.*)?"
)
_BINARY = re.compile(r"[KMGTP]i(?![a-z])")


def parse_amped(value: object) -> float:
    """Read a number, or a text of a number, SI prefix and letters, as a plain number.

    Raises
    ------
    ValueError
        If it is neither, is not finite, or would be misread.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be {ALLOWED}")  # noqa: TRY004 - as for all that is wrong with it
    if not isinstance(value, str):
        return _finite(value)
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"must be {ALLOWED}")
    unit = (match[2] or "").strip()
    if _BINARY.match(unit):
        problem = f"AMPeD reads {unit} as powers of 1000; write the number without a unit"
        raise ValueError(problem)
    if _WORDS.fullmatch(unit):
        raise ValueError(f"AMPeD reads the first letter of {unit} as an SI prefix; leave it out")
    power = _PREFIXES.get(unit[:1], 0)
    return _finite(float(Decimal(match[1]).scaleb(power)))


def _finite(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"must be {ALLOWED}")
    return number


def unit_letters(value: object) -> str:
    """Letters of the unit of a text, without number and prefix; empty for a number."""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = (match[2] or "").strip() if match else ""
    return unit[1:] if unit[:1] in _PREFIXES else unit


TABLES_NAME = "lookup_tables.json"
ROWS = {"transformer": CATEGORIES[0], "accelerator": CATEGORIES[-1]}
"""Categories that look up a row of a table, by AMPeD's names of the rows in its summary."""
_TABLE_NAMES = ("accelerator_specifications", "transformer_network_parameters")

Tables = Mapping[str, Any]
Flag = Annotated[bool, BeforeValidator(lambda value: False if value is None else value)]


class _Parameter(ConfigBase):
    """One parameter as a file writes it."""

    value: Any = None
    calculated: Flag = False
    from_lookup_table: Flag = False
    lookup_name: str | None = None
    """Name of the property in the table, where it differs."""
    description: str | None = None


class _Lookup(ConfigBase):
    """Where the parameters of a category are looked up."""

    lookup_table_name: str
    lookup_table_row: str


class _Category(ConfigBase):
    """One of the four categories."""

    parameters: Mapping[str, _Parameter]
    lookup_config: _Lookup | None = None


class _Config(ConfigBase):
    """A configuration file."""

    neural_network_training_parameters: _Category | None = None
    mapping_parameters: _Category | None = None
    system_architecture_parameters: _Category | None = None
    accelerator_architecture_parameters: _Category | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmpedConfig:
    """A configuration whose parameters all have a value."""

    source: str
    tables_source: str
    """File of the tables; empty where none was needed."""
    parameters: Mapping[str, Parameter]
    rows: Mapping[str, str]
    """Row of its table that a category looks up in, by category."""
    accelerator_row: Mapping[str, Any]
    """All properties of the accelerator's row."""

    def read_values(self) -> dict[str, float]:
        """Values that were written or looked up, without those calculated from them."""
        return {n: one.value for n, one in self.parameters.items() if one.origin != "calculated"}

    def row_names(self) -> dict[str, str]:
        """Rows of the network and of the accelerator, by AMPeD's names in its summary."""
        return {name: self.rows[place] for name, place in ROWS.items() if place in self.rows}

    def __contains__(self, name: str) -> bool:
        return name in self.parameters

    def __getitem__(self, name: str) -> Parameter:
        return self.parameters[name]


def looks_like(data: Mapping[str, object]) -> Literal["configuration", "lookup tables"] | None:
    """Return which of AMPeD's files a mapping is by its keys, or None."""
    if any(name in data for name in CATEGORIES):
        return "configuration"
    return "lookup tables" if any(name in data for name in _TABLE_NAMES) else None


def tables_next_to(source: str) -> tuple[Tables, str] | None:
    """Read the tables in the folder of a configuration, if they are there."""
    if not files.is_file(source):
        return None
    place = Path(source).with_name(TABLES_NAME)
    if not files.is_file(place):
        return None
    return files.read_mapping(place), str(place)


def read_config(
    data: Mapping[str, object], source: str, tables: tuple[Tables, str] | None = None
) -> AmpedConfig:
    """Decide every parameter of a configuration."""
    raw = _Config.validated(data, source=source)
    categories = {name: found for name in CATEGORIES if (found := getattr(raw, name)) is not None}
    looked_up = any(p.from_lookup_table for c in categories.values() for p in c.parameters.values())
    found = (tables or tables_next_to(source)) if looked_up else None
    reading = _Reading(source=source, tables=found)
    decided = list(reading.decide(categories))
    if reading.faults:
        raise InputError(reading.faults)
    check_numbers([one for one in decided if one.origin != "calculated"], source)
    parameters = _calculated({one.name: one for one in decided}, source)
    check(parameters, source)
    return AmpedConfig(
        source=source,
        tables_source=found[1] if found else "",
        parameters=parameters,
        rows={
            name: category.lookup_config.lookup_table_row
            for name, category in categories.items()
            if category.lookup_config is not None
        },
        accelerator_row=reading.row(categories.get(CATEGORIES[-1])),
    )


class _Reading:
    """One walk through a file, with what is wrong with it."""

    def __init__(self, *, source: str, tables: tuple[Tables, str] | None) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self._tables, self._tables_source = tables or ({}, "")

    def decide(self, categories: Mapping[str, _Category]) -> Iterator[Parameter]:
        """Yield each parameter with where its value is from; those to calculate have NaN."""
        seen: dict[str, str] = {}
        for name, category in categories.items():
            row = self._checked_row(name, category)
            for parameter, written in category.parameters.items():
                field = f"{name}.{parameter}"
                if parameter in seen:
                    self._fault(field, f"stands in {seen[parameter]} too; leave one out")
                    continue
                seen[parameter] = name
                known = Parameter(
                    name=parameter,
                    category=name,
                    written=written.value,
                    lookup_name=written.lookup_name,
                    description=written.description or "",
                )
                decided = self._decided(field, written, known, row)
                if decided is not None:
                    yield decided

    def row(self, category: _Category | None) -> Mapping[str, Any]:
        """Properties of the row of a category; none where it has none."""
        if category is None or category.lookup_config is None:
            return {}
        where = category.lookup_config
        table = self._tables.get(where.lookup_table_name)
        row = table.get(where.lookup_table_row) if isinstance(table, Mapping) else None
        return row if isinstance(row, Mapping) else {}

    def _fault(self, field: str, problem: str, *value: object, source: str = "") -> None:
        place: dict[str, Any] = {"source": source or self.source, "field": field}
        if value:
            place |= {"value": value[0], "has_value": True}
        self.faults.append(Fault(**place, problem=problem))

    def _checked_row(self, name: str, category: _Category) -> Mapping[str, Any] | None:
        """The row that a category looks up in; None, with a fault, where it is needed but lacks."""
        needing = [p for p, one in category.parameters.items() if one.from_lookup_table]
        if not needing:
            return {}
        where = category.lookup_config
        if where is None:
            problem = "is missing: give lookup_table_name and lookup_table_row, for "
            self._fault(f"{name}.lookup_config", problem + ", ".join(needing))
            return None
        if not self._tables_source:
            problem = f"need lookup tables, but there is no {TABLES_NAME} in its folder"
            self._fault(name, f"{', '.join(needing)} {problem}; give it (--tables FILE)")
            return None
        for field, key, found, what in (
            ("lookup_table_name", where.lookup_table_name, self._tables, "table"),
            (
                "lookup_table_row",
                where.lookup_table_row,
                self._tables.get(where.lookup_table_name),
                f"row of {where.lookup_table_name}",
            ),
        ):
            if not isinstance(found, Mapping) or not isinstance(found.get(key), Mapping):
                known = list(found) if isinstance(found, Mapping) else []
                hint = nearest(key, known) or f"; {allowed_words(key, known)}"
                problem = f"is no {what} in {self._tables_source}"
                problem += ": must be a mapping" if key in known else hint
                self._fault(f"{name}.lookup_config.{field}", problem, key)
                return None
        return self.row(category)

    def _decided(
        self, field: str, written: _Parameter, known: Parameter, row: Mapping[str, object] | None
    ) -> Parameter | None:
        """Read a parameter from its row, or leave it to be calculated, or use the written value."""
        if written.from_lookup_table:
            return None if row is None else self._looked_up(field, written, known, row)
        if written.calculated:
            if known.name not in DERIVED:
                hint = nearest(known.name, DERIVED)
                problem = f"is marked calculated, but AMPeD has no formula for it{hint}"
                self._fault(field, problem)
                return None
            return replace(known, origin="calculated")
        if written.value is None:
            problem = f"is missing: must be {ALLOWED}, or be marked calculated or from_lookup_table"
            self._fault(field, problem, None)
            return None
        return self._parsed(field, replace(known, origin="given"), written.value, self.source)

    def _looked_up(
        self, field: str, written: _Parameter, known: Parameter, row: Mapping[str, object]
    ) -> Parameter | None:
        name = written.lookup_name or known.name
        if row.get(name) is None:
            hint = nearest(name, row) or f"; {allowed_words(name, row)}"
            problem = f"its row has no {name} in {self._tables_source}{hint}"
            self._fault(field, problem if name not in row else f"is null in its row, as {name}")
            return None
        known = replace(known, origin="looked up", also_calculated=written.calculated)
        return self._parsed(field, known, row[name], self._tables_source)

    def _parsed(self, field: str, known: Parameter, value: object, source: str) -> Parameter | None:
        plain = int(value) if isinstance(value, bool) and known.name.endswith("_flag") else value
        try:
            return replace(known, value=parse_amped(plain), raw=value)
        except ValueError as error:
            self._fault(field, str(error), value, source=source)
            return None


def _calculated(decided: Mapping[str, Parameter], source: str) -> dict[str, Parameter]:
    """Compute the parameters that are marked calculated."""
    wanted = [name for name, one in decided.items() if one.origin == "calculated"]
    given = {name: one.value for name, one in decided.items() if one.origin != "calculated"}
    try:
        with np.errstate(all="ignore"):  # what is not finite is a fault of `check`
            values = resolve(given, wanted, table=DERIVED, source=source)
    except InputError as error:
        raise InputError([_placed(fault, decided) for fault in error.faults]) from None
    return {name: replace(one, value=float(values[name])) for name, one in decided.items()}


def _placed(fault: Fault, decided: Mapping[str, Parameter]) -> Fault:
    """Add the category to the parameter, where it is known."""
    one = decided.get(fault.field)
    return fault if one is None else replace(fault, field=one.place)

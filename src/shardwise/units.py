"""Quantities with units: what people write ("80 GiB") and what the maths uses (bytes).

Inside, sizes are bytes, times seconds, rates byte/s and FLOP/s, power watts,
frequencies Hz. A plain number is already in that unit. `GB` is 10^9 bytes, `GiB` 2^30.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, Overflow
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, SerializationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from shardwise.errors import shorten
from shardwise.records import dataclass

# A share of a peak below this is a typo, and times would overflow.
LEAST_SHARE = 1e-4

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def _decimal(unit: str) -> dict[str, Decimal]:
    return {prefix + unit: Decimal(10) ** power for prefix, power in _DECIMAL.items()}


_BYTE_UNITS = _decimal("B") | {f"{p}B": Decimal(2) ** n for p, n in _BINARY.items()}
_TIME_UNITS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_COUNT_UNITS = {
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "B": Decimal(10**9),
    "T": Decimal(10**12),
}
_COUNT_ALIASES = {
    "": "",
    "K": "k",
    "thousand": "k",
    "million": "M",
    "billion": "B",
    "G": "B",
    "trillion": "T",
}
UNITS: dict[str, dict[str, Decimal]] = {
    "bytes": _BYTE_UNITS,
    "byte/s": {f"{unit}/s": scale for unit, scale in _BYTE_UNITS.items()}
    | {f"{unit}/s": scale / 8 for unit, scale in _decimal("bit").items()},
    "FLOP/s": _decimal("FLOP/s"),
    "Hz": _decimal("Hz"),
    "seconds": _TIME_UNITS,
    "watts": {"W": Decimal(1), "kW": Decimal(1000), "MW": Decimal(10**6)},
    "kg/kWh": {"g/kWh": Decimal("1e-3"), "kg/kWh": Decimal(1)},
    "tokens": _COUNT_UNITS,
}
EXAMPLES = {
    "bytes": "80 GiB",
    "byte/s": "25 GB/s",
    "FLOP/s": "312 TFLOP/s",
    "Hz": "1.98 GHz",
    "seconds": "10 us",
    "watts": "700 W",
    "kg/kWh": "380 g/kWh",
    "tokens": "300B",
}
"""A quantity of each dimension as people write it."""
_ALIASES = {"KB": "kB", "µs": "us", "μs": "us", "FLOPS": "FLOP/s", "FLOPs": "FLOP/s"}
_OF_CARBON = ("CO2", "CO2e", "CO2eq")
_ALIASES |= {
    f"{mass}{gas}/kWh": f"{mass}/kWh"
    for mass in ("g", "kg")
    for gas in (*_OF_CARBON, *(f" {gas}" for gas in _OF_CARBON))
}
_THOUSAND = 1000
# In characters: how much longer text with a unit may be than the plain number, and text within 1 to
# 999 units than other text.
_UNIT_ALLOWANCE = 8
_OUT_OF_RANGE = 2
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9].*?)?\s*")


_LONGEST_WHOLE = 40
_MOST_WHOLE = 2**63 - 1
"""Columns have 64 bits."""


def read_whole(text: str) -> int | None:
    """Read a whole number as others wrote it; None where the text is none, or needs over 64 bits.

    Python itself refuses numbers of thousands of digits, and reads digits of all scripts.
    """
    if not text.isascii() or len(text) > _LONGEST_WHOLE:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) <= _MOST_WHOLE else None


def read_number(text: str) -> float | None:
    """Read a number as others wrote it; None where the text is none, NaN, or too large."""
    try:
        number = float(text) if text.isascii() else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _canonical_unit(unit: str) -> str:
    for alias, canonical in _ALIASES.items():
        if unit == alias or (unit.endswith(alias) and alias.startswith("FLOP")):
            return unit.removesuffix(alias) + canonical
        if unit == alias + "/s":
            return canonical + "/s"
    return unit


def parse_quantity(value: object, dimension: str) -> float:
    """Read a quantity of one dimension as a number in the SI unit used inside.

    Parameters
    ----------
    value
        A number, or text such as ``"80 GiB"``.
    dimension
        A key of `UNITS`: ``bytes``, ``byte/s``, ``FLOP/s``, ``Hz``, ``seconds``,
        ``watts``.

    Raises
    ------
    ValueError
        If the text is not a number with a unit of that dimension.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_hint(dimension))  # noqa: TRY004 - pydantic turns ValueError into a fault
    if not isinstance(value, str):
        try:
            return float(value)
        except OverflowError:
            raise ValueError("is too large for a number") from None
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(_hint(dimension))
    number, unit = match.groups()
    units = UNITS[dimension]
    unit = _canonical_unit(unit) if unit else ""
    if dimension == "tokens":
        unit = _COUNT_ALIASES.get(unit.removesuffix("tokens").strip(), unit)
    if unit and unit not in units:
        raise ValueError(f"unit {shorten(unit)} is not one of {', '.join(units)}")
    return _scaled(number, units[unit] if unit else 1, _hint(dimension))


_LEAST_SIZE = 2.0**20
_LEAST_NUMBER = 2.0**10
"""In bytes: no memory is smaller than a size without a unit below these, as text or a number."""


def parse_memory(value: float | str) -> float:
    """Read a size of memory [byte].

    Raises
    ------
    ValueError
        If it cannot be read, or is so small that its unit must be missing.
    """
    size = parse_quantity(value, "bytes")
    least = _LEAST_SIZE if isinstance(value, str) else _LEAST_NUMBER
    if 0 < size < least and "B" not in str(value):
        limit = "1 MiB" if isinstance(value, str) else "1 KiB"
        raise ValueError(f"is less than {limit}; is its unit missing, as in 70GiB?")
    return size


def read_quantity(text: str) -> tuple[float, str | None]:
    """Read a quantity of any dimension: its number in the SI unit, and that dimension.

    Text without a unit has None.

    Raises
    ------
    ValueError
        If the text is not a number with a unit that is known.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("is not a number, with or without a unit")
    number, unit = match.groups()
    if not unit:
        return _scaled(number, 1, "is not a number, with or without a unit"), None
    unit = _canonical_unit(unit)
    dimension = next((name for name, units in UNITS.items() if unit in units), None)
    if dimension is None:
        known = ", ".join(text.split()[1] for text in EXAMPLES.values() if " " in text)
        raise ValueError(f"unit {shorten(unit)} is not known; units are such as {known}")
    return parse_quantity(text, dimension), dimension


_SPANS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
_SPANS |= {"w": 604800, "week": 604800}
"""Seconds of the units that people write durations of training runs in."""
_SPAN_HINT = "must be a duration above 0 such as '30d', '12h' or '6w'"
_MONEY_HINT = "must be an amount in USD above 0 such as '5M', '250k' or '1200000'"
_MOST_SPAN_S = 1e10
_MOST_USD = 1e15


def parse_time_span(value: object) -> float:
    """Read a duration of a training run [s]: ``"30d"``, ``"12h"``, ``"6w"``; a number is seconds.

    Raises
    ------
    ValueError
        If the text has no unit or another one, or the duration is not above 0 and at most 300
        years.
    """
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        number, unit = match.groups() if match else ("", None)
        plural = len(unit or "") > len("min")
        scale = _SPANS.get((unit or "").removesuffix("s") if plural else unit or "")
        if scale is None:
            raise ValueError(_SPAN_HINT)
        value = _scaled(number, scale, _SPAN_HINT)
    return _positive(value, _MOST_SPAN_S, _SPAN_HINT)


def parse_money(value: object) -> float:
    """Read an amount of money [USD]: ``"5M"``, ``"250k"``, ``"$1.2 million"``, or a number.

    Raises
    ------
    ValueError
        If the text is not an amount, or it is not above 0 and at most 1e15.
    """
    if isinstance(value, str):
        plain = value.strip().removeprefix("$").replace(",", "")
        match = _QUANTITY.fullmatch(plain)
        number, unit = match.groups() if match else ("", "?")
        scale = _COUNT_UNITS.get(_COUNT_ALIASES.get(unit or "", unit or ""))
        if scale is None and unit:
            raise ValueError(_MONEY_HINT)
        value = _scaled(number, int(scale or 1), _MONEY_HINT)
    return _positive(value, _MOST_USD, _MONEY_HINT)


def _scaled(number: str, scale: Decimal | int, hint: str) -> float:
    """A number as text, times a scale."""
    try:
        result = float(Decimal(number) * scale)
    except Overflow:
        result = math.inf
    except InvalidOperation:
        raise ValueError(hint) from None
    if not math.isfinite(result):
        raise ValueError("is too large for a number")
    return result


def _positive(value: object, most: float, hint: str) -> float:
    """A number above 0 and up to a limit."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= most:  # type: ignore[operator]
        raise ValueError(hint)
    return float(value)  # type: ignore[arg-type]


def _hint(dimension: str) -> str:
    return f"must be a number in {dimension} or text such as {EXAMPLES[dimension]!r}"


def format_quantity(value: float, dimension: str) -> str | float:
    """Write a quantity with a unit, so that reading it returns the same number.

    The shortest exact text wins, preferably with 1 to 999 units; a value that needs more digits
    than the plain number stays a number.
    """
    if not math.isfinite(value) or value == 0:
        return value
    exact = Decimal(repr(value))
    best: str | float = value
    least = len(repr(value)) + _UNIT_ALLOWANCE
    for unit, scale in UNITS[dimension].items():
        amount = exact / scale
        text = f"{format(amount.normalize(), 'f')} {unit}"
        length = len(text) + (0 if 1 <= amount < _THOUSAND else _OUT_OF_RANGE)
        if length < least and parse_quantity(text, dimension) == value:
            best, least = text, length
    return best


_TABLE_UNITS = {
    "bytes": ("B", "KiB", "MiB", "GiB", "TiB"),
    "byte/s": ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"),
    "FLOP/s": ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s", "EFLOP/s"),
    "Hz": ("Hz", "kHz", "MHz", "GHz"),
    "seconds": ("ns", "us", "ms", "s", "d"),
    "watts": ("W", "kW", "MW"),
}


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 GPU, 1,024 GPUs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def readable(value: float, dimension: str, digits: int = 3) -> str:
    """Round a quantity for a table, in the largest unit in which it is at least 1."""
    if not math.isfinite(value):
        return str(value)
    units = _TABLE_UNITS[dimension]
    chosen = units[0]
    for unit in units:
        # Rounded first: 999.9 of one unit are 1 of the next.
        if float(f"{abs(value) / float(UNITS[dimension][unit]):.{digits}g}") >= 1:
            chosen = unit
    amount = value / float(UNITS[dimension][chosen])
    if abs(amount) >= 10**digits:
        return f"{amount:,.0f} {chosen}"
    return f"{amount:,.{digits}g} {chosen}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """Marks a field as a quantity; pydantic ignores it."""

    name: str
    """A key of `UNITS`."""
    least: float
    most: float
    above: str = ""
    """What to say of larger values."""


def _validate(value: object, dimension: Dimension) -> float:
    try:
        result = parse_quantity(value, dimension.name)
    except ValueError as error:
        raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None
    if math.isfinite(result):  # here, so that the fault shows the text of the user
        if result < dimension.least:
            reason = f"must be at least {dimension.least:g} {dimension.name}"
            raise PydanticCustomError("quantity", "{reason}", {"reason": reason})
        if result > dimension.most:
            reason = f"must be at most {dimension.most:g} {dimension.name}{dimension.above}"
            raise PydanticCustomError("quantity", "{reason}", {"reason": reason})
    return result


def _serialize(value: float, info: SerializationInfo, dimension: str) -> object:
    units = isinstance(info.context, dict) and info.context.get("units")
    return format_quantity(value, dimension) if units else value


def _quantity(name: str, least: float, most: float, above: str = "") -> tuple[object, ...]:
    dimension = Dimension(name, least, most, above)
    validate: Callable[[object], float] = partial(_validate, dimension=dimension)
    number = {"type": "number", "minimum": least, "maximum": most}
    schema = {"anyOf": [number, {"type": "string"}], "examples": [EXAMPLES[name]]}
    return (
        dimension,
        BeforeValidator(validate),
        PlainSerializer(lambda value, info: _serialize(value, info, name)),
        WithJsonSchema(schema | {"description": f"in {name}, or text with a unit"}),
    )


Bytes = Annotated[float, *_quantity("bytes", 0, 2**70)]
"""At most 1 ZiB: of that order is all storage of the world."""
ByteRate = Annotated[float, *_quantity("byte/s", 1, 1e30)]
"""At most 1e30: a study may set a rate so high that it takes no time; results stay finite."""
FlopRate = Annotated[float, *_quantity("FLOP/s", 1, 1e30)]
"""At most 1e30, as a `ByteRate`."""
Latency = Annotated[float, *_quantity("seconds", 0, 60)]
"""At most a minute: light needs 0.1 s around the earth, a kernel less to start."""
Duration = Annotated[float, *_quantity("seconds", 0, 1e10)]
"""At most 300 years."""
Power = Annotated[float, *_quantity("watts", 1, 1e9)]
"""At most 1 GW, a power station."""
_IN_GRAMS = ", more than any fuel emits; write '380 g/kWh' for grams"
CarbonIntensity = Annotated[float, *_quantity("kg/kWh", 0, 5, _IN_GRAMS)]
"""At most 5 kg/kWh: lignite emits 1.2."""
Tokens = Annotated[float, *_quantity("tokens", 1, 1e18)]
"""At most a million trillion; the largest runs are of tens of trillions."""

"""Parse the values of an axis: `0.5x,1x,2x`, `450 GB/s`, `64..512`, `1..4:1`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.errors import InputError
from shardwise.units import EXAMPLES, UNITS, parse_quantity, read_number, readable

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
        return [AxisValue(number=float(item), factor=False, label=_label(float(item), unit))]
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
    return [AxisValue(number=n, factor=low.factor, label=_label(n, shown)) for n in numbers]


def _label(number: float, unit: str | None) -> str:
    if unit is None or unit == FACTOR:
        return f"{number:.6g}{unit or ''}"
    return readable(number, unit, 4)

"""Values of an axis as people write them: `0.5x,1x,2x`, `450 GB/s`, `64..512`, `1..4:1`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.units import UNITS, parse_quantity, readable

__all__ = ["FACTOR", "Given", "given_values"]

FACTOR = "x"
_RANGE = re.compile(r"(.+?)\s*\.\.\s*(.+?)(?:\s*:\s*(.+?))?")
_NUMBER = re.compile(r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(.*)")
_MOST = 10_000
# Steps of a range that end this near to its end reach it.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One value of an axis."""

    number: float
    """In the unit used inside, or a factor on what the system has."""
    factor: bool
    label: str
    """As it was written."""

    def of(self, figure: float) -> float:
        """The figure that it makes of one."""
        return figure * self.number if self.factor else self.number


def given_values(name: str, given: object, unit: str | None) -> tuple[Given, ...]:
    """Read the values of one axis.

    Parameters
    ----------
    given
        Text, numbers in the unit used inside, or a list of these.
    unit
        A key of `units.UNITS`, or None for counts and shares.

    Raises
    ------
    InputError
        If one cannot be read.
    """
    found: list[Given] = []
    for item in _items(given):
        try:
            found += _read(item, unit)
        except ValueError as error:
            raise _fault(name, item, str(error)) from None
    if not found:
        raise _fault(name, given, "has no value to try")
    return tuple({(one.number, one.factor): one for one in reversed(found)}.values())[::-1]


def _fault(name: str, value: object, problem: str) -> InputError:
    return InputError(
        Fault(source="vary", field=name, value=value, has_value=True, problem=problem)
    )


def _items(given: object) -> Sequence[Any]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, Iterable):
        return [item for one in given for item in _items(one)]
    return [given]


def _read(item: object, unit: str | None) -> list[Given]:
    if isinstance(item, bool) or not isinstance(item, (int, float, str)):
        raise ValueError(_hint(unit))  # noqa: TRY004 - becomes a fault
    if not isinstance(item, str):
        return [Given(number=float(item), factor=False, label=_label(float(item), unit))]
    match = _RANGE.fullmatch(item)
    if match is None:
        return [_one(item, unit)]
    low, high, step = (
        None if part is None else _one(_with_unit(part, match[2]), unit) for part in match.groups()
    )
    return _expanded(low, high, step, unit)


def _with_unit(text: str, other: str) -> str:
    """A number with the unit of the end of its range, if it has none."""
    number, tail = _NUMBER.fullmatch(text.strip()), _NUMBER.fullmatch(other.strip())
    if number is not None and not number[2] and tail is not None:
        return f"{number[1]}{tail[2]}" if tail[2] == FACTOR else f"{number[1]} {tail[2]}".strip()
    return text


def _one(text: str, unit: str | None) -> Given:
    """One value: a factor, or a quantity."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(_hint(unit))
    number, tail = match.groups()
    if tail == FACTOR:
        return Given(number=_float(number, unit), factor=True, label=text.strip())
    if unit is None:
        if tail:
            raise ValueError(_hint(unit))
        return Given(number=_float(number, unit), factor=False, label=text.strip())
    if not tail:
        raise ValueError(f"lacks its unit: {_hint(unit)}")
    if unit not in UNITS:
        raise ValueError(_hint(unit))
    return Given(number=parse_quantity(text, unit), factor=False, label=text.strip())


def _float(number: str, unit: str | None) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(_hint(unit)) from None


def _hint(unit: str | None) -> str:
    examples = {"bytes": "96 GiB", "byte/s": "900 GB/s", "FLOP/s": "2 PFLOP/s", "seconds": "5 us"}
    examples["watts"] = "700 W"
    if unit is None:
        return "must be a number, a range such as 64..512, or a factor such as 2x"
    if unit not in UNITS:
        return "names figures of several units; give factors, as in 2x"
    return f"give it as in {examples[unit]}, or a factor, as in 2x"


def _expanded(
    low: Given | None, high: Given | None, step: Given | None, unit: str | None
) -> list[Given]:
    """Values of a range: it doubles, or steps."""
    assert low is not None  # noqa: S101 - the pattern has both ends
    assert high is not None  # noqa: S101
    if low.factor is not high.factor or (step is not None and step.factor is not low.factor):
        raise ValueError("a range has two ends of a kind, as in 0.5x..4x")
    if not 0 < low.number <= high.number or (step is not None and step.number <= 0):
        raise ValueError("a range runs from a number above 0 up to a larger one")
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
    return [Given(number=n, factor=low.factor, label=_label(n, shown)) for n in numbers]


def _label(number: float, unit: str | None) -> str:
    if unit is None or unit == FACTOR:
        return f"{number:.6g}{unit or ''}"
    return readable(number, unit, 4)

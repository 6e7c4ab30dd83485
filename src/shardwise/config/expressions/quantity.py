"""Numbers that know what they count: bytes, seconds, watts; and how those join in arithmetic.

Operations and FLOPs are counts, as cores are: 1.98 GHz x 132 is 2.6e11 of anything a second.
"""

import math
import operator
from collections.abc import Callable

from shardwise.records import dataclass, field
from shardwise.units import format_quantity, read_quantity, read_whole, readable

Powers = tuple[int, int, int, int]
"""Of bytes, seconds, watts, and emissions by energy, which stay in their unit."""
_NONE: Powers = (0, 0, 0, 0)
_POWERS: dict[str, Powers] = {
    "bytes": (1, 0, 0, 0),
    "byte/s": (1, -1, 0, 0),
    "FLOP/s": (0, -1, 0, 0),
    "Hz": (0, -1, 0, 0),
    "seconds": (0, 1, 0, 0),
    "watts": (0, 0, 1, 0),
    "kg/kWh": (0, 0, 0, 1),
    "tokens": _NONE,
}
_NAMES = {powers: name for name, powers in reversed(_POWERS.items()) if any(powers)}
_BASES = ("byte", "s", "W", "kg/kWh")
# Integers stay exact up to here; beyond, a formula could request a number of thousands of digits.
_MOST_INTEGER = 2**63
_MOST_POWER = 12
_TOO_LARGE = "is too large for a number"
_DIGITS = 6


def powers_of(dimension: str | None) -> Powers:
    """Powers of the base units of a key of `units.UNITS`; None: a plain number."""
    return _NONE if dimension is None else _POWERS[dimension]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number in the units used inside, with the powers of them that it has.

    What cannot be calculated raises a ValueError that says why.
    """

    value: float
    powers: Powers = _NONE
    dimension: str | None = field(default=None, compare=False)
    """What it was read as: Hz and FLOP/s have the same powers. Arithmetic forgets it."""

    @classmethod
    def of(cls, value: float, dimension: str | None) -> "Quantity":
        """A number in the unit of a key of `units.UNITS`; None: a plain one."""
        return cls(value, powers_of(dimension), dimension)

    @classmethod
    def of_text(cls, text: str) -> "Quantity":
        """Read text such as ``"25 GB/s"``."""
        value, dimension = read_quantity(text)
        number = read_whole(text) if dimension is None else None
        is_exact = number is not None and abs(number) < _MOST_INTEGER
        return cls.of(number if number is not None and is_exact else value, dimension)

    @property
    def kind(self) -> str:
        """What it counts, in words: a key of `units.UNITS`, ``a number``, or powers of units."""
        if self.powers == _NONE:
            return "a number"
        if self.dimension is not None:
            return self.dimension
        if self.powers in _NAMES:
            return "FLOP/s or Hz" if self.powers == _POWERS["Hz"] else _NAMES[self.powers]
        named = zip(_BASES, self.powers, strict=True)
        return " ".join(unit if n == 1 else f"{unit}^{n}" for unit, n in named if n)

    def __str__(self) -> str:
        """For a message: in a handy unit, with a few digits."""
        if self.powers == _NONE:
            return f"{self.value:.9g}"
        if self.powers not in _NAMES:
            return f"{self.value:.9g} {self.kind}"
        return readable(self.value, self.dimension or _NAMES[self.powers], _DIGITS)

    def written(self) -> str | float:
        """As people write it in a file, so that reading it gives the same quantity."""
        dimension = self.dimension or _NAMES.get(self.powers)
        return self.value if dimension is None else format_quantity(self.value, dimension)

    def __add__(self, other: "Quantity") -> "Quantity":
        """Sum of two of one kind."""
        return self._joined(other, operator.add, "add")

    def __sub__(self, other: "Quantity") -> "Quantity":
        """Difference of two of one kind."""
        return self._joined(other, operator.sub, "subtract")

    def __mod__(self, other: "Quantity") -> "Quantity":
        """Rest of a division of two of one kind."""
        other.refuse_zero()
        return self._joined(other, operator.mod, "divide")

    def __floordiv__(self, other: "Quantity") -> "Quantity":
        """How many full times one fits into another of its kind."""
        other.refuse_zero()
        return Quantity(self._joined(other, operator.floordiv, "divide wholly").value)

    def __mul__(self, other: "Quantity") -> "Quantity":
        """Product of any two."""
        powers = _each(operator.add, self.powers, other.powers)
        return Quantity(_finite(operator.mul, self.value, other.value), powers)

    def __truediv__(self, other: "Quantity") -> "Quantity":
        """Quotient of any two."""
        other.refuse_zero()
        powers = _each(operator.sub, self.powers, other.powers)
        return Quantity(_finite(operator.truediv, self.value, other.value), powers)

    def __pow__(self, other: "Quantity") -> "Quantity":
        """Power, by a plain number."""
        if other.powers != _NONE:
            raise ValueError(f"a power must be a number, not {other.kind}")
        number = other.value
        if self.powers != _NONE and (number != int(number) or abs(number) > _MOST_POWER):
            raise ValueError(f"a power of {self.kind} must be an integer and small, not {number:g}")
        powers = (
            _each(lambda n, _: n * int(number), self.powers, _NONE) if any(self.powers) else _NONE
        )
        if self.value == 0 and number < 0:
            raise ValueError("divides by zero")
        return Quantity(_finite(_power, self.value, number), powers)

    def __neg__(self) -> "Quantity":
        """Itself below zero."""
        return Quantity(-self.value, self.powers)

    def least(self, other: "Quantity") -> "Quantity":
        """The smaller of two of one kind."""
        return self._joined(other, min, "compare")

    def most(self, other: "Quantity") -> "Quantity":
        """The larger of two of one kind."""
        return self._joined(other, max, "compare")

    def rounded(self, rounding: Callable[[float], int]) -> "Quantity":
        """A plain number rounded up or down."""
        if self.powers != _NONE:
            raise ValueError(f"only numbers are rounded, not {self.kind}: divide by a unit first")
        return Quantity(_finite(lambda value, _: rounding(value), self.value, 0))

    def refuse_zero(self) -> None:
        """Raise if nothing can be divided by it."""
        if self.value == 0:
            raise ValueError("divides by zero")

    def _joined(
        self, other: "Quantity", join: Callable[[float, float], float], verb: str
    ) -> "Quantity":
        if self.powers != other.powers:
            raise ValueError(f"cannot {verb} {self.kind} and {other.kind}")
        return Quantity(_finite(join, self.value, other.value), self.powers)


def _each(join: Callable[[int, int], int], one: Powers, other: Powers) -> Powers:
    bytes_, seconds, watts, carbon = (join(a, b) for a, b in zip(one, other, strict=True))
    return bytes_, seconds, watts, carbon


def _power(base: float, exponent: float) -> float:
    """A power in time that does not grow with the numbers: exact only while it is small."""
    most = _MOST_INTEGER.bit_length()
    if not (isinstance(base, int) and isinstance(exponent, int)):
        pass
    elif exponent >= 0 and base.bit_length() * exponent < most:
        return int(base**exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ValueError("a negative number has no such power")  # noqa: TRY004 - not of types
    return float(result)


def _finite(join: Callable[[float, float], float], one: float, other: float) -> float:
    """A result that is finite, and an exact integer while it is small."""
    try:
        result = join(one, other)
        if isinstance(result, int) and abs(result) >= _MOST_INTEGER:
            result = float(result)
    except OverflowError:
        raise ValueError(_TOO_LARGE) from None
    if not math.isfinite(result):
        raise ValueError("is no number" if math.isnan(result) else _TOO_LARGE)
    return result

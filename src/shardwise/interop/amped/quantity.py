"""Numbers as AMPeD's files write them: plain, or with an SI prefix and letters of a unit.

AMPeD ignores the letters ("8 GB" is 8,000,000,000); so does this, for its parameters alone. What it
would read as something else than is written, such as "8 GiB" or "100 GPUs", is refused.
"""

import math
import re
from decimal import Decimal

__all__ = ["ALLOWED", "parse_amped", "unit_letters"]

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
        If it is neither, is not finite, or would be read as something else than it says.
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
        raise ValueError(f"AMPeD takes the first letter of {unit} for an SI prefix; leave it out")
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

"""Types of numeric fields: what a figure may be at least and at most, and why.

A figure outside is a typo or of another unit. Inside, every result is a finite number. Quantities
with a unit have theirs in `units`, counts in `config.base`.
"""

from typing import Annotated

from pydantic import Field

from shardwise.config.base import MOST, NO_FLAG
from shardwise.units import LEAST_SHARE

Portion = Annotated[float, Field(ge=0, le=1), NO_FLAG]
"""A share: 0 to 1."""
Fraction = Annotated[float, Field(ge=LEAST_SHARE, le=1), NO_FLAG]
"""Share of a peak that something reaches: a ten-thousandth is slower than any kernel."""
RateShare = Annotated[float, Field(ge=LEAST_SHARE, le=100), NO_FLAG]
"""Rate over the rate of a data sheet. Caches, and collectives inside a switch, exceed it a few
times; a hundredfold is another data sheet."""
Factor = Annotated[float, Field(ge=0.01, le=100), NO_FLAG]
"""Time, bytes or speed of one implementation over another's: beyond a hundredfold it is not an
implementation of the same."""
Speed = Annotated[float, Field(ge=0.01, le=1), NO_FLAG]
"""Speed of what overlaps over its speed alone: below a hundredth nothing would overlap it."""
PerElement = Annotated[float, Field(ge=0, le=1e4), NO_FLAG]
"""Bytes per element: a thousand passes over it in fp64."""
Overhead = Annotated[float, Field(ge=0, le=1e6), NO_FLAG]
"""Extra elements, tiles or times that start and end of a kernel cost: a kernel of a million is
longer than its overhead."""
Exponent = Annotated[float, Field(ge=0.1, le=10), NO_FLAG]
"""Sharpness of a transition: from 0.1, over 20 decades, to 10, a step."""
JoinExponent = Annotated[float, Field(ge=0.1, le=8), NO_FLAG]
"""p of (a^p + b^p)^(1/p). At 0.1 two equal times make a thousandfold, above 8 the larger one."""
Size = Annotated[float, Field(ge=0, le=1e30), NO_FLAG]
"""Bytes or FLOPs of an operation: the largest training runs are of 1e26 FLOPs in all."""
ShapeFigure = Annotated[float, Field(ge=1e-6, le=MOST), NO_FLAG]
"""A dimension, as a `Count`, or a share of a peak."""
Ratio = Annotated[float, Field(ge=1, le=1e4), NO_FLAG]
"""Largest over average load: at most all of it on one rank, of the thousands of a group."""
OptionFigure = Annotated[float, Field(ge=-1e18, le=1e18), NO_FLAG]
"""Of a registered kind of layer: what stays finite after a few multiplications."""
Month = Annotated[str, Field(pattern=r"^(20[0-4]\d-(0[1-9]|1[0-2]))?$")]
"""Year and month, 2026-08, or empty."""
YearOrMonth = Annotated[str, Field(pattern=r"^(20[0-4]\d(-(0[1-9]|1[0-2]))?)?$")]

"""Share of the peak that products reach: one number, or a curve of the micro-batch."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwise.arrays import Floats
from shardwise.errors import Fault, InputError
from shardwise.interop.amped.derived import Derived

__all__ = ["CAP", "EFFICIENCY", "MicrobatchEfficiency"]

EFFICIENCY = 0.51
"""Share of the peak in the version that was described."""
CAP = 0.91
"""What its curve never passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchEfficiency:
    """Share of the peak by the sequences of a micro-batch.

    Linear between points, as at the nearest one beyond them, never more than the cap. AMPeD's own
    curve, fitted to measured runs, was not found.
    """

    points: tuple[tuple[float, float], ...]
    """(sequences, share), sequences ascending."""
    cap: float = CAP

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or any(later <= size for size, later in pairwise(sizes)):
            raise _fault("points", self.points, "needs sizes of micro-batches in ascending order")
        if not all(size > 0 and 0 < share <= 1 for size, share in self.points):
            raise _fault("points", self.points, "sizes must be above 0, shares in (0, 1]")
        if not 0 < self.cap <= 1:
            raise _fault("cap", self.cap, "must be in (0, 1]")

    def at(self, microbatch_size: Floats) -> Floats:
        """Return the share at micro-batches of so many sequences, fractions too."""
        sizes, shares = zip(*self.points, strict=True)
        share: Floats = np.minimum(np.interp(microbatch_size, sizes, shares), self.cap)
        return share

    def derived(self) -> Derived:
        """Return the curve as a quantity derived from the parameters."""
        return Derived(
            inputs=("microbatch_size",), function=self.at, unit="", description="Share of the peak."
        )


def _fault(field: str, value: object, problem: str) -> InputError:
    return InputError(
        Fault(source="efficiency", field=field, value=value, has_value=True, problem=problem)
    )

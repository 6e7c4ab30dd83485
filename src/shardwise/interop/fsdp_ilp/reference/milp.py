"""A mixed-integer linear programme as columns and sparse rows, whichever solver takes it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.arrays import Bools, Floats, Ints

__all__ = ["Builder", "Milp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Milp:
    """Minimise cost x; lower <= x <= upper; row_lower <= A x <= row_upper; some x whole."""

    cost: Floats
    lower: Floats
    upper: Floats
    whole: Bools
    """Which columns must be whole numbers."""
    row_lower: Floats
    row_upper: Floats
    starts: Ints
    """Where each row of A begins in `places` and `values`, and where the last one ends."""
    places: Ints
    """Columns of the entries of A, row by row."""
    values: Floats


@dataclass(slots=True)
class Builder:
    """Collects columns and rows."""

    _columns: list[tuple[Floats, Floats, Floats, Bools]] = field(default_factory=list)
    _rows: list[tuple[Ints, Floats, Floats, Floats]] = field(default_factory=list)
    _costs: list[tuple[Ints, Floats]] = field(default_factory=list)
    _count: int = 0

    def columns(
        self,
        shape: int | tuple[int, ...],
        *,
        cost: ArrayLike = 0.0,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        whole: bool = False,
    ) -> Ints:
        """Add columns; return their numbers in the shape asked for."""
        size = int(np.prod(shape))
        self._columns.append(
            (
                _spread(cost, shape).ravel(),
                _spread(lower, shape).ravel(),
                _spread(upper, shape).ravel(),
                np.full(size, whole),
            )
        )
        self._count += size
        return np.arange(self._count - size, self._count).reshape(shape)

    def column(self, *, cost: float = 0.0) -> int:
        """Add one non-negative column; return its number."""
        return int(self.columns(1, cost=cost)[0])

    def pay(self, places: Ints, cost: Floats) -> None:
        """Add to the cost of columns that are there."""
        self._costs.append((places.ravel(), cost.ravel()))

    def rows(
        self,
        places: ArrayLike,
        values: ArrayLike,
        *,
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
    ) -> None:
        """Add rows: columns and their factors as (rows, entries); factors of 0 are left out."""
        which = np.atleast_2d(np.asarray(places, dtype=np.int64))
        count = which.shape[0]
        factors = _spread(values, which.shape)
        self._rows.append((which, factors, _spread(lower, count), _spread(upper, count)))

    def build(self) -> Milp:
        """Return the whole programme."""
        cost, lower, upper, whole = (
            np.concatenate(parts) for parts in zip(*self._columns, strict=True)
        )
        for places, more in self._costs:
            np.add.at(cost, places, more)
        used = [values != 0 for _, values, _, _ in self._rows]
        lengths = [mask.sum(axis=1) for mask in used]
        pairs = list(zip(self._rows, used, strict=True))
        return Milp(
            cost=cost,
            lower=lower,
            upper=upper,
            whole=whole,
            row_lower=np.concatenate([row[2] for row in self._rows]),
            row_upper=np.concatenate([row[3] for row in self._rows]),
            starts=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64),
            places=np.concatenate([row[0][mask] for row, mask in pairs]),
            values=np.concatenate([row[1][mask] for row, mask in pairs]),
        )


def _spread(value: ArrayLike, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)

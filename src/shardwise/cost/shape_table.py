"""Share of a peak by the shape of a kernel, from measured kernels of about that shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, distinct_values
from shardwise.config.system import ShapeTable
from shardwise.distinct import distinct_rows
from shardwise.ops.operation import Phase

# Measured shapes left out one by one (SimuMax commit 4dcaae5: 847 of products, grouped products and
# attention on A100 and B200) are timed 10.0 % off from the nearest other one, 9.2, 8.5 and 8.6 %
# off from the nearest 2, 3 and 4, and 12.1 % off with the mean share of their phase.
_NEIGHBOURS = 3
# Sizes further apart than this say little about each other. In those measurements no kernel is
# that far from all others, so the figure is a choice: two doublings.
_REACH = 4.0
_DISTANCES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShapes:
    """What a table says of one phase."""

    logs: Floats
    """Logarithms of the sizes, one row for each measured kernel."""
    measured: Floats
    """Share of the peak of each."""
    fallback: float

    @classmethod
    def of(cls, table: ShapeTable, phase: Phase) -> "MeasuredShapes":
        """Take the rows of a phase and of any; shares over the FLOPs that are done."""
        rows = [*table.rows.get(phase.value, ()), *table.rows.get("any", ())]
        figures = np.array(rows, dtype=np.float64).reshape(len(rows), len(table.sizes) + 1)
        part = 0.5 if table.counts_all_pairs else 1.0
        return cls(
            logs=np.log(figures[:, :-1]),
            measured=figures[:, -1] * part,
            fallback=table.fallback * part,
        )

    def shares(self, sizes: Sequence[Floats]) -> tuple[Floats, Bools]:
        """Share of the peak at each shape, and whether it was too far from all measured ones.

        At a measured shape its share. Else sum(e_i / d_i^2) / sum(1 / d_i^2) over the three
        nearest of those within a factor of 4 in every size, and what is as near as the third; d is
        the distance in the logarithms of the sizes. The fallback where there are none, and where a
        size is 0: no kernel runs.

        Parameters
        ----------
        sizes
            Columns of equal length, in the order of the table's sizes.
        """
        firsts, position = distinct_rows(sizes)
        shares, missed = self._distinct(np.stack([size[firsts] for size in sizes], axis=1))
        return shares[position], missed[position]

    def _distinct(self, shapes: Floats) -> tuple[Floats, Bools]:
        shares = np.full(len(shapes), self.fallback)
        runs: Bools = np.all(shapes > 0, axis=1)
        missed = runs.copy()
        if not self.measured.size:
            return shares, missed
        chunk = max(1, _DISTANCES_AT_ONCE // self.logs.size)
        places = np.flatnonzero(runs)
        for start in range(0, places.size, chunk):
            part = places[start : start + chunk]
            found, near = self._interpolated(np.log(shapes[part]))
            shares[part] = np.where(near, found, self.fallback)
            missed[part] = ~near
        return shares, missed

    def _interpolated(self, logs: Floats) -> tuple[Floats, Bools]:
        """Share at each shape, NaN-free but meaningless where nothing is close; what is close."""
        gaps = np.abs(logs[:, None] - self.logs)
        far = np.sqrt((gaps**2).sum(axis=2))
        # A factor of exactly 4 is within reach, whatever its logarithms round to.
        far[(gaps > np.log(_REACH) + 1e-9).any(axis=2)] = np.inf
        nearest = far.argmin(axis=1)
        least = far[np.arange(len(far)), nearest]
        near = np.isfinite(least)
        last = min(_NEIGHBOURS, self.measured.size) - 1
        limit = np.partition(far, last, axis=1)[:, last] * (1 + 1e-9)
        counted = far <= np.minimum(limit, np.finfo(np.float64).max)[:, None]
        scale = np.where(near, np.maximum(least, 1e-9), 1.0)
        weights = np.where(counted, (scale[:, None] / np.maximum(far, 1e-9)) ** 2, 0.0)
        total = weights.sum(axis=1)
        mean = (weights * self.measured).sum(axis=1) / np.where(near, total, 1.0)
        return np.where(least == 0, self.measured[nearest], mean), near


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTables:
    """For each row the table of its type, if it has one."""

    shapes: Mapping[int, Mapping[Phase, MeasuredShapes]]
    """By the codes of types that have a table."""
    sizes: Mapping[int, tuple[str, ...]]
    """What those tables know a shape by."""
    codes: Ints
    """Type of each row."""

    @classmethod
    def of(cls, tables: Sequence[ShapeTable | None], codes: Ints) -> "RowTables":
        """Prepare the tables, one or none by code of a type, for rows of these types."""
        used = ((code, tables[code]) for code in distinct_values(codes))
        present = {code: table for code, table in used if table is not None}
        return cls(
            shapes={
                code: {phase: MeasuredShapes.of(table, phase) for phase in Phase}
                for code, table in present.items()
            },
            sizes={code: table.sizes for code, table in present.items()},
            codes=codes,
        )

    @property
    def present(self) -> Bools:
        """Rows whose type has a table."""
        return np.isin(self.codes, list(self.shapes))

    def shares(self, kernel: Mapping[str, Floats | float], phase: Phase) -> tuple[Floats, Bools]:
        """Share of the peak at each row's shape, 1 in rows without a table; whether it missed.

        Parameters
        ----------
        kernel
            Sizes by name, at least those of the tables.
        """
        *columns, codes = np.broadcast_arrays(*kernel.values(), self.codes)
        size_of = dict(zip(kernel, columns, strict=True))
        shares = np.ones(codes.shape)
        missed = np.zeros(codes.shape, dtype=np.bool_)
        for code, phases in self.shapes.items():
            rows = codes == code
            sizes = [size_of[name][rows] for name in self.sizes[code]]
            shares[rows], missed[rows] = phases[phase].shares(sizes)
        return shares, missed

"""Efficiency by the size of an operation, where no closed form in its shape is known."""

import numpy as np

from shardwise.arrays import Floats, Ints, distinct_values
from shardwise.config.enums import Processing
from shardwise.config.system import EfficiencyCurve
from shardwise.records import dataclass


def share_at(curve: EfficiencyCurve | None, sizes: Floats) -> Floats:
    """Share of the peak that operations of these sizes reach; 1 without a curve.

    Stepwise: the share of the last point at or below the size. Interpolated: linear in log10 of
    the size, what is below 1 counting as 1; beyond the last point its share.

    Parameters
    ----------
    curve
        Points of size and share of the peak; None: no curve.
    sizes
        Sizes of full operations, 0 or more, in the unit of the curve's points [byte or FLOP]; shape
        (n,).

    Notes
    -----
    Stepwise it is the lookup of Calculon 0.1.0 (commit caa4b11, calculon/processor.py, memory.py).
    """
    if curve is None:
        return np.ones_like(sizes)
    known, shares = np.array(curve.points).T
    if curve.interpolate:
        places = np.log10(np.maximum(sizes, 1.0))
        return np.interp(places, np.log10(np.maximum(known, 1.0)), shares)
    return shares[np.searchsorted(known, sizes, side="right") - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCurves:
    """For each row the curve of its type, if it has one."""

    curves: tuple[EfficiencyCurve | None, ...]
    """By the codes of types."""
    codes: Ints
    """Type of each row."""

    def shares(self, sizes: Floats) -> Floats | float:
        """Share of the peak at each row's size; 1 in rows without a curve."""
        if not any(self.curves):
            return 1.0
        shares = np.ones(np.broadcast_shapes(sizes.shape, self.codes.shape))
        sizes = np.broadcast_to(sizes, shares.shape)
        for code in distinct_values(self.codes):
            rows = self.codes == code
            shares[rows] = share_at(self.curves[code], sizes[rows])
        return shares


def joined_times(
    compute_s: Floats, memory_s: Floats, processing: Processing, exponent: float
) -> Floats:
    """Time of a kernel from its compute and memory times [s].

    measured: (t_c^x + t_m^x)^(1/x); roofline: max(t_c, t_m), which is x infinite; no_overlap:
    t_c + t_m, which is x = 1.

    Parameters
    ----------
    compute_s
        t_c, compute time [s]; shape (n,).
    memory_s
        t_m, memory time [s]; shape (n,).
    exponent
        x as fitted to measured kernels of the kind.
    """
    if processing == Processing.NO_OVERLAP:
        return compute_s + memory_s
    if processing == Processing.ROOFLINE or np.isinf(exponent):
        return np.maximum(compute_s, memory_s)
    joined: Floats = (compute_s**exponent + memory_s**exponent) ** (1 / exponent)
    return joined

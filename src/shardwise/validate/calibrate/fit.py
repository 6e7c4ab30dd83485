"""Fit the figures of a system to a table of measurements.

Robust least squares of the logarithm of predicted over measured times: a row that is off by a
factor counts as one that is off by some tenths. The present figures are weak priors, so that
figures that the rows do not determine stay where they were.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import Source
from shardwise.config.system import System
from shardwise.config.system_columns import FigurePath, with_figures
from shardwise.errors import Fault, InputError
from shardwise.validate.calibrate.figures import Fittable, Free, fittable, with_starting_figures
from shardwise.validate.calibrate.predictions import predictions
from shardwise.validate.calibrate.tables import KINDS, KernelTable

_SPREAD = 0.05
"""Error above which a row counts less: that of another version of the software."""
_PRIOR = 2.0
"""Width of a prior in logarithms, in the unit in which rows are `_SPREAD` wide."""
_SMALL_ROWS = 0.3
"""Weight of rows that are smaller than what training has."""
_MOST_ROWS = 8_000
_MOST_ROWS_OF_TILES = 4_000
"""Waves of tiles take thirty times as long."""
_EVALUATIONS = 60
_DIGITS = 4
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of predictions: predicted over measured, minus one."""

    n: int
    mean: float
    """Of the absolute errors, as are median and p90."""
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, predicted: Floats, measured: Floats) -> "Errors":
        """Errors of one or more rows."""
        signed = predicted / measured - 1
        sizes = np.abs(signed)
        return cls(
            n=int(signed.size),
            mean=float(sizes.mean()),
            median=float(np.median(sizes)),
            p90=float(np.quantile(sizes, 0.9)),
            bias=float(signed.mean()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Figures of one kind, fitted."""

    prefix: str
    """Their dotted path."""
    rows: int
    before: Errors
    """Of rows of training sizes, or of all if there are none."""
    after: Errors
    left_out: Errors | None
    """Of rows that were left out of the fit which predicts them; None: not requested."""
    figures: dict[FigurePath, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A system with fitted figures, and how well they fit."""

    system: System
    fits: tuple[Fit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        fits = [
            {
                "figures": {".".join(map(str, path)): v for path, v in fit.figures.items()},
                "prefix": fit.prefix,
                "rows": fit.rows,
                "before": asdict(fit.before),
                "after": asdict(fit.after),
                "left_out": None if fit.left_out is None else asdict(fit.left_out),
            }
            for fit in self.fits
        ]
        return {"system": self.system.to_dict(units=True), "fits": fits}


def folds(table: KernelTable, count: int) -> Ints:
    """Fold of each row: by a hash of what was measured, not of how long it took."""
    kind = KINDS[table.kind]
    names = [n for n in (*kind.words, *kind.sizes, *kind.counts) if n in table.columns]
    columns = [table.columns[name].tolist() for name in names]
    keys = zip(*columns, strict=True)
    return np.array([zlib.crc32(repr(key).encode()) % count for key in keys], dtype=np.int64)


def calibrated(
    system: System, tables: Sequence[KernelTable], *, parts: int | None = None
) -> Calibration:
    """Fit the figures of a system that the tables determine.

    Parameters
    ----------
    system
        The system.
    tables
        Rows of this system only.
    parts
        Number of folds for cross-validation; None: no cross-validation.

    Raises
    ------
    InputError
        If scipy is missing or the tables determine no figure.
    """
    start = with_starting_figures(system, list(tables))
    found = [part for table in tables for part in fittable(start, table)]
    fits = [_fit(start, part, parts) for part in found]
    if not fits:
        kinds = "gemm, attention, moe, collective, moe_alltoall, elementwise, train_gemm and "
        kinds += "train_attention"
        raise InputError(Fault(source=tables[0].source, problem=f"only {kinds} can be fitted to"))
    figures = {path: value for fit in fits for path, value in fit.figures.items()}
    new = with_figures(start, figures)
    sources = dict(new.sources)
    for fit in fits:
        sources[fit.prefix] = _source(fit, tables)
    predicted = new.model_copy(update={"sources": sources})
    return Calibration(
        system=System.validated(predicted.to_dict(), source=system.name), fits=tuple(fits)
    )


def _source(fit: Fit, tables: Sequence[KernelTable]) -> Source:
    names = sorted({table.source.rsplit("/", 1)[-1] for table in tables})
    errors, kind = (
        (fit.after, "") if fit.left_out is None else (fit.left_out, " on configurations left out")
    )
    text = (
        f"by shardwise calibrate on {fit.rows} rows of {', '.join(names)}; mean error "
        f"{100 * errors.mean:.1f} % (median {100 * errors.median:.1f} %){kind}"
    )
    return Source(kind="fitted", text=text)


def _fit(system: System, part: Fittable, parts: int | None) -> Fit:
    everything = np.ones(len(part.table), dtype=np.bool_)
    figures = _fitted(system, part, everything)
    counted = part.table.large if part.table.large is not None else everything
    counted = counted if counted.any() else everything
    measured = part.table.columns[part.table.times[part.measured]]
    before = _predicted(system, part.table, part.measured)
    after = _predicted(with_figures(system, figures), part.table, part.measured)
    left_out = None
    if parts is not None:
        number = folds(part.table, parts)
        unseen = np.full(len(part.table), np.nan)
        for place in range(parts):
            rest = number != place
            if rest.all() or not rest.any():
                continue
            without = with_figures(system, _fitted(system, part, rest, begin=figures))
            unseen[~rest] = _predicted(without, part.table.take(~rest), part.measured)
        seen = counted & np.isfinite(unseen)
        left_out = Errors.of(unseen[seen], measured[seen])
    return Fit(
        prefix=part.prefix,
        rows=len(part.table),
        before=Errors.of(before[counted], measured[counted]),
        after=Errors.of(after[counted], measured[counted]),
        left_out=left_out,
        figures=figures,
    )


def _predicted(system: System, table: KernelTable, measured: int) -> Floats:
    gpus = {str(gpu): system for gpu in np.unique(table.columns["gpu"])}
    return predictions(table, gpus)[measured].predicted_us


def _fitted(
    system: System,
    part: Fittable,
    rows: Bools,
    begin: Mapping[FigurePath, float] | None = None,
) -> dict[FigurePath, float]:
    """Figures with the least robust error on some rows, starting from `begin` or the present."""
    table = _sample(part, rows)
    large = table.large
    weights = np.ones(len(table)) if large is None else np.where(large, 1.0, _SMALL_ROWS)
    measured = np.log(table.columns[table.times[part.measured]])
    low, high = (np.log([getattr(f, side) for f in part.free]) for side in ("low", "high"))
    inside = 1e-6 * (high - low)
    present = [_present(system, free) for free in part.free]
    start = np.clip(np.log(present), low + inside, high - inside)
    first = start
    if begin is not None:
        fitted = np.log([begin[free.path] for free in part.free])
        first = np.clip(fitted, low + inside, high - inside)

    def residuals(places: Floats) -> Floats:
        predicted = _predicted(
            with_figures(system, _values(part.free, places)), table, part.measured
        )
        errors = weights * (np.log(predicted) - measured) / _SPREAD
        return np.concatenate([errors, (places - start) / _PRIOR])

    found = _least_squares(residuals, first, (low, high))
    return {path: _rounded(value) for path, value in _values(part.free, found).items()}


def _values(free: Sequence[Free], places: Floats) -> dict[FigurePath, float]:
    return {f.path: float(value) for f, value in zip(free, np.exp(places), strict=True)}


def _present(system: System, free: Free) -> float:
    """The present figure; if it is 0, the lower bound of the fit."""
    value: Any = system
    for step in free.path:
        inside = isinstance(value, Mapping | tuple)
        value = value[step] if inside else getattr(value, str(step))
    return max(float(value), free.low)


def _sample(part: Fittable, rows: Bools) -> KernelTable:
    """At most `_MOST_ROWS` rows, the same ones each time."""
    tiled = any("tiling" in free.path for free in part.free)
    most = _MOST_ROWS_OF_TILES if tiled else _MOST_ROWS
    places = np.flatnonzero(rows)
    if places.size > most:
        places = np.sort(np.random.default_rng(_SEED).choice(places, most, replace=False))
    chosen = np.zeros(len(part.table), dtype=np.bool_)
    chosen[places] = True
    return part.table.take(chosen)


def _least_squares(
    residuals: Callable[[Floats], Floats], start: Floats, bounds: tuple[Floats, Floats]
) -> Floats:
    try:
        from scipy.optimize import least_squares  # noqa: PLC0415 - an extra
    except ImportError:
        problem = "fits need scipy; install it with: pip install 'shardwise[calibrate]'"
        raise InputError(Fault(source="calibrate", problem=problem)) from None
    found = least_squares(
        residuals, start, bounds=bounds, loss="soft_l1", x_scale="jac", max_nfev=_EVALUATIONS
    )
    places: Floats = found.x
    return places


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

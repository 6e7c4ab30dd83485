"""Errors and intervals of sources that are newer than a date, from older sources alone.

A new estimate is always of a later release than the measured runs. To imitate that, all sources
newer than a date are left out: of the fit, of the stacks (`catalog_fit.unseen`), and of the levels
that intervals come from.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from catalog_fit.fit import Linear, Parameter, fitted
from published_rows.packed import load_rows
from published_rows.releases import released
from shardwise.analysis.prediction_interval import uncertainty_of
from shardwise.analysis.validated_runs import RunFeatures, ValidatedRuns
from shardwise.arrays import Floats

DATES = ("2025-07", "2026-01")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCoverage:
    """How well predictions of the runs of a source, and their intervals, do."""

    source: str
    runs: int
    error: float
    """Mean size of the relative errors."""
    inside: float
    """Share of the runs inside their intervals."""
    half_width: float
    """Mean of upper / lower bound, less 1, over 2."""


def newer_sources(date: str) -> frozenset[str]:
    """Return sources of which half of the runs or more are of releases of a month or later."""
    months = defaultdict(list)
    for row in load_rows():
        if month := released(row):
            months[row.study].append(month)
    return frozenset(s for s, some in months.items() if sorted(some)[len(some) // 2] >= date)


def newer_errors(
    newer: frozenset[str], parameters: Sequence[Parameter], at: Linear, rest: Iterable[Linear]
) -> dict[str, float]:
    """Return errors of the runs of newer sources by id, with all of these left out of the fit.

    Parameters
    ----------
    at
        Runs of the fit.
    rest
        Other runs, at the same offsets; the error of a run is the one in the last of these.
    """
    older = np.array([run.source not in newer for run in at.runs])
    offsets = fitted(at, parameters, older)
    return {
        run.id: float(error)
        for some in (at, *rest)
        for run, error in zip(some.runs, some.errors_at(offsets), strict=True)
        if run.source in newer
    }


def coverage_of_newer(
    known: ValidatedRuns, newer: frozenset[str], errors: Mapping[str, float]
) -> list[SourceCoverage]:
    """Return how the runs of newer sources do, with intervals from older sources alone."""
    older = _taken(known, ~np.isin(known.sources, list(newer)))
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in np.flatnonzero(np.isin(known.ids, list(errors))):
        one = RunFeatures(
            **{
                column.name: known.features[column.name][row].item()
                for column in fields(RunFeatures)
            }
        )
        spread = uncertainty_of(one, older)
        bounds = errors[known.ids[row]], np.log(spread.slower), np.log(spread.faster)
        found[str(known.sources[row])].append(bounds)
    return [source_coverage(name, *np.array(some).T) for name, some in found.items()]


def source_coverage(source: str, errors: Floats, slower: Floats, faster: Floats) -> SourceCoverage:
    """Return how the runs of a source do.

    Parameters
    ----------
    errors
        log predicted - log measured.
    slower, faster
        Sizes of their intervals on the two sides, likewise.
    """
    return SourceCoverage(
        source=source,
        runs=len(errors),
        error=float(np.abs(np.expm1(errors)).mean()),
        inside=float(((errors <= faster) & (-errors <= slower)).mean()),
        half_width=float((np.expm1(slower + faster) / 2).mean()),
    )


def print_coverage(title: str, found: Sequence[SourceCoverage]) -> None:
    """Print the coverage of the sources, each with one vote, and of each of them."""
    means = [float(np.mean([getattr(one, k) for one in found])) for k in ("error", "inside")]
    width = float(np.mean([one.half_width for one in found]))
    print(f"{title}: {means[0]:.1%} off, {means[1]:.1%} inside, half-width {width:.1%}")
    for one in found:
        sizes = f"{one.error:6.1%} off {one.inside:6.1%} inside, half-width {one.half_width:.1%}"
        print(f"  {one.source[:50]:50s} {one.runs:4d} {sizes}")


def _taken(known: ValidatedRuns, rows: np.ndarray) -> ValidatedRuns:
    """Some of the validated runs."""
    columns = ("sources", "errors", "unseen", "accelerator_out", "fitted")
    return replace(
        known,
        ids=tuple(np.array(known.ids)[rows].tolist()),
        features={name: column[rows] for name, column in known.features.items()},
        **{name: getattr(known, name)[rows] for name in columns},
    )

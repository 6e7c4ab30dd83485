"""The tables of docs/accuracy that say how well intervals hold."""

from math import exp

import numpy as np

from page_tables import share, signed, table
from published_rows.packed import load_rows
from published_rows.translate import measured_run
from shardwise.analysis.prediction_interval import (
    evidence_of_runs,
    left_out_sizes,
    memory_errors,
    variation,
)
from shardwise.analysis.validated_runs import validated_runs
from shardwise.analysis.variation import LEVEL
from shardwise.validate.measured.predict import predict_runs


def memory_interval() -> str:
    lines = [
        (kind, str(found["runs"]), str(found["sources"]), share(exp(found["error"]) - 1))
        for kind, found in memory_errors().items()
    ]
    return table(("memory", "n", "sources", "8 of 10 below"), lines)


def intervals(board) -> str:
    unseen = board.left_out["all"]
    grades = {name: board.groups["grade"][name].coverage for name in ("A", "B")}
    known = validated_runs()
    inside = np.abs(known.errors) <= left_out_sizes(known)
    shares = [inside[known.sources == source].mean() for source in np.unique(known.sources)]
    return (
        f"Intervals are meant to contain {share(LEVEL)} of what is measured. With the own source "
        f"left out they contain\n{share(unseen.coverage)} of the runs of the fit, "
        f"{share(float(inside.mean()))} of all {len(inside):,} validated runs and "
        f"{share(float(np.mean(shares)))} in the mean\nof the {len(shares)} sources. As the "
        f"catalog is, they contain {share(grades['A'])} of grade A and {share(grades['B'])} of "
        "grade B."
    )


LEVELS = {
    "run": "one run of a source, about its level: kernels, releases, layouts",
    "source": "a source with the same stack and accelerator: servers, images, settings",
    "stack": "a stack; 1 / (1 + n) of the variance with n sources that measured it",
    "software": "software of which no run was measured, or that is unknown",
    "accelerator": "a system; 1 / (1 + n) of the variance with n sources",
    "generation": "a generation of accelerators; likewise",
}


def levels() -> str:
    """Standard deviation of each level, and what experts and assumptions add in quadrature."""
    found = variation(validated_runs())
    of = found.runs | found.sources
    more = {"run": found.runs, "source": found.sources}
    lines = []
    for name, what in LEVELS.items():
        added = [more[name][kind] if name in more else np.nan for kind in ("experts", "assumed")]
        lines.append((what, *(share(float(np.sqrt(value))) for value in (of[name], *added))))
    return table(("level", "deviation", "more with experts", "more if assumed"), lines)


def coverage() -> str:
    """By what other sources have measured; the last line as if software were unknown."""
    known = validated_runs()
    evidence, _ = evidence_of_runs(known)
    measured, stacks = evidence.framework_measured, evidence.stack_sources
    kinds = {
        "stack measured by two other sources or more": stacks >= 2,
        "stack measured by one other source": stacks == 1,
        "stack measured by no other source": measured & (stacks == 0),
        "software unknown": ~measured,
        "accelerator measured by other sources": evidence.accelerator_sources > 0,
        "accelerator measured by no other source": evidence.accelerator_sources == 0,
        "nothing assumed": ~evidence.assumed,
        "some setting assumed": evidence.assumed,
        "dense": ~evidence.experts,
        "mixture of experts": evidence.experts,
    }
    sizes = left_out_sizes(known)
    some = {name: rows for name, rows in kinds.items() if rows.any()}
    lines = _coverage(some, known.errors, sizes, known.sources)
    alone = frozenset(np.array(known.ids)[stacks == 0].tolist())
    runs = [measured_run(row, unknown_software=True) for row in load_rows() if row.id in alone]
    found = [p for p in predict_runs(runs) if p.step_time_s is not None]
    errors = np.log([p.step_time_s / p.run.measured_step_time_s for p in found])
    sizes = np.log([p.interval[1] / p.step_time_s for p in found])
    sources = np.array([p.run.source for p in found])
    name = "stack measured by no other source, predicted with `unknown`"
    lines += _coverage({name: sources != ""}, errors, sizes, sources)
    heads = ("what is known", "n", "sources", "in interval", "half-width", "median error")
    return table(heads, lines)


def _coverage(groups, errors, sizes, sources) -> list[tuple[str, ...]]:
    """Share inside of some groups of runs, and the median half-width of their intervals."""
    lines = []
    for name, rows in groups.items():
        inside = (np.abs(errors) <= sizes)[rows]
        counts = (f"{rows.sum():,}", str(len(np.unique(sources[rows]))))
        level, width = (float(np.expm1(np.median(one[rows]))) for one in (errors, sizes))
        lines.append((name, *counts, share(float(inside.mean())), share(width), signed(level)))
    return lines

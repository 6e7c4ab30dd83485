"""The tables of docs/accuracy that say how well intervals hold, with one vote for each source."""

import json
import re
from pathlib import Path

import numpy as np

from catalog_fit.fit import load_parameters
from catalog_fit.newer import DATES, SourceCoverage, source_coverage
from page_tables import share, signed, table
from shardwise import System, catalog
from shardwise.analysis.memory_interval import (
    left_out_memory_sizes,
    levels_of,
    memory_runs,
    memory_spread,
)
from shardwise.analysis.prediction_interval import evidence_of_runs, left_out_sizes, variation
from shardwise.analysis.validated_runs import validated_runs
from shardwise.analysis.variation import LEVEL

HEADS = ("sources", "n", "mean size", "in interval", "half-width")
# Figures that name the runs that they were fitted to.
NAMES_RUNS = re.compile(r"\bruns\b")


def by_source() -> str:
    """Errors and coverage where every source counts once."""
    known = validated_runs()
    newer = {f"sources of {date} and later, from older ones": _newer(date) for date in DATES}
    kinds = {
        "own source left out of the fit": _coverage_of(known.errors),
        "and of the stacks: **nothing known of the source**": _coverage_of(known.unseen),
        **newer,
        "peak memory, nothing known of the source": _memory_coverage(),
    }
    return table(("each source counts once", *HEADS), [(n, *_means(f)) for n, f in kinds.items()])


def _coverage_of(errors) -> list[SourceCoverage]:
    known = validated_runs()
    sizes = left_out_sizes(known)
    rows = {str(name): known.sources == name for name in np.unique(known.sources)}
    return [
        source_coverage(name, errors[some], sizes.slower[some], sizes.faster[some])
        for name, some in rows.items()
    ]


def _newer(date: str) -> list[SourceCoverage]:
    path = Path(catalog.__file__).parent / "fit/newer.json"
    names, *rows = json.loads(path.read_text(encoding="utf-8"))
    return [
        SourceCoverage(**dict(zip(names[1:], row[1:], strict=True)))
        for row in rows
        if row[0] == date
    ]


def _memory_coverage() -> list[SourceCoverage]:
    known = memory_runs()
    more, less = left_out_memory_sizes(known)
    rows = {str(name): known.sources == name for name in np.unique(known.sources)}
    return [source_coverage(n, known.errors[r], more[r], less[r]) for n, r in rows.items()]


def _means(found: list[SourceCoverage]) -> tuple[str, ...]:
    columns = ("error", "inside", "half_width")
    means = (float(np.mean([getattr(one, name) for one in found])) for name in columns)
    return (str(len(found)), f"{sum(one.runs for one in found):,}", *map(share, means))


def coverage_by_source() -> str:
    """Each source with nothing known of it, and those newer than the first date from older ones."""
    newer = {one.source: one for one in _newer(DATES[0])}
    lines = []
    for one in sorted(_coverage_of(validated_runs().unseen), key=lambda one: one.inside):
        later = newer.get(one.source)
        more = ("-", "-") if later is None else (share(later.error), share(later.inside))
        cells = (str(one.runs), share(one.error), share(one.inside), share(one.half_width))
        lines.append((one.source, *cells, *more))
    heads = ("source", "n", "mean size", "in interval", "half-width", "from older: mean size",
             "in interval")  # fmt: skip
    return table(heads, lines)


def accelerators_out() -> str:
    """Each accelerator without any of its runs in the fit, and which were fitted by hand."""
    known = validated_runs()
    moved = {name for p in load_parameters() if p.of == "systems" for name in p.names}
    lines = []
    for name in sorted(set(known.features["accelerator"].tolist())):
        rows = known.features["accelerator"] == name
        sources = known.sources[rows]
        means = [
            np.mean([np.abs(np.expm1(errors[rows][sources == one])).mean() for one in set(sources)])
            for errors in (known.errors, known.accelerator_out)
        ]
        bias = float(np.expm1(np.median(known.accelerator_out[rows])))
        cells = (share(float(means[0])), share(float(means[1])), signed(bias))
        if name not in moved:
            cells = (cells[0], "-", "-")
        counts = (f"{rows.sum():,}", str(len(set(sources))))
        lines.append((name, *counts, *cells, in_sample(name, fitted=name in moved)))
    heads = ("accelerator", "n", "sources", "its source left out", "accelerator left out",
             "bias", "in sample")  # fmt: skip
    return table(heads, lines)


def in_sample(name: str, *, fitted: bool) -> str:
    """Figures of a system that were fitted to runs on it, which no fit leaves out again."""
    if fitted:
        return "no"
    sources = System.load(name).sources
    found = [
        place or "all"
        for place, source in sources.items()
        if source.kind == "fitted" and NAMES_RUNS.search(source.text)
    ]
    return ", ".join(f"`{place.removeprefix('accelerator.')}`" for place in found) or "no"


def memory_interval() -> str:
    """Half-widths by what is known, and how often peaks of a source that is left out lie inside."""
    known = memory_runs()
    spread = memory_spread(known)
    more, less = left_out_memory_sizes(known)
    inside = (-more <= known.errors) & (known.errors <= less)
    lines = []
    for reserved, kind in ((False, "allocated"), (True, "reserved")):
        rows = known.features["reserved"] == reserved
        sources = known.sources[rows]
        held = [inside[rows][sources == one].mean() for one in np.unique(sources)]
        start = (kind, str(rows.sum()), str(len(held)), share(float(np.mean(held))))
        columns = {name: np.array([False] * 3) for name in ("eager", "adapters")}
        columns |= {"reserved": np.array([reserved] * 3)}
        columns |= {"framework": np.array(["megatron", "megatron", "new"])}
        columns |= {"software": np.array(["megatron-lm", "megatron-new", "new"])}
        up, down = spread.sizes(levels_of(columns, known))
        widths = np.expm1(up + down) / 2
        lines.append((*start, *(share(float(width)) for width in widths)))
    heads = ("memory", "n", "sources", "in interval", "half-width: as `megatron-lm`",
             "other software of its framework", "unknown software")  # fmt: skip
    return table(heads, lines)


def intervals(board) -> str:
    grades = {name: board.groups["grade"][name].coverage for name in ("A", "B")}
    found = variation(validated_runs())
    return (
        f"Intervals are meant to contain {share(LEVEL)} of what is measured. As the catalog is, "
        f"they contain {share(grades['A'])} of grade A\nand {share(grades['B'])} of grade B. "
        f"Runs are slower than predicted more often than faster: {found.slower:.2f} and "
        f"{found.faster:.2f} deviations\nare exceeded by a tenth on each side."
    )


LEVELS = {
    "run": "one run of a source, about its level: kernels, layouts, settings",
    "source": "a source with the same stack and accelerator: servers, images, settings",
    "release": "a release (stack); 1 / (1 + n) of the variance with n sources that measured it",
    "stack": "a software; likewise, with sources of any release",
    "software": "software of which no run was measured, or that is unknown",
    "pair": "a software on a generation of accelerators; likewise",
    "accelerator": "a system; likewise",
    "generation": "a generation of accelerators; likewise",
}


def levels() -> str:
    """Standard deviation of each level, and what the hard kinds add in quadrature."""
    found = variation(validated_runs())
    of = found.runs | found.sources
    more = {"run": found.runs, "source": found.sources}
    kinds = ("experts", "assumed", "eager", "adapters")
    lines = []
    for name, what in LEVELS.items():
        added = [more[name][kind] if name in more else np.nan for kind in kinds]
        lines.append((what, *(share(float(np.sqrt(value))) for value in (of[name], *added))))
    heads = ("level", "deviation", "more with experts", "if assumed", "if eager", "with adapters")
    return table(heads, lines)


def coverage() -> str:
    """By what other sources have measured, with nothing known of the own source."""
    known = validated_runs()
    evidence, _ = evidence_of_runs(known)
    measured, stacks = evidence.framework_measured, evidence.stack_sources
    kinds = {
        "software measured by two other sources or more": stacks >= 2,
        "software measured by one other source": stacks == 1,
        "software measured by no other source": measured & (stacks == 0),
        "framework measured by no other source": ~measured,
        "software measured on such accelerators": evidence.pair_sources > 0,
        "software not measured on such accelerators": evidence.pair_sources == 0,
        "accelerator measured by other sources": evidence.accelerator_sources > 0,
        "accelerator measured by no other source": evidence.accelerator_sources == 0,
        "nothing assumed": ~evidence.assumed,
        "some setting assumed": evidence.assumed,
        "dense": ~evidence.experts,
        "mixture of experts": evidence.experts,
        "element-wise operations as separate kernels": evidence.eager,
        "adapters": evidence.adapters,
    }
    sizes = left_out_sizes(known)
    inside = (-sizes.slower <= known.unseen) & (known.unseen <= sizes.faster)
    width = np.expm1(sizes.slower + sizes.faster) / 2
    lines = []
    for name, rows in kinds.items():
        if rows.any():
            sources = known.sources[rows]
            each = [inside[rows][sources == one].mean() for one in np.unique(sources)]
            counts = (f"{rows.sum():,}", str(len(each)))
            shares = (share(float(np.mean(each))), share(float(inside[rows].mean())))
            level = signed(float(np.expm1(np.median(known.unseen[rows]))))
            lines.append((name, *counts, *shares, share(float(np.median(width[rows]))), level))
    heads = ("what is known", "n", "sources", "in interval, by source", "by run", "half-width",
             "median error")  # fmt: skip
    return table(heads, lines)

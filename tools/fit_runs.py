"""Fit the figures of the catalog that measured runs decide, and write them where they stand.

Run it after a change of the model:

    python tools/fit_runs.py [--write]
    python tools/fit_runs.py --features

It prints the errors before and after, and of each run with its own source left out. With --write
it moves the figures in catalog/systems and catalog/stacks, notes in catalog/fit/steps.yaml how far
each parameter is from what was known before, and keeps the errors with the source left out in
catalog/fit/left_out.json, which the intervals of estimates come from. What these runs used is
written to catalog/fit/features.json, their errors by class of features to
catalog/fit/classes.json, what was measured to catalog/fit/plans.json, and the errors of their peak
memory to catalog/fit/memory.json, with --features alone. Afterwards translate the runs again
(python tools/measured_rows.py --catalog): their strategies copy figures of stacks.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from catalog_fit.features import (
    classes_of_runs,
    measured_features,
    memory_table,
    plans_table,
)
from catalog_fit.fit import (
    Linear,
    Parameter,
    fitted,
    left_out,
    linear,
    load_groups,
    load_parameters,
)
from catalog_fit.newer import (
    DATES,
    SourceCoverage,
    coverage_of_newer,
    newer_errors,
    newer_sources,
    print_coverage,
    source_coverage,
)
from catalog_fit.rewrite import Place, figures_moved, rewritten, rounded, with_moves
from catalog_fit.unseen import unseen_cases
from shardwise import catalog
from shardwise.analysis.prediction_interval import left_out_sizes
from shardwise.analysis.validated_runs import (
    RunFeatures,
    ValidatedRuns,
    run_features,
    runs_of,
    validated_runs,
)
from shardwise.config import files
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.validate.measured.runs import Case, NotModeledError, Run, load_runs
from shardwise.validate.measured.statistics import summary

_CATALOG = Path(catalog.__file__).parent
_ROUNDS = 3
_ERRORS = ("error", "unseen", "accelerator_out")
_UNKNOWN_POWER = "full power"
"""What `published_rows.hardware` assumes of accelerators whose power limit no source names."""


def main() -> None:
    """Fit, print, and write if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="change the files of the catalog")
    parser.add_argument("--features", action="store_true", help="write only what runs used")
    options = parser.parse_args()
    if options.features:
        _write_features(load_runs())
        _write_memory(load_runs())
        return
    write = options.write
    runs, parameters = load_runs(), load_parameters()
    before = np.array([-p.moved for p in parameters])
    cases = _cases(runs)
    in_fit = _chosen(cases, runs, parameters)
    offsets, at = before * 0, None
    for _ in range(_ROUNDS):
        at = _from_prior(linear(in_fit, runs, parameters, offsets), before)
        _print("fitted so far", at, at.errors)
        offsets = fitted(at, parameters) + before
    at = _from_prior(linear(in_fit, runs, parameters, offsets), before)
    _print("fitted", at, at.errors)
    without = left_out(at, parameters)
    _print("its source left out", at, without)
    rest = {place: one for place, one in cases.items() if place not in in_fit}
    others = _from_prior(linear(rest, runs, parameters, offsets), before)
    _print("grade B, never fitted", others, others.errors)
    rest_without = left_out(at, parameters, others)
    _print("grade B, source out", others, rest_without)
    unseen = _from_prior(linear(unseen_cases(cases, runs), runs, parameters, offsets), before)
    unseen_without = left_out(at, parameters, unseen)
    _print("its stack left out too", unseen, unseen_without)
    _print_sources(at, without)
    _print_sources(others, rest_without)
    errors = _by_id((at, without), (others, rest_without))
    whole = _by_accelerator(at, others, parameters)
    table = _table(at, others, errors, errors | _by_id((unseen, unseen_without)), whole)
    newer = _intervals(runs_of(table), at, others, cases, parameters)
    if write:
        _write_values(parameters, offsets)
        _write_parameters(parameters, offsets)
        Stack._of_catalog.cache_clear()  # noqa: SLF001 - its files were just rewritten
        _write_prior()
        _write_rows(table, "left_out.json")
        _write_newer(newer)
        validated_runs.cache_clear()
        _write_features(runs)
        _write_memory(runs)


def _intervals(
    known: ValidatedRuns,
    at: Linear,
    others: Linear,
    cases: dict[int, Case],
    parameters: Sequence[Parameter],
) -> dict[str, list[SourceCoverage]]:
    """Print how many runs of sources that are left out lie inside their intervals.

    Returns those of sources newer than a date, from older ones alone, by date.
    """
    sizes = left_out_sizes(known)
    sources = {str(one): known.sources == one for one in np.unique(known.sources)}
    columns = (known.unseen, sizes.slower, sizes.faster)
    found = [source_coverage(one, *(c[rows] for c in columns)) for one, rows in sources.items()]
    print_coverage("intervals of sources left out", found)
    runs = load_runs()
    before = np.array([-p.moved for p in parameters])
    of_dates = {}
    for date in DATES:
        newer = newer_sources(date)
        some = unseen_cases(cases, runs, newer)
        some = {place: one for place, one in some.items() if runs[place].source in newer}
        unseen = _from_prior(linear(some, runs, parameters, at.offsets + before), before)
        left = newer_errors(newer, parameters, at, (others, unseen))
        of_dates[date] = coverage_of_newer(known, newer, left)
        print_coverage(f"sources of {date} and later", of_dates[date])
    return of_dates


def _write_newer(found: Mapping[str, Sequence[SourceCoverage]]) -> None:
    """Write how sources newer than a date are predicted from older ones."""
    table: list[list[Any]] = [["date", *(one.name for one in dataclasses.fields(SourceCoverage))]]
    for date, some in found.items():
        for one in some:
            figures = [round(v, 4) if isinstance(v, float) else v for v in dataclasses.astuple(one)]
            table.append([date, *figures])
    _write_rows(table, "newer.json")


def _cases(runs: Sequence[Run]) -> dict[int, Case]:
    """Runs of grades A and B with a time."""
    found = {}
    for place, run in enumerate(runs):
        if run.grade not in ("A", "B") or run.measured_step_time_s is None:
            continue
        try:
            found[place] = run.case()
        except NotModeledError:
            continue
    return found


def _chosen(
    cases: dict[int, Case], runs: Sequence[Run], parameters: Sequence[Parameter]
) -> dict[int, Case]:
    """Runs of the fit: grade A, and grade B of stacks with a parameter of their own and no A.

    All on systems that some parameter moves, with a power limit that is known.
    """
    systems = {name for p in parameters if p.of == "systems" for name in p.names}
    stacks = {place: one.strategy.loaded_stack().name for place, one in cases.items()}
    known = {stacks[place] for place in cases if runs[place].grade == "A"}
    own = {p.names[0] for p in parameters if p.of == "stacks" and len(p.names) == 1}
    return {
        place: one
        for place, one in cases.items()
        if one.system.name in systems
        and (runs[place].grade == "A" or stacks[place] in own - known)
        and not any(said.startswith(_UNKNOWN_POWER) for said in runs[place].assumed)
    }


def _from_prior(at: Linear, before: np.ndarray) -> Linear:
    """The same with offsets counted from what was known before, which the spread is about."""
    return Linear(
        runs=at.runs, offsets=at.offsets - before, errors=at.errors, derivatives=at.derivatives
    )


def _print(title: str, at: Linear, errors: np.ndarray) -> None:
    moe = np.array([run.kind == "moe" for run in at.runs])
    parts = {"all": moe | True, "dense": ~moe, "moe": moe}
    scores = []
    for name, rows in parts.items():
        s = summary(np.exp(errors[rows]) - 1)
        sizes = f"{s.mape:.1%} median {s.median_ape:.1%} p90 {s.p90:.1%}"
        scores.append(f"{name} {s.n}: {sizes} bias {s.bias:+.1%}")
    print(f"{title:22s} " + " | ".join(scores), flush=True)


def _print_sources(at: Linear, errors: np.ndarray) -> None:
    studies = np.array([run.source for run in at.runs])
    for study in np.unique(studies):
        rows = studies == study
        out, now = (summary(np.exp(each[rows]) - 1) for each in (errors, at.errors))
        left = f"left out {out.mape:6.1%} bias {out.bias:+6.1%}"
        print(f"  {study[:50]:50s} {out.n:4d} {left} now {now.mape:6.1%}")


def _write_values(parameters: Sequence[Parameter], offsets: np.ndarray) -> None:
    """Put the figures in place of those of the catalog."""
    for of, record in (("systems", System), ("stacks", Stack)):
        moving = [p for p in parameters if p.of == of]
        now: dict[str, Any] = {}
        for name in catalog.names(of):
            one: Any = record.load(name)
            for parameter, offset in zip(parameters, offsets, strict=True):
                if parameter.of == of and parameter.moves(name):
                    one = parameter.apply(one, float(offset))
            now[name] = record.validated(one.to_dict(), source=name).to_dict(units=True)
        for name, values in now.items():
            if of == "stacks" and not any(parameter.moves(name) for parameter in moving):
                continue  # as its base is
            path = _CATALOG / of / f"{name}.yaml"
            entry = files.read_mapping(path)
            base = now.get(entry.get("base", ""), {})
            changes = figures_moved(moving, name, written=entry, values=values, base=base)
            text = path.read_text(encoding="utf-8")
            path.write_text(rewritten(text, changes), encoding="utf-8")


def _write_prior() -> None:
    """Put the medians of the newest stacks into the stack of unknown software."""
    path = _CATALOG / "stacks" / "unknown.yaml"
    newest = [Stack.load(name) for name in load_groups()["newest stacks"]]
    changes: dict[Place, str] = {}
    for name, value in files.read_mapping(path).items():
        sorts = name == "flex_permute_traffic_factor"  # of the frameworks that have such kernels
        stacks = [Stack.load("megatron-core-2025")] if sorts else newest
        figures: list[Any] = [getattr(stack, name, None) for stack in stacks]
        if isinstance(getattr(newest[0], name, None), float):
            median = newest[0].model_copy(update={name: float(np.median(figures))})
            shown = median.to_dict(units=True)[name]
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                changes[name,] = rounded(shown)
    path.write_text(rewritten(path.read_text(encoding="utf-8"), changes), encoding="utf-8")


def _write_parameters(parameters: Sequence[Parameter], offsets: np.ndarray) -> None:
    path = _CATALOG / "fit" / "steps.yaml"
    moves = [
        parameter.moved + offset for parameter, offset in zip(parameters, offsets, strict=True)
    ]
    path.write_text(with_moves(path.read_text(encoding="utf-8"), moves), encoding="utf-8")


def _by_id(*parts: tuple[Linear, np.ndarray]) -> dict[str, float]:
    """Errors of runs by their id."""
    return {
        run.id: float(error)
        for some, errors in parts
        for run, error in zip(some.runs, errors, strict=True)
    }


def _by_accelerator(
    at: Linear, others: Linear, parameters: Sequence[Parameter]
) -> dict[str, float]:
    """Errors of runs with all runs on their accelerator left out of the fit."""
    key = attrgetter("accelerator")
    fit, rest = left_out(at, parameters, by=key), left_out(at, parameters, others, by=key)
    return _by_id((at, fit), (others, rest))


def _table(at: Linear, others: Linear, *errors: Mapping[str, float]) -> list[list[Any]]:
    """Errors of runs with what describes the runs, below the names of the columns.

    Parameters
    ----------
    errors
        With their source left out of the fit, with a stack that rests on it alone left out too, and
        with their accelerator left out.
    """
    names = [column.name for column in dataclasses.fields(RunFeatures)]
    rows: list[list[Any]] = [["id", "source", *_ERRORS, "fitted", *names]]
    for some, is_fitted in ((at, True), (others, False)):
        for run in some.runs:
            what = run_features(*run.case(), assumed=run.uncertain)
            figures = [getattr(what, name) for name in names]
            values = [round(one[run.id], 4) for one in errors]
            rows.append([run.id, run.source, *values, is_fitted, *figures])
    return rows


def _write_rows(table: Sequence[Sequence[Any]], name: str) -> None:
    text = "[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n"
    (_CATALOG / "fit" / name).write_text(text, encoding="utf-8")


def _write_features(runs: Sequence[Run]) -> None:
    """Write what the validated runs used, the error that a feature adds, and errors by class."""
    text = json.dumps(dataclasses.asdict(measured_features(runs)), indent=1)
    (_CATALOG / "fit" / "features.json").write_text(text + "\n", encoding="utf-8")
    found = classes_of_runs(runs)
    rows = ",\n".join(map(json.dumps, found["classes"]))
    text = f'{{"kinds": {json.dumps(found["kinds"])},\n"classes": [\n{rows}\n]}}\n'
    (_CATALOG / "fit" / "classes.json").write_text(text, encoding="utf-8")
    _write_rows(plans_table(runs), "plans.json")


def _write_memory(runs: Sequence[Run]) -> None:
    """Write how far predicted peaks are from measured ones."""
    _write_rows(memory_table(runs), "memory.json")


if __name__ == "__main__":
    main()

"""Fit the figures of the catalog that measured runs decide, and write them where they stand.

Run it after a change of the model:

    python tools/fit_runs.py [--write]
    python tools/fit_runs.py --features

It prints the errors before and after, and of each run with its own source left out. With --write
it moves the figures in catalog/systems and catalog/stacks, notes in catalog/fit/steps.yaml how far
each parameter is from what was known before, and keeps the errors with the source left out in
catalog/fit/left_out.json, which the intervals of estimates come from. What these runs used is
written to catalog/fit/features.json, and the errors of their peak memory to
catalog/fit/memory.json, with --features alone. Afterwards translate the runs again
(python tools/measured_rows.py --catalog): their strategies copy figures of stacks.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from catalog_fit.features import measured_features, memory_error_levels
from catalog_fit.fit import (
    Linear,
    Parameter,
    fitted,
    left_out,
    linear,
    load_groups,
    load_parameters,
)
from catalog_fit.rewrite import Place, figures_moved, rewritten, rounded, with_moves
from shardwise import catalog
from shardwise.analysis.validated_runs import RunFeatures, run_features, validated_runs
from shardwise.config import files
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import Case, NotModeledError, Run, load_runs
from shardwise.validate.measured.statistics import summary

_CATALOG = Path(catalog.__file__).parent
_ROUNDS = 3
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
    _print_sources(at, without)
    _print_sources(others, rest_without)
    if write:
        _write_values(parameters, offsets)
        _write_parameters(parameters, offsets)
        _write_prior()
        _write_errors(at, without, others, rest_without)
        validated_runs.cache_clear()
        _write_features(runs)
        _write_memory(runs)


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


def _write_errors(at: Linear, errors: np.ndarray, others: Linear, unseen: np.ndarray) -> None:
    """Write errors of runs with their source left out, with what describes the runs."""
    names = [column.name for column in dataclasses.fields(RunFeatures)]
    rows = [json.dumps(["id", "source", "error", "fitted", *names])]
    for some, values, is_fitted in ((at, errors, True), (others, unseen, False)):
        for run, error in zip(some.runs, values, strict=True):
            what = run_features(*run.case(), assumed=run.uncertain)
            figures = [getattr(what, name) for name in names]
            start = [run.id, run.source, round(float(error), 4), is_fitted]
            rows.append(json.dumps([*start, *figures]))
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    (_CATALOG / "fit" / "left_out.json").write_text(text, encoding="utf-8")


def _write_features(runs: Sequence[Run]) -> None:
    """Write what the validated runs used, and the error that a feature adds."""
    text = json.dumps(dataclasses.asdict(measured_features(runs)), indent=1)
    (_CATALOG / "fit" / "features.json").write_text(text + "\n", encoding="utf-8")


def _write_memory(runs: Sequence[Run]) -> None:
    """Write how far predicted peaks are from measured ones."""
    text = json.dumps(memory_error_levels(predict_runs(runs)), indent=1)
    (_CATALOG / "fit" / "memory.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

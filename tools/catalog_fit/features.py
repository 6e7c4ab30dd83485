"""Which features measured runs used, and how much a feature adds to the error of a prediction.

An estimate has an error of its own for each feature. Runs of one study, model, machine and
precision share all other errors. So the errors of two of them differ less if they have the same
features than if they do not: a feature adds

    sqrt(q_other^2 - q_same^2)

to the error of log time, with q the quantile `LEVEL` of the absolute differences of pairs with
other features, and with the same. It comes from features that are measured, of which the figures
of the catalog were fitted to some; the error of one that no run used is hardly smaller.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from catalog_fit.unseen import unseen_cases
from shardwise.analysis.features import MeasuredFeatures, features_of
from shardwise.analysis.measured_plans import MeasuredRow
from shardwise.analysis.memory_interval import MemoryFeatures
from shardwise.analysis.plan_classes import PlanClass, class_codes, class_table
from shardwise.analysis.prediction_interval import comparable_runs
from shardwise.analysis.validated_runs import ValidatedRuns, validated_runs
from shardwise.analysis.variation import quantile
from shardwise.config.strategy_table import Table
from shardwise.estimator import ideal_step_time
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import Run

_GRADE = "A"
_GRADES = ("A", "B")


def features_by_run(runs: Sequence[Run], known: ValidatedRuns) -> dict[str, tuple[str, ...]]:
    """Return the features of validated runs of grade A, by id."""
    ids = frozenset(known.ids)
    found = {}
    for run in runs:
        if run.id in ids and run.grade == _GRADE:
            model, system, strategy = run.case()
            found[run.id] = features_of(model, Table.of(model, [strategy], system.stack))
    return found


def measured_features(runs: Sequence[Run]) -> MeasuredFeatures:
    """Return what validated runs of grade A used."""
    known = validated_runs()
    features = features_by_run(runs, known)
    used = Counter(name for names in features.values() for name in names)
    return MeasuredFeatures(
        runs=len(features),
        used=dict(sorted(used.items())),
        added_error=round(added_error(features, known), 4),
    )


def added_error(features: Mapping[str, tuple[str, ...]], known: ValidatedRuns) -> float:
    """Return the error of log time that a feature adds.

    Parameters
    ----------
    features
        Of runs, by id.
    known
        Errors of these runs.
    """
    gaps: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for rows in comparable_runs(known):
        pairs = list(combinations([row for row in rows if known.ids[row] in features], 2))
        for one, other in pairs:
            same = set(features[known.ids[one]]) == set(features[known.ids[other]])
            gap = abs(float(known.errors[one] - known.errors[other]))
            gaps[same].append((gap, 1 / len(pairs) ** 0.5))  # a large study is one study
    with_same, with_other = (quantile(*np.array(gaps[same]).T) for same in (True, False))
    return float(np.sqrt(max(with_other**2 - with_same**2, 0.0)))


def classes_of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the errors of validated runs by class (`shardwise.analysis.plan_classes`).

    Runs of one configuration differ in nothing but the release of their software, and count once.
    """
    known = validated_runs()
    errors = dict(zip(known.ids, known.errors.tolist(), strict=True))
    found: list[tuple[PlanClass, str, object, float]] = []
    for run in runs:
        if run.id in errors and run.refused is None:
            model, system, strategy = run.case()
            code = class_codes(model, system, Table.of(model, [strategy], system.stack))[0]
            fields = strategy.model_dump_json(exclude={"stack", "any_software"})
            configuration = model.name, system.name, fields
            found.append((PlanClass.of_code(int(code)), run.source, configuration, errors[run.id]))
    return class_table(found)


def plans_table(runs: Sequence[Run]) -> list[list[Any]]:
    """Runs of grades A and B with a step time, below the names of their columns.

    As `shardwise.analysis.measured_plans` compares them with plans.
    """
    rows: list[list[Any]] = [[field.name for field in dataclasses.fields(MeasuredRow)]]
    for run in runs:
        step_s = run.measured_step_time_s
        if run.grade not in _GRADES or step_s is None or run.refused is not None:
            continue
        model, system, strategy = run.case()
        full = strategy.resolved(model, system)
        ideal_s = float(ideal_step_time(model, system, Table.of(model, [full], system.stack))[0])
        row = MeasuredRow.of(
            *(model, system, full),
            name=run.id,
            source=run.source,
            step_time_s=round(step_s, 6),
            mfu=round(ideal_s / step_s, 4),
        )
        rows.append(list(dataclasses.astuple(row)))
    return rows


def memory_table(runs: Sequence[Run]) -> list[list[Any]]:
    """Errors of the peak memory of runs of grades A and B, below the names of their columns.

    Each as if its own source were unknown (`catalog_fit.unseen`).
    """
    cases = {}
    for place, run in enumerate(runs):
        if run.grade in _GRADES and run.measured_memory_gib is not None and run.refused is None:
            cases[place] = run.case()
    unseen = cases | unseen_cases(cases, runs)
    some = [
        runs[place].model_copy(update={"strategy": case.strategy}) for place, case in unseen.items()
    ]
    names = list(MemoryFeatures.__dataclass_fields__)
    rows: list[list[Any]] = [["id", "source", "error", *names]]
    for place, one in zip(unseen, predict_runs(some), strict=True):
        run, measured = one.run, one.run.measured_memory_gib
        if one.memory_gib is None or measured is None:
            continue
        _, system, strategy = cases[place]
        reserved = run.measured.memory_metric != "allocated"
        stack = strategy.loaded_stack(system)
        what = MemoryFeatures.of(stack, strategy, reserved=reserved)
        error = round(float(np.log(one.memory_gib / measured)), 4)
        rows.append([run.id, run.source, error, *(getattr(what, name) for name in names)])
    return rows

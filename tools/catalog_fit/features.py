"""Which features measured runs used, and how much a feature adds to the error of a prediction.

An estimate has an error of its own for each feature. Runs of one study, model, machine and
precision share all other errors. So the errors of two of them differ less if they have the same
features than if they do not: a feature adds

    sqrt(q_other^2 - q_same^2)

to the error of log time, with q the quantile `LEVEL` of the absolute differences of pairs with
other features, and with the same. It comes from features that are measured, of which the figures
of the catalog were fitted to some; the error of one that no run used is hardly smaller.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from shardwise.analysis.features import MeasuredFeatures, features_of
from shardwise.analysis.prediction_interval import comparable_runs, memory_error
from shardwise.analysis.validated_runs import ValidatedRuns, validated_runs
from shardwise.analysis.variation import quantile
from shardwise.config.strategy_table import Table
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import Run

_GRADE = "A"


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


def memory_error_levels(predictions: Sequence[Prediction]) -> dict[str, dict[str, float]]:
    """Errors of the peak memory of runs of grades A and B: what 8 of 10 do not exceed.

    Of memory that tensors allocate, and of all that the accelerator must have.
    """
    found: dict[str, dict[str, list[float]]] = {"allocated": {}, "reserved": {}}
    for one in predictions:
        measured = one.run.measured_memory_gib
        if one.memory_gib is None or measured is None or one.run.grade not in ("A", "B"):
            continue
        metric = one.run.measured.memory_metric
        kind = "allocated" if metric == "allocated" else "reserved"
        error = float(np.log(one.memory_gib / measured))
        found[kind].setdefault(one.run.source, []).append(error)
    return {
        kind: {
            "error": round(memory_error(errors), 4),
            "runs": sum(map(len, errors.values())),
            "sources": len(errors),
        }
        for kind, errors in found.items()
    }

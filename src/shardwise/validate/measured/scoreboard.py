"""The scoreboard of measured runs: each with its prediction, and errors by groups of runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import numpy as np

from shardwise.config.plain import plain
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import PrecisionClass, Run, Scale
from shardwise.validate.measured.statistics import (
    Floats,
    LeftOut,
    ReferencePrediction,
    ReferenceScore,
    Summary,
    constant_mfu,
    coverage,
    left_out_scores,
    pairs_in_order,
    regrets,
    signed_errors,
    skill,
    studies_tau,
    summary,
)

GROUPINGS = ("grade", "source", "accelerator", "kind", "scale", "precision")
"""Fields of `ScoredRun` that runs are grouped by."""
# Groups in a fixed order; others are sorted by name.
_ORDERS = {"scale": get_args(Scale), "precision": get_args(PrecisionClass)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """A measured run with its prediction."""

    id: str
    source: str
    grade: str
    accelerator: str
    precision: str
    kind: str
    scale: str
    measured_step_time_s: float | None
    predicted_step_time_s: float | None
    error: float | None
    """Predicted over measured, minus one."""
    interval: tuple[float, float] | None
    """Bounds of the expected step time [s]."""
    measured_memory_gib: float | None
    predicted_memory_gib: float | None
    memory_error: float | None
    assumed: tuple[str, ...]
    ignored: tuple[str, ...]
    """What the row says and the prediction does not use."""
    refused: str | None
    """Why there is no prediction; None if there is one."""
    references: Mapping[str, ReferencePrediction] = field(default_factory=dict)
    """Predecessors' predictions, by name."""

    @classmethod
    def of(cls, prediction: Prediction) -> "ScoredRun":
        """Score one prediction."""
        run = prediction.run
        step, memory = prediction.measured_step_time_s, run.measured_memory_gib
        return cls(
            id=run.id,
            source=run.source,
            grade=run.grade or "none",
            accelerator=run.accelerator,
            precision=run.precision,
            kind=run.kind,
            scale=run.scale,
            measured_step_time_s=step,
            predicted_step_time_s=prediction.step_time_s,
            error=_error(prediction.step_time_s, step),
            interval=prediction.interval,
            measured_memory_gib=memory,
            predicted_memory_gib=prediction.memory_gib,
            memory_error=_error(prediction.memory_gib, memory),
            assumed=() if prediction.refused else run.assumed,
            ignored=() if prediction.refused else run.ignored,
            refused=prediction.refused,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `ignored`, `refused` and `references` only if not empty."""
        record = asdict(self)
        record["references"] = {name: one.to_dict() for name, one in self.references.items()}
        for optional in ("ignored", "refused", "references"):
            if not record[optional]:
                del record[optional]
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """Errors over a group of runs."""

    rows: int
    """All of them, also those without a measured time or a prediction."""
    refused: int
    errors: Summary
    """Of the time of a step."""
    skill: float
    """Over a constant-MFU guess; NaN where it has none."""
    coverage: float
    """Share of measured times inside the interval; NaN without intervals."""
    memory: Summary
    """Errors of the peak memory."""

    @property
    def counts(self) -> str:
        """How many are predicted, refused and without a time, in words."""
        untimed = self.rows - self.errors.n - self.refused
        counts = f"{self.errors.n:,} predicted, {self.refused:,} refused"
        return f"{counts}, {untimed:,} without a time to compare" if untimed else counts

    @classmethod
    def mean(cls, scores: Sequence["RunScore"]) -> "RunScore":
        """The mean of the scores of groups, in which each group counts once; n is their number."""

        def mean(name: str) -> float:
            figures = [getattr(one, name, getattr(one.errors, name, np.nan)) for one in scores]
            known = [value for value in figures if np.isfinite(value)]
            return float(np.mean(known)) if known else np.nan

        sizes = {name: mean(name) for name in ("mape", "median_ape", "bias", "p90")}
        return cls(
            rows=sum(one.rows for one in scores),
            refused=0,
            errors=Summary(n=len(scores), **sizes),
            skill=mean("skill"),
            coverage=mean("coverage"),
            memory=summary(np.array([])),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, those of the step time at the top."""
        rest = {"skill": self.skill, "coverage": self.coverage, "memory": asdict(self.memory)}
        record = {"rows": self.rows, "refused": self.refused, **asdict(self.errors), **rest}
        return dict(plain(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well predictions order comparable runs.

    A study has one source, task, model, sequence length and accelerator, and compares throughput
    per accelerator. A choice has also one machine, count, batch, precision and release of the
    software, and three runs or more.
    """

    pairs: int
    """Pairs inside studies whose throughput differs by more than 10 %."""
    in_order: float
    """Share of them ordered right."""
    studies: int
    tau: float
    """Mean of Kendall's tau over the studies."""
    choices: int
    regret: float
    """Mean relative loss of the strategy predicted best against the best."""
    most_regret: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(plain(asdict(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """All runs with their errors, and the errors of groups of them."""

    rows: tuple[ScoredRun, ...]
    overall: RunScore
    groups: dict[str, dict[str, RunScore]]
    """By each of `GROUPINGS`, then by its value."""
    ranking: Ranking
    left_out: dict[str, LeftOut]
    """Of shipped runs of grade A in the fit, each with its source left out: all, dense and moe."""
    references: dict[str, ReferenceScore]
    """By predecessor: its errors and ours on the runs that it can express."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        groups = {
            by: {name: score.to_dict() for name, score in scores.items()}
            for by, scores in self.groups.items()
        }
        left_out = {name: score.to_dict() for name, score in self.left_out.items()}
        references = {name: score.to_dict() for name, score in self.references.items()}
        head = {"overall": self.overall.to_dict(), **groups, "ranking": self.ranking.to_dict()}
        return {
            "suite": "runs",
            "rows": [row.to_dict() for row in self.rows],
            "summary": head | {"left_out": left_out, "references": references},
        }


def scoreboard(
    predictions: Sequence[Prediction],
    *,
    among: Sequence[Prediction] | None = None,
    references: Mapping[str, Sequence[ReferencePrediction]] | None = None,
) -> Scoreboard:
    """Score predictions.

    Parameters
    ----------
    among
        Predictions that the constant MFU is computed from, including these; None: these alone.
    references
        Predecessors' predictions of these runs, by predecessor.
    """
    references = references or {}
    rows = tuple(_with_references(map(ScoredRun.of, predictions), references))
    baseline = _baseline_errors(predictions if among is None else among)
    guessed = np.array([baseline.get(row.id, np.nan) for row in rows])
    everything = np.arange(len(rows))
    groups = {}
    for by in GROUPINGS:
        named = np.array([getattr(row, by) for row in rows])
        names = [*_ORDERS.get(by, ()), *sorted(set(named) - set(_ORDERS.get(by, ())))]
        inside = {str(name): everything[named == name] for name in names}
        groups[by] = {
            name: _score(rows, guessed, some) for name, some in inside.items() if some.size
        }
    return Scoreboard(
        rows=rows,
        overall=_score(rows, guessed, everything),
        groups=groups,
        ranking=_ranking(predictions),
        left_out=left_out_scores(predictions, baseline),
        references={name: ReferenceScore.of(pairs) for name, pairs in references.items()},
    )


def _with_references(
    rows: Iterable[ScoredRun], references: Mapping[str, Sequence[ReferencePrediction]]
) -> Iterator[ScoredRun]:
    by_run: dict[str, dict[str, ReferencePrediction]] = defaultdict(dict)
    for name, pairs in references.items():
        for pair in pairs:
            by_run[pair.id][name] = pair
    for row in rows:
        yield replace(row, references=by_run[row.id]) if row.id in by_run else row


def _error(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    return predicted / measured - 1


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _baseline_errors(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Errors of a constant MFU by run: measured MFU over the guess, minus one."""
    known = [one for one in predictions if one.measured_mfu is not None]
    if not known:
        return {}
    mfu = _column([one.measured_mfu for one in known])
    runs = [one.run for one in known]
    family = np.array([run.accelerator for run in runs])
    precision = np.array([run.precision for run in runs])
    guess = constant_mfu(mfu, family, precision, np.array([run.source for run in runs]))
    ids = [run.id for run in runs]
    return dict(zip(ids, signed_errors(mfu, guess).tolist(), strict=True))


def _score(rows: Sequence[ScoredRun], guessed: Floats, inside: np.ndarray) -> RunScore:
    """Score some of the rows from the errors of the baseline for all."""
    some = [rows[position] for position in inside]
    timed = [position for position in inside if rows[position].error is not None]
    errors = _column([rows[position].error for position in timed])
    measured = _column([rows[position].measured_step_time_s for position in timed])
    intervals = [rows[position].interval or (np.nan, np.nan) for position in timed]
    low, high = np.array(intervals, dtype=np.float64).reshape(-1, 2).T
    return RunScore(
        rows=len(some),
        refused=sum(row.refused is not None for row in some),
        errors=summary(errors),
        skill=skill(errors, guessed[timed]),
        coverage=coverage(measured, low, high),
        memory=summary(_column([r.memory_error for r in some if r.memory_error is not None])),
    )


def _ranking(predictions: Sequence[Prediction]) -> Ranking:
    measured = _column([one.measured_step_time_s for one in predictions])
    predicted = _column([one.step_time_s for one in predictions])
    known = np.isfinite(measured) & np.isfinite(predicted)
    measured, predicted = measured[known], predicted[known]
    runs = [one.run for one, is_known in zip(predictions, known, strict=True) if is_known]
    work = _column([_tokens_per_accelerator(run) for run in runs])
    finite_work = np.isfinite(work)
    study = _labels([_study(run) for run in runs])[finite_work]
    rates = ((work / measured)[finite_work], (work / predicted)[finite_work])
    pairs, right = pairs_in_order(*rates, study)
    taus = studies_tau(*rates, study)
    lost = regrets(measured, predicted, _labels([_choice(run) for run in runs]))
    return Ranking(
        pairs=pairs,
        in_order=right / pairs if pairs else np.nan,
        studies=taus.size,
        tau=float(taus.mean()) if taus.size else np.nan,
        choices=lost.size,
        regret=float(lost.mean()) if lost.size else np.nan,
        most_regret=float(lost.max()) if lost.size else np.nan,
    )


def _tokens_per_accelerator(run: Run) -> float | None:
    tokens = run.tokens_per_step
    return None if tokens is None or run.gpus is None else tokens / run.gpus


def _study(run: Run) -> tuple[object, ...]:
    name = None if run.model is None else run.model.name
    return (run.source, run.task, name, run.seq_len, run.accelerator)


def _choice(run: Run) -> tuple[object, ...]:
    """Fields that are equal if only the strategy differs."""
    batch = (run.gpus, run.global_batch_size)
    return (*_study(run), *batch, run.precision, run.title, run.setup)


def _labels(keys: Sequence[tuple[object, ...]]) -> np.ndarray:
    """A number for each distinct key, in order of appearance."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.intp)

"""`validate_suite`: estimates next to published figures, measured runs or measured kernels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

from shardwise import registry
from shardwise.config.arguments import one_of, text_of
from shardwise.errors import Fault, InputError, check_flags, check_path, refuse
from shardwise.validate import COLLECTIONS, SUITES, Scoreboard, no_such_suite, validate
from shardwise.validate.kernels import KernelScores, kernel_scores
from shardwise.validate.measured.predict import Prediction, predict_as_typed, predict_runs
from shardwise.validate.measured.runs import Grade, Run, load_runs, read_runs
from shardwise.validate.measured.scoreboard import Scoreboard as RunScoreboard
from shardwise.validate.measured.scoreboard import scoreboard
from shardwise.validate.measured.statistics import ReferencePrediction

RUNS, KERNELS = "runs", "kernels"
KINDS = ("dense", "moe")
NO_FOLDER = "is missing: set it to a folder with gemm.parquet, collective.csv.gz, ..."
_Suite = Literal["seqsel", "simumax", "nersc-collectives", "amped"]


@overload
def validate_suite(
    suite: Literal["runs"] = "runs",
    *,
    data: str | Path | None = None,
    grade: str | Sequence[str] | None = None,
    kind: Literal["dense", "moe"] | None = None,
    source: str | None = None,
    references: bool = False,
    as_typed: bool = False,
) -> RunScoreboard: ...


@overload
def validate_suite(suite: Literal["kernels"], *, data: str | Path) -> KernelScores: ...


@overload
def validate_suite(suite: _Suite) -> Scoreboard: ...


def validate_suite(
    suite: str = "runs",
    *,
    data: str | Path | None = None,
    grade: str | Sequence[str] | None = None,
    kind: str | None = None,
    source: str | None = None,
    references: bool = False,
    as_typed: bool = False,
) -> RunScoreboard | KernelScores | Scoreboard:
    """Compare estimates with measured training runs, measured kernels or published figures.

    Parameters
    ----------
    suite
        ``runs``, the published training runs or your own; ``kernels``, your tables of measured
        kernels; or figures of papers, ``seqsel``, ``simumax``, ``nersc-collectives``, ``amped``.
    data
        Your own data: a file of runs, or the folder of the tables.
    grade, kind, source
        Only runs of these grades (``"A,B"``), of this kind (``dense`` or ``moe``), and whose source
        contains this text.
    references
        Whether to add the errors of Calculon, NERSC's model, SimuMax and AMPeD on the same runs.
    as_typed
        Whether to predict with the software as the sources name it, without figures of a stack that
        follow from anything else.

    Returns
    -------
    The scores, whose `to_dict` is what ``shardwise validate --json`` prints.

    Raises
    ------
    InputError
        If there is no such suite, an option is not for it, or the data are wrong.

    Examples
    --------
    >>> from shardwise import validate_suite
    >>> [part.name for part in validate_suite("seqsel").parts]
    ['fig1_state', 'fig1_activations', 'fig7_activations', 'tab4_layer', 'tab5_step_time']
    """
    check_flags(references=references, as_typed=as_typed)
    if not isinstance(suite, str):
        raise no_such_suite(suite, [*SUITES, *COLLECTIONS])
    if data is not None:
        check_path("data", data)
    options: dict[str, Any] = {"grade": grade, "kind": kind, "source": source}
    options |= {"references": references or None, "as_typed": as_typed or None}
    if suite == RUNS:
        return runs_scoreboard(
            data, grade=grade, kind=kind, source=source, references=references, as_typed=as_typed
        )
    if suite not in SUITES and suite != KERNELS:
        raise no_such_suite(suite, [*SUITES, *COLLECTIONS])
    options |= {} if suite == KERNELS else {"data": data}
    refuse(
        Fault.of(name, value, f"has no effect on the suite {suite}")
        for name, value in options.items()
        if value is not None
    )
    if suite in SUITES:
        return validate(suite)
    if data is None:
        raise InputError(Fault(field="data", problem=NO_FOLDER))
    return kernel_scores(data)


def runs_scoreboard(
    data: str | Path | None,
    *,
    grade: str | Sequence[str] | None,
    kind: str | None,
    source: str | None,
    references: bool,
    as_typed: bool = False,
) -> RunScoreboard:
    """Predict measured training runs, those of the catalog or of a file, and score them."""
    texts = [] if grade is None else (text_of(grade) or "").split(",")
    grades = [one_of("grade", text, get_args(Grade)) for text in texts]
    one_kind = None if kind is None else one_of("kind", str(kind), KINDS)
    runs = load_runs() if data is None else read_runs(data)
    source = text_of(source)
    if source is not None and not any(_is_of(run, source) for run in runs):
        of_data = "" if data is None else f" --data {data}"
        problem = f"matches no source; to list them: shardwise validate runs{of_data}"
        raise InputError(Fault.of("source", source, problem))
    predictions = predict_as_typed(runs) if as_typed else predict_runs(runs)
    selected = [
        one
        for one in predictions
        if (not grades or one.run.grade in grades)
        and (one_kind is None or one.run.kind == one_kind)
        and (source is None or _is_of(one.run, source))
    ]
    if not selected:
        problem = "has no runs of that grade, kind and source"
        raise InputError(Fault(source=str(data or RUNS), problem=problem))
    # The baseline uses all runs: the runs of one source alone have none.
    others = _other_models(selected) if references else None
    return scoreboard(selected, among=predictions, references=others)


def _other_models(
    predictions: Sequence[Prediction],
) -> Mapping[str, Sequence[ReferencePrediction]]:
    """Predictions of other models for the same runs."""
    found: Mapping[str, Sequence[ReferencePrediction]] = registry.function(
        "predictions_by_references"
    )(predictions)
    return found


def _is_of(run: Run, source: str) -> bool:
    """Whether a text is in what names the source of a run, in any case."""
    origin = f"{run.source}\n{run.title}\n{run.ref}"
    return source.lower() in origin.lower()

"""`shardwise validate runs`: measured training runs, ours or those of a file."""

from collections.abc import Mapping, Sequence
from typing import get_args

from shardwise.cli.options import Stopwatch, emit_json, log
from shardwise.errors import Fault, InputError, nearest
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.run import Grade
from shardwise.validate.measured.statistics import Beside
from shardwise.validate.measured.store import load_runs, read_runs

__all__ = ["RUNS", "validate_runs"]

RUNS = "runs"
"""Name of the suite."""

_KINDS = ("dense", "moe")


def validate_runs(
    *,
    data: str | None,
    grade: str | None,
    kind: str | None,
    source: str | None,
    rows: bool,
    references: bool,
    plot: str | None,
    json: bool,
    output: str | None,
) -> int:
    """Predict runs, and print how far off that is."""
    from shardwise.validate.measured.predict import predict_runs  # noqa: PLC0415 - only where used
    from shardwise.validate.measured.scoreboard import scoreboard  # noqa: PLC0415 - only where used

    grades = (
        [] if grade is None else [_one_of("grade", g, get_args(Grade)) for g in grade.split(",")]
    )
    wanted = None if kind is None else _one_of("kind", kind, _KINDS)
    if plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(plot)
    watch = Stopwatch()
    predictions = predict_runs(load_runs() if data is None else read_runs(data))
    some = [p for p in predictions if _is_wanted(p, grades, wanted, source)]
    if not some:
        raise InputError(
            Fault(source=data or RUNS, problem="holds no run of that grade, kind and source")
        )
    log.info("predicted %d runs in %s", len(predictions), watch)
    # The baseline is of all runs: with those of one source alone there is none.
    board = scoreboard(some, among=predictions, beside=_beside(some) if references else None)
    record = board.to_dict()
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        from shardwise.report.tables.measured import print_runs  # noqa: PLC0415 - slow to import

        print_runs(board, rows=rows)
    if plot is not None:
        from shardwise.report.charts.measured import write_charts  # noqa: PLC0415 - slow

        write_charts(board, plot)
    return 0


def _beside(predictions: Sequence[Prediction]) -> Mapping[str, Sequence[Beside]]:
    """What the predecessors say of the same runs."""
    from shardwise.validate.references import references  # noqa: PLC0415 - only where used

    watch = Stopwatch()
    found = references(predictions)
    log.info("asked the predecessors in %s", watch)
    return found


def _one_of(flag: str, text: str, allowed: tuple[str, ...]) -> str:
    """Read a word that may be one of a few."""
    known = {word.lower(): word for word in allowed}
    word = known.get(text.strip().lower())
    if word is None:
        problem = f"allowed: {', '.join(allowed)}{nearest(text, allowed)}"
        raise InputError(
            Fault(source="command line", field=flag, value=text, has_value=True, problem=problem)
        )
    return word


def _is_wanted(
    prediction: Prediction, grades: list[str], kind: str | None, source: str | None
) -> bool:
    run = prediction.run
    origin = f"{run.study}\n{run.source.title}\n{run.source.ref}".lower()
    return (
        (not grades or run.grade in grades)
        and (kind is None or run.kind == kind)
        and (source is None or source.lower() in origin)
    )

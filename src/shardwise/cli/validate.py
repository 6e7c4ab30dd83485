"""`shardwise validate`."""

from dataclasses import asdict, dataclass
from typing import Any

from shardwise import registry
from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    arg,
    missing_flag,
    opt,
    refuse_options,
    with_options,
)
from shardwise.cli.output import Stopwatch, check_different_files, check_pages, log, printed, show
from shardwise.validate import COLLECTIONS, SUITES, no_such_suite, validate

_RUNS = "runs"
_KERNELS = "kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `validate runs`."""

    grade: str | None = opt("--grade A,B,C", "runs: only these grades.")
    kind: str | None = opt("--kind dense|moe", "runs: only this kind.")
    source: str | None = opt("--source TEXT", "runs: only sources that contain TEXT.")
    references: bool = opt(
        "--references", "runs: also the errors of Calculon, NERSC's model, SimuMax and AMPeD."
    )
    as_typed: bool = opt(
        "--as-typed", "runs: with the software as the source of each run names it."
    )
    plot: str | None = opt(
        "--plot FILE", "runs: write charts to FILE: .html, .json, .png, .svg.", OUTPUT
    )


@with_help(examples=["shardwise validate runs", "shardwise validate kernels --data measured"])
@with_options
def command(
    *,
    suite: str | None = arg("[SUITE]", "Suite to run; listed if omitted.", default=None),
    data: str | None = opt(
        "--data PATH",
        "Your own data: a file of runs (JSON rows or shardwise format), or a folder of "
        "kernel tables.",
    ),
    options: RunOptions,
    rows: bool = opt(
        "--rows", "List every row instead of scores by group; kernels: add rows to the JSON."
    ),
    out: str | None = opt(
        "--out FILE", "kernels: write every row to .parquet, .csv or .csv.gz.", OUTPUT
    ),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Compare estimates with published figures, next to the errors of other models.

    Without a SUITE the suites are listed. Errors are signed: predicted over measured, minus one.

    `kernels` scores your own tables: gemm, attention, moe, collective, moe_alltoall, cast_fp8,
    train_gemm, train_attention, each a file of that name in the folder of --data.
    """
    shown: dict[str, Any] = {"json": json, "output": output}
    if suite == _KERNELS:
        refuse_options(f"is for the suite {_RUNS} only", **asdict(options))
        return _validate_kernels(data=data, rows=rows, out=out, **shown)
    refuse_options(f"is for the suite {_KERNELS} only", out=out)
    if suite == _RUNS or (suite is None and data is not None):
        return _validate_runs(options, data=data, rows=rows, **shown)
    refuse_options(f"is for the suites {_RUNS} and {_KERNELS} only", data=data)
    refuse_options(f"is for the suite {_RUNS} only", **asdict(options))
    if suite is None:
        refuse_options("needs a SUITE", rows=rows)
        suites = {name: summary for name, (summary, _) in SUITES.items()} | COLLECTIONS
        show(lambda: {"suites": suites}, printed("validate:print_suites", suites), **shown)
        return 0
    if suite not in SUITES:
        raise no_such_suite(suite, [*SUITES, *COLLECTIONS])
    watch = Stopwatch()
    found = validate(suite)
    log.info("compared %d figures in %s", len(found.to_dict()["rows"]), watch)
    show(found.to_dict, printed("validate:print_scoreboard", found, rows=rows), **shown)
    return 0


def _validate_kernels(
    *, data: str | None, rows: bool, out: str | None, json: bool, output: str | None
) -> int:
    """Score the kernel tables of a folder."""
    from shardwise.validate.kernels import (  # noqa: PLC0415
        check_rows_file,
        kernel_scores,
        save_rows,
    )
    from shardwise.validate.suites import NO_FOLDER  # noqa: PLC0415

    if data is None:
        raise missing_flag("data", NO_FOLDER)
    if rows and not json and output is None:
        raise missing_flag("rows", "needs --json or --output; for a table of rows use --out FILE")
    check_different_files(output=output, out=out)
    if out is not None:
        check_rows_file(out)
    watch = Stopwatch()
    scores = kernel_scores(data)
    log.info("predicted %d rows in %s", sum(len(table) for table, _ in scores.tables), watch)
    if out is not None:
        save_rows(scores, out)
        log.info("wrote %s", out)
    table = printed("calibration:print_kernel_scores", scores)
    show(lambda: scores.to_dict(rows=rows), table, json=json, output=output)
    return 0


def _validate_runs(
    options: RunOptions, *, data: str | None, rows: bool, json: bool, output: str | None
) -> int:
    """Predict measured training runs, those of the catalog or of a file."""
    from shardwise.validate.suites import validate_suite  # noqa: PLC0415 - slow to import

    check_pages(options.plot)
    watch = Stopwatch()
    selection: dict[str, Any] = {"grade": options.grade, "kind": options.kind}
    selection |= {"source": options.source, "references": options.references}
    selection |= {"as_typed": options.as_typed}
    board = validate_suite("runs", data=data, **selection)
    log.info("predicted %d runs in %s", len(board.rows), watch)
    show(board.to_dict, printed("measured:print_runs", board, rows=rows), json=json, output=output)
    if options.plot is not None:
        registry.load("report.charts.measured:write_charts")(board, options.plot)
    return 0

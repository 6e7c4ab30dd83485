"""`shardwise validate`."""

from typing import Annotated

import typer

from shardwise.cli.options import (
    JsonFlag,
    OutputOption,
    Stopwatch,
    emit_json,
    log,
    refuse_given,
)
from shardwise.errors import Fault, InputError
from shardwise.validate import SUITES, validate

_KERNELS = "kernels"
_TOLD = {name: summary for name, (summary, _) in SUITES.items()} | {
    _KERNELS: "your tables of measured kernels and collectives, given by --data"
}


def command(
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="Suite to run; listed if omitted.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", help="For kernels: folder of tables (.parquet, .csv, .csv.gz)."
        ),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="For kernels: every row too, with --json or --output.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FILE", help="For kernels: every row as .parquet, .csv or .csv.gz."
        ),
    ] = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Compare our estimates with published figures, next to what other models say.

    Without a SUITE the suites are listed. Errors are signed: predicted over reference, minus one.

    `kernels` scores tables of your own: gemm, attention, moe, collective, moe_alltoall, cast_fp8,
    train_gemm, train_attention, each a file of that name in the folder given by --data.
    """
    if suite == _KERNELS:
        return _kernels(data, rows=rows, out=out, json=json, output=output)
    refuse_given(f"only {_KERNELS} takes it", data=data, rows=rows, out=out)
    watch = Stopwatch()
    if suite is None:
        record = {"suites": _TOLD}
    else:
        found = validate(suite)
        record = found.to_dict()
        log.info("compared %d figures in %s", len(record["rows"]), watch)
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        from shardwise.report.validate import print_scoreboard, print_suites  # noqa: PLC0415

        if suite is None:
            print_suites(_TOLD)
        else:
            print_scoreboard(found)
    return 0


def _kernels(
    data: str | None, *, rows: bool, out: str | None, json: bool, output: str | None
) -> int:
    """Score the tables of a folder."""
    from shardwise.validate.kernels import kernel_scores, save_rows  # noqa: PLC0415

    if data is None:
        problem = "is missing: give --data DIR, a folder with gemm.parquet, collective.csv.gz, ..."
        raise InputError(Fault(source="command line", field="data", problem=problem))
    if rows and not json and output is None:
        problem = "needs --json or --output; for a table of rows give --out FILE"
        raise InputError(Fault(source="command line", field="rows", problem=problem))
    watch = Stopwatch()
    scores = kernel_scores(data)
    log.info("predicted %d rows in %s", sum(len(table) for table, _ in scores.tables), watch)
    if out is not None:
        save_rows(scores, out)
        log.info("wrote %s", out)
    if output is not None:
        emit_json(scores.to_dict(rows=rows), output)
    if json:
        emit_json(scores.to_dict(rows=rows))
    elif output is None:
        from shardwise.report.kernels import print_kernel_scores  # noqa: PLC0415

        print_kernel_scores(scores)
    return 0

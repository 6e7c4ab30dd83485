"""`shardwise validate`."""

from typing import Annotated

import typer

from shardwise.cli.options import JsonFlag, OutputOption, Stopwatch, emit_json, log, refuse_options
from shardwise.cli.validate_kernels import KERNELS, validate_kernels
from shardwise.cli.validate_runs import RUNS, validate_runs
from shardwise.validate import COLLECTIONS, SUITES, no_such_suite, validate


def command(
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="Suite to run; listed if omitted.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Your own: a file of runs (JSON rows, or our form), a folder of kernel tables.",
        ),
    ] = None,
    grade: Annotated[
        str | None, typer.Option("--grade", metavar="A,B,C", help="Of runs: only these grades.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="dense|moe", help="Of runs: only those of this kind."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="TEXT", help="Of runs: only sources that TEXT is part of."
        ),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Of runs: list every one; of kernels: in the JSON.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FILE", help="Of kernels: every row as .parquet, .csv or .csv.gz."
        ),
    ] = None,
    references: Annotated[
        bool,
        typer.Option(
            "--references", help="Of runs: what Calculon, NERSC's model and SimuMax say, too."
        ),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Of runs: write charts to FILE: .html, .json, .png, .svg.",
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
    of_runs: dict[str, object] = {"grade": grade, "kind": kind, "source": source}
    of_runs |= {"references": references, "plot": plot}
    if suite == KERNELS:
        refuse_options(f"is for the suite {RUNS} only", **of_runs)
        return validate_kernels(data=data, rows=rows, out=out, json=json, output=output)
    refuse_options(f"is for the suite {KERNELS} only", out=out)
    if suite == RUNS or (suite is None and data is not None):
        return validate_runs(
            data=data,
            grade=grade,
            kind=kind,
            source=source,
            rows=rows,
            references=references,
            plot=plot,
            json=json,
            output=output,
        )
    refuse_options(f"is for the suites {RUNS} and {KERNELS} only", data=data, rows=rows)
    refuse_options(f"is for the suite {RUNS} only", **of_runs)
    if suite is not None and suite not in SUITES:
        raise no_such_suite(suite, [*SUITES, *COLLECTIONS])
    watch = Stopwatch()
    if suite is None:
        told = {name: summary for name, (summary, _) in SUITES.items()} | COLLECTIONS
        record = {"suites": told}
    else:
        found = validate(suite)
        record = found.to_dict()
        log.info("compared %d figures in %s", len(record["rows"]), watch)
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        from shardwise.report.tables.validate import print_scoreboard, print_suites  # noqa: PLC0415

        if suite is None:
            print_suites(told)
        else:
            print_scoreboard(found)
    return 0

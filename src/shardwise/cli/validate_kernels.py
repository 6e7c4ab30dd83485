"""`shardwise validate kernels`: tables of measured kernels and collectives."""

from shardwise.cli.options import Stopwatch, emit_json, log
from shardwise.errors import Fault, InputError

__all__ = ["KERNELS", "validate_kernels"]

KERNELS = "kernels"
"""Name of the suite."""


def validate_kernels(
    *, data: str | None, rows: bool, out: str | None, json: bool, output: str | None
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
        from shardwise.report.tables.kernels import print_kernel_scores  # noqa: PLC0415

        print_kernel_scores(scores)
    return 0

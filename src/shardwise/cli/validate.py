"""`shardwise validate`."""

from typing import Annotated

import typer

from shardwise.cli.options import JsonFlag, OutputOption, Stopwatch, emit_json, log
from shardwise.validate import SUITES, validate


def command(
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="Suite to run; listed if omitted.")
    ] = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Compare our estimates with published figures, next to what other models say.

    Without a SUITE the suites are listed. Errors are signed: predicted over reference, minus one.
    """
    watch = Stopwatch()
    if suite is None:
        told = {name: summary for name, (summary, _) in SUITES.items()}
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
        from shardwise.report.validate import print_scoreboard, print_suites  # noqa: PLC0415

        if suite is None:
            print_suites(told)
        else:
            print_scoreboard(found)
    return 0

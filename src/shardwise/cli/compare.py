"""`shardwise compare`."""

from typing import Annotated

import typer

from shardwise.cli.options import JsonFlag, OutputOption, PlotOption, emit_json, log
from shardwise.cli.search_own import different_files
from shardwise.config import files
from shardwise.planning.compare.run import compare


def command(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Two or more: estimates saved by --json or --output, results of searches, or "
            "scenarios (YAML, JSON, TOML with model, system, strategy, or AMPeD's); also .gz.",
        ),
    ],
    plot: PlotOption = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Hold scenarios side by side: what was asked differently, what came out, what bears on it.

    The first file is what the others are held against. Of a search its best plan counts; a
    scenario is estimated. Exit code 1 if none fits in memory.
    """
    different_files({"output": output, "plot": plot})
    if output is not None:
        files.check_writable_ending(output)
    if plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow to import
        from shardwise.report.charts.compare import write_charts  # noqa: PLC0415

        check_chart_file(plot)
    found = compare(*scenarios)
    if plot is not None:
        write_charts(found, plot)
        log.info("wrote %s", plot)
    if output is not None:
        emit_json(found.to_dict(), output)
    if json:
        emit_json(found.to_dict())
    elif output is None:
        from shardwise.report.tables.compare import print_comparison  # noqa: PLC0415 - slow to import

        print_comparison(found)
    return 0 if any(one.fits for one in found.scenarios) else 1

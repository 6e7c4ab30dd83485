"""`shardwise compare`."""

from typing import Annotated

import typer

from shardwise.cli.options import JsonFlag, OutputOption, PlotOption
from shardwise.cli.output import check_different_files, log, show
from shardwise.config import files
from shardwise.planning.compare.run import compare


def command(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Two or more: saved estimates or search results (--json, --output), scenarios "
            "(YAML, JSON, TOML with model, system, strategy) or AMPeD configurations; also .gz.",
        ),
    ],
    plot: PlotOption = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Compare scenarios: what differs, how the results differ, and which inputs explain it.

    The first file is the baseline. A search result stands for its best plan; a scenario is
    estimated. Exit code 1 if none fits in memory.
    """
    check_different_files(output=output, plot=plot)
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

    def tables() -> None:
        from shardwise.report.tables.compare import print_comparison  # noqa: PLC0415 - slow

        print_comparison(found)

    lacks = "" if any(one.fits for one in found.scenarios) else "none fits in memory"
    show(found.to_dict, tables, json=json, output=output, lacks=lacks)
    return 1 if lacks else 0

"""`shardwise compare`."""

from shardwise import registry
from shardwise.cli.command_line import command_line
from shardwise.cli.help import with_help
from shardwise.cli.launch import find_launch, launch_record
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    PLOT_OPTION,
    REPORT_OPTION,
    arg,
    opt,
    refuse_options,
)
from shardwise.cli.output import check_different_files, check_pages, log, printed, show, write_page
from shardwise.config import files
from shardwise.planning.compare import compare


@with_help(examples=["shardwise compare before.json after.json"])
def command(
    scenarios: list[str] = arg(
        "FILE...",
        "Two or more: saved estimates or search results (--json, --output), scenarios "
        "(YAML, JSON, TOML with model, system, strategy), AMPeD configurations or launch files "
        "of trainers; also .gz.",
    ),
    system: str | None = opt("--system SYSTEM", "System of launch files."),
    plot: str | None = PLOT_OPTION,
    report: str | None = REPORT_OPTION,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Compare scenarios: what differs, how the results differ, and which inputs explain it.

    The first file is the baseline. A search result stands for its best plan; a scenario is
    estimated. Exit code 1 if none fits in memory.
    """
    check_different_files(output=output, plot=plot, report=report)
    if output is not None:
        files.check_writable_ending(output)
    check_pages(plot, report)
    launches = [launch for file in scenarios if (launch := find_launch(file)) is not None]
    if system is not None and not launches:
        refuse_options("is for launch files, and there is none", system=system)
    found = compare(*scenarios, system=system)
    if report is not None:
        write_page("compare", report, found, command_line())
        log.info("wrote %s", report)
    if plot is not None:
        registry.load("report.charts.compare:write_charts")(found, plot)
        log.info("wrote %s", plot)

    lacks = "" if any(one.fits for one in found.scenarios) else "none fits in memory"
    also = {"launch": [launch_record(launch) for launch in launches]} if launches else {}
    show(
        lambda: found.to_dict() | also,
        printed("compare:print_comparison", found),
        json=json,
        output=output,
        lacks=lacks,
    )
    return 1 if lacks else 0

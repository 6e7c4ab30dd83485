"""`shardwise sweep`."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    StrategyOption,
    given_strategy,
    refuse_options,
    whole_number,
    with_strategy_flags,
)
from shardwise.cli.progress import progress_bar
from shardwise.cli.search_own import (
    COMMAND_LINE,
    different_files,
    field_pairs,
    flag_fault,
    given_once,
    show_record,
)
from shardwise.config import files
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.config.strategy_given import explicit_fields
from shardwise.config.system import System
from shardwise.planning.search.objective import OBJECTIVES
from shardwise.planning.search.query import load_space
from shardwise.planning.sweep.results import SweepResult
from shardwise.planning.sweep.run import sweep

_INTERRUPTED = 130
_NEEDS_SEARCH = "has no effect beside --strategy or --fixed, which hold one strategy fixed"


@with_strategy_flags
def command(
    model: ModelArgument,
    system: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM[,SYSTEM...]",
            help="Catalog names, or files, of one system or several.",
        ),
    ],
    flags: Mapping[str, Any],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="NAME=V1,V2,...",
            help="Try these values of a figure of the system (nvlink.bandwidth=0.5x,1x,2x, "
            "domain=4..64, nics=0.5,1), of the model (seq_len, depth, hidden), or of a field of "
            "the strategy. Repeated: in every combination.",
        ),
    ] = None,
    more: Annotated[
        str | None,
        typer.Option("--system", metavar="NAME,...", help="More systems, beside SYSTEM."),
    ] = None,
    together: Annotated[
        bool, typer.Option("--zip", help="Let all --vary advance together instead.")
    ] = False,
    strategy: StrategyOption = None,
    fixed: Annotated[
        bool,
        typer.Option("--fixed", help="Hold the strategy of the flags fixed; nothing is searched."),
    ] = False,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE", help="File of a space: values to try by field."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="FIELD=VALUE,...", help="As the flag of the field."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="FIELD=V1,V2,...", help="Search these values of a field, or all."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", metavar="SIZE", help="Use at most so much of the memory."),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option("--reserve", metavar="SIZE", help="Keep so much of the memory free."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", metavar="NAME", help=f"{', '.join(OBJECTIVES)}. Default: step_time."
        ),
    ] = None,
    top: Annotated[
        str | None,
        typer.Option("--top", metavar="K", help="How many to keep at every point. Default: 1."),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Say which figures of the system would help most."),
    ] = False,
    reoptimise: Annotated[
        bool,
        typer.Option(
            "--reoptimise", help="With --sensitivity: search again with every figure changed."
        ),
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="List what may be varied of the system, and stop.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Write charts to FILE: .html, .json, .png or .svg."
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens", metavar="N", help="Charts show days to train on so many, as in 1e12."
        ),
    ] = None,
    ok_if_none: Annotated[
        bool, typer.Option("--ok-if-none", help="Exit with 0 even if nothing is feasible.")
    ] = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """What more bandwidth, more memory or a larger domain would buy.

    At every point the best strategy is searched, among those that the flags of fields leave open;
    or one strategy is held fixed (--strategy FILE, or --fixed with flags). Exit code 1 if nothing
    is feasible anywhere.
    """
    if output is not None:
        files.check_writable_ending(output)
    listed = ",".join(part for part in (system, more) if part)
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if figures:
        return _list_figures([System.load(name) for name in names], json=json, output=output)
    different_files({"output": output, "plot": plot})
    drawn_for = _drawn_for(plot, tokens)
    varied = _varied(vary or ())
    only_searched = {
        "space": space,
        "allow": allow or None,
        "objective": objective,
        "top": top,
        "max_memory": max_memory,
        "reserve": reserve,
        "reoptimise": reoptimise,
    }
    words: dict[str, Any] = {"sensitivity": sensitivity}
    if strategy is not None or fixed:
        refuse_options(_NEEDS_SEARCH, **only_searched)
        fields = given_once(flags, fix=field_pairs("fix", fix or (), values="one"))
        given_strategy(strategy, fields)  # whose faults name the command line, or the file
        words["strategy"] = ({} if strategy is None else explicit_fields(strategy)) | fields
    else:
        if reoptimise and not sensitivity:
            refuse_options("needs --sensitivity", reoptimise=reoptimise)
        fields = given_once(
            flags,
            fix=field_pairs("fix", fix or (), values="one"),
            allow=field_pairs("allow", allow or (), values="several"),
        )
        whole = load_space(space, {})
        words["space"] = whole.fixed(fields, source=COMMAND_LINE) if fields else whole
        given = {"objective": objective, "max_memory": max_memory, "reserve": reserve}
        words |= {name: value for name, value in given.items() if value is not None}
        words |= {"top": whole_number("top", top) or 1, "reoptimise": reoptimise}
    for name in varied:
        if SHORT_NAMES.get(name, name.replace("-", "_")) in fields:
            raise flag_fault("vary", f"{name}={varied[name]}", f"{name} is given twice")
    with progress_bar("points", counted=False) as bar:
        result = sweep(
            model,
            names,
            vary=varied,
            together=together,
            progress=None if bar is None else lambda done, of: bar(done, of, ""),
            **words,
        )
    many = "" if len(result.points) == 1 else "s"
    typer.echo(f"{len(result.points):,} point{many} in {result.elapsed_s:.2f} s", err=True)

    def table() -> None:
        from shardwise.report.tables.sweep import print_sweep  # noqa: PLC0415 - slow to import

        print_sweep(result)

    show_record(result.to_dict(), table, json=json, output=output)
    _draw(result, plot, drawn_for, names)
    if not result.complete:
        return _INTERRUPTED
    found = any(plan.fits for point in result.points for plan in point.best)
    return 0 if found or ok_if_none else 1


def _varied(given: Sequence[str]) -> dict[str, str]:
    """Names and values of ``--vary nvlink.bandwidth=0.5x,1x``."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise flag_fault("vary", text, "must be NAME=V1,V2,..., as in nvlink.bandwidth=1x,2x")
        if name in found:
            raise flag_fault("vary", text, f"{name} is given twice")
        found[name] = values
    return found


def _drawn_for(plot: str | None, tokens: str | None) -> float | None:
    """Check the file of the charts; return the number of tokens of ``--tokens 1e12``."""
    if plot is not None:
        from shardwise.report.charts.common import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(plot)
    if tokens is None:
        return None
    if plot is None:
        raise flag_fault("tokens", tokens, "needs --plot FILE")
    try:
        number = float(tokens)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise flag_fault("tokens", tokens, "must be a number above 0, as in 1e12")
    return number


def _draw(
    result: SweepResult, plot: str | None, tokens: float | None, names: Sequence[str]
) -> None:
    """Write the charts, if they were asked for; on maps the systems are marked as they are."""
    if plot is not None:
        from shardwise.planning.sweep.axes import figure_list  # noqa: PLC0415 - beside `_list_figures`
        from shardwise.report.charts.sweep import write_charts  # noqa: PLC0415 - slow

        marks = {
            system.name: {
                one["figure"]: one["value"]
                for one in figure_list(system)
                if one["value"] is not None
            }
            for system in map(System.load, names)
        }
        write_charts(result, plot, tokens=tokens, marks=marks)


def _list_figures(systems: Sequence[System], *, json: bool, output: str | None) -> int:
    from shardwise.planning.sweep.axes import figure_list  # noqa: PLC0415 - nothing else lists them

    record = {system.name: figure_list(system) for system in systems}

    def table() -> None:
        from shardwise.report.tables.sweep import print_figures  # noqa: PLC0415 - slow to import

        print_figures(record)

    show_record(record, table, json=json, output=output)
    return 0

"""`shardwise estimate`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise import files
from shardwise.cli.amped import given_case
from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    PlotOption,
    Stopwatch,
    StrategyOption,
    SystemOrNone,
    TablesOption,
    emit_json,
    given_strategy,
    log,
    refuse_given,
    with_strategy_flags,
)
from shardwise.cli.training_options import asked_run, with_run_flags
from shardwise.estimator import estimate
from shardwise.model import Model
from shardwise.results import Estimate
from shardwise.strategy import Strategy
from shardwise.system import System
from shardwise.whole_run import with_training

_NO_EFFECT = "has no effect beside --reference, which shows a predecessor's answer alone"

_PRINTED = "-"
"""Stands for the standard output in place of a file."""


def _draw(path: str, model: Model, system: System, strategy: Strategy) -> None:
    """Write the compute graph."""
    from shardwise.graph.build import graph_of  # noqa: PLC0415 - slow to import
    from shardwise.report.graph_files import write_graph  # noqa: PLC0415 - slow to import

    write_graph(graph_of(model, system, strategy), path)
    log.info("wrote %s", path)


def _write(result: Estimate, record: Mapping[str, Any], output: str) -> None:
    """Write an estimate as JSON or YAML; only its matrix products, if it has any, as CSV."""
    if result.gemms is not None and output.lower().endswith((".csv", ".csv.gz")):
        from shardwise.report.gemms import gemms_csv  # noqa: PLC0415 - slow to import

        files.write_text(output, gemms_csv(result))
    else:
        emit_json(record, output)


@with_strategy_flags
@with_run_flags
def command(
    model: ModelArgument,
    flags: Mapping[str, Any],
    run: Mapping[str, Any],
    system: SystemOrNone = None,
    strategy: StrategyOption = None,
    tables: TablesOption = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="List every kernel and exchange, forward and backward.")
    ] = False,
    gemms: Annotated[
        bool,
        typer.Option("--gemms", help="List every matrix product of a step, and its FLOPs."),
    ] = False,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="FILE",
            help="Write the compute graph of a layer of each kind and of the model to FILE "
            "(.json, .dot, .svg).",
        ),
    ] = None,
    flops_convention: Annotated[
        str | None,
        typer.Option(
            "--flops-convention",
            metavar="NAME",
            help="Model FLOPs that MFU counts: causal, full-attention, parameters. "
            "Default: causal.",
        ),
    ] = None,
    also: Annotated[
        str | None,
        typer.Option(
            "--also",
            metavar="NAME",
            help="Show a predecessor's answer too: calculon, nersc, amped.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME",
            help="Show only a predecessor's answer: calculon, nersc, amped.",
        ),
    ] = None,
    plot: PlotOption = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write every term of the estimate to FILE (.txt), one a line; - prints them "
            "instead of tables.",
        ),
    ] = None,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Step time, memory and cost of one way to run a model on a system.

    Degrees that are not given are 1; dp is what is left of the GPUs. Exit code 1 if it does not
    fit in memory. A configuration of AMPeD's as MODEL tells system, strategy and tokens too.
    """
    told = given_case(model, system, strategy=strategy, flags=flags, run=run, tables=tables)
    inputs = (told.model, told.system, told.strategy, told.flags, told.alone)
    if reference is not None or also is not None:
        from shardwise.cli import reference as predecessor  # noqa: PLC0415 - slow to import
    if reference is not None:
        name = predecessor.known_reference(reference, "reference")
        given = {"also": also, "flops_convention": flops_convention, "gemms": gemms, "plot": plot}
        refuse_given(_NO_EFFECT, **given, **run, report=report, graph=graph)
        case = predecessor.case_of(name, *inputs)
        return predecessor.show_reference(case, ops=ops, json=json, output=output)
    other = None if also is None else predecessor.known_reference(also, "also")
    convention = "causal" if flops_convention is None else flops_convention
    _check_files(output=output, plot=plot, report=report, graph=graph, json=json)
    whole = asked_run(told.run)
    watch = Stopwatch()
    the_model, the_system = Model.load(told.model), System.load(told.system)
    log.info("model %s, system %s", the_model.name, the_system.name)
    the_strategy = given_strategy(told.strategy, told.flags)
    if graph is not None:
        _draw(graph, the_model, the_system, the_strategy)
    result = estimate(
        the_model,
        the_system,
        the_strategy,
        operations=ops,
        gemms=gemms,
        flops_convention=convention,  # type: ignore[arg-type]  # checked by `estimate`
    )
    if whole is not None:
        result = with_training(result, the_system, whole)
    log.info("strategy %s", result.strategy)
    log.info("estimated in %s", watch)
    record = told.record(result)
    beside: dict[str, Any] = {}
    if other is not None:
        beside = predecessor.case_of(other, *inputs).answer()
        record["also"] = {other: beside}
    if plot is not None:
        from shardwise.report.estimate_charts import write_charts  # noqa: PLC0415 - slow

        write_charts(result, plot)
        log.info("wrote %s", plot)
    if _emit(result, record, json=json, output=output, report=report):
        return 0 if result.fits else 1
    from shardwise.report.estimate import print_estimate  # noqa: PLC0415 - slow to import

    print_estimate(result)
    if other is not None:
        predecessor.show_beside(other, result, beside, everything=ops)
    told.show_imported()
    return 0 if result.fits else 1


def _check_files(
    *, output: str | None, plot: str | None, report: str | None, graph: str | None, json: bool
) -> None:
    """Refuse files that cannot be what they are for, before any work."""
    if json and report == _PRINTED:
        refuse_given("prints where --json does; give it a file", report=report)
    written = None if report == _PRINTED else report
    if plot is None and written is None and graph is None:
        return
    from shardwise.cli.search_own import different_files  # noqa: PLC0415 - slow to import

    different_files({"output": output, "plot": plot, "report": written, "graph": graph})
    if written is not None:
        files.check_place(written)
    if plot is not None:
        from shardwise.report.estimate_charts import check_chart_file  # noqa: PLC0415 - slow

        check_chart_file(plot)
    if graph is not None:
        from shardwise.report.graph_files import check_graph_file  # noqa: PLC0415 - slow

        check_graph_file(graph)


def _emit(
    result: Estimate,
    record: Mapping[str, Any],
    *,
    json: bool,
    output: str | None,
    report: str | None,
) -> bool:
    """Write what was asked for; whether nothing is to be shown as tables."""
    if report is not None:
        from shardwise.report.breakdown_text import breakdown_text  # noqa: PLC0415 - slow

        if report == _PRINTED:
            typer.echo(breakdown_text(result), nl=False)
        else:
            files.write_text(report, breakdown_text(result))
            log.info("wrote %s", report)
    if output is not None:
        _write(result, record, output)
    if json:
        emit_json(record)
    return json or output is not None or report == _PRINTED

"""`shardwise estimate`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.amped import given_case
from shardwise.cli.estimate_files import Answer, Wanted
from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    PlotOption,
    Stopwatch,
    StrategyOption,
    SystemOrNone,
    TablesOption,
    given_strategy,
    log,
    refuse_options,
    with_strategy_flags,
)
from shardwise.cli.training_options import asked_run, with_run_flags
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.estimator import estimate
from shardwise.planning.training_time import with_training

_NO_EFFECT = "has no effect beside --reference, which shows a predecessor's answer alone"


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
            "(.json, .dot, .mmd; .svg, .png, .pdf with graphviz).",
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
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write all of it into folder DIR, under names that begin with the time: report, "
            "configuration, products, graph, DeepFlow's shapes, estimate and charts.",
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
    if reference is not None or also is not None:
        from shardwise.cli import reference as predecessor  # noqa: PLC0415 - slow to import
    if reference is not None:
        name = predecessor.known_reference(reference, "reference")
        given = {"also": also, "flops_convention": flops_convention, "gemms": gemms, "plot": plot}
        refuse_options(_NO_EFFECT, **given, **run, report=report, graph=graph, out=out)
        case = predecessor.case_of(name, told)
        return predecessor.show_reference(case, ops=ops, json=json, output=output)
    other = None if also is None else predecessor.known_reference(also, "also")
    convention = "causal" if flops_convention is None else flops_convention
    wanted = Wanted(json=json, output=output, plot=plot, report=report, graph=graph, out=out)
    wanted.check(gemms=gemms)
    whole = asked_run(told.run)
    watch = Stopwatch()
    the_model, the_system = Model.explained(told.model), System.explained(told.system)
    log.info("model %s, system %s", the_model[0].name, the_system[0].name)
    the_strategy = given_strategy(told.strategy, told.flags)
    result = estimate(
        the_model[0],
        the_system[0],
        the_strategy,
        operations=ops,
        gemms=gemms or out is not None,
        flops_convention=convention,  # type: ignore[arg-type]  # checked by `estimate`
    )
    if whole is not None:
        result = with_training(result, the_system[0], whole)
    log.info("strategy %s", result.strategy)
    log.info("estimated in %s", watch)
    record = told.record(result)
    beside: dict[str, Any] = {}
    texts: Mapping[str, str] = {}
    if other is not None:
        case = predecessor.case_of(other, told)
        beside, texts = case.answer(), predecessor.texts_of(case)
        record["also"] = {other: beside}
    answer = Answer(
        model=the_model,
        system=the_system,
        strategy=the_strategy,
        result=result,
        record=record,
        texts=texts,
    )
    if wanted.write(answer):
        return 0 if result.fits else 1
    from shardwise.report.tables.estimate import print_estimate  # noqa: PLC0415 - slow to import

    print_estimate(result if gemms else result.model_copy(update={"gemms": None}))
    if other is not None:
        predecessor.show_beside(other, result, beside, everything=ops)
    told.show_imported()
    return 0 if result.fits else 1

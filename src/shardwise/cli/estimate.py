"""`shardwise estimate`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    Stopwatch,
    StrategyOption,
    SystemArgument,
    emit_json,
    given_strategy,
    log,
    with_strategy_flags,
)
from shardwise.estimator import estimate
from shardwise.model import Model
from shardwise.system import System


@with_strategy_flags
def command(
    model: ModelArgument,
    system: SystemArgument,
    flags: Mapping[str, Any],
    strategy: StrategyOption = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="List every kernel and exchange, forward and backward.")
    ] = False,
    flops_convention: Annotated[
        str,
        typer.Option(
            "--flops-convention",
            metavar="NAME",
            help="Model FLOPs that MFU counts: causal, full-attention, parameters.",
        ),
    ] = "causal",
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Step time, memory and cost of one way to run a model on a system.

    Degrees that are not given are 1; dp is what is left of the GPUs. Exit code 1 if it does not
    fit in memory.
    """
    watch = Stopwatch()
    the_model, the_system = Model.load(model), System.load(system)
    log.info("model %s, system %s", the_model.name, the_system.name)
    result = estimate(
        the_model,
        the_system,
        given_strategy(strategy, flags),
        operations=ops,
        flops_convention=flops_convention,  # type: ignore[arg-type]  # checked by `estimate`
    )
    log.info("strategy %s", result.strategy)
    log.info("estimated in %s", watch)
    if output is not None:
        emit_json(result.to_dict(), output)
    if json:
        emit_json(result.to_dict())
    elif output is None:
        from shardwise.report.estimate import print_estimate  # noqa: PLC0415 - slow to import

        print_estimate(result)
    return 0 if result.fits else 1

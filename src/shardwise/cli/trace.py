"""`shardwise trace`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    Stopwatch,
    StrategyOption,
    SystemArgument,
    emit_json,
    given_strategy,
    log,
    refuse_options,
    whole_number,
    with_strategy_flags,
)
from shardwise.report.trace import check_trace_file, trace

_NO_EFFECT = "has no effect without --output, the file that it shortens or fills"


@with_strategy_flags
def command(
    model: ModelArgument,
    system: SystemArgument,
    flags: Mapping[str, Any],
    strategy: StrategyOption = None,
    micro_batches: Annotated[
        str | None,
        typer.Option(
            "--micro-batches", metavar="N", help="Write only the first N of them one by one."
        ),
    ] = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="Write every kernel of one micro-batch on every rank.")
    ] = False,
    json: JsonFlag = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the timeline to FILE (.json, .json.gz)."
        ),
    ] = None,
) -> int:
    """Timeline of one step, pass by pass, for Perfetto or chrome://tracing.

    Open the file in ui.perfetto.dev: a process for every pipeline rank, with lanes for compute,
    exchanges, messages and idle times, and the memory that it holds. Without --output a table
    tells what every rank does and when it holds most. Exit code 1 if it does not fit in memory.
    """
    if output is None:
        refuse_options(_NO_EFFECT, micro_batches=micro_batches, ops=ops)
    else:
        check_trace_file(output)
    watch = Stopwatch()
    result = trace(
        model,
        system,
        given_strategy(strategy, flags),
        micro_batches=whole_number("micro_batches", micro_batches),
        operations=ops,
    )
    log.info("simulated %d passes in %s", len(result.timeline.actions), watch)
    if output is not None:
        result.to_file(output)
        log.info("wrote %s in %s", output, watch)
    if json:
        emit_json(result.to_dict())
    elif output is None:
        from shardwise.report.tables.timeline import print_trace  # noqa: PLC0415 - slow to import

        print_trace(result)
    return 0 if result.timeline.fits else 1

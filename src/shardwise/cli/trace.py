"""`shardwise trace`."""

from collections.abc import Mapping

from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.options import (
    JSON_FLAG,
    MODEL_ARGUMENT,
    STRATEGY_OPTION,
    SYSTEM_OR_NONE,
    opt,
    refuse_options,
)
from shardwise.cli.output import Stopwatch, emit_json, log, note, printed
from shardwise.cli.recipes import Chosen
from shardwise.config.arguments import whole_number
from shardwise.report.trace import check_trace_file, is_snapshot_file, trace

_NO_EFFECT = "has no effect without --output"
_IN_SNAPSHOT = "has no effect on a memory snapshot, which has every pass and no kernels"


@with_help(
    "gpus tp pp micro_batch_size global_batch_size micro_batches ops output",
    examples=[
        "shardwise trace llama3-8b h100-sxm --gpus 16 --tp 2 --pp 4 --gbs 32 --output timeline.json"
    ],
)
@with_strategy_flags
def command(
    *,
    model: str = MODEL_ARGUMENT,
    system: str | None = SYSTEM_OR_NONE,
    strategy: str | None = STRATEGY_OPTION,
    micro_batches: str | None = opt(
        "--micro-batches N", "Write only the first N micro-batches in full.", OUTPUT
    ),
    ops: bool = opt("--ops", "Write every kernel of one micro-batch on every rank.", OUTPUT),
    json: bool = JSON_FLAG,
    output: str | None = opt(
        "--output -o FILE",
        "Write the timeline to FILE (.json, .json.gz), or the memory of every rank as a "
        "snapshot for pytorch.org/memory_viz (.pickle).",
        OUTPUT,
    ),
    flags: Mapping[str, object],
) -> int:
    """Timeline of one step, pass by pass, for Perfetto or chrome://tracing.

    Open the file in ui.perfetto.dev: one process per pipeline rank, with tracks for compute,
    communication, pipeline messages, idle time and memory. Without --output, a table shows the work
    of every rank and its peak memory. Exit code 1 if the model does not fit in memory.
    """
    if output is None:
        refuse_options(_NO_EFFECT, micro_batches=micro_batches, ops=ops)
    else:
        check_trace_file(output)
        if is_snapshot_file(output):
            refuse_options(_IN_SNAPSHOT, micro_batches=micro_batches, ops=ops)
    chosen = Chosen.of(None, model=model, system=system, strategy=strategy, gpus=flags.get("gpus"))
    inputs = chosen.inputs(flags)
    watch = Stopwatch()
    result = trace(
        inputs.model,
        inputs.system,
        strategy_of(inputs.strategy, inputs.fields),
        micro_batches=whole_number("micro_batches", micro_batches),
        operations=ops,
    )
    log.info("simulated %d passes in %s", len(result.timeline.actions), watch)
    if output is not None:
        result.to_file(output)
        log.info("wrote %s in %s", output, watch)
    if json:
        emit_json(result.to_dict() | chosen.launch_record())
    elif output is None:
        printed("timeline:print_trace", result)()
    if not result.timeline.fits and (json or output is not None):
        note("does not fit in memory")
    return 0 if result.timeline.fits else 1

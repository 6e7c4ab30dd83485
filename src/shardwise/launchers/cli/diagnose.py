"""`shardwise diagnose`."""

from collections.abc import Mapping
from typing import Annotated

import typer

from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import INPUT, OUTPUT, with_help
from shardwise.cli.options import (
    JsonFlag,
    OutputOption,
    SystemArgument,
    VariablesOption,
    launch_variables,
    missing_flag,
)
from shardwise.cli.output import show
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.launchers.diagnose.run import CHANGES, diagnose
from shardwise.launchers.registry import read_launch


@with_help(
    *("log", "trace", "model", "set_", "top", "gpus", "json", "output"),
    examples=[
        "shardwise diagnose train.sh h100-sxm --log run.log",
    ],
)
@with_strategy_flags
def command(
    *,
    launch: Annotated[
        str,
        typer.Argument(
            metavar="LAUNCH_FILE",
            help="Launch file of the run, recognized by its content: Megatron-LM command line, "
            "script or argument file; Megatron-Bridge or NeMo YAML; torchtitan TOML or "
            "Python; DeepSpeed JSON; accelerate YAML.",
        ),
    ],
    system: SystemArgument,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Log of the run: Megatron-LM, Megatron-Bridge, Primus, torchtitan, DeepSpeed, "
            "MaxText, NeMo or Hugging Face Trainer; also .gz. Required.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Trace of PyTorch's profiler with steps (.json, .json.gz): separates "
            "products, attention, communication and idle time.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Model, for launch files without one (DeepSpeed, accelerate).",
            rich_help_panel=INPUT,
        ),
    ] = None,
    set_: VariablesOption = None,
    top: Annotated[
        str | None,
        typer.Option(
            "--top",
            metavar="N",
            help=f"List the N best changes of the strategy. Default: {CHANGES}.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: JsonFlag = False,
    output: OutputOption = None,
    flags: Mapping[str, object],
) -> int:
    """Compare a measured run with its prediction: what is slow, why, and what to change.

    Reads the step time from the log and, with --trace, its components from a profile. Lists the
    components that are slower than their predicted interval, and the changes of one or two strategy
    fields that would help on the machine as measured, as diffs of the launch file. Flags of
    strategy fields set what the launch file does not contain.
    """
    if log is None:
        raise missing_flag("log")
    if output is not None:
        files.check_writable_ending(output)
    most = whole_number("top", top)
    own = strategy_of(None, flags)
    read = read_launch(launch, model=model, gpus=own.gpus, variables=launch_variables(set_ or ()))
    found = diagnose(
        read,
        system,
        log=log,
        trace=trace,
        model=model,
        strategy=flags,
        changes=CHANGES if most is None else most,
    )

    def tables() -> None:
        from shardwise.launchers.tables.diagnose import print_diagnosis  # noqa: PLC0415 - slow

        print_diagnosis(found)

    show(found.to_dict, tables, json=json, output=output)
    return 0

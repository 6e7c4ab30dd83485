"""`shardwise diagnose`."""

from collections.abc import Mapping
from pathlib import Path

from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import INPUT, OUTPUT, with_help
from shardwise.cli.options import (
    COMMAND_LINE,
    JSON_FLAG,
    OUTPUT_OPTION,
    VARIABLES_OPTION,
    arg,
    launch_variables,
    missing_flag,
    opt,
    refuse_options,
)
from shardwise.cli.output import note, show
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.errors import InputError
from shardwise.launchers.diagnose.run import CHANGES, diagnose
from shardwise.launchers.registry import read_launch

_EXAMPLE = Path(__file__).parents[1] / "diagnose" / "example"
_EXAMPLE_FILES = ("train.sh", "run.log", "trace.json.gz")
_EXAMPLE_SYSTEM = "h100-sxm"
_EXAMPLE_TOO = "has no effect with --example, which has its own"


@with_help(
    "log trace model set_ top gpus json output",
    examples=["shardwise diagnose train.sh h100-sxm --log run.log"],
)
@with_strategy_flags
def command(
    *,
    launch: str | None = arg(
        "LAUNCH_FILE",
        "Launch file of the run, recognized by its content: Megatron-LM command line, "
        "script or argument file; Megatron-Bridge or NeMo YAML; torchtitan TOML or "
        "Python; DeepSpeed JSON; accelerate YAML; files and commands of fine-tuning.",
        default=None,
    ),
    system: str | None = arg("SYSTEM", "Catalog name or file.", default=None),
    example: bool = opt(
        "--example", "Diagnose the run that comes with shardwise: script, log and trace.", INPUT
    ),
    log: str | None = opt(
        "--log FILE",
        "Log of the run: Megatron-LM, Megatron-Bridge, Primus, torchtitan, DeepSpeed, "
        "MaxText, NeMo, MLPerf or Hugging Face Trainer; also .gz. Required.",
        INPUT,
    ),
    trace: str | None = opt(
        "--trace FILE",
        "Trace of PyTorch's profiler with steps (.json, .json.gz): separates "
        "products, attention, communication and idle time.",
        INPUT,
    ),
    model: str | None = opt(
        "--model MODEL", "Model, for launch files without one (DeepSpeed, accelerate).", INPUT
    ),
    set_: list[str] | None = VARIABLES_OPTION,
    top: str | None = opt(
        "--top N", f"List the N best changes of the strategy. Default: {CHANGES}.", OUTPUT
    ),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
    flags: Mapping[str, object],
) -> int:
    """Compare a measured run with its prediction: what is slow, why, and what to change.

    Reads the step time from the log and, with --trace, its components from a profile. Lists the
    components that are slower than their predicted interval, and the changes of one or two strategy
    fields that would help on the machine as measured, as diffs of the launch file. Flags of
    strategy fields set what the launch file does not contain. --example shows a diagnosis.
    """
    if example:
        refuse_options(_EXAMPLE_TOO, launch_file=launch, system=system, log=log, trace=trace)
        launch, log, trace = (str(_EXAMPLE / name) for name in _EXAMPLE_FILES)
        system = _EXAMPLE_SYSTEM
        words = f"{launch} {system} --log {log} --trace {trace}"
        note(f"example: shardwise diagnose {words}")
    if launch is None or system is None:
        lacks = "LAUNCH_FILE" if launch is None else "SYSTEM"
        raise InputError.at(COMMAND_LINE, f"Missing argument '{lacks}'; to see one: --example")
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

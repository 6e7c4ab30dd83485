"""`shardwise measure`."""

from collections.abc import Mapping

from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import OUTPUT, with_help
from shardwise.cli.options import (
    JSON_FLAG,
    MODEL_ARGUMENT,
    OUTPUT_OPTION,
    STRATEGY_OPTION,
    SYSTEM_ARGUMENT,
    flag_fault,
    opt,
)
from shardwise.cli.output import Stopwatch, check_different_files, log, note, show
from shardwise.cli.recipes import Chosen
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.measure.training import add_run, check_runs_file, planned, train
from shardwise.measure.training_table import print_trained

_RUN = "Training run"
_DEVICES = ("cpu", "cuda")


@with_help(
    "gpus tp pp micro_batch_size global_batch_size zero seq_len runs",
    examples=["shardwise measure small.yaml my-system.yaml --gpus 2 --tp 2 --gbs 4 --mbs 2"],
)
@with_strategy_flags
def command(
    *,
    model: str = MODEL_ARGUMENT,
    system: str = SYSTEM_ARGUMENT,
    strategy: str | None = STRATEGY_OPTION,
    device: str | None = opt(
        "--device cpu|cuda", "Where to train. Default: that of the system.", _RUN
    ),
    steps: str | None = opt("--steps N", "Timed steps of each repeat. Default: 10.", _RUN),
    repeats: str | None = opt(
        "--repeats N", "How often processes are started again. Default: 2.", _RUN
    ),
    threads: str | None = opt(
        "--threads N",
        "Threads of each process. Default: the cores of an accelerator of SYSTEM, at most an "
        "even share.",
        _RUN,
    ),
    runs: str | None = opt(
        "--runs FILE",
        "Add the run to FILE (.json), for calibrate --from-runs and validate --data.",
        OUTPUT,
    ),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
    flags: Mapping[str, object],
) -> int:
    """Train a small model for some steps on this machine: measured next to predicted.

    MODEL is built in plain PyTorch and trained on random tokens by local processes: one process,
    data parallel, FSDP2 (--zero 2 or 3), tensor parallel or a pipeline. Needs PyTorch: pip install
    'shardwise[torch]'.
    """
    if device not in (None, *_DEVICES):
        raise flag_fault("device", device, f"allowed: {', '.join(_DEVICES)}")
    check_different_files(output=output, runs=runs)
    if output is not None:
        files.check_writable_ending(output)
    if runs is not None:
        check_runs_file(runs)
    chosen = Chosen.of(None, model=model, system=system, strategy=strategy, gpus=flags.get("gpus"))
    watch = Stopwatch()
    plan = planned(
        Model.load(chosen.model),
        System.load(system),
        strategy_of(chosen.strategy, chosen.fields(flags)),
        device=device,
        steps=whole_number("steps", steps) or 10,
        threads=whole_number("threads", threads),
    )
    found = train(plan, repeats=whole_number("repeats", repeats) or 2, progress=note)
    log.info("trained in %s", watch)
    if runs is not None:
        note(f"added run {add_run(found, runs)} to {runs}")
    show(found.to_dict, lambda: print_trained(found), json=json, output=output)
    return 0

"""Megatron-LM: plans as its scripts and argument files, and its launch files as strategies.

The configuration of Megatron-Core (`core_*.py`) is shared with launchers that wrap it.
"""

from shardwise.config.launch import Launch
from shardwise.launchers.launch import DOCUMENTS, NO_OPTIONS, Launcher, LaunchText
from shardwise.launchers.megatron.core_options import CORE_SAYS
from shardwise.launchers.megatron.writer import ARGUMENTS, SCRIPT, faults, write


def recognise(text: str, source: str) -> bool:
    """Whether a text has options of Megatron-LM: in any form, or as what a run prints."""
    from shardwise.launchers.megatron import reader  # noqa: PLC0415 - slow to import

    return reader.recognise(text, source)


def read(text: LaunchText) -> Launch:
    """Read a launch file, as `Launcher.read`."""
    from shardwise.launchers.megatron import reader  # noqa: PLC0415 - slow to import

    return reader.read(text)


LAUNCHER = Launcher(
    name="megatron",
    title="Megatron-LM",
    releases=("0.19.0",),
    endings=(SCRIPT, ARGUMENTS),
    recognise=recognise,
    read=read,
    faults=faults,
    layer_precision=True,
    write=write,
    yours="data, tokenizer, learning rate and schedule, --train-iters, checkpoints",
    says=CORE_SAYS,
    ignores=NO_OPTIONS | DOCUMENTS,
)

"""Megatron-LM: plans as its scripts and argument files, and its launch files as strategies.

The configuration of Megatron-Core (`core_*.py`) is shared with launchers that wrap it.
"""

from shardwise.launchers.launch import DOCUMENTS, NO_OPTIONS, Launcher
from shardwise.launchers.megatron.core_options import CORE_SAYS
from shardwise.launchers.megatron.reader import NAME, read, recognise
from shardwise.launchers.megatron.writer import ARGUMENTS, SCRIPT, faults, write

LAUNCHER = Launcher(
    name=NAME,
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

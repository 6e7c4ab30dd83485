"""LLaMA-Factory: plans as files, and files and commands as strategies."""

from shardwise.launchers.fine_tuning.writer import ENGINES, IGNORES, SAYS
from shardwise.launchers.launch import Launcher
from shardwise.launchers.llama_factory.reader import NAME, RELEASE, TITLE, read, recognise
from shardwise.launchers.llama_factory.writer import faults, write

LAUNCHER = Launcher(
    name=NAME,
    title=TITLE,
    releases=(RELEASE,),
    other_stacks=ENGINES,
    endings=(".yaml", ".yml"),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
    says=SAYS,
    ignores=IGNORES,
)

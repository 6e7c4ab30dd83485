"""TRL and the Hugging Face Trainer: plans as files, and scripts and files as strategies."""

from shardwise.launchers.fine_tuning.writer import ENGINES, IGNORES, SAYS
from shardwise.launchers.launch import Launcher
from shardwise.launchers.trl.reader import NAME, RELEASE, TITLE, read, recognise
from shardwise.launchers.trl.writer import faults, write

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

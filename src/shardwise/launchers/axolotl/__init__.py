"""axolotl: plans as files, and files and commands as strategies."""

from shardwise.launchers.axolotl.reader import NAME, RELEASE, TITLE, read, recognise
from shardwise.launchers.axolotl.writer import faults, write
from shardwise.launchers.fine_tuning.writer import ENGINES, IGNORES, SAYS
from shardwise.launchers.launch import Launcher

_DEGREES = frozenset({"tp", "cp", "dp_shard", "tp_exchange", "cp_exchange"})
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
    says=SAYS | _DEGREES,
    ignores={name: why for name, why in IGNORES.items() if name not in _DEGREES},
)

"""accelerate: plans as its YAML with a tensor-parallel plan, and its YAML as strategies."""

from shardwise.launchers.accelerate.reader import NAME, STACK, read, recognise
from shardwise.launchers.accelerate.writer import faults, write
from shardwise.launchers.launch import Launcher

LAUNCHER = Launcher(
    name=NAME,
    title="accelerate",
    releases=("1.14.0",),
    stack=STACK,
    endings=(".yaml", ".yml"),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
)

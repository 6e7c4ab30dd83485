"""DeepSpeed: plans as its JSON with a launch script, and its JSON as strategies."""

from shardwise.launchers.deepspeed.reader import NAME, STACK, read, recognise
from shardwise.launchers.deepspeed.writer import faults, write
from shardwise.launchers.launch import Launcher

LAUNCHER = Launcher(
    name=NAME,
    title="DeepSpeed",
    releases=("0.19.5",),
    stack=STACK,
    endings=(".json",),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
)

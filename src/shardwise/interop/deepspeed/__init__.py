"""DeepSpeed: plans as its JSON with a launch script, and its JSON as strategies."""

from shardwise.interop.deepspeed.reader import NAME, STACK, read, recognise
from shardwise.interop.deepspeed.writer import faults, write
from shardwise.interop.launch import Launcher

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

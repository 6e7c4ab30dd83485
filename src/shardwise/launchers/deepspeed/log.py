"""Logs of DeepSpeed: its throughput timer (utils/timer.py:265), or steps of its pipeline.

The pipeline prints them in runtime/pipe/engine.py:404-408.
"""

import re
from collections.abc import Iterator

from shardwise.launchers.run_log import (
    GIB,
    NUMBER,
    LogFormat,
    Logged,
    LoggedMemory,
    LoggedStep,
    MemoryKind,
    count,
    found_number,
    number,
)

_TIMER, _PIPELINE_TIME = "CurrSamplesPerSec=", "iter time (s):"
_STEP = re.compile(r"global_step=(\d+),")
_SAMPLES = re.compile(rf"CurrSamplesPerSec={NUMBER},")
# DeepSpeed divides by 2^30.
_MEMORY = re.compile(rf"MaxMemAllocated={NUMBER}GB")
_PIPELINE = re.compile(rf"steps:\s*(\d+)\s+loss:\s*\S+\s+iter time \(s\):\s*{NUMBER}\s")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if _TIMER in line and (match := _STEP.search(line)):
        yield LoggedStep(index=count(match[1]), samples_per_s=found_number(_SAMPLES, line))
        if memory := _MEMORY.search(line):
            yield LoggedMemory(kind=MemoryKind.ALLOCATED, bytes=number(memory[1]) * GIB)
    elif _PIPELINE_TIME in line and (match := _PIPELINE.search(line)):
        yield LoggedStep(index=count(match[1]), seconds=number(match[2]))


FORMAT = LogFormat(
    name="deepspeed",
    title="DeepSpeed",
    shows=f"'epoch=E/micro_step=M/global_step=N, ..., {_TIMER}R', or 'steps: N loss: L "
    f"{_PIPELINE_TIME} T'",
    markers=(_TIMER, _PIPELINE_TIME),
    read=read_line,
)

"""Logs of torchtitan (components/metrics.py:527-536): tokens per second of each accelerator."""

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

_MARKER = "tps: "
_STEP = re.compile(r"step:\s*(\d+)\s+loss:")
_TOKENS = re.compile(r"tps:\s*(\d[\d,]*)\s")
_TFLOPS = re.compile(r"tflops:\s*(\d[\d,]*\.\d+)\s")
_MEMORY = re.compile(rf"memory:\s*{NUMBER}GiB\(")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if _MARKER not in line or (match := _STEP.search(line)) is None:
        return
    yield LoggedStep(
        index=count(match[1]),
        tokens_per_s_per_gpu=found_number(_TOKENS, line),
        tflops_per_gpu=found_number(_TFLOPS, line),
    )
    if memory := _MEMORY.search(line):
        yield LoggedMemory(kind=MemoryKind.RESERVED, bytes=number(memory[1]) * GIB)


FORMAT = LogFormat(
    name="torchtitan",
    title="torchtitan",
    shows="'step: N  loss: L  ...  memory: M  tps: R  tflops: F'",
    markers=(_MARKER,),
    read=read_line,
)

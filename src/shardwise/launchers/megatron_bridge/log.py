"""Logs of Megatron-Bridge: a line with the time of a step, then the line of Megatron-LM.

`training_log` (src/megatron/bridge/training/utils/train_utils.py:1049, 1088-1140).
"""

import re
from collections.abc import Iterator

from shardwise.launchers.megatron.log import read_line as read_megatron_line
from shardwise.launchers.run_log import NUMBER, LogFormat, Logged, LoggedStep, found_number

_MARKER = "Step Time :"
_TIME = re.compile(rf"Step Time\s*:\s*{NUMBER}s")
_TFLOPS = re.compile(rf"GPU utilization:\s*{NUMBER}MODEL_TFLOP")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds; the times of Megatron-LM's lines have more digits, and a number."""
    if _MARKER in line:
        yield LoggedStep(
            index=None,
            seconds=found_number(_TIME, line),
            tflops_per_gpu=found_number(_TFLOPS, line),
        )
    yield from read_megatron_line(line)


FORMAT = LogFormat(
    name="megatron-bridge",
    title="Megatron-Bridge",
    shows=f"'{_MARKER} Ts GPU utilization: ...'",
    markers=(_MARKER,),
    read=read_line,
)

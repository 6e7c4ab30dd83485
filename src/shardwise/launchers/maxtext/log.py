"""Logs of MaxText (src/maxtext/common/metric_logger.py:181-230)."""

import re
from collections.abc import Iterator

from shardwise.launchers.run_log import NUMBER, LogFormat, Logged, LoggedStep, count, found_number

_MARKER = "completed step: "
_STEP = re.compile(r"completed step: (\d+),")
_TIME = re.compile(rf"seconds: {NUMBER},")
_TFLOPS = re.compile(rf"TFLOP/s/device: {NUMBER},")
_TOKENS = re.compile(rf"Tokens/s/device: {NUMBER},")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if _MARKER in line and (match := _STEP.search(line)):
        yield LoggedStep(
            index=count(match[1]),
            seconds=found_number(_TIME, line),
            tokens_per_s_per_gpu=found_number(_TOKENS, line),
            tflops_per_gpu=found_number(_TFLOPS, line),
        )


FORMAT = LogFormat(
    name="maxtext",
    title="MaxText",
    shows=f"'{_MARKER}N, seconds: T, TFLOP/s/device: F, Tokens/s/device: R, ...'",
    markers=(_MARKER,),
    read=read_line,
)

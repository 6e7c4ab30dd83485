"""Logs of NeMo: lines of its progress printer (NeMo 2), or the bar of Lightning (NeMo 1)."""

import re
from collections.abc import Iterator

from shardwise.launchers.run_log import (
    NUMBER,
    LogFormat,
    Logged,
    LoggedStep,
    count,
    found_number,
    number,
)

_MARKER = "reduced_train_loss"
_LINE = re.compile(r"Training epoch \d+, iteration (\d+)/")
_TIMING = re.compile(rf"train_step_timing in s[:=]\s*{NUMBER}\s*(?=[|,\]]|$)")
_TFLOPS = re.compile(rf"TFLOPS_per_GPU:\s*{NUMBER}\s*(?=\||$)")
_BATCH = re.compile(r"global_batch_size: (\d+)")
_BAR = re.compile(r"Epoch \d+:[^|]*\|[^|]*\| (\d+)/(\d+) \[")
_RATE = re.compile(r"\[[\d:]+<[^,\]]*,\s*([\d.]+)(s/it|it/s)")
_OVERALL = re.compile(r"global_step=([\d.]+)")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if _MARKER not in line:
        return
    if match := _LINE.search(line):
        yield LoggedStep(
            index=count(match[1]),
            seconds=found_number(_TIMING, line),
            tflops_per_gpu=found_number(_TFLOPS, line),
            global_batch=found_number(_BATCH, line),
        )
    elif match := _BAR.search(line):
        overall = _OVERALL.search(line)
        yield LoggedStep(
            index=int(number(overall[1])) if overall else count(match[1]),
            seconds=_seconds(line),
            of=count(match[2]),
        )


def _seconds(line: str) -> float:
    """Time of the step, else the running mean of the bar."""
    if (timing := found_number(_TIMING, line)) > 0:
        return timing
    rate = _RATE.search(line)
    return bar_seconds(rate[1], rate[2]) if rate else float("nan")


def bar_seconds(figure: str, unit: str) -> float:
    """Time of a step by the rate of a progress bar: seconds per step, or steps per second."""
    rate = number(figure)
    if unit == "s/it":
        return rate
    return 1 / rate if rate > 0 else float("nan")


FORMAT = LogFormat(
    name="nemo",
    title="NeMo",
    shows="'Training epoch E, iteration N/M | ... reduced_train_loss: L | train_step_timing in s: "
    "T', or its progress bar",
    markers=(_MARKER,),
    read=read_line,
)

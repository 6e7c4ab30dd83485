"""Logs of the Hugging Face Trainer: its progress bar, its last line, or trainer_state.json.

`speed_metrics` (transformers/trainer_utils.py) prints figures of all steps at the end; lines of
single steps have no time.
"""

import re
from collections.abc import Iterator

from shardwise.launchers.megatron_bridge.nemo_log import bar_seconds
from shardwise.launchers.run_log import (
    NUMBER,
    LogFormat,
    Logged,
    LoggedStep,
    LoggedTotal,
    count,
    number,
)

# A bar of training or evaluation has no label; those of downloads and data sets have one.
_BAR = re.compile(
    r"(?:^|\]:?|\d:)\s*\d+%\|[^|]*\| (\d+)/(\d+) \[[\d:]+<[^,\]]*,\s*([\d.]+)(s/it|it/s)"
)
_TOTALS = {
    "train_runtime": "runtime_s",
    "train_samples_per_second": "samples_per_s",
    "train_steps_per_second": "steps_per_s",
    "global_step": "steps",
}
_TOTAL = re.compile(rf"['\"]({'|'.join(_TOTALS)})['\"]:\s*['\"]?{NUMBER}['\"]?\s*(?=[,}}]|$)")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if "/it" in line or "it/s" in line:
        for done, of, figure, unit in _BAR.findall(line):
            seconds = bar_seconds(figure, unit)
            yield LoggedStep(index=count(done), seconds=seconds, of=count(of))
    if "train_" in line or "global_step" in line:
        for name, value in _TOTAL.findall(line):
            yield LoggedTotal(name=_TOTALS[name], value=number(value))


FORMAT = LogFormat(
    name="huggingface",
    title="Hugging Face Trainer",
    shows="its progress bar '| N/M [..., T s/it]', or 'train_runtime' and "
    "'train_steps_per_second' at the end",
    markers=("s/it", "it/s", "train_steps_per_second", "train_runtime"),
    read=read_line,
)

"""Logs of Megatron-LM, and of Primus, which writes the same lines.

`training_log` (megatron/training/training.py:3567-3653), `report_memory`
(megatron/training/utils/common_utils.py:313-334), the arguments (arguments.py:567, 1990).
"""

import re
from collections.abc import Iterator

from shardwise.launchers.run_log import (
    GIB,
    MIB,
    NUMBER,
    LogFormat,
    Logged,
    LoggedField,
    LoggedMemory,
    LoggedStep,
    MemoryKind,
    count,
    found_number,
    number,
)

_MARKER = "elapsed time per iteration (ms):"
_END = r"\s*(?:/\s*[\d.]+\s*)?\|"
_ITERATION = re.compile(r"iteration\s+(\d+)\s*/\s*\d+\s*\|")
_TIME = re.compile(rf"elapsed time per iteration \(ms\):\s*{NUMBER}{_END}")
_TFLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\):\s*{NUMBER}{_END}")
_TOKENS = re.compile(rf"tokens per GPU \(tokens/s/GPU\):\s*{NUMBER}{_END}")
_BATCH = re.compile(r"global batch size:\s*(\d+)\s*\|")
# Primus counts in units of 2^30 bytes: "hip mem usage/free/total/usage_ratio: aGB/bGB/cGB/d%".
_DEVICE = re.compile(rf"(?:hip |rocm )?mem(?:ory)? usage/free/total[^:|]*:\s*{NUMBER}\s*GB\s*/")
_MEMORY = re.compile(rf"\|\s*max (allocated|reserved):\s*{NUMBER}\s*(?=\||$)")
_USED = re.compile(rf"total device memory used:\s*{NUMBER}")
_DEGREES = {
    "using world size": "gpus",
    "data-parallel size": "dp",
    "context-parallel size": "cp",
    "tensor-model-parallel size": "tp",
    "pipeline-model-parallel size": "pp",
}
_DEGREE = re.compile(rf"(?<![\w-])({'|'.join(_DEGREES)}):\s*(\d+)(?=[,\s])")
_ARGUMENTS = {
    "world_size": "gpus",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch_size",
    "seq_length": "seq_len",
}
_ARGUMENT = re.compile(rf"(?:^|[\s:\]])({'|'.join(_ARGUMENTS)}) \.+ (\d+)\s*$")


def read_line(line: str) -> Iterator[Logged]:
    """Yield what a line holds."""
    if _MARKER in line:
        yield from _step(line)
    elif "| max allocated:" in line:
        for kind, mib in _MEMORY.findall(line):
            yield LoggedMemory(kind=MemoryKind(kind), bytes=number(mib) * MIB)
        if match := _USED.search(line):
            yield LoggedMemory(kind=MemoryKind.DEVICE, bytes=number(match[1]) * MIB)
    elif "using world size:" in line:
        for name, value in _DEGREE.findall(f"{line} "):
            yield LoggedField(name=_DEGREES[name], value=count(value))
    elif " ..." in line and (match := _ARGUMENT.search(line)):
        yield LoggedField(name=_ARGUMENTS[match[1]], value=count(match[2]))


def _step(line: str) -> Iterator[Logged]:
    match = _ITERATION.search(line)
    time = found_number(_TIME, line)
    if match is None:
        return
    yield LoggedStep(
        index=count(match[1]),
        seconds=time / 1000,
        tokens_per_s_per_gpu=found_number(_TOKENS, line),
        tflops_per_gpu=found_number(_TFLOPS, line),
        global_batch=found_number(_BATCH, line),
    )
    if used := _DEVICE.search(line):
        yield LoggedMemory(kind=MemoryKind.DEVICE, bytes=number(used[1]) * GIB)


FORMAT = LogFormat(
    name="megatron",
    title="Megatron-LM",
    shows=f"'iteration N/M | ... | {_MARKER} T |'",
    markers=(_MARKER,),
    read=read_line,
)

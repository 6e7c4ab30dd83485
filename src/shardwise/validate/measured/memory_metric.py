"""Peak memory as the sources of measured runs count it.

What tensors hold (torch.cuda.max_memory_allocated), what the allocator keeps for them
(max_memory_reserved), or all that is used of the accelerator (nvidia-smi).
"""

from typing import Literal

from shardwise.validate.measured.run import Run

__all__ = ["Metric", "memory_gib", "metric_of", "on_last_rank"]

Metric = Literal["allocated", "reserved", "device"]
_GIB = 2**30


def metric_of(run: Run) -> Metric:
    """What the memory of a row counts; a tool that is not told counts all of the accelerator's."""
    text = (run.measured.mem_metric or "").lower()
    if run.measured.peak_mem_gib is None:
        return "reserved"
    if "allocated" in text:
        return "allocated"
    return "reserved" if "reserved" in text else "device"


def on_last_rank(run: Run) -> bool:
    """Whether the row is of the rank that logs, which in Megatron-LM is the last one."""
    return "logging rank" in (run.measured.mem_metric or "")


def memory_gib(
    run: Run, *, allocated_bytes: float, device_bytes: float, runtime_bytes: float
) -> float | None:
    """What we predict for the metric of a row [GiB]; None: it has no measured memory.

    Parameters
    ----------
    allocated_bytes
        What tensors hold.
    device_bytes
        With what the allocator keeps beside them, and the runtime.
    runtime_bytes
        Of these, what the runtime holds.
    """
    if run.measured_memory_gib is None:
        return None
    found = {
        "allocated": allocated_bytes,
        "reserved": device_bytes - runtime_bytes,
        "device": device_bytes,
    }
    return found[metric_of(run)] / _GIB

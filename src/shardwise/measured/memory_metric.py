"""Peak memory as the sources of measured runs count it."""

from shardwise.measured.run import Run

__all__ = ["memory_gib"]

_GIB = 2**30


def memory_gib(run: Run, *, allocated_bytes: float, reserved_bytes: float) -> float | None:
    """What we predict for the metric of a row [GiB]; None: it has no measured memory.

    Parameters
    ----------
    allocated_bytes
        What tensors hold.
    reserved_bytes
        With what the allocator keeps beside them, and the runtime.
    """
    metric = (run.measured.mem_metric or "").lower()
    if run.measured_memory_gib is None:
        return None
    allocated = "allocated" in metric and run.measured.peak_mem_gib is not None
    return (allocated_bytes if allocated else reserved_bytes) / _GIB

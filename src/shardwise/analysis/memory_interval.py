"""Interval of the peak memory of an estimate, from the errors of measured peaks.

Sources measure what tensors allocate (torch.cuda.max_memory_allocated), or what the accelerator
must have: what the allocator reserves, or all that nvidia-smi shows. No figure of the memory model
is fitted, but the rows were known when it was written.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from shardwise import catalog
from shardwise.analysis.results import Memory, MemoryInterval
from shardwise.analysis.variation import LEVEL, quantile

_FILE = "memory.json"


@cache
def memory_errors() -> Mapping[str, Mapping[str, float]]:
    """Return error, runs and sources of `allocated` and `reserved` memory.

    `tools/fit_runs.py` writes them, by `memory_error`.
    """
    path = Path(catalog.__file__).parent / "fit" / _FILE
    return dict(json.loads(path.read_text(encoding="utf-8")))


def memory_error(errors: Mapping[str, Sequence[float]]) -> float:
    """Error that the peaks of a new source do not exceed with a probability of `LEVEL`.

    The quantile LEVEL (1 + 1 / n) of the sizes of the errors of n sources with one vote each: of
    exchangeable sources, that is where the next one lies (conformal prediction).

    Parameters
    ----------
    errors
        log predicted - log measured of the runs of each source.

    Examples
    --------
    >>> memory_error({"a": [0.1], "b": [-0.2], "c": [0.3], "d": [0.4], "e": [0.5]})
    0.5
    """
    sizes = np.abs(np.concatenate([np.array(some, dtype=np.float64) for some in errors.values()]))
    votes = np.concatenate([np.full(len(some), 1 / len(some)) for some in errors.values()])
    return quantile(sizes, votes, min(LEVEL * (1 + 1 / len(errors)), 1.0))


def memory_interval_of(memory: Memory) -> MemoryInterval:
    """Range of the measured peak of a stage's memory."""
    found = memory_errors()
    allocated, reserved = (math.exp(found[kind]["error"]) for kind in ("allocated", "reserved"))
    return MemoryInterval(
        total_low=memory.total / allocated,
        total_high=memory.total * allocated,
        reserved_low=memory.reserved / reserved,
        reserved_high=memory.reserved * reserved,
        level=LEVEL,
        runs=int(sum(kind["runs"] for kind in found.values())),
    )

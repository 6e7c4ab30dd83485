"""Rows per second of `estimate_many` on one core, and what the same rows cost one by one.

Run it as `python benchmarks/estimate_many.py [ROWS]`.
"""

import resource
import sys
import time
from collections.abc import Callable

import numpy as np

from shardwise import Model, System, estimate, estimate_many

_REPEATS = 3
_SINGLES = 50


def main(rows: int) -> None:
    """Print rows per second, their ratio to single estimates, and peak memory."""
    model, system = Model.load("llama3-70b"), System.load("h100-sxm")
    draw = np.random.default_rng(0)
    table = {
        "gpus": draw.choice([64, 128, 256, 512], rows),
        "tp": draw.choice([1, 2, 4, 8], rows),
        "pp": draw.choice([1, 2, 4, 8], rows),
        "micro_batch_size": draw.choice([1, 2, 4], rows),
        "global_batch_size": 1024,
        "recompute": draw.choice([0, 1, 2], rows),
        "sequence_parallel": draw.choice([True, False], rows),
        "zero": draw.choice([0, 1], rows),
        "dp_overlap": draw.choice([True, False], rows),
    }
    table_s = best_of(_REPEATS, lambda: estimate_many(model, system, table))
    one = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
    single_s = best_of(_SINGLES, lambda: estimate(model, system, one))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"estimate_many: {rows:,} rows of {model.name} in {table_s:.3f} s")
    print(f"  {rows / table_s:,.0f} rows/s, peak memory {peak_mib:,.0f} MiB")
    print(f"estimate: {1e3 * single_s:.1f} ms, as much as {single_s * rows / table_s:,.0f} rows")


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Return the shortest of several runs [s]."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)

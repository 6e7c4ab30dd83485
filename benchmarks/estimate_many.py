"""Rows per second of `estimate_many` on one core, and what the same rows cost one by one.

A grid of a few thousand strategies, each many times; and random strategies of a large search space,
which agree in little.

Run it as `python benchmarks/estimate_many.py [ROWS]`.
"""

import resource
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from shardwise import Model, Space, System, estimate, estimate_many
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import first_violation
from shardwise.planning.search.candidates import Candidates

_REPEATS = 3
_SINGLES = 50
_DRAWN = 1 << 16
# Model, system, GPUs and batch of spaces with all that is legal.
_SPACES = [
    ("llama3-405b", "h100-sxm", 16384, 16384),
    ("deepseek-v3", "h800-sxm", 2048, 15360),
]


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

    for name, on, gpus, batch in _SPACES:
        large, cluster = Model.load(name), System.load(on)
        rows_of_space = random_rows(large, cluster, gpus, batch, rows // 4)
        count = len(rows_of_space)
        space_s = best_of(_REPEATS, partial(estimate_many, large, cluster, rows_of_space))
        print(f"random rows of the space of {name} on {gpus:,} {on}: {count:,} in {space_s:.3f} s")
        slower = rows / table_s / (count / space_s)
        print(f"  {count / space_s:,.0f} rows/s, 1/{slower:.1f} of the grid's")


def random_rows(model: Model, system: System, gpus: int, batch: int, rows: int) -> Table:
    """Draw legal strategies of a space with all that is legal."""
    fields = {"scope": "full", "any_software": True, "gpus": gpus, "gbs": batch}
    candidates = Candidates.of(model, system, Space.validated(fields))
    draw = np.random.default_rng(0)
    tables: list[Table] = []
    while sum(map(len, tables)) < rows:
        drawn = candidates.strategies(draw.integers(0, len(candidates), _DRAWN))
        tables.append(drawn.take(first_violation(model, system, drawn) < 0))
    return Table.joined(tables).take(slice(0, rows))


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Return the shortest of several runs [s of one core]."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)

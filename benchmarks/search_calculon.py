"""Executions per second of Calculon's search on one core, and what they cost one at a time.

Run it as `python benchmarks/search_calculon.py`: gpt3-175B on 4,096 A100 without tier-2 memory,
1,399,728 executions, of which the networks can hold 411,664.
"""

import gzip
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.predecessors.calculon.files import CalculonExecution, CalculonModel, CalculonSystem
from shardwise.predecessors.calculon.reference import rows, search, statistics

_RUNS = Path(__file__).parents[1] / "tests" / "data" / "calculon" / "runs.json.gz"
_REPEATS = 3
_SINGLES = 200
_LIMITS: dict[str, Any] = {"num_procs": 4096, "max_batch_size": 3072, "datatype": "float16"}


def main() -> None:
    """Print executions per second, their ratio to single evaluations, and peak memory."""
    runs = json.loads(gzip.decompress(_RUNS.read_bytes()))
    model = CalculonModel.parse(runs["models"]["gpt3-175B"])
    data = runs["systems"]["a100_80g"]
    system = CalculonSystem.parse(data | {"mem2": data["mem2"] | {"GiB": 0}})
    found = search(model, system, **_LIMITS)
    search_s = best_of(_REPEATS, lambda: search(model, system, **_LIMITS))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    executions = some_feasible(model, system, _SINGLES)
    single_s = best_of(
        _REPEATS, lambda: [statistics(model, system, execution) for execution in executions]
    ) / len(executions)
    tried, held = found.candidates, found.network_feasible
    print(f"search: {tried:,} executions in {search_s:.3f} s of one core, {found.good:,} fit")
    print(f"  {tried / search_s:,.0f} executions/s, peak memory {peak_mib:,.0f} MiB")
    print(f"  {held / search_s:,.0f} executions/s of the {held:,} that networks can hold")
    print(f"statistics: {1e3 * single_s:.2f} ms for one execution, {1 / single_s:,.0f}/s")
    print(
        f"  one at a time, the {held:,} would take {held * single_s / search_s:,.0f} times as long"
    )


def some_feasible(
    model: CalculonModel, system: CalculonSystem, number: int
) -> list[CalculonExecution]:
    """Return executions spread over the feasible ones."""
    found: list[CalculonExecution] = []
    for columns, _ in rows(model, system, **_LIMITS):
        found += [columns.row(i) for i in range(0, len(columns), max(1, len(columns) // 50))]
    return found[:: max(1, len(found) // number)][:number]


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Return the shortest of several runs [CPU s]."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()

"""Times of torch's AdamW on this processor against the update on the host that shardwise predicts.

Usage: python benchmarks/cpu_optimizer.py [WEIGHTS] (10^8 weights take some 20 s and 4 GB)

The rate of memory is measured with an addition in place (12 bytes each), with 1 and with 2 threads.
`cost.optimizer` says how many bytes an update moves for each weight: gradients are not cleared or
clipped here and no 16-bit copy is written, so that a fused one reads a gradient and reads and
writes a weight and two moments, 28 bytes, and an unfused one moves `UNFUSED_BYTES` more. All times
are the medians of rounds that alternate, so that what else runs here slows all alike.
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from shardwise.cost.optimizer import UNFUSED_BYTES

ROUNDS = 7
ADDED_BYTES = 12
FUSED_BYTES = 28


def measured_times(weights: int, threads: int) -> dict[str, float]:
    """Median times of an addition and of both updates of as many weights [s]."""
    torch.set_num_threads(threads)
    one, other = torch.ones(weights), torch.ones(weights)
    steps: dict[str, Callable[[], object]] = {"addition": lambda: one.add_(other)}
    for name, fused in (("fused", True), ("unfused", False)):
        weight = torch.nn.Parameter(torch.ones(weights))
        weight.grad = torch.full((weights,), 1e-3)
        update = torch.optim.AdamW([weight], fused=fused, foreach=False)
        steps[name] = update.step
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            begun = perf_counter()
            step()
            if number:  # the first one makes the state
                times[name].append(perf_counter() - begun)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """Print predicted and measured times per billion weights."""
    weights = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**8
    print("threads  update   measured  predicted  error  (s per billion weights)")
    for threads in (1, 2):
        times = measured_times(weights, threads)
        rate = ADDED_BYTES * weights / times["addition"]
        for name, each in (("fused", FUSED_BYTES), ("unfused", FUSED_BYTES + UNFUSED_BYTES)):
            took, predicted = times[name] / weights * 1e9, each * 1e9 / rate
            error = f"{predicted / took - 1:+6.1%}"
            print(f"{threads:7}  {name:7} {took:9.2f} {predicted:10.2f} {error}")
        print(f"         rate of memory: {rate / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()

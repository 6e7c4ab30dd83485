"""Time of NERSC's full study on one core: 54 questions of 13 numbers of GPUs, all candidates.

Run it as `python benchmarks/search_nersc.py`: two models, three methods, three systems with domains
of 4, 8 and 64, a global batch of 4,096. Counting, memory, time and the ten best of each are in it.
"""

import gzip
import itertools
import json
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from shardwise.predecessors.nersc.reference import (
    METHODS,
    NerscModel,
    NerscSystem,
    SearchResult,
    search,
)

_RUNS = Path(__file__).parents[1] / "tests" / "data" / "nersc" / "runs.json.gz"
_DOMAINS = (4, 8, 64)
_GPUS = tuple(2**power for power in range(2, 15))
_BATCH = 4096
_CANDIDATES = 9_183_444
"""Of the published study."""


def main() -> None:
    """Print candidates, feasible ones and seconds of each question, and their sums."""
    runs = json.loads(gzip.decompress(_RUNS.read_bytes()))
    models = {name: NerscModel.validated(data) for name, data in runs["models"].items()}
    systems = {name: NerscSystem.validated(data) for name, data in runs["systems"].items()}
    sums = [0, 0, 0.0]
    heads = f"{'model':10}{'method':9}{'system':8}{'domain':>6}"
    print(f"{heads}{'candidates':>12}{'feasible':>11}  CPU s")
    for model, method, system, domain in itertools.product(models, METHODS, systems, _DOMAINS):
        start = time.process_time()
        found = [
            search(
                models[model],
                systems[system],
                method,
                gpus=gpus,
                global_batch=_BATCH,
                domain=domain,
            )
            for gpus in _GPUS
        ]
        row = (*counted(found), time.process_time() - start)
        sums = [total + part for total, part in zip(sums, row, strict=True)]
        line = f"{model:10}{method:9}{system:8}{domain:6}"
        print(f"{line}{row[0]:12,}{row[1]:11,}{row[2]:7.2f}")
    print(f"{'sum':33}{sums[0]:12,}{sums[1]:11,}{sums[2]:7.2f}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{sums[0] / sums[2]:,.0f} candidates/s, peak memory {peak_mib:,.0f} MiB")
    if sums[0] != _CANDIDATES:
        sys.exit(f"the published study has {_CANDIDATES:,} candidates")


def counted(found: Iterable[SearchResult]) -> tuple[int, int]:
    """Return candidates and feasible ones of some searches together."""
    counts = [(one.candidates, one.feasible) for one in found]
    candidates, feasible = (sum(column) for column in zip(*counts, strict=True))
    return candidates, feasible


if __name__ == "__main__":
    main()

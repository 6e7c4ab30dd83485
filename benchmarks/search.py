"""Strategies per second of `search` on one core, how that scales, and where the time goes.

Run it as `python benchmarks/search.py [--once] [--large] [--profile]`:

a  GPT-3 175B on 4,096 A100, batches up to 3,072: Calculon's whole space, 9,670,848 executions there
b  Turing 530B on 2,240 A100, batches up to 1,920, likewise: 4,215,872 there
c  our own whole space for Llama 3 405B on 16,384 H100
d  Mixtral 8x7B on 64 H100, every ep and cp, the fewest recomputed layers of the largest micro-batch

`--once` takes no time twice, to see that all of it works; `--large` also searches some 10^8
strategies, `--profile` tells what the time of c is spent on.
"""

import cProfile
import pstats
import resource
import sys
import time
from pathlib import Path
from typing import Any

from shardwise import Model, SearchResult, Space, System, estimate, search

_REPEATS = 3
_SINGLES = 20
# What Calculon's searches vary: whole blocks on every stage, a tier for each axis.
_CALCULONS: dict[str, Any] = {
    "batch": "largest",
    "tp_tier": "all",
    "dp_tier": "all",
    "pp_tier": "all",
    "placement": "tp-cp-dp-pp",
    "tp_overlap": ["none", "ring", "pipe"],
    "fused_activation": True,
    "dtype": "fp16",
    "stack": "calculon",
    "scope": "full",
}
# Whatever software can run.
_WIDE = {"scope": "full", "any_software": True}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a": (
        "calculon-gpt3-175b",
        "calculon-a100-80g",
        {**_CALCULONS, "gpus": 4096, "gbs": 3072, "pp": [1, 2, 4, 8, 16, 32]},
    ),
    "b": (
        "calculon-turing-530b",
        "calculon-a100-80g",
        {**_CALCULONS, "gpus": 2240, "gbs": 1920, "pp": [1, 5, 7, 35]},
    ),
    "c": ("llama3-405b", "h100-sxm", {**_WIDE, "gpus": 16384, "gbs": 16384}),
    "d": (
        "mixtral-8x7b",
        "h100-sxm",
        {
            **_WIDE,
            "gpus": 64,
            "gbs": 256,
            "tp_exchange": "rs_ag",
            "tp_overlap": "stack",
            **dict.fromkeys(("offload_weights", "offload_activations"), False),
            "recompute_layers": "fit",
            "micro_batch_size": "largest",
        },
    ),
}
_SEVERAL = ("llama3-405b", "h100-sxm", {**_WIDE, "gpus": "4096..16384", "gbs": 16384})
_LARGE = ("llama3-405b", "h100-sxm", {**_WIDE, "gpus": "1024..65536", "gbs": 65536})


def main(options: list[str]) -> None:
    """Print rates, their ratio to single estimates, scaling and peak memory."""
    once = "--once" in options
    repeats = 1 if once else _REPEATS
    for name, case in CASES.items():
        found, seconds = timed(case, repeats=repeats)
        report(name, case, found, seconds)
        if name == "c":
            single = best_single(found, case)
            print(f"   {single * found.candidates / seconds:,.0f} times as fast as one at a time")
    third = ("llama3-405b", "h100-sxm", {**_WIDE, "gpus": 16384, "gbs": 16384, "recompute": "none"})
    found, seconds = timed(third, repeats=repeats)
    report("a third of c", third, found, seconds)
    for jobs in (2,) if once else (1, 2):
        found, seconds = timed(_SEVERAL, jobs=jobs, clock=time.perf_counter)
        report(f"several scales, {jobs} process(es)", _SEVERAL, found, seconds)
    if "--large" in options:
        found, seconds = timed(_LARGE)
        report("large", _LARGE, found, seconds)
    if "--profile" in options:
        profile(CASES["c"])


def timed(
    case: tuple[str, str, dict[str, Any]],
    *,
    repeats: int = 1,
    clock: Any = time.process_time,
    **words: Any,
) -> tuple[SearchResult, float]:
    """Search, and the shortest time of several [CPU s unless told otherwise]."""
    times = []
    model, system, space = case
    for _ in range(repeats):
        start = clock()
        found = search(model, system, Space.validated(space), top=1, **words)
        times.append(clock() - start)
    return found, min(times)


def report(
    name: str, case: tuple[str, str, dict[str, Any]], found: SearchResult, seconds: float
) -> None:
    """Print a line of figures."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{name}: {case[0]}, {found.candidates:,} strategies in {seconds:.2f} s")
    print(
        f"   {found.candidates / seconds / 1e6:.1f} million/s in all, "
        f"{found.evaluated / seconds / 1e6:.1f} million/s of those that obey the rules, "
        f"{found.feasible:,} feasible; peak memory so far {peak_mib:,.0f} MiB"
    )


def best_single(found: SearchResult, case: tuple[str, str, dict[str, Any]]) -> float:
    """Time of one `estimate` [CPU s]."""
    model, system = Model.load(case[0]), System.load(case[1])
    start = time.process_time()
    for _ in range(_SINGLES):
        estimate(model, system, found.best[0].strategy)
    return (time.process_time() - start) / _SINGLES


def profile(case: tuple[str, str, dict[str, Any]]) -> None:
    """Print the share of the time spent in each module's own code."""
    profiler = cProfile.Profile()
    profiler.enable()
    timed(case)
    profiler.disable()
    shares: dict[str, float] = {}
    entries = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own, _, callers) in entries.items():
        if "shardwise" in file:
            shares[Path(file).stem] = shares.get(Path(file).stem, 0.0) + own
        else:  # numpy's own functions count for the modules that call them
            for (caller, _, _), (_, _, part, _) in callers.items():
                stem = Path(caller).stem if "shardwise" in caller else name
                shares[stem] = shares.get(stem, 0.0) + part
    whole = sum(shares.values())
    for module, seconds in sorted(shares.items(), key=lambda item: -item[1])[:15]:
        print(f"   {module:20} {100 * seconds / whole:5.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])

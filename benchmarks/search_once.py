"""Measure one search in a process of its own, for `benchmarks/search.py`.

It runs with the shardwise that PYTHONPATH names, which may be an older one.
"""

import cProfile
import json
import pstats
import resource
import sys
import time
from pathlib import Path
from typing import Any

from shardwise import Model, Space, System, search
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.pieces import PIECE_ROWS
from shardwise.planning.search.query import Question
from shardwise.planning.search.scan import Findings, merged, scan

_SMALL: dict[str, Any] = {"gpus": 8, "gbs": 8, "tp": 1}
"""The space of a search that imports everything."""


def main(case: dict[str, Any]) -> None:
    """Print the figures of one search as JSON.

    Parameters
    ----------
    case
        `model`, `system`, `space` (fields, or the file), and `share`, `jobs` and `profile` of the
        options of `benchmarks/search.py`.
    """
    model, system = Model.load(case["model"]), System.load(case["system"])
    space = Space.load(case["space"])
    search("llama3-8b", "h100-sxm", _SMALL)
    if case["profile"]:
        profile(model, system, space)
    elif case["share"] < 1:
        print(json.dumps(sampled(model, system, space, share=case["share"])))
    else:
        print(json.dumps(searched(model, system, space, jobs=case["jobs"])))


def searched(model: Model, system: System, space: Space, *, jobs: int | None) -> dict[str, Any]:
    """Search the full space; the time is that of the CPU, or elapsed time in several processes."""
    clock = time.process_time if jobs is None else time.perf_counter
    start = clock()
    found = search(model, system, space, jobs=jobs)
    return {
        "candidates": found.candidates,
        "timed": getattr(found, "timed", found.feasible),
        "time_s": clock() - start,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "best": [[plan.to_dict()["strategy"], plan.step_time_s] for plan in found.best],
    }


def sampled(model: Model, system: System, space: Space, *, share: float) -> dict[str, Any]:
    """Scan a share of the pieces, evenly spaced, and scale the time to all layouts.

    Only the scan is scaled: what a search does once, as enumerating the layouts, counts once.
    """
    start = time.process_time()
    candidates = Candidates.of(model, system, space)
    query = Question(space=space, lines=True).on(model, system)
    pieces = [piece for box in candidates.legal for piece in box.cut(PIECE_ROWS)]
    step = min(round(1 / share), len(pieces))
    chosen = pieces[step // 2 :: step]
    findings, middle = Findings.empty(), time.process_time()
    for piece in chosen:
        findings = merged([findings, scan(query, piece)], query)
    scale = sum(map(len, pieces)) / sum(map(len, chosen))
    return {
        "candidates": len(candidates),
        "timed": round(scale * findings.feasible),
        "time_s": middle - start + scale * (time.process_time() - middle),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "share": 1 / scale,
    }


def profile(model: Model, system: System, space: Space) -> None:
    """Print the share of the time of a search that each module's own code takes."""
    profiler = cProfile.Profile()
    profiler.runcall(search, model, system, space)
    shares: dict[str, float] = {}
    entries = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own, _, callers) in entries.items():
        if "shardwise" in file:
            shares[Path(file).stem] = shares.get(Path(file).stem, 0.0) + own
        else:  # numpy's own functions count for the modules that call them
            for (caller, _, _), (_, _, seconds, _) in callers.items():
                stem = Path(caller).stem if "shardwise" in caller else name
                shares[stem] = shares.get(stem, 0.0) + seconds
    total = sum(shares.values())
    for module, seconds in sorted(shares.items(), key=lambda item: -item[1])[:15]:
        print(f"   {module:20} {100 * seconds / total:5.1f} %")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

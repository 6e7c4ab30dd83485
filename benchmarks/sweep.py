"""Points per second of a sweep, next to a search of its own at every point.

28 bandwidths of the fast links x 32 capacities of the memory of a B200 system, GPT-3 of a trillion
parameters on 8,192 of them. Run it as `python benchmarks/sweep.py [BANDWIDTHS] [CAPACITIES]`.
"""

import resource
import sys
import time

import numpy as np

from shardwise import System, search, sweep

_SINGLES = 4
_RUN = {"gpus": 8192, "gbs": 4096, "recompute": "none"}
_FIXED = {"gpus": 8192, "gbs": 4096, "tp": 8, "pp": 32, "zero": 1}


def main(bandwidths: int, capacities: int) -> None:
    """Print points per second of both, and of a sweep with a fixed strategy."""
    vary = {
        "nvlink.bandwidth": np.geomspace(225e9, 3600e9, bandwidths).tolist(),
        "hbm.capacity": (np.linspace(40, 320, capacities) * 2**30).tolist(),
    }
    found = sweep("gpt3-1t", "b200-sxm", vary=vary, **_RUN)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    points = len(found.points)
    print(f"sweep: {points} points of {found.candidates // points:,} strategies each")
    print(
        f"  {found.elapsed_s:.1f} s, {points / found.elapsed_s:.1f} points/s, {peak_mib:,.0f} MiB"
    )
    alone_s = 0.0
    for place in np.linspace(0, points - 1, _SINGLES).astype(int).tolist():
        point = found.points[place]
        start = time.perf_counter()
        one = search("gpt3-1t", _system(point.values), top=1, all_variants=True, **_RUN)
        alone_s += (time.perf_counter() - start) / _SINGLES
        same = [p.step_time_s for p in point.best] == [e.step_time_s for e in one.best]
        print(f"  point {place}: {'as' if same else 'NOT as'} its own search says")
    print(f"alone: {alone_s:.2f} s a point, {alone_s * points / found.elapsed_s:.0f} times as long")
    held = sweep("gpt3-1t", "b200-sxm", vary=vary, strategy=_FIXED)
    print(f"one strategy: {points} points in {held.elapsed_s:.2f} s")


def _system(values: dict[str, float]) -> System:
    record = System.load("b200-sxm").to_dict()
    record["network"][0]["bandwidth"] = values["nvlink.bandwidth"]
    record["accelerator"]["memory"][0]["capacity"] = values["hbm.capacity"]
    return System.validated(record)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given or [28, 32]))

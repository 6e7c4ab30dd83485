"""A small search with every kind of verdict; as a program, one that takes its time to save.

``python saved_search.py FILE JOBS SECONDS`` waits that long after each part, and while it joins
them, so that there is time to interrupt it. It prints whether it was complete, and the best times.
"""

import json
import sys
import time
from typing import Any

import samples
from shardwise import SearchResult, System, search
from shardwise.searcher import pieces, store

HBM, HOST = 1.5e6, 0.3e6
PIECE_ROWS = 400
SPACE: dict[str, Any] = {
    "gpus": [4, 16],
    "gbs": 8,
    "seq_len": [32, 30],
    "tp": [1, 2, 3, 4],
    "pp": [1, 2, 4, 8],
    "tp_overlap": ["none", "ring"],
    "tp_tier": [None, 0],
    "tp_regather": True,
    "micro_batch_size": [1, 3],
    "recompute": ["none", "full"],
    "zero": [0, 1, 2],
    "dp_overlap": True,
    "placement": "tp-cp-dp-pp",
    "stack": samples.stack(),
}
ASKED: dict[str, Any] = {"pareto": "memory", "axes": ("tp", "pp"), "top": 2}


def machine() -> System:
    """A machine whose two memories are both too small for some strategies."""
    memory = [
        {"name": "hbm", "capacity": HBM, "bandwidth": 1e12},
        {"name": "host", "capacity": HOST, "bandwidth": 1e11},
    ]
    return samples.system(memory=memory)


def case(**changed: Any) -> SearchResult:
    """Search that machine."""
    return search(samples.model(), machine(), **(SPACE | ASKED | changed))


def plain(result: SearchResult) -> dict[str, Any]:
    """All of a result but how long it took."""
    return result.model_dump(exclude={"elapsed_s"})


def _slowed(function: Any, seconds: float) -> Any:
    def slow(*given: Any) -> Any:
        result = function(*given)
        time.sleep(seconds)
        return result

    return slow


if __name__ == "__main__":
    file, jobs, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    pieces.SAVED_PIECE_ROWS = PIECE_ROWS
    store.Store.add = _slowed(store.Store.add, seconds)  # type: ignore[method-assign]
    store._join = _slowed(store._join, 5 * seconds)  # noqa: SLF001
    found = case(save=file, save_all=True, jobs=jobs)
    times = [one.step_time_s for one in found.best]
    print(json.dumps({"complete": found.complete, "best": times}))  # noqa: T201

"""A small search with every kind of verdict; as a program, one that takes its time to save.

``python saved_search.py FILE JOBS BACKEND SECONDS`` waits that long after each part, and while it
joins them, so that there is time to interrupt it. It prints whether it was complete, and the best
times. `begun` starts it, `interrupted` also sends it a signal.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import samples
from naive_search import FEW
from shardwise import SearchResult, System, search
from shardwise.planning.search import pieces, store

HBM, HOST = 1.5e6, 0.3e6
PIECE_ROWS = 400
SPACE: dict[str, Any] = {
    "scope": "full",
    **FEW,
    "gpus": [4, 16],
    "gbs": 8,
    "seq_len": [32, 30],
    "tp": [1, 2, 3, 4],
    "pp": [1, 2, 4, 8],
    "tp_overlap": "none",
    "tp_tier": [None, 0],
    "tp_regather": True,
    "micro_batch_size": [1, 3],
    "recompute": ["none", "full"],
    "zero": [0, 1, 4],
    "dp_overlap": True,
    "placement": "tp-cp-dp-pp",
    "stack": samples.stack(),
}
ASKED: dict[str, Any] = {
    "objective": "step_time",
    "pareto": "memory",
    "axes": ("tp", "pp"),
    "top": 2,
    "fits": None,
}


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


def begun(file: Path, jobs: int = 1, backend: str = "loky", seconds: float = 0.1) -> Any:
    """Start the search as a program of its own session."""
    command = [sys.executable, __file__, str(file), str(jobs), backend, str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=pipe, text=True)


def parts_of(file: Path) -> list[Path]:
    """Parts that are finished."""
    return sorted(file.with_name(f"{file.name}.parts").glob("0*.parquet"))


def wait_for(what: Callable[[], bool], process: Any) -> None:
    """Wait until something is so; the program must not be over before."""
    for _ in range(2400):
        if what():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.025)
    raise AssertionError("nothing happened for a minute")


def interrupted(
    file: Path,
    number: int,
    jobs: int = 1,
    *,
    backend: str = "loky",
    parts: int = 3,
    seconds: float = 0.1,
) -> tuple[int, str, str]:
    """Send a signal to a search that has saved some parts; return its code and what it said."""
    with begun(file, jobs, backend, seconds) as process:
        wait_for(lambda: len(parts_of(file)) >= parts, process)
        if number == signal.SIGKILL:
            process.kill()
        else:
            os.killpg(process.pid, number)  # as a terminal does: all processes get it
        out, err = process.communicate()
    return process.returncode, out, err


def _slowed(function: Any, seconds: float) -> Any:
    def slow(*given: Any) -> Any:
        result = function(*given)
        time.sleep(seconds)
        return result

    return slow


if __name__ == "__main__":
    file, jobs, backend, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    pieces.SAVED_PIECE_ROWS = PIECE_ROWS
    store.Store.add = _slowed(store.Store.add, seconds)  # type: ignore[method-assign]
    store._join = _slowed(store._join, 5 * seconds)  # noqa: SLF001
    found = case(save=file, save_all=True, jobs=jobs, backend=backend)
    times = [one.step_time_s for one in found.best]
    print(json.dumps({"complete": found.complete, "best": times}))  # noqa: T201

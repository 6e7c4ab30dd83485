"""What a process of a small training run is to do, as it is written to `job.json`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import Fault, InputError

_POLL_S = 0.05
KEEP_PAGES = {"MALLOC_TRIM_THRESHOLD_": str(2**36), "MALLOC_MMAP_MAX_": "0"}
"""Lets the C library of Linux keep freed memory, as jemalloc and tcmalloc do: otherwise each step
maps the pages of its activations again, at a tenth of the rate of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model, a strategy and a number of steps, in plain values."""

    model: Mapping[str, Any]
    device: str
    """cpu or cuda."""
    threads: int
    """Of each process."""
    stages: tuple[tuple[int, int], ...]
    """First layer and the one after the last, of each stage."""
    dp: int
    tp: int
    pp: int
    zero: int
    reshard: bool
    """Whether weights of ZeRO-3 are resharded after forward."""
    scattered: bool
    """Whether tensor parallelism splits the stream by tokens."""
    schedule: str
    recompute: bool
    attention: str
    """Word for the kernel of attention."""
    dtype: str
    optimizer: str
    micro_batch_size: int
    micro_batches: int
    """Of one replica and step."""
    seq_len: int
    steps: int
    warm_up: int
    silent: bool = False
    """Whether collectives move nothing."""

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.dp * self.tp * self.pp

    @property
    def fsdp(self) -> bool:
        """Whether FSDP2 wraps the model; in one process it casts the weights for products."""
        return self.zero > 0 and self.tp * self.pp == 1


def run_job(job: Job) -> list[dict[str, Any]]:
    """Run the processes of a job on this machine and return the figures of each.

    Raises
    ------
    InputError
        With one line for the first process that failed.
    """
    with tempfile.TemporaryDirectory(prefix="shardwise-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(job.ranks):
                with (folder / f"{rank}.log").open("wb") as log:
                    started.append(_start(folder, rank, job.threads, log))
            _wait(started, folder)
        finally:
            for process in started:
                process.kill()
                process.wait()
        texts = [(folder / f"{rank}.json").read_text("utf-8") for rank in range(job.ranks)]
        return [json.loads(text) for text in texts]


def _start(folder: Path, rank: int, threads: int, log: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "shardwise.measure.worker", str(folder), str(rank)]
    return subprocess.Popen(  # noqa: S603 - this interpreter and a module of this package
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(threads)
    )


def environment(threads: int) -> dict[str, str]:
    """Variables of a local process with so many threads."""
    more = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if sys.platform == "linux":  # whatever name the machine has
        more["GLOO_SOCKET_IFNAME"] = "lo"
    return {**os.environ, **more, **KEEP_PAGES}


def _wait(started: list["subprocess.Popen[bytes]"], folder: Path) -> None:
    """Wait for all processes; the first that fails ends the wait."""
    while True:
        codes = [process.poll() for process in started]
        for rank, code in enumerate(codes):
            if code:
                raise InputError(
                    Fault(source=f"process {rank}", problem=_reason(folder, rank, code))
                )
        if None not in codes:
            return
        time.sleep(_POLL_S)


def _reason(folder: Path, rank: int, code: int) -> str:
    """Why a process failed, in one line."""
    written = folder / f"{rank}.json"
    if written.exists():
        return str(json.loads(written.read_text("utf-8"))["error"])
    lines = (folder / f"{rank}.log").read_text("utf-8", errors="replace").strip().splitlines()
    return f"ended with code {code}: {lines[-1] if lines else 'it printed nothing'}"

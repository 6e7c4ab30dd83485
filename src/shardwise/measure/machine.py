"""`calibrate measure`: run benchmarks on this machine, or go on with them, and fit it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.measure.benchmarks import Plan, measure
from shardwise.measure.device import DEVICES, Device
from shardwise.measure.job import environment
from shardwise.measure.samples import Samples, fitted, read_samples
from shardwise.validate.calibrate.fit import Calibration

_ENDING = ".samples.jsonl"
_QUICK_ROUNDS, _ROUNDS = 3, 9
_QUICK_MINUTES, _MINUTES = 1.25, 5.0
_OVERHEAD_S = 15.0
"""Of the time: to start the ranks and to fit."""
_POLL_S = 0.1
_NOT_THE_MACHINE = ("on",)


def measured_machine(
    out: str | None,
    *,
    device: str | None = None,
    ranks: int | None = None,
    minutes: float | None = None,
    quick: bool = False,
    base: str | None = None,
) -> tuple[Calibration, Samples] | None:
    """Measure this machine and fit its system; None on ranks of torchrun other than the first.

    Parameters
    ----------
    out
        File of the system, next to which its samples are written or continued.
    device
        cpu or cuda; None: cuda where PyTorch has it.
    ranks
        Local processes; None: one for each accelerator, one on a processor. Under torchrun, its.
    minutes
        When to stop; None: 5, or 1.25 if quick.
    base
        System with the priors; None: of the accelerator that PyTorch names.

    Raises
    ------
    InputError
        If PyTorch or the device is missing, or the samples are of another machine.
    """
    torch = _torch()
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in DEVICES or (kind == "cuda" and not torch.cuda.is_available()):
        problem = f"is not on this machine; allowed: {', '.join(DEVICES)}, as PyTorch has them"
        raise InputError.of("device", kind, problem, "command line")
    launched = {name: int(os.environ[name]) for name in _TORCHRUN if name in os.environ}
    elastic = len(launched) == len(_TORCHRUN)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    local = launched["LOCAL_WORLD_SIZE"] if elastic else ranks
    local = local or (torch.cuda.device_count() if kind == "cuda" else 1)
    if kind == "cuda" and local > torch.cuda.device_count():
        problem = f"must be at most {torch.cuda.device_count()}, the accelerators of this machine"
        raise InputError.of("ranks", local, problem, "command line")
    about = Device(torch, kind).describe()
    machine = about | {
        "device": kind,
        "cores": cores,
        "ranks": launched["WORLD_SIZE"] if elastic else local,
        "local_ranks": local,
        "threads": max(1, (cores or 1) // local),
        "torch": torch.__version__,
        "on": datetime.now(tz=UTC).date().isoformat(),
    }
    start = System.load(base or _base_of(kind, str(about["name"])))
    path = Path(out or "my-system.yaml")
    samples = path.with_name(path.name.split(".")[0] + _ENDING)
    first = not elastic or launched["RANK"] == 0
    done = _begun(samples, machine) if first else 0
    seconds = 60 * (minutes or (_QUICK_MINUTES if quick else _MINUTES)) - _OVERHEAD_S
    plan = Plan(
        device=kind,
        ranks=machine["ranks"],
        local_ranks=local,
        threads=machine["threads"],
        quick=quick,
        samples=str(samples),
        rounds=done + (_QUICK_ROUNDS if quick else _ROUNDS),
        seconds=max(seconds, 1.0),
        done=done,
    )
    if elastic:
        measure(plan, launched["RANK"])
    else:
        run_ranks(plan)
    if not first:
        return None
    found = read_samples(samples)
    return fitted(start, found, path.name.split(".")[0]), found


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415 - an extra
    except ImportError:
        problem = "needs PyTorch and scipy; install them: pip install 'shardwise[torch,calibrate]'"
        raise InputError(Fault(source="calibrate measure", problem=problem)) from None
    return torch


def _base_of(kind: str, name: str) -> str:
    """The system of the catalog whose figures are the priors."""
    if kind == "cpu":
        return "cpu-server"
    found = catalog.find("systems", name.replace(" ", "-"))
    if found is None:
        problem = f"no system of the catalog is called {name}; set the nearest one with --base"
        raise InputError(Fault(source="calibrate measure", problem=problem))
    return found.stem


def _begun(path: Path, machine: Mapping[str, Any]) -> int:
    """Begin a file of samples; of one that is there, return its number of rounds."""
    if files.exists(path):
        known = read_samples(path)
        for name, value in machine.items():
            if name not in _NOT_THE_MACHINE and known.machine.get(name) != value:
                problem = f"is {known.machine.get(name)}, not {value}: choose another output"
                raise InputError.at(path, problem, f"machine.{name}")
        return max((len(one) for one in known.times.values()), default=0)
    path.write_text(json.dumps({"machine": machine}) + "\n", encoding="utf-8")
    return 0


def run_ranks(plan: Plan) -> None:
    """Run the ranks of a plan as local processes; the first that fails ends the others."""
    with tempfile.TemporaryDirectory(prefix="shardwise-") as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(asdict(plan)), encoding="utf-8")
        variables = environment(plan.threads) | {"PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "shardwise.measure.benchmarks", str(folder / "plan.json")]
        started = [
            subprocess.Popen([*command, str(rank)], env=variables)  # noqa: S603 - this interpreter
            for rank in range(plan.ranks)
        ]
        try:
            while any(process.poll() is None for process in started):
                if any(process.poll() for process in started):
                    break
                time.sleep(_POLL_S)
        finally:
            for process in started:
                process.kill()
                process.wait()
        for rank, process in enumerate(started):
            error = folder / f"{rank}.error"
            if error.exists() or process.returncode > 0:
                text = error.read_text("utf-8") if error.exists() else "ended without a reason"
                raise InputError(Fault(source=f"rank {rank}", problem=text))

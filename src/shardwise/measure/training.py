"""Train a described model for some steps on this machine, next to what an estimate says of it.

A step is measured in several repeats, each with processes of its own. With tensor or data
parallelism repeats alternate with silent ones, whose collectives move nothing: what a step takes
more than a silent one is exposed communication. In a pipeline it is what passes do not take.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardwise import catalog
from shardwise.analysis.results import Estimate
from shardwise.arrays import Floats
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate
from shardwise.measure.buildable import trained_strategy
from shardwise.measure.job import Job, run_job

PARTS: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer",),
}
"""Parts of a step that are timed, and what of an estimate is in each."""
REST = "communication and rest"
"""Exposed communication, bubbles, and what is none of the parts."""
_WARM_UP = 3
_KERNELS: Mapping[str, tuple[str, ...]] = {
    "flash_attention": ("best", "flash1", "flash2", "flash3", "flash4"),
    "flash_attention_for_cpu": ("best", "flash1", "flash2"),
    "efficient_attention": ("efficient",),
    "cudnn_attention": ("best", "cudnn"),
    "attention_math": ("unfused",),
}
"""Operators of PyTorch, and the words for attention kernels that each runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step."""

    name: str
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A small training run next to its estimate."""

    model: Model
    system: System
    strategy: Strategy
    """As it was chosen, and what measure sets of the rest."""
    device: str
    prediction: Estimate
    step_time_s: float
    """Median of all steps of all repeats."""
    parts: tuple[Part, ...]
    """They sum to the step."""
    spread: float
    """Difference of the quartiles of the steps, over the median."""
    noise: float
    """Difference of the medians of the slowest and the fastest repeat, over the median."""
    steps: int
    peak_bytes: float
    """Peak of tensors of the process that allocates the most."""
    saved_bytes: float | None
    """Saved by autograd for the backward pass of a micro-batch; None: in several processes that
    split the model."""
    process_bytes: float
    """Largest resident set of a process."""
    attention: tuple[str, ...]
    """Operators of PyTorch that computed attention."""
    losses: tuple[float, ...]
    """Of the first repeat, warm-up included; of the first replica."""

    @property
    def error(self) -> float:
        """Predicted over measured time of a step, minus one."""
        return self.prediction.step_time_s / self.step_time_s - 1

    @property
    def attention_kernel(self) -> str:
        """Attention kernel by the strategy, or by the stack."""
        chosen = str(self.strategy.attention_kernel)
        if chosen != "stack":
            return chosen
        return str(self.strategy.loaded_stack(self.system, self.model).attention_kernel)

    @property
    def attention_as_expected(self) -> bool:
        """Whether the operators that ran are those of the kernel that the estimate counts."""
        return all(self.attention_kernel in _KERNELS.get(name, ()) for name in self.attention)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        own = ("device", "step_time_s", "spread", "noise", "steps", "peak_bytes", "saved_bytes")
        return {
            "model": self.model.name,
            "system": self.system.name,
            **{name: getattr(self, name) for name in (*own, "process_bytes")},
            "parts": [asdict(part) for part in self.parts],
            "predicted_step_time_s": self.prediction.step_time_s,
            "error": self.error,
            "predicted_peak_bytes": self.prediction.memory_bytes.total,
            "attention": list(self.attention),
            "attention_kernel": self.attention_kernel,
            "attention_as_expected": self.attention_as_expected,
            "losses": list(self.losses),
            "strategy": dict(self.prediction.strategy),
        }

    def run_record(self) -> dict[str, Any]:
        """Return the run in the form of a run file (`validate.measured.runs`)."""
        name = self.system.name
        known = name in catalog.names("systems") and System.load(name) == self.system
        measured: dict[str, object] = {"step_time_s": self.step_time_s}
        if self.device == "cuda":
            measured |= {"memory": self.peak_bytes, "memory_metric": "allocated"}
        return {
            "id": run_name(self.model, self.strategy.resolved(self.model, self.system)),
            "source": "shardwise measure",
            "model": self.model.to_dict(),
            "system": name if known else self.system.to_dict(),
            "strategy": self.strategy.model_dump(mode="json", exclude_unset=True),
            "measured": measured,
        }


def run_name(model: Model, strategy: Strategy) -> str:
    """Name of a run: its model, degrees and batch."""
    degrees = [f"{name}{getattr(strategy, name)}" for name in ("dp", "tp", "pp")]
    sizes = f"mbs{strategy.micro_batch_size}-gbs{strategy.global_batch_size}-s{strategy.seq_len}"
    return "-".join([model.name, *degrees, f"zero{strategy.zero}", sizes])


def check_runs_file(path: str | Path) -> None:
    """Raise an `InputError` if a run cannot be added to a file."""
    if Path(path).suffix.lower() != ".json":
        raise InputError.at(path, "cannot be written; allowed ending: .json")
    files.check_output_path(path)
    _run_file(path)


def _run_file(path: str | Path) -> dict[str, Any]:
    """Contents of a run file, which need not be there."""
    if not files.is_file(path):
        return {"runs": []}
    data = files.parse_json(Path(path).read_text(encoding="utf-8"), path)
    if not isinstance(data, dict) or not isinstance(data.get("runs"), list):
        raise InputError.at(path, "is no run file: it has no list `runs`")
    return data


def add_run(found: Trained, path: str | Path) -> str:
    """Add the run to a run file, which is made if it is not there, and return its name."""
    check_runs_file(path)
    record, data = found.run_record(), _run_file(path)
    names = {run.get("id") for run in data["runs"]}
    number, name = 2, record["id"]
    while record["id"] in names:
        record["id"], number = f"{name}-{number}", number + 1
    files.write_mapping(path, data | {"runs": [*data["runs"], record]})
    return str(record["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is trained, and its estimate."""

    model: Model
    system: System
    strategy: Strategy
    """As it was chosen, and what measure sets of the rest."""
    prediction: Estimate
    job: Job


def planned(
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    device: str | None = None,
    steps: int = 10,
    threads: int | None = None,
) -> Planned:
    """Return what is trained, after everything that can be refused is checked.

    Parameters
    ----------
    device
        cpu or cuda; None: that of the system.
    steps
        Timed steps of each repeat.
    threads
        Of each process; None: the cores of an accelerator of the system, at most an even share.

    Raises
    ------
    InputError
        If PyTorch is missing, or the model or the strategy cannot be built or is illegal.
    """
    used = device or ("cuda" if system.accelerator.asynchronous else "cpu")
    chosen = trained_strategy(model, strategy, device=used)
    if find_spec("torch") is None:
        raise InputError.at("measure", "needs the extra torch: pip install 'shardwise[torch]'")
    prediction = estimate(model, system, chosen)
    full = chosen.resolved(model, system)
    share = max(1, _cores() // (full.gpus or 1))
    if used == "cpu":
        share = min(share, system.accelerator.multiprocessors or share)
    job = job_of(model, full, prediction, device=used, steps=steps, threads=threads or share)
    return Planned(model=model, system=system, strategy=chosen, prediction=prediction, job=job)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def train(
    plan: Planned, *, repeats: int = 2, progress: Callable[[str], None] = lambda _: None
) -> Trained:
    """Train some steps next to their estimate.

    Parameters
    ----------
    repeats
        How often processes are started.
    progress
        Called with a line before each repeat.

    Raises
    ------
    InputError
        If a process fails.
    """
    job, real, quiet = plan.job, [], []
    silent = replace(job, silent=True) if job.dp * job.tp > 1 else None
    for number in range(1, repeats + 1):
        progress(f"repeat {number} of {repeats}: {job.ranks} process{'es' * (job.ranks > 1)}")
        real.append(run_job(job))
        if silent is not None:
            progress(f"repeat {number} of {repeats}: the same without communication")
            quiet.append(run_job(silent))
    return trained(plan, real, quiet or real)


def job_of(
    model: Model,
    strategy: Strategy,
    prediction: Estimate,
    *,
    device: str,
    steps: int,
    threads: int,
) -> Job:
    """Return what a process does of a strategy, with the stages of its estimate."""
    dp = strategy.dp or 1
    per_replica = (strategy.global_batch_size or 1) // (dp * (strategy.micro_batch_size or 1))
    ends = list(accumulate((round(stage.layers) for stage in prediction.stages), initial=0))
    return Job(
        model=model.to_dict(),
        device=device,
        threads=threads,
        stages=tuple(pairwise(ends)),
        dp=dp,
        tp=strategy.tp,
        pp=strategy.pp,
        zero=strategy.zero,
        reshard=strategy.fsdp_reshard is not False,
        scattered=strategy.tp_exchange == "rs_ag",
        schedule=str(strategy.schedule),
        recompute=strategy.recompute == "full",
        attention=str(strategy.attention_kernel),
        dtype=str(strategy.dtype),
        optimizer=str(strategy.optimizer),
        micro_batch_size=strategy.micro_batch_size or 1,
        micro_batches=per_replica,
        seq_len=strategy.seq_len or 0,
        steps=steps,
        warm_up=_WARM_UP,
    )


_Ranks = Sequence[Mapping[str, Any]]


def _times(ranks: _Ranks, part: str) -> Floats:
    """Time of a part in each step, of the slowest process [s]."""
    return np.max([[step[part] for step in rank["steps"]] for rank in ranks], axis=0)


def trained(plan: Planned, real: Sequence[_Ranks], quiet: Sequence[_Ranks]) -> Trained:
    """Add up the figures of all repeats, and of those that time the parts."""
    prediction, job = plan.prediction, plan.job
    steps = [_times(ranks, "step") for ranks in real]
    every = np.concatenate(steps)
    medians = np.array([float(np.median(some)) for some in steps])
    step_s = float(np.median(every))
    low, high = np.percentile(every, [25, 75])
    parts = [
        Part(
            name=name,
            measured_s=float(np.median(np.concatenate([_times(ranks, name) for ranks in quiet]))),
            predicted_s=sum(prediction.time_s[one] for one in of),
        )
        for name, of in PARTS.items()
    ]
    rest = Part(
        name=REST,
        measured_s=step_s - sum(part.measured_s for part in parts),
        predicted_s=prediction.step_time_s - sum(part.predicted_s for part in parts),
    )
    ranks = real[0]
    saved = [rank["saved_bytes"] for rank in ranks if "saved_bytes" in rank]
    return Trained(
        model=plan.model,
        system=plan.system,
        strategy=plan.strategy,
        device=job.device,
        prediction=prediction,
        step_time_s=step_s,
        parts=(*parts, rest),
        spread=float(high - low) / step_s,
        noise=float(medians.max() - medians.min()) / step_s,
        steps=every.size,
        peak_bytes=float(max(rank["peak_bytes"] for rank in ranks)),
        saved_bytes=float(max(saved)) if saved else None,
        process_bytes=float(max(rank["process_bytes"] for rank in ranks)),
        attention=tuple(sorted({name for rank in ranks for name in rank["attention"]})),
        losses=tuple(ranks[-1 if job.pp > 1 else 0]["losses"]),
    )

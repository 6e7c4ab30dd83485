"""Measured runs of SimuMax: peak memory and step time, at nominal and at declared speed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from shardwise.analysis.results import Estimate
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.estimator import estimate
from shardwise.validate.scores import Compared, Part, PublishedFigures, Row, Scoreboard

_GIB = 2.0**30
_AS_THEY_ARE = "time of a step, figures as they are"
# Bounds of a fitted speed, and its tolerance.
_SLOWEST, _FASTEST, _TOLERANCE = 0.25, 4.0, 1e-3
Seconds = Annotated[float, Field(gt=0)]


class Server(ConfigBase):
    """The machine and the software of some runs."""

    system: str
    speed: Seconds
    """Declared speed of its products and attention, relative to the system's figures."""
    strategy: Mapping[str, Any]
    """Fields that all its runs share."""
    stack: Mapping[str, Any]

    def as_system(self, speed: float) -> System:
        """The catalog's system at some speed."""
        system = System.load(self.system)
        chip = system.accelerator.model_copy(update={"speed": speed})
        return system.model_copy(update={"accelerator": chip})


class Run(ConfigBase):
    """One measured run, and SimuMax's prediction of it."""

    id: str
    group: str
    model: str
    strategy: Mapping[str, Any]
    step_s: Seconds | None = None
    peak_gib: Seconds | None = None
    reserved_gib: Seconds | None = None
    their_step_s: Seconds | None = None
    their_peak_gib: Seconds | None = None

    @property
    def topology(self) -> str:
        """Common name of runs that differ only in the number of micro-batches."""
        return self.id.rsplit("_mbc", 1)[0]


class Measured(PublishedFigures):
    """Runs and how to run them, of `catalog/validation/simumax.yaml`."""

    groups: Mapping[str, str]
    """Server of each group of runs."""
    servers: Mapping[str, Server]
    models: Mapping[str, Mapping[str, Any]]
    runs: tuple[Run, ...]

    def of(self, server: str) -> list[Run]:
        """Runs of one server, in order."""
        return [run for run in self.runs if self.groups[run.group] == server]

    def estimated(self, run: Run, speed: float) -> Estimate:
        """Our estimate of a run, on its server at some speed."""
        server = self.servers[self.groups[run.group]]
        model = Model.validated({"name": run.model, **self.models[run.model]})
        own = {"gpus": 8, "stack": server.stack}
        fields = {**server.strategy, **run.strategy, **own}
        if model.has_experts:
            fields["expert_capacity"] = 1.0  # padded to an even load
        return estimate(model, server.as_system(speed), Strategy.validated(fields))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A run with our estimate of it."""

    run: Run
    ours: Estimate


def simumax() -> Scoreboard:
    """Compare peak memory and step time with measurements on B200 and A100."""
    measured = Measured.load("simumax")
    plain = {
        name: [_Pair(run, measured.estimated(run, 1.0)) for run in measured.of(name)]
        for name in measured.servers
    }
    server = measured.servers["b200"]
    timed = [pair.run for pair in plain["b200"] if pair.run.step_s is not None]
    declared = [_Pair(run, measured.estimated(run, server.speed)) for run in _halves(timed)[1]]
    return Scoreboard(
        suite=measured.name,
        title=measured.description,
        predecessor="simumax",
        parts=(
            _peaks(measured, "b200", plain["b200"]),
            _peaks(measured, "a100", plain["a100"]),
            _steps(measured, "b200_step", f"B200: {_AS_THEY_ARE}", plain["b200"]),
            _steps(
                measured,
                "b200_step_declared",
                f"B200: the same, at {server.speed:g} of its speed, scored half",
                declared,
            ),
            *_slopes(measured, plain["b200"]),
            _steps(measured, "a100_step", f"A100: {_AS_THEY_ARE}", plain["a100"]),
        ),
    )


def fitted_speed(measured: Measured, server: str) -> float:
    """Speed of a server at which the mean error of the first half of the runs is 0.

    Times fall with the speed, so bisection finds it.
    """
    runs = _halves([run for run in measured.of(server) if run.step_s is not None])[0]
    slow, fast = _SLOWEST, _FASTEST
    while fast - slow > _TOLERANCE:
        middle = (slow + fast) / 2
        errors = [
            measured.estimated(run, middle).step_time_s / (run.step_s or np.nan) - 1 for run in runs
        ]
        slow, fast = (middle, fast) if np.mean(errors) > 0 else (slow, middle)
    return (slow + fast) / 2


def _halves(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Every other run, by group and name: one half to fit, one to score."""
    ordered = sorted(runs, key=lambda run: (run.group, run.id))
    return ordered[::2], ordered[1::2]


def _peaks(measured: Measured, server: str, pairs: Sequence[_Pair]) -> Part:
    reconstructed = "" if server == "b200" else " Reconstructed from its published errors."
    return Part(
        name=f"{server}_peak",
        title=f"{server.upper()}: peak memory of the largest rank",
        unit="GiB",
        kind="measured",
        source=measured.source_text("runs"),
        compared=Compared(
            reference=f"largest max_memory_allocated of all ranks.{reconstructed}",
            ours="memory of the peak-memory stage, without the allocator's slack.",
            theirs="its published prediction, of the worst stage.",
        ),
        rows=tuple(
            Row(
                case=pair.run.id,
                reference=pair.run.peak_gib,
                ours=max(stage.peak.bytes for stage in pair.ours.stages) / _GIB,
                theirs=pair.run.their_peak_gib,
            )
            for pair in pairs
            if pair.run.peak_gib is not None
        ),
    )


def _steps(measured: Measured, name: str, title: str, pairs: Sequence[_Pair]) -> Part:
    return Part(
        name=name,
        title=title,
        unit="s",
        kind="measured",
        source=measured.source_text("runs"),
        compared=Compared(
            reference="time of a step as logged, the faster of two.",
            ours="step_time_s. Nothing but a declared speed is set for these runs.",
            theirs="its prediction, from efficiencies measured on the same machine and shapes.",
        ),
        rows=tuple(
            Row(
                case=pair.run.id,
                reference=pair.run.step_s,
                ours=pair.ours.step_time_s,
                theirs=pair.run.their_step_s,
            )
            for pair in pairs
            if pair.run.step_s is not None
        ),
    )


def _slopes(measured: Measured, pairs: Sequence[_Pair]) -> tuple[Part, Part]:
    """Time of one more micro-batch, and the rest of a step: a line through each topology."""
    by_topology: dict[str, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.run.step_s is not None and pair.run.group != "b200-vpp-preview":
            by_topology[pair.run.topology].append(pair)
    several = {name: some for name, some in by_topology.items() if len(some) > 1}

    def part(name: str, title: str, coefficient: int) -> Part:
        return Part(
            name=name,
            title=title,
            unit="s",
            kind="measured",
            source=measured.source_text("runs"),
            compared=Compared(
                reference="least squares over the runs of a topology, by number of micro-batches.",
                ours="the same through our step times, figures as they are.",
                theirs="the same through its predictions.",
            ),
            rows=tuple(
                Row(
                    case=name,
                    reference=_line(some, [p.run.step_s for p in some])[coefficient],
                    ours=_line(some, [p.ours.step_time_s for p in some])[coefficient],
                    theirs=_line(some, [p.run.their_step_s for p in some])[coefficient],
                )
                for name, some in several.items()
            ),
        )

    return (
        part("b200_micro_batch", "B200: time of one more micro-batch", 0),
        part("b200_fixed", "B200: time of a step outside its micro-batches", 1),
    )


def _line(pairs: Sequence[_Pair], times: Sequence[float | None]) -> tuple[float, float]:
    """Slope and intercept over the micro-batches [s]."""
    counts = [pair.ours.micro_batches for pair in pairs]
    slope, fixed = np.polyfit(counts, np.array(times, dtype=np.float64), 1)
    return float(slope), float(fixed)

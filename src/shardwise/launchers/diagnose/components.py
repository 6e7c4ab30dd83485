"""Measured components of a step against predicted ones, and where the idle time belongs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.launchers.diagnose.predicted import PredictedStep
from shardwise.launchers.diagnose.results import StepComponent
from shardwise.launchers.kineto.kernels import CommAxis, KernelClass
from shardwise.launchers.kineto.steps import TracedCommunication, TracedSteps

_NONE = TracedCommunication(total_s=0.0, exposed_s=0.0, waiting_s=0.0, kernels=0.0)
_LEAST_SHARE = 0.01
"""Share of the step below which nothing is a finding."""
_IDLE_SHARE = 0.25
"""Idle time is what remains of the step: the errors of all other components are in it, of which
this share of the error of the step is one that nobody can tell from a stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A traced step and its prediction."""

    traced: TracedSteps
    predicted: PredictedStep
    factor: float
    """Error range of the predicted step: its upper end over its time."""
    median_s: float
    """Step of the log [s]."""

    @property
    def profiler_s(self) -> float:
        """What the profiler adds to a step: host time, which shows as idle [s]."""
        added = max(self.traced.step_s - self.median_s, 0.0)
        return min(added, self.traced.idle_s - self.traced.between_s)

    @property
    def idle_s(self) -> float:
        """Idle without the profiler [s]."""
        return max(self.traced.idle_s - self.profiler_s, 0.0)

    def communication(self, axis: CommAxis) -> TracedCommunication:
        """Traced communication of an axis; zero where there is none."""
        return self.traced.communication.get(axis, _NONE)

    @property
    def kernels_s(self) -> Mapping[KernelClass, float]:
        """Traced kernels by class [s]."""
        traced = self.traced
        return {
            KernelClass.PRODUCTS: traced.products_s,
            KernelClass.ATTENTION: traced.attention_s,
            KernelClass.OTHER: traced.other_kernels_s,
        }

    @property
    def passes_ratio(self) -> float:
        """Measured over predicted time of what the bubble is proportional to."""
        inner = (CommAxis.TP, CommAxis.CP, CommAxis.EP)
        measured = sum(self.kernels_s.values())
        measured += sum(self.communication(axis).exposed_s for axis in inner)
        return measured / self.predicted.passes_s if self.predicted.passes_s else 1.0

    @property
    def bubble_s(self) -> float:
        """Predicted wait for other stages, with passes as long as they are [s]."""
        return self.predicted.bubble_s * self.passes_ratio

    @property
    def idle_growth(self) -> float:
        """Idle time that comes with a second more in the passes, as far as the trace shows it.

        The bubble grows with the passes, but a stage that is slow alone does not wait itself.
        Longer kernels hide more of the host and of communication: that would show again without
        them.
        """
        predicted = self.predicted
        longer = (self.passes_ratio - 1) * predicted.passes_s
        if longer <= 0:
            return 0.0
        waits = self.idle_s + self.pipeline_waiting_s - predicted.idle_s
        exposed = predicted.exposed_s.items()
        waits += sum(min(self.communication(axis).exposed_s - one, 0.0) for axis, one in exposed)
        return min(max(waits, -longer), self.bubble_s - predicted.bubble_s) / longer

    @property
    def pipeline_waiting_s(self) -> float:
        """Exposed sends and receives that wait for another stage [s]."""
        sends = self.communication(CommAxis.PP)
        return min(sends.waiting_s, sends.exposed_s)

    @property
    def component_factor(self) -> float:
        """Error range of one component.

        log F = log f / sqrt(sum of s^2), with the shares s of the components in the step: if their
        errors are independent and equally large, those of the step are that much smaller.
        """
        shares = [one.predicted_s / self.predicted.step_s for one in self.listed()]
        size = math.sqrt(sum(share**2 for share in shares))
        return math.exp(math.log(self.factor) / size)

    @property
    def least_s(self) -> float:
        """A smaller excess is no finding [s]."""
        return _LEAST_SHARE * self.median_s

    @property
    def least_idle_s(self) -> float:
        """The same of idle time [s]."""
        return max(self.least_s, _IDLE_SHARE * (self.factor - 1) * self.predicted.step_s)

    def listed(self) -> tuple[StepComponent, ...]:
        """Every component of the step."""
        predicted = self.predicted
        found = [
            StepComponent(name=kind, predicted_s=predicted.kernels_s[kind], measured_s=seconds)
            for kind, seconds in self.kernels_s.items()
        ]
        for axis in CommAxis:
            traced, total = self.communication(axis), predicted.total_s.get(axis, 0.0)
            if traced.total_s or total:
                found.append(
                    StepComponent(
                        name=axis,
                        predicted_s=predicted.exposed_s.get(axis, 0.0),
                        measured_s=traced.exposed_s,
                        predicted_total_s=total,
                        measured_total_s=traced.total_s,
                    )
                )
        if self.traced.memcpy_s or predicted.memcpy_s:
            copies = {"predicted_s": predicted.memcpy_s, "measured_s": self.traced.memcpy_s}
            found.append(StepComponent(name=KernelClass.MEMCPY, **copies))
        found.append(
            StepComponent(name="idle", predicted_s=predicted.idle_s, measured_s=self.traced.idle_s)
        )
        return tuple(found)

"""What is predicted for a measured run."""

from dataclasses import dataclass

from shardwise.validate.measured.run import Run

__all__ = ["Prediction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Step time and memory of a run as we predict them, or the reason why not."""

    run: Run
    step_time_s: float | None = None
    converted_step_time_s: float | None = None
    """Measured time of a step, of rows that print FLOP/s alone."""
    memory_gib: float | None = None
    """Peak memory by the metric of the row."""
    model_flops_per_step: float | None = None
    peak_flops: float | None = None
    """Dense peak of all accelerators in the run's precision, FLOP/s."""
    interval: tuple[float, float] | None = None
    """Seconds that the step is expected between."""
    assumed: tuple[str, ...] = ()
    """What the row does not say and we took, a sentence each."""
    refused: str | None = None
    """Why nothing is predicted."""

    @property
    def measured_step_time_s(self) -> float | None:
        """What was measured: as the row says, or converted from FLOP/s."""
        return self.run.measured_step_time_s or self.converted_step_time_s

    @property
    def measured_mfu(self) -> float | None:
        """Model FLOPs over what the accelerators could do in the measured time of a step."""
        time = self.measured_step_time_s
        if time is None or self.model_flops_per_step is None or self.peak_flops is None:
            return None
        return self.model_flops_per_step / (time * self.peak_flops)

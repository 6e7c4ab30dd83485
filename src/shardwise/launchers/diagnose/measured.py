"""The steps of a log as figures: a median after the warm-up, how much they vary, and slow ones."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.errors import Fault, InputError
from shardwise.launchers.logs import RunLog

_WARM_UP = 10
"""One step in so many is warm-up: the first iterations compile, allocate and fill caches."""
_MOST_WARM_UP = 20
_SLOW = 1.25
_SLOW_DEVIATIONS = 5.0
_NORMAL = 1.4826
"""Standard deviation over the median deviation, of a normal distribution."""
_FAST = 0.1
_LEAST_PERIODS = 3
_EVEN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """Times of the steps of a log."""

    logged: int
    warm_up: int
    times_s: Floats
    """After the warm-up, of one global batch; shape (n,). One mean where there are no steps."""
    slow: Bools
    """Which of them are slow."""
    index: Ints
    """Their numbers."""
    tflops_per_gpu: float | None

    @property
    def median_s(self) -> float:
        """Median of all [s]."""
        return float(np.median(self.times_s))

    @property
    def spread(self) -> float:
        """Standard deviation by the median deviation, over the median."""
        return deviation(self.times_s) / self.median_s

    @property
    def fast_s(self) -> float:
        """Time that one step in ten stays below [s]."""
        return float(np.quantile(self.times_s, _FAST))

    @property
    def slow_loss_s(self) -> float:
        """What slow steps add to the mean step [s]."""
        if not self.slow.any():
            return 0.0
        return float(self.times_s.mean() - self.times_s[~self.slow].mean())

    @property
    def period(self) -> int | None:
        """Steps from one slow step to the next, if they are evenly spaced."""
        apart = np.diff(self.index[self.slow])
        if len(apart) + 1 < _LEAST_PERIODS:
            return None
        usual = float(np.median(apart))
        return round(usual) if np.all(np.abs(apart - usual) <= _EVEN * usual) else None


def measured_steps(
    log: RunLog, *, tokens_per_step: float, samples_per_step: float, gpus: int
) -> MeasuredSteps:
    """Times of the steps after the warm-up.

    The warm-up is the first tenth of the logged steps, from 1 to 20 of them; none of a few lines
    from the middle of a run. Steps of another batch
    than the last (of a ramp-up) are left out.

    Raises
    ------
    InputError
        If no time is known.
    """
    times = log.step_times(
        tokens_per_step=tokens_per_step, samples_per_step=samples_per_step, gpus=gpus
    )
    known = np.flatnonzero(~np.isnan(times))
    if not known.size:
        mean = log.mean_step_time(samples_per_step=samples_per_step)
        if not mean > 0:
            raise InputError(Fault(source=log.source, problem="holds no time of a step"))
        one = np.zeros(1, dtype=np.int64)
        return MeasuredSteps(
            logged=0,
            warm_up=0,
            times_s=np.array([mean]),
            slow=one > 0,
            index=one,
            tflops_per_gpu=None,
        )
    warm_up = min(max(known.size // _WARM_UP, 1), _MOST_WARM_UP) if known.size > 1 else 0
    if known.size < _WARM_UP and log.index[known[0]] > _MOST_WARM_UP:
        warm_up = 0  # a few lines from the middle of a run
    rows = known[warm_up:]
    batch = log.global_batch[rows]
    if not np.isnan(batch).all():
        last = batch[~np.isnan(batch)][-1]
        rows = rows[np.isnan(batch) | (batch == last)]
    used_s = times[rows]
    median = float(np.median(used_s))
    limit = max(_SLOW * median, median + _SLOW_DEVIATIONS * deviation(used_s))
    flops = log.tflops_per_gpu[rows]
    flops = flops[~np.isnan(flops)]
    return MeasuredSteps(
        logged=int(known.size),
        warm_up=warm_up,
        times_s=used_s,
        slow=used_s > limit,
        index=log.index[rows],
        tflops_per_gpu=float(np.median(flops)) if flops.size else None,
    )


def deviation(values: Floats) -> float:
    """Standard deviation of values, by the median of their distances from the median."""
    return float(_NORMAL * np.median(np.abs(values - np.median(values))))

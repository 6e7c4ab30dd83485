"""Goodput: the useful share of a training run with failures and checkpoints.

Failures of a running job are a Poisson process with mean time M between failures, as of many
independent units. Every function but `goodput_of` takes numbers or columns.
"""

import numpy as np

from shardwise.analysis.training_run.results import Goodput, TrainingTime
from shardwise.analysis.training_run.time import DAY_S
from shardwise.arrays import Floats, Ints
from shardwise.config.reliability import Reliability
from shardwise.records import dataclass

Figures = Floats | float
"""One number, or one for each row."""


def job_mtbf(unit_mtbf_s: Figures, units: Figures) -> Floats:
    """Mean time between failures of a job that needs all of its units [s]: M = theta / n.

    Units fail independently, each after an exponential time of mean theta.

    Parameters
    ----------
    unit_mtbf_s
        theta, of one accelerator or node [s].
    units
        n, units of the job.
    """
    return np.divide(unit_mtbf_s, units)


def best_interval(stall_s: Figures, mtbf_s: Figures) -> Floats:
    """Working time between checkpoints that makes the run shortest [s].

    tau = sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta for delta < 2M,
    else M (J. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22 (2006) 303-312, equation 37). Its first term is that of
    J. Young, Communications of the ACM 17 (1974) 530.

    Parameters
    ----------
    stall_s
        delta, how long a checkpoint stops the work [s].
    mtbf_s
        M, of the job [s].
    """
    delta, mtbf = np.asarray(stall_s, dtype=np.float64), np.asarray(mtbf_s, dtype=np.float64)
    half = delta / (2 * mtbf)
    interval = np.sqrt(2 * delta * mtbf) * (1 + np.sqrt(half) / 3 + half / 9) - delta
    return np.where(delta < 2 * mtbf, interval, mtbf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Expected time of a run by use, as columns [s]; infinite if it never finishes."""

    useful_s: Floats
    """Steps that no failure undid."""
    checkpoint_s: Floats
    """Stops for their checkpoints."""
    lost_s: Floats
    """Steps and stops that a failure undid."""
    restart_s: Floats
    """Restarts, including those that failed."""
    failures: Floats
    """Expected number, including those during restarts."""

    @property
    def total_s(self) -> Floats:
        """All of it."""
        return self.useful_s + self.checkpoint_s + self.lost_s + self.restart_s


def run_time(
    useful_s: Figures,
    *,
    interval_s: Figures,
    stall_s: Figures,
    write_s: Figures,
    restart_s: Figures,
    mtbf_s: Figures,
) -> RunTime:
    """Expected time of a run under failures, by use [s].

    N = T / tau segments of x = (tau + delta) / M; N may be a fraction, so a run of few intervals is
    a mean over where it ends; a run shorter than an interval is one segment. A segment is repeated
    until no failure interrupts it, so it fails e^x - 1 times and takes M (e^x - 1) in total; each
    failure needs a restart, which is repeated in the same way: M (e^(R/M) - 1). Together
    T / tau x M e^(R/M) (e^((tau + delta) / M) - 1), the complete cost function of Daly (2006,
    equation 20). Exact for exponential failures, which also interrupt checkpoints and restarts.

    An asynchronous checkpoint, written for w after a stop of delta, can be used only once it is
    complete. A failure before that undoes one more segment: on average w tau / (tau + delta) of
    work, which is repeated after the restart under the same failures. This term is an
    approximation by its mean.

    Parameters
    ----------
    useful_s
        T, the run without failures and checkpoints [s].
    interval_s
        tau, working time between two checkpoints [s].
    stall_s
        delta, how long each checkpoint stops the work [s].
    write_s
        w, how long it is written in the background after that; 0 if synchronous [s].
    restart_s
        R, from a failure to the first step after it [s].
    mtbf_s
        M, of the job [s].
    """
    useful, tau, delta, write, restart, mtbf = np.broadcast_arrays(
        *(np.asarray(c, float) for c in (useful_s, interval_s, stall_s, write_s, restart_s, mtbf_s))
    )
    tau = np.minimum(tau, useful)
    segments = useful / tau
    again = write * tau / (tau + delta)
    with np.errstate(over="ignore", invalid="ignore"):
        fails = np.expm1((tau + delta) / mtbf)
        restarts = segments * fails * mtbf * np.expm1(restart / mtbf)
        tried = segments * np.maximum(mtbf * fails - tau - delta, 0.0)
        redone = segments * fails * mtbf * np.exp(restart / mtbf) * np.expm1(again / mtbf)
        redone = np.where(again > 0, redone, 0.0)
        elapsed = segments * (tau + delta) + tried + redone + restarts
        return RunTime(
            useful_s=1.0 * useful,
            checkpoint_s=segments * delta,
            lost_s=tried + redone,
            restart_s=restarts,
            failures=elapsed / mtbf,
        )


def waiting_share(spares: Ints | int, repair_s: Figures, mtbf_s: Figures) -> Floats:
    """Share of all time that the job waits because no spare is left.

    Units in repair: 0 .. s + 1. While the job runs it has n working units and one fails every M on
    average; with s + 1 in repair one unit is missing, the job stops and none fails. Repairs take
    rho on average, independently. These are the states of a loss system with s + 1 servers and
    offered load a = rho / M, so the share is Erlang's B(s + 1, a): B(0) = 1,
    B(c) = a B(c - 1) / (c + a B(c - 1)), for any distribution of repair times (A. K. Erlang, 1917;
    B. A. Sevastyanov, Theory of Probability and Its Applications 2 (1957) 104).

    Approximations: the steady state, so a run that starts with all spares available waits less;
    repairs never queue; idle spares do not fail; putting a repaired unit to work takes no longer
    than a restart.

    Parameters
    ----------
    spares
        s, working units in addition to those of the job.
    repair_s
        rho, mean time to repair a unit [s].
    mtbf_s
        M, of the job [s].
    """
    offered = np.asarray(repair_s, float) / np.asarray(mtbf_s, float)
    count = np.asarray(spares, dtype=np.int64)
    share = np.ones(np.broadcast_shapes(offered.shape, count.shape))
    for servers in range(1, int(count.max(initial=0)) + 2):
        next_share = offered * share / (servers + offered * share)
        share = np.where(servers <= count + 1, next_share, share)
    return share


def covered_by_spares(spares: int, failures: float) -> float:
    """Probability that spares suffice without any repair.

    P(N <= s) of a Poisson number N of failures: sum over k <= s of e^-F F^k / k!.

    Parameters
    ----------
    spares
        s.
    failures
        F, expected number in a run that never waits.
    """
    if failures == 0:
        return 1.0
    k = np.arange(spares + 1, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    return float(min(1.0, np.exp(k * np.log(failures) - failures - log_factorial).sum()))


def goodput_of(
    run: TrainingTime, reliability: Reliability, *, per_node: int, checkpoint_bytes: float
) -> TrainingTime:
    """Add failures and checkpoints to a training run."""
    units = reliability.units(run.gpus, per_node)
    mtbf = float(job_mtbf(reliability.unit_mtbf_s, units))
    write = reliability.checkpoint_time
    if reliability.storage_bandwidth is not None:
        write = checkpoint_bytes / reliability.storage_bandwidth
    assert write is not None  # noqa: S101 - validated
    in_background = write if reliability.asynchronous else 0.0
    stall = reliability.checkpoint_stall if reliability.asynchronous else write
    assert stall is not None  # noqa: S101 - validated
    # One checkpoint is written at a time; if none stops the work, more of them cost nothing.
    best = max(float(best_interval(stall, mtbf)), in_background, run.step_time_s)
    interval = reliability.checkpoint_interval or best
    useful = run.days.expected * DAY_S
    spent = run_time(
        useful,
        interval_s=interval,
        stall_s=stall,
        write_s=in_background,
        restart_s=reliability.restart_time,
        mtbf_s=mtbf,
    )
    waits = None
    if reliability.spares is not None and reliability.repair_time is not None:
        waits = float(waiting_share(reliability.spares, reliability.repair_time, mtbf))
    elapsed = float(spent.total_s) / (1.0 - (waits or 0.0))
    parts = {
        "useful": spent.useful_s,
        "checkpoints": spent.checkpoint_s,
        "lost_work": spent.lost_s,
        "restarts": spent.restart_s,
    }
    finishes = np.isfinite(elapsed)
    share = {name: float(part) / elapsed for name, part in parts.items()} if finishes else {}
    if finishes and waits is not None:
        share["waiting"] = waits
    factor = elapsed / useful
    failures = float(spent.failures) if finishes else None
    spares_cover = None
    if reliability.spares is not None:
        spares_cover = (
            covered_by_spares(reliability.spares, failures) if failures is not None else 0.0
        )
    found = Goodput(
        unit="accelerator" if reliability.node_mtbf is None else "node",
        units=units,
        job_mtbf_s=mtbf,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_time_s=write,
        stall_s=stall,
        interval_s=interval,
        best_interval_s=best,
        failures=failures,
        goodput=share.get("useful", 0.0),
        share=share,
        spares_cover=spares_cover,
        days=run.days.times(factor) if finishes else None,
        gpu_hours=run.gpu_hours.times(factor) if finishes else None,
        usd=run.usd.times(factor) if finishes and run.usd is not None else None,
    )
    unknown = {name: reason for name, reason in run.unknown.items() if name != "goodput"}
    if waits is None:
        inputs = {"spares": reliability.spares, "repair time": reliability.repair_time}
        missing = [name for name, value in inputs.items() if value is None]
        unknown["waiting"] = f"no {' and no '.join(missing)}"
    return run.model_copy(update={"goodput": found, "unknown": unknown})

"""What failures and checkpoints leave of the time of a run.

Failures of a running job are a Poisson process of mean time M between two of them, as of many
independent units. Every function takes numbers or columns.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints

__all__ = [
    "RunTime",
    "best_interval",
    "covered_by_spares",
    "job_mtbf",
    "run_time",
    "waiting_share",
]

Figures = Floats | float
"""One number, or one for each row."""


def job_mtbf(unit_mtbf_s: Figures, units: Figures) -> Floats:
    """Mean time between failures of a job that needs all of its units [s]: M = theta / n.

    Units fail independently, each after an exponential time of mean theta.
    """
    return np.divide(unit_mtbf_s, units)


def best_interval(stall_s: Figures, mtbf_s: Figures) -> Floats:
    """Working time from one checkpoint to the next that makes the run shortest [s].

    tau = sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta for delta < 2M,
    else M (J. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22 (2006) 303-312, equation 37). Its first term is that of
    J. Young, Communications of the ACM 17 (1974) 530.

    Parameters
    ----------
    stall_s
        delta, for how long a checkpoint stops the work [s].
    mtbf_s
        M [s].
    """
    delta, mtbf = np.asarray(stall_s, dtype=np.float64), np.asarray(mtbf_s, dtype=np.float64)
    half = delta / (2 * mtbf)
    near = np.sqrt(2 * delta * mtbf) * (1 + np.sqrt(half) / 3 + half / 9) - delta
    return np.where(delta < 2 * mtbf, near, mtbf)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Where the expected time of a run goes, as columns [s]; infinite if it never ends."""

    useful_s: Floats
    """Steps that count."""
    checkpoint_s: Floats
    """Stops for checkpoints that count."""
    lost_s: Floats
    """Work, and stops, that a failure undid."""
    restart_s: Floats
    """Restarts, with those that failed."""
    failures: Floats
    """Expected, those during restarts included."""

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
    """Expected time of a run under failures, and where it goes [s].

    N = T / tau segments of x = (tau + delta) / M; N may be a fraction, so a run of few intervals is
    a mean over where it ends; one that is shorter than an interval is one segment. A segment is
    tried until no failure meets it, so it fails e^x - 1 times and takes M (e^x - 1) in all; each
    failure takes a restart, which is tried likewise: M (e^(R/M) - 1). Together
    T / tau x M e^(R/M) (e^((tau + delta) / M) - 1), the complete cost function of Daly (2006,
    equation 20). Exact for exponential failures, which may also meet checkpoints and restarts.

    A checkpoint that is written beside the work, for w after a stop of delta, can only be used when
    it is written. A failure before that undoes one more segment: on average w tau / (tau + delta)
    of work that is done again after the restart, under the same failures. This part is a mean and
    not exact.

    Parameters
    ----------
    useful_s
        T, the run without failures and checkpoints [s].
    interval_s
        tau, working time between two checkpoints [s].
    stall_s
        delta, for how long each stops the work [s].
    write_s
        w, for how long it is written beside the work after that; 0 if it is not [s].
    restart_s
        R, from a failure to the first step after it [s].
    mtbf_s
        M, of the whole job [s].
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
        whole = segments * (tau + delta) + tried + redone + restarts
        return RunTime(
            useful_s=1.0 * useful,
            checkpoint_s=segments * delta,
            lost_s=tried + redone,
            restart_s=restarts,
            failures=whole / mtbf,
        )


def waiting_share(spares: Ints | int, repair_s: Figures, mtbf_s: Figures) -> Floats:
    """Share of all time that the job waits because no spare is left.

    Units in repair: 0 .. s + 1. While it runs, whatever is in repair, the job needs its n units and
    so breaks one each M on average; with s + 1 in repair it lacks one, stands still and breaks
    none. Repairs take rho on average, each by itself. These are the states of a loss system with
    s + 1 servers offered a = rho / M, so the share is Erlang's B(s + 1, a), by B(0) = 1,
    B(c) = a B(c - 1) / (c + a B(c - 1)), whatever the spread of repair times (A. K. Erlang, 1917;
    B. A. Sevastyanov, Theory of Probability and Its Applications 2 (1957) 104).

    Approximations: the long run, so that a run which starts with all spares whole waits less; there
    are always hands for a repair; idle spares do not fail; a unit that was repaired goes where it
    is needed at no more than the time of a restart.

    Parameters
    ----------
    spares
        s, whole units beside those of the job.
    repair_s
        rho, mean time until a broken unit is whole again [s].
    mtbf_s
        M, of the whole job [s].
    """
    offered = np.asarray(repair_s, float) / np.asarray(mtbf_s, float)
    count = np.asarray(spares, dtype=np.int64)
    share = np.ones(np.broadcast_shapes(offered.shape, count.shape))
    for servers in range(1, int(count.max(initial=0)) + 2):
        next_share = offered * share / (servers + offered * share)
        share = np.where(servers <= count + 1, next_share, share)
    return share


def covered_by_spares(spares: int, failures: float) -> float:
    """Chance that spares are enough if none is ever repaired.

    P(N <= s) of a Poisson number N of failures: sum over k <= s of e^-F F^k / k!. F is the expected
    number of a run that never waits.
    """
    if failures == 0:
        return 1.0
    k = np.arange(spares + 1, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    return float(min(1.0, np.exp(k * np.log(failures) - failures - log_factorial).sum()))

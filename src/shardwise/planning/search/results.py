"""`SearchResult`: what a search found."""

from typing import Any, Literal

from shardwise.analysis.results import Estimate, Result
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.planning.search.smallest_gpus import SmallestGpus

__all__ = ["Alike", "Cell", "LevelsPlan", "Nearest", "Plan", "PlanRun"]
__all__ += ["ScaleResult", "SearchResult", "TrainingRuns"]


class Plan(Result):
    """One strategy in brief."""

    strategy: dict[str, Any]
    """All fields, defaults filled in."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory_reserved_bytes: float
    """On the fullest stage."""
    usd_per_billion_tokens: float | None
    """None where the system has no price."""


class ScaleResult(Result):
    """The best of one number of GPUs and one global batch."""

    gpus: int
    global_batch_size: int
    """What was asked for; the best may run a smaller one where batches are the largest."""
    candidates: int
    feasible: int
    best: Plan | None
    speedup: float | None
    """Of tokens/s over the first scale that has a feasible strategy."""
    efficiency: float | None
    """Of tokens/s per GPU over that scale's."""


class Cell(Result):
    """The best strategy with certain values of the axes of a chart."""

    values: dict[str, Any]
    plan: Plan


class LevelsPlan(Result):
    """The best strategy of one combination of levels and batch."""

    levels: dict[str, str]
    """By axis, members in a domain of the innermost tier x what each tier further out adds."""
    plan: Plan


class PlanRun(Result):
    """A whole run of one strategy."""

    strategy: dict[str, Any]
    run: TrainingTime


class TrainingRuns(Result):
    """Runs on so many tokens, of what the search found: the first ends first on the calendar."""

    of: Literal["scales", "best"]
    """What was ranked: the best of each number of accelerators and batch by the objective, or the
    best that the search returns; not the whole space."""
    runs: tuple[PlanRun, ...]
    cheapest: int | None
    """The one of them that costs least, by its position; None without a price."""
    order_is_of_steps: bool
    """Whether failures and checkpoints change nothing about the order, as on one number of
    accelerators: all runs are longer by the same factor."""


class Nearest(Result):
    """The strategy that is rejected for the least lack of memory."""

    strategy: dict[str, Any]
    tier: str
    """The memory tier that it needs most too much of."""
    excess_bytes: float
    """What it needs there beyond what may be used."""


class Alike(Result):
    """The first of the best, as far as measurements cannot tell them apart."""

    plans: int
    """How many of them, the best included."""
    within: float
    """Least relative difference that can be told."""
    safer: int
    """The one of them, by its position, that does least of what no measured run did, and of such
    the one that spends least of its step in exchanges and waits, whose times are known least."""
    untried: tuple[str, ...]
    """What the best does that no measured run did, and the safer one does not."""
    uncertain: float
    """Part of the safer one's step in exchanges and waits."""


class SearchResult(Result):
    """What a search found, and why it did not find more."""

    model: str
    system: str
    space: dict[str, Any]
    """The space, as it was declared."""
    objective: str
    capacity_bytes: float
    """What of the accelerator's memory could be used."""
    candidates: int
    """Strategies of the space, none of them twice."""
    evaluated: int
    """Those that obey the rules: their memory was computed."""
    feasible: int
    """Those of them that fit: their times were computed."""
    rejected: dict[str, int]
    """The others, by reason; most frequent first."""
    looked_at: int
    """Strategies that were feasible or rejected; all of them, if it was not interrupted."""
    elapsed_s: float
    complete: bool
    """Whether every candidate was looked at."""
    best: tuple[Estimate, ...]
    """Best first; equals in the order of the space, in which options are off first."""
    alike: Alike | None = None
    """None where the best stands apart, or there is none."""
    pareto: tuple[Plan, ...] | None = None
    """Those that no other beats on both sides of the front that was asked for."""
    pareto_against: str | None = None
    """What stands against time there."""
    scales: tuple[ScaleResult, ...] = ()
    """By number of GPUs and global batch, where there are several."""
    cells: tuple[Cell, ...] = ()
    """By values of the axes that were asked for."""
    levels: tuple[LevelsPlan, ...] | None = None
    """The best combinations of levels and batch, best first, where they were asked for."""
    runs: TrainingRuns | None = None
    """If it was told how many tokens a run trains on."""
    nearest: Nearest | None = None
    """Where nothing is feasible."""
    smallest: SmallestGpus | None = None
    """Where nothing is feasible, the smallest number of GPUs on which something is."""

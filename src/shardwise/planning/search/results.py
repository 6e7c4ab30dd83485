"""Result records of searches, explanations, and the search for the smallest or largest."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from shardwise.analysis import Result
from shardwise.analysis.measured_plans import MeasuredPlan
from shardwise.analysis.results import Estimate, Interval
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.errors import Fault
from shardwise.shown import Brief, Charted, Framed, reports

if TYPE_CHECKING:
    import polars as pl


class Plan(Result):
    """One strategy in brief."""

    strategy: Mapping[str, Any]
    """All fields, defaults filled in."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory_reserved_bytes: float
    """On the peak-memory stage."""
    usd_per_billion_tokens: float | None
    """None where the system has no price."""
    interval_low_s: float | None = None
    """Lower end of the range of the measured step time, as `Estimate.interval` has it; None forward
    only, and in files of earlier versions [s]."""
    interval_high_s: float | None = None
    """Its upper end [s]."""
    fits_probability: float | None = None
    """As in `Estimate`."""

    @classmethod
    def of(cls, estimate: Estimate, interval: Interval | None) -> "Plan":
        """Return an estimate in brief."""
        return cls(
            strategy=estimate.strategy,
            step_time_s=estimate.step_time_s,
            tokens_per_s=estimate.tokens_per_s,
            tokens_per_s_per_gpu=estimate.tokens_per_s_per_gpu,
            mfu=estimate.mfu,
            memory_reserved_bytes=estimate.memory_bytes.reserved,
            usd_per_billion_tokens=estimate.cost.usd_per_billion_tokens,
            interval_low_s=None if interval is None else interval.low_s,
            interval_high_s=None if interval is None else interval.high_s,
            fits_probability=estimate.fits_probability,
        )

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Both ends of the range."""
        low_s, high_s = self.interval_low_s, self.interval_high_s
        return None if low_s is None or high_s is None else (low_s, high_s)

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved plan that cannot be."""
        yield from super().contradictions()
        if self.step_time_s <= 0:
            yield Fault.of("step_time_s", self.step_time_s, "must be a time above 0")


class ScaleResult(Result):
    """The best strategy of one number of GPUs and one global batch."""

    gpus: int
    global_batch_size: int
    """As requested; with ``batch: largest`` the best may have a smaller one."""
    candidates: int
    feasible: int
    rejected: Mapping[str, int] = Field(default_factory=dict)
    """The others, by reason; most frequent first."""
    best: Plan | None
    speedup: float | None
    """Tokens/s over those of the first scale that has a feasible strategy."""
    efficiency: float | None
    """Tokens/s per GPU over those of that scale."""


class Cell(Result):
    """The best strategy with certain values of the chart axes."""

    values: Mapping[str, Any]
    plan: Plan


class LevelsPlan(Result):
    """The best strategy of one combination of levels and batch."""

    levels: Mapping[str, str]
    """By axis: members in a domain of the innermost tier x what each outer tier adds."""
    plan: Plan


class PlanRun(Result):
    """A training run with one strategy."""

    strategy: Mapping[str, Any]
    run: TrainingTime


class TrainingRuns(Result):
    """Training runs with the plans that the search found; the shortest calendar time first."""

    of: Literal["scales", "best"]
    """What is ranked: the best of each number of accelerators and batch by the objective, or the
    best that the search returns; not the full space."""
    runs: tuple[PlanRun, ...]
    cheapest: int | None
    """Position of the run that costs least; None without a price."""
    order_is_of_steps: bool
    """Whether failures and checkpoints leave the order unchanged, as on one number of
    accelerators: they lengthen all runs by the same factor."""


class Nearest(Result):
    """The strategy that exceeds memory by least."""

    strategy: Mapping[str, Any]
    tier: str
    """The memory tier with the largest excess."""
    excess_bytes: float
    """Bytes beyond what is usable there, with the required probability."""
    fits_probability: float | None = None
    """With which it fits; None forward only."""


class RankedPlan(Estimate):
    """One line of a ranking: a layout, represented by the simplest of its nearly equal variants."""

    variants: int = 0
    """Other strategies of the layout within half a percent of its best by the objective; with
    `all_variants` each has a line of its own."""
    best_step_time_s: float | None = None
    """Step time of the best variant; None where this is the best [s]."""
    settings: tuple[str, ...] = ()
    """Fields that are not defaults: what a user has to set, without the work itself."""
    step_time_p80_s: float | None = None
    """Step time that 8 of 10 such plans keep, by what was measured of their class of features
    (`analysis.plan_classes`), without what all plans of a search have in common; None in files of
    earlier versions [s]."""
    measured_configurations: int | None = None
    """Measured configurations of that class."""


class RunnerUp(Result):
    """The plan after the recommended one, and how it differs."""

    fields: tuple["FieldChange", ...]
    """Fields in which it differs: `given` is the value of the recommended plan."""
    step_time_s: float
    step_time_p80_s: float | None
    measured_configurations: int | None
    parts_s: Mapping[str, float]
    """Its step time minus that of the recommended plan by part, largest difference first [s]."""


class RecommendedPlan(RankedPlan):
    """The plan to run."""

    fastest_probability: float | None = None
    """Probability that none of the next plans, at least nine, is faster, from the errors of
    measured pairs of plans and of classes; None where it is alone, and forward only."""
    measured_class: str = ""
    """Its class of features in words (`analysis.plan_classes`)."""
    why: str = ""
    """Why it and not the next plan: what differs, and by how much in which part of the step."""
    runner_up: RunnerUp | None = None
    best_measured: MeasuredPlan | None = None
    """Run with the highest MFU that was measured of the model, or its nearest relative, with its
    precision on its generation of accelerators."""
    over_measured: float | None = None
    """Share by which its MFU is above that of this run."""
    beyond_measured: bool = False
    """Whether that is more than 15 %: nobody has measured such a rate."""
    commands: Mapping[str, str] = Field(default_factory=dict)
    """What to run next: `estimate` looks at the plan, `export` writes it for its launcher."""
    not_written: str = ""
    """Why the launcher of its software cannot write it, and what lists plans that it can."""


class SaferPlan(Result):
    """A plan that fits more likely than the recommended one."""

    rank: int
    """Its number in the order of the advice, which may be beyond the plans listed."""
    strategy: Mapping[str, Any]
    step_time_s: float
    step_time_p80_s: float | None
    fits_probability: float
    price: float
    """Share by which it takes longer per token."""


class Recommendation(Brief, Result):
    """What a search recommends.

    Examples
    --------
    >>> from shardwise import search
    >>> found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, pp=1, cp=1, zero=1)
    >>> assert found.recommendation
    >>> found.recommendation.plan.strategy["tp"], sorted(found.recommendation.to_dict())
    (2, ['nearest_measured', 'plan', 'safer'])
    """

    plan: RecommendedPlan
    safer: SaferPlan | None
    nearest_measured: MeasuredPlan | None


class Ties(Result):
    """The first plans of the ranking, as far as measurements cannot separate them."""

    plans: int
    """Number of such plans, the best included."""
    within: float
    """Least relative difference that measurements resolve."""
    safer: int
    """Position of the plan with the fewest features that no measured run used; of several, the one
    with the fewest settings that are not defaults."""
    untried: tuple[str, ...]
    """Features of the best plan that no measured run used and the plan without them avoids."""
    uncertain: float
    """Share of communication and waiting, whose times are least certain, in the step of the
    plan at `safer`."""
    order: tuple[int, ...] = ()
    """Positions of these plans as a table lists them, the one without them first."""


class SmallestGpus(Result):
    """The smallest number of accelerators on which something is feasible, or why there is none."""

    gpus: int | None
    strategy: Mapping[str, Any] | None
    """A feasible strategy on them; not the fastest."""
    above: int
    """Only larger numbers were tried."""
    most: int | None
    """No larger numbers were tried; None without a limit."""
    spacing: int
    """Accelerators of a node: multiples and divisors of it were tried."""
    none_below: int | None
    """No number below is feasible, with certainty; None: none at all."""
    judged: int
    """Numbers of which every strategy was evaluated; on the others the degrees do not come out
    even, or the model does not fit."""
    reason: str | None
    """What excludes all: the reason of a rule, a memory tier, or `given_up`."""
    problem: str | None
    """The same as a sentence."""
    elapsed_s: float


_TITLED = ("gpus", "global_batch_size", "seq_len")
"""Fields of a space that the titles of tables and charts show."""


class Avoided(Result):
    """What a search avoids, since it was reported broken, slower or never used."""

    values: str
    """Values of fields that it is about."""
    because: str
    source: str
    date: str
    fields: tuple[str, ...]
    """Fields to name for it to be tried."""


class SearchResult(Charted, Framed, Result):
    """What a search found, and why it did not find more.

    Examples
    --------
    >>> from shardwise import search
    >>> found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, pp=1, cp=1, zero=1)
    >>> found.best[0].strategy["tp"], found.complete
    (2, True)
    """

    ADDED: ClassVar[tuple[str, ...]] = ("launch", "explanation")

    model: str
    system: str
    space: Mapping[str, Any]
    """The space as declared."""
    launcher: str | None = None
    """Launcher that can run every listed plan, if one was requested."""
    left_out: int = 0
    """Plans that would be listed if that launcher could run them."""
    objective: str
    capacity_bytes: float
    """Usable memory of an accelerator."""
    fits_required: float | None = None
    """Probability with which every plan must fit; None: its predicted memory must."""
    fits_assumes: Mapping[str, Any] = Field(default_factory=dict)
    """Strategy fields of which the test of memory assumes another value (`Estimate`)."""
    candidates: int
    """Strategies of the space, each once."""
    evaluated: int
    """Candidates that obey the rules."""
    feasible: int
    """Candidates that also fit; at least so many, unless `counts_exact`."""
    rejected: Mapping[str, int]
    """The others, by reason, most frequent first; for memory at least so many, unless
    `counts_exact`. ``may_not_fit`` are those that fit as predicted, but not with the required
    probability."""
    timed: int
    """Candidates whose step was timed; bounds prove that no other is among the results."""
    counts_exact: bool
    """Whether the memory of every candidate that obeys the rules was checked."""
    looked_at: int
    """Candidates that were feasible or rejected; all of them unless interrupted."""
    elapsed_s: float
    complete: bool
    """Whether every candidate was evaluated."""
    best: tuple[RankedPlan, ...]
    """One for each layout (degrees, batch and recompute), or with `all_variants` every strategy;
    best first, ties in the order of the space, in which options are off first."""
    advised: tuple[RankedPlan, ...] = ()
    """The same number of plans by `step_time_p80_s`, those of classes that nobody measured counted
    no faster than the best measured run; none where an objective was set."""
    recommended: RecommendedPlan | None = None
    """The first of `advised`, or of `best` where an objective was set; None if nothing is feasible,
    and in files of earlier versions."""
    safer: SaferPlan | None = None
    """None where nothing of the list fits more likely."""
    nearest_measured: MeasuredPlan | None = None
    """The most similar plan that was measured."""
    all_variants: bool = True
    """Whether `best` lists every strategy, instead of one for each layout."""
    variants_counted: bool = True
    """Whether the variants of each layout were counted and the simplest found; if the search was
    interrupted, `best` has the best of each layout."""
    alike: Ties | None = None
    """None where the best stands out, or there is none."""
    pareto: tuple[Plan, ...] | None = None
    """Plans that no other beats in both figures of the requested front."""
    pareto_against: str | None = None
    """The figure that the front trades against time."""
    scales: tuple[ScaleResult, ...] = ()
    """By number of GPUs and global batch, where there are several."""
    cells: tuple[Cell, ...] = ()
    """By values of the requested axes."""
    levels: tuple[LevelsPlan, ...] | None = None
    """The best combinations of levels and batch, best first, if requested."""
    runs: TrainingRuns | None = None
    """If the tokens of a training run are specified."""
    nearest: Nearest | None = None
    """Where nothing is feasible."""
    not_tried: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Values that the stack can run and the space leaves out, by field."""
    avoided: tuple[Avoided, ...] = ()
    """What the stack can run and the search avoids, unless its fields are named."""
    widened: tuple[str, ...] = ()
    """Fields that were tried in full because nothing fits otherwise."""
    software: tuple[str, ...] = ()
    """How descriptions of software were understood."""
    smallest: SmallestGpus | None = None
    """Where nothing is feasible: the smallest number of GPUs on which something is."""
    nearest_batches: tuple[int, ...] = ()
    """Where no strategy obeys the rules: the nearest batches of those whose replicas cannot share
    theirs."""

    @property
    def rows(self) -> tuple[RankedPlan, ...]:
        """Plans in the order of the advice: `advised`, or `best` where an objective was set."""
        return self.advised or self.best

    @property
    def recommendation(self) -> Recommendation | None:
        """The plan to run, a safer one, and the nearest that was measured."""
        if self.recommended is None:
            return None
        return Recommendation(
            plan=self.recommended, safer=self.safer, nearest_measured=self.nearest_measured
        )

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame with a row for each of `rows`: strategy, rates, times, memory.

        Examples
        --------
        >>> from shardwise import search
        >>> found = search("llama3-8b", "h100-sxm", gpus=8, gbs=64, pp=1, cp=1, zero=1, top=2)
        >>> found.to_frame().select("rank", "tp", "fits").rows()
        [(1, 2, True), (2, 2, True)]
        """
        frame: pl.DataFrame = reports().frame(self)
        return frame

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved search that does not fit the others."""
        for name in _TITLED:
            values = self.space.get(name, ())
            is_list = isinstance(values, (list, tuple))
            are_numbers = is_list and all(isinstance(value, int) for value in values)
            if values is None or isinstance(values, str) or are_numbers:
                continue
            yield Fault.of(f"space.{name}", values, "must be a list of integers, or text")
        if len({tuple(cell.values) for cell in self.cells}) > 1:
            yield Fault(field="cells", problem="must all be of the same axes")
        runs = self.runs
        if runs is not None and not (runs.cheapest is None or 0 <= runs.cheapest < len(runs.runs)):
            problem = f"must be a position of the {len(runs.runs)} runs"
            yield Fault.of("runs.cheapest", runs.cheapest, problem)


class BrokenRule(Result):
    """A rule that makes a strategy illegal."""

    reason: str
    """The rule in a word."""
    field: str
    value: Any
    problem: str
    """What is allowed."""


class Shortage(Result):
    """A memory tier that is too small."""

    tier: str
    stage: int
    """The pipeline stage that needs most of it."""
    needed_bytes: float
    usable_bytes: float
    excess_bytes: float
    """Needed minus usable bytes."""
    parts: Mapping[str, float]
    """What the stage needs it for, largest first [byte]; on the first tier they sum to
    `needed_bytes`."""


class OutsideSpace(Result):
    """A field with a value that the space does not try."""

    field: str
    value: Any
    tried: tuple[Any, ...]


class FieldChange(Result):
    """A field in which another strategy differs from the user's."""

    field: str
    given: Any
    """The user's value."""
    value: Any
    """The other strategy's value."""


class Change(Result):
    """The best feasible strategy of the space that differs in a number of fields."""

    changes: int
    fields: tuple[FieldChange, ...]
    """In the order of `Strategy`, without fields that follow from others or have no effect."""
    plan: Plan
    improves: bool
    """Whether it is better, by a millionth or more, than the user's strategy (if that is feasible)
    and than all that differ in fewer fields."""


class Loss(Result):
    """Step time of the user's strategy minus that of the best."""

    step_time_s: float
    best_step_time_s: float
    difference_s: float
    parts_s: Mapping[str, float]
    """By part of the step, largest loss first; negative where the best takes longer. They sum to
    the difference."""


class Explanation(Charted, Result):
    """One strategy compared with the rules, the memory and every candidate of a space.

    Examples
    --------
    >>> from shardwise import explain
    >>> mine = explain("llama3-8b", "h100-sxm", {"pp": 1}, {"tp": 3}, gpus=8, gbs=64)
    >>> mine.legal, mine.broken[0].field
    (False, 'tp')
    """

    model: str
    system: str
    space: Mapping[str, Any]
    """The space as declared."""
    objective: str
    capacity_bytes: float
    """Usable memory of an accelerator."""
    strategy: Mapping[str, Any]
    """All fields of the user's strategy, defaults filled in."""
    legal: bool
    broken: tuple[BrokenRule, ...]
    """Every rule that it breaks."""
    fits: bool | None
    """None where it is not legal."""
    shortages: tuple[Shortage, ...]
    in_space: bool
    outside: tuple[OutsideSpace, ...]
    """Fields whose value is outside the space."""
    avoided: tuple[str, ...]
    """What of it was reported broken, slower or never used, which the space avoids."""
    estimate: Estimate | None
    """None where it is not legal."""
    candidates: int
    """Strategies of the space."""
    feasible: int
    """Candidates that are legal and fit."""
    better: int | None
    """Candidates that are better by the objective; None where this one is not feasible."""
    rank: int | None
    """Its place among the candidates, from 1; None where it is not one of them."""
    best: Estimate | None
    """None where nothing is feasible."""
    loss: Loss | None
    """Against the best; None where one of the two is missing, or they do different work."""
    differs: tuple[FieldChange, ...]
    """Fields in which the best differs."""
    changes: tuple[Change, ...]
    """By number of changed fields, up to the first that is as good as the best."""
    elapsed_s: float
    complete: bool
    """Whether every candidate was evaluated."""


class Shape(Result):
    """A model of the ladder of sizes, and whether a strategy fits it."""

    name: str
    parameters: int
    hidden: int
    heads: int
    layers: int
    ffn: int
    fits: bool
    spare_bytes: float | None
    """What the strategy that needs least memory leaves on its tightest tier, or, below 0, lacks
    there; None if no strategy is legal."""
    tightest_tier: str | None
    roomiest: Mapping[str, Any] | None
    """That strategy."""


class LargestFit(Result):
    """The largest model that some strategy of a space fits, and its neighbors on the ladder."""

    space: Mapping[str, Any]
    """The space as declared."""
    ladder: tuple[Shape, ...]
    """Shapes around the limit, smallest first."""
    judged: int
    """Shapes evaluated."""
    largest: Shape | None
    """None if even the smallest does not fit."""
    model: Mapping[str, Any] | None
    """The largest, in the format of a model file."""
    best: Estimate | None
    """Its fastest strategy; None if interrupted."""
    candidates: int
    """Strategies that the fastest was selected from."""


class LargestModel(Charted, LargestFit):
    """The largest model that fits: the limit, and the practical answer.

    Examples
    --------
    >>> from shardwise import largest_model
    >>> found = largest_model("h100-sxm", gpus=1, recompute="full")
    >>> assert found.largest and found.practical.largest
    >>> found.largest.parameters > found.practical.largest.parameters
    True
    """

    system: str
    gpus: int
    global_batch_size: int
    seq_len: int
    capacity_bytes: float
    """Usable memory of an accelerator."""
    second_capacity_bytes: float
    """Usable bytes of the second memory tier for each accelerator; 0 without one."""
    practical: LargestFit
    """With tensor parallelism inside the innermost domain, no offload, and options at their
    defaults, except the schedule, ZeRO, recompute and what the space sets."""
    notes: tuple[str, ...]
    """What was chosen by the system."""
    elapsed_s: float

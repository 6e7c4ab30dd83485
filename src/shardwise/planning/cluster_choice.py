"""`choose_cluster`: which system, size and plan train a model in time and within a budget.

The fastest plan of a size is also its cheapest, because a size costs the same per hour whatever
runs on it; so each size of each system has one option.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from pydantic import Field

from shardwise.analysis import Result, member_faults
from shardwise.analysis.fit_probability import SURE
from shardwise.analysis.results import Software
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.analysis.training_run.time import DAY_S
from shardwise.config.base import MISSING
from shardwise.config.model import Model, ModelLike
from shardwise.config.reliability import Reliability
from shardwise.config.system import Site, System, SystemLike
from shardwise.errors import Fault, InputError, check_function, nearest
from shardwise.estimator import estimate_each
from shardwise.planning.break_even import break_even
from shardwise.planning.search.keywords import SpaceKeywords
from shardwise.planning.search.progress import BestSoFar
from shardwise.planning.search.progress import Progress as SearchProgress
from shardwise.planning.search.query import Question, load_space
from shardwise.planning.search.results import Plan
from shardwise.planning.search.run import SizeFound, SizesFound, best_by_size
from shardwise.planning.search.scan import MAY_NOT_FIT, MEMORY, SECOND_MEMORY
from shardwise.planning.search.space import Space
from shardwise.planning.search.workers import Workers
from shardwise.planning.training_time import TrainingRun, with_training
from shardwise.records import dataclass, replace
from shardwise.shown import Charted
from shardwise.units import parse_money, parse_time_span


class ClusterOption(Result):
    """One number of accelerators of a system with one batch, and its best plan."""

    system: str
    gpus: int
    global_batch_size: int
    """As requested; with ``batch: largest`` the plan may have a smaller one."""
    days: float | None
    """Calendar days of the run, with failures and checkpoints where they are known."""
    usd: float | None
    """Price of these days; None without a price, or without a run."""
    plan: Plan | None
    """The fastest plan, which is also the cheapest; None where nothing is feasible."""
    run: TrainingTime | None
    """The run with that plan."""
    software: Software | None
    """What the plan is estimated with."""
    meets_deadline: bool | None
    """None without a deadline."""
    within_budget: bool | None
    """None without a budget."""
    on_front: bool
    """Whether no other option is as fast at as low a cost, and better in one of both."""
    candidates: int
    """Strategies of the space."""
    feasible: int
    """Strategies that obey the rules and fit; at least so many, unless `counts_exact`."""
    rejected: Mapping[str, int]
    """The others, by reason, most frequent first; for memory at least so many, unless
    `counts_exact`."""
    problem: str | None
    """Why there is no plan or no end of the run."""
    counts_exact: bool = True
    """Whether the memory of every strategy that obeys the rules was checked."""


class ClusterChoice(Charted, Result):
    """The cheapest system, size and plan in time, the fastest within a budget, and the front.

    Examples
    --------
    >>> from shardwise import choose_cluster
    >>> found = choose_cluster(
    ...     "llama3-8b", ["h100-sxm"], tokens="100B", gpus=[64, 128], gbs=512, tp=1, pp=1, zero=1
    ... )
    >>> [(option.gpus, option.on_front) for option in found.options]
    [(64, True), (128, True)]
    >>> found.within(deadline="1d").options[0].meets_deadline
    False
    """

    model: str
    systems: tuple[str, ...]
    tokens: float
    deadline_s: float | None
    budget_usd: float | None
    space: Mapping[str, Any]
    """The space as declared."""
    options: tuple[ClusterOption, ...]
    """By system, number of accelerators and batch, in the order of the request."""
    cheapest: int | None
    """Position of the cheapest option that meets the deadline, if there is one; among those with a
    price."""
    fastest: int | None
    """Position of the fastest option within the budget, if there is one."""
    front: tuple[int, ...]
    """Positions of the options on the front between time and money, fastest first."""
    feasible: bool
    """Whether an option meets the deadline and the budget."""
    nearest_in_time: int | None
    """Where none meets the deadline: the fastest option."""
    nearest_in_budget: int | None
    """Where none is within the budget: the cheapest option."""
    unpriced: tuple[str, ...]
    """Systems without a price, which have days only."""
    prices: Mapping[str, str] = Field(default_factory=dict)
    """Price of a GPU-hour by system, with provider, region, term and date."""
    break_even: Mapping[str, float] = Field(default_factory=dict)
    """By system, the price of a GPU-hour [USD] at which its best option costs as much as the
    cheapest option of another system; without those that none has."""
    smallest: Mapping[str, int]
    """By system on which no size is feasible: the smallest number of accelerators that is, if it
    was found."""
    notes: tuple[str, ...]
    """What was assumed."""
    elapsed_s: float
    complete: bool
    """Whether every system was searched."""

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each position of a saved choice that none of its options has."""
        chosen = {
            name: [getattr(self, name)]
            for name in ("cheapest", "fastest", "nearest_in_time", "nearest_in_budget")
        }
        for name, places in {**chosen, "front": self.front}.items():
            yield from member_faults(name, places, range(len(self.options)), "options")

    def within(
        self, *, deadline: float | str | None = None, budget: float | str | None = None
    ) -> "ClusterChoice":
        """Return the choice with other limits, without a new search.

        Parameters
        ----------
        deadline, budget
            As for `choose_cluster`; None: no limit.

        Raises
        ------
        InputError
            If one cannot be read, or a system has no price and there is a budget.
        """
        limits = limits_of(deadline, budget)
        refuse_unpriced(self.unpriced, limits)
        return self.model_copy(update=choice_within(self.options, limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may take; infinite where it is not limited."""

    deadline_s: float
    budget_usd: float

    def in_time(self, days: float | None) -> bool:
        """Whether a run ends by the deadline, exactly at it included."""
        return days is not None and days * DAY_S <= self.deadline_s

    def in_budget(self, usd: float | None) -> bool:
        """Whether a run costs the budget or less; where there is none, also an unknown price."""
        if self.budget_usd == math.inf:
            return True
        return usd is not None and usd <= self.budget_usd


def limits_of(deadline: float | str | None, budget: float | str | None) -> Limits:
    """Read deadline and budget."""
    read: dict[str, float] = {}
    faults = []
    for name, value, parse in (
        ("deadline", deadline, parse_time_span),
        ("budget", budget, parse_money),
    ):
        try:
            read[name] = math.inf if value is None else parse(value)
        except ValueError as error:
            faults.append(Fault.of(name, value, str(error)))
    if faults:
        raise InputError(faults)
    return Limits(deadline_s=read["deadline"], budget_usd=read["budget"])


def refuse_unpriced(names: Sequence[str], limits: Limits) -> None:
    """Raise an `InputError` for each system without a price, if there is a budget."""
    if limits.budget_usd < math.inf and names:
        problem = "has no price, which a budget needs; set price.usd_per_accelerator_hour"
        raise InputError([Fault(source="systems", field=name, problem=problem) for name in names])


def choice_within(options: Sequence[ClusterOption], limits: Limits) -> dict[str, Any]:
    """The answers and the front, by position of the options."""
    ended = [(n, one.days, one.usd) for n, one in enumerate(options) if one.days is not None]
    priced = [(n, days, usd) for n, days, usd in ended if usd is not None]
    in_time = [(usd, days, n) for n, days, usd in priced if limits.in_time(days)]
    in_budget = [
        (days, math.inf if usd is None else usd, n)
        for n, days, usd in ended
        if limits.in_budget(usd)
    ]
    front = _front(priced)
    any_in_time = any(limits.in_time(days) for _, days, _ in ended)
    deadline_s, budget_usd = (
        limit if limit < math.inf else None for limit in (limits.deadline_s, limits.budget_usd)
    )

    def marked(n: int, one: ClusterOption) -> ClusterOption:
        update = {
            "on_front": n in front,
            "meets_deadline": None if deadline_s is None else limits.in_time(one.days),
            "within_budget": None if budget_usd is None else limits.in_budget(one.usd),
        }
        return one.model_copy(update=update)

    return {
        "deadline_s": deadline_s,
        "budget_usd": budget_usd,
        "options": tuple(marked(n, one) for n, one in enumerate(options)),
        "cheapest": min(in_time)[2] if in_time else None,
        "fastest": min(in_budget)[2] if in_budget else None,
        "front": front,
        "feasible": any(limits.in_time(days) for days, _, _ in in_budget),
        "break_even": _break_even(options, in_time or [(usd, d, n) for n, d, usd in priced]),
        "nearest_in_time": (
            min((days, n) for n, days, _ in ended)[1] if ended and not any_in_time else None
        ),
        "nearest_in_budget": (
            min((usd, days, n) for n, days, usd in priced)[2] if priced and not in_budget else None
        ),
    }


def _break_even(
    options: Sequence[ClusterOption], priced: Sequence[tuple[float, float, int]]
) -> dict[str, float]:
    """Break-even price of each system, of runs that meet the deadline if any does."""
    in_time = {n for _, _, n in priced}
    hours: dict[str, float] = {}
    for n, one in enumerate(options):
        if one.days is not None and (n in in_time or one.usd is None):
            own = one.days * _DAY_HOURS * one.gpus
            hours[one.system] = min(own, hours.get(one.system, math.inf))
    return break_even([(options[n].system, usd) for usd, _, n in priced], hours)


def _front(priced: Sequence[tuple[int, float, float]]) -> tuple[int, ...]:
    """Positions of what no other option beats or equals in both days and price, fastest first."""
    front: list[int] = []
    least = math.inf
    for _, usd, number in sorted((days, usd, n) for n, days, usd in priced):
        if usd < least:
            front.append(number)
            least = usd
    return tuple(front)


Progress = Callable[[float, int, str], None]
"""Called with the systems searched, partial ones included, their number, and what is searched."""

_REASONS_SHOWN = 3
_DAY_HOURS = 24.0
_BATCH_TOKENS = 2.0**23
_BATCH_SOURCE = "Llama 3 405B had 4 to 16 M tokens: arXiv 2407.21783, section 3.4.1"
_NEVER = "the run never finishes: failures undo its work"
_MOST_DAYS = 1e6
"""A run of thousands of years never finishes: its mean is finite up to 1e300."""


def choose_cluster(
    model: ModelLike,
    systems: Sequence[SystemLike] | SystemLike,
    space: Space | Mapping[str, Any] | str | Path | None = None,
    *,
    tokens: float | str,
    deadline: float | str | None = None,
    budget: float | str | None = None,
    prices: Mapping[str, float] | None = None,
    reliability: Reliability | Mapping[str, object] | str | Path | None = None,
    site: Site | Mapping[str, object] | None = None,
    max_memory: float | str | None = None,
    reserve: float | str = 0.0,
    fits: float | str | None = SURE,
    jobs: int | None = None,
    backend: str = "loky",
    progress: Progress | None = None,
    **fixed: Unpack[SpaceKeywords],
) -> ClusterChoice:
    """Choose a cluster: the cheapest that meets a deadline, the fastest within a budget.

    Parameters
    ----------
    systems
        Systems to compare, or one.
    space, **fixed
        Strategies to try, as in `search`; with one or more ``gpus`` and ``gbs``. Without ``gbs``
        the batch has about 8 Mi tokens.
    tokens
        Tokens to train on, as for `estimate_training_time`.
    deadline
        Longest run: seconds, or text such as ``"30d"``, ``"12h"``, ``"6w"``. Calendar days count,
        with failures and checkpoints where `reliability` is known.
    budget
        Highest price of the run: USD, or text such as ``"5M"``, ``"250k"``.
    prices
        USD per accelerator-hour by system, in place of those of the systems.
    reliability, site
        As for `estimate_training_time`.
    max_memory, reserve, fits, jobs, backend
        As for `search`.
    progress
        See `Progress`.

    Returns
    -------
    ClusterChoice
        Every system and size with days and price, the cheapest and the fastest;
        `help(shardwise.ClusterChoice)` lists its fields.

    Raises
    ------
    InputError
        If an argument is wrong, or a system has no price and there is a budget.

    Examples
    --------
    >>> from shardwise import choose_cluster
    >>> found = choose_cluster(
    ...     "llama3-8b", ["h100-sxm", "a100-80gb-sxm"], gpus="64,128", gbs=512, tokens="100B",
    ...     deadline="10d", tp=[1, 2], pp=1, zero=1, recompute="none",
    ... )
    >>> assert found.cheapest is not None
    >>> best = found.options[found.cheapest]
    >>> best.system, best.gpus, best.meets_deadline
    ('h100-sxm', 64, True)
    """
    started = time.perf_counter()
    check_function("progress", progress)
    the_model = Model.load(model)
    several = _systems(systems, {} if prices is None else prices)
    run = TrainingRun.load({"tokens": tokens, "reliability": reliability, "site": site})
    limits = limits_of(deadline, budget)
    unpriced = tuple(one.name for one in several if one.price is None)
    refuse_unpriced(unpriced, limits)
    declared = load_space(space, fixed)
    if declared.gpus is None:
        raise InputError.at("cluster", MISSING["gpus"], "gpus")
    declared, notes = _with_batch(declared, the_model)
    question = Question(
        space=declared,
        objective="tokens_per_s_per_gpu",
        max_memory=max_memory,
        reserve=reserve,
        top=1,
        fits=fits,
    )
    workers = Workers(jobs=jobs, backend=backend)
    options: list[ClusterOption] = []
    smallest: dict[str, int] = {}
    complete = True
    for position, system in enumerate(several):
        report = _progress(progress, position, several)
        found = best_by_size(question, the_model, system, workers=workers, progress=report)
        if not found.complete:
            complete = False
            break
        options += _options(the_model, system, declared, found, run)
        if found.smallest is not None and found.smallest.gpus is not None:
            smallest[system.name] = found.smallest.gpus
    return ClusterChoice(
        model=the_model.name,
        systems=tuple(system.name for system in several),
        tokens=run.tokens,
        space=declared.model_dump(mode="json", exclude_unset=True),
        **choice_within(options, limits),
        unpriced=unpriced,
        prices={one.name: one.price.in_words for one in several if one.price is not None},
        smallest=smallest,
        notes=notes,
        elapsed_s=time.perf_counter() - started,
        complete=complete,
    )


def _with_batch(space: Space, model: Model) -> tuple[Space, tuple[str, ...]]:
    """Return the space with a batch, and a note if it is assumed: a power of two of sequences."""
    if space.global_batch_size is not None:
        return space, ()
    length = space.seq_len[0] if isinstance(space.seq_len, tuple) else model.seq_len
    if length is None:
        raise InputError(Fault(field="global_batch_size", problem=MISSING["global_batch_size"]))
    batch = 2 ** max(0, round(math.log2(_BATCH_TOKENS / length)))
    note = f"global batch {batch} x {length} tokens, assumed ({_BATCH_SOURCE}); set --gbs"
    return space.fixed({"global_batch_size": batch}, source="cluster"), (note,)


def _systems(
    systems: Sequence[SystemLike] | SystemLike, prices: Mapping[str, float]
) -> tuple[System, ...]:
    """Load the systems, each once, with the prices that replace theirs; one is a list of one."""
    systems = [systems] if isinstance(systems, (str, Path, System)) else systems
    if not isinstance(systems, (list, tuple)) or not systems:
        raise InputError.at("systems", "is missing: name one or more")
    found = [System.load(system) for system in systems]
    names = [system.name for system in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError.at("systems", "is listed twice", name)
    if not isinstance(prices, Mapping):
        raise InputError.of("prices", prices, "must be USD per accelerator-hour by system")
    for name in prices:
        if name not in names:
            problem = f"is none of the systems: {', '.join(names)}{nearest(str(name), names)}"
            raise InputError.at("prices", problem, str(name))
    return tuple(
        _priced(system, prices[system.name]) if system.name in prices else system
        for system in found
    )


def _priced(system: System, usd: float) -> System:
    """Return the system with another price."""
    try:
        return system.with_price(usd)
    except InputError as error:
        fault = replace(error.faults[0], source="prices", field=system.name)
        raise InputError(fault) from None


def _progress(
    progress: Progress | None, position: int, systems: Sequence[System]
) -> SearchProgress | None:
    """Report the share of the search of one system as a share of all."""
    if progress is None:
        return None

    def report(done: int, total: int, best: BestSoFar | None) -> None:
        del best
        share = done / max(total, 1)
        progress(position + share, len(systems), systems[position].name)

    return report


def _options(
    model: Model,
    system: System,
    space: Space,
    found: SizesFound,
    run: TrainingRun,
) -> list[ClusterOption]:
    """The options of one system."""
    options = []
    gpus, batches = space.gpus, space.global_batch_size
    assert isinstance(gpus, tuple)  # noqa: S101 - neither has an `all`
    assert isinstance(batches, tuple)  # noqa: S101
    bests = [one.best for one in found.sizes.values() if one.best is not None]
    stated = space.expert_imbalance is not None
    estimates = dict(zip(bests, estimate_each(model, system, bests, stated=stated), strict=True))
    for number, batch in product(gpus, batches):
        size = found.sizes.get((number, batch)) or SizeFound()
        answer: dict[str, Any] = dict.fromkeys(("days", "usd", "plan", "run", "software"))
        if size.best is None:
            answer["problem"] = _why_none(size, number, batch)
        if size.best is not None:
            best = with_training(estimates[size.best], system, run)
            assert best.whole_run is not None  # noqa: S101 - set by `with_training`
            ends = best.whole_run.effective_days <= _MOST_DAYS
            answer["days"] = best.whole_run.effective_days if ends else None
            answer["usd"] = best.whole_run.effective_usd if ends else None
            answer["plan"], answer["run"] = Plan.of(best, None), best.whole_run
            answer["software"] = best.software
            answer["problem"] = None if ends else _NEVER
        options.append(
            ClusterOption(
                system=system.name,
                gpus=number,
                global_batch_size=batch,
                **answer,
                meets_deadline=None,
                within_budget=None,
                on_front=False,
                candidates=size.candidates,
                feasible=size.feasible,
                rejected=dict(size.rejected),
                counts_exact=size.counts_exact,
            )
        )
    return options


def _why_none(size: SizeFound, gpus: int, batch: int) -> str:
    """Why nothing is feasible with a number of accelerators and a batch."""
    reasons = Counter(size.rejected)
    split = f"a batch of {batch:,} over {gpus:,} GPUs"
    if not reasons or set(reasons) == {"batch"}:
        return f"no degrees of the space split {split}"
    full, unsure = reasons[MEMORY] + reasons[SECOND_MEMORY], reasons[MAY_NOT_FIT]
    if full or unsure:
        of = f"{full:,} of {size.candidates:,} strategies need more memory"
        return f"nothing fits: {of}" + (f", {unsure:,} may need more" if unsure else "")
    shown = ", ".join(f"{reason} {n:,}" for reason, n in reasons.most_common(_REASONS_SHOWN))
    return f"every strategy breaks a rule: {shown}"

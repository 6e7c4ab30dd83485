"""`ClusterChoice`: which options meet a deadline and a budget, and the front of time and money."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.analysis import Result, member_faults
from shardwise.analysis.results import Software
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.analysis.training_run.time import DAY_S
from shardwise.errors import Fault, InputError
from shardwise.planning.search.results import Plan
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
    rejected: Mapping[str, int]
    """The others, by reason; most frequent first."""
    problem: str | None
    """Why there is no plan or no end of the run."""


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
        "nearest_in_time": (
            min((days, n) for n, days, _ in ended)[1] if ended and not any_in_time else None
        ),
        "nearest_in_budget": (
            min((usd, days, n) for n, days, usd in priced)[2] if priced and not in_budget else None
        ),
    }


def _front(priced: Sequence[tuple[int, float, float]]) -> tuple[int, ...]:
    """Positions of what no other option beats or equals in both days and price, fastest first."""
    front: list[int] = []
    least = math.inf
    for _, usd, number in sorted((days, usd, n) for n, days, usd in priced):
        if usd < least:
            front.append(number)
            least = usd
    return tuple(front)

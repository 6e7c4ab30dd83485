"""`Explanation`: why a strategy is not the best, or not possible, and what is near it."""

from typing import Any

from shardwise.analysis.results import Estimate, Result
from shardwise.planning.search.results import Plan

__all__ = [
    "BrokenRule",
    "Change",
    "Explanation",
    "FieldChange",
    "Loss",
    "OutsideSpace",
    "Shortage",
]


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
    """What is needed beyond what may be used."""
    parts: dict[str, float]
    """What the stage needs it for, biggest first [byte]; of the first tier, they sum to what is
    needed."""


class OutsideSpace(Result):
    """A field with a value that the space does not try."""

    field: str
    value: Any
    tried: tuple[Any, ...]


class FieldChange(Result):
    """A field that another strategy has another value for."""

    field: str
    given: Any
    value: Any
    """What the other one has."""


class Change(Result):
    """The best feasible strategy of the space that differs in so many fields."""

    changes: int
    fields: tuple[FieldChange, ...]
    """In the order of `Strategy`; those that follow from others, or do nothing, are not among
    them."""
    plan: Plan
    improves: bool
    """Whether it is better, by a millionth or more, than what is given (if that is feasible) and
    than all that differ in fewer fields."""


class Loss(Result):
    """What a step takes longer than that of the best strategy."""

    step_time_s: float
    best_step_time_s: float
    difference_s: float
    parts_s: dict[str, float]
    """By part of the step, largest loss first; below zero where the best takes longer. They sum to
    the difference."""


class Explanation(Result):
    """One strategy, held against the rules, the memory and every candidate of a space."""

    model: str
    system: str
    space: dict[str, Any]
    """The space, as it was declared."""
    objective: str
    capacity_bytes: float
    """What of the accelerator's memory could be used."""
    strategy: dict[str, Any]
    """All fields, those that were not given filled in."""
    legal: bool
    broken: tuple[BrokenRule, ...]
    """Every rule that it breaks."""
    fits: bool | None
    """None where it is not legal."""
    shortages: tuple[Shortage, ...]
    in_space: bool
    outside: tuple[OutsideSpace, ...]
    """Fields for which it is not in the space."""
    estimate: Estimate | None
    """None where it is not legal."""
    candidates: int
    """Strategies of the space."""
    feasible: int
    """Those of them that are legal and fit."""
    better: int | None
    """Those of them that are better by the objective; None where this one is not feasible."""
    rank: int | None
    """Its place among them, from 1; None where it is none of them."""
    best: Estimate | None
    """None where nothing is feasible."""
    loss: Loss | None
    """Against the best; None where one of the two is missing, or they do not do the same work."""
    differs: tuple[FieldChange, ...]
    """Where the best has another value."""
    changes: tuple[Change, ...]
    """By number of fields, up to the first that is as good as the best: the cheapest next steps."""
    elapsed_s: float
    complete: bool
    """Whether every candidate was looked at."""

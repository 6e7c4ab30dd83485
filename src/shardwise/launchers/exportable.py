"""Results of searches and sweeps without plans that a launcher has no options for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.writing import faults_of_plan
from shardwise.planning.search.plans import ties_of
from shardwise.planning.search.results import SearchResult
from shardwise.planning.search.space import Space
from shardwise.planning.sweep.results import SweepResult

T = TypeVar("T")


def space_for(launcher: Launcher, space: Space) -> Space:
    """Return a space with the stack of a launcher, unless it names stacks."""
    return space if space.stack is not None else space.fixed({"stack": launcher.stack}, source="")


class Exportable:
    """Which plans of a model a launcher can express; counts those that it cannot."""

    def __init__(self, launcher: Launcher, model: Model, system: System) -> None:
        self._launcher, self._model, self._system = launcher, model, system
        self._faults: dict[str, tuple[Fault, ...]] = {}

    @property
    def left_out(self) -> int:
        """Number of plans that the launcher cannot express, each once."""
        return sum(map(bool, self._faults.values()))

    def __call__(self, strategy: Mapping[str, Any]) -> bool:
        """Whether the launcher can express a saved strategy."""
        key = repr(strategy)
        if key not in self._faults:
            resolved = Strategy.validated(strategy).resolved(self._model, self._system)
            plan = LaunchPlan(model=self._model, system=self._system, strategy=resolved)
            self._faults[key] = faults_of_plan(self._launcher, plan)
        return not self._faults[key]

    def of(self, items: Sequence[T], strategy: Callable[[T], Mapping[str, Any]]) -> tuple[T, ...]:
        """Return the items whose strategy can be expressed."""
        return tuple(one for one in items if self(strategy(one)))

    def refuse_if_none(self, remain: bool) -> None:
        """Raise the faults of the model if they are why nothing is left.

        Raises
        ------
        InputError
            Naming what of the model the launcher has no option for.
        """
        found = [fault for faults in self._faults.values() for fault in faults]
        model = [fault for fault in found if fault.field not in Strategy.model_fields]
        if model and not remain:
            raise InputError(list({str(fault): fault for fault in model}.values()))


def exportable_search(
    found: SearchResult, launcher: Launcher, model: Model, system: System
) -> SearchResult:
    """Return a search with the plans that a launcher can express.

    Raises
    ------
    InputError
        If it can express none because of the model.
    """
    can = Exportable(launcher, model, system)
    best = can.of(found.best, lambda plan: plan.strategy)
    scales = tuple(
        one if one.best is None or can(one.best.strategy) else one.model_copy(update={"best": None})
        for one in found.scales
    )
    pareto = found.pareto and can.of(found.pareto, lambda plan: plan.strategy)
    levels = found.levels and can.of(found.levels, lambda one: one.plan.strategy)
    changed = {
        "best": best,
        "advised": can.of(found.advised, lambda plan: plan.strategy),
        "alike": ties_of(best, found.objective),
        "pareto": pareto,
        "scales": scales,
        "cells": can.of(found.cells, lambda cell: cell.plan.strategy),
        "levels": levels,
        "launcher": launcher.name,
    }
    can.refuse_if_none(bool(best))
    if not can.left_out:
        return found.model_copy(update={"launcher": launcher.name})
    return found.model_copy(update=changed | {"left_out": can.left_out})


def exportable_sweep(
    found: SweepResult, launcher: Launcher, model: Model, systems: Sequence[System]
) -> SweepResult:
    """Return a sweep with the plans that a launcher can express.

    Raises
    ------
    InputError
        If it can express none because of the model.
    """
    every = {system.name: Exportable(launcher, model, system) for system in systems}
    points = []
    for point in found.points:
        best = every[point.system].of(point.best, lambda plan: plan.strategy)
        problem = point.problem
        if point.best and not best:
            problem = f"{launcher.title} has no options for the best plans; list more with top"
        points.append(point.model_copy(update={"best": best, "problem": problem}))
    for can in every.values():
        can.refuse_if_none(any(point.best for point in points))
    left_out = sum(can.left_out for can in every.values())
    changed = {"points": tuple(points), "launcher": launcher.name, "left_out": left_out}
    return found.model_copy(update=changed)

"""`Question`: the request of a search, and `SearchQuery`: the same for a model and a system."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

import numpy as np

from shardwise.analysis.fit_probability import EXPERT_IMBALANCE, Margins, loaded_unevenly
from shardwise.analysis.validated_runs import precision_of
from shardwise.arrays import Floats
from shardwise.config.enums import MemoryLimit
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.evaluate import PeakMemory
from shardwise.errors import InputError, allowed_words
from shardwise.ops.param_count import count_parameters
from shardwise.planning.search.described import Described
from shardwise.planning.search.ranking import FRONTS, OBJECTIVES, Ranking, check_objective
from shardwise.planning.search.robust import PRODUCTS, RobustRanking
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.records import dataclass, replace
from shardwise.units import parse_memory, readable

# Each of the best is estimated in full; `save` writes all of them.
_MOST_TOP = 1000
# So many plans are compared with the recommended one, however few are listed.
_RIVALS = 10
_LIST = "shardwise schema space"
# Of a trained weight: bf16 weights and gradients, fp32 weights, and two moments of Adam [byte].
_TRAINED_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTest:
    """When a candidate fits: as predicted, or with a probability."""

    probability: float | None = None
    """With which it must fit; None: its predicted memory must."""
    states_load: bool = True
    """Whether the user states the load of experts; without it they get an uneven one."""
    described: Described | None = None
    """Software that may be one of several, all of which count."""

    def loaded(self, model: Model, table: Table) -> Table:
        """Return the strategies whose memory is tested; the table itself where they are those."""
        stated = self.states_load or self.probability is None
        return loaded_unevenly(model, table, stated=stated)

    def assumes(self, model: Model) -> dict[str, float]:
        """Return the strategy fields that the test assumes another value of."""
        uneven = model.has_experts and not self.states_load and self.probability is not None
        return {"expert_imbalance": EXPERT_IMBALANCE} if uneven else {}

    def needed_bytes(self, system: System, table: Table, holding: PeakMemory) -> Floats:
        """Return the bytes that must fit into the first memory tier.

        Parameters
        ----------
        table, holding
            Strategies, and the memory of those that are tested.
        """
        if self.probability is None:
            return holding.needed_bytes(system)
        if self.described is not None:
            return self.described.needed(table, self.probability, stated=self.states_load)
        return Margins.of(system, table).needed(holding.memory.total, self.probability)

    def per_byte(self, system: System, table: Table) -> Floats:
        """Return the bytes that must fit for each byte of tensors."""
        margins = Margins.of(system, table)
        if self.probability is not None:
            one = np.ones(len(table))
            return margins.needed(one, self.probability) - margins.runtime_bytes
        if system.accelerator.memory[0].limit_on == MemoryLimit.ALLOCATED:
            return np.ones(len(table))
        return table.by_stack(lambda stack: stack.allocator_slack)


PREDICTED = FitTest()
"""The predicted memory must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What a search wants to know of every candidate; workers receive it with each piece."""

    model: Model
    system: System
    capacity_bytes: float
    """Usable part of the first memory tier."""
    objective: str = "step_time"
    """A key of `OBJECTIVES`."""
    top: int = 10
    """How many of the best to return."""
    lines: bool = False
    """Whether the best of each layout (`LINE_FIELDS`) count, instead of single strategies."""
    front: str | None = None
    """One of `FRONTS`: the figure that a Pareto front trades against time."""
    axes: tuple[str, ...] = ()
    """Fields; each combination of their values gets its best candidate."""
    fit: FitTest = PREDICTED
    robust: RobustRanking | None = None
    """An order by the 80 % quantile, in which the best are found, too."""

    @property
    def rivals(self) -> int:
        """How many of the best by `robust` to find: the recommended plan and the next ones."""
        return max(self.top, _RIVALS)

    @property
    def ranking(self) -> Ranking:
        """The order by the objective."""
        return Ranking(model=self.model, system=self.system, objective=self.objective)

    def is_too_large(self, gpus: int) -> bool:
        """Whether the weights as usually trained are too large for all accelerators together.

        Then most likely nothing fits. Only the order of the work depends on it, not the result.
        """
        return _TRAINED_BYTES * count_parameters(self.model).total > gpus * self.capacity_bytes

    def check(self) -> None:
        """Raise an `InputError` if a value is not allowed."""
        check_objective(self.objective, "objective", tuple(OBJECTIVES), self.system)
        if self.front is not None:
            check_objective(self.front, "pareto", FRONTS, self.system)
        top, axes = self.top, self.axes
        if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= _MOST_TOP:
            problem = f"must be from 1 to {_MOST_TOP}; save writes all strategies to a file"
            raise InputError.of("top", top, problem)
        for axis in axes:
            if axis not in SPACE_FIELDS:
                problem = f"no such field; {allowed_words(axis, SPACE_FIELDS, _LIST)}"
                raise InputError.of("axes", axis, problem)
            if axes.count(axis) > 1:
                problem = "is set twice"
                raise InputError.of("axes", axis, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a user requests of a search, on any model and system; fields as those of `search`."""

    space: Space
    objective: str | None = None
    """By default the step time, or, where steps differ in tokens, the rate per GPU."""
    max_memory: float | str | None = None
    reserve: float | str = 0.0
    top: int = 10
    lines: bool = False
    front: str | None = None
    axes: Sequence[str] = ()
    fits: float | str | None = None
    """Probability with which a candidate must fit; None: its predicted memory must."""
    advises: bool = False
    """Whether the best by the 80 % quantile are of interest, too, if no objective is set."""

    def at(self, fields: Mapping[str, object]) -> "Question":
        """Return the question with some fields of the space fixed."""
        return replace(self, space=self.space.fixed(fields, source="vary")) if fields else self

    def on(self, model: Model, system: System) -> SearchQuery:
        """Read and check the question for a model and a system."""
        objective, robust = self.objective, None
        if objective is None:
            sizes = (self.space.global_batch_size, self.space.seq_len)
            differ = self.space.batch == "largest" or any(n and len(n) > 1 for n in sizes)
            objective = "tokens_per_s_per_gpu" if differ else "step_time"
            if self.advises:
                words = (self.space.values(name, system) or () for name in PRODUCTS)
                precisions = {precision_of(*map(str, pair)) for pair in product(*words)}
                robust = RobustRanking.of(model, system, objective, sorted(precisions))
        query = SearchQuery(
            model=model,
            system=system,
            capacity_bytes=usable_bytes(system, self.max_memory, self.reserve),
            objective=objective,
            top=self.top,
            lines=self.lines,
            front=self.front,
            axes=_names(self.axes),
            fit=FitTest(
                probability=probability_of(self.fits),
                states_load=self.space.expert_imbalance is not None,
                described=Described.of(self.space, model, system),
            ),
            robust=robust,
        )
        query.check()
        return query


def _names(axes: Sequence[str]) -> tuple[str, ...]:
    """Fields as a list of names."""
    if isinstance(axes, (list, tuple)) and all(isinstance(axis, str) for axis in axes):
        return tuple(axes)
    raise InputError.of("axes", axes, "must be a list of fields of the space")


def load_space(
    space: Space | Mapping[str, object] | str | Path | None,
    fixed: Mapping[str, object],
    work: Mapping[str, object] | None = None,
) -> Space:
    """Read a space; `fixed` overrides some of its fields, and it those of `work`."""
    declared = Space() if space is None else Space.load(space)
    rest = {n: v for n, v in (work or {}).items() if n not in declared.model_fields_set}
    declared = declared.fixed(rest, source="search") if rest else declared
    overrides = {name: value for name, value in fixed.items() if value is not None}
    return declared.fixed(overrides, source="search") if overrides else declared


def usable_bytes(system: System, max_memory: float | str | None, reserve: float | str) -> float:
    """Usable part of the first memory tier [byte]: min(capacity, max_memory) - reserve."""
    most, free = _size("max_memory", max_memory), _size("reserve", reserve) or 0.0
    capacity = system.accelerator.memory[0].capacity
    usable = min(capacity, capacity if most is None else most) - free
    if usable <= 0:
        problem = f"leaves nothing of the {readable(usable + free, 'bytes')} of usable memory"
        raise InputError.of("reserve", reserve, problem)
    return usable


def probability_of(value: float | str | None) -> float | None:
    """Return a probability; text may be a percentage, or ``none``.

    Raises
    ------
    InputError
        If it is none between 0 and 1.
    """
    if value is None or value == "none":
        return None
    found = math.nan
    with suppress(ValueError):
        text = str(value).strip()
        found = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if isinstance(value, bool) or not 0 < found < 1:
        problem = "must be a probability between 0 and 1, such as 0.9 or 90%"
        raise InputError.of("fits", value, problem)
    return found


def _size(field: str, value: float | str | None) -> float | None:
    """A size [byte]; None is no limit."""
    if value is None:
        return None
    least = 0.0 if field == "reserve" else 1.0
    problem = f"must be at least {least:g} bytes"
    try:
        size = parse_memory(value)
    except ValueError as error:
        size, problem = -1.0, str(error)
    if not math.isfinite(size):
        problem = "must be a finite size"
    if not least <= size < math.inf:
        raise InputError.of(field, value, problem)
    return size

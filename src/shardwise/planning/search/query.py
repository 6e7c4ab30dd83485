"""What is asked of a search, read and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest
from shardwise.planning.search.objective import FRONTS, OBJECTIVES, check_name
from shardwise.planning.search.scan import Question
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.units import parse_quantity, readable

__all__ = ["asked", "load_space", "usable_bytes"]

# Each of the best is estimated in full; more are rather saved.
_MOST_TOP = 1000
# Less is a number without its unit.
_LEAST_BYTES = 2.0**20


def asked(
    model: Model,
    system: System,
    space: Space,
    objective: str | None,
    max_memory: float | str | None,
    reserve: float | str,
    **more: Any,
) -> Question:
    """Read what a search or an explanation is asked.

    Raises
    ------
    InputError
        If a search cannot answer that.
    """
    question = Question(
        model=model,
        system=system,
        capacity_bytes=usable_bytes(system, max_memory, reserve),
        objective=_objective_of(space, objective),
        **more,
    )
    _check(question)
    return question


def load_space(
    space: Space | Mapping[str, Any] | str | Path | None, fixed: Mapping[str, Any]
) -> Space:
    """Read a space and put some fields over it."""
    whole = Space() if space is None else Space.load(space)
    given = {name: value for name, value in fixed.items() if value is not None}
    return whole.fixed(given, source="search") if given else whole


def usable_bytes(system: System, max_memory: float | str | None, reserve: float | str) -> float:
    """What of the first memory tier may be used [byte].

    Raises
    ------
    InputError
        If a size cannot be read, or nothing is left.
    """
    most, free = _size("max_memory", max_memory), _size("reserve", reserve) or 0.0
    capacity = system.accelerator.memory[0].capacity
    usable = min(capacity, capacity if most is None else most) - free
    if usable <= 0:
        problem = f"leaves nothing of the {readable(usable + free, 'bytes')} that may be used"
        raise InputError(Fault(field="reserve", value=reserve, has_value=True, problem=problem))
    return usable


def _size(field: str, value: float | str | None) -> float | None:
    """A size [byte]; nothing is no limit."""
    if value is None:
        return None
    least = 0.0 if field == "reserve" else 1.0
    problem = f"must be at least {least:g} bytes"
    try:
        size = parse_quantity(value, "bytes")
    except ValueError as error:
        size, problem = -1.0, str(error)
    if isinstance(value, str) and 0 < size < _LEAST_BYTES and "B" not in value:
        size, problem = -1.0, "is less than 1 MiB; is its unit missing, as in 70GiB?"
    if size < least:
        raise InputError(Fault(field=field, value=value, has_value=True, problem=problem))
    return size


def _objective_of(space: Space, given: str | None) -> str:
    """The objective asked for, else the step time, or, where steps differ in tokens, the rate."""
    if given is not None:
        return given
    several = [n for n in (space.global_batch_size, space.seq_len) if n is not None and len(n) > 1]
    return "tokens_per_s_per_gpu" if several or space.batch == "largest" else "step_time"


def _check(question: Question) -> None:
    """Raise an `InputError` if a search cannot answer that."""
    check_name(question.objective, "objective", tuple(OBJECTIVES), question.system)
    if question.front is not None:
        check_name(question.front, "pareto", FRONTS, question.system)
    top, axes = question.top, question.axes
    if not isinstance(top, int) or isinstance(top, bool) or not 1 <= top <= _MOST_TOP:
        problem = f"must be from 1 to {_MOST_TOP}; save writes all strategies to a file"
        raise InputError(Fault(field="top", value=top, has_value=True, problem=problem))
    for axis in axes:
        if axis not in SPACE_FIELDS:
            problem = f"allowed: {', '.join(SPACE_FIELDS)}{nearest(axis, SPACE_FIELDS)}"
            raise InputError(Fault(field="axes", value=axis, has_value=True, problem=problem))
        if axes.count(axis) > 1:
            problem = "is given twice"
            raise InputError(Fault(field="axes", value=axis, has_value=True, problem=problem))

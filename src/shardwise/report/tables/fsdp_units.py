"""Units of a wrapping as rows of a table, neighbours that agree as one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.fsdp.planner.evaluate import UnitCost

__all__ = ["UnitRow", "collapsed", "name_of", "ranges"]

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_LONGEST_PERIOD = 24
_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """Units that are alike but for the number of their layer."""

    name: str
    times: int
    unit: UnitCost
    """The first of them."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What a unit is but for the number of its layer, and that number."""

    kind: tuple[object, ...]
    number: int


def name_of(modules: Sequence[str]) -> str:
    """The modules of a call, for people; those that share a parent after it in brackets."""
    if not modules:
        return "root"
    parents = {name.rpartition(".")[0] for name in modules}
    (parent,) = parents if len(parents) == 1 else ("",)
    if len(modules) == 1 or not parent:
        return " + ".join(modules)
    return f"{parent}.({' + '.join(name.rpartition('.')[2] for name in modules)})"


def collapsed(units: Sequence[UnitCost]) -> list[UnitRow]:
    """Rows for units in the order they run; each begins where as many as possible are alike."""
    keys = [_key(unit) for unit in units]
    rows: list[UnitRow] = []
    at = 0
    while at < len(units):
        period, times, step = _best(keys, at)
        for place in range(at, at + period):
            unit = units[place]
            name = _range(unit.modules, step, times) if times > 1 else name_of(unit.modules)
            rows.append(UnitRow(name=name, times=times, unit=unit))
        at += period * times
    return rows


def ranges(names: Sequence[str]) -> list[str]:
    """Names in order, those that differ in the number of a layer as one."""
    found: list[str] = []
    at = 0
    keys = [_Key(kind, number) for kind, number in (_numbered((name,)) for name in names)]
    while at < len(names):
        period, times, step = _best(keys, at)
        found += [
            _range((names[place],), step, times) if times > 1 else names[place]
            for place in range(at, at + period)
        ]
        at += period * times
    return found


def _key(unit: UnitCost) -> _Key:
    kind, number = _numbered(unit.modules)
    times = (unit.gather_s, unit.reduce_s, unit.exposed_forward_s, unit.exposed_backward_s)
    shown = tuple(f"{time:.{_DIGITS}g}" if time > 1e-9 else "0" for time in times)  # noqa: PLR2004
    return _Key((*kind, unit.reshard_after_forward, unit.parameter_bytes, *shown), number)


def _numbered(modules: Sequence[str]) -> tuple[tuple[object, ...], int]:
    """Names with the first number of each made relative to the least; -1 without one."""
    numbers = [int(found[0]) if (found := _NUMBER.search(name)) else -1 for name in modules]
    if not numbers or min(numbers) < 0:
        return tuple(modules), -1
    least = min(numbers)
    kinds = (_NUMBER.sub("*", name, count=1) for name in modules)
    return tuple(zip(kinds, (number - least for number in numbers), strict=True)), least


def _best(keys: Sequence[_Key], at: int) -> tuple[int, int, int]:
    """Length of what repeats from a place on, how often it does, and the step of its numbers."""
    best = 1, 1, 1
    # A pattern of several units begins where a layer does.
    begins = at == 0 or keys[at - 1].number != keys[at].number
    longest = min(_LONGEST_PERIOD if begins else 1, (len(keys) - at) // 2)
    for period in range(1, longest + 1):
        if keys[at + period - 1].number < 0:
            break
        step = keys[at + period].number - keys[at].number
        times = 1
        while step > 0 and _repeats(keys, at, period, times, step):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = period, times, step
    return best


def _repeats(keys: Sequence[_Key], at: int, period: int, times: int, step: int) -> bool:
    start = at + period * times
    if start + period > len(keys):
        return False
    return all(
        keys[start + i].kind == keys[at + i].kind
        and keys[at + i].number >= 0
        and keys[start + i].number == keys[at + i].number + step * times
        for i in range(period)
    )


def _range(modules: Sequence[str], step: int, times: int) -> str:
    """Names of all, such as `layers.0..30`, with every step but one told."""
    last = (times - 1) * step
    by = "" if step == 1 else f"/{step}"
    told = [
        _NUMBER.sub(lambda found: f"{found[0]}..{int(found[0]) + last}{by}", name, count=1)
        for name in modules
    ]
    return name_of_ranges(told)


def name_of_ranges(names: Sequence[str]) -> str:
    """As `name_of`, of names whose numbers are ranges."""
    if len(names) == 1:
        return names[0]
    # A range has dots of its own; hide them from what looks for parents.
    hidden = [name.replace("..", "\0") for name in names]
    return name_of(hidden).replace("\0", "..")

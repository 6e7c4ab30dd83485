"""Cases as they would be predicted if their own source were unknown.

The figures of a stack that one source alone has measured were chosen with that source in view. So
its runs are predicted with the closest stack that another source has measured: of the same software
in another release, else of the same framework, else `unknown`. What a run states stays.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from shardwise.analysis.validated_runs import framework_of, software_of
from shardwise.config.stack import Stack
from shardwise.validate.measured.runs import Case, Run

_UNKNOWN = "unknown"
_YEAR = re.compile(r"\d{4}$")
# Where a stack has no year: those without are variants of recent releases.
_RECENT = 2025


def unseen_cases(
    cases: Mapping[int, Case], runs: Sequence[Run], newer: Collection[str] = ()
) -> dict[int, Case]:
    """Return cases whose stack would be another one without their source, with that stack.

    Parameters
    ----------
    newer
        Further sources that are left out.
    """
    sources: dict[str, set[str]] = defaultdict(set)
    for place, case in cases.items():
        sources[_stack(case).name].add(runs[place].source)
    found = {}
    for place, case in cases.items():
        left_out = {runs[place].source, *newer}
        own = _stack(case)
        others = {name: len(some - left_out) for name, some in sources.items()}
        name = closest(own.name, {name: count for name, count in others.items() if count})
        if name != own.name:
            changes = {"stack": _restated(own, name), "any_software": True}
            found[place] = case._replace(strategy=case.strategy.model_copy(update=changes))
    return found


def closest(name: str, known: Mapping[str, int]) -> str:
    """Return the stack that stands for one: the closest in years that most sources measured.

    Parameters
    ----------
    known
        Number of sources by measured stack.

    Examples
    --------
    >>> closest("nemo-2025", {"megatron-lm-2022": 3, "megatron-core-2025": 2, "composer-2023": 1})
    'megatron-core-2025'
    >>> closest("oneflow-2021", {"composer-2023": 1})
    'unknown'
    """
    if name in known:
        return name
    for kind in (software_of, framework_of):
        some = [one for one in known if one != _UNKNOWN and kind(one) == kind(name)]
        if some:
            return min(some, key=lambda one: (abs(_year(one) - _year(name)), -known[one], one))
    return _UNKNOWN


def _restated(own: Stack, name: str) -> Stack:
    """Another stack, with what a run changes of its own."""
    plain, other = Stack.load(own.name), Stack.load(name)
    kept = {"name", "sources"} | (set() if other.released else {"released"})
    changes = {
        field: getattr(own, field)
        for field in Stack.model_fields
        if field not in kept and getattr(own, field) != getattr(plain, field)
    }
    return other.model_copy(update=changes)


def _stack(case: Case) -> Stack:
    return case.strategy.loaded_stack(case.system)


def _year(name: str) -> int:
    found = _YEAR.search(name)
    return int(found[0]) if found else _RECENT

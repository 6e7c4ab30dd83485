"""What moved between two sets of answers to the same questions, as a report for people.

An answer is JSON; `code` is 2 where it was refused, and `err` the reason. Numbers are equal if they
differ by at most `rtol` of the old one; 0 compares bit for bit.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

MISSING = "(missing)"
_MOST_LINES, _MOST_KEYS, _MOST_NAMES, _WIDTH = 500, 12, 5, 240
_REFUSED = 2

Move = tuple[str, Any, Any]
"""Where a figure or text stands in an answer, without positions in lists; the old and the new."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question in words, its settings, and the answers before and now."""

    name: str
    settings: Mapping[str, Any]
    old: Mapping[str, Any]
    new: Mapping[str, Any]

    def heading(self, moved: Sequence[Move]) -> str:
        """What changed: cases with the same heading are one group of the report."""
        was, now = (answer.get("code") == _REFUSED for answer in (self.old, self.new))
        if was != now:
            reason = (self.new if now else self.old).get("err", "").partition("\n")[0]
            return f"{'refused' if now else 'answered'} now: {reason}"
        keys = {re.split(r"[.\[]", path.removeprefix("out."))[0] for path, _, _ in moved}
        return f"moved in {', '.join(sorted(keys))}"


def moves(old: Any, new: Any, rtol: float = 0.0, path: str = "") -> Iterator[Move]:
    """Yield the leaves of two JSON values that differ; of texts the first line that does."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            at = f"{path}.{key}" if path else str(key)
            yield from moves(old.get(key, MISSING), new.get(key, MISSING), rtol, at)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}.length", len(old), len(new)
        for one, other in zip(old, new, strict=False):
            yield from moves(one, other, rtol, f"{path}[]")
    elif isinstance(old, str) and isinstance(new, str) and old != new:
        lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue=MISSING)
        yield path, *next((pair for pair in lines if pair[0] != pair[1]), (old, new))
    elif _is_number(old) and _is_number(new):
        both_nan = math.isnan(old) and math.isnan(new)
        if not (both_nan or old == new or abs(new - old) <= rtol * abs(old)):
            yield path, old, new
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def report(cases: Sequence[Case], rtol: float = 0.0) -> list[str]:
    """Return lines on what is refused now, what is answered now, and what moved; or none."""
    groups: dict[str, list[tuple[Case, list[Move]]]] = {}
    for case in cases:
        if found := list(moves(case.old, case.new, rtol)):
            groups.setdefault(case.heading(found), []).append((case, found))
    lines: list[str] = []
    order = ("refused", "answered", "moved")
    for heading, pairs in sorted(
        groups.items(), key=lambda group: (order.index(group[0].split()[0]), -len(group[1]))
    ):
        some = [case for case, _ in pairs]
        lines.append(f"{len(some)} {heading}{_shared(some)}")
        for case in some[:_MOST_NAMES]:
            settings = " ".join(f"{name}={value}" for name, value in case.settings.items())
            lines.append(f"  {case.name}: {settings}"[:_WIDTH])
        if heading.startswith("moved"):
            lines += _figures(pairs)
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {more} more lines"] if more > 0 else [])]


def _figures(pairs: Sequence[tuple[Case, Sequence[Move]]]) -> Iterator[str]:
    """The keys that moved in most cases, each with its largest change."""
    counts = Counter(
        key for _, found in pairs for key in dict.fromkeys(path for path, _, _ in found)
    )
    for key, count in counts.most_common(_MOST_KEYS):
        every = [(case, move) for case, found in pairs for move in found if move[0] == key]
        case, (_, old, new) = max(every, key=lambda pair: abs(_change(*pair[1][1:])))
        share = _change(old, new)
        percent = f"  {100 * share:+.3g} %" if math.isfinite(share) else ""
        one, other = (str(value)[:60] for value in (old, new))
        yield f"    {key} in {count}: {one} -> {other}{percent}  ({case.name})"
    if len(counts) > _MOST_KEYS:
        yield f"    and {len(counts) - _MOST_KEYS} more keys"


def _shared(cases: Sequence[Case]) -> str:
    """Settings that all cases of a group have."""
    shared = [
        f"{name}={value}"
        for name, value in cases[0].settings.items()
        if all(case.settings.get(name, MISSING) == value for case in cases)
    ]
    return f"; all have {' '.join(shared)}" if shared and len(cases) > 1 else ""


def _change(old: Any, new: Any) -> float:
    """The change relative to the old figure; infinite for what is not a number."""
    change = (new - old) / abs(old) if _is_number(old) and _is_number(new) and old else math.inf
    return math.inf if math.isnan(change) else change


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

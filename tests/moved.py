"""What moved between two sets of answers to the same questions, as a report for people.

An answer is JSON: `code` is 2 where it was refused, and everything else is compared. Numbers are
equal if they differ by at most `rtol` of the old one; 0 compares bit for bit.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "(missing)"
_MOST_LINES, _MOST_KEYS, _MOST_NAMES = 500, 12, 5
_REFUSED = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question in words, its settings, and the answers before and now."""

    name: str
    settings: Mapping[str, Any]
    old: Mapping[str, Any]
    new: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Move:
    """A figure or text that differs."""

    path: str
    old: Any
    new: Any

    @property
    def key(self) -> str:
        """The path without positions in lists."""
        return re.sub(r"\[\d+\]", "[]", self.path)

    @property
    def change(self) -> float:
        """The change relative to the old figure; infinite for what is not a number."""
        if not (_is_number(self.old) and _is_number(self.new)) or math.isnan(self.old - self.new):
            return math.inf
        return (
            (self.new - self.old) / abs(self.old) if self.old else math.copysign(math.inf, self.new)
        )

    def __str__(self) -> str:
        share = f"  {100 * self.change:+.3g} %" if math.isfinite(self.change) else ""
        return f"{_short(self.old)} -> {_short(self.new)}{share}"


def moves(old: Any, new: Any, rtol: float = 0.0, path: str = "") -> Iterator[Move]:
    """Yield the leaves of two JSON values that differ; of texts the first line that does."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            inside = (old.get(key, MISSING), new.get(key, MISSING))
            yield from moves(*inside, rtol, f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from moves(one, other, rtol, f"{path}[{at}]")
    elif isinstance(old, list) and isinstance(new, list):
        yield Move(path=f"{path}.length", old=len(old), new=len(new))
    elif isinstance(old, str) and isinstance(new, str) and old != new:
        lines = zip((*old.splitlines(), MISSING), (*new.splitlines(), MISSING), strict=False)
        one, other = next((pair for pair in lines if pair[0] != pair[1]), (old, new))
        yield Move(path=path, old=one, new=other)
    elif not _same(old, new, rtol):
        yield Move(path=path, old=old, new=new)


def report(cases: Sequence[Case], rtol: float = 0.0) -> list[str]:
    """Return lines on what turned from answered to refused or back, and what moved; or none.

    Cases in which the same figures moved are one group, with the settings that all of them share.
    """
    turned: dict[str, list[Case]] = {}
    groups: dict[tuple[str, ...], list[tuple[Case, list[Move]]]] = {}
    for case in cases:
        was, now = (answer.get("code") == _REFUSED for answer in (case.old, case.new))
        if was != now:
            reason = (case.new if now else case.old).get("err", "").partition("\n")[0]
            turned.setdefault(f"{'refused' if now else 'answered'} now: {reason}", []).append(case)
        elif found := list(moves(case.old, case.new, rtol)):
            keys = tuple(sorted({re.split(r"[.\[]", move.key.removeprefix("out."))[0]
                                 for move in found}))  # fmt: skip
            groups.setdefault(keys, []).append((case, found))
    lines: list[str] = []
    for reason, some in sorted(turned.items(), key=lambda item: (item[0][0] == "a", -len(item[1]))):
        lines += [f"{len(some)} {reason}", *_names(some)]
    for keys, pairs in sorted(groups.items(), key=lambda item: -len(item[1])):
        some = [case for case, _ in pairs]
        lines += [f"{len(some)} moved in {', '.join(keys)}{_shared(some)}", *_names(some)]
        lines += _figures(pairs)
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {more} more lines"] if more > 0 else [])]


def _figures(pairs: Sequence[tuple[Case, Sequence[Move]]]) -> Iterator[str]:
    """The keys that moved in most cases, each with its largest change."""
    counts = Counter(key for _, found in pairs for key in dict.fromkeys(move.key for move in found))
    for key, count in counts.most_common(_MOST_KEYS):
        every = [(move, case) for case, found in pairs for move in found if move.key == key]
        move, case = max(every, key=lambda pair: abs(pair[0].change))
        yield f"    {key} in {count}: {move}  ({case.name})"
    if len(counts) > _MOST_KEYS:
        yield f"    and {len(counts) - _MOST_KEYS} more keys"


def _names(cases: Sequence[Case]) -> Iterator[str]:
    """The first cases, with their settings."""
    for case in cases[:_MOST_NAMES]:
        settings = " ".join(f"{name}={value}" for name, value in case.settings.items())
        yield f"  {case.name}: {settings}"[:240]
    if len(cases) > _MOST_NAMES:
        yield f"  and {len(cases) - _MOST_NAMES} more"


def _shared(cases: Sequence[Case]) -> str:
    """Settings that all cases of a group have."""
    shared = [
        f"{name}={value}"
        for name, value in cases[0].settings.items()
        if all(case.settings.get(name, MISSING) == value for case in cases)
    ]
    return f"; all have {' '.join(shared)}" if shared and len(cases) > 1 else ""


def _same(old: Any, new: Any, rtol: float) -> bool:
    if _is_number(old) and _is_number(new):
        both_nan = math.isnan(old) and math.isnan(new)
        return bool(both_nan or old == new or abs(new - old) <= rtol * abs(old))
    return type(old) is type(new) and old == new


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return value[:60] if isinstance(value, str) else repr(value)[:60]

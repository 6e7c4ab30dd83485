"""Entries that an unknown name may mean: same family and generation, nearest size."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from math import inf, log

from shardwise.catalog.aliases import MODELS, TOOLS, chip_of, joined, words_of_system
from shardwise.records import dataclass

_MOST = 5
_TYPO = 0.85
"""Similarity of a name with a typo to the right one; both have the same digits."""
_FAMILY_TYPO = 0.75
"""Similarity of the first word of a name, in which case the sizes have to be similar, too."""
_SIMILAR_SIZE = log(2.01)
_SHORTEST_TYPO = 4
"""Letters before the digits of an accelerator that may have a typo: h100 is no typo of b100."""
_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([mbt])")
_BILLIONS = {"m": 1e-3, "b": 1.0, "t": 1e3}
_VERSION = re.compile(r"([a-z]*)(\d[\d.]*)[a-z]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the name of a model says."""

    family: tuple[str, ...]
    generation: str = ""
    """Such as 3, 2.5 or r1; empty if the name has none."""
    size: float = 0.0
    """Parameters, 10^9, as named; 0 if the name has none."""
    others: tuple[str, ...] = ()


def suggestions(folder: str, called: str, names: Iterable[str]) -> list[str]:
    """Return at most five entries that an unknown name may mean; nothing if none is close.

    Files of other tools are suggested only to names that begin with the tool.
    """
    tool, _, rest = called.partition("-")
    prefix = f"{tool}-" if tool in TOOLS and rest else ""
    known = [name.removeprefix(prefix) for name in names if _tool(name) == prefix]
    text = called.removeprefix(prefix)
    if folder == "models":
        found = _models(text.rsplit("/", maxsplit=1)[-1], known, MODELS if not prefix else {})
    elif folder == "systems":
        found = _systems(text, known)
    else:
        found = _containing(text, known)
    return [prefix + name for name in found[:_MOST]]


def _tool(name: str) -> str:
    """The prefix of an entry that is a file of another tool."""
    word = name.partition("-")[0]
    return f"{word}-" if word in TOOLS and word != name else ""


def _models(called: str, known: Sequence[str], aliases: dict[str, str]) -> list[str]:
    """A corrected typo, else entries of the family: the nearest sizes, else all."""
    spelled = {name: name for name in known} | aliases
    if (typo := _corrected(called, spelled)) is not None:
        return [spelled[typo]]
    wanted = _parts(called)
    parts = {name: _parts(name) for name in known}
    found = [name for name in known if _is_related(wanted, parts[name])]
    if not found:
        # Entries whose family is spelled almost so, of a similar size if the name has one.
        families = {part.family[0] for part in parts.values()}
        word = wanted.family[0] if wanted.family else ""
        close = get_close_matches(word, sorted(families), n=2, cutoff=_FAMILY_TYPO)
        found = [
            name
            for name, known in parts.items()
            if word not in families
            and known.family[0] in close
            and known.family[1 : len(wanted.family)] == wanted.family[1:]
            and _same_generation(wanted.generation, known.generation)
            and (not wanted.size or _distance(wanted, known) <= _SIMILAR_SIZE)
        ]
    same = [name for name in found if parts[name].generation == wanted.generation]
    if wanted.size and wanted.generation and same:
        found = same
    if wanted.others and not wanted.size:
        found = [n for n in found if set(wanted.others) <= set(parts[n].others)] or found
    if wanted.size:
        return _nearest_sizes(wanted, {name: parts[name] for name in found})
    return _by_size(found, parts)


def _parts(called: str) -> _Parts:
    """Read a name such as `qwen3-coder-480b-a35b`."""
    family: list[str] = []
    others: list[str] = []
    generation, size = "", 0.0
    for word in called.split("-"):
        number, version = _SIZE.fullmatch(word), _VERSION.fullmatch(word)
        if number and not size:
            size = float(number[1] or 1) * float(number[2]) * _BILLIONS[number[3]]
        elif size or generation:
            others.append(word)
        elif version:
            is_word = len(version[1]) > 1
            family += [version[1]] if is_word else []
            generation = version[2] if is_word else version[1].removeprefix("v") + version[2]
        else:
            family.append(word)
    return _Parts(family=tuple(family), generation=generation, size=size, others=tuple(others))


def _is_related(wanted: _Parts, known: _Parts) -> bool:
    """Whether two names are of one family, and of one generation if the first has one."""
    if not wanted.family or not _same_generation(wanted.generation, known.generation):
        return False
    length = len(wanted.family) if not wanted.generation else 1
    return known.family[:length] == wanted.family[:length]


def _same_generation(wanted: str, known: str) -> bool:
    """Whether versions are equal up to the part after the point; none wanted is any."""
    return not wanted or wanted.partition(".")[0] == known.partition(".")[0]


def _distance(wanted: _Parts, known: _Parts) -> float:
    """How much sizes differ, as a logarithm."""
    return abs(log(wanted.size / known.size)) if known.size else inf


def _nearest_sizes(wanted: _Parts, parts: dict[str, _Parts]) -> list[str]:
    """The entries of the nearest size, newest first; if none is similar, some around it."""
    ordered = sorted(parts, key=lambda name: _distance(wanted, parts[name]))
    if not ordered:
        return []
    least = _distance(wanted, parts[ordered[0]])
    if least > _SIMILAR_SIZE:
        return _by_size(ordered[:_MOST], parts)
    found = [name for name in ordered if _distance(wanted, parts[name]) == least]
    return sorted(found, key=lambda name: parts[name].generation, reverse=True)


def _by_size(found: Sequence[str], parts: dict[str, _Parts]) -> list[str]:
    """From the smallest to the largest; of more than five, the five evenly over the sizes."""
    ordered = sorted(found, key=lambda name: (parts[name].size, name))
    if len(ordered) <= _MOST:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(step * last / (_MOST - 1))] for step in range(_MOST)]


def _systems(called: str, known: Sequence[str]) -> list[str]:
    """The systems of the same accelerator, or of a family that is named without a number."""
    words = list(words_of_system(called))
    for word in words:
        found = [name for name in known if _is_chip(word, chip_of(name))]
        if found:
            begun = [name for name in found if name.startswith(called)]
            typo = None if begun else _corrected(called, found)
            return begun or ([typo] if typo is not None else found)
    first = words[0] if len(words) == 1 else ""
    if len(first) > 1 and first.isalpha():
        return [
            name
            for name in known
            if first in (name.partition("-")[0], _letters(name.partition("-")[0]))
        ]
    return []


def _is_chip(word: str, chip: str) -> bool:
    """Whether a word is the name of an accelerator, maybe without its last letter or with a typo.

    `mi350` is of the MI350X and `v5` of v5e and v5p; `h20` and `gh200` are of no H200.
    """
    if word == chip:
        return True
    if _digits(word) != _digits(chip) or not _digits(word):
        return False
    mine, theirs = _letters(word), _letters(chip)
    similar = len(mine) >= _SHORTEST_TYPO and _ratio(mine, theirs) >= _FAMILY_TYPO
    return mine == theirs or similar


def _containing(called: str, known: Sequence[str]) -> list[str]:
    """Names that contain the text, the most similar first; else the most similar one."""
    found = [name for name in known if called and called in name]
    return get_close_matches(called, found, n=_MOST, cutoff=0.0) or get_close_matches(
        called, known, n=1
    )


def _corrected(called: str, spelled: Iterable[str]) -> str | None:
    """The name of the same digits that is spelled almost so, if there is one."""
    same = {joined(name): name for name in spelled if _digits(name) == _digits(called)}
    found = get_close_matches(joined(called), list(same), n=1, cutoff=_TYPO)
    return same[found[0]] if found else None


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _digits(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _letters(word: str) -> str:
    match = re.match(r"[a-z]+", word)
    return match[0] if match else ""

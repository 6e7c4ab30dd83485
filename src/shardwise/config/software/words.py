"""What people write of software, read as a `Software`: names, releases, months and options."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from shardwise.config.software.record import (
    Engine,
    Software,
    option_words,
    trainers,
)
from shardwise.records import dataclass

_VERSION = re.compile(
    r"[\s(_=:@/-]*(?:release |version |core_)*[vr]?"
    r"(\d+(?:\.(?:\d+|x))+(?:\.?(?:a|rc|post|dev)\d*)?)",
    re.IGNORECASE,
)
_WHEEL = re.compile(r"(?<![a-z0-9])cu(1\d)(\d)(?!\d)", re.IGNORECASE)  # of CUDA: cu128
_WITHOUT = re.compile(r"(?:\b(?:no|non|not|without)|w/o)[\s-]*$", re.IGNORECASE)
_YEAR_MONTH = re.compile(r"(?<!\d)(20[12]\d)(?:[-./](0[1-9]|1[0-2])(?!\d)|\.([1-9])(?=\.\d))")
_NIGHTLY = re.compile(r"\.dev(20[12]\d)(0[1-9]|1[0-2])\d\d")
_YEAR = re.compile(r"(?<![\d.])(20[12]\d)(?![\d.])")
_CONTAINER = re.compile(r"(?<![\d.])(2\d)\.(0[1-9]|1[0-2])(?:[.\d]*)(?![\d.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """What a phrase stands for: a trainer, its maker, an engine, a library, or a field's value."""

    kind: str
    value: Any


def software_of(text: str) -> Software:
    """Read a description; what it does not say is empty.

    Examples
    --------
    >>> software_of("accelerate + DeepSpeed ZeRO-3").engine
    'deepspeed3'
    """
    found = list(_meanings(text))
    kinds = {one.kind for one, _ in found}
    kind = "trainer" if "trainer" in kinds else "maker"
    named = list(dict.fromkeys(one.value for one, _ in found if one.kind == kind))
    engines = [one.value for one, _ in found if one.kind == "engine"]
    libraries: dict[str, str] = {}
    options: dict[str, Any] = {}
    releases: dict[str, str] = {}
    for one, end in found:
        version = _VERSION.match(text, end)
        if one.kind == kind and version is not None:
            releases.setdefault(one.value, version[1])
        if one.kind in (kind, "library") and version is not None:
            libraries.setdefault(one.value, version[1])
        if one.kind == "option":
            options |= one.value
    if wheel := _WHEEL.search(text):
        libraries.setdefault("cuda", f"{wheel[1]}.{wheel[2]}")
    release = releases.get(named[0], "") if named else ""
    # The most precise of the engines that are named.
    precise = [
        one for one in engines if not any(one.covers(other) for other in engines if other != one)
    ]
    return Software(
        trainer=named[0] if named else "",
        others=tuple(named[1:]),
        release=release,
        date=_month(text, release),
        engine=next(iter(precise), None),
        libraries=libraries,
        options=options,
        text=text,
    )


def _meanings(text: str) -> Iterable[tuple[_Meaning, int]]:
    """Phrases of a text in order, each with where it ends; the longest at each place.

    Names may have engines in them (PyTorch FSDP), which are looked for alone. What a text says is
    not used means nothing, unless a phrase is about that.
    """
    for phrases, pattern in (_phrases(), _engine_phrases()):
        for match in pattern.finditer(text):
            if _WITHOUT.search(text, 0, match.start()):
                continue
            for meaning in phrases[_key(match[0])]:
                yield meaning, match.end()


def _key(phrase: str) -> str:
    return re.sub(r"[\s_-]+", "", phrase.lower())


_Phrases = tuple[Mapping[str, tuple[_Meaning, ...]], re.Pattern[str]]


@cache
def _phrases() -> _Phrases:
    """Meanings of names, libraries and options by phrase, and a pattern of all."""
    words = option_words()
    each: list[tuple[str, Any, Iterable[str]]]
    usual = sorted(trainers().values(), key=lambda one: "nvidia" not in one.on)
    each = [("maker", one.name, one.makers) for one in usual]
    each += [
        ("trainer", one.name, [n for n in (one.name, *one.names) if n not in one.makers])
        for one in usual
    ]
    each += [("library", name, phrases) for name, phrases in words["libraries"].items()]
    each += [
        ("option", {one["field"]: one["value"]}, tuple(one["words"])) for one in words["options"]
    ]
    return _compiled(each)


@cache
def _engine_phrases() -> _Phrases:
    """The same of engines."""
    named = option_words()["engines"]
    return _compiled([("engine", Engine(name), phrases) for name, phrases in named.items()])


def _compiled(each: Iterable[tuple[str, Any, Iterable[str]]]) -> _Phrases:
    """Meanings by phrase, and a pattern of any phrase: the longest, its parts joined in any way."""
    found: dict[str, tuple[_Meaning, ...]] = {}
    patterns: dict[str, str] = {}
    for kind, value, phrases in each:
        for phrase in dict.fromkeys(phrases):
            key, meaning = _key(phrase), _Meaning(kind=kind, value=value)
            found[key] = (*(one for one in found.get(key, ()) if one != meaning), meaning)
            parts = re.split(r"[\s_-]+", phrase.lower())
            pattern = r"[\s_-]*".join(map(re.escape, parts))
            patterns[key] = max(patterns.get(key, ""), pattern, key=len)  # the one with most gaps
    any_of = "|".join(patterns[key] for key in sorted(patterns, key=len, reverse=True))
    return found, re.compile(rf"(?<![a-z0-9])(?:{any_of})(?![a-z]|(?<=\d)\d)", re.IGNORECASE)


def lineage(name: str) -> list[str]:
    """Return a trainer and those that it is based on, one after the other."""
    found = [name]
    while (base := trainers()[found[-1]].based_on) and base not in found:
        found.append(base)
    return found


def _month(text: str, release: str) -> str:
    """Month of a text: written as such, of a nightly or a container, or its year."""
    if found := _YEAR_MONTH.search(text) or _NIGHTLY.search(text):
        return f"{found[1]}-{int(found[2] or found[3]):02}"
    if found := _YEAR.search(text):
        return found[1]
    if (found := _CONTAINER.search(text)) and found[0] != release:
        return f"20{found[1]}-{found[2]}"
    return ""

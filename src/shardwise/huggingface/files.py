"""One Hugging Face config.json: keys read with their defaults, and all that is wrong with them."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from shardwise.config.base import MOST, MOST_LAYERS
from shardwise.errors import Fault, InputError
from shardwise.huggingface.keys import EXPERTS, MATTERS, OF_EXPERTS, is_without_effect

# Typing errors are this alike: `head_dim` and `v_head_dim`, both right, are less.
_ALIKE = 0.9
_MAPPINGS = ("rope_parameters", "rope_scaling")
_NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
_ALL_ALIKE = {"full_attention"}
_DROPOUT = ("_dropout", "_dropout_prob", "_pdrop")
_OF_OTHER_HEADS = ("classifier_", "summary_")


class Config:
    """The keys of a config.json, or of the language model nested in it.

    A wrong value is noted and read as the smallest that is right, so that one look finds all that
    is wrong; `refuse` raises what was noted.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        source: str,
        prefix: str = "",
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.data = data
        self.defaults = defaults or {}
        self.names = names or {}
        self.source = source
        self.prefix = prefix
        self.faults: list[Fault] = []
        self.read: set[str] = set()
        self._absent: set[str] = set()

    def names_of(self, key: str) -> tuple[str, ...]:
        """The names that a key has in files of the family, the usual one first.

        A dot leads into a nested mapping.
        """
        return self.names.get(key, (key,))

    def value(self, key: str) -> Any:
        """The value of a key, or its default; None where it is null or neither is there."""
        names = self.names_of(key)
        self.read |= {part for name in names for part in (name, name.split(".", 1)[0])}
        found = [name for name in names if inside(self.data, name) is not ...]
        if not found:
            self._absent |= set(names)
            return next((self.defaults[name] for name in names if name in self.defaults), None)
        values = [inside(self.data, name) for name in found]
        for name, value in zip(found[1:], values[1:], strict=True):
            if value != values[0]:
                self.wrong(name, f"is {found[0]} under another name, which is {values[0]}", value)
        return values[0]

    def has(self, key: str) -> bool:
        """Whether a key is there, or has a default; either may be null."""
        names = self.names_of(key)
        return any(inside(self.data, n) is not ... or n in self.defaults for n in names)

    def wrong(self, key: str, problem: str, value: object = ...) -> None:
        """Note that a key is wrong; `value` is shown unless it is left out."""
        has_value = value is not ...
        names = self.names_of(key)
        name = next((name for name in names if inside(self.data, name) is not ...), names[0])
        field = f"{self.prefix}{name}"
        shown = value if has_value else None
        fault = Fault(
            source=self.source, field=field, value=shown, has_value=has_value, problem=problem
        )
        if fault not in self.faults:  # a key may be read for several fields
            self.faults.append(fault)

    def count(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1; without a default it must be there."""
        value = self.value(key)
        if value is None and default is None:
            self.wrong(key, "is missing and has no default")
            return 1
        return self._integer(key, default if value is None else value, least=1)

    def natural(self, key: str, default: int = 0) -> int:
        """An integer of at least 0."""
        value = self.value(key)
        return self._integer(key, default if value is None else value, least=0)

    def needed(self, *keys: str) -> None:
        """Note keys that are missing; the defaults of the class are used by no published file."""
        for key in keys:
            if self.value(key) is None:
                self.wrong(key, "is missing and has no default")

    def _integer(self, key: str, value: object, *, least: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST:
            return value
        self.wrong(key, f"must be an integer from {least} to {MOST}", value)
        return least

    def depth(self, key: str) -> int:
        """Number of layers."""
        layers = self.count(key)
        if layers > MOST_LAYERS:
            self.wrong(key, f"must be at most {MOST_LAYERS}", layers)
            return 1
        return layers

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(key, "must be true or false", value)
        return bool(value)

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self.wrong(key, "must be a number from 0 to 1", value)
            return default
        return float(value)

    def one_of(self, key: str, allowed: Mapping[str, str], default: str | None = None) -> str:
        """What a word of the file stands for."""
        value = self.value(key)
        word = default if value is None else value
        if isinstance(word, str) and word in allowed:
            return allowed[word]
        if word is None:
            self.wrong(key, "is missing and has no default")
        else:
            self.wrong(key, f"allowed: {', '.join(allowed)}", word)
        return next(iter(allowed.values()))

    def numbers(self, key: str) -> list[int]:
        """A list of integers; empty where it is null or missing."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.wrong(key, "must be a list of integers", value)
            return []
        return value

    def layers(self, key: str, depth: int) -> set[int]:
        """A list of layers, counted from 0; empty where it is null or missing."""
        listed = self.numbers(key)
        if not all(0 <= layer < depth for layer in listed) and not self.faults:
            self.wrong(key, f"must be layers from 0 to {depth - 1}", listed)
        return set(listed)

    def has_dropout(self) -> bool:
        """Whether any probability of dropout is above 0."""
        named = (*self.data, *self.defaults)
        keys = sorted({k for k in named if k == "dropout" or k.endswith(_DROPOUT)})
        shares = [self.share(key, 0.0) for key in keys if not key.startswith(_OF_OTHER_HEADS)]
        return any(share > 0 for share in shares)

    def refuse_unread(self, architecture: str) -> None:
        """Note every key that changes the architecture in a way its family does not read."""
        for key, what in MATTERS.items():
            if key not in self.read and not self._says_nothing(key):
                problem = f"{what}: not modeled for {architecture}"
                self.wrong(key, problem, self.data.get(key))
        for key in sorted(OF_EXPERTS & self.data.keys()):
            if self.read.isdisjoint(EXPERTS) and not self._says_nothing(key):
                self.wrong(key, f"of experts, which {architecture} has not", self.data[key])
        for key in _MAPPINGS:
            value = self.data.get(key)
            if value is not None and not isinstance(value, Mapping):
                self.wrong(key, "must be a mapping", value)

    def _says_nothing(self, key: str) -> bool:
        value = self.data.get(key)
        if key == "layer_types" and isinstance(value, list):
            return {str(kind) for kind in value} <= _ALL_ALIKE
        return value in _NOTHING or (key in EXPERTS | OF_EXPERTS and value == 1)

    def refuse_misspelt(self) -> None:
        """Note every key that nobody knows and that is nearly one which was looked for."""
        absent = sorted(self._absent)
        for key in self.unknown():
            found = get_close_matches(key, absent, n=1, cutoff=_ALIKE)
            if found:
                self.wrong(key, f"unknown key; did you mean {found[0]!r}?")

    def unknown(self) -> list[str]:
        """Keys that were read for nothing and are not known to be without effect."""
        known = self.read | MATTERS.keys() | OF_EXPERTS
        return sorted(k for k in self.data if k not in known and not is_without_effect(k))

    def assumed(self) -> list[str]:
        """Keys that are not there and whose defaults were read."""
        return sorted(self._absent & self.defaults.keys())

    def refuse(self) -> None:
        """Raise what was noted, if anything."""
        if self.faults:
            raise InputError(self.faults)


def inside(data: Mapping[str, Any], name: str) -> Any:
    """The value under a name, whose dots lead into nested mappings; `...` where there is none."""
    value: Any = data
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return ...
        value = value[key]
    return value

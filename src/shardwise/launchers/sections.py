"""Sections of a launch file: values by name, faults of wrong ones, and the keys nothing read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.config.base import MOST
from shardwise.config.launch import Effect, Launch, NotUnderstood, Origin
from shardwise.errors import Fault, InputError, allowed_words, nearest
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.shell import shown

AUTO = "auto"
"""What the Hugging Face Trainer fills in when a run starts."""


@dataclass(slots=True)
class Found:
    """What is wrong with a file, and what the prediction does not use."""

    source: str
    faults: list[Fault] = field(default_factory=list)
    not_understood: list[NotUnderstood] = field(default_factory=list)

    def wrong(self, name: str, value: object, problem: str) -> None:
        """Note a fault."""
        value = shown(value) if isinstance(value, str) else value
        self.faults.append(Fault.of(name, value, problem, self.source))

    def leave(
        self, option: str, value: object, because: str, effect: Effect = Effect.SMALL
    ) -> None:
        """List an option."""
        value = shown(value) if isinstance(value, str) else value
        one = NotUnderstood(option=option, value=value, because=because, effect=effect)
        self.not_understood.append(one)


def launch_of(
    launcher: str,
    text: LaunchText,
    fields: Mapping[str, object],
    found: Found,
    origins: Mapping[str, Origin],
    decided: Mapping[str, object] | None = None,
) -> Launch:
    """Return what was read of a file that names no model; raise its faults, if there are any."""
    if found.faults:
        raise InputError(found.faults)
    return Launch(
        launcher=launcher,
        release=None,
        source=text.source,
        model=text.model,
        strategy=fields,
        decided=decided or {},
        not_understood=tuple(found.not_understood),
        origins={**origins, "stack": Origin.ASSUMED},
    )


class Section:
    """The keys of one mapping of a file."""

    def __init__(self, data: Mapping[str, object], found: Found, prefix: str = "") -> None:
        self.data = data
        self.found = found
        self.prefix = prefix
        self._read: set[str] = set()
        self._sections: dict[str, Section] = {}

    def __contains__(self, key: str) -> bool:
        """Whether the file sets a key."""
        return self.data.get(key) is not None

    def name(self, key: str) -> str:
        """Full name of a key."""
        return f"{self.prefix}{key}"

    def value(self, key: str) -> object:
        """Value as it is; None where the file does not set it."""
        self._read.add(key)
        return self.data.get(key)

    def has_read(self, key: str) -> bool:
        """Whether something has read a key."""
        return key in self._read

    def section(self, key: str) -> "Section":
        """A nested mapping, the same one each time; empty where the file has none."""
        if key not in self._sections:
            value = self.value(key)
            if value is not None and not isinstance(value, Mapping):
                self.wrong(key, "must be a mapping")
            data = value if isinstance(value, Mapping) else {}
            self._sections[key] = Section(data, self.found, f"{self.prefix}{key}.")
        return self._sections[key]

    def flag(self, key: str, *, default: bool = False, texts: bool = False) -> bool:
        """True or false; with `texts` also these words in any case."""
        value = self.value(key)
        if texts and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
        if value is not None:
            self.wrong(key, "must be true or false")
        return default

    def count(self, key: str, *, least: int = 1) -> int | None:
        """A whole number; None where the file does not set it."""
        value = self.value(key)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, float) and value.is_integer():  # 5e8
            value, is_whole = int(value), True
        if not isinstance(value, int) or not is_whole or not least <= value <= MOST**2:
            self.wrong(key, f"must be a whole number of at least {least}")
            return None
        return value

    def word(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of some words, in any case."""
        value = self.value(key)
        if value is None:
            return default
        words = {word.lower(): word for word in allowed}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        self.wrong(key, allowed_words(value, allowed))
        return default

    def wrong(self, key: str, problem: str) -> None:
        """Note a fault of a key."""
        self.found.wrong(self.name(key), self.data.get(key), problem)

    def leave(self, key: str, because: str, effect: Effect = Effect.SMALL) -> None:
        """List a key that the prediction does not use."""
        self._read.add(key)
        self.found.leave(self.name(key), self.data.get(key), because, effect)

    def ignore(self, *keys: str) -> None:
        """Pass over keys that change neither time nor memory."""
        self._read |= set(keys)

    def unread(self) -> Iterator[str]:
        """Keys that nothing read; those that begin with an underscore are remarks."""
        return (key for key in self.data if key not in self._read and not key.startswith("_"))

    def leave_unread(
        self, known: Mapping[str, object], why: str, effect: Effect = Effect.SMALL
    ) -> None:
        """List the keys that nothing read, but for those at a default without effect."""
        names = [*known, *self._read]
        for key in self.unread():
            if key not in known:
                self.leave(key, f"shardwise does not know it{nearest(key, names)}")
            elif self.data[key] not in (known[key], None, AUTO):
                self.leave(key, why, effect)

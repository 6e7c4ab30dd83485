"""What reading a configuration of Megatron-Core uses: its fields, and what was made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.config.launch import NotUnderstood
from shardwise.config.stack import Stack
from shardwise.errors import Fault

Value = bool | int | float | str | None | tuple["Value", ...]
"""Value of a field: numbers, words (also of types: bf16), lists as tuples."""
Fields = Mapping[str, Value]
"""Fields of Megatron-Core's configuration by name."""


@dataclass(slots=True, kw_only=True)
class CoreReading:
    """A configuration of Megatron-Core on its way to a model and a strategy."""

    fields: Fields
    """Fields that a file sets."""
    defaults: Fields
    """What the launcher uses where a file sets nothing."""
    stack: Stack
    """Software whose figures apply where a field says nothing else."""
    source: str
    option: Callable[[str], str]
    """How the launcher writes a field, for messages."""
    strategy: dict[str, object] = field(default_factory=dict)
    overrides: dict[str, object] = field(default_factory=dict)
    """Fields of the stack that differ."""
    not_understood: list[NotUnderstood] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def value(self, name: str) -> Value:
        """Return the value of a field, or its default."""
        self.used.add(name)
        found = self.fields.get(name)
        return self.defaults.get(name) if found is None else found

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        found = self.value(name)
        if isinstance(found, bool) or found is None:
            return bool(found)
        self.fault(name, found, "must be true or false")
        return False

    def whole(self, name: str) -> int | None:
        """Return a field that is a whole number, or None."""
        found = self.value(name)
        if isinstance(found, float) and found.is_integer():
            return int(found)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        self.fault(name, found, "must be a whole number")
        return None

    def positive(self, name: str, default: int = 1) -> int:
        """Return a field that is a whole number of at least 1."""
        found = self.whole(name)
        if found is None:
            return default
        if found < 1:
            self.fault(name, found, "must be at least 1")
            return default
        return found

    def number(self, name: str) -> float | None:
        """Return a field that is a number, or None."""
        found = self.value(name)
        if found is None or (isinstance(found, (int, float)) and not isinstance(found, bool)):
            return found
        self.fault(name, found, "must be a number")
        return None

    def word(self, name: str, allowed: Sequence[str] = ()) -> str | None:
        """Return a field that is a word, in lower case, or None."""
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, str):
            self.fault(name, found, "must be a word")
            return None
        word = found.lower()
        if allowed and word not in allowed:
            self.fault(name, found, f"allowed: {', '.join(allowed)}")
            return None
        return word

    def words(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of words; a single word stands for a list of it."""
        found = self.value(name)
        listed = found if isinstance(found, tuple) else (found,) if found else ()
        return tuple(str(one) for one in listed)

    def fault(self, name: str, value: object, problem: str) -> None:
        """Note that a value is wrong."""
        self.faults.append(Fault.of(self.option(name), value, problem, self.source))

    def missing(self, name: str, problem: str = "is missing: set it") -> None:
        """Note that a field is needed."""
        fault = Fault(source=self.source, field=self.option(name), problem=problem)
        self.faults.append(fault)

    def note(self, name: str, because: str) -> None:
        """Note a field whose value the prediction does not use."""
        value = self.value(name)
        shown = False if value is None else value
        one = NotUnderstood(option=self.option(name), value=shown, because=because)
        if one not in self.not_understood:
            self.not_understood.append(one)

    def set(self, name: str, value: object) -> None:
        """Set a field of the strategy."""
        self.strategy[name] = value

    def override(self, name: str, value: object) -> None:
        """Set a field of the stack, if it has another value."""
        if getattr(self.stack, name) != value:
            self.overrides[name] = value

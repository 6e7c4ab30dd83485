"""Figures of systems and stacks that are fitted to measured runs, and how far each was moved."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from shardwise import catalog
from shardwise.arrays import Floats
from shardwise.config import files
from shardwise.config.base import ConfigBase, Number
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.validate.measured.predict import Translation

__all__ = ["Moved", "Parameter", "load_parameters"]

_FILE = "steps.yaml"


class Parameter(ConfigBase):
    """One number that runs decide, and the figures that it moves together."""

    name: str = Field(min_length=1)
    of: Literal["systems", "stacks"]
    names: tuple[str, ...] = Field(min_length=1)
    """Entries of the catalog that it moves."""
    fields: tuple[str, ...] = Field(min_length=1)
    """Dotted; `*` stands for all of a mapping."""
    scale: Literal["log", "logit"] = "log"
    """What is added to: the logarithm of a figure, or of a share over what it leaves."""
    spread: Number = Field(gt=0)
    """Standard deviation before runs were looked at."""
    moved: Number = 0.0
    """How far the runs that come with shardwise moved it from there, as the catalog has it."""
    experts: bool = False
    """Whether runs of mixtures of experts decide it; those of dense models decide the others."""
    source: str = Field(min_length=1)
    """Why it is so before, and why so far."""

    def moves(self, name: str) -> bool:
        """Whether it moves an entry of the catalog."""
        return name in self.names

    def apply(self, noun: Any, offset: float) -> Any:
        """Move its figures of a system or stack."""
        for name in self.fields:
            noun = _replaced(noun, name, lambda value: self._moved(value, offset))
        return noun

    def _moved(self, value: Any, offset: float) -> Any:
        if isinstance(value, Mapping):
            return {key: self._moved(one, offset) for key, one in value.items()}
        if self.scale == "log":
            return float(value * np.exp(offset))
        if not 0 < value < 1:  # a stack that has or hides none of it
            return value
        return float(1 / (1 + (1 / value - 1) * np.exp(-offset)))


def _replaced(noun: Any, name: str, change: Callable[[Any], Any]) -> Any:
    """The noun with another value of a dotted field; as it is where it has no such field."""
    head, _, rest = name.partition(".")
    if isinstance(noun, BaseModel):
        value = getattr(noun, head)
        if value is None:
            return noun
        return noun.model_copy(update={head: _inside(value, rest, change)})
    if isinstance(noun, tuple):
        items = dict(enumerate(noun))
        return tuple(_changed(items, head, rest, change).values())
    return _changed(noun, head, rest, change)


def _changed(
    items: Mapping[Any, Any], head: str, rest: str, change: Callable[[Any], Any]
) -> dict[Any, Any]:
    """A mapping with another value of one key, or of all."""
    return {
        key: _inside(value, rest, change) if head in ("*", str(key)) else value
        for key, value in items.items()
    }


def _inside(value: Any, rest: str, change: Callable[[Any], Any]) -> Any:
    return _replaced(value, rest, change) if rest else change(value)


@cache
def load_parameters() -> tuple[Parameter, ...]:
    """Return those that the figures of the catalog were fitted with."""
    path = Path(catalog.__file__).parent / "fit" / _FILE
    data = files.read_mapping(path)
    return tuple(Parameter.validated(one, source=_FILE) for one in data["parameters"])


@dataclass(frozen=True)
class Moved:
    """Translations with figures moved from those of the catalog; each noun is made once."""

    parameters: Sequence[Parameter]
    made: dict[tuple[int, tuple[tuple[int, float], ...]], Any] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    """Nouns whose identity is part of a key, so that none is reused."""

    def applying(self, said: Translation) -> list[int]:
        """Positions of the parameters that concern a run."""
        names = {"systems": said.system.name, "stacks": _stack(said.strategy).name}
        return [i for i, p in enumerate(self.parameters) if p.moves(names[p.of])]

    def apply(self, said: Translation, offsets: Floats) -> tuple[System, Strategy]:
        """System and strategy of a run with each parameter moved by its offset."""
        some = self.applying(said)
        stack = self._moved(_stack(said.strategy), "stacks", some, offsets)
        strategy = said.strategy.model_copy(update={"stack": stack})
        return self._moved(said.system, "systems", some, offsets), strategy

    def _moved(self, noun: Any, of: str, some: Sequence[int], offsets: Floats) -> Any:
        chosen = tuple(
            (i, float(offsets[i])) for i in some if self.parameters[i].of == of and offsets[i]
        )
        if not chosen:
            return noun
        key = id(noun), chosen
        if key not in self.made:
            changed = noun
            for i, offset in chosen:
                changed = self.parameters[i].apply(changed, offset)
            self.made[key] = changed
            self.kept.append(noun)
        return self.made[key]


def _stack(strategy: Strategy) -> Stack:
    return Stack.load(strategy.stack)

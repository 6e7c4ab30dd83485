"""Fields of `Strategy` by kind, derived from their types and roles; what tables are built from."""

import math
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from shardwise.config.base import words_of
from shardwise.config.enums import Word
from shardwise.config.expressions.formula import canonical_names
from shardwise.config.roles import Divides, Group, Role
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.records import dataclass


class Kind(Enum):
    """What a field holds, and how a column of a table represents it."""

    WHOLE = "whole number"
    """Itself; 0 stands for None."""
    NUMBER = "number"
    """Itself; 0 stands for None."""
    FLAG = "flag"
    """Itself."""
    WORD = "word"
    """Position among the words."""
    SET = "set of words"
    """A bit for each word; 0 stands for None."""
    TIER = "network tier"
    """Position of the tier; -1 stands for None."""
    LIST = "list"
    """Position in a list of the distinct values; -1 stands for None."""
    STACK = "stack"
    """Position in a list of the distinct stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyField:
    """A field of `Strategy`."""

    name: str
    kind: Kind
    role: Role
    default: Any
    optional: bool
    """Whether None is a value of its own, which `Strategy.resolved` does not fill in."""
    least: float
    """Least number that it may be."""
    most: float
    """Greatest number that it may be."""
    words: tuple[str, ...]
    """Words that it may have, or a set of which it is."""

    @property
    def short(self) -> str:
        """Its short name, where it has one."""
        return _SHORT.get(self.name, self.name)

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        text = " ".join(Strategy.descriptions().get(self.name, "").split())
        found = (at for end in (";", ":", " (", ". ") if (at := text.find(end)) >= 0)
        about = text[: min(found, default=-1)].rstrip(".")
        return about[0].lower() + about[1:]

    @property
    def word_type(self) -> type[Word]:
        """Type of the words of a set."""
        return type(self.words[0])  # type: ignore[return-value]


def _members(annotation: object) -> Iterator[object]:
    """Members of unions, and what annotates them."""
    origin = typing.get_origin(annotation)
    if isinstance(annotation, FieldInfo):
        yield from annotation.metadata
        if annotation.annotation is not None:
            yield from _members(annotation.annotation)
    elif origin in (typing.Union, types.UnionType, typing.Annotated):
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _field(name: str, info: FieldInfo) -> StrategyField:
    members = list(_members(info))
    role = next(mark for mark in members if isinstance(mark, Role))
    least = next((float(mark.ge) for mark in members if isinstance(mark, Ge)), 0.0)  # type: ignore[arg-type]
    most = next((float(mark.le) for mark in members if isinstance(mark, Le)), math.inf)  # type: ignore[arg-type]
    optional = type(None) in members and not role.implied
    inside = next((typing.get_args(m)[0] for m in members if typing.get_origin(m) is tuple), None)
    words = words_of(info.annotation) or words_of(inside)
    if Stack in members:
        kind = Kind.STACK
    elif inside is not None:
        kind = Kind.SET if words else Kind.LIST
    elif words or (str in members and role.every):
        kind, words = Kind.WORD, words or role.every
    elif bool in members:
        kind = Kind.FLAG
    elif int in members:
        kind = Kind.TIER if optional and least == 0 else Kind.WHOLE
    else:
        kind = Kind.NUMBER if float in members else Kind.LIST
    return StrategyField(
        name=name,
        kind=kind,
        role=role,
        default=info.default,
        optional=optional,
        least=least,
        most=most,
        words=words,
    )


FIELDS = {name: _field(name, info) for name, info in Strategy.model_fields.items()}
COLUMNS = {name: field for name, field in FIELDS.items() if name != "sequence_parallel"}
"""Fields that are columns of a table: all but the short form of `tp_exchange`."""
SHORT_NAMES = canonical_names(Strategy)
"""Fields by their short names."""
_SHORT = {name: short for short, name in SHORT_NAMES.items()}
LAYOUT_FIELDS, CHOICE_FIELDS = (
    tuple(name for name, field in COLUMNS.items() if field.role.group is group)
    for group in (Group.LAYOUT, Group.CHOICE)
)
"""Fields that a search evaluates together: see `Group`."""
LINE_FIELDS = tuple(
    name for name, field in COLUMNS.items() if field.role.own_line or field.role.work
)
"""Fields that make a layout of its own in a ranking; variants of one layout agree in them."""
FOLLOWING_FIELDS = tuple(
    name for name, field in FIELDS.items() if field.role.implied and not field.role.work
)
"""Fields that follow from others where they are not set."""
OFFLOADS = tuple(
    name
    for name, field in COLUMNS.items()
    if field.kind is Kind.FLAG
    and "offload" in field.role.acts_on
    and {*field.role.acts_on} <= {"offload", "optimizer"}
    and not field.role.follows
)
"""Fields that offload weights, activations or optimizer state."""


def degrees_of(*what: Divides) -> tuple[str, ...]:
    """Names of the degrees that divide some of these, in the order of `Divides`."""
    return tuple(
        name
        for divided in Divides
        if divided in what
        for name, field in COLUMNS.items()
        if field.role.divides is divided
    )


DEGREES = degrees_of(*Divides)
REPLICA_DEGREES = degrees_of(Divides.TENSORS, Divides.LAYERS)
"""Degrees whose product is the accelerators of a replica of the model."""
RANK_DEGREES = (*REPLICA_DEGREES, *degrees_of(Divides.BATCH))
"""Degrees whose product is all accelerators."""
EXPERT_DEGREES = degrees_of(Divides.EXPERTS)
LAYER_AXES = (*degrees_of(Divides.TENSORS), *EXPERT_DEGREES)
"""Axes that communicate inside layers."""
PARALLELISM = {name: FIELDS[name].role.parallelism for name in DEGREES}
"""What the parallelism of a degree is called: "tensor"."""
COUNTED_WITH = {name: FIELDS[name].role.counted_with or name for name in DEGREES}
"""Of each degree, the one whose communication includes that of it: itself, tp of tp2, ep of etp."""
COMM_AXES = tuple(name for name in LAYER_AXES if COUNTED_WITH[name] == name)
"""Axes of `LAYER_AXES` whose communication is counted."""
HEADLINES = tuple(
    name for name in dict.fromkeys((*DEGREES, *COLUMNS)) if COLUMNS[name].role.headline
)
"""Fields that a strategy in a line always shows."""


def names_of(*kinds: Kind, optional: bool | None = None) -> tuple[str, ...]:
    """Names of the columns of some kinds; with `optional`, of those that may (not) be None."""
    return tuple(
        name
        for name, field in COLUMNS.items()
        if field.kind in kinds and optional in (None, field.optional)
    )

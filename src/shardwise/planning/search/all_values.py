"""What `all` stands for in a search: every value of a field, or the sets that recipes use."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from shardwise import catalog
from shardwise.config.capabilities import ANY, SET
from shardwise.config.recipe import Recipe
from shardwise.config.roles import Tries
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import Kind, StrategyField
from shardwise.config.system import System


def every_value(field: StrategyField, system: System | None = None) -> tuple[Any, ...]:
    """All values of a field with finitely many, independent of the layout."""
    if field.kind is Kind.TIER:
        return tuple(range(len(system.network))) if system is not None else ()
    if field.kind is Kind.FLAG:
        return (False, True)
    if field.kind is Kind.SET and not field.role.work:
        return ((None,) if field.optional else ()) + presets(field.name)
    return field.role.every or (field.words if field.kind is Kind.WORD else ())


def has_all(field: StrategyField) -> bool:
    """Whether `all` has a meaning."""
    by_layout = field.role.tries in (Tries.DIVISORS, Tries.DEFAULT_DIVISOR)
    is_finite = field.kind is Kind.TIER or (field.kind is Kind.SET and not field.role.work)
    return by_layout or is_finite or bool(every_value(field))


def instead_of_all(field: StrategyField, word: str | None) -> str:
    """What to write for a field whose values cannot all be tried."""
    name = field.name
    if field.kind is Kind.SET:
        some = f"{field.words[0]},{'+'.join(field.words[:2])}"
        return f"give sets to try, as in {name}={some}; allowed: {', '.join(field.words)}"
    if word is not None:
        return f"give values, or {name}={word}"
    is_whole = field.kind is Kind.WHOLE
    return f"give values, as in {name}=A,B{f', or a range {name}=A..B' if is_whole else ''}"


@cache
def presets(field: str) -> tuple[Any, ...]:
    """Sets of a field that stacks or recipes of the catalog use.

    Where none uses the field, these are the sets that the stacks list one by one as what their
    releases can run.
    """
    used = {frozenset(words): words for words in _used(field)}
    return tuple((used or {frozenset(words): words for words in _listed(field)}).values())


def _stacks() -> Iterator[Stack]:
    return map(Stack.load, catalog.names("stacks"))


def _used(field: str) -> Iterator[Any]:
    for stack in _stacks():
        if field in stack.defaults:
            yield stack.defaults[field]
        if field == "recompute_parts":
            yield from stack.recompute_sets
    for recipe in map(Recipe.load, catalog.names("recipes")):
        if field in recipe.strategy.model_fields_set:
            yield getattr(recipe.strategy, field)


def _listed(field: str) -> Iterator[Any]:
    for stack in _stacks():
        values = stack.capabilities.fields.get(field, ()) if stack.capabilities else ()
        for value in values:
            if isinstance(value, str) and value not in (ANY, SET):
                yield getattr(Strategy.validated({field: value}), field)

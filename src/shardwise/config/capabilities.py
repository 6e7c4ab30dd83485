"""`Capabilities`: what the release of a software stack can run, as data."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from shardwise.config.base import ConfigBase
from shardwise.config.enums import Generation, LaunchRule
from shardwise.errors import allowed_words, nearest

Value = bool | int | float | str | None
"""One value of a field: a word, a number, true or false; None where the field is not set. Of a set
of words, words that come together only, with + between them. `set`: any value but None. `> 1`,
`>= 2`, `< 3`, `<= 4`: numbers."""

ANY, SET = "any", "set"
"""Words that stand for every value, and for every value but None."""
IN_DOMAIN = "in domain"
"""Word for an `ep` whose groups, with `etp`, lie in one domain of the fastest network each."""
_COMPARISON = re.compile(r"(>=|<=|>|<)\s*(\d+(?:\.\d+)?)")
_COMPARED: dict[str, Callable[[Any, float], Any]] = {
    ">=": lambda column, number: column >= number,
    "<=": lambda column, number: column <= number,
    ">": lambda column, number: column > number,
    "<": lambda column, number: column < number,
}
# Fields that say nothing of what software can run.
_NOT_BOUND = ("stack", "any_software", "sequence_parallel")


def _listed(value: object) -> object:
    """One value stands for a list of it."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


Values = Annotated[tuple[Value, ...], BeforeValidator(_listed), Field(min_length=1)]


def comparison(value: Value) -> Callable[[Any], Any] | None:
    """The test of a text such as `> 1`; None of anything else."""
    found = _COMPARISON.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    compared, number = _COMPARED[found[1]], float(found[2])
    return lambda column: compared(column, number)


_MACHINE = ("generation", "domain")


class Combination(ConfigBase):
    """What a strategy with some values must have in addition, on some machines or all."""

    when: Mapping[str, Values] = Field(min_length=1)
    """Values of fields; a field without effect on a strategy has none of them. Of a set of words
    it is enough to have one; an order of the ranks counts where it is not that of the default."""
    then: Mapping[str, Values] = Field(min_length=1)
    """Values that other fields may have then."""
    machine: Mapping[str, Values] = Field(default_factory=dict)
    """Machines where it holds, by `generation` of the accelerator and by `domain`, the accelerators
    of a domain of the fastest network; empty: all."""
    because: str = Field(min_length=1)
    """Why, for people."""

    @field_validator("when", "then")
    @classmethod
    def _of_a_strategy(cls, value: dict[str, Values]) -> dict[str, Values]:
        return _checked(value)

    @field_validator("machine")
    @classmethod
    def _of_a_machine(cls, value: dict[str, Values]) -> dict[str, Values]:
        for name, values in value.items():
            if name not in _MACHINE:
                raise ValueError(f"{name}: {allowed_words(name, _MACHINE)}")
            words = [*Generation] if name == "generation" else []
            for one in values:
                if (one not in words) if words else not _is_number(one):
                    allowed = f"allowed: {', '.join(words)}" if words else _NUMBERS
                    raise ValueError(f"{name}: {_as_written(one)} is none of its values; {allowed}")
        return value

    def holds_on(self, generation: str, domain: float) -> bool:
        """Whether it holds on a machine.

        Parameters
        ----------
        domain
            Accelerators of a domain of the fastest network; infinite where it has one domain.
        """
        own = {"generation": generation, "domain": domain}
        return all(is_among(own[name], values) for name, values in self.machine.items())


class Reported(Combination):
    """A combination that runs, and that was reported broken, slower or never used.

    Searches avoid it until all of `when` is named: the fields that it lists values of, or, where
    these are comparisons alone, all of its fields. CUDA graphs are those in effect.
    """

    source: str = Field(min_length=1)
    """Where it was reported: repository, and number of the issue or pull request."""
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """Day or month of the report."""

    @property
    def named(self) -> tuple[str, ...]:
        """Fields to name for it to be tried."""
        listed = tuple(name for name, values in self.when.items() if plain_values(values))
        return listed or tuple(self.when)

    def __str__(self) -> str:
        return f"{self.because} ({self.source}, {self.date})"


class Capabilities(ConfigBase):
    """Values and combinations of strategy fields that the release of a stack supports.

    A field that is not listed may have any value: most fields (degrees, batch, model) are of no
    concern to the software, and what nobody has looked up must not be refused.
    """

    fields: Mapping[str, Values] = Field(default_factory=dict)
    """Values of fields of a strategy; `any` for all of them, which lifts what a base lists."""
    combinations: Mapping[str, Combination | None] = Field(default_factory=dict)
    """Named combinations; None lifts that of a base."""
    reported: Mapping[str, Reported | None] = Field(default_factory=dict)
    """Named combinations that run and are better avoided; None lifts that of a base."""
    rules: Mapping[LaunchRule, bool] = Field(default_factory=dict)
    """Named conditions of arithmetic kind that apply."""

    @field_validator("fields")
    @classmethod
    def _of_a_strategy(cls, value: dict[str, Values], _: ValidationInfo) -> dict[str, Values]:
        return _checked(value)

    def allows(self, field: str, value: object) -> bool:
        """Return whether a value of a field is listed, or the field is not bound.

        Combinations and rules, which depend on other fields, are no part of it.
        """
        listed = self.fields.get(field)
        if listed is None or ANY in listed:
            return True
        if value is None or value == ():
            return None in listed
        if isinstance(value, tuple) and SET not in listed:
            groups = [set(one.split("+")) for one in listed if isinstance(one, str)]
            covered = set().union(*(group for group in groups if group <= set(value)))
            return covered == set(value)
        return SET in listed or is_among(value, listed)


def is_among(value: object, values: Values) -> bool:
    """Whether a value is one of some values, or meets one of their comparisons."""
    tests = [comparison(one) for one in values]
    return value in values or any(test(value) for test in tests if test is not None)


def _checked(fields: dict[str, Values]) -> dict[str, Values]:
    """Fields and values that a strategy may have.

    Raises
    ------
    ValueError
        Naming the first field or value that it may not have.
    """
    from shardwise.config.strategy_fields import COLUMNS  # noqa: PLC0415 - a strategy has a stack

    bound = [name for name in COLUMNS if name not in _NOT_BOUND]
    for name, values in fields.items():
        if name not in bound:
            hint = nearest(name, bound) or f"; {allowed_words(name, bound)}"
            raise ValueError(f"{name}: no field of a strategy that software binds{hint}")
        for value in values:
            if value != ANY and not _is_possible(COLUMNS[name], value):
                words = COLUMNS[name].words
                allowed = f"allowed: {', '.join(words)}" if words else _described(COLUMNS[name])
                hint = nearest(str(value), words)
                raise ValueError(
                    f"{name}: {_as_written(value)} is none of its values; {allowed}{hint}"
                )
    return fields


def _as_written(value: Value) -> str:
    """A value as files write it."""
    if value is None:
        return "null"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


_NUMBERS = "allowed: numbers, comparisons such as '> 1'"


def _described(field: Any) -> str:
    own = "allowed: true or false" if isinstance(field.default, bool) else _NUMBERS
    return f"{own}{', null, set' if field.optional else ''}"


def _is_possible(field: Any, value: Value) -> bool:
    """Whether a field of a strategy may have a value."""
    if value == IN_DOMAIN:
        return bool(field.name == "ep")
    if value is None or value == SET:
        return bool(field.optional) or (value is None and isinstance(field.default, tuple))
    if field.words:
        return isinstance(value, str) and set(value.split("+")) <= set(field.words)
    if isinstance(field.default, bool):
        return isinstance(value, bool)
    return _is_number(value)


def _is_number(value: Value) -> bool:
    """Whether a value is a number, or a comparison with one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number or comparison(value) is not None


def plain_values(values: Values) -> list[Value]:
    """Those that a field can be set to: no comparison, and no word for several values."""
    return [one for one in values if one not in (ANY, SET) and comparison(one) is None]


def described(values: Values) -> str:
    """Values as people write them."""
    if {None, SET} <= {*values}:
        return ANY
    names: Mapping[object, str] = {None: "not set", True: "true", False: "false"}
    return ", ".join(names[v] if v is None or isinstance(v, bool) else f"{v}" for v in values)

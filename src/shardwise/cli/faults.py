"""Faults in the words of the command line: options as they were typed, in place of fields."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardwise.cli.command_line import entered_words
from shardwise.config.strategy_fields import SHORT_NAMES
from shardwise.errors import Fault, InputError

_OF_FIELDS = (
    *("", "command line", "strategy", "search", "space", "sweep", "cluster", "largest"),
    *("estimate", "trace", "trainingrun", "reliability"),
)
"""Sources of faults of fields; another source is a file, and its faults keep file and field."""
_OF_ENTERED = ("", "command line")
_FIELD = re.compile(r"[a-z]\w*")
_EXAMPLE = re.compile(r"\bsuch as ([a-z]\w*)=")
"""How a problem writes an argument of Python."""
_LONG_NAME = re.compile(r"(?<!['\w-])(?<!x )[a-z0-9]+(?:_[a-z0-9]+)+(?![\w']| x )")
"""Names of several words; in a sentence no other word looks like this. Products stay."""
_SWITCHED = (True, False, "true", "false")
_LIST = re.compile(r"\b(?:allowed: |did you mean )")


def as_entered(error: InputError, context: Any) -> InputError:
    """Return an error whose faults name options of the verb that runs."""
    options = _Options(context)
    return InputError([options.translated(fault) for fault in error.faults])


class _Options:
    """Options of a verb by the field that they set."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._by_field: dict[str, Any] = {}
        for option in context.command.params:
            if option.param_type_name != "option":
                continue
            for name in _names_of(option):
                self._by_field.setdefault(name, option)

    def translated(self, fault: Fault) -> Fault:
        """The fault, with options in place of fields if it is one of what was entered."""
        source = self._by_field.get(fault.source)
        if source is not None and self._is_used(source):
            problem = self._problem(fault.problem)
            return replace(fault, source=self._typed(source), problem=problem)
        found = _FIELD.match(fault.field) if fault.source in _OF_FIELDS else None
        if found is None:
            return replace(fault, problem=self._examples(fault.problem))
        problem = self._problem(fault.problem)
        option = self._by_field.get(found[0])
        rest = fault.field[found.end() :]
        place = "" if option is not None and self._is_used(option) else self._inside(found[0])
        if place or option is None:
            field = f"{place} {fault.field}" if place else fault.field
            return replace(fault, field=field, source="" if place else fault.source)
        name = self._typed(option)
        if not fault.has_value and problem.startswith("is missing"):
            return Fault(problem=f"{name} {problem}")
        if fault.source not in _OF_ENTERED and not self._is_used(option):
            more = f"; set {name}" if "allowed: " in problem else ""
            return replace(fault, problem=problem + more)
        # A switch is all that was typed.
        has_value = fault.has_value and not (option.is_flag and fault.value in _SWITCHED)
        return Fault(field=name + rest, value=fault.value, has_value=has_value, problem=problem)

    def _problem(self, text: str) -> str:
        """The problem, with options in place of fields; lists of allowed names stay."""
        text = self._examples(text)
        listed = _LIST.search(text)
        end = listed.start() if listed else len(text)
        return _LONG_NAME.sub(lambda found: self._name(found[0], found[0]), text[:end]) + text[end:]

    def _examples(self, text: str) -> str:
        """The text, with ``--tp 8`` in place of ``tp=8``."""

        def example(found: re.Match[str]) -> str:
            is_option = found[1] in self._by_field
            return f"such as {self._name(found[1], '')} " if is_option else found[0]

        return _EXAMPLE.sub(example, text)

    def _name(self, field: str, default: str) -> str:
        option = self._by_field.get(field)
        return default if option is None else self._typed(option)

    def _typed(self, option: Any) -> str:
        """The name of an option that was typed; the first if none was."""
        words = {word.partition("=")[0] for word in entered_words()}
        names = (*option.opts, *option.secondary_opts)
        return str(next((name for name in names if name in words), option.opts[0]))

    def _is_used(self, option: Any) -> bool:
        source = self._context.get_parameter_source(option.name)
        return source is not None and source.name == "COMMANDLINE"

    def _inside(self, field: str) -> str:
        """The option that was entered with a field as in ``--fix tp=2``, if any."""
        short = [name for name, field_there in SHORT_NAMES.items() if field_there == field]
        names = "|".join(re.escape(name).replace("_", "[-_]") for name in (field, *short))
        pair = re.compile(rf"(?:^|,)\s*(?:{names})\s*(?:=|$)")
        for option in self._context.command.params:
            is_option = option.param_type_name == "option"
            value = self._context.params.get(option.name) if is_option else None
            texts = value if isinstance(value, (list, tuple)) else [value]
            if any(pair.search(text) for text in texts if isinstance(text, str)):
                return self._typed(option)
        return ""


def _names_of(option: Any) -> Iterator[str]:
    """Names of the field that an option sets: of its parameter, and each that it is typed by."""
    typed = [name.lstrip("-").replace("-", "_") for name in (*option.opts, *option.secondary_opts)]
    for name in (option.name, *typed):
        yield name
        yield SHORT_NAMES.get(name, name)

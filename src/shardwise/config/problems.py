"""What is wrong with the value of a field, in plain words."""

import re
from collections.abc import Mapping
from enum import Enum
from os import PathLike
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from shardwise.config.roles import Role
from shardwise.errors import Fault, InputError, allowed_words, refuse
from shardwise.units import read_number, read_whole

_PLAIN_WORDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid tuple": "a list",
    "a valid array": "a list",
    "a valid list": "a list",
    "a valid dictionary": "a mapping",
    "an object": "a mapping",
    "a valid string": "text",
    "a valid boolean": "true or false",
}
_NOT_WHOLE = ("int_parsing", "int_from_float", "int_type")
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}
_THOUSANDS = re.compile(r"(\d+)[kK]")
_BINARY_FIELDS = ("seq_len", "document_len")
"""Lengths of sequences are powers of two: by 8k people mean 8192, of tokens of a run 8000."""
_MOST = 1e15


def problem_of(config_type: type[BaseModel], details: ErrorDetails) -> str:
    """Return what is wrong with a value, in the words of people who train models."""
    kind = details["type"]
    problem = details["msg"].replace("Input should be", "must be")
    for theirs, ours in _PLAIN_WORDS.items():
        problem = problem.replace(theirs, ours)
    problem = re.sub(r" or instance of \w+|, (?:unable to|got a number with) .*", "", problem)
    if kind in ("enum", "literal_error"):
        expected = str(details.get("ctx", {}).get("expected", ""))
        options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(",")]
        problem = allowed_words(details["input"], options)
    elif kind.startswith("union_tag"):
        problem = _wrong_kind(details)
    elif kind == "invalid_key":
        problem = "is not text; a key is the name of a field"
    elif kind == "value_error":
        problem = str(details["ctx"]["error"])
    elif kind in _NOT_WHOLE and (every := _few_numbers(config_type, details["loc"])):
        problem = f"allowed: {', '.join(map(str, every))}"
    elif kind == "int_parsing_size":
        problem = "is too large for a number"
    elif kind == "int_parsing":
        problem += _as_whole(str(details["input"]), str(details["loc"][-1]))
    elif kind in _LENGTHS:
        # How many items a list or mapping must have.
        word, limit = _LENGTHS[details["type"]]
        number = details["ctx"][limit]
        problem = f"must have {word} {number} item{'' if number == 1 else 's'}"
    return problem


def _wrong_kind(details: ErrorDetails) -> str:
    """What is wrong with the `kind` that says which record of a union a mapping is."""
    if details["type"] == "union_tag_not_found":
        return "kind is missing and has no default"
    options = [option.strip("' ") for option in details["ctx"]["expected_tags"].split(",")]
    return f"kind: {allowed_words(details['ctx']['tag'], options)}"


def _as_whole(text: str, field: str) -> str:
    """What to write in place of text that means a whole number, if it does."""
    found = _THOUSANDS.fullmatch(text.strip())
    thousands = read_whole(found[1]) if found else None
    if thousands and field in _BINARY_FIELDS:
        return f"; write {thousands * 1024}"
    number = read_number(text.replace(",", "")) or 0.0
    is_whole = number.is_integer() and 0 < number < _MOST
    return f"; write {int(number)}" if is_whole else ""


def _few_numbers(config_type: type[BaseModel], location: tuple[int | str, ...]) -> tuple[int, ...]:
    """All numbers that a field may have, if it may have only a few."""
    field = config_type.model_fields.get(str(location[0])) if len(location) == 1 else None
    every = next((r.every for r in (field.metadata if field else ()) if isinstance(r, Role)), ())
    return every if all(type(value) is int for value in every) else ()


_PLAIN = (str, int, float, Mapping, list, tuple, set, frozenset, Enum, PathLike, BaseModel)


def refuse_foreign(data: Mapping[str, Any], source: str, error: Exception) -> None:
    """Raise an `InputError` if an error is due to values of other libraries, such as data frames.

    Their comparisons and conversions raise errors of their own.
    """
    if not isinstance(error, InputError):
        wrong = [(n, v) for n, v in data.items() if v is not None and not isinstance(v, _PLAIN)]
        problem = "must be a number, a word, a list or a mapping"
        refuse(Fault.of(name, value, problem, source) for name, value in wrong)

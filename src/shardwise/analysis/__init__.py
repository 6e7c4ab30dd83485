"""One strategy in detail: operations, communication, stages, timeline, graph."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from shardwise.config import files
from shardwise.config.base import faults_of
from shardwise.config.described import Described
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import FIELDS
from shardwise.errors import Fault, InputError, nearest
from shardwise.frozen import FrozenDict
from shardwise.records import replace
from shardwise.shown import reports

__all__ = ["Result"]

_MOST_FAULTS = 5
"""Most faults to list of a saved result; the others are counted."""
_OTHER_VERSION = "was it written by another version? Run it again"


class Result(Described):
    """Base of all result records: frozen, plain and finite values."""

    ADDED: ClassVar[tuple[str, ...]] = ()
    """What commands add to it, which `read` leaves out."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.model_dump(mode="json")

    def save(self, path: str | Path) -> None:
        """Write the result to a file: .json or .yaml, which `load` reads, or a table.

        Parameters
        ----------
        path
            Ending in .json, .yaml (each also .gz), or in .csv, .csv.gz or .parquet where the result
            is a table.

        Raises
        ------
        InputError
            If the file cannot be written.

        Examples
        --------
        >>> from shardwise import estimate, load
        >>> result = estimate("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
        >>> result.save("a.json")  # doctest: +SKIP
        >>> load("a.json").step_time_s == result.step_time_s  # doctest: +SKIP
        True
        """
        if files.is_table_file(path):
            files.write_table(reports().rows(self, str(path)), path)
        else:
            files.write_mapping(path, files.with_writer(self.to_dict()))

    @classmethod
    def read(cls, data: Mapping[str, object], *, source: str = "", field: str = "") -> Self:
        """Return a saved result, what `to_dict` returned.

        Strategies get the defaults of fields that are newer than the result.

        Raises
        ------
        InputError
            If a field is missing, unknown, of another type, or contradicts others.
        """
        try:
            given = files.without_writer(data, source)
            own = {key: value for key, value in given.items() if key not in cls.ADDED}
            result = cls.model_validate_json(json.dumps(own), strict=True)
            faults = [
                replace(fault, field=_joined(place, fault.field))
                for place, record in _records(result, "")
                for fault in record.contradictions()
            ]
        except ValidationError as error:
            faults = [_of_a_result(fault) for fault in faults_of(cls, error)]
        except (TypeError, ValueError, RecursionError):
            faults = [Fault(problem="holds something other than text, numbers, lists and mappings")]
        if not faults:
            return result
        named = [replace(f, source=source, field=_joined(field, f.field)) for f in faults]
        rest = len(named) - _MOST_FAULTS
        more = [Fault(source=source, problem=f"and {rest} more faults")] if rest > 0 else []
        raise InputError([*named[:_MOST_FAULTS], *more])

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved record that does not fit the others."""
        strategy = getattr(self, "strategy", None)
        if isinstance(strategy, Mapping):
            yield from strategy_faults(self, strategy)


def strategy_faults(
    record: Result, strategy: Mapping[str, object], *, resolved: bool = True
) -> list[Fault]:
    """Faults of a saved strategy; without any, it gets the defaults of fields newer than it.

    Parameters
    ----------
    record
        What has the strategy; it was just read, and nobody else has it yet.
    resolved
        Whether fields that follow from others must be there.
    """
    faults = [
        Fault(field=name, problem=f"unknown field; {_OTHER_VERSION}{nearest(name, FIELDS)}")
        for name in strategy
        if name not in FIELDS
    ]
    faults += [
        Fault(field=name, problem=f"is missing; {_OTHER_VERSION}")
        for name, field in FIELDS.items()
        if resolved and field.role.implied and strategy.get(name) is None
    ]
    if not faults:
        try:
            complete = {**strategy, **Strategy.validated(strategy).to_dict()}
            vars(record)["strategy"] = FrozenDict(complete)
        except InputError as error:
            faults += error.faults
    return [replace(fault, field=_joined("strategy", fault.field)) for fault in faults]


def part_faults(field: str, amounts: Mapping[str, object], parts: Sequence[str]) -> Iterator[Fault]:
    """Yield a fault for each part of a saved sum that is unknown or missing."""
    for name in amounts:
        if name not in parts:
            problem = f"unknown part; {_OTHER_VERSION}{nearest(name, parts)}"
            yield Fault(field=f"{field}.{name}", problem=problem)
    for name in parts:
        if name not in amounts:
            yield Fault(field=f"{field}.{name}", problem=f"is missing; {_OTHER_VERSION}")


def member_faults(
    field: str, used: Iterable[object], known: Collection[object], what: str
) -> Iterator[Fault]:
    """Yield a fault for each name or position of a saved result that is of nothing in it.

    Parameters
    ----------
    used
        Names or positions; None stands for none.
    """
    for one in used:
        if one is not None and one not in known:
            yield Fault.of(field, one, f"is none of the {len(known)} {what}")


def _of_a_result(fault: Fault) -> Fault:
    """A fault of a record in words of files that people do not write themselves."""
    if fault.problem.startswith("unknown key"):
        return replace(fault, problem=f"unknown field; {_OTHER_VERSION}")
    if fault.problem.startswith("is missing"):
        return replace(fault, problem=f"is missing; {_OTHER_VERSION}")
    return fault


def _records(value: object, place: str) -> Iterator[tuple[str, Result]]:
    """All records in a result, each with its place."""
    inside: Iterator[tuple[str, object]] = iter(())
    if isinstance(value, Result):
        yield place, value
        inside = ((_joined(place, name), getattr(value, name)) for name in type(value).model_fields)
    elif isinstance(value, (list, tuple)):
        inside = ((f"{place}[{position}]", item) for position, item in enumerate(value))
    elif isinstance(value, Mapping):
        inside = ((_joined(place, str(key)), item) for key, item in value.items())
    for name, item in inside:
        yield from _records(item, name)


def _joined(place: str, field: str) -> str:
    return ".".join(part for part in (place, field) if part)

"""Results as tables: of a search one row for each plan."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwise.analysis import Result
from shardwise.analysis.saved import kind_of_saved, read_saved
from shardwise.config.plain import as_json
from shardwise.errors import Fault, InputError, allowed_words, kind_of, refuse
from shardwise.shown import Framed

if TYPE_CHECKING:
    import polars as pl


PARTS = ("best", "pareto", "cells", "scales")
"""What of a search can be rows."""

# Columns of an estimate's records, by the record; other records and lists are left out.
_NAMES = {
    "time_s": "{}_s",
    "memory_bytes": "{}_bytes",
    "efficiency": "{}_efficiency",
    "required_bandwidth": "required_bandwidth_{}",
    "cost": "{}",
}
_LISTS = ("operations", "gemms")  # null unless requested
# Keys of strategy and results in a plan of another tool.
_FOREIGN_STRATEGY = ("execution", "config")
_FOREIGN_RESULTS = "stats"


def is_result(data: Mapping[str, object]) -> bool:
    """Whether a file's content is the result of a search or estimate, of shardwise or Calculon."""
    return _is_search(data) or _is_estimate(data) or _is_numbered(data)


def is_sweep(data: Mapping[str, object]) -> bool:
    """Whether a file's content is the result of a sweep."""
    return {"systems", "axes", "points"} <= set(data)


def foreign_search(data: Mapping[str, object]) -> str | None:
    """Name of the other model whose search a file contains; None for shardwise's own result."""
    if _is_numbered(data):
        return "calculon"
    return str(data["reference"]) if _is_search(data) and "reference" in data else None


def table(data: Mapping[str, object], *, source: str, part: str = "best") -> "pl.DataFrame":
    """Return a part of a result as a data frame, one row for each plan.

    Strategy, times, memory and rates are columns; lists of an estimate (stages, operations,
    sources) are left out.

    Parameters
    ----------
    data
        `SearchResult.to_dict()`; `Estimate.to_dict()`; what `search --reference` prints;
        Calculon's own ``{"0": {"execution": ..., "stats": ...}, ...}``; or any other result that
        is a list of records.
    source
        File to name in a fault.
    part
        Part of a shardwise search, one of `PARTS`.
    """
    if part not in PARTS:
        problem = allowed_words(part, PARTS)
        raise InputError.of("rows", part, problem)
    if not is_result(data):
        kind = kind_of_saved(data)
        saved: object = read_saved(data, source) if kind is not None and kind.home else None
        if isinstance(saved, Framed):
            return saved.to_frame()
        if rows := list(_of_records(data)):
            return frame(rows, source=source)
        of = f" of {kind.command}" if kind is not None else ""
        problem = f"the result{of} is no table; allowed endings: .json, .yaml, each also .gz"
        raise InputError.at(source, problem)
    found = read_result(data, source)
    rows = list(rows_of(data if found is None else found.to_dict(), part))
    if not rows:
        problem = "is empty: it was not requested, or the search found nothing feasible"
        raise InputError.at(source, problem, part)
    return frame(rows, source=source)


def read_result(data: Mapping[str, Any], source: str) -> Result | None:
    """Return a saved result, or None for a search of another tool."""
    if foreign_search(data) is None:
        return read_saved(data, source)
    entries = {f"best[{i}]": e for i, e in enumerate(data["best"])} if "best" in data else data
    faults = [
        Fault(source=source, field=name, problem=problem)
        for name, entry in entries.items()
        if (problem := _problem(entry))
    ]
    refuse(faults)
    return None


def _problem(entry: object) -> str:
    """Why an entry is no execution of another tool with its results, or an empty string."""
    if not isinstance(entry, Mapping):
        return f"is {kind_of(entry)}, not a mapping"
    strategies = [name for name in _FOREIGN_STRATEGY if isinstance(entry.get(name), Mapping)]
    if not strategies:
        return f"must have {' or '.join(_FOREIGN_STRATEGY)}, a mapping"
    return "" if isinstance(entry.get(_FOREIGN_RESULTS), Mapping) else "must have stats, a mapping"


_RECORDS = ("rows", "options", "plans", "shapes")
"""Keys of results that hold a list of records of one kind."""


def _of_records(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of a result that is neither a search nor an estimate: its records, without lists."""
    for name in _RECORDS:
        if isinstance(data.get(name), (list, tuple)):
            yield from (_plain(one) for one in data[name])
            return
    if len(data) > 1 and all(isinstance(one, Mapping) for one in data.values()):
        yield from ({"name": name} | _plain(one) for name, one in data.items())


def _is_search(data: Mapping[str, object]) -> bool:
    return isinstance(data.get("best"), list) and "candidates" in data


def _is_estimate(data: Mapping[str, object]) -> bool:
    return {"strategy", "step_time_s", "time_s"} <= set(data)


def _is_numbered(data: Mapping[str, object]) -> bool:
    return bool(data) and all(
        key.isdecimal() and isinstance(entry, Mapping) and {"execution", "stats"} <= set(entry)
        for key, entry in data.items()
    )


def rows_of(data: Mapping[str, Any], part: str) -> Iterator[dict[str, Any]]:
    """Rows of a part, numbered from 1; the best plans of a search in the order of the advice."""
    entries: Sequence[Any]
    if _is_numbered(data):
        entries = [data[key] for key in sorted(data, key=int)] if part == "best" else []
    elif _is_search(data):
        advised = data.get("advised") if part == "best" else None
        entries = advised or data.get(part) or []
    else:
        entries = [data] if part == "best" else []
    run = {name: data[name] for name in ("model", "system") if name in data}
    for rank, entry in enumerate(entries, start=1):
        yield {"rank": rank} | run | _row(entry, part)


def _row(entry: Mapping[str, Any], part: str) -> dict[str, Any]:
    if _FOREIGN_RESULTS in entry:
        words = next(entry[name] for name in _FOREIGN_STRATEGY if name in entry)
        return _plain(entry) | _plain(words) | _plain(entry[_FOREIGN_RESULTS])
    if part == "cells":
        return _estimate_row(entry["plan"])
    if part == "scales":
        scale = {"gpus": entry["gpus"], "asked_global_batch_size": entry["global_batch_size"]}
        best = {} if entry["best"] is None else _estimate_row(entry["best"])
        return scale | _plain(entry) | best
    return _estimate_row(entry)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a record that are neither records nor lists."""
    return {k: v for k, v in record.items() if not isinstance(v, (Mapping, list, tuple))}


def _estimate_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An estimate or a plan as a row, in the order of its fields."""
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "strategy":
            row |= {n: _in_a_cell(v) for n, v in value.items()}
        elif name == "comm_s":
            row |= {f"{axis}_comm_total_s": times["total"] for axis, times in value.items()}
        elif name == "interval" and value is not None:
            row |= {f"interval_{end}": value[end] for end in ("low_s", "high_s")}
        elif name in _NAMES:
            row |= {_NAMES[name].format(part): amount for part, amount in value.items()}
        elif name not in _LISTS and not isinstance(value, (Mapping, list)):
            row[name] = value
    return row


def _in_a_cell(value: object) -> Any:
    """A field of a strategy as a number or a text: items of a list separated by spaces."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return as_json(value) if isinstance(value, Mapping) else value


def frame(rows: Sequence[Mapping[str, object]], *, source: str) -> "pl.DataFrame":
    """Return rows as a data frame; fields that a row lacks are null."""
    import polars as pl  # noqa: PLC0415 - heavy; only where a table is made

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return pl.DataFrame({name: _column(pl, values) for name, values in columns.items()})
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        problem = f"does not make a table: {error}"
        raise InputError.at(source, problem) from None


def _column(pl: Any, values: Sequence[Any]) -> "pl.Series":
    """A column of one type: numbers are integers only if all of them are, absent ones are null."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds != {int}:
        return pl.Series(values=values, dtype=pl.Float64, strict=False)
    return pl.Series(values=values)

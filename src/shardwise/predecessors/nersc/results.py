"""NERSC's stored searches, `.npy` files of pickled Python objects, read without running anything.

A pickle is a program: it may name any function and call it. Here it may name five of numpy's, for
which inert stand-ins are called; any other name ends the reading.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import isnan, prod
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.config import files
from shardwise.errors import InputError, kind_of, shorten

_ENDING = ".npy"
# The largest of the 54 published files has less than a megabyte.
_MOST_BYTES = 2**26
_MOST_ITEMS = 200_000
# Head of a file of numpy's (numpy.lib.format): these bytes, version, length, a dictionary as text.
_MAGIC = b"\x93NUMPY"
_STRUCTURED = re.compile(rb"\x93NUMPY.{4,6}\{'descr': \[", re.DOTALL)
_KIND = re.compile(rb"'descr': '([^']*)'")
# Numbers as numpy pickles them; all else than these and objects is refused.
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_OBJECT = "O8"
# Operations of a pickle that number an object, to come back to it.
_NUMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
_COLUMNS = ("nvs", "best throughputs", "tenth throughputs", "GPU counts", "configurations")
_ENTRY = ("throughput", "memory", "config", "stats")
# What a pickle that is cut off or written by hand may end in.
_BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def is_results_file(path: str | Path) -> bool:
    """Return whether a file has the ending of numpy's arrays."""
    return str(path).lower().endswith(_ENDING)


def read_results(path: str | Path) -> list[dict[str, Any]]:
    """Return the stored configurations as plain rows, best first for each number of GPUs."""
    source = str(path)
    content = files.read_bytes(path, most_bytes=_MOST_BYTES)
    if _STRUCTURED.match(content):
        return _records(content, source)
    stored = _unpickled(_after_head(content, source), source)
    try:
        return [row for searched in _searches(stored) for row in _rows(searched)]
    except _ShapeError as error:
        raise InputError.at(source, f"is no result of NERSC's search: {error}") from None


def record_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows of a file as ``search --reference nersc --json`` writes a search.

    Statistics are the columns from the step time on, configurations those before it.
    """
    searches: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        names = list(row)
        rank, step = names.index("rank"), names.index("t") if "t" in row else len(names)
        outcome = [name for name in ("throughput", "memory", "days") if name in row]
        search = {"domain" if name == "nvs" else name: row[name] for name in names[:rank]}
        entry = {
            **{name: row[name] for name in outcome},
            "config": {n: row[n] for n in names[rank + 1 : step] if n not in outcome},
            "stats": {n: row[n] for n in names[step:]},
        }
        known = searches.setdefault(tuple(search.values()), search | {"best": []})
        known["best"].append(entry)
    return {
        "reference": "nersc",
        "candidates": None,
        "searches": list(searches.values()),
        "best": [search["best"][0] for search in searches.values()],
    }


def rows_of(searches: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations of searches as rows, like those of a file (`read_results`)."""
    outcome = ("candidates", "feasible", "best", "reason", "domain")
    return [
        {name: value for name, value in search.items() if name not in outcome}
        | {"nvs": search["domain"], "rank": rank}
        | {name: entry[name] for name in ("throughput", "memory", "days") if name in entry}
        | {**entry["config"], **entry["stats"]}
        for search in searches
        for rank, entry in enumerate(search["best"], start=1)
    ]


def write_results(path: str | Path, searches: Sequence[Mapping[str, Any]]) -> None:
    """Write searches of one system and method as NERSC's scripts do: a row for each domain.

    A row has the size of the domain, the best and the last listed throughput of each number of GPUs
    with a feasible configuration, the numbers of GPUs from the first of these on, and their
    configurations.
    """
    domains: dict[int, list[Mapping[str, Any]]] = {}
    for search in searches:
        domains.setdefault(search["domain"], []).append(search)
    array = np.empty((len(domains), len(_COLUMNS)), dtype=object)
    for row, (domain, every) in enumerate(domains.items()):
        first = next((at for at, search in enumerate(every) if search["best"]), 0)
        listed = [[tuple(one[name] for name in _ENTRY) for one in s["best"]] for s in every[first:]]
        found = [entries for entries in listed if entries]
        columns = (
            domain,
            [entries[0][0] for entries in found],
            [entries[-1][0] for entries in found],
            np.array([search["gpus"] for search in every[first:]]),
            listed,
        )
        for column, value in enumerate(columns):
            array[row, column] = value
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    files.write_bytes(path, content.getvalue())


def write_grid(path: str | Path, searches: Sequence[Mapping[str, Any]]) -> None:
    """Write the best configuration of each point of a sweep as a structured array of numpy.

    It has one record per feasible point, with the columns of `rows_of`, and no pickled objects.
    """
    rows = rows_of([{**search, "best": search["best"][:1]} for search in searches])
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [np.array([row.get(name, np.nan) for row in rows]) for name in names]
    content = io.BytesIO()
    kind = [(name, column.dtype) for name, column in zip(names, columns, strict=True)]
    table = np.empty(len(rows), dtype=kind)
    for name, column in zip(names, columns, strict=True):
        table[name] = column
    np.save(content, table, allow_pickle=False)
    files.write_bytes(path, content.getvalue())


def _records(content: bytes, source: str) -> list[dict[str, Any]]:
    """Rows of an array that `write_grid` wrote."""
    try:
        table = np.load(io.BytesIO(content), allow_pickle=False)
        rows = [tuple(zip(table.dtype.names, row, strict=True)) for row in table.tolist()]
    except _BROKEN as error:
        raise InputError.at(
            source, f"is cut off or no table of numbers and text: {error}"
        ) from None
    if missing := {"nvs", "gpus", "rank"} - set(table.dtype.names):
        raise InputError.at(
            source, f"is no result of NERSC's model: has no {', '.join(sorted(missing))}"
        )
    return [
        {name: None if isinstance(value, float) and isnan(value) else value for name, value in row}
        for row in rows
    ]


class _ShapeError(Exception):
    """The objects of a file are not laid out as its search lays them out."""


def _after_head(content: bytes, source: str) -> io.BytesIO:
    """The pickle of an array of objects."""
    size = 2 if content[6:7] == b"\x01" else 4
    start = len(_MAGIC) + 2 + size
    end = start + int.from_bytes(content[start - size : start], "little")
    kind = _KIND.search(content[start:end])
    if not content.startswith(_MAGIC) or kind is None or end > len(content):
        raise InputError.at(source, "is not a numpy array, or cut off within its head")
    if kind[1] != b"|O":
        what = kind[1].decode("ascii", "replace")
        raise InputError.at(source, f"holds numbers ({what}), not the results of NERSC's search")
    return io.BytesIO(content[end:])


class _Type:
    """Stand-in of a numpy dtype: its code, if it is a known one."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in (*_NUMBERS, _OBJECT):
            raise ValueError(f"type {shorten(code)} of numpy")
        self.code = str(code)
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def numbers(self, content: bytes) -> list[Any]:
        """Values of their bytes."""
        found: list[Any] = np.frombuffer(content, dtype=f"{self.order}{self.code}").tolist()
        return found


class _Array:
    """Stand-in of a numpy array: its shape and its items in a flat list."""

    shape: tuple[int, ...] = (0,)
    items: Sequence[Any] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, content = state
        items = content if kind.code == _OBJECT else kind.numbers(content)
        if by_columns and len(shape) > 1:
            raise ValueError("an array stored by columns")
        if not isinstance(items, list) or len(items) != prod(shape):
            raise ValueError("an array of another shape than its items")
        self.shape, self.items = shape, items

    @property
    def value(self) -> Any:
        """Nested lists."""
        found: Any = list(self.items)
        for size in reversed(self.shape[1:]):
            found = [found[at : at + size] for at in range(0, len(found), size)] if size else []
        return found if self.shape else found[0]


def _array(*_: object) -> _Array:
    return _Array()


def _scalar(kind: _Type, content: bytes) -> Any:
    return kind.numbers(content)[0]


def _encoded(text: str, encoding: str) -> bytes:
    """Old pickles write bytes as text."""
    if encoding != "latin1":
        raise ValueError(f"encoding {shorten(encoding)}")
    return text.encode("latin1")


# By module and name, in the files of old and new releases of numpy.
_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _encoded,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "scalar"): _scalar,
}


class _StandIn:
    """Something to call that a pickle cannot change."""

    __slots__ = ("_called",)

    def __init__(self, called: Callable[..., Any]) -> None:
        self._called = called

    def __call__(self, *arguments: Any) -> Any:
        return self._called(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("a state for a function")


class _ForeignError(Exception):
    """A pickle names what no result needs."""


class _Reader(pickle.Unpickler):
    """Knows the stand-ins and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of a name."""
        if (module, name) not in _KNOWN:
            raise _ForeignError(f"{module}.{name}")
        return _StandIn(_KNOWN[module, name])


def _refuse_far_numbers(content: bytes) -> None:
    """Refuse a number beyond all objects that a pickle may hold, one a byte.

    Python makes room for all numbers up to the greatest, and five bytes may make it 2^32.
    """
    for operation, number, _ in pickletools.genops(content):
        if operation.name in _NUMBERING and number is not None and number > len(content):
            raise ValueError(f"object {number} in {len(content)} bytes")


def _unpickled(stream: io.BytesIO, source: str) -> Any:
    try:
        _refuse_far_numbers(stream.getvalue())
        return _plain(_Reader(stream).load(), count())
    except _ForeignError as error:
        problem = f"would call {error}, which no result needs; it was not run"
        raise InputError.at(source, problem) from None
    except _BROKEN as error:
        problem = f"is cut off or not a pickle of results: {error}"
        raise InputError.at(source, problem) from None


def _plain(value: Any, seen: Iterator[int]) -> Any:
    """Lists, dictionaries, numbers and text; nothing else may be in a file.

    A few bytes may name one list again and again, within itself or others: what has been seen is
    counted.
    """
    if next(seen) > _MOST_ITEMS:
        raise ValueError(f"more than {_MOST_ITEMS} items")
    if isinstance(value, _Array):
        return _plain(value.value, seen)
    if isinstance(value, (list, tuple)):
        return [_plain(item, seen) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, seen) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"holds {kind_of(value)}")


def _searches(stored: Any) -> Iterator[Sequence[Any]]:
    """Rows of the array: one for each size of the NVLink domain."""
    if not isinstance(stored, list) or not stored:
        raise _ShapeError("it is empty")
    rows = stored if isinstance(stored[0], list) else [stored]
    for row in rows:
        if not isinstance(row, list) or len(row) != len(_COLUMNS):
            raise _ShapeError(f"a row must have {', '.join(_COLUMNS)}")
        yield row


def _rows(searched: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """One row for each configuration of a search, numbered from 1 for each number of GPUs."""
    domain, _, _, counts, listed = searched
    if not isinstance(counts, list) or not isinstance(listed, list):
        raise _ShapeError("GPU counts and configurations must be lists")
    if len(counts) != len(listed):
        problem = f"{len(counts)} GPU counts and {len(listed)} lists of configurations"
        raise _ShapeError(f"{problem}: its search lost one, and which is not known")
    for gpus, entries in zip(counts, listed, strict=True):
        if not isinstance(entries, list):
            raise _ShapeError(f"of {gpus} GPUs there is no list of configurations")
        for rank, entry in enumerate(entries, start=1):
            yield {"nvs": domain, "gpus": gpus, "rank": rank, **_configuration(entry)}


def _configuration(entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, list) or len(entry) != len(_ENTRY):
        raise _ShapeError(f"a configuration must have {', '.join(_ENTRY)}")
    throughput, memory, config, stats = entry
    if not isinstance(config, dict) or not isinstance(stats, dict):
        raise _ShapeError("config and stats of a configuration must be dictionaries")
    figures = {name: value for name, value in stats.items() if name not in config}
    row = {"throughput": throughput, "memory": memory, **config, **figures}
    if bad := next((name for name, value in row.items() if isinstance(value, (list, dict))), ""):
        raise _ShapeError(f"{bad} of a configuration must be a number or text")
    return row

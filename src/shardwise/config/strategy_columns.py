"""Columns of a table from what people give: lists, arrays, single values, words."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from shardwise import catalog
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import MOST
from shardwise.config.enums import (
    OPEN_SETS,
    SETS,
    SHORT_NAMES,
    TIER_FIELDS,
    WORDS,
    Schedule,
    TpExchange,
)
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError, nearest

__all__ = ["BOOLEANS", "FLOATS", "INTEGERS", "OPTIONALS", "columns_of"]

T = TypeVar("T")

INTEGERS = (
    "gpus",
    "tp",
    "tp2",
    "pp",
    "cp",
    "ep",
    "etp",
    "dp",
    "vpp",
    "micro_batch_size",
    "global_batch_size",
    "seq_len",
    "zero",
    "fsdp_prefetch",
)
FLOATS = ("expert_imbalance",)
OPTIONALS = (
    "document_len",
    "dp_shard",
    "first_stage_layers",
    "last_stage_layers",
    "recompute_layers",
    "lora_rank",
    "summa_panels",
    "expert_capacity",
)
"""Numbers that may be left open, which a column holds as 0."""
BOOLEANS = (
    "training",
    "quantized_weights",
    "fsdp_reshard",
    "embedding_as_layer",
    "loss_as_layer",
    "expert_overlap",
    "tp_regather",
    "dp_overlap",
    "fused_activation",
    "offload_weights",
    "offload_activations",
    "offload_optimizer",
)
_LEAST = {"zero": 0, "fsdp_prefetch": 0}
_DEFAULTS = {name: field.default for name, field in Strategy.model_fields.items()}


def columns_of(model: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a `Table` from columns or single values by field of `Strategy`.

    Raises
    ------
    InputError
        If a column is unknown, of the wrong type, or of another length than the others.
    """
    columns = dict(_DEFAULTS)
    twice = [name for alias, name in SHORT_NAMES.items() if alias in given and name in given]
    if twice:
        raise InputError([Fault(field=n, problem="is given twice, by two names") for n in twice])
    columns |= {SHORT_NAMES.get(n, n): column for n, column in given.items() if column is not None}
    if unknown := [name for name in columns if name not in _DEFAULTS]:
        known = list(_DEFAULTS)
        faults = [Fault(field=n, problem=f"unknown column{nearest(n, known)}") for n in unknown]
        raise InputError(faults)
    given = {name: column for name, column in columns.items() if column is not None}
    sets = {name: given.pop(name, None) for name in SETS}
    lists = given.pop("stage_layers", None)
    seats = given.pop("extents", None)
    length = _common_length(given, sets, lists, seats)
    _refuse_ambiguous({n: c for n, c in sets.items() if c is not _DEFAULTS[n]}, length)
    integers = {
        n: _integers(n, given[n], length, least=_LEAST.get(n, 1)) for n in INTEGERS if n in given
    }
    _fill_degrees(integers, model, length)
    flags = {n: _booleans(n, given[n], length) for n in BOOLEANS if n in given}
    codes = {n: _codes(n, given[n], known, length) for n, known in WORDS.items() if n in given}
    codes.setdefault("schedule", np.where(integers["vpp"] > 1, Schedule.INTERLEAVED.code, 0))
    _fill_exchange(codes, given, integers["tp"] > 1, length)
    filled: dict[str, Any] = integers | codes | flags
    filled |= {name: _tiers(name, columns[name], length) for name in TIER_FIELDS}
    filled |= {name: _open(name, columns[name], length) for name in OPTIONALS}
    filled |= {name: _floats(name, given[name], length, least=1.0) for name in FLOATS}
    filled["stack"], filled["stacks"] = _stacks(given["stack"], length)
    filled |= {name: _sets(name, column, length) for name, column in sets.items()}
    filled["stage_layers"], filled["stage_lists"] = _stage_lists(lists, length)
    filled["extents"], filled["extent_lists"] = _extent_lists(seats, length)
    return filled


def _refuse_ambiguous(sets: Mapping[str, Any], rows: int) -> None:
    """Refuse as many words as there are rows, which may be one set or a word for each row."""
    faults = []
    for name, column in sets.items():
        is_list = isinstance(column, (list, tuple)) and _is_one(column, str)
        if rows > 1 and is_list and len(column) == rows and len(set(column)) > 1:
            problem = f"may be one set for all rows or a word for each of the {rows}; write "
            problem += f"{','.join(column)!r} for the set, {[[word] for word in column]} for rows"
            faults.append(
                Fault(source="columns", field=name, value=column, has_value=True, problem=problem)
            )
    if faults:
        raise InputError(faults)


def _common_length(
    columns: Mapping[str, Any], sets: Mapping[str, Any], lists: Any, seats: Any
) -> int:
    several = {n: c for n, c in columns.items() if not isinstance(c, (int, float, str))}
    lengths = {n: len(c) for n, c in several.items() if isinstance(c, (list, tuple)) or np.ndim(c)}
    lengths |= {name: len(column) for name, column in sets.items() if not _is_one(column, str)}
    if not _is_one(lists, int):
        lengths["stage_layers"] = len(lists)
    if not _is_one(seats, Mapping):
        lengths["extents"] = len(seats)
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(Fault(field="columns", problem=f"differ in length: {told}"))
    return next(iter(lengths.values()), 1)


def _broadcast(name: str, column: Any, length: int) -> Any:
    array = np.asarray(column)
    if array.ndim > 1:
        raise InputError(Fault(field=name, problem="a column has one dimension"))
    if array.dtype.kind in "iuf" and isinstance(column, (list, tuple)):
        _refuse_flags(name, column)
    return np.broadcast_to(array, (length,))


def _refuse_flags(name: str, column: Sequence[Any]) -> None:
    """Refuse true and false among numbers, which numpy would take for 1 and 0."""
    if {bool, np.bool_}.isdisjoint(map(type, column)):
        return
    wrong = np.array([isinstance(value, (bool, np.bool_)) for value in column])
    given = np.array(column, dtype=object)
    raise _bad_value(name, given, wrong, "must be a number, not true or false")


def _integers(name: str, column: Any, length: int, least: int = 1) -> Ints:
    if type(column) is int and least <= column <= MOST:  # one of many defaults, as a rule
        return np.full(length, column, dtype=np.int64)
    array: Any = _broadcast(name, column, length)
    if array.dtype.kind == "f":
        wrong = ~np.isfinite(array) | (array % 1 != 0)
        if np.any(wrong):
            raise _bad_value(name, array, wrong, "must be integers")
    elif array.dtype.kind not in "iu":
        wrong = np.array([not _is_whole(value) for value in array.tolist()], dtype=np.bool_)
        if np.any(wrong):
            raise _bad_value(name, array, wrong, "must be integers")
        array = np.array([int(value) for value in array.tolist()], dtype=object)
    wrong = (array < least) | (array > MOST)
    if np.any(wrong):
        raise _bad_value(name, array, wrong, f"must be from {least} to {MOST}")
    return array.astype(np.int64)


def _is_whole(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value == int(value)


def _bad_value(name: str, array: Any, wrong: Bools, problem: str) -> InputError:
    """A fault that shows the first value that is wrong, as Python shows it."""
    value = array.tolist()[int(np.argmax(wrong))]
    return InputError(
        Fault(source="columns", field=name, value=value, has_value=True, problem=problem)
    )


def _is_one(value: Any, kind: type) -> bool:
    """Whether a sequence is one set or list, of words or numbers, rather than a column of them.

    `_refuse_ambiguous` looks at what may be both.
    """
    if isinstance(value, np.ndarray):
        return False
    if value is None or isinstance(value, (str, int, np.integer, Mapping)):
        return True
    return all(isinstance(v, kind) for v in value)


def _sets(name: str, column: Any, length: int) -> Ints:
    """Sets of words as bits; numbers are bits already."""
    if not length:
        return np.zeros(0, dtype=np.int64)
    if _is_one(column, str):
        return np.full(length, _set(name, column), dtype=np.int64)
    known: dict[Any, int] = {}
    keys = [tuple(v) if isinstance(v, (list, tuple, np.ndarray)) else v for v in column]
    for key in keys:
        if key not in known:
            known[key] = _set(name, key)
    return np.array([known[key] for key in keys], dtype=np.int64)


def _set(name: str, value: Any) -> int:
    if isinstance(value, (int, np.integer)):
        if not 0 <= value < 1 << len(SETS[name]):
            raise _bad_value(name, np.array([value]), np.array([True]), "no set")
        return int(value)
    if name in OPEN_SETS and _is_open(value):
        return 0
    return SETS[name].bits(_field(name, value))


def _field(name: str, value: Any) -> Any:
    """A value as the field of a strategy has it."""
    return getattr(Strategy.validated({name: value}, source="columns"), name)


def _stage_lists(column: Any, length: int) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
    """Positions of lists of layers by stage, -1 for None, and the lists."""

    def read(value: Any) -> Any:
        return _field("stage_layers", value if isinstance(value, str) else list(value))

    return _listed(column, length, int, read)


def _extent_lists(column: Any, length: int) -> tuple[Ints, tuple[str, ...]]:
    """Positions of extents, -1 for None, and their texts."""
    return _listed(column, length, Mapping, lambda value: str(_field("extents", value)))


def _listed(
    column: Any, length: int, kind: type, read: Callable[[Any], T | None]
) -> tuple[Ints, tuple[T, ...]]:
    """Positions of what values stand for, -1 for None, and that; equal values are read once."""
    codes = np.full(length, -1, dtype=np.int64)
    if column is None or (isinstance(column, np.ndarray) and column.dtype.kind == "f"):
        return codes, ()  # numbers: nulls of a data frame
    found: dict[T, int] = {}
    known: dict[str, int] = {}  # by how they are written, as True is not 1
    for row, value in enumerate([column] * length if _is_one(column, kind) else column):
        if _is_open(value):
            continue
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        whole = isinstance(plain, (str, list, tuple, dict))  # others may be cut short
        written = repr(plain) if whole else str(row)
        if written not in known:
            one = read(value)
            known[written] = -1 if one is None else found.setdefault(one, len(found))
        codes[row] = known[written]
    return codes, tuple(found)


def _is_open(value: Any) -> bool:
    """Whether a list was left open: None, a data frame's null, or no entry of `to_columns`."""
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value)


def _floats(name: str, column: Any, length: int, least: float) -> Floats:
    array = _broadcast(name, column, length)
    if array.dtype.kind not in "iuf":
        raise InputError(Fault(source="columns", field=name, problem="must be numbers"))
    wrong = ~np.isfinite(array) | (array < least)
    if np.any(wrong):
        raise _bad_value(name, array, wrong, f"must be finite and at least {least:g}")
    return array.astype(np.float64)


def _filled(name: str, column: Any, length: int, nothing: int) -> Any:
    """A column with a number in place of None, and of a data frame's nulls."""
    array: Any = _broadcast(name, nothing if column is None else column, length)
    if array.dtype == object:
        _refuse_flags(name, array.tolist())
        return np.array([nothing if value is None else value for value in array.tolist()])
    return np.where(np.isnan(array), nothing, array) if array.dtype.kind == "f" else array


def _open(name: str, column: Any, length: int) -> Ints | Floats:
    """Numbers above 0, and 0 for None."""
    array = 0 if column is None else _filled(name, column, length, 0)
    if name == "expert_capacity":
        return _floats(name, array, length, least=0.0)
    return _integers(name, array, length, least=0)


def _booleans(name: str, column: Any, length: int) -> Bools:
    if isinstance(column, bool):
        return np.full(length, column)
    array = _broadcast(name, column, length)
    if array.dtype.kind != "b" and length:
        raise InputError(Fault(field=name, problem="must be true or false"))
    return array.astype(np.bool_)


def _tiers(name: str, column: Any, length: int) -> Ints:
    """Positions of tiers, -1 for None."""
    filled = -1 if column is None else _filled(name, column, length, -1)
    return _integers(name, filled, length, least=-1)


def _fill_exchange(
    codes: dict[str, Ints], given: Mapping[str, Any], splits: Bools, length: int
) -> None:
    """Fill in `tp_exchange` from `sequence_parallel`, or from whether there is a group at all."""
    if "sequence_parallel" not in given:
        parallel = splits
    else:
        parallel = _booleans("sequence_parallel", given["sequence_parallel"], length)
        if "tp_exchange" in codes:
            wrong = parallel != (codes["tp_exchange"] == TpExchange.RS_AG.code)
            if np.any(wrong):
                problem = "contradicts tp_exchange; give one"
                raise _bad_value("sequence_parallel", parallel, wrong, problem)
    codes.setdefault(
        "tp_exchange", np.where(parallel, TpExchange.RS_AG.code, TpExchange.ALL_REDUCE.code)
    )


def _codes(name: str, column: Any, known: tuple[str, ...], length: int) -> Ints:
    """Turn words (or positions already) into positions."""
    if isinstance(column, str) and column in known:
        return np.full(length, known.index(column), dtype=np.int64)
    array = _broadcast(name, column, length)
    if array.dtype.kind in "iu":
        wrong = (array < 0) | (array >= len(known))
        if np.any(wrong):
            raise _bad_value(name, array, wrong, f"positions reach from 0 to {len(known) - 1}")
        return array.astype(np.int64)
    if isinstance(column, str):
        array = np.asarray([column])
    distinct, inverse = np.unique(array.astype(str), return_inverse=True)
    canonical = [word if word in known else _field(name, word) for word in distinct.tolist()]
    positions = np.asarray([known.index(word) for word in canonical], dtype=np.int64)
    return np.broadcast_to(positions[inverse], (length,)).astype(np.int64)


def _stacks(column: Any, length: int) -> tuple[Ints, tuple[Stack, ...]]:
    if isinstance(column, (str, Mapping, Stack)):
        return np.zeros(length, dtype=np.int64), (_stack(column),)
    if isinstance(column, (list, tuple)):  # numpy would look into each of them
        column = np.fromiter(column, dtype=object, count=len(column))
    column = np.broadcast_to(np.asarray(column, dtype=object), (length,))
    by_item: dict[Any, int] = {}  # by name, or by identity of what is not a name
    stacks: list[Stack] = []
    codes = np.empty(length, dtype=np.int64)
    for row, item in enumerate(column):
        key = item if isinstance(item, str) else id(item)
        if key not in by_item:
            stack = _stack(item)
            if stack not in stacks:
                stacks.append(stack)
            by_item[key] = stacks.index(stack)
        codes[row] = by_item[key]
    return codes, tuple(stacks) or (_stack(_DEFAULTS["stack"]),)


def _stack(item: Any) -> Stack:
    if isinstance(item, str) and catalog.find("stacks", item):
        return Stack.load(item)
    return Stack.load(_field("stack", item))


def _fill_degrees(integers: dict[str, Ints], model: Model, length: int) -> None:
    # In floating point, which does not wrap around: 2^31 three times over is too much for int64.
    product = 1.0 * integers["tp"] * integers["tp2"] * integers["pp"] * integers["cp"]
    if "gpus" not in integers and "dp" not in integers:
        raise InputError(Fault(field="gpus", problem="is missing: give gpus or dp"))
    if "dp" not in integers:
        integers["dp"] = np.maximum(integers["gpus"] // product, 1).astype(np.int64)
    if "gpus" not in integers:
        gpus = integers["dp"] * product
        if np.any(gpus > MOST):
            problem = f"with tp x tp2 x pp x cp makes more than {MOST} GPUs"
            raise _bad_value("dp", integers["dp"], gpus > MOST, problem)
        integers["gpus"] = gpus.astype(np.int64)
    if "seq_len" not in integers:
        if model.seq_len is None:
            problem = f"is missing: model {model.name} names none"
            raise InputError(Fault(field="seq_len", problem=problem))
        integers["seq_len"] = np.full(length, model.seq_len, dtype=np.int64)
    if "global_batch_size" not in integers:
        raise InputError(Fault(field="global_batch_size", problem="is missing: give it (gbs)"))

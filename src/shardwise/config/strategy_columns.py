"""Columns of a table from what people give: lists, arrays, single values, words."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from shardwise import catalog
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import MISSING, MOST
from shardwise.config.enums import (
    ZERO_WEIGHTS,
    AttentionKernel,
    Dispatcher,
    Schedule,
    TpExchange,
    Word,
)
from shardwise.config.model import Model
from shardwise.config.recipe_defaults import recipe_defaults
from shardwise.config.software.resolve import DECIDING_FIELDS, is_description, stack_on
from shardwise.config.stack import DEFAULT_STACK, Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import COLUMNS, FIELDS, SHORT_NAMES, Kind, StrategyField
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest, refuse

T = TypeVar("T")

LISTS = {
    "stack": "stacks",
    "stage_layers": "stage_lists",
    "extents": "extent_lists",
    "data_lengths": "length_lists",
}
"""Columns of positions, and the lists of a table that they refer to."""
_SINGLE = (int, float, str, tuple)
_DEFAULTS = {name: field.default for name, field in FIELDS.items()}


def columns_of(
    model: Model, columns: Mapping[str, Any], on: System | str = DEFAULT_STACK
) -> dict[str, Any]:
    """Columns of a `Table` from columns or single values by field of `Strategy`.

    Rows without a stack have that of the system, or the one whose name is in its place.

    Raises
    ------
    InputError
        If a column is unknown, of the wrong type, or of another length than the others.
    """
    given = {SHORT_NAMES.get(n, n) for n, value in columns.items() if value is not None}
    columns = _with_defaults(columns)
    deciding = {name: columns[name] for name in DECIDING_FIELDS if name in given}
    columns["stack"] = _with_default_stack(columns["stack"], deciding, on, model)
    columns |= _stack_defaults(columns["stack"], given)
    length = _common_length(columns)
    unnamed, columns["dispatcher"] = _unnamed_dispatchers(columns["dispatcher"], length)
    _refuse_ambiguous(columns, length)
    found: dict[str, Any] = {}
    for name, field in COLUMNS.items():
        column = columns[name]
        if column is None and field.role.implied:
            continue
        if field.kind in (Kind.LIST, Kind.STACK):
            found[name], found[LISTS[name]] = _READ_LISTS[name](column, length)
        else:
            found[name] = _READERS[name](field, column, length)
    of_stack = partial(_of_stack, found)
    if "fsdp_reshard" not in given:
        reshard = of_stack(lambda stack: stack.pipeline_reshard)
        single = (found["pp"] == 1) | (found["zero"] != ZERO_WEIGHTS)
        found["fsdp_reshard"] = found["fsdp_reshard"] & (single | reshard)
    _fill_degrees(found, model, length)
    one_chunk = _usual_codes(found, "schedule", Schedule.ONE_F_ONE_B)
    chunked = np.where(found["vpp"] > 1, Schedule.INTERLEAVED.code, one_chunk)
    found.setdefault("schedule", chunked)
    if model.has_experts and "etp" not in given:
        both = of_stack(lambda one: [one.has_etp_of_tp(alone=a) for a in (False, True)])
        as_tp = np.where(found["ep"] == 1, both[:, 1], both[:, 0])
        found["etp"] = np.where(as_tp, found["tp"], found["etp"])
    if model.has_experts:
        kernels = of_stack(lambda stack: stack.kernel_of_experts.code)
        own = found["attention_kernel"]
        found["attention_kernel"] = np.where(own == AttentionKernel.STACK.code, kernels, own)
    usual = default_dispatchers(model, found)
    found["dispatcher"] = np.where(unnamed, usual, found.get("dispatcher", usual))
    found |= recipe_defaults(model, given, found, of_stack)
    _fill_tp_exchange(found, columns["sequence_parallel"], length)
    return found


def _of_stack(columns: Mapping[str, Any], figure: Callable[[Stack], Any]) -> Any:
    """A figure of the stack of each row."""
    return np.array([figure(stack) for stack in columns["stacks"]])[columns["stack"]]


def _with_defaults(columns: Mapping[str, object]) -> dict[str, object]:
    """Columns by the names of fields; missing ones have the default of `Strategy`."""
    if wrong := [name for name in columns if not isinstance(name, str)]:
        problem = "is not text; a column has the name of a field"
        raise InputError([Fault(source="columns", field=str(n), problem=problem) for n in wrong])
    twice = [name for short, name in SHORT_NAMES.items() if short in columns and name in columns]
    if twice:
        raise InputError([Fault(field=n, problem="is set twice, by two names") for n in twice])
    named = {SHORT_NAMES.get(n, n): _plain(c) for n, c in columns.items() if c is not None}
    if unknown := [name for name in named if name not in FIELDS]:
        known = list(FIELDS)
        faults = [Fault(field=n, problem=f"unknown column{nearest(n, known)}") for n in unknown]
        raise InputError(faults)
    refuse(
        Fault.of(name, column, "a column has one dimension", "columns")
        for name, column in named.items()
        if not isinstance(column, _SINGLE)
        and (hasattr(column, "columns") or getattr(column, "ndim", 1) > _most_dimensions(name))
    )
    return _DEFAULTS | named


def _plain(column: Any) -> Any:
    """A column; an array without dimensions as the value in it."""
    return column.item() if isinstance(column, np.ndarray) and column.ndim == 0 else column


def _most_dimensions(name: str) -> int:
    """Dimensions of a column: lists of equal length make a second one."""
    return 2 if FIELDS[name].kind in (Kind.SET, Kind.LIST) else 1


def _refuse_ambiguous(columns: Mapping[str, Any], rows: int) -> None:
    """Refuse as many words as there are rows, which may be one set or a word for each row."""
    faults = []
    for name, column in columns.items():
        is_list = isinstance(column, (list, tuple)) and _is_one(column, str)
        if FIELDS[name].kind is not Kind.SET or column is _DEFAULTS[name] or not is_list:
            continue
        if rows > 1 and len(column) == rows and len(set(column)) > 1:
            problem = f"may be one set for all rows or a word for each of the {rows}; write "
            problem += f"{','.join(column)!r} for the set, {[[word] for word in column]} for rows"
            faults.append(
                Fault(source="columns", field=name, value=column, has_value=True, problem=problem)
            )
    if faults:
        raise InputError(faults)


def _common_length(columns: Mapping[str, Any]) -> int:
    """Number of rows: that of the columns which are not single values."""
    lengths = {}
    for name, column in columns.items():
        if column is None or isinstance(column, (int, float, str)):
            continue
        kind = FIELDS[name].kind
        if kind in (Kind.SET, Kind.LIST):
            if not _is_one(column, _ITEMS.get(name, str)):
                lengths[name] = len(column)
        elif isinstance(column, (list, tuple)) or np.ndim(column):
            lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(Fault(field="columns", problem=f"differ in length: {shown}"))
    return next(iter(lengths.values()), 1)


def _broadcast(name: str, column: object, length: int) -> Any:
    try:
        array = np.asarray(column)
    except ValueError:  # lists of several lengths
        array = np.empty((0, 0))
    if array.ndim > 1:
        raise InputError(Fault(field=name, problem="a column has one dimension"))
    if array.dtype.kind in "iuf" and isinstance(column, (list, tuple)):
        _refuse_flags(name, column)
    return np.broadcast_to(array, (length,))


def _refuse_flags(name: str, column: Sequence[object]) -> None:
    """Refuse true and false among numbers, which numpy would take for 1 and 0."""
    if {bool, np.bool_}.isdisjoint(map(type, column)):
        return
    wrong = np.array([isinstance(value, (bool, np.bool_)) for value in column])
    values = np.array(column, dtype=object)
    raise _bad_value(name, values, wrong, "must be a number, not true or false")


def _integers(field: StrategyField, column: Any, length: int) -> Ints:
    """Integers; for optional fields, 0 (of tiers -1) stands for None."""
    name, least = field.name, int(field.least)
    if field.optional:
        least = -1 if field.kind is Kind.TIER else 0
        column = least if column is None else _filled(name, column, length, least)
    if type(column) is int and least <= column <= MOST:  # most columns are a default
        return np.full(length, column, dtype=np.int64)
    array: Any = _broadcast(name, column, length)
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        wrong = ~np.isfinite(array) | (np.trunc(array) != array)
        if np.any(wrong):
            raise _bad_value(name, array, wrong, "must be integers")
    elif array.dtype.kind not in "iu":
        if array.dtype.kind == "U" and isinstance(column, (list, tuple)):  # numbers became text
            array = np.broadcast_to(np.array(column, dtype=object), (length,))
        wrong = np.array([not _is_integer(value) for value in array.tolist()], dtype=np.bool_)
        if np.any(wrong):
            raise _bad_value(name, array, wrong, "must be integers")
        array = np.array([int(value) for value in array.tolist()], dtype=object)
    wrong = (array < least) | (array > MOST)
    if np.any(wrong):
        raise _bad_value(name, array, wrong, f"must be from {least} to {MOST}")
    return array.astype(np.int64)


def _is_integer(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or (math.isfinite(value) and value == int(value))


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
    return not isinstance(value, Iterable) or all(isinstance(v, kind) for v in value)


def _sets(field: StrategyField, column: Any, length: int) -> Ints:
    """Sets of words as bits; numbers are bits already."""
    if not length:
        return np.zeros(0, dtype=np.int64)
    if _is_one(column, str):
        return np.full(length, _set(field, column), dtype=np.int64)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        distinct, inverse = np.unique(column, return_inverse=True)
        return np.array([_set(field, bits) for bits in distinct], dtype=np.int64)[inverse]
    known: dict[Any, int] = {}
    keys = [tuple(v) if isinstance(v, (list, tuple, np.ndarray)) else v for v in column]
    for key in keys:
        if key not in known:
            known[key] = _set(field, key)
    return np.array([known[key] for key in keys], dtype=np.int64)


def _set(field: StrategyField, value: Any) -> int:
    if isinstance(value, (int, np.integer)):
        if not 0 <= value < 1 << len(field.words):
            raise _bad_value(field.name, np.array([value]), np.array([True]), "no set")
        return int(value)
    if field.optional and _is_open(value):
        return 0
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        return _bits_of_words(field.name, value)
    return field.word_type.bits(_validated(field.name, value))


@lru_cache(1024)
def _bits_of_words(name: str, words: tuple[str, ...]) -> int:
    return FIELDS[name].word_type.bits(_validated(name, words))


def _validated(name: str, value: Any) -> Any:
    """A value as the field of a strategy has it."""
    return getattr(Strategy.validated({name: value}, source="columns"), name)


def _number_lists(name: str, column: Any, length: int) -> tuple[Ints, tuple[tuple[int, ...], ...]]:
    """Positions of lists of numbers, such as layers by stage, -1 for None, and the lists."""

    def read(value: Any) -> Any:
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        return _validated(name, list(value) if is_list else value)

    return _listed(column, length, int, read)


def _extent_lists(column: object, length: int) -> tuple[Ints, tuple[str, ...]]:
    """Positions of extents, -1 for None, and their texts."""
    return _listed(column, length, Mapping, lambda value: str(_validated("extents", value)))


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
        is_complete = isinstance(plain, (str, list, tuple, dict))  # others may be cut short
        try:
            written = repr(plain) if is_complete else str(row)
        except ValueError:  # a number of thousands of digits
            written = str(row)
        if written not in known:
            one = read(value)
            known[written] = -1 if one is None else found.setdefault(one, len(found))
        codes[row] = known[written]
    return codes, tuple(found)


def _is_single(column: Any) -> bool:
    """Whether a column is one value for all rows."""
    return not isinstance(column, (list, tuple)) and not np.ndim(column)


def _is_open(value: object) -> bool:
    """Whether a list was left open: None, a data frame's null, or no entry of `to_columns`."""
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value)


def _numbers(field: StrategyField, column: Any, length: int) -> Floats:
    array = _filled(field.name, column, length, 0) if field.optional else column
    array = _broadcast(field.name, array, length)
    if array.dtype.kind not in "iuf":
        raise InputError(Fault(source="columns", field=field.name, problem="must be numbers"))
    array = array.astype(np.float64)
    inside = (array >= field.least) & (array <= field.most)
    wrong = ~(inside | (array == 0) if field.optional else inside)
    if np.any(wrong):
        problem = f"must be from {field.least:g} to {field.most:g}"
        raise _bad_value(field.name, array, wrong, problem)
    return array


def _filled(name: str, column: Any, length: int, nothing: int) -> Any:
    """A column with a number in place of None, and of a data frame's nulls."""
    array: Any = _broadcast(name, nothing if column is None else column, length)
    if array.dtype == object:
        _refuse_flags(name, array.tolist())
        return np.array([nothing if value is None else value for value in array.tolist()])
    return np.where(np.isnan(array), nothing, array) if array.dtype.kind == "f" else array


def _flags(field: StrategyField, column: Any, length: int) -> Bools:
    if isinstance(column, bool):
        return np.full(length, column)
    array = _broadcast(field.name, column, length)
    if array.dtype.kind != "b" and length:
        raise InputError(Fault(field=field.name, problem="must be true or false"))
    return array.astype(np.bool_)


def _fill_tp_exchange(found: dict[str, Any], sequence_parallel: Any, length: int) -> None:
    """Fill in `tp_exchange` from `sequence_parallel`, or from whether there is a group at all."""
    parallel: Bools = found["tp"] > 1
    if sequence_parallel is not None:
        parallel = _flags(FIELDS["sequence_parallel"], sequence_parallel, length)
        if "tp_exchange" in found:
            wrong = parallel != (found["tp_exchange"] == TpExchange.RS_AG.code)
            if np.any(wrong):
                problem = "contradicts tp_exchange; give one"
                raise _bad_value("sequence_parallel", parallel, wrong, problem)
    split = np.full(length, TpExchange.RS_AG.code)
    if sequence_parallel is None:
        split = _usual_codes(found, "tp_exchange", TpExchange.RS_AG)
    found.setdefault("tp_exchange", np.where(parallel, split, TpExchange.ALL_REDUCE.code))


def _usual_codes(found: Mapping[str, Any], name: str, usual: Word) -> Ints:
    """Codes of a word that follows from others, by stack."""
    return _of_stack(found, lambda stack: stack.field_defaults.get(name, usual).code)


def _unnamed_dispatchers(column: Any, length: int) -> tuple[Bools, Any]:
    """Rows that name no dispatcher, and the column with some word in these."""
    if _is_single(column):
        return np.full(length, _is_open(column)), None if _is_open(column) else column
    named = np.array([not _is_open(item) for item in column], dtype=np.bool_)
    usual: object = Dispatcher.ALL_TO_ALL
    filled = [item if is_named else usual for item, is_named in zip(column, named, strict=True)]
    return ~named, column if named.all() else filled


def default_dispatchers(model: Model, columns: Mapping[str, Any]) -> Ints:
    """Codes of the dispatchers of rows that name none: those of their stacks where tokens are sent.

    Parameters
    ----------
    columns
        `stack`, `stacks`, `ep` and `etp` of a `Table`.
    """
    sends = (columns["ep"] * columns["etp"] > 1) & model.has_experts
    usual = _of_stack(columns, lambda stack: stack.dispatcher.code)
    return np.where(sends, usual, Dispatcher.ALL_TO_ALL.code)


def _codes(field: StrategyField, column: Any, length: int) -> Ints:
    """Turn words (or codes already) into codes."""
    name, known = field.name, field.words
    if isinstance(column, str) and column in known:
        return np.full(length, known.index(column), dtype=np.int64)
    array = _broadcast(name, column, length)
    if array.dtype.kind in "iu":
        wrong = (array < 0) | (array >= len(known))
        if np.any(wrong):
            raise _bad_value(name, array, wrong, f"positions reach from 0 to {len(known) - 1}")
        return array.astype(np.int64)
    wrong = np.array([not isinstance(value, str) for value in array.tolist()], dtype=np.bool_)
    if np.any(wrong):
        raise _bad_value(name, array, wrong, f"must be a word; allowed: {', '.join(known)}")
    if isinstance(column, str):
        array = np.asarray([column])
    distinct, inverse = np.unique(array.astype(str), return_inverse=True)
    canonical = [word if word in known else _validated(name, word) for word in distinct.tolist()]
    positions = np.asarray([known.index(word) for word in canonical], dtype=np.int64)
    return np.broadcast_to(positions[inverse], (length,)).astype(np.int64)


def _stacks(column: object, length: int) -> tuple[Ints, tuple[Stack, ...]]:
    if isinstance(column, (str, Mapping, Stack)):
        return np.zeros(length, dtype=np.int64), (_stack(column),)
    if isinstance(column, (list, tuple)):  # numpy would look into each of them
        column = np.fromiter(column, dtype=object, count=len(column))
    column = np.broadcast_to(np.asarray(column, dtype=object), (length,))
    by_item: dict[object, int] = {}  # by name, or by identity of what is not a name
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
    return codes, tuple(stacks) or (_stack(DEFAULT_STACK),)


def _with_default_stack(
    column: Any, deciding: Mapping[str, Any], on: System | str, model: Model
) -> Any:
    """A stack, or a column of them; what is None or describes software is that on the system.

    What is described may depend on other columns: those of `DECIDING_FIELDS` that are set.
    """

    def found(item: Any, stated: Mapping[str, Any]) -> Any:
        return stack_on(item, on, model, stated) if item is None or is_description(item) else item

    several = {name: one for name, one in deciding.items() if not _is_single(one)}
    if _is_single(column) and (not several or not is_description(column)):
        return found(column, {name: _plain_word(name, one) for name, one in deciding.items()})
    rows = len(next(iter(several.values()))) if _is_single(column) else len(column)
    columns = {n: one if n in several else [one] * rows for n, one in deciding.items()}
    items = [column] * rows if _is_single(column) else column
    by_words: dict[tuple[Any, ...], Any] = {}
    stacks = []
    for item, *values in zip(items, *columns.values(), strict=False):
        key = (item if isinstance(item, str) else id(item), *map(str, values))
        if key not in by_words:
            words = zip(columns, values, strict=False)
            by_words[key] = found(item, {name: _plain_word(name, one) for name, one in words})
        stacks.append(by_words[key])
    return stacks


def _plain_word(name: str, value: Any) -> Any:
    """A value as Python has it; a code of a word as the word.

    What is no value of the field stays for the reading of its column to refuse.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    words = FIELDS[name].words if FIELDS[name].kind is Kind.WORD else ()
    is_code = isinstance(plain, int) and not isinstance(plain, bool) and 0 <= plain < len(words)
    return words[plain] if is_code else plain


def _stack_defaults(column: Any, given: AbstractSet[str]) -> dict[str, Any]:
    """Defaults of the stacks of fields that no column sets, and that follow from no other."""
    one = _is_single(column)
    codes, stacks = _stacks(column, 1 if one else len(column))
    defaults = [stack.field_defaults for stack in stacks]
    names = {name for one_of in defaults for name in one_of} - given
    found: dict[str, Any] = {}
    for name in sorted(name for name in names if not FIELDS[name].role.implied):
        by_stack = [one_of.get(name, _DEFAULTS[name]) for one_of in defaults]
        found[name] = by_stack[0] if len(stacks) == 1 else [by_stack[code] for code in codes]
    return found


def _stack(item: Any) -> Stack:
    if isinstance(item, Stack):
        return item
    if isinstance(item, str) and catalog.find("stacks", item):
        return Stack.load(item)
    return Stack.load(_validated("stack", item))


def _fill_degrees(found: dict[str, Any], model: Model, length: int) -> None:
    """Fill in `dp` or `gpus` from the other degrees, and `seq_len` from the model."""
    # In floating point, which does not wrap around: 2^31 three times over is too much for int64.
    product = 1.0 * found["tp"] * found["tp2"] * found["pp"] * found["cp"]
    if "gpus" not in found and "dp" not in found:
        raise InputError(Fault(field="gpus", problem=MISSING["gpus"]))
    if "dp" not in found:
        found["dp"] = np.maximum(found["gpus"] // product, 1).astype(np.int64)
    if "gpus" not in found:
        gpus = found["dp"] * product
        if np.any(gpus > MOST):
            problem = f"with tp x tp2 x pp x cp makes more than {MOST} GPUs"
            raise _bad_value("dp", found["dp"], gpus > MOST, problem)
        found["gpus"] = gpus.astype(np.int64)
    if "seq_len" not in found:
        if model.seq_len is None:
            problem = f"is missing: model {model.name} names none"
            raise InputError(Fault(field="seq_len", problem=problem))
        found["seq_len"] = np.full(length, model.seq_len, dtype=np.int64)
    if "global_batch_size" not in found:
        problem = MISSING["global_batch_size"]
        raise InputError(Fault(field="global_batch_size", problem=problem))


def numbers_for(name: str, values: Sequence[object]) -> Any:
    """Values of a field as `columns_of` reads them fastest: words and sets as numbers.

    Lists and stacks stay as they are; if all are None, they are NaN.
    """
    field = FIELDS[name]
    if field.kind in _READ:
        return _READ[field.kind](field, [*values], len(values))
    if all(value is None for value in values):
        return np.full(len(values), np.nan)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


_ITEMS = {"stage_layers": int, "data_lengths": int, "extents": Mapping}
_READ: dict[Kind, Callable[[StrategyField, Any, int], Any]] = {
    Kind.WHOLE: _integers,
    Kind.TIER: _integers,
    Kind.NUMBER: _numbers,
    Kind.FLAG: _flags,
    Kind.WORD: _codes,
    Kind.SET: _sets,
}
_READERS = {name: _READ[field.kind] for name, field in FIELDS.items() if field.kind in _READ}
_READ_LISTS: dict[str, Callable[[Any, int], tuple[Ints, Any]]] = {
    "stage_layers": partial(_number_lists, "stage_layers"),
    "data_lengths": partial(_number_lists, "data_lengths"),
    "extents": _extent_lists,
    "stack": _stacks,
}

"""`Table`: strategies as columns, one row each; the form that every formula works on."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise import strategy as words
from shardwise.arrays import Bools, Ints
from shardwise.errors import Fault, InputError, nearest
from shardwise.model import Model
from shardwise.stack import Stack
from shardwise.strategy import SHORT_NAMES, TIER_FIELDS, Strategy

__all__ = ["CHOICES", "Table"]

CHOICES = ("zero", "dp_overlap", "offload_optimizer")
"""Columns that neither a layer's cost nor the schedule depends on."""

_INTEGERS = (
    "gpus",
    "tp",
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
)
_BOOLEANS = (
    "training",
    "tp_regather",
    "dp_overlap",
    "fused_activation",
    "offload_weights",
    "offload_activations",
    "offload_optimizer",
)
_WORDS = {
    "dtype": words.DTYPES,
    "attention": words.ATTENTIONS,
    "recompute": words.RECOMPUTES,
    "schedule": words.SCHEDULES,
    "placement": words.PLACEMENTS,
    "tp_exchange": words.TP_EXCHANGES,
    "tp_overlap": words.TP_OVERLAPS,
}
_SEQUENCE_PARALLEL = words.TP_EXCHANGES.index("rs_ag")
_ALL_REDUCE = words.TP_EXCHANGES.index("all_reduce")
_MOST = 2**31  # beyond it products of degrees would leave the exact integers of a float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Resolved strategies as columns of equal length.

    Columns of words hold the position of the word in `strategy.DTYPES`, `ATTENTIONS`, `RECOMPUTES`,
    `SCHEDULES`, `PLACEMENTS`, `TP_EXCHANGES`, `TP_OVERLAPS`; `stack` the position in `stacks`;
    those of tiers -1 where the placement decides. `with_choices` tries several values on all rows.
    """

    gpus: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    vpp: Ints
    micro_batch_size: Ints
    global_batch_size: Ints
    seq_len: Ints
    zero: Ints
    training: Bools
    tp_regather: Bools
    dp_overlap: Bools
    fused_activation: Bools
    offload_weights: Bools
    offload_activations: Bools
    offload_optimizer: Bools
    dtype: Ints
    attention: Ints
    recompute: Ints
    schedule: Ints
    placement: Ints
    tp_exchange: Ints
    tp_overlap: Ints
    tp_tier: Ints
    cp_tier: Ints
    dp_tier: Ints
    pp_tier: Ints
    stack: Ints
    stacks: tuple[Stack, ...]

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def sequence_parallel(self) -> Bools:
        """Whether norms and residuals are split along the sequence."""
        return self.tp_exchange == _SEQUENCE_PARALLEL

    @property
    def micro_batches(self) -> Ints:
        """Micro-batches of one replica in a step."""
        return self.global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def optimizer_shards(self) -> Ints:
        """Replicas that the optimizer state is split over."""
        return np.where(self.zero >= 1, self.dp, 1)

    def take(self, index: Ints | Bools | slice) -> "Table":
        """Return some of the rows, with every choice."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "stacks"}
        taken = {n: column if column.ndim > 1 else column[index] for n, column in columns.items()}
        return Table(**taken, stacks=self.stacks)

    def replaced(self, other: "Table", names: Iterable[str]) -> "Table":
        """Take some columns from another table of as many rows; not `stack`."""
        columns: dict[str, Any] = {name: getattr(other, name) for name in names}
        return replace(self, **columns)

    @staticmethod
    def joined(tables: "Sequence[Table]") -> "Table":
        """Rows of several tables of the same stacks, one after the other."""
        names = [f.name for f in fields(Table) if f.name != "stacks"]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in names
        }
        return Table(**columns, stacks=tables[0].stacks)

    def with_choices(self, choices: Mapping[str, NDArray[Any]]) -> "Table":
        """Try several values of `CHOICES` on every row.

        These columns then have shape (choices, 1), and whatever depends on them (choices, rows):
        what does not is still evaluated once a row.
        """
        columns: dict[str, Any] = {name: column[:, np.newaxis] for name, column in choices.items()}
        return replace(self, **columns)

    def chosen(self, index: Ints) -> "Table":
        """Return every row with some of the choices."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in CHOICES}
        return replace(self, **columns)

    def strategy(self, row: int) -> Strategy:
        """Return one row as a `Strategy`."""
        values: dict[str, Any] = {}
        for name in _INTEGERS:
            values[name] = int(getattr(self, name)[row])
        for name in _BOOLEANS:
            values[name] = bool(getattr(self, name)[row])
        for name, known in _WORDS.items():
            values[name] = known[int(getattr(self, name)[row])]
        for name in TIER_FIELDS:
            tier = int(getattr(self, name)[row])
            values[name] = tier if tier >= 0 else None
        values["sequence_parallel"] = bool(self.sequence_parallel[row])
        return Strategy(**values, stack=self.stacks[int(self.stack[row])])

    def to_columns(self) -> dict[str, Any]:
        """Return the columns by field of `Strategy`, words as words, tiers not given as NaN."""
        columns: dict[str, Any] = {}
        for name in Strategy.model_fields:
            column = getattr(self, name)
            if name in _WORDS:
                column = np.array(_WORDS[name])[column]
            elif name in TIER_FIELDS:
                column = np.where(column < 0, np.nan, column)
            elif name == "stack":
                column = np.array([stack.name for stack in self.stacks])[column]
            columns[name] = column
        return columns

    @classmethod
    def of(cls, model: Model, rows: "Mapping[str, Any] | Sequence[Strategy] | Any") -> "Table":
        """Build a table from strategies, a mapping of columns, or a data frame.

        Columns that are not given take the defaults of `Strategy`; a single value holds for all
        rows.

        Raises
        ------
        InputError
            If a column is unknown, of the wrong type, or of another length than the others.
        """
        if isinstance(rows, Table):
            return rows
        if isinstance(rows, Mapping):
            return cls._of_columns(model, rows)
        if isinstance(rows, Strategy):
            rows = [rows]
        if isinstance(rows, Sequence) and not isinstance(rows, str):
            if all(isinstance(row, (Strategy, Mapping)) for row in rows):
                resolved = [Strategy.load(row).resolved(model) for row in rows]
                return cls._of_columns(model, _columns_of(resolved))
        elif hasattr(rows, "to_numpy") and hasattr(rows, "columns"):
            return cls._of_columns(model, {name: rows[name].to_numpy() for name in rows.columns})
        problem = "a table is a mapping of columns, a data frame, or a list of strategies"
        raise InputError(Fault(source="strategies", value=rows, has_value=True, problem=problem))

    @classmethod
    def _of_columns(cls, model: Model, given: Mapping[str, Any]) -> "Table":
        columns = {n: Strategy.model_fields[n].default for n in Strategy.model_fields}
        twice = [name for alias, name in SHORT_NAMES.items() if alias in given and name in given]
        if twice:
            raise InputError(
                [Fault(field=n, problem="is given twice, by two names") for n in twice]
            )
        named = {SHORT_NAMES.get(n, n): column for n, column in given.items() if column is not None}
        columns |= named
        unknown = [name for name in columns if name not in Strategy.model_fields]
        if unknown:
            known = list(Strategy.model_fields)
            faults = [Fault(field=n, problem=f"unknown column{nearest(n, known)}") for n in unknown]
            raise InputError(faults)
        given = {name: column for name, column in columns.items() if column is not None}
        length = _common_length(given)
        integers = {
            n: _integers(n, given[n], length, least=0 if n == "zero" else 1)
            for n in _INTEGERS
            if n in given
        }
        _fill_degrees(integers, model, length)
        flags = {n: _booleans(n, given[n], length) for n in _BOOLEANS if n in given}
        codes = {n: _codes(n, given[n], known, length) for n, known in _WORDS.items() if n in given}
        interleaved = words.SCHEDULES.index("interleaved")
        codes.setdefault("schedule", np.where(integers["vpp"] > 1, interleaved, 0))
        _fill_exchange(codes, given, integers["tp"] > 1, length)
        tiers = {name: _tiers(name, columns[name], length) for name in TIER_FIELDS}
        stack, stacks = _stacks(given["stack"], length)
        filled: dict[str, Any] = integers | codes | flags | tiers
        return cls(**filled, stack=stack, stacks=stacks)


def _columns_of(strategies: Sequence[Strategy]) -> dict[str, Any]:
    names = list(Strategy.model_fields)
    return {name: [getattr(row, name) for row in strategies] for name in names}


def _common_length(columns: Mapping[str, Any]) -> int:
    lengths = {n: len(c) for n, c in columns.items() if np.ndim(c) or isinstance(c, (list, tuple))}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(Fault(field="columns", problem=f"differ in length: {told}"))
    return next(iter(lengths.values()), 1)


def _broadcast(name: str, column: Any, length: int) -> Any:
    array = np.asarray(column)
    if array.ndim > 1:
        raise InputError(Fault(field=name, problem="a column has one dimension"))
    return np.broadcast_to(array, (length,))


def _integers(name: str, column: Any, length: int, least: int = 1) -> Ints:
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
    wrong = (array < least) | (array > _MOST)
    if np.any(wrong):
        raise _bad_value(name, array, wrong, f"must be from {least} to {_MOST}")
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


def _booleans(name: str, column: Any, length: int) -> Bools:
    array = _broadcast(name, column, length)
    if array.dtype.kind != "b" and length:
        raise InputError(Fault(field=name, problem="must be true or false"))
    return array.astype(np.bool_)


def _tiers(name: str, column: Any, length: int) -> Ints:
    """Positions of tiers, -1 for None."""
    if column is None:
        return np.full(length, -1, dtype=np.int64)
    array: Any = _broadcast(name, column, length)
    if array.dtype == object:
        array = np.array([-1 if value is None else value for value in array.tolist()])
    elif array.dtype.kind == "f":  # a data frame's nulls
        array = np.where(np.isnan(array), -1, array)
    return _integers(name, array, length, least=-1)


def _fill_exchange(
    codes: dict[str, Ints], given: Mapping[str, Any], splits: Bools, length: int
) -> None:
    """Fill in `tp_exchange` from `sequence_parallel`, or from whether there is a group at all."""
    if "sequence_parallel" not in given:
        parallel = splits
    else:
        parallel = _booleans("sequence_parallel", given["sequence_parallel"], length)
        if "tp_exchange" in codes:
            wrong = parallel != (codes["tp_exchange"] == _SEQUENCE_PARALLEL)
            if np.any(wrong):
                problem = "contradicts tp_exchange; give one"
                raise _bad_value("sequence_parallel", parallel, wrong, problem)
    codes.setdefault("tp_exchange", np.where(parallel, _SEQUENCE_PARALLEL, _ALL_REDUCE))


def _codes(name: str, column: Any, known: tuple[str, ...], length: int) -> Ints:
    """Turn words (or positions already) into positions."""
    array = _broadcast(name, column, length)
    if array.dtype.kind in "iu":
        wrong = (array < 0) | (array >= len(known))
        if np.any(wrong):
            raise _bad_value(name, array, wrong, f"positions reach from 0 to {len(known) - 1}")
        return array.astype(np.int64)
    if isinstance(column, str):
        array = np.asarray([column])
    distinct, inverse = np.unique(array.astype(str), return_inverse=True)
    canonical = [
        getattr(Strategy.validated({name: word}, source="columns"), name)
        for word in distinct.tolist()
    ]
    positions = np.asarray([known.index(word) for word in canonical], dtype=np.int64)
    return np.broadcast_to(positions[inverse], (length,)).astype(np.int64)


def _stacks(column: Any, length: int) -> tuple[Ints, tuple[Stack, ...]]:
    if isinstance(column, (str, Mapping, Stack)):
        return np.zeros(length, dtype=np.int64), (_stack(column),)
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
    return codes, tuple(stacks)


def _stack(item: Any) -> Stack:
    return Stack.load(Strategy.validated({"stack": item}, source="columns").stack)


def _fill_degrees(integers: dict[str, Ints], model: Model, length: int) -> None:
    # In floating point, which does not wrap around: 2^31 three times over is too much for int64.
    product = 1.0 * integers["tp"] * integers["pp"] * integers["cp"]
    if "gpus" not in integers and "dp" not in integers:
        raise InputError(Fault(field="gpus", problem="is missing: give gpus or dp"))
    if "dp" not in integers:
        integers["dp"] = np.maximum(integers["gpus"] // product, 1).astype(np.int64)
    if "gpus" not in integers:
        integers["gpus"] = _integers("gpus", integers["dp"] * product, length)
    if "seq_len" not in integers:
        if model.seq_len is None:
            problem = f"is missing: model {model.name} names none"
            raise InputError(Fault(field="seq_len", problem=problem))
        integers["seq_len"] = np.full(length, model.seq_len, dtype=np.int64)
    if "global_batch_size" not in integers:
        raise InputError(Fault(field="global_batch_size", problem="is missing: give it (gbs)"))

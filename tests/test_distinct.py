"""What rows share is evaluated once: no column that a formula reads is missing from its key."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples, sampled
from shardwise import distinct, estimate_many
from shardwise.arrays import Bools, Ints, gather
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.cost import component_costs
from shardwise.distinct import Distinct, KnownRows, evaluate_distinct
from shardwise.engine.evaluate import evaluate
from shardwise.parallel.constraints import first_violation
from test_pairs import DERIVED, MODELS, SLOW_LAUNCHES, VALUES, machine, pairs, settled

pytestmark = pytest.mark.any_software


@dataclass(frozen=True)
class Rows:
    """Columns of small numbers."""

    a: Ints
    b: Ints
    c: Ints

    def __len__(self) -> int:
        return len(self.a)

    @property
    def odd(self) -> Bools:
        """Whether a is."""
        return self.a % 2 == 1

    def summed(self) -> Ints:
        """Of a method's own reads."""
        return self.a + self.c

    def take(self, rows: slice) -> "Rows":
        """Some of them."""
        return Rows(self.a[rows], self.b[rows], self.c[rows])

    def changed(self, **columns: Ints) -> "Rows":
        """With other columns."""
        return replace(self, **columns)


@dataclass(frozen=True)
class Keyed:
    """A record whose rows are compared by one key."""

    value: Ints
    key: Ints


def branching(rows: Rows) -> Ints:
    """Reads c only where some a is 3, and b only where some c is 2."""
    if not np.any(rows.a == 3):
        return 2 * rows.a
    if not np.any(rows.c == 2):
        return rows.summed()
    return np.where(rows.c == 2, 100 * rows.b, rows.take(slice(None)).a)


FORMULAS: dict[str, Callable[[Rows], Ints]] = {
    "branches": branching,
    "property": lambda rows: np.where(rows.odd, 7, 9),
    "changed": lambda rows: 10 * rows.changed(a=rows.b).odd + rows.b,
    "constant": lambda rows: np.full(len(rows), 5),
}


@examples(50)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12), st.sampled_from(list(FORMULAS)))
def test_every_row_has_the_result_of_its_own(rows: list[tuple[int, ...]], name: str) -> None:
    """As evaluated on all rows at once, whatever branches are taken and whatever they read."""
    table = Rows(*np.array([(0, 0, 0), *rows], dtype=np.int64)[1:].T)
    found = evaluate_distinct(FORMULAS[name], table)
    np.testing.assert_array_equal(found.of_all(), FORMULAS[name](table))
    if name == "property":
        assert len(found.values) <= 2
    if name == "constant" and rows:
        assert len(found.values) == 1


def test_only_what_is_read_tells_rows_apart() -> None:
    """A property counts as a column, and rows that agree in all that is read share one result."""
    table = Rows(a=np.array([1, 3, 2, 1]), b=np.arange(4), c=np.zeros(4, dtype=np.int64))
    assert len(evaluate_distinct(lambda rows: rows.a, table).values) == 3
    assert len(evaluate_distinct(lambda rows: 1 * rows.odd, table).values) == 2
    shared = Distinct(np.array([5.0, 6.0]), np.array([0, 1, 0, 1]))
    by_array = evaluate_distinct(lambda _, key: key, table, shared.position)
    assert by_array.of_all().tolist() == [0, 1, 0, 1]


def test_a_formula_is_evaluated_once_by_what_it_read_before() -> None:
    """The first call learns what it reads; later ones group rows by that at once."""
    calls: list[int] = []

    def formula(rows: Rows) -> Ints:
        calls.append(len(rows))
        return rows.a + rows.b

    table = Rows(a=np.array([1, 3, 3, 1]), b=np.array([0, 0, 1, 0]), c=np.arange(4))
    for _ in range(2):
        assert evaluate_distinct(formula, table).of_all().tolist() == [1, 3, 4, 1]
    assert calls == [1, 3, 3]


def test_known_rows_are_not_evaluated_again() -> None:
    """Equal rows once, in any call; after other branches only their own are kept."""
    evaluated: list[int] = []
    known: KnownRows[Any] = KnownRows()

    def results(*values: int) -> list[int]:
        column = np.array(values, dtype=np.int64)

        def formula(rows: Ints) -> tuple[Ints, ...]:
            some = column[rows]
            evaluated.extend(some.tolist())
            return (10 * some, some) if np.any(some > 8) else (10 * some,)

        found: list[int] = known.of([column], (), formula).of_all()[0].tolist()
        return found

    assert results(1, 2, 1) == [10, 20, 10]
    assert results(2, 3, 1) == [20, 30, 10]
    assert evaluated == [1, 2, 3]
    assert results(9, 1) == [90, 10]
    assert evaluated[3:] == [9, 9, 1]
    assert results(1, 9) == [10, 90]
    assert len(evaluated) == 6
    assert results() == []


def test_known_rows_of_many_calls() -> None:
    """Results of more calls than are saved one by one, which are joined on the way."""
    known: KnownRows[Any] = KnownRows()
    evaluated: list[int] = []

    def results(*values: int) -> list[int]:
        column = np.array(values, dtype=np.int64)

        def formula(rows: Ints) -> tuple[Ints, ...]:
            evaluated.extend(column[rows].tolist())
            return (10 * column[rows],)

        found: list[int] = known.of([column], (), formula).of_all()[0].tolist()
        return found

    assert [results(value) for value in range(100)] == [[10 * value] for value in range(100)]
    assert results(99, 0, 50, 100, 0) == [990, 0, 500, 1000, 0]
    assert evaluated == [*range(101)]


def test_known_rows_are_those_of_equal_figures() -> None:
    """What all rows of a call share is part of what a result depends on."""
    known: KnownRows[Any] = KnownRows()
    column = np.array([1, 2], dtype=np.int64)
    for factor in (1, 10, 1):
        found = known.of([column], (factor, "bf16"), lambda rows, f=factor: (f * column[rows],))
        assert found.of_all()[0].tolist() == [factor, 2 * factor]


@pytest.mark.parametrize("kind", MODELS)
def test_what_was_estimated_before_moves_no_estimate(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are all known, rows that are partly known and rows that are new: bit for bit."""
    rows, system = pairs()[::397], machine()

    def estimated(some: list[dict[str, Any]]) -> list[Any]:
        columns = {name: [row[name] for row in some] for name in rows[0]}
        found = estimate_many(MODELS[kind], system, columns)
        return [found.step_time_s, found.memory_reserved_bytes, found.refused]

    monkeypatch.setattr(distinct, "_known", {})
    first = estimated(rows)
    again = estimated(rows)
    monkeypatch.setattr(distinct, "_known", {})
    estimated(rows[::3])
    partly = estimated(rows)
    for other in (again, partly):
        for one, column in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, column)
    assert np.isfinite(first[0]).any()


def test_what_cannot_be_a_key_is_refused() -> None:
    """Columns of another length, columns inside columns, and views that outlive the formula."""
    kept: list[Any] = []

    def keeps(rows: Rows) -> Ints:
        kept.append(rows)
        return rows.a

    table = Rows(a=np.arange(3), b=np.arange(3)[:, np.newaxis], c=np.arange(3))
    with pytest.raises(TypeError, match="b has shape"):
        evaluate_distinct(lambda rows: rows.b.sum(axis=0) + rows.a, table)
    nested: Any = Rows(a=np.arange(3), b=np.arange(3), c=(np.arange(3),))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="c has columns of its own"):
        evaluate_distinct(lambda rows: rows.c[0] + rows.a, nested)
    evaluate_distinct(keeps, table)
    with pytest.raises(TypeError, match=r"Rows\.c is read after"):
        _ = kept[-1].c


def test_choices_are_the_same_in_all_rows() -> None:
    """Columns of shape (choices, 1) do not split rows; results have a row for each choice."""
    rows = Rows(a=np.array([1, 2, 1]), b=np.array([[5], [7]]), c=np.arange(3))
    found = evaluate_distinct(lambda some: some.a * some.b, rows, choices=True)
    assert found.values.tolist() == [[5, 10], [7, 14]]
    assert found.of_all().tolist() == [[5, 10, 5], [7, 14, 7]]


def test_rows_share_results_with_a_key_of_their_own() -> None:
    """Rows of keyed records that others share are distinguished by their positions."""
    record = Keyed(np.array([3, 4]), np.array([0, 1]))
    found = evaluate_distinct(
        lambda rows, one: rows.a + one.value,
        Rows(a=np.zeros(4, np.int64), b=np.zeros(4, np.int64), c=np.zeros(4, np.int64)),
        Distinct(record, np.array([1, 0, 1, 0])),
    )
    assert found.of_all().tolist() == [4, 3, 4, 3]
    assert len(found.values) == 2


class Reader:
    """Notes what a formula reads of some rows, by itself."""

    def __init__(self, record: Any, rows: Ints, read: set[str]) -> None:
        self.record, self.rows, self.read = record, rows, read

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(type(self.record), name, None)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        self.read.add(name)
        value = getattr(self.record, name)
        if isinstance(value, np.ndarray):
            return value[..., self.rows]
        return value.take(self.rows) if hasattr(value, "position") else value

    def take(self, rows: Any) -> "Reader":
        """Some of the rows."""
        return Reader(self.record, self.rows[rows], self.read)


# What every one field is changed on: the base of `VALUES`, and what gives other fields an effect.
BASES: list[dict[str, Any]] = [
    {},
    {
        "pp": 4,
        "last_stage_layers": 3,
        "quantization": "fp8_tensor",
        "recompute": "selective",
        "offload_activations": True,
    },
    {"cp": 2, "ep": 4, "lora_rank": 4, "stack": samples.stack(flash_fp32=True)},
    {"tp_exchange": "summa", "tp2": 2},
    {"zero": 3},
    {"zero": 3, "dp": 8, "global_batch_size": 64},  # as many micro-batches on more replicas
    {"stack": SLOW_LAUNCHES, "ep": 2, "quantization": "nvfp4"},
]


@cache
def legal_rows(kind: str) -> Table:
    """All values of all fields, each alone on every base."""
    first = {name: values[0] for name, values in VALUES.items()}
    told = [
        settled(first | base | {name: value})
        for base in BASES
        for name, values in VALUES.items()
        for value in values
    ]
    table = Table.of(MODELS[kind], {name: [row[name] for row in told] for name in told[0]})
    return table.take(first_violation(MODELS[kind], machine(), table) < 0)


def figures(kind: str, rows: Table) -> dict[str, Any]:
    """All figures of a table."""
    every = evaluate(MODELS[kind], machine(), rows)
    comm = {
        f"{axis} {place}": column
        for axis, both in every.comm_s.items()
        for place, column in enumerate(both)
    }
    memory = {field.name: getattr(every.memory, field.name) for field in fields(every.memory)}
    return every.time_s | comm | memory


@cache
def expected(kind: str) -> dict[str, Any]:
    """Figures of all rows."""
    return figures(kind, legal_rows(kind))


@pytest.mark.parametrize("kind", MODELS)
def test_rows_with_one_result_agree_in_all_that_was_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every formula whose results are shared in an estimate, as another recorder notes it."""
    seen: set[str] = set()

    def checked(formula: Callable[..., Any], *records: Any, choices: bool = False) -> Distinct[Any]:
        found = evaluate_distinct(formula, *records, choices=choices)
        firsts, position = np.unique(found.position, return_index=True)[1], found.position
        whole = [one.of_all() if isinstance(one, Distinct) else one for one in records]
        readers = [one if is_keyed(one) else Reader(one, firsts, set()) for one in whole]
        formula(*(gather(one, firsts) if is_keyed(one) else one for one in readers))
        for one in readers:
            for column in read_columns(one, seen):
                np.testing.assert_array_equal(column[..., firsts][..., position], column)
        return found

    replace_in_all_modules(monkeypatch, checked)
    for name, column in figures(kind, legal_rows(kind)).items():
        np.testing.assert_array_equal(column, expected(kind)[name])
    assert len(seen) > 40


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_rows_do_not_depend_on_the_block_they_are_in(
    kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs of few rows at a time are those of all rows at once, bit by bit.

    Of as many blocks, whatever their size: of some rows only, if blocks are small.
    """
    usual, some = expected(kind), slice(0, None, 64 // block // 4 or 1)
    monkeypatch.setattr(component_costs, "BLOCK", block)
    for name, column in figures(kind, legal_rows(kind).take(some)).items():
        np.testing.assert_array_equal(column, usual[name][some])


def replace_in_all_modules(monkeypatch: pytest.MonkeyPatch, other: Callable[..., Any]) -> None:
    """Put another function in the place of `evaluate_distinct`."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("shardwise.") and hasattr(module, "evaluate_distinct"):
            monkeypatch.setattr(module, "evaluate_distinct", other)


def is_keyed(record: Any) -> bool:
    """Whether a record is told apart as a whole."""
    return isinstance(record, (np.ndarray, tuple)) or hasattr(type(record), "key")


def read_columns(record: Any, seen: set[str]) -> Iterator[np.ndarray]:
    """Columns in which rows must agree to share a result."""
    if is_keyed(record):
        first = record[0] if isinstance(record, tuple) else record
        yield first if isinstance(first, np.ndarray) else first.key
        return
    for name in record.read:
        column = getattr(record.record, name)
        column = getattr(column, "position", column)
        if isinstance(column, np.ndarray):
            seen.add(name)
            yield column


# These follow from other columns of the same keys, or change nothing that others do not.
REDUNDANT = {
    *("gpus", "tp", "tp2", "cp", "dp", "vpp", "etp", "summa"),
    *("hidden", "panels", "fused_attention", "fuses_experts"),
    *("replicas", "expert_replicas"),  # each makes up for the other
    # rows here have no second memory tier
    *("offload_optimizer", "updates_on_host", "offload_nvme"),
    "runs_reference",  # rows here that differ in it differ in others that are read with it
    *("captured_modules", "captures_step", "own_graph_pools"),  # from graphs, as it is
    "offload_activations",  # from what graphs capture
    "sends_once",  # from dispatcher, ep and etp, which are read with it where times are
}


def test_each_column_that_is_read_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of them in the keys, some row gets the figures of another."""
    read: set[tuple[type, str]] = set()
    source = distinct._Source  # noqa: SLF001 - mutated on purpose
    original = source.read, source.keys

    def noted(self: Any, name: str) -> Any:
        value = original[0](self, name)
        if isinstance(getattr(value, "position", value), np.ndarray):
            read.add((self.kind, name))
        return value

    usual = {kind: expected(kind) for kind in MODELS}  # before any key is left out
    monkeypatch.setattr(source, "read", noted)
    for kind in MODELS:
        figures(kind, legal_rows(kind))
    monkeypatch.setattr(source, "read", original[0])

    def is_noticed(left_out: tuple[type, str]) -> bool:
        def keys(self: Any, count: int) -> list[Any]:
            kept = self.columns
            if self.kind is left_out[0]:
                self.columns = {name: v for name, v in kept.items() if name != left_out[1]}
            found = original[1](self, count)
            self.columns = kept
            return found

        monkeypatch.setattr(source, "keys", keys)
        for kind in MODELS:
            found = figures(kind, legal_rows(kind))
            if any(
                not np.allclose(found[n], c, rtol=1e-12, atol=0) for n, c in usual[kind].items()
            ):
                return True
        return False

    columns = sampled(sorted(read, key=lambda one: (one[0].__name__, one[1])), 8)
    unnoticed = {name for kind, name in columns if not is_noticed((kind, name))}
    assert unnoticed <= REDUNDANT, unnoticed - REDUNDANT
    assert len(read) > 50


@pytest.mark.parametrize("kind", MODELS)
def test_rows_that_differ_in_one_field_share_nothing_that_differs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values of all fields in one table: as without sharing, and some rows as alone."""
    assert set(VALUES) | DERIVED == set(Strategy.model_fields)
    rows, shared = legal_rows(kind), expected(kind)
    assert len(rows) > 300
    for row in sampled(range(0, len(rows), 25)):
        one = figures(kind, rows.take(slice(row, row + 1)))
        assert {n: c[0] for n, c in one.items()} == {n: c[row] for n, c in shared.items()}

    def unshared(
        formula: Callable[..., Any],
        *records: Any,
        choices: bool = False,  # noqa: ARG001
    ) -> Distinct[Any]:
        whole = [one.of_all() if isinstance(one, Distinct) else one for one in records]
        return Distinct(formula(*whole), np.arange(len(rows)))

    replace_in_all_modules(monkeypatch, unshared)
    for name, column in figures(kind, rows).items():
        np.testing.assert_array_equal(column, shared[name])

"""Whether one row is legal, known from rows that agree with it in every column that a test reads.

Estimates of one model on one system mostly differ in few columns, so that most tests are known.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from threading import Lock
from types import FunctionType, MethodType
from typing import Any, cast

import numpy as np

from shardwise.config.model import Model
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import known_of
from shardwise.parallel.constraints.constraint import Constraint, Test

# Rows that a test is known to pass.
_MOST_ROWS = 1 << 10
_LISTS = ("stage_lists", "extent_lists", "length_lists")
_columns, _lists = attrgetter(*COLUMNS), attrgetter(*_LISTS)
_Values = Callable[[Mapping[str, object]], object]


def known_legal(
    model: Model, system: System, table: Table, constraints: Iterable[Constraint]
) -> bool:
    """Whether a table of one row is seen to obey all constraints; False: it may obey them or not.

    Rows that avoid what was reported, and those on several systems, are not seen to.
    """
    if len(table.stacks) > 1 or table.systems is not None or table.named is not None:
        return False
    passed = known_of(partial(_Passed, table, constraints), _Passed, model, system, *table.stacks)
    return passed.by(model, system, table)


class _Passed:
    """Values of columns with which tests are passed."""

    def __init__(self, table: Table, constraints: Iterable[Constraint]) -> None:
        self._known: list[tuple[Test, dict[frozenset[str], tuple[_Values, set[object]]]]] = [
            (test, {}) for constraint in constraints for test in constraint.tests(table)
        ]
        self._lock = Lock()

    def by(self, model: Model, system: System, table: Table) -> bool:
        """Whether a table of one row passes every test."""
        numbers = np.concatenate(_columns(table)).tolist()
        row = dict(zip((*COLUMNS, *_LISTS), (*numbers, *_lists(table)), strict=True))
        with self._lock:
            for test, known in self._known:
                if any([values(row) in rows for values, rows in known.values()]):
                    continue
                seen = _Seen(table, set())
                if test(model, system, cast("Table", seen))[0]:
                    return False
                names = frozenset(seen.names & row.keys())
                _, rows = known.setdefault(names, (_values_of(names), set()))
                if len(rows) >= _MOST_ROWS:
                    rows.clear()
                rows.add(known[names][0](row))
        return True


def _values_of(names: frozenset[str]) -> _Values:
    return itemgetter(*names) if names else lambda _: None


class _Seen:
    """A table whose columns that a test reads are recorded; its properties read them through it."""

    def __init__(self, table: Table, names: set[str]) -> None:
        self._table, self.names = table, names

    def __len__(self) -> int:
        return len(self._table)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(Table, name)
        if isinstance(attribute, property):
            return attribute.__get__(self)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        self.names.add(name)
        return getattr(self._table, name)

    def take(self, index: Any) -> "_Seen":
        """Show some of the rows."""
        return _Seen(self._table.take(index), self.names)

    def changed(self, **columns: Any) -> "_Seen":
        """Show other columns in the place of some."""
        return _Seen(self._table.changed(**columns), self.names)

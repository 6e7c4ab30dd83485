"""Tables of cases: all rows in one test, or the first rows alone except in .ci/nightly."""

import functools
import inspect

import pytest

__all__ = ["each_row", "first_of"]


def each_row(names, rows):
    """Run a test for every row, as `pytest.mark.parametrize` does, but as one test.

    All rows run. Those that fail are raised together, each with its values. A test that needs
    fixtures of its own for each row (`tmp_path`, `monkeypatch`) stays with parametrize.
    """
    is_single = isinstance(names, str) and "," not in names
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [(row,) if is_single else tuple(row) for row in rows]
    assert rows, "a table without rows tests nothing"

    def decorate(test):
        @functools.wraps(test)
        def of_all_rows(*args, **fixtures):
            failures = []
            for row in rows:
                values = dict(zip(names, row, strict=True))
                try:
                    test(*args, **fixtures, **values)
                except Exception as failure:  # noqa: BLE001 - all rows are to run
                    failure.add_note(f"with {values}")
                    failures.append(failure)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} rows", failures)

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in names]
        of_all_rows.__signature__ = signature.replace(parameters=others)
        return of_all_rows

    return decorate


def first_of(count, cases):
    """Parameters of a test: the first `count` run with every change, the rest in .ci/nightly."""
    rest = [case if isinstance(case, tuple) else (case,) for case in list(cases)[count:]]
    nightly = pytest.mark.nightly
    return [*list(cases)[:count], *(pytest.param(*case, marks=nightly) for case in rest)]

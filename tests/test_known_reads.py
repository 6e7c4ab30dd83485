"""Single rows: what is known of rows that agree in all that a formula read of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwise import InputError, distinct, estimate
from shardwise.arrays import equal
from shardwise.config.strategy_table import Table
from shardwise.config.system_columns import SystemColumns, with_figures
from shardwise.distinct import KnownReads, SeenRow
from shardwise.engine.evaluate import evaluate
from shardwise.parallel.constraints import first_violation, known_legal
from test_distinct import Rows
from test_pairs import MODELS, machine, pairs

pytestmark = pytest.mark.any_software


def one_row(a: int, b: int = 0, c: int = 0) -> Rows:
    """A single row."""
    return Rows(*(np.array([number]) for number in (a, b, c)))


def test_a_seen_row_records_the_columns_behind_properties_and_methods() -> None:
    """Also those of rows that were taken from it, and of rows with other columns."""
    for read, names in (
        (lambda row: row.odd, {"a"}),
        (lambda row: row.summed(), {"a", "c"}),
        (lambda row: row.take(slice(0, 1)).b, {"b"}),
        (lambda row: row.changed(a=row.c).odd, {"a", "c"}),
        (len, set()),
    ):
        seen: set[str] = set()
        read(SeenRow(one_row(1), seen))
        assert seen == names


def test_results_are_known_of_rows_that_agree_in_what_was_read() -> None:
    """Rows of other branches read other columns; of all results the latest are saved."""
    known: KnownReads[int] = KnownReads()
    calls = []

    def result(a: int, b: int, c: int) -> int:
        row = {"a": a, "b": b, "c": c}
        found = known.find(row)
        if found is None:
            calls.append(row)
            names = {"a", "b"} if a else {"a", "c", "elsewhere"}
            found = 100 * a + (b if a else c)
            known.save(row, names, found, most=2)
        return found

    assert [result(1, 2, c) for c in (3, 4)] == [102, 102]
    assert [result(0, b, 5) for b in (3, 4)] == [5, 5]
    assert len(calls) == 2
    assert [result(1, b, 0) for b in (3, 4, 2)] == [103, 104, 102]
    assert len(calls) == 5


@pytest.mark.parametrize("kind", MODELS)
def test_single_rows_are_the_same_whatever_is_known(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules and costs, of rows that differ in few fields from others: bit for bit."""
    model, system = MODELS[kind], machine()
    rows = [Table.of(model, {name: [v] for name, v in row.items()}) for row in pairs()[::1499]]
    legal = [first_violation(model, system, row)[0] < 0 for row in rows]
    assert True in legal
    for _ in range(2):
        found = [known_legal(model, system, row) for row in rows]
        assert found == legal
    usable = [row for row, is_legal in zip(rows, legal, strict=True) if is_legal]
    saved = [[evaluate(model, system, row) for row in usable] for _ in range(2)]
    for n, row in enumerate(usable):
        monkeypatch.setattr(distinct, "_known", {})
        fresh = evaluate(model, system, row)
        for one in (saved[0][n], saved[1][n]):
            assert equal(one.time_s["forward"], fresh.time_s["forward"])
            assert equal(one.step_time_s, fresh.step_time_s)
            assert equal(one.memory, fresh.memory)
            assert equal(one.step.costs, replace(fresh.step.costs, key=one.step.costs.key))
        monkeypatch.undo()


@pytest.mark.parametrize("kind", MODELS)
def test_rows_on_several_networks_are_those_on_each_system(kind: str) -> None:
    """Alone, saved and together: bit for bit, and the row itself as without other networks."""
    model, system = MODELS[kind], machine()
    rows = [Table.of(model, {name: [v] for name, v in row.items()}) for row in pairs()[::2999]]
    rows = [row for row in rows if first_violation(model, system, row)[0] < 0]
    last, factors = len(system.network) - 1, np.array([1.0, 0.5, 2.0])
    path = "network", last, "bandwidth"
    rates = system.network[last].bandwidth * factors
    networks = SystemColumns(base=system, figures={path: rates}, count=3)
    systems = [with_figures(system, {path: rate}) for rate in rates.tolist()]
    together = evaluate(model, system, Table.joined(rows), networks)
    for n, row in enumerate(rows):
        alone = evaluate(model, system, row)
        each = [evaluate(model, one, row).step_time_s[0] for one in systems]
        for _ in range(2):
            one = evaluate(model, system, row, networks)
            assert one.network_step_s is not None
            assert one.network_step_s[:, 0].tolist() == each
            parts = [
                (x.step.costs, x.step.critical, x.step.extents, x.memory) for x in (one, alone)
            ]
            assert equal(*parts)
            assert (one.time_s, one.comm_s) == (alone.time_s, alone.comm_s)
        assert together.network_step_s is not None
        assert together.network_step_s[:, n].tolist() == pytest.approx(each, rel=1e-14)
        assert together.step_time_s[n] == pytest.approx(each[0], rel=1e-14)


@pytest.mark.parametrize("kind", ["llama2-7b", "mixtral-8x7b"])
def test_estimates_are_the_same_whatever_is_known(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges, other networks, peaks of passes and probabilities: to the last digit."""
    drawn = [
        {"zero": zero, "recompute": recompute, "gbs": 64 * batch}
        for zero, recompute in ((1, "none"), (3, "full"))
        for batch in (1, 2)
    ]

    def found(fields: dict[str, Any]) -> dict[str, Any]:
        return estimate(kind, "h100-sxm", gpus=32, tp=4, pp=2, **fields).to_dict()

    first, again = ([found(fields) for fields in drawn] for _ in range(2))
    for fields, one, other in zip(drawn, first, again, strict=True):
        monkeypatch.setattr(distinct, "_known", {})
        assert one == other == found(fields)


def test_a_rule_is_named_each_time_that_a_strategy_breaks_it() -> None:
    """Whatever legal strategies were estimated before and since."""
    fields: dict[str, Any] = {"gpus": 16, "global_batch_size": 32}
    for _ in range(2):
        assert estimate("llama2-7b", "h100-sxm", tp=4, **fields).fits
        with pytest.raises(InputError, match="tp"):
            estimate("llama2-7b", "h100-sxm", tp=3, **fields)

"""A search decides by memory which strategies it times."""

from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import search
from shardwise.planning.search import bounded, pieces, run, scan
from shardwise.planning.search import smallest_gpus as smallest
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.pieces import Work
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.scan import MemoryEvaluator, broken_options, memory_of_each
from shardwise.planning.search.space import Space
from test_bounded_search import drawn_question
from test_search_smallest import MODEL, machine, space

pytestmark = pytest.mark.any_software

FITS, WITH_OFFLOAD, NOTHING = 9e6, 1e6, 1e3
"""Memory next to that of the runtime on which some strategies fit, or with offload, or none."""


def found_on(capacity: float, second: float | None = None, **fields: Any) -> dict[str, Any]:
    """What a search finds on so much memory, but for its time."""
    tried = space(gpus=8, **fields)
    the_machine = machine(capacity, second=second, reach=16)
    record = search(MODEL, the_machine, tried, counts=True, fits=None).to_dict()
    for part in (record, record["smallest"] or {}):
        part.pop("elapsed_s", None)
    return record


@pytest.fixture
def costed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each table whose layers are timed, and -1 for each table of bounds."""
    rows: list[int] = []
    costs, bounds = scan.costs_and_bytes, bounded.option_bounds

    def counted(model: Any, system: Any, table: Any, *args: Any, **options: Any) -> Any:
        rows.append(len(table))
        return costs(model, system, table, *args, **options)

    def marked(*args: Any, **options: Any) -> Any:
        rows.append(-1)
        return bounds(*args, **options)

    monkeypatch.setattr(scan, "costs_and_bytes", counted)
    monkeypatch.setattr(bounded, "option_bounds", marked)
    return rows


@each_row(("few", "together"), [(1 << 17, True), (1 << 17, False), (0, True), (0, False)])
def test_nothing_is_timed_where_nothing_fits(few, together, costed, monkeypatch):
    """Whether a search uses bounds or not, and evaluates small boxes together or not."""
    monkeypatch.setattr(pieces, "FEW_CANDIDATES", few)
    monkeypatch.setattr(SearchQuery, "is_too_large", lambda *_: together)
    found = found_on(NOTHING)
    assert not costed
    assert not found["feasible"]
    assert found["counts_exact"]
    assert sum(found["rejected"].values()) == found["candidates"] > 0
    assert found["smallest"]["problem"]


def test_what_memory_rejects_is_not_timed(costed):
    """Layers of as many rows are timed as fit with some choice."""
    tried = space(gpus=8, zero=[0, 1])
    found = search(MODEL, machine(1.5e6), tried, bounds=False, all_variants=True, fits=None)
    assert 0 < sum(costed) <= found.feasible < found.evaluated


@each_row(("capacity", "widened"), [(FITS, 0), (WITH_OFFLOAD, 3), (NOTHING, 3)])
def test_the_order_of_both_spaces_does_not_matter(capacity, widened, monkeypatch):
    """The result is the same whether offload is tried first or last; alone where nothing fits."""
    scans, scan = [], Work.scan
    monkeypatch.setattr(Work, "scan", lambda *args: scans.append(args) or scan(*args))
    results = []
    for first in (False, True):
        monkeypatch.setattr(SearchQuery, "is_too_large", lambda *_, first=first: first)
        results.append(found_on(capacity, second=1e9, scope="practical"))
    assert results[0] == results[1]
    assert len(results[0]["widened"]) == widened
    assert bool(results[0]["best"]) == (capacity != NOTHING)
    expected = {FITS: 1 + 2, WITH_OFFLOAD: 2 + 2, NOTHING: 2 + 1}
    assert len(scans) == expected[capacity]


def test_boxes_together_have_the_memory_of_each_alone():
    """Rows, rules and bytes of drawn boxes with several choices."""
    several = 0
    for seed in range(30, 36):
        model, system, fields, _ = drawn_question(seed)
        boxes = Candidates.of(model, system, Space.validated(fields)).legal
        small = [next(iter(box.cut(1 << 8))) for box in boxes]
        several += len(small) > 1
        capacity = system.accelerator.memory[0].capacity
        together = memory_of_each(model, system, small, capacity)
        for box, (broken, some) in zip(small, together, strict=True):
            table = box.table()
            assert np.array_equal(broken, broken_options(model, system, box, table))
            alone = [*MemoryEvaluator.of(model, system, table, broken, capacity).memory()]
            assert (some is None or not some.rows.size) == (not alone)
            for one in alone:
                assert np.array_equal(some.rows, one.rows)
                assert np.array_equal(some.feasible, one.feasible)
                mine, theirs = (e.holding.reserved_bytes[e.holding_of] for e in (some, one))
                assert np.array_equal(mine, theirs)
    assert several


@each_row("capacity", [3e6, 1e6, 3e5])
def test_numbers_of_gpus_together_give_the_answer_of_one_by_one(capacity, monkeypatch):
    """With the strategy that is shown."""
    together = smallest.smallest_gpus(MODEL, machine(capacity), space(), most=32)
    monkeypatch.setattr(smallest, "_FEW_NUMBERS", -1)
    some = smallest.smallest_gpus(MODEL, machine(capacity), space(), most=32)
    monkeypatch.setattr(smallest, "_FIRST_NUMBERS", 0)
    alone = smallest.smallest_gpus(MODEL, machine(capacity), space(), most=32)
    assert (together.gpus, together.reason) == (alone.gpus, alone.reason)
    assert together.strategy == some.strategy == alone.strategy


def test_a_long_search_for_more_gpus_says_how_far_it_is(monkeypatch, caplog):
    """After a while without a line, before the next numbers."""
    monkeypatch.setattr(run, "_QUIET_S", 0.0)
    caplog.set_level("INFO", "shardwise.search")
    found_on(NOTHING)
    answer, *lines = [record.message for record in caplog.records]
    assert answer.startswith("nothing is feasible")
    assert lines
    assert all(line.startswith("nothing fits on fewer than") for line in lines)

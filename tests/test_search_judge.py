"""Judging candidates: the same however they are cut, merged, or how much room there is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from naive_search import FEW
from profiles import examples
from rows import each_row
from shardwise import InputError, System
from shardwise.planning.search import scan as judging
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import (
    FRONTS,
    OBJECTIVES,
    Ranked,
    best_of_each,
    check_objective,
    front,
    top,
)
from shardwise.planning.search.scan import MEMORY, SECOND_MEMORY, Findings, merged, scan
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

fast = examples(60)


def hosted(capacity: float) -> System:
    """A priced machine with a second memory tier of some size."""
    told = samples.system().to_dict()
    host = {"name": "host", "capacity": capacity, "bandwidth": 1e9}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    told["price"] = {"usd_per_accelerator_hour": 2, "as_of": "2025-01-01", "source": "round"}
    return System.validated(told)


MODEL, SYSTEM = samples.model(), hosted(6e5)
SPACE = {
    "scope": "full",
    **FEW,
    "gpus": [4, 8],
    "gbs": 8,
    "mbs": [1, 2, 4],
    "tp": [1, 2],
    "tp_overlap": "none",
    "tp_exchange": ["all_reduce", "rs_ag"],
    "seq_len": [31, 32],
    "offload_weights": False,
    "fused_activation": False,
    "recompute": ["none", "full"],
    "placement": "tp-cp-dp-pp",
    "stack": samples.stack(),
}
CANDIDATES = Candidates.of(MODEL, SYSTEM, Space.validated(SPACE))


def question(capacity_bytes: float = 2e6, **words: Any) -> SearchQuery:
    """Ask for the best five, a front and the cells of two fields, where some candidates fit."""
    usual = {"top": 5, "front": "memory", "axes": ("tp", "recompute")}
    return SearchQuery(model=MODEL, system=SYSTEM, capacity_bytes=capacity_bytes, **usual | words)


def looked(asked: SearchQuery, rows: int = 1 << 16) -> list[Findings]:
    """What is found in pieces of so many rows."""
    return [scan(asked, piece) for box in CANDIDATES.legal for piece in box.cut(rows)]


def same(one: Findings, other: Findings) -> bool:
    """Whether two are equal bit for bit; the nearest miss is only kept where nothing fits."""
    arrays = [
        (getattr(getattr(one, name), f.name), getattr(getattr(other, name), f.name))
        for name in ("best", "front", "cells", *([] if one.feasible else ["nearest"]))
        for f in fields(Ranked)
    ]
    arrays.append((one.cell_values, other.cell_values))
    counts = ("candidates", "evaluated", "feasible", "rejected")
    return all(np.array_equal(a, b) for a, b in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in counts
    )


@cache
def whole() -> Findings:
    """What is found in one piece of each box."""
    return merged(looked(question()), question())


@cache
def parts_found() -> list[Findings]:
    """What is found in small pieces."""
    return looked(question(), 40)


def test_the_example_has_all_kinds_of_verdicts():
    """Feasible ones, and some rejected by a rule and by each memory tier."""
    assert whole().feasible > 100
    assert {"sequence", MEMORY, SECOND_MEMORY} <= whole().rejected.keys()
    assert (len(whole().best), len(whole().cells)) == (5, 4)
    assert len(whole().front) > 1


@pytest.mark.nightly
@each_row("rows", [1, 7, 1000])
def test_what_is_found_does_not_depend_on_how_boxes_are_cut(rows):
    """Pieces of 1, 7 or 1000 rows: the same counts and candidates, scores equal to the last bit."""
    assert same(merged(looked(question(), rows), question()), whole())


@pytest.mark.parametrize("rows", [7, 50, 1001])
def test_what_is_found_does_not_depend_on_the_chunk(rows, monkeypatch):
    """However many rows are evaluated at a time."""
    monkeypatch.setattr(judging, "_CHUNK", rows)
    assert same(merged(looked(question()), question()), whole())


@fast
@given(st.randoms(use_true_random=False))
def test_parts_may_be_merged_in_any_order_and_grouping(random):
    """A tree of any shape over the parts in any order gives the same."""
    parts = list(parts_found())
    random.shuffle(parts)
    while len(parts) > 1:
        first = random.randrange(len(parts) - 1)
        last = random.randint(first + 2, len(parts))
        parts[first:last] = [merged(parts[first:last], question())]
    assert same(parts[0], whole())


def test_nothing_adds_nothing():
    """Merging nothing with something, or no parts at all."""
    nothing = Findings.empty(2)
    assert same(merged([nothing, whole(), nothing], question()), whole())
    assert same(merged([], question()), nothing)


@each_row("capacity", [0.0, 1.5e6, 2e6, 1e9])
def test_every_candidate_is_feasible_or_rejected_for_one_reason(capacity):
    """Counts add up, with those of layouts that break rules."""
    found = merged(looked(question(capacity)), question(capacity))
    rejected = found.rejected + refusals(CANDIDATES.illegal)
    assert found.feasible + rejected.total() == len(CANDIDATES)
    by_memory = rejected[MEMORY] + rejected[SECOND_MEMORY]
    assert found.evaluated - found.feasible == by_memory
    assert found.candidates == sum(map(len, CANDIDATES.legal))
    assert all(rejected.values())


@examples(6)
@given(st.floats(1e6, 5e6), st.floats(1, 2))
def test_more_memory_never_loses_a_candidate(capacity, factor):
    """More are feasible, the best is no worse, and what memory rejected only shrinks."""
    less = merged(looked(question(capacity)), question(capacity))
    more = merged(looked(question(capacity * factor)), question(capacity * factor))
    assert more.feasible >= less.feasible
    assert more.rejected[MEMORY] <= less.rejected[MEMORY]
    assert np.all(more.best.score[: len(less.best)] <= less.best.score)
    assert more.rejected["sequence"] == less.rejected["sequence"]
    kept = {tuple(values) for values in less.cell_values.tolist()}
    assert kept <= {tuple(values) for values in more.cell_values.tolist()}


def test_feasible_candidates_fit_into_the_room():
    """Those of the front hold at most what may be used; a byte less, and the fullest is gone."""
    fullest = float(whole().front.second.max())
    assert fullest <= 2e6
    tighter = question(fullest - 1)
    found = merged(looked(tighter), tighter)
    assert not np.isin(whole().front.number[-1], found.front.number)
    assert found.feasible < whole().feasible


def test_more_of_the_best_starts_with_the_best():
    """The first five of a hundred are the five."""
    asked = question(top=100)
    more = merged(looked(asked), asked).best
    assert more.number[:5].tolist() == whole().best.number.tolist()
    assert np.all(np.diff(more.score) >= 0)


def test_the_best_of_all_is_on_every_front_and_in_a_cell():
    """The least time of a token stands on the front, the least time of a step in a cell."""
    asked = question(objective="tokens_per_s_per_gpu", front="gpus")
    found = merged(looked(asked), asked)
    assert whole().best.number[0] in whole().cells.number
    assert found.front.score.min() == whole().front.score.min()


RANKED = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def ranked(pairs: Sequence[tuple[int, int]]) -> Ranked:
    """Candidates in an order that is not that of their numbers."""
    number = np.array([(7 * i) % 13 for i in range(len(pairs))], dtype=np.int64)
    score, beside = (np.array([pair[side] for pair in pairs], float) for side in (0, 1))
    return Ranked(number=number, score=score, second=beside, step_time_s=score)


def told(found: Ranked) -> list[tuple[float, float, int]]:
    """Score, the other side and number, in order."""
    columns = (found.score, found.second, found.number)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@fast
@given(RANKED, st.integers(1, 14))
def test_the_top_is_the_start_of_all_in_order(pairs, count):
    """By score, of equals by number."""
    every = sorted(told(ranked(pairs)), key=lambda one: (one[0], one[2]))
    assert told(top(ranked(pairs), count)) == every[:count]


@fast
@given(RANKED)
def test_a_front_holds_what_no_other_beats_or_equals(pairs):
    """On both sides; of equals the lowest number; by what stands against the score."""
    every = told(ranked(pairs))
    kept = [
        one
        for one in every
        if not any(
            other[0] <= one[0]
            and other[1] <= one[1]
            and (other[:2], other[2]) != (one[:2], one[2])
            and (other[:2] != one[:2] or other[2] < one[2])
            for other in every
        )
    ]
    assert told(front(ranked(pairs))) == sorted(kept, key=lambda one: one[1])


@fast
@given(RANKED)
def test_the_best_of_each_key_comes_once(pairs):
    """Keys in order, each with its best, of equals the lowest number."""
    keys = np.array([[pair[1], pair[1] % 2] for pair in pairs], dtype=np.int64).reshape(-1, 2)
    found_keys, found = best_of_each(keys, ranked(pairs))
    every = told(ranked(pairs))
    best = {
        key: min((one for one in every if one[1] == key), key=lambda one: (one[0], one[2]))
        for key in sorted({pair[1] for pair in pairs})
    }
    assert found_keys.tolist() == [[key, key % 2] for key in best]
    assert told(found) == list(best.values())


@each_row("known", [("objective", OBJECTIVES), ("pareto", FRONTS)])
def test_an_unknown_objective_or_front_is_refused(known):
    """With what is allowed, and the nearest of it."""
    field, names = known
    for name in names:
        check_objective(name, field, tuple(names), SYSTEM)
    with pytest.raises(InputError, match=f"{field}: 'tim': allowed: {', '.join(names)}"):
        check_objective("tim", field, tuple(names), SYSTEM)


@each_row("name", ["tokens_per_dollar", "cost"])
def test_costs_need_a_price(name):
    """A system without one is refused, and told which field is missing."""
    with pytest.raises(InputError, match=r"has no price; .*price\.usd_per_accelerator_hour"):
        check_objective(name, "objective", (name,), samples.system())


def test_reasons_that_reject_nothing_are_not_counted():
    """No zeros among the reasons, of pieces or of all."""
    free = question(1e12)
    parts = looked(replace(free, system=hosted(1e12)), 100)
    assert {reason for part in parts for reason in part.rejected} == {"sequence"}
    assert merged(parts, free).rejected == Counter(sequence=whole().rejected["sequence"])

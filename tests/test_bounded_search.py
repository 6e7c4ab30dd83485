"""Bounds never exceed times, and a search that uses them finds what one without them finds."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import profiles  # noqa: F401 - registers the profiles
from naive_search import FEW
from rows import each_row
from shardwise import Model, SearchResult, System, search
from shardwise.engine import step_bound
from shardwise.planning.search import bounded, pieces, run
from shardwise.planning.search.bounded import (
    LayoutBounds,
    Limits,
    legality_of_each,
    option_bounds,
    placed_pairs,
)
from shardwise.planning.search.candidates import Box, Boxes, Candidates
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import Ranked
from shardwise.planning.search.scan import MemoryEvaluator, broken_options
from shardwise.planning.search.space import Space
from test_search_brute_force import HYBRID, MODELS, OPTIONS, RARELY, SPARSE, SYSTEMS, some_of

pytestmark = pytest.mark.any_software

NIGHTLY = settings.default.max_examples >= 1000
# Small spaces of four models, of which something fits in two.
SEEDS = (1008, 1010, 1024, 1047)
EVERY_MODEL = [
    *MODELS,
    *map(Model.load, ("mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "qwen3-30b-a3b")),
]
EVERY_OPTION = OPTIONS | {
    "schedule": ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"],
    "tp_exchange": ["all_reduce", "rs_ag", "p2p_rs_ag", "summa"],
    "cp_exchange": ["all_gather", "ring", "all_to_all"],
    "expert_overlap": [False, True],
    "dispatcher": ["all_to_all", "all_gather", "deepep", "hybridep"],
    "quantization": ["none", "none", "fp8_tensor"],
}
MORE_RARELY = RARELY | {
    "cp": [1, 1, 2, 4],
    "ep": [1, 2, 4, 8],
    "recompute_layers": [None, 1, 2],
    "embedding_as_layer": [False, True],
    "loss_as_layer": [False, True],
    "first_stage_layers": [None, 1],
    "dp_shard": [None, 2],
    "stack": ["megatron-core-2025", "calculon", "megatron-bridge-2026", "megatron-lm-2022"],
}
del MORE_RARELY["seq_len"]


@pytest.fixture(autouse=True)
def bounds_of_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound layouts however few they are."""
    monkeypatch.setattr(bounded, "_FEW_LAYOUTS", 0)


def drawn_question(
    seed: int, models: Sequence[Model] = EVERY_MODEL
) -> tuple[Model, System, dict[str, Any], Random]:
    """A model, a system and a space with all kinds of fields."""
    random = Random(seed)  # noqa: S311 - cases that can be made again
    model, system = random.choice(models), random.choice(SYSTEMS)
    space: dict[str, Any] = {
        "scope": "full",
        **FEW,
        "any_software": True,
        "gpus": random.sample([1, 2, 4, 8, 12, 16, 24, 32], random.choice([1, 1, 2])),
        "global_batch_size": random.sample([1, 2, 6, 8, 12, 16, 24], random.choice([1, 1, 2])),
        "batch": random.choice(["fixed", "largest"]),
    }
    alone = len(system.accelerator.memory) == 1
    for name, values in EVERY_OPTION.items():
        if random.random() < (0.1 if alone and name.startswith("offload") else 0.85):
            space[name] = some_of(random, values, 0.65)
    for name, values in MORE_RARELY.items():
        if random.random() < 0.25:
            space[name] = some_of(random, values, 0.3)
    if system.name.startswith("calculon"):
        space["dtype"] = ["fp16"]
    return model, system, space, random


def boxes(
    first: int, count: int, most: int, models: Sequence[Model]
) -> Iterator[tuple[SearchQuery, Box]]:
    """Boxes of drawn spaces, of which everything fits."""
    for seed in range(first, first + count):
        model, system, space, _ = drawn_question(seed, models)
        query = SearchQuery(model=model, system=system, capacity_bytes=np.inf)
        for box in Candidates.of(model, system, Space.validated(space)).legal:
            yield query, next(iter(box.cut(most)))


def layouts_and_times(query: SearchQuery, box: Box) -> Iterator[tuple[Any, ...]]:
    """Rows of a box: their layouts, options and choices, their bounds, and their times."""
    table = box.table()
    broken = broken_options(query.model, query.system, box, table)
    if not (broken < 0).any():
        return
    evaluator = MemoryEvaluator.of(query.model, query.system, table, broken, np.inf)
    for chunk in evaluator.memory():
        bound_s, timed = evaluator.placed(chunk).bounds(), evaluator.timed(chunk).timed
        if timed is None:
            continue
        choice, row = np.nonzero(timed.feasible)
        layout, option = np.divmod(chunk.rows[timed.rows[row]], len(box.options))
        yield (
            (layout, option * len(box.choices) + choice),
            bound_s[timed.rows[row]],
            timed.timing.step_time_s[choice, row],
        )


def bounded_rows(
    first: int, count: int, models: Sequence[Model] = EVERY_MODEL
) -> tuple[int, float, set[int]]:
    """Check the bounds of drawn boxes; return rows, the largest share of a time, and schedules."""
    rows, closest = 0, 0.0
    schedules = set()
    for query, box in boxes(first, count, 1 << 11, models):
        [legality] = legality_of_each(query, [box])
        whole = LayoutBounds.of(query, Boxes(each=(box,)), (legality,))
        groups = option_bounds(query, placed_pairs(query.system, [box]), legality)
        bound_of_group = groups.of(np.arange(len(box.layouts)))
        for (layout, option), bound_s, time_s in layouts_and_times(query, box):
            of_layout = whole.bound_s[layout]
            of_group = bound_of_group[layout, groups.pairs.option_group[option]]
            assert np.all(of_layout <= of_group * (1 + 1e-9))
            assert np.all(of_group <= bound_s * (1 + 1e-9))
            assert np.all(bound_s <= time_s)
            rows += layout.size
            closest = max(closest, float((bound_s / time_s).max()))
            schedules |= set(box.layouts.schedule[layout].tolist())
    return rows, closest, schedules


def test_no_bound_exceeds_a_time():
    """Of layouts, of their groups of options, and of candidates, each below the next."""
    rows, closest, schedules = bounded_rows(42, 3000 if NIGHTLY else 6)
    assert rows > (1_000_000 if NIGHTLY else 1_000)
    assert closest > 0.99
    assert len(schedules) >= (6 if NIGHTLY else 4)


@each_row("model", [HYBRID, SPARSE])
def test_no_bound_exceeds_a_time_of_newer_layers(model):
    """Of mixers, a pattern of layers, and sparse attention."""
    rows, closest, _ = bounded_rows(42, 300 if NIGHTLY else 2, [model])
    assert rows > (10_000 if NIGHTLY else 100)
    assert closest > 0.9


def test_chunks_that_recompute_in_part_are_unequal():
    """Layouts do not show it: a bound with the way through equal chunks was too high."""
    assert bounded_rows(1625, 1)[0] > 0


def test_a_bound_that_is_too_high_is_found(monkeypatch):
    """By 1 %: the checks above fail."""
    monkeypatch.setattr(step_bound, "_ROUNDING", -0.01)
    with pytest.raises(AssertionError):
        bounded_rows(46, 1)


def drawn_query(random: Random, system: System, capacity_bytes: float) -> dict[str, Any]:
    """What a search is asked for."""
    objectives = ["step_time", "tokens_per_s_per_gpu", "tokens_per_dollar"]
    return {
        "top": random.choice([1, 3, 10]),
        "objective": random.choice(objectives[: 3 if system.price else 2]),
        "pareto": random.choice([None, None, "memory", "gpus", "cost"][: 5 if system.price else 4]),
        "axes": random.choice([(), (), ("tp",), ("pp", "recompute"), ("zero", "gpus")]),
        "all_variants": random.choice([False, True]),
        "max_memory": capacity_bytes,
    }


def outcome(found: SearchResult) -> dict[str, Any]:
    """A result without what depends on how it was found."""
    record = found.to_dict()
    for name in ("elapsed_s", "timed", "counts_exact", "feasible", "rejected", "smallest"):
        del record[name]
    for scale in record["scales"]:
        del scale["feasible"], scale["rejected"]
    return record


def counts(found: SearchResult) -> tuple[Any, ...]:
    """Strategies by outcome, of all and by scale."""
    scales = [(scale.candidates, scale.feasible, scale.rejected) for scale in found.scales]
    return found.candidates, found.evaluated, found.feasible, found.rejected, scales


def test_bounds_change_no_result(monkeypatch):
    """The best, lines with their variants, fronts, cells, scales and nearest misses, bit for bit;
    counts, where all are counted."""
    monkeypatch.setattr(pieces, "FEW_CANDIDATES", 0)
    monkeypatch.setattr(run, "smallest_gpus", lambda *_, **__: None)  # bounds do not matter there
    spaces = saved = exact = 0
    for seed in range(1000, 1700) if NIGHTLY else SEEDS:
        model, system, space, random = drawn_question(seed)
        candidates = Candidates.of(model, system, Space.validated(space))
        if not 0 < len(candidates) < 4000:
            continue
        capacity = random.choice([1, 1, 0.5, 0.25]) * system.accelerator.memory[0].capacity
        words = drawn_query(random, system, capacity)
        monkeypatch.setattr(bounded, "_FEW_LAYOUTS", 0 if seed % 4 else len(candidates))
        plain = search(model, system, space, **words, bounds=False)
        found = search(model, system, space, **words)
        counted = search(model, system, space, **words, counts=True)
        assert outcome(found) == outcome(counted) == outcome(plain), seed
        assert counts(counted) == counts(plain), seed
        assert counted.counts_exact
        assert found.feasible <= plain.feasible == plain.timed
        if found.counts_exact:
            assert counts(found) == counts(plain), seed
        saved += found.timed < plain.timed
        exact += found.counts_exact
        spaces += 1
    assert spaces >= (300 if NIGHTLY else len(SEEDS))
    assert saved > spaces / 4
    assert exact > spaces / 8


def test_no_rows_have_no_limits():
    """Where cells have limits of their own: pieces may have no layouts left."""
    model, system, space, _ = drawn_question(1008)
    box = Candidates.of(model, system, Space.validated(space)).legal[0]
    query = SearchQuery(model=model, system=system, capacity_bytes=np.inf, axes=("tp", "zero"))
    none = Ranked.empty()
    values = np.empty((0, 2), np.int64)
    limits = Limits(query=query, score=1.0, front=none, cells=none, cell_values=values)
    for table in (box.table(), box.layouts):
        assert np.all(np.isinf(limits.of_rows(table)))
        assert not limits.of_rows(table.take(np.empty(0, np.int64))).size

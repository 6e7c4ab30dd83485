"""A search finds what trying every strategy of its space finds: counts, reasons, best, fronts.

Scores are held together bit for bit. They may be: every formula runs element by element on rows,
and no sum runs over them, so a row does not feel which rows stand beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np
import pytest

import samples
from naive_search import FEW, FIELDS, OFFLOADS, ORDERS, TIERS, Naive, everything
from profiles import drawn, sampled
from rows import each_row
from shardwise import InputError, Model, System, estimate
from shardwise.config.strategy_table import Table
from shardwise.planning.search import pieces
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.ranking import Ranked
from shardwise.planning.search.run import search
from shardwise.planning.search.scan import Findings, merged, scan
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

MOST = 400
"""Strategies of a space, all of which are tried."""


def with_host(machine: System, capacity: float, bandwidth: float = 1e10) -> System:
    """A machine with a second memory tier."""
    told = machine.to_dict()
    host = {"name": "host", "capacity": capacity, "bandwidth": bandwidth}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    return System.validated(told)


def priced(machine: System) -> System:
    """A machine that costs 2 USD an hour."""
    price = {"usd_per_accelerator_hour": 2.0, "as_of": "2025-01-01", "source": "a round figure"}
    return System.validated(machine.to_dict() | {"price": price})


THREE_TIERS = [
    samples.tier("inside", domain=4, latency=1e-6),
    samples.tier("rack", domain=12, bandwidth=20e9, latency=5e-6),
    samples.tier("all", bandwidth=5e9, latency=1e-5, links_per_node=2),
]
GROUPED = samples.layer(
    count=6,
    attention={"heads": 12, "kv_heads": 6, "bias": "none"},
    mlp={"ffn": 96, "activation": "swiglu", "bias": False},
)
_HEADS = {"heads": 4, "head_dim": 16}
_STATES = {"heads": 8, "head_dim": 16, "state": 16}
MODELS = [
    samples.model(),
    samples.llama(layers=[GROUPED]),
    samples.model(samples.layer(count=2), samples.layer(count=1, mlp={"ffn": 512})),
    Model.load("calculon-megatron-126m"),
    Model.load("llama3-8b"),
]
HYBRID = Model.validated(
    samples.llama().to_dict()
    | {
        "pattern": "M-L*DM",
        "layers": [
            {"symbol": "M", "mixer": {"kind": "mamba2", "groups": 4, "conv": 4} | _STATES},
            {"symbol": "-", "mlp": {"ffn": 96, "activation": "relu2"}},
            {"symbol": "L", "mixer": {"kind": "lightning", "heads": 4, "head_dim": 16}},
            {"symbol": "*", "attention": {"heads": 12, "kv_heads": 6, "head_dim": 8}},
            {"symbol": "D", "mixer": {"kind": "kimi_delta", "conv": 4} | _HEADS}
            | {"mlp": {"ffn": 96, "activation": "swiglu"}},
        ],
    }
)
_LATENT = {"heads": 8, "kv_heads": 8, "head_dim": 12, "v_head_dim": 8} | {
    "latent": {"q_rank": 24, "kv_rank": 16, "rope_dim": 4}
}
_INDEXER = {"heads": 4, "head_dim": 8, "top_k": 8}
_COMPRESSED = {"q_rank": 24, "ratio": 4, "output_groups": 4, "output_rank": 16}
_DENSE = {"mlp": {"ffn": 96, "activation": "swiglu"}}
_EXPERTS = {"moe": {"experts": 4, "top_k": 2, "ffn": 32, "activation": "swiglu"}}
SPARSE = samples.llama(
    layers=[
        {"count": 2, "attention": _LATENT | {"indexer": _INDEXER}} | _DENSE,
        {"count": 2, "attention": _LATENT | {"indexer": _INDEXER | {"shared": True}}} | _EXPERTS,
        {
            "count": 2,
            "attention": {"heads": 8, "kv_heads": 1, "head_dim": 8, "window": 8, "sinks": True}
            | {"compressed": _COMPRESSED, "indexer": _INDEXER},
        }
        | _EXPERTS,
    ],
)
SYSTEMS = [
    priced(samples.system()),
    with_host(priced(samples.system(node=4, network=THREE_TIERS)), 4e8, 1e9),
    with_host(priced(samples.system()), 2e7),
    *(priced(System.load(name)) for name in ("h100-sxm", "gb200-nvl72", "calculon-a100-80g")),
]
OPTIONS: dict[str, Sequence[Any]] = {
    "recompute": ["none", "selective", "full"],
    "zero": [0, 1, 0, 1, 2, 3, 4],
    "tp_exchange": ["all_reduce", "rs_ag", "p2p_rs_ag"],
    "tp_overlap": ["stack", "none", "ring", "pipe"],
    "schedule": ["1f1b", "interleaved"],
    "placement": ORDERS,
    **dict.fromkeys(("tp_regather", "dp_overlap", "fused_activation", *OFFLOADS), (False, True)),
}
RARELY: dict[str, Sequence[Any]] = {
    "training": [True, False],
    "attention": ["model", "multihead", "multiquery"],
    "dtype": ["bf16", "fp16", "bf16", "fp32"],
    "stack": ["megatron-core-2025", "calculon", "megatron-lm-2022"],
    "seq_len": [16, 30, 32, 48],
    **dict.fromkeys(TIERS, (None, None, None, 0, 0, 1, 1, 2)),
    "tp": [1, 2, 3, 4, 8],
    "pp": [1, 2, 3, 4, 5],
    "dp": [1, 2, 4, 8],
    "vpp": [1, 1, 2, 3],
    "micro_batch_size": [1, 2, 4],
    "cp": [1, 1, 1, 1, 1, 2],
    "ep": [1, 1, 1, 1, 1, 2],
}


def some_of(random: Random, values: Sequence[Any], alone: float) -> list[Any]:
    """One of some values, or up to three of them, in any order."""
    if random.random() < alone:
        return [random.choice(values)]
    return list(dict.fromkeys(random.sample(values, random.randint(1, min(3, len(values))))))


def drawn_space(random: Random, machine: System) -> dict[str, Any]:
    """A small space with several fields given and the others as usual."""
    space: dict[str, Any] = {
        "scope": "full",
        **FEW,
        "gpus": random.sample([1, 2, 4, 6, 8, 12, 16, 24, 32], random.choice([1, 1, 1, 2])),
        "global_batch_size": random.sample([1, 2, 4, 6, 8, 12, 16, 24], random.choice([1, 1, 2])),
        "batch": random.choice(["fixed", "largest"]),
    }
    alone = len(machine.accelerator.memory) == 1
    for name, values in OPTIONS.items():
        if random.random() < (0.1 if alone and name in OFFLOADS else 0.85):
            space[name] = some_of(random, values, 0.65)
    for name, values in RARELY.items():
        if random.random() < 0.25:
            space[name] = some_of(random, values, 0.3)
    if machine.name.startswith("calculon"):
        space["dtype"] = ["fp16"]
    return space


@dataclass(frozen=True, kw_only=True)
class Case:
    """A space, some room, and what trying everything finds."""

    model: Model
    system: System
    space: dict[str, Any]
    capacity_bytes: float
    candidates: Candidates
    naive: Naive
    words: dict[str, Any]
    """What else is asked about it."""

    @cached_property
    def found(self) -> Findings:
        """What a search finds, which several tests look at."""
        return self.scan(**self.words)

    @cached_property
    def numbers(self) -> list[int]:
        """Number of the candidate that is each row of `naive`."""
        found = self.candidates.strategies(np.arange(len(self.candidates)))
        numbers = dict(zip(keys(asked(self.candidates), found), range(len(found)), strict=True))
        return [numbers[key] for key in keys(self.naive.asked, self.naive.strategies)]

    def scan(self, rows: int = 1 << 16, **words: Any) -> Findings:
        """Look through all boxes, in pieces, as a search does."""
        capacity = self.capacity_bytes
        question = SearchQuery(
            model=self.model, system=self.system, capacity_bytes=capacity, **words
        )
        pieces = [piece for box in self.candidates.legal for piece in box.cut(rows)]
        return merged([scan(question, piece) for piece in pieces], question)

    def ordered(self, score: Mapping[int, float]) -> list[tuple[float, int]]:
        """Scores of rows with their numbers, the lowest first."""
        return sorted((value, self.numbers[row]) for row, value in score.items())


def asked(candidates: Candidates) -> list[tuple[int, int]]:
    """GPUs and batch of the space that each candidate comes from."""
    boxes = [*candidates.legal, *candidates.illegal]
    return [(b.scale.gpus, b.scale.global_batch_size) for b in boxes for _ in range(len(b))]


def keys(scales: Sequence[tuple[int, int]], table: Table) -> list[tuple[Any, ...]]:
    """All fields of each strategy, and what it was asked for."""
    columns = [getattr(table, name).tolist() for name in FIELDS if name != "stack"]
    stacks = [table.stacks[i].name for i in table.stack]
    return list(zip(scales, *columns, stacks, strict=True))


def cases(
    first: int,
    count: int,
    most: int = MOST,
    models: Sequence[Model] = (),
    **words: Any,
) -> Iterator[Case]:
    """Some of the spaces that are small enough; about half of what obeys the rules fits."""
    models = models or sampled([*MODELS, HYBRID])  # two of them; all in .ci/nightly
    for seed in range(first, first + count):
        random = Random(seed)  # noqa: S311 - cases that can be made again
        model, system = random.choice(models), random.choice(SYSTEMS)
        space = drawn_space(random, system)
        candidates = Candidates.of(model, system, Space.validated(space))
        if len(candidates) > most:
            continue
        free = everything(model, system, space, np.inf)
        if not free.reasons:
            assert len(candidates) == 0
            continue
        held = free.estimates.memory_reserved_bytes[free.estimates.refused < 0]
        capacity = float(np.quantile(held, random.choice([0.1, 0.5, 0.9]))) if held.size else 1e9
        yield Case(
            model=model,
            system=system,
            space=space,
            capacity_bytes=capacity,
            candidates=candidates,
            naive=free.within(system, capacity),
            words=words,
        )


# The first of some seeds, and what is asked about their spaces.
SOME: dict[int, dict[str, Any]] = {
    15: {"objective": "step_time", "front": "gpus"},
    45: {"objective": "tokens_per_s_per_gpu", "front": "cost"},
    100: {"objective": "tokens_per_dollar"},
    130: {"front": "memory", "axes": ("micro_batch_size", "recompute")},
}


@cache
def some(first: int) -> list[Case]:
    """Those of 15 seeds, which several tests look at: trying everything takes longest."""
    return list(cases(first, drawn(15), **SOME[first]))


def listed(ranked: Ranked) -> list[tuple[float, int]]:
    """Scores and numbers, in order."""
    return list(zip(ranked.score.tolist(), ranked.number.tolist(), strict=True))


@pytest.mark.parametrize("first", SOME)
def test_every_strategy_is_a_candidate_once(first):
    """The same strategies as nested loops try, none of them twice."""
    seen = 0
    for case in some(first):
        table = case.candidates.strategies(np.arange(len(case.candidates)))
        found = keys(asked(case.candidates), table)
        expected = keys(case.naive.asked, case.naive.strategies)
        assert len(set(found)) == len(found) == len(expected)
        assert set(found) == set(expected)
        seen += len(found)
    assert seen > 100


@each_row("first", SOME)
def test_candidates_are_counted_by_reason(first):
    """What is feasible, and why the rest is rejected: rules of layouts first, then the others,
    then memory."""
    feasible = 0
    for case in some(first):
        found = case.found
        assert len(case.candidates) == len(case.naive.reasons)
        assert found.feasible == len(case.naive.feasible)
        assert found.rejected + refusals(case.candidates.illegal) == case.naive.rejected
        feasible += found.feasible
    assert feasible > 20


@each_row(
    ("objective", "first"),
    [(words["objective"], first) for first, words in SOME.items() if "objective" in words],
)
def test_the_best_are_the_best_of_all(objective, first):
    """The first ten in order, of equals the lowest number first."""
    for case in some(first):
        naive, rows = case.naive, case.naive.feasible
        seconds, table = naive.estimates.step_time_s, naive.strategies
        score = {row: seconds[row] for row in rows}
        if objective != "step_time":
            tokens = table.global_batch_size * table.seq_len
            score = {row: seconds[row] / tokens[row] * table.gpus[row] for row in rows}
        if objective == "tokens_per_dollar":
            score = {row: value * (2.0 / 3600) for row, value in score.items()}
        assert listed(case.found.best) == case.ordered(score)[:10]


@each_row(
    ("name", "first"),
    [(words["front"], first) for first, words in SOME.items() if "front" in words],
)
def test_the_front_is_what_nothing_beats_on_both_sides(name, first):
    """Of all feasible ones, those of which no other one is as good on both sides; of equals, the
    one with the lowest number."""
    for case in some(first):
        naive = case.naive
        table, rows = naive.strategies, np.array(naive.feasible, dtype=np.int64)
        time_s = naive.estimates.step_time_s[rows]
        per_token = time_s / (table.global_batch_size[rows] * table.seq_len[rows])
        beside = {
            "memory": naive.estimates.memory_reserved_bytes[rows],
            "gpus": 1.0 * table.gpus[rows],
            "cost": per_token * table.gpus[rows] * (2.0 / 3600),
        }[name]
        number = np.array(case.numbers, dtype=np.int64)[rows]
        kept = [
            (s, n)
            for s, b, n in zip(per_token, beside, number, strict=True)
            if not np.any(
                (per_token <= s) & (beside <= b) & ((per_token < s) | (beside < b) | (number < n))
            )
        ]
        assert sorted(listed(case.found.front)) == sorted(kept)


def test_every_cell_has_its_best():
    """For each combination of values of two fields that has a feasible strategy."""
    for case in some(130):
        axes, naive = case.words["axes"], case.naive
        best: dict[tuple[int, ...], tuple[float, int]] = {}
        for row in naive.feasible:
            key = tuple(int(getattr(naive.strategies, axis)[row]) for axis in axes)
            one = (naive.estimates.step_time_s[row], case.numbers[row])
            best[key] = min(best.get(key, one), one)
        found = case.found
        cells = [tuple(values) for values in found.cell_values.tolist()]
        assert dict(zip(cells, listed(found.cells), strict=True)) == best
        assert len(cells) == len(best)


def test_the_nearest_miss_lacks_least():
    """Where nothing fits: of what obeys the rules, the one with the least beyond the room."""
    seen = 0
    for case in some(130):
        held = case.naive.estimates.memory_reserved_bytes
        obeys = np.flatnonzero(case.naive.estimates.refused < 0)
        if not obeys.size:
            continue
        room = float(held[obeys].min()) / 2
        question = SearchQuery(model=case.model, system=case.system, capacity_bytes=room)
        parts = [scan(question, box) for box in case.candidates.legal]
        expected = min((held[row] - room, case.numbers[row]) for row in obeys)
        assert listed(merged(parts, question).nearest) == [expected]
        seen += 1
    assert seen >= drawn(6, part=6)


def test_single_estimates_say_the_same():
    """`estimate` of every strategy, one by one: refused, too large, or slower than the best."""
    seen = 0
    for case in cases(473, 40, most=60):
        if len(case.naive.feasible) < 3:
            continue
        table, numbers = case.naive.strategies, case.numbers
        times = []
        for row, reason in enumerate(case.naive.reasons):
            try:
                one = estimate(case.model, case.system, table.strategy(row))
            except InputError:
                assert reason not in (None, "memory", "second_memory")
                continue
            memory = one.memory_bytes
            fits = memory.reserved <= case.capacity_bytes
            fits &= memory.offloaded <= memory.offload_capacity
            assert fits == (reason is None)
            times += [(one.step_time_s, numbers[row])] if fits else []
        assert listed(case.scan(top=5).best) == sorted(times)[:5]
        seen += 1
        if seen == drawn(3):
            break
    assert seen == drawn(3)


@each_row(("models", "first", "count"), [((), 500, 6), ((HYBRID,), 507, 9), ((SPARSE,), 507, 9)])
def test_search_answers_what_trying_everything_answers(models, first, count, monkeypatch):
    """The whole way: counts, strategies best first, and the best of every scale; with bounds of
    layouts and without, of models of all kinds of layers."""
    few = pieces.FEW_CANDIDATES
    for case in cases(first, drawn(count), models=models):
        for fewest, counts in ((few, True), (0, False)):
            monkeypatch.setattr(pieces, "FEW_CANDIDATES", fewest)
            check_search(case, counts=counts)


def check_search(case: Case, *, counts: bool) -> None:
    """What a search finds is what trying everything found; counts, where all are counted."""
    asked = {"objective": "step_time", "top": 3, "max_memory": case.capacity_bytes}
    asked |= {"all_variants": True, "counts": counts, "fits": None}
    found = search(case.model, case.system, case.space, **asked)
    naive, seconds = case.naive, case.naive.estimates.step_time_s
    assert found.candidates == len(naive.reasons)
    if counts:
        assert found.feasible == len(naive.feasible)
        assert found.rejected == naive.rejected
    best = case.ordered({row: seconds[row] for row in naive.feasible})[:3]
    assert [one.step_time_s for one in found.best] == [value for value, _ in best]
    rows = [case.numbers.index(number) for _, number in best]
    expected = [naive.strategies.strategy(row).to_dict() for row in rows]
    assert [one.strategy for one in found.best] == expected
    for scale in found.scales:
        key = (scale.gpus, scale.global_batch_size)
        times = [seconds[row] for row in naive.feasible if naive.asked[row] == key]
        if counts:
            assert scale.feasible == len(times)
        assert (scale.best.step_time_s if scale.best else None) == min(times, default=None)

"""Searches over experts, context, sharded weights, parts and layers of recompute, uneven stages.

Held against nested loops over the same space; and what is kept where one value of a field is.
"""

from typing import Any

import numpy as np
import polars as pl
import pytest

import samples
from naive_effects import SPREAD
from naive_search import FEW, KEPT, everything, kept
from rows import each_row
from shardwise import InputError, System, estimate
from shardwise.config.strategy_fields import LAYOUT_FIELDS
from shardwise.planning.search.candidates import Candidates, refusals
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.run import search
from shardwise.planning.search.scan import merged, scan
from shardwise.planning.search.smallest_gpus import smallest_gpus
from shardwise.planning.search.space import Space
from test_search_brute_force import SYSTEMS, Case, asked, keys, listed

pytestmark = pytest.mark.any_software

EXPERTS = samples.deepseek()
NARROW: dict[str, Any] = {
    "scope": "full",
    **FEW,
    "gpus": [8],
    "global_batch_size": [8],
    "micro_batch_size": [1, 2],
    "vpp": [1],
    "placement": ["tp-cp-dp-pp"],
    "tp_overlap": ["none"],
    "tp_exchange": ["rs_ag"],
    "recompute": ["none"],
    "zero": [1],
    "tp_regather": [True],
    "dp_overlap": [True],
    "fused_activation": [False],
}
MODERN: dict[str, dict[str, Any]] = {
    "experts": {"ep": [1, 2, 3], "etp": [1, 2], "recompute": ["none", "full"]},
    "every degree of experts": {"zero": [3, 1]},
    "context": {"cp": [1, 2, 4], "cp_exchange": ["ring", "all_gather"], "micro_batch_size": [1]},
    "sharded weights": {
        "zero": [0, 1, 2, 3],
        "fsdp_reshard": [True, False],
        "fsdp_prefetch": [0, 2],
        "pp": [1, 2],
        "ep": [2],
    },
    "hybrid shards": {
        "zero": [0, 1, 3],
        "dp_shard": [None, 1, 2, 3, 8],
        "dp_overlap": [False, True],
    },
    "recompute by part": {
        "recompute": ["none", "selective", "full"],
        "recompute_parts": [("attention",), ("moe", "mlp"), ("mla_up",)],
        "recompute_layers": [1, 2, None, 3],
        "ep": [1],
    },
    "offload by part": {
        "recompute": ["none", "selective", "full"],
        "recompute_parts": [("moe", "mlp")],
        "offload_activations": [True, False],
        "offload_parts": [("expert_up", "activation"), None, ("core_attention",), ("other",)],
        "offload_weights": [False],
        "training": [True, False],
        "ep": [1],
        "micro_batch_size": [1],
    },
    "uneven stages": {
        "first_stage_layers": [None, 1],
        "last_stage_layers": [None, 1],
        "loss_as_layer": [False, True],
        "stage_layers": [None, (1, 3), (2, 2)],
        "ep": [2],
        "micro_batch_size": [1],
    },
    "schedules": {
        "schedule": ["1f1b", "zb-h1", "zb-v", "dualpipe"],
        "expert_overlap": [False, True],
        "ep": [2],
    },
    "loads": {"expert_capacity": [None, 1.5], "expert_imbalance": [1.0, 1.25], "ep": [1, 4]},
    "forward only": {"training": [True, False], "zero": [3, 1], "optimizer": ["sgd", "adamw"]},
    "fewest recomputed layers": {
        "recompute": ["none", "selective", "full"],
        "recompute_layers": "fit",
        "micro_batch_size": [1],
        "ep": [1, 2],
    },
    "largest micro-batch": {
        "micro_batch_size": "largest",
        "zero": [0, 3],
        "ep": [1, 2],
        "recompute": ["none", "full"],
    },
    "balanced stages": {"stage_layers": "balanced", "micro_batch_size": [1], "ep": [1, 2]},
    "balanced stages of the largest micro-batch": {
        "stage_layers": "balanced",
        "micro_batch_size": "largest",
        "pp": [2],
        "ep": [2],
    },
    "fewest recomputed layers of the largest micro-batch": {
        "micro_batch_size": "largest",
        "recompute_layers": "fit",
        "recompute": ["none", "full"],
        "pp": [1, 2],
        "tp": [1, 2],
        "ep": [2],
    },
}


def as_space(fields: dict[str, Any]) -> dict[str, Any]:
    """A narrow space with other fields; balanced stages choose the ends of a pipeline."""
    ends = ("first_stage_layers", "last_stage_layers")
    chosen = ends if fields.get("stage_layers") == "balanced" else ()
    return {name: some for name, some in (NARROW | fields).items() if name not in chosen}


def modern_case(name: str) -> Case:
    """A space of `MODERN` for a model with experts, with room for a part of the strategies."""
    space = as_space(MODERN[name])
    system = SYSTEMS["offload_activations" in space]  # which needs a second memory tier
    naive = everything(EXPERTS, system, space, np.inf)
    resident_bytes = naive.estimates.memory_reserved_bytes[naive.estimates.refused < 0]
    room = float(np.quantile(resident_bytes, 0.6))
    return Case(
        model=EXPERTS,
        system=system,
        space=space,
        capacity_bytes=room,
        candidates=Candidates.of(EXPERTS, system, Space.validated(space)),
        naive=kept(naive.within(system, room), space),
        words={},
    )


@pytest.mark.parametrize("name", MODERN)
def test_modern_fields_are_searched_as_trying_everything_does(name):
    """Candidates, reasons and the best of a model with experts, with room for a part of them."""
    case = modern_case(name)
    space, candidates, naive = case.space, case.candidates, case.naive
    for field, (word, reason) in KEPT.items():
        assert (space.get(field) == word) == (case.naive.rejected[reason] > 0)
    table = candidates.strategies(np.arange(len(candidates)))
    found = keys(asked(candidates), table)
    assert len(set(found)) == len(found) > 20
    assert set(found) == set(keys(naive.asked, naive.strategies))
    looked = case.scan(rows=60)
    assert looked.rejected + refusals(candidates.illegal) == case.naive.rejected
    assert looked.feasible == len(case.naive.feasible) > 0
    seconds = case.naive.estimates.step_time_s
    best = case.ordered({row: seconds[row] for row in case.naive.feasible})
    assert listed(looked.best) == best[:10]


def test_estimates_one_by_one_find_the_same_of_a_model_with_experts():
    """Over ep, etp, cp, ZeRO and recomputed layers: `estimate` of each that is legal."""
    space = {**NARROW, "cp": [1, 2], "ep": [1, 2], "zero": [0, 3], "recompute": ["full"]}
    space |= {"recompute_layers": "fit", "tp": [2], "micro_batch_size": [2], "pp": [2]}
    system, room = SYSTEMS[0], 2.1505e9
    candidates = Candidates.of(EXPERTS, system, Space.validated(space))
    table = candidates.strategies(np.arange(len(candidates)))
    fitting: dict[tuple[Any, ...], tuple[float, float, int]] = {}
    for row in range(len(table)):
        try:
            one = estimate(EXPERTS, system, table.strategy(row))
        except InputError:
            continue
        if one.memory_bytes.reserved <= room:
            fields = one.strategy
            key = tuple(str(v) for n, v in fields.items() if n != "recompute_layers")
            layers = fields["recompute_layers"] or np.inf
            least = fitting.get(key, (np.inf, 0.0, -1))
            if layers < least[0] or least[2] < 0:
                fitting[key] = layers, one.step_time_s, row
    question = SearchQuery(model=EXPERTS, system=system, capacity_bytes=room)
    found = merged([scan(question, box) for box in candidates.legal], question)
    assert found.feasible == len(fitting) > 4
    expected = sorted((time, number) for _, time, number in fitting.values())
    assert listed(found.best) == expected[:10]
    assert found.rejected["more_recompute"] > 0


def test_what_is_passed_over_is_saved_with_the_reason(tmp_path):
    """As often as it is counted, and with its memory, which was computed."""
    space = {**NARROW, "ep": 2, "recompute": ["full"], "recompute_layers": "fit"}
    file = tmp_path / "all.parquet"
    room = 2.1505e9
    found = search(EXPERTS, SYSTEMS[0], space, max_memory=room, save=file, save_all=True)
    rows = pl.read_parquet(file)
    passed = rows.filter(pl.col("rejected") == "more_recompute")
    assert len(passed) == found.rejected["more_recompute"] > 0
    assert passed["step_time_s"].is_null().all()
    assert (passed["reserved_bytes"] <= room).all()
    assert len(rows) == found.candidates


@each_row("steps", [1, 30])
def test_what_is_compared_is_looked_at_together(steps):
    """Layouts of which one is kept are never in different pieces."""
    space = as_space({"micro_batch_size": "largest", "stage_layers": "balanced", "pp": [2, 4]})
    names = [n for n in LAYOUT_FIELDS if n not in ("micro_batch_size", "stage_layers", *SPREAD)]
    seen: set[tuple[int, ...]] = set()
    for box in Candidates.of(EXPERTS, SYSTEMS[0], Space.validated(space)).legal:
        pieces = list(box.cut(steps * len(box.options)))
        assert sum(map(len, pieces)) == len(box)
        for piece in pieces:
            columns = [getattr(piece.layouts, name).tolist() for name in names]
            here = set(zip(*columns, strict=True))
            assert not here & seen
            seen |= here
    assert len(seen) > 10


@each_row(
    ("fields", "told"),
    [
        ({"stage_layers": "balanced", "first_stage_layers": 2}, "first_stage_layers: is chosen by"),
        ({"recompute_layers": "largest"}, "recompute_layers: 'largest': must be a whole number"),
        ({"etp": "pp"}, "etp: 'pp': must be a whole number"),
        ({"dp_shard": "some"}, "dp_shard: 'some': must be a whole number"),
    ],
)
def test_words_stand_where_they_mean_something(fields, told):
    """And are refused elsewhere."""
    with pytest.raises(InputError, match=told):
        Space.validated(fields)


def test_experts_are_as_tensor_parallel_as_the_rest_or_whole():
    """In the full scope etp is 1 or tp; ep whatever divides 8 experts and the ranks of a stage."""
    space = {"gpus": 8, "gbs": 8, "pp": 1, "mbs": 1, "zero": 1, "tp_overlap": "none"}
    space |= {"scope": "full"}
    legal = Candidates.of(EXPERTS, SYSTEMS[0], Space.validated(space)).legal
    found = {
        pair
        for box in legal
        for pair in zip(
            *(getattr(box.layouts, n).tolist() for n in ("tp", "etp", "ep")), strict=True
        )
    }
    eps = {1: [1, 2, 4, 8], 2: [1, 2, 4], 4: [1, 2], 8: [1]}
    assert found == {(t, e, p) for t in (1, 2, 4, 8) for e in {1, t} for p in eps[e]}


def test_long_sequences_are_split():
    """From 32,768 tokens on, into parts of at least two for each rank, unless cp is named."""
    space: dict[str, Any] = {"gpus": 8, "gbs": 8, "mbs": 1, "vpp": 1, "zero": 1}
    for more, expected in (
        ({"seq_len": 32767}, {1}),
        ({"seq_len": 32768}, {1, 2, 4, 8}),
        ({"seq_len": [17, 32770]}, {1}),
        ({"seq_len": [17, 32772]}, {1, 2}),
        ({"seq_len": 32768, "cp": 2}, {2}),
    ):
        found = Candidates.of(samples.llama(), SYSTEMS[0], Space.validated(space | more))
        assert {cp for box in found.legal for cp in box.layouts.cp.tolist()} == expected


@pytest.mark.nightly
def test_the_smallest_number_of_gpus_with_experts_and_split_weights():
    """As a search of every number finds it."""
    told = SYSTEMS[0].to_dict()
    space = {**NARROW, "zero": [0, 3], "dp_shard": [None, 2], "recompute": ["full"]}
    space |= {"gpus": [1], "tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1]}
    numbers = []
    for room in (1.3e6, 2.5e6):
        told["accelerator"]["memory"][0]["capacity"] = 2**31 + room
        system = System.validated(told)
        found = smallest_gpus(EXPERTS, system, Space.validated(space), above=0, most=16)
        question = SearchQuery(model=EXPERTS, system=system, capacity_bytes=2**31 + room)
        enough = None
        for gpus in (1, 2, 4, 8, 16):
            every = Candidates.of(EXPERTS, system, Space.validated(space | {"gpus": gpus}))
            if any(scan(question, box).feasible for box in every.legal):
                enough = gpus
                break
        assert found.gpus == enough
        numbers.append(found.gpus)
    assert len(set(numbers)) > 1

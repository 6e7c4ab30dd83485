"""Variants of one layout are one line: the same as grouping every strategy of the space."""

from typing import Any

import pytest

import saved_search
from naive_search import KEPT
from profiles import drawn
from shardwise import search
from shardwise.config.strategy import Strategy
from shardwise.planning.search import pieces, plans
from shardwise.planning.search.ranking import OBJECTIVES
from test_search_brute_force import Case, cases
from test_search_modern import MODERN, modern_case

pytestmark = pytest.mark.any_software

pytestmark = pytest.mark.any_software

WORK = (
    *("gpus", "global_batch_size", "seq_len", "training", "dtype", "attention", "quantization"),
    *("document_len", "optimizer", "frozen", "lora_rank", "stack", "any_software"),
    *("expert_capacity", "expert_imbalance", "dispatch_dtype", "quantized_weights", "lora_parts"),
    *("lora_targets", "adapter", "base_weights", "loss_tokens", "task", "reference_model"),
)
LAYOUT = ("tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch_size", "recompute")


def settings(case: Case, strategy: Strategy) -> int:
    """Fields that differ from what the layout has by default, counted one by one."""
    layout = {name: getattr(strategy, name) for name in (*WORK, *LAYOUT, "tp2")}
    usual = Strategy(**layout).resolved(case.model)
    fields = [name for name in Strategy.model_fields if name != "sequence_parallel"]
    return sum(getattr(strategy, name) != getattr(usual, name) for name in fields)


def lines_by_hand(case: Case, objective: str, count: int) -> list[tuple[Any, ...]]:
    """Score and number, variants, and best score of each line, from every strategy."""
    table, seconds = case.naive.strategies, case.naive.estimates.step_time_s
    score = OBJECTIVES[objective](seconds, table, case.system)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in case.naive.feasible:
        strategy = table.strategy(row)
        key = [getattr(strategy, name) for name in (*WORK, *LAYOUT) if name != "stack"]
        groups.setdefault((strategy.stack.name, *key), []).append(row)
    found = []
    for rows in groups.values():
        best, first = min((score[row], case.numbers[row]) for row in rows)
        near = [row for row in rows if score[row] <= best * 1.005]
        simple = min(
            (settings(case, table.strategy(row)), score[row], case.numbers[row], seconds[row])
            for row in near
        )
        fastest = seconds[case.numbers.index(first)]
        found.append((best, first, simple, len(near) - 1, fastest))
    lines = sorted(found)[:count]
    return sorted(
        (simple[1:], variants, None if simple[2] == first else fastest)
        for _, first, simple, variants, fastest in lines
    )


def compared(case: Case, monkeypatch: pytest.MonkeyPatch, objective: str) -> tuple[int, int]:
    """Compare a search in small pieces; return lines with variants, and with a simpler one."""
    monkeypatch.setattr(pieces, "PIECE_ROWS", 50)
    memory = case.system.accelerator.memory[0].model_copy(update={"capacity": case.capacity_bytes})
    tiers = (memory, *case.system.accelerator.memory[1:])
    accelerator = case.system.accelerator.model_copy(update={"memory": tiers})
    system = case.system.model_copy(update={"accelerator": accelerator})
    words = {"objective": objective, "top": 4, "fits": None}
    found = search(case.model, system, case.space, **words)
    expected = lines_by_hand(case, objective, 4)
    rows = [case.numbers.index(number) for (_, number, _), _, _ in expected]
    strategies = [case.naive.strategies.strategy(row).to_dict() for row in rows]
    assert [one.strategy for one in found.best] == strategies
    assert [(one.step_time_s, one.variants, one.best_step_time_s) for one in found.best] == [
        (seconds, count, fastest) for (_, _, seconds), count, fastest in expected
    ]
    several = sum(one.variants > 0 for one in found.best)
    return several, sum(one.best_step_time_s is not None for one in found.best)


@pytest.mark.parametrize(
    ("objective", "first"), [("step_time", 900), ("tokens_per_s_per_gpu", 949)]
)
def test_lines_are_the_groups_of_all_strategies(objective, first, monkeypatch):
    """Groups, their best, the simplest of each and the number of variants."""
    found = [compared(case, monkeypatch, objective) for case in cases(first, drawn(24))]
    assert sum(several for several, _ in found) > 2
    assert objective == "step_time" or sum(simpler for _, simpler in found) > 0


SELECTED = [
    name
    for name, space in MODERN.items()
    if any(space.get(field) == word for field, (word, _) in KEPT.items())
]


@pytest.mark.parametrize("name", SELECTED)
def test_variants_obey_the_selection_of_a_space(name, monkeypatch):
    """Layouts that compete to be selected are evaluated together, whichever are listed."""
    compared(modern_case(name), monkeypatch, "step_time")


def test_all_variants_lists_every_strategy():
    """Without lines the best are those of the full space; a line is among them."""
    space = {"gpus": 8, "gbs": 64, "tp": 2, "pp": 1, "cp": [1, 2], "micro_batch_size": 1}
    space |= {"recompute": "none", "dp_overlap": True, "fused_activation": False, "vpp": 1}
    space |= {"placement": "tp-cp-dp-pp", "tp_overlap": ["stack", "none"], "tp_exchange": "rs_ag"}
    space |= {"offload_weights": False, "offload_optimizer": [False, True], "zero": [0, 1]}
    space |= {"offload_activations": False, "tp_regather": [True, False]}
    lines = search("llama3-8b", "h100-sxm", space, top=3)
    every = search("llama3-8b", "h100-sxm", space, top=1000, all_variants=True)
    assert (lines.all_variants, every.all_variants) == (False, True)
    assert len(every.best) == every.feasible > 4
    assert {one.variants for one in every.best} == {0}
    assert [one.best_step_time_s for one in every.best] == [None] * len(every.best)
    first = lines.best[0]
    best_s = every.best[0].step_time_s
    assert best_s <= first.step_time_s <= best_s * 1.005
    key = {name: first.strategy[name] for name in LAYOUT}
    near = [
        one
        for one in every.best
        if key.items() <= one.strategy.items() and one.step_time_s <= best_s * 1.005
    ]
    assert first.variants == len(near) - 1 > 0
    assert len({tuple(one.strategy[name] for name in LAYOUT) for one in lines.best}) == len(
        lines.best
    )


def test_workers_and_saved_parts_give_the_same_lines(tmp_path, monkeypatch):
    """Counted by one process, by several, and from parts of a file."""
    alone = saved_search.plain(saved_search.case())
    monkeypatch.setattr(plans, "_MOST_ROWS_HERE", 0)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 60)
    assert saved_search.plain(saved_search.case(jobs=2)) == alone
    monkeypatch.setattr(pieces, "SAVED_PIECE_ROWS", 400)
    assert saved_search.plain(saved_search.case(save=tmp_path / "all.parquet")) == alone
    assert any(one["variants"] for one in alone["best"])


def test_an_interrupted_search_lists_the_best_of_each_layout():
    """While scanning, or while counting: complete is false, and variants are not counted."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    whole = saved_search.case()
    for name, place in (("progress", None), (None, plans.CountVariants)):
        with pytest.MonkeyPatch.context() as patch:
            if place is not None:
                patch.setattr(place, "__call__", stop)
            found = saved_search.case(**({} if name is None else {name: stop}))
        assert (found.complete, found.variants_counted) == (False, False)
        assert [one.variants for one in found.best] == [0] * len(found.best)
    fastest = [one.best_step_time_s or one.step_time_s for one in whole.best]
    assert sorted(fastest) == [one.step_time_s for one in found.best]


def test_a_field_without_effect_is_no_setting():
    """One tensor-parallel rank has no communication, whatever the space says."""
    space = {"gpus": 8, "gbs": 64, "tp": [1, 2], "pp": 1, "tp_exchange": ["all_reduce"], "cp": 1}
    found = search("llama3-8b", "h100-sxm", space, top=1000)
    assert {one.strategy["tp"] for one in found.best} == {1, 2}
    for one in found.best:
        assert ("tp_exchange" in one.settings) == ("tp" in one.settings) == (one.strategy["tp"] > 1)

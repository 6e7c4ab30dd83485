"""Estimates of several strategies: as each alone, in one evaluation of them all."""

import pytest

from shardwise import Strategy, System, estimate, estimator, search
from shardwise.config.model import Model
from shardwise.estimator import estimate_each
from shardwise.frozen import FrozenDict

# Strategies that differ in stages, experts, attention, graphs, and in the tiers that they use.
PLANS = [
    {"tp": 2, "ep": 4},
    {"pp": 2, "ep": 8, "gpus": 16, "recompute": "full"},
    {"tp": 1, "ep": 8, "attention": "multihead", "mbs": 2},
]


@pytest.mark.parametrize("stated", [False, True])
def test_strategies_together_are_those_alone(stated):
    """Every field of every estimate, details included."""
    model, system = Model.load("qwen3-30b-a3b"), System.load("h200-sxm")
    shared = {"gpus": 8, "gbs": 16, "seq_len": 2048}
    first = [estimate(model, system, shared | plan).strategy for plan in PLANS]
    strategies = [Strategy.validated(one) for one in first]
    load = {"expert_imbalance": 1.0} if stated else {}
    alone = [estimate(model, system, one, **load) for one in strategies]
    each = estimate_each(model, system, strategies, stated=stated)
    assert [one.to_dict() for one in each] == [one.to_dict() for one in alone]


def test_slower_and_faster_links_are_evaluated_once_for_all_plans(monkeypatch):
    """The intervals of all plans of a search need one evaluation, that of the plans themselves."""
    calls, evaluated = [], estimator.evaluate

    def counting(model, system, table, networks=None):
        calls.append((len(table), networks is not None))
        return evaluated(model, system, table, networks)

    monkeypatch.setattr(estimator, "evaluate", counting)
    found = search("llama3-8b", "h100-sxm", gpus=16, gbs=64, tp=[1, 2], pp=1, zero=1, cp=1)
    assert all(plan.interval for plan in found.advised)
    assert [count for count, on_networks in calls if on_networks] == [len(found.advised)]


def test_a_frozen_mapping_is_hashed_once(monkeypatch):
    """Its items cannot change."""
    one = FrozenDict({"a": [1, {"b": 2}]})
    known = hash(one)
    monkeypatch.setattr(FrozenDict, "_comparable", None)
    assert hash(one) == known

"""Which of the best plans cannot be distinguished, which is safer, what is shown."""

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import estimate, search
from shardwise.analysis.features import feature_words, measured_features
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.planning.search.plans import ties_of
from shardwise.planning.search.results import RankedPlan, SearchResult, Ties
from shardwise.report.tables.search import print_search

pytestmark = pytest.mark.any_software

SMALL = {"tp_overlap": "stack", "dp_overlap": True, "fused_activation": False, "recompute": "none"}
OWN = ("unmeasured_features", "settings")
PLAN = RankedPlan.model_construct(**dict(samples.run(operations=False)), settings=())


def plans(*rates: float, **columns: Sequence[Any]) -> list[RankedPlan]:
    """Plans of some throughput per GPU; features, settings and fields of each as told."""
    shares = columns.pop("shares", [0.0] * len(rates))
    records = {name: columns.pop(name) for name in OWN if name in columns}
    made = []
    for place, rate in enumerate(rates):
        other = {name: values[place] for name, values in columns.items()}
        times = dict.fromkeys(PLAN.time_s, 0.0) | {
            "forward": (1.0 - shares[place]) * 100 / rate,
            "bubble": shares[place] / 2 * 100 / rate,
            "dp_comm": shares[place] / 2 * 100 / rate,
        }
        changed = {
            "tokens_per_s_per_gpu": rate,
            "step_time_s": 100 / rate,
            "time_s": times,
            "strategy": PLAN.strategy | other,
            **{name: tuple(values[place]) for name, values in records.items()},
        }
        made.append(PLAN.model_copy(update=changed))
    return made


def test_plans_within_the_ratio_are_alike() -> None:
    """Those from the first on that are; a worse one between ends them."""
    ratio = distinguishable_ratio()
    near = 100 / ratio * 1.0001
    assert ties_of([]) is None
    assert ties_of(plans(100)) is None
    assert ties_of(plans(100, 100 / ratio * 0.999)) is None
    found = ties_of(plans(100, near, near, 50, 99))
    assert found is not None
    assert (found.plans, found.within) == (3, pytest.approx(ratio - 1))
    # Ranked by another figure, a faster plan may follow: too much faster is not alike.
    assert ties_of(plans(100, 100 * ratio * 1.001)) is None


def test_plans_are_compared_by_what_they_are_ranked_by() -> None:
    """Twice the GPUs for half the time: alike in what a GPU does, not in time; forward, neither."""
    one, other = plans(100, 99.9)
    other = other.model_copy(update={"step_time_s": 2 * one.step_time_s})
    assert ties_of([one, other], "step_time") is None
    for objective in ("tokens_per_s_per_gpu", "tokens_per_dollar"):
        assert ties_of([one, other], objective) is not None
    assert ties_of(plans(100, 99.9, training=[False, False])) is None
    scales = search("llama3-8b", "h100-sxm", gpus=[16, 32], gbs=64, top=2, tp=2, pp=1, mbs=1)
    times = [plan.step_time_s for plan in scales.best]
    assert (scales.alike is None) == (times[1] / times[0] >= distinguishable_ratio())


def test_the_order_of_plans_alike_by_hand() -> None:
    """Fewest features that no run used, then fewest settings, then the rank."""
    found = ties_of(
        plans(
            *(100, 99.9, 99.8, 99.7, 50),
            unmeasured_features=[["a", "b"], [], [], ["a"], []],
            settings=[[], ["tp", "pp", "vpp"], ["tp", "pp"], [], []],
            shares=[0.1, 0.3, 0.2, 0.1, 0.1],
        )
    )
    assert found is not None
    assert (found.plans, found.order, found.safer) == (4, (2, 1, 3, 0), 2)
    assert (found.untried, found.uncertain) == (("a", "b"), pytest.approx(0.2))
    equal = ties_of(plans(100, 99.9, settings=[["tp"], ["pp"]]))
    assert equal is not None
    assert (equal.order, equal.safer, equal.untried) == ((0, 1), 0, ())


UNTRIED = [
    ("offload_weights", True),
    ("offload_optimizer", True),
    ("fused_activation", True),
    ("tp_overlap", "ring"),
    ("tp_overlap", "pipe"),
    ("tp_exchange", "p2p_rs_ag"),
    ("schedule", "zb-h1"),
]
LAYOUT = {"gpus": 8, "tp": 2, "pp": 2, "gbs": 32}


@each_row(("field", "value"), UNTRIED)
def test_what_no_run_did(field: str, value: Any) -> None:
    """It is a feature of the estimate, which has a wider interval; without it there is none."""
    plain = estimate("llama3-8b", "h100-sxm", LAYOUT)
    more: dict[str, Any] = {field: value, "any_software": True}
    more |= {"cpu_optimizer": "none"} if field == "offload_optimizer" else {}
    found = estimate("llama3-8b", "h100-sxm", LAYOUT | more)
    assert plain.unmeasured_features == ()
    feature = f"{field}={str(value).lower()}"
    assert found.unmeasured_features == (feature,)
    assert plain.interval is not None
    assert found.interval is not None
    added = measured_features().added_error
    for end in ("low_s", "high_s"):
        before, after = (
            math.log(getattr(one.interval, end) / one.step_time_s) for one in (plain, found)
        )
        assert abs(after) == pytest.approx((before**2 + added**2) ** 0.5)


def test_a_feature_without_effect_is_none() -> None:
    """Overlap of one tensor-parallel rank; nothing of a forward pass."""
    alone = {"gpus": 8, "gbs": 64, "tp_overlap": "ring", "any_software": True}
    assert estimate("llama3-8b", "h100-sxm", alone).unmeasured_features == ()
    forward = LAYOUT | {"training": False, "tp_overlap": "ring", "any_software": True}
    assert estimate("llama3-8b", "h100-sxm", forward).unmeasured_features == ()


@each_row(
    ("feature", "words"),
    [
        ("tp_overlap=ring", "ring TP overlap"),
        ("tp_exchange=summa", "summa TP communication"),
        ("offload_optimizer=true", "optimizer offload"),
        ("dp_overlap=true", "DP overlap"),
        ("zero=2", "ZeRO 2"),
        ("recompute_layers", "recompute layers"),
        ("schedule=zb-h1", "zb-h1 schedule"),
    ],
)
def test_features_in_words(feature: str, words: str) -> None:
    """As an engineer says them."""
    assert feature_words([feature]) == words


@cache
def searched() -> SearchResult:
    """Three plans."""
    return search("llama3-8b", "h100-sxm", SMALL, gpus=16, gbs=64, top=3, tp=2, zero=1)


def test_the_report_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans are numbered in their order, and a note says how many cannot be separated."""
    plain = {"plans": 2, "within": 0.04, "safer": 0, "untried": (), "uncertain": 0.125}
    first, *others = searched().rows
    near = [first, *(one.model_copy(update={"step_time_s": first.step_time_s}) for one in others)]
    near[-1] = near[-1].model_copy(update={"step_time_s": 1.05 * first.step_time_s})
    result = searched().model_copy(update={"advised": tuple(near)})
    print_search(result.model_copy(update={"alike": Ties(**plain)}))
    text = capsys.readouterr().out
    note = "the predictions of 2 of these 3 plans are within 4.0 % of plan 1"
    assert note in " ".join(text.split())
    firsts = [words[0] for words in map(str.split, text.splitlines()) if len(words) > 8]
    assert [one for one in firsts if one.isdecimal()] == ["1", "2", "3"]
    print_search(result.model_copy(update={"alike": None}))
    assert "cannot separate" not in capsys.readouterr().out


def test_plans_alike_are_in_the_json(shardwise: Any) -> None:
    """Under that name; null where the best stands apart."""
    words = "search llama3-8b h100-sxm --gpus 16 --gbs 64 --top 3 --json"
    words += " --fix tp=2,zero=1,tp_overlap=stack,recompute=none"
    _, shown, _ = shardwise(*words.split())
    found = json.loads(shown)["alike"]
    assert found is None or set(found) == set(Ties.model_fields)

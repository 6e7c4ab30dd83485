"""Which of the best plans cannot be distinguished, which is safer, what is shown."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Estimate, Strategy, search
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.planning.search.plans import ties_of
from shardwise.planning.search.results import Ties
from shardwise.report.tables.search import print_search
from shardwise.validate.measured.predict import translate
from shardwise.validate.measured.run import NotModelledError
from shardwise.validate.measured.store import load_runs

pytestmark = pytest.mark.any_software

PLAN = samples.run(operations=False)


def plans(*rates: float, **columns: Sequence[Any]) -> list[Estimate]:
    """Plans of some throughput per GPU; the share of exchanges and fields of each as told."""
    shares = columns.pop("shares", [0.0] * len(rates))
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


def test_the_safer_plan_by_hand() -> None:
    """That with the least that no run did, then that with the least exchanges; first of equals."""
    found = ties_of(plans(100, 99.9, 99.8, shares=[0.3, 0.1, 0.2]))
    assert found is not None
    assert (found.safer, found.untried, found.uncertain) == (1, (), pytest.approx(0.1))
    tried = ties_of(
        plans(100, 99.9, 99.8, shares=[0.1, 0.3, 0.2], fused_activation=[True, False, False])
    )
    assert tried is not None
    assert (tried.safer, tried.untried) == (2, ("fused_activation",))
    equal = ties_of(plans(100, 99.9, shares=[0.2, 0.2]))
    assert equal is not None
    assert equal.safer == 0
    both = ties_of(plans(100, 99.9, shares=[0.2, 0.1], schedule=["zb-h1", "zb-h1"]))
    assert both is not None
    assert (both.safer, both.untried) == (1, ())


UNTRIED = [
    ("offload_weights", True),
    ("offload_optimizer", True),
    ("fused_activation", True),
    ("tp_overlap", "ring"),
    ("tp_overlap", "pipe"),
    ("tp_exchange", "summa"),
    ("tp_exchange", "p2p_rs_ag"),
    ("schedule", "zb-h1"),
    ("schedule", "zb-v"),
]


@each_row(("field", "value"), UNTRIED)
def test_what_no_run_did(field: str, value: Any) -> None:
    """A plan without it is safer, however much it exchanges."""
    assert getattr(Strategy.validated({field: value}), field) == value
    usual = PLAN.strategy[field]
    found = ties_of(plans(100, 99.9, shares=[0.1, 0.5], **{field: [value, usual]}))
    assert found is not None
    assert (found.safer, found.untried) == (1, (field,))


def test_no_run_did_what_is_called_untried() -> None:
    """None of grade A, as its row is translated."""
    done = set()
    for run in load_runs():
        if run.grade == "A":
            try:
                strategy = translate(run).strategy
            except NotModelledError:
                continue
            done |= {
                (field, value) for field, value in UNTRIED if getattr(strategy, field) == value
            }
    assert done == set()


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"safer": 0}, "within 4.0 %: too close to distinguish; plan 1 is also the safest"),
        ({"safer": 1}, "plan 2 is safer: communication and waiting take 12.5 % of its step"),
        ({"safer": 1, "untried": ("fused_activation",)}, "which no measured run has used"),
    ],
)
def test_the_report_of_a_search(
    found: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks of plans that are alike have a mark; the safer of them is named, with why."""
    plain = {"plans": 2, "within": 0.04, "untried": (), "uncertain": 0.125}
    result = search("llama3-8b", "h100-sxm", gpus=16, gbs=64, top=3, tp=2, zero=1)
    print_search(result.model_copy(update={"alike": Ties(**plain | found)}))
    shown = " ".join(capsys.readouterr().out.split())
    assert line in shown
    assert "~ the first 2 are" in shown
    print_search(result.model_copy(update={"alike": None}))
    assert "~" not in capsys.readouterr().out


def test_plans_alike_are_in_the_json(shardwise: Any) -> None:
    """Under that name; null where the best stands apart."""
    words = "search llama3-8b h100-sxm --gpus 16 --gbs 64 --top 3 --fix tp=2,zero=1 --json"
    _, shown, _ = shardwise(*words.split())
    found = json.loads(shown)["alike"]
    assert found is None or set(found) == set(Ties.model_fields)

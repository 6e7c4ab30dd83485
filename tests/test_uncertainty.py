"""How far off an estimate may be, by hand; what its rates rest on; what is shown."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import Model, Strategy, System, catalog, estimate
from shardwise.analysis import prediction_interval as module
from shardwise.analysis.prediction_interval import (
    LEVEL,
    RunFeatures,
    StackRuns,
    ValidatedRuns,
    distinguishable_ratio,
    interval_of,
    rests_on,
    run_features,
    stack_runs,
    uncertainty_of,
    validated_runs,
)
from shardwise.report.tables.estimate import print_estimate

pytestmark = pytest.mark.any_software

some = examples(60)
ONE = RunFeatures(
    experts=False,
    accelerator="h100-sxm",
    generation="hopper",
    framework="megatron",
    precision="bf16",
    assumed=False,
    gpus=64,
    parameters=8e9,
    seq_len=4096,
)
FIELDS = tuple(RunFeatures.__dataclass_fields__)


def known(*runs: tuple[str, float, dict[str, Any]]) -> ValidatedRuns:
    """Runs like `ONE` but for what is told: source, error, what differs."""
    described = [replace(ONE, **other) for _, _, other in runs]
    return ValidatedRuns(
        ids=tuple(f"run {n}" for n in range(len(runs))),
        sources=np.array([source for source, _, _ in runs]),
        features={name: np.array([getattr(d, name) for d in described]) for name in FIELDS},
        errors=np.array([error for _, error, _ in runs]),
    )


def factor(size: float) -> float:
    """Intervals are narrower than the errors of sources left out."""
    return float(np.exp(0.8 * size))


def test_equal_runs_weigh_alike() -> None:
    """Of ten errors of 1 to 10 %, either way, eight are at most 8 %."""
    errors = [0.01 * n * (-1) ** n for n in range(1, 11)]
    found = uncertainty_of(ONE, known(*(("a", error, {}) for error in errors)))
    assert found.factor == pytest.approx(factor(0.08))
    assert (found.runs, found.nearest, found.distance) == (10, "run 0", 0)


@each_row(
    ("other", "distance"),
    [
        ({"experts": True}, 4),
        ({"accelerator": "h200-sxm"}, 0.6),
        ({"accelerator": "b200-sxm", "generation": "blackwell"}, 1.2),
        ({"framework": "torchtitan"}, 1),
        ({"precision": "fp8"}, 0.4),
        ({"assumed": True}, 2),
        ({"gpus": 256}, 0.24),
        ({"parameters": 1e9, "seq_len": 8192}, 0.48),
    ],
)
def test_distances_by_hand(other: dict[str, Any], distance: float) -> None:
    """They add up; sizes count by their doublings, up or down."""
    assert uncertainty_of(ONE, known(("a", 0.1, other))).distance == pytest.approx(distance)
    told = known(("a", 0.1, {}))
    assert uncertainty_of(replace(ONE, **other), told).distance == pytest.approx(distance)


def test_near_runs_weigh_more() -> None:
    """At distance 4 a run weighs e^-4: nine of them less than a quarter of one that is equal."""
    far = [("b", 0.5, {"experts": True})] * 9
    assert uncertainty_of(ONE, known(("a", 0.1, {}), *far)).factor == pytest.approx(factor(0.1))
    many = known(("a", 0.1, {}), *far * 2)
    assert uncertainty_of(ONE, many).factor == pytest.approx(factor(0.5))


def test_the_nearest_sixty_count() -> None:
    """Equal ones first; of those further off, none."""
    equal = [("a", 0.01, {})] * 60
    far = [("b", 9.0, {"gpus": 128})] * 500
    found = uncertainty_of(ONE, known(*far, *equal))
    assert (found.factor, found.runs) == (pytest.approx(factor(0.01)), 60)
    assert found.nearest == "run 500"


def test_runs_of_the_same_source_may_be_left_out() -> None:
    """None of them counts, however near and few the others are."""
    runs = known(("a", 0.01, {}), ("b", 0.3, {"experts": True}), ("a", 0.02, {}))
    found = uncertainty_of(ONE, runs, without="a")
    assert (found.factor, found.runs, found.nearest) == (pytest.approx(factor(0.3)), 1, "run 1")
    assert uncertainty_of(ONE, runs).nearest == "run 0"
    assert uncertainty_of(ONE, runs, without="nobody") == uncertainty_of(ONE, runs)


@some
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.floats(1, 3))
def test_larger_errors_make_wider_intervals(errors: list[float], more: float) -> None:
    """Of the same runs; one at least, and never beyond the largest error."""
    plain = uncertainty_of(ONE, known(*(("a", e, {}) for e in errors))).factor
    wider = uncertainty_of(ONE, known(*(("a", e * more, {}) for e in errors))).factor
    assert 1 <= plain <= wider * (1 + 1e-12)
    assert plain <= factor(max(map(abs, errors))) * (1 + 1e-12)


def test_intervals_hold_about_as_many_as_they_say() -> None:
    """Of runs of which nothing was assumed, with their own source left out: 75 % as declared."""
    runs = validated_runs()
    held = []
    for place in np.flatnonzero(~runs.features["assumed"]):
        one = RunFeatures(**{name: runs.features[name][place].item() for name in FIELDS})
        spread = uncertainty_of(one, runs, without=str(runs.sources[place]))
        held.append(abs(runs.errors[place]) <= np.log(spread.factor))
    assert LEVEL - 0.15 < np.mean(held) < LEVEL + 0.1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let other runs be those that come with shardwise."""

    def take(runs: ValidatedRuns) -> float:
        monkeypatch.setattr(module, "validated_runs", lambda: runs)
        return distinguishable_ratio.__wrapped__()

    return take


def test_times_that_can_be_told_apart_by_hand(told: Any) -> None:
    """Common errors cancel: of 0.5, 0.52 and 0.56 the pairs are 0.02, 0.04 and 0.06 apart."""
    three = [("a", error, {"gpus": n}) for n, error in enumerate((0.5, 0.52, 0.56), start=1)]
    assert told(known(*three)) == pytest.approx(np.exp(0.06))
    other = ("a", 5.0, {"precision": "fp8"}), ("b", 5.0, {}), ("a", 5.0, {"assumed": True})
    assert told(known(*three, *other)) == pytest.approx(np.exp(0.06))
    # A study of many weighs like the root of its pairs: 10 pairs of 0 like 3.2 pairs.
    five = [("b", 0.3, {"gpus": n}) for n in range(1, 6)]
    weights = {0.0: 10**0.5, 0.02: 3**-0.5, 0.04: 3**-0.5, 0.06: 3**-0.5}
    reached, least = 0.0, None
    for gap, weight in weights.items():
        reached += weight
        if least is None and reached >= LEVEL * sum(weights.values()):
            least = gap
    assert least is not None
    assert told(known(*three, *five)) == pytest.approx(np.exp(least))


def test_times_of_the_catalog_can_be_told_apart() -> None:
    """Some per cent: better than a single estimate is, not better than clocks are."""
    assert 1.01 < distinguishable_ratio() < 1.15


@each_row(
    ("stack", "framework"),
    [
        ("nemo-2025", "megatron"),
        ("megatron-lm-2022", "megatron"),
        ("deepseek-2024", "megatron"),
        ("automodel-2025", "torchtitan"),
        ("torchtitan-2024", "torchtitan"),
        ("composer-2023", "composer"),
    ],
)
def test_what_describes_an_estimate(stack: str, framework: str) -> None:
    """Frameworks by the name of the stack, with those that share their code."""
    model = Model.load("llama3-8b")
    strategy = Strategy(gpus=16, gbs=16, stack=stack, quantization="fp8_block").resolved(model)
    found = run_features(model, System.load("h800-sxm"), strategy, assumed=True)
    assert found == RunFeatures(
        experts=False,
        accelerator="h800-sxm",
        generation="hopper",
        framework=framework,
        precision="fp8",
        assumed=True,
        gpus=16,
        parameters=float(model_parameters(model)),
        seq_len=8192,
    )


def model_parameters(model: Model) -> int:
    return estimate(model, "h100-sxm", {"gpus": 8, "gbs": 8}).parameters


def test_every_system_of_runs_has_a_generation() -> None:
    """That of its runs, so that a new estimate is described as they are."""
    runs = validated_runs()
    for name in set(runs.features["accelerator"]):
        rows = runs.features["accelerator"] == name
        model = samples.model()
        strategy = Strategy(dp=1, gbs=1, stack="nemo-2025").resolved(model)
        found = run_features(model, System.load(str(name)), strategy).generation
        assert set(runs.features["generation"][rows]) == {found}


def test_an_interval_lies_about_the_step() -> None:
    """A factor either way, of the runs that are shown; none forward only."""
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    result = estimate(model, system, {"gpus": 64, "gbs": 128})
    found = result.interval
    assert found is not None
    assert found.low_s * found.high_s == pytest.approx(result.step_time_s**2)
    strategy = Strategy(gpus=64, gbs=128).resolved(model)
    spread = uncertainty_of(run_features(model, system, strategy), validated_runs())
    assert found.high_s / result.step_time_s == pytest.approx(spread.factor)
    assert (found.level, found.runs, found.nearest) == (LEVEL, spread.runs, spread.nearest)
    assert 1.01 < spread.factor < 1.5
    alone = estimate(model, system, {"gpus": 8, "gbs": 8, "training": False})
    assert alone.interval is None
    assert interval_of(model, system, strategy.model_copy(update={"training": False}), 1) is None


def test_what_rates_rest_on() -> None:
    """By the sources of the system; what has none is assumed; a type in whichever form it has."""
    strategy = Strategy(dp=1, gbs=1).resolved(samples.model())
    sample = samples.system()
    kinds = ("products", "attention", "element-wise")
    assert rests_on(sample, strategy, {}) == dict.fromkeys(kinds, "assumed")
    sources = {
        "accelerator.matmul": {"kind": "fitted", "text": "a"},
        "accelerator.matmul.bf16": {"kind": "measured", "text": "b"},
        "accelerator": {"kind": "datasheet", "text": "c"},
        "network.1": {"kind": "published", "text": "d"},
    }
    told = System.validated(sample.to_dict() | {"sources": sources})
    assert rests_on(told, strategy, {"tp": 0, "dp": 1}) == {
        "products": "measured",
        "attention": "datasheet",
        "element-wise": "datasheet",
        "tp exchanges": "assumed",
        "dp exchanges": "published",
    }
    curved = rests_on(samples.curved(), strategy, {})
    assert curved["products"] == "assumed"


def test_an_estimate_rests_on_the_tiers_it_reaches() -> None:
    """Tensor-parallel groups inside a node, replicas beyond; nothing where nothing is exchanged."""
    result = estimate("llama3-8b", "h100-sxm", {"gpus": 64, "tp": 8, "gbs": 64})
    assert {"tp exchanges", "dp exchanges"} <= set(result.rests_on)
    assert set(result.rests_on.values()) <= {
        "measured",
        "fitted",
        "published",
        "assumed",
        "datasheet",
    }
    one = estimate("llama3-8b", "h100-sxm", {"gpus": 1, "gbs": 1})
    assert not [name for name in one.rests_on if name.endswith("exchanges")]
    assert one.to_dict()["rests_on"] == one.rests_on


def test_the_report_of_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines: from when to when, and the nearest run; forward only, none."""
    result = estimate("llama3-8b", "h100-sxm", {"gpus": 64, "gbs": 128})
    assert result.interval is not None
    print_estimate(result)
    shown = capsys.readouterr().out
    assert "in 8 of 10 runs; closest measured run (" in shown
    assert result.interval.nearest in shown
    far = result.interval.model_copy(update={"distance": 9.0})
    print_estimate(result.model_copy(update={"interval": far}))
    assert "closest measured run (very different):" in capsys.readouterr().out
    print_estimate(result.model_copy(update={"interval": None}))
    assert "closest measured" not in capsys.readouterr().out


def test_both_are_in_the_json_of_an_estimate(shardwise: Any) -> None:
    """Under their own names."""
    words = "estimate llama3-8b h100-sxm --gpus 64 --tp 4 --gbs 128 --json"
    code, shown, _ = shardwise(*words.split())
    told = json.loads(shown)
    assert code == 0
    names = {"low_s", "high_s", "level", "runs", "nearest", "distance", "stack_measured"}
    assert set(told["interval"]) == names
    assert told["rests_on"]["products"] in {"measured", "fitted"}


# --- software without measured runs ---


def test_stacks_without_measured_runs_have_the_spread_of_frameworks() -> None:
    """log(factor) is the root of both squares: of the runs' 0.8 x 0.1, and of the frameworks'."""
    runs = known(("a", 0.1, {}))
    spread = stack_runs().spread
    for framework, measured in (("megatron", True), ("unknown", False), ("llama", False)):
        found = uncertainty_of(replace(ONE, framework=framework), runs)
        size = 0.08 if measured else float(np.hypot(0.08, spread))
        assert found.stack_measured is measured
        assert np.log(found.factor) == pytest.approx(size)


def test_the_spread_of_frameworks_by_hand() -> None:
    """Of five levels either way, four are at most 0.4; each counts once."""
    levels = {"a": 0.1, "b": -0.4, "c": 0.2, "d": -0.9, "e": 0.3}
    made = StackRuns(stacks={"nemo-2025": 3, "gpt-neox-2023": 2}, levels=levels)
    assert made.spread == 0.4
    assert made.frameworks == {"megatron", "gpt"}


def test_an_estimate_says_that_its_stack_was_never_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A prior is wider than what it is built on, and both are printed."""
    row = {"gpus": 8, "zero": 3, "gbs": 8}
    found = {}
    for name in ("huggingface-2024", "llama-factory-2024"):
        found[name] = estimate("llama3-8b", "a100-80gb-sxm", {**row, "stack": name})
        print_estimate(found[name])
    said = capsys.readouterr().out
    assert said.count("no measured run of this stack") == 1
    measured, prior = (result.interval for result in found.values())
    assert measured is not None
    assert prior is not None
    assert measured.stack_measured
    assert not prior.stack_measured
    spread = stack_runs().spread
    wider = np.hypot(np.log(measured.high_s / measured.low_s) / 2, spread)
    assert np.log(prior.high_s / prior.low_s) / 2 == pytest.approx(wider)


def test_measured_stacks_are_those_of_the_catalog() -> None:
    """With runs each; no prior is among them."""
    table = stack_runs()
    assert set(table.stacks) <= set(catalog.names("stacks"))
    assert min(table.stacks.values()) > 0
    assert not {"unknown", "llama-factory-2024", "calculon"} & set(table.stacks)
    assert set(table.levels) <= table.frameworks

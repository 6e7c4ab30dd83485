"""How far off an estimate may be, by hand; what its rates rest on; what is shown."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import samples
from profiles import examples
from rows import each_row
from shardwise import Model, Strategy, System, catalog, estimate
from shardwise.analysis import prediction_interval as module
from shardwise.analysis.prediction_interval import (
    distinguishable_ratio,
    evidence_of,
    interval_of,
    left_out_sizes,
    rests_on,
    uncertainty_of,
    widened,
)
from shardwise.analysis.validated_runs import (
    RunFeatures,
    StackRuns,
    ValidatedRuns,
    run_features,
    stack_runs,
    validated_runs,
)
from shardwise.analysis.variation import LEVEL
from shardwise.report.tables.estimate import print_estimate

pytestmark = pytest.mark.any_software

some = examples(60)
ONE = RunFeatures(
    experts=False,
    accelerator="h100-sxm",
    generation="hopper",
    framework="megatron",
    software="nemo",
    stack="nemo-2025",
    pair="nemo on hopper",
    tuned=0,
    eager=False,
    adapters=False,
    precision="bf16",
    assumed=False,
    gpus=64,
    parameters=8e9,
    seq_len=4096,
)
MINE = {"base": "nemo-2025", "name": "megatron-mine-2027"}
FIELDS = tuple(RunFeatures.__dataclass_fields__)


def known(*runs: tuple[str, float, dict[str, Any]]) -> ValidatedRuns:
    """Runs like `ONE` but for what is told: source, error, what differs."""
    described = [replace(ONE, **other) for _, _, other in runs]
    return ValidatedRuns(
        ids=tuple(f"run {n}" for n in range(len(runs))),
        sources=np.array([source for source, _, _ in runs]),
        features={name: np.array([getattr(d, name) for d in described]) for name in FIELDS},
        errors=np.array([error for _, error, _ in runs]),
        unseen=np.array([error for _, error, _ in runs]),
        accelerator_out=np.array([error for _, error, _ in runs]),
        fitted=np.ones(len(runs), dtype=np.bool_),
    )


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


def test_sources_are_counted_by_hand() -> None:
    """Those with runs of the stack, and on the system; neither the one left out, nor runs."""
    runs = known(
        ("a", 0.1, {}),
        ("a", 0.2, {}),
        ("b", 0.1, {"software": "megatron-core", "stack": "megatron-core-2025", "pair": "other"}),
        ("c", 0.1, {"accelerator": "h200-sxm"}),
        ("d", 0.1, {"accelerator": "b200-sxm", "generation": "blackwell"}),
    )
    found = uncertainty_of(ONE, runs)
    assert (found.stack_sources, found.accelerator_sources, found.runs) == (3, 2, 5)
    assert (found.release_sources, found.pair_sources) == (3, 3)
    evidence = evidence_of(ONE, runs)
    assert evidence.generation_sources.tolist() == [3]
    without = uncertainty_of(ONE, runs, without="a")
    assert (without.stack_sources, without.accelerator_sources, without.runs) == (2, 1, 3)
    mine = {"software": "mine", "stack": "mine-1", "pair": "mine"}
    other = uncertainty_of(replace(ONE, accelerator="mine", generation="mine", **mine), runs)
    assert (other.stack_sources, other.accelerator_sources, other.pair_sources) == (0, 0, 0)
    assert other.slower > found.slower
    assert other.faster > found.faster


@each_row("name", ["stack", "software", "pair", "accelerator", "generation"])
def test_whoever_lacks_runs_of_one_kind_has_a_wider_range(name: str) -> None:
    """Software and accelerator alone are no evidence for the two together."""
    runs = validated_runs()
    common = uncertainty_of(ONE, runs)
    without = uncertainty_of(replace(ONE, **{name: "mine"}), runs)
    assert without.slower > common.slower
    assert without.faster > common.faster


def test_runs_of_the_same_source_may_be_left_out() -> None:
    """None of them counts, however near they are: neither as evidence nor as an error."""
    runs = known(("a", 0.01, {}), ("b", 0.3, {"experts": True}), ("a", 0.02, {}))
    found = uncertainty_of(ONE, runs, without="a")
    assert (found.runs, found.nearest) == (1, "run 1")
    assert uncertainty_of(ONE, runs).nearest == "run 0"
    assert uncertainty_of(ONE, runs, without="nobody") == uncertainty_of(ONE, runs)
    other = known(("a", 5.0, {}), ("b", 0.3, {"experts": True}), ("a", -9.0, {}))
    assert uncertainty_of(ONE, other, without="a").slower == found.slower
    assert uncertainty_of(ONE, other).slower > uncertainty_of(ONE, runs).slower


def test_a_source_that_is_left_out_is_no_evidence_for_others() -> None:
    """Nested: the levels without it are those of runs that it never was among."""
    described = {"framework": "composer", "software": "composer", "stack": "composer-2023"}
    runs = known(("a", 0.1, described), ("b", 0.3, described), ("c", 0.1, {}))
    alone = known(("b", 0.3, described), ("c", 0.1, {}))
    assert module.variation(runs, "a") == module.variation(alone)
    assert module.variation(runs, "a").sources["software"] != module.variation(runs, "c").sources


@each_row(("tuned", "wider"), [("hand", "faster"), ("hobby", "slower"), ("stock", "both")])
def test_software_tuned_by_hand_is_faster_and_hobby_code_slower(tuned: Any, wider: str) -> None:
    """The spread between frameworks is on one side; with measured runs of it, on none."""
    stack = {"base": "unknown", "name": "mine-2027"}
    work: dict[str, Any] = {"gpus": 8, "gbs": 8, "zero": 3}
    stock = estimate("llama3-8b", "h100-sxm", {**work, "stack": stack}).interval
    found = estimate("llama3-8b", "h100-sxm", {**work, "stack": stack | {"tuned": tuned}}).interval
    assert stock is not None
    assert found is not None
    assert (found.low_s == pytest.approx(stock.low_s)) == (wider in ("faster", "both"))
    assert (found.high_s == pytest.approx(stock.high_s)) == (wider in ("slower", "both"))
    assert stock.low_s <= found.low_s
    assert found.high_s <= stock.high_s


def test_intervals_hold_about_as_many_as_they_say() -> None:
    """Of the runs of a source that nothing is known of, each source with one vote; of most sources
    more than half. Of runs whose stack is known, more."""
    runs = validated_runs()
    sizes = left_out_sizes(runs)
    inside = (-runs.unseen <= sizes.slower) & (runs.unseen <= sizes.faster)
    shares = [inside[runs.sources == source].mean() for source in np.unique(runs.sources)]
    assert LEVEL - 0.05 < np.mean(shares) < LEVEL + 0.08
    assert np.mean(np.array(shares) > 0.6) >= 0.75
    known = (-runs.errors <= sizes.slower) & (runs.errors <= sizes.faster)
    assert LEVEL < known.mean() < LEVEL + 0.15


def test_sizes_of_all_runs_are_those_of_each() -> None:
    """Of one run of each source."""
    runs = validated_runs()
    sizes = left_out_sizes(runs)
    for source in np.unique(runs.sources):
        place = int(np.flatnonzero(runs.sources == source)[0])
        one = RunFeatures(**{name: runs.features[name][place].item() for name in FIELDS})
        spread = uncertainty_of(one, runs, without=str(source))
        assert np.log(spread.slower) == pytest.approx(sizes.slower[place])
        assert np.log(spread.faster) == pytest.approx(sizes.faster[place])


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
        software=stack.rpartition("-")[0],
        stack=stack,
        pair=f"{stack.rpartition('-')[0]} on hopper",
        tuned=int(stack == "deepseek-2024"),
        eager=False,
        adapters=False,
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
    """A factor each way, of the runs that are shown; none forward only."""
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    result = estimate(model, system, {"gpus": 8, "gbs": 16})
    found = result.interval
    assert found is not None
    strategy = Strategy(gpus=8, gbs=16).resolved(model)
    spread = uncertainty_of(run_features(model, system, strategy), validated_runs())
    slower, faster = (
        widened(one, len(result.unmeasured_features)) for one in (spread.slower, spread.faster)
    )
    assert found.high_s / result.step_time_s == pytest.approx(slower)
    assert result.step_time_s / found.low_s == pytest.approx(faster)
    assert (found.level, found.runs, found.nearest) == (LEVEL, spread.runs, spread.nearest)
    assert 1.01 < spread.faster < spread.slower < 1.5
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
        "tp collectives": "assumed",
        "dp collectives": "published",
    }
    curved = rests_on(samples.curved(), strategy, {})
    assert curved["products"] == "assumed"


def test_an_estimate_rests_on_the_tiers_it_reaches() -> None:
    """Tensor-parallel groups inside a node, replicas beyond; nothing where nothing is exchanged."""
    result = estimate("llama3-8b", "h100-sxm", {"gpus": 64, "tp": 8, "gbs": 64})
    assert {"tp collectives", "dp collectives"} <= set(result.rests_on)
    assert set(result.rests_on.values()) <= {
        "measured",
        "fitted",
        "published",
        "assumed",
        "datasheet",
    }
    one = estimate("llama3-8b", "h100-sxm", {"gpus": 1, "gbs": 1})
    assert not [name for name in one.rests_on if name.endswith("collectives")]
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
    names |= {"measured", "measured_on"}
    counts = {f"{of}_sources" for of in ("release", "stack", "pair", "accelerator")}
    assert set(told["interval"]) == names | counts
    assert told["rests_on"]["products"] in {"measured", "fitted"}


# --- software without measured runs ---


def test_frameworks_without_measured_runs_have_the_spread_of_software() -> None:
    """log(slower)^2 has the variance of levels of `unknown` software more, and that of stacks."""
    sizes = {}
    for stack, measured in (("mine", True), ("unknown", False), ("gpipe", False)):
        framework = "megatron" if measured else stack
        other = replace(ONE, framework=framework, software=stack, stack=stack, pair=stack)
        found = uncertainty_of(other, validated_runs())
        assert (found.stack_measured, found.stack_sources) == (measured, 0)
        sizes[stack] = np.log(found.slower) ** 2
    variation = module.variation(validated_runs())
    more = variation.slower**2 * variation.sources["software"]
    assert sizes["unknown"] == pytest.approx(sizes["gpipe"])
    assert sizes["unknown"] == pytest.approx(sizes["mine"] + more)


def test_frameworks_by_hand() -> None:
    """By the first word of a stack, or what that is built on."""
    made = StackRuns(stacks={"nemo-2025": 3, "gpt-neox-2023": 2}, sources={})
    assert made.frameworks == {"megatron", "gpt"}


def test_an_estimate_says_that_its_stack_was_never_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A prior is wider than what it is built on, and both are printed."""
    row = {"gpus": 8, "gbs": 8}
    found = {}
    for name in ("megatron-lm-2022", "gpipe-2019"):
        found[name] = estimate("llama3-8b", "a100-80gb-sxm", {**row, "stack": name})
        print_estimate(found[name])
    said = capsys.readouterr().out
    assert said.count("no run of this software has been measured") == 1
    measured, prior = (result.interval for result in found.values())
    assert measured is not None
    assert prior is not None
    assert measured.stack_measured
    assert not prior.stack_measured
    assert prior.high_s / prior.low_s > measured.high_s / measured.low_s


@each_row(
    ("stack", "system", "said"),
    [
        ("torchtitan-2025", "h100-sxm", []),
        ("megatron-bridge-2026", "h100-sxm", ["megatron-bridge-2026, but of other releases"]),
        (MINE, "h100-sxm", ["no run of this software has been measured, megatron-mine-2027, but"]),
        ("llama-factory-2024", "h100-sxm", ["measured, llama-factory-2024, but of its framework"]),
        ("gpipe-2019", "h100-sxm", ["measured, gpipe-2019: the range has"]),
        ("composer-2023", "h100-sxm", ["one source has measured this software, composer-2023:"]),
        ("paddlenlp-2024", "h100-sxm", ["no run of this software has been measured on such"]),
        ("torchtitan-2025", "h100-pcie", ["on this system, h100-pcie:"]),
    ],
)
def test_an_estimate_says_what_makes_its_range_wide(
    capsys: pytest.CaptureFixture[str], stack: Any, system: str, said: list[str]
) -> None:
    """The stack or the system without measured runs."""
    capsys.readouterr()
    print_estimate(estimate("llama3-8b", system, {"gpus": 8, "gbs": 8, "stack": stack}))
    shown = " ".join(capsys.readouterr().out.split())
    assert [words for words in said if words not in shown] == []
    reasons = ("no run of this software", "one source has measured", "no measured run on")
    assert sum(map(shown.count, reasons)) == len(said)


def test_measured_stacks_are_those_of_the_catalog() -> None:
    """With runs each; no prior is among them."""
    table = stack_runs()
    assert set(table.stacks) <= set(catalog.names("stacks"))
    assert min(table.stacks.values()) > 0
    assert not {"unknown", "llama-factory-2024", "calculon"} & set(table.stacks)
    assert set(table.sources) == set(table.stacks)
    assert all(table.sources[name] <= runs for name, runs in table.stacks.items())


def test_the_range_of_a_stack_that_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    """A base with what differs has no name of its own."""
    stack = {"base": "gpipe-2019", "host_launch": "20 us"}
    print_estimate(estimate("llama2-7b", "a100-80gb-sxm", {"gpus": 8, "gbs": 8, "stack": stack}))
    assert "no run of this software has been measured, gpipe-2019" in capsys.readouterr().out

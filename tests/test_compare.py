"""Scenarios side by side: parts that add up, and inputs that bear on them."""

import random
from math import fsum

import pytest

from compared_samples import MODEL, SYSTEM, A, B, asked
from shardwise import InputError, Strategy, compare, estimate
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.compare import FOLLOWS, INPUTS, PER_TOKEN, bearing_on

pytestmark = pytest.mark.any_software

PLAIN = {"tp": 2, "pp": 4, "dp": 2, "gbs": 32}
BASES = (
    (MODEL, PLAIN),
    (MODEL, {"tp": 2, "cp": 2, "pp": 2, "vpp": 4, "dp": 2, "gbs": 32, "recompute": "selective"}),
    (MODEL, {"tp": 4, "dp": 4, "gbs": 64, "zero": 3}),
    (
        MODEL,
        {"tp": 2, "pp": 2, "dp": 8, "gbs": 64, "offload_weights": True}
        | {"offload_optimizer": True, "offload_activations": True},
    ),
    ("mixtral-8x7b", {"tp": 2, "pp": 2, "dp": 8, "ep": 4, "gbs": 64, "recompute": "full"}),
)
# Other values of a field, and the bases by place that they are tried on.
OTHER = {
    "tp": ((1, 4), (0, 2)),
    "pp": ((2, 8), (0, 4)),
    "cp": ((1, 2), (1, 2)),
    "ep": ((2, 8), (4,)),
    "dp": ((4, 8), (0, 3)),
    "vpp": ((1, 2), (0, 1)),
    "micro_batch_size": ((2,), (0, 2, 4)),
    "global_batch_size": ((16, 128), (0, 1)),
    "seq_len": ((2048,), (1, 2)),
    "quantization": (("fp8_tensor",), (0, 3)),
    "attention": (("multihead",), (0, 2)),
    "recompute": (("none", "full"), (1, 3)),
    "zero": ((0, 3), (0, 2)),
    "optimizer": (("muon", "sgd"), (0, 3)),
    "frozen": (("embedding", "mlp"), (0, 2)),
    "lora_rank": ((16,), (0, 3)),
    "schedule": (("gpipe", "zb-v", "dualpipe"), (0,)),
    "last_stage_layers": ((6,), (0, 1, 4)),
    "training": ((False,), (0, 1)),
    "tp_exchange": (("all_reduce",), (0, 1)),
    "tp_overlap": (("none",), (0, 3)),
    "tp_regather": ((False,), (0, 3)),
    "cp_exchange": (("all_to_all",), (1,)),
    "expert_imbalance": ((1.5,), (4,)),
    "dispatcher": (("deepep",), (4,)),
    "dispatch_dtype": (("fp8",), (4,)),
    "dp_overlap": ((False,), (0, 2)),
    "fused_activation": ((True,), (0, 3)),
    "offload_weights": ((False,), (3,)),
    "offload_activations": ((False, True), (0, 3)),
    "placement": (("dp-tp-cp-pp",), (0, 4)),
    "stack": (("torchtitan-2025",), (0, 2)),
}


@pytest.fixture(scope="module")
def varied():
    """Estimates that differ from one of the bases in a field."""
    firsts = [estimate(model, SYSTEM, base) for model, base in BASES]
    found = []
    for name, (values, places) in OTHER.items():
        for place in places:
            model, base = BASES[place]
            fields = Strategy.validated(base).model_dump(mode="json", exclude_unset=True)
            for value in values:
                try:
                    other = estimate(model, SYSTEM, fields | {name: value})
                except InputError:
                    continue
                found.append((firsts[place], other))
    return found


def test_deltas_of_the_parts_are_the_delta_of_the_step(pair):
    """By sum, each as after less before."""
    (change,) = compare(*pair).changes
    one, two = pair
    assert change.delta_s == sum(part.delta_s for part in change.parts)
    assert change.delta_s == pytest.approx(two.step_time_s - one.step_time_s, rel=1e-9)
    assert change.share == pytest.approx(two.step_time_s / one.step_time_s - 1, rel=1e-9)
    for part in change.parts:
        assert (part.before_s, part.after_s) == (one.time_s[part.part], two.time_s[part.part])
    told = {part.part for part in change.parts}
    assert told == {part for part in TIME_PARTS if one.time_s[part] or two.time_s[part]}


def test_what_was_asked_differently_is_told(pair):
    """Fields that are not the same, and which of them somebody gave."""
    found = compare(*pair)
    assert asked(found) == {
        "tp": (2, 4),
        "dp": (4, 2),
        "recompute": ("none", "selective"),
        "micro_batches": (8, 16),
    }
    given = {one.field: one.given for one in found.asked}
    assert given["tp"] == (True, True)
    assert given["dp"] == (False, False)
    assert given["recompute"] == (False, True)


def test_inputs_that_bear_on_a_part_are_named(pair):
    """Recompute on recompute, the degree on its exchange; the bubble has stages as before."""
    (change,) = compare(*pair).changes
    inputs = {part.part: part.inputs for part in change.parts}
    assert inputs["recompute"] == ("tp", "recompute", "micro_batches")
    assert "dp" not in inputs["tp_comm"]
    assert inputs["optimizer"] == ("tp", "dp")
    assert inputs["bubble"] == ("micro_batches",)
    assert inputs["other"] == ()
    follows = {part.part: part.follows for part in change.parts}
    assert "forward" in follows["bubble"]
    assert follows["forward"] == ()
    tp = next(part for part in change.parts if part.part == "tp_comm")
    moved = pair[0].comm_s["tp"]
    assert tp.hidden_before_s == pytest.approx(moved.total - moved.exposed)


def test_every_field_of_a_strategy_has_a_rule():
    """A new one needs a row in the table; parts are those of the step."""
    assert set(Strategy.model_fields) <= set(INPUTS)
    rows = [*(one.parts for one in INPUTS.values()), *PER_TOKEN.values(), *FOLLOWS.values()]
    assert {part for parts in rows for part in parts} <= set(TIME_PARTS)
    assert set(PER_TOKEN) <= set(INPUTS)


def test_no_part_changes_without_a_reason(varied):
    """Where one input changes, only parts it acts on differ, or those that change with them."""
    assert len(varied) > 70
    reasons = [
        (found.asked[0].field, part.part)
        for found in (compare(*both) for both in varied)
        for part in found.changes[0].parts
        if part.delta_s and not (part.inputs or part.follows)
    ]
    assert reasons == []


def test_no_part_changes_without_a_reason_where_much_does(varied):
    """Nor between any two of them, of other models and batches."""
    every = [other for _, other in varied]
    picked = random.Random(5)  # noqa: S311 - the same every time
    for _ in range(150):
        found = compare(*picked.sample(every, 2))
        for part in found.changes[0].parts:
            assert not part.delta_s or part.inputs or part.follows, asked(found)


def test_the_table_does_not_name_what_has_no_part_in_it():
    """A rule for the bubble is none for the optimizer."""
    assert bearing_on("optimizer", ["vpp", "tp_overlap", "recompute"]) == ()
    assert bearing_on("bubble", ["vpp", "tp_overlap", "recompute"]) == ("vpp",)
    for name in ("pp", "vpp", "schedule", "micro_batches", "stage_layers"):
        assert bearing_on("bubble", [name]) == (name,)
    assert bearing_on("forward", ["dp"]) == ()
    assert bearing_on("forward", ["dp"], per_token=True) == ("dp",)


def test_batches_of_several_sizes_are_compared_per_token():
    """Twice the batch takes nearly twice as long: per million tokens, less by the bubble."""
    small, large = (estimate(MODEL, SYSTEM, A | {"gbs": gbs}) for gbs in (32, 64))
    found = compare(small, large)
    assert found.per == "million tokens"
    assert "steps differ in tokens" in found.notes[0]
    (change,) = found.changes
    assert change.before_s == pytest.approx(1e6 / small.tokens_per_s)
    assert change.after_s == pytest.approx(1e6 / large.tokens_per_s)
    by_part = {part.part: part for part in change.parts}
    assert by_part["forward"].delta_s == 0
    assert by_part["bubble"].after_s == pytest.approx(by_part["bubble"].before_s / 2)
    assert by_part["bubble"].inputs == ("micro_batches", "tokens_per_step")
    assert found.best["step_time_s"] is None
    assert found.best["tokens_per_s"] == "B"
    times = fsum(found.scenarios[1].time_s.values())
    assert times == pytest.approx(1e6 / large.tokens_per_s)


def test_what_does_not_fit_is_best_by_nothing():
    """However fast it would be."""
    run = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
    fits, fast = (estimate("llama3-70b", SYSTEM, run | {"tp": tp}) for tp in (8, 4))
    found = compare(fits, fast, names=("fits", "fast"))
    assert fast.step_time_s < fits.step_time_s
    assert not fast.fits
    assert found.best["step_time_s"] == "fits"
    assert "does not fit, so it cannot be the best: fast" in found.notes
    assert set(compare(fast, fast).best.values()) == {None}


def test_forward_only_is_no_training(pair):
    """Said, as both are told to be best by something."""
    found = compare(pair[0], estimate(MODEL, SYSTEM, A | {"training": False}))
    assert any("forward only" in note for note in found.notes)


def test_three_scenarios_are_held_against_the_first(pair):
    """Each with a change of its own; other systems and models are told."""
    third = estimate("llama2-7b", "a100-80gb-sxm", A | {"seq_len": 8192})
    found = compare(*pair, third)
    assert [(change.against, change.name) for change in found.changes] == [("A", "B"), ("A", "C")]
    assert asked(found)["model"] == (MODEL, MODEL, "llama2-7b")
    assert "parameters" not in asked(found)
    assert any("the models differ" in note for note in found.notes)
    assert "system" in found.changes[1].parts[0].inputs
    frame = found.to_frame()
    assert frame["name"].to_list() == ["A", "B", "C"]
    assert frame["bubble_s"].to_list() == [one.time_s["bubble"] for one in (*pair, third)]


def test_fields_of_a_stack_are_told_one_by_one():
    """A stack that differs in one figure from that of the catalog."""
    mine = {"base": "megatron-core-2025", "allocator_slack": 1.2}
    found = compare(estimate(MODEL, SYSTEM, A), estimate(MODEL, SYSTEM, A | {"stack": mine}))
    assert asked(found) == {"stack.allocator_slack": (None, 1.2)}
    assert found.asked[0].given == (False, True)


def test_whole_runs_are_ranked_by_their_days():
    """If all train on as many tokens; the days are those of the runs."""
    asked_for = [{"model": MODEL, "system": SYSTEM, "strategy": way} for way in (A, B)]
    runs = [one | {"tokens": "100B"} for one in asked_for]
    found = compare(*runs)
    days = [outcome.effective_days for outcome in found.scenarios]
    by_hand = [100e9 / one.tokens_per_s / 86400 for one in found.scenarios]
    assert days == pytest.approx(by_hand, rel=1e-4)
    assert found.best["effective_days"] == found.best["tokens_per_s"]

    found = compare(runs[0], runs[1] | {"tokens": "200B"})
    assert found.best["effective_days"] is None
    assert any("different numbers of tokens" in note for note in found.notes)
    failing = {"accelerator_mtbf": "5e4 h", "checkpoint_time": "60 s", "restart_time": "10 min"}
    found = compare(runs[0] | {"reliability": failing}, runs[1])
    assert found.best["effective_days"] is None
    assert any("failures" in note for note in found.notes)
    assert compare(*asked_for).best["effective_days"] is None


def test_figures_under_one_name_that_differ_are_noted(pair):
    """Nothing was asked differently, and yet one part is: say so, and do not guess."""
    one = pair[0]
    times = one.time_s | {"forward": one.time_s["forward"] + 1}
    two = one.model_copy(update={"time_s": times, "step_time_s": one.step_time_s + 1})
    found = compare(one, two)
    assert found.asked == ()
    assert "no input explains the difference in B: forward" in found.notes[0]


def test_scenarios_that_cannot_be_separated_are_alike():
    """By the ratio of searches, among those that fit, on one machine; safest first."""
    run = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128, "any_software": True}
    usual, ring, slow = (
        estimate("llama3-70b", "h100-sxm", run | other)
        for other in ({}, {"tp_overlap": "ring"}, {"recompute": "full"})
    )
    found = compare(ring, usual, slow, names=["ring", "usual", "slow"])
    ratio = distinguishable_ratio()
    assert ratio > usual.step_time_s / ring.step_time_s > 1
    assert slow.step_time_s / ring.step_time_s > ratio
    assert (found.alike, found.within) == (("usual", "ring"), ratio - 1)
    assert [one.unmeasured_features for one in found.scenarios] == [("tp_overlap=ring",), (), ()]
    assert [one.interval for one in found.scenarios] == [
        ring.interval,
        usual.interval,
        slow.interval,
    ]
    assert compare(usual, slow).alike == ()
    elsewhere = estimate("llama3-70b", "h200-sxm", run)
    assert compare(usual, elsewhere).alike == ()
    forward = [one | {"training": False} for one in (run, run | {"tp_regather": False})]
    assert compare(*(estimate("llama3-70b", "h100-sxm", one) for one in forward)).alike == ()

"""Why a strategy is not the best, or not possible, and what is near it."""

import json
from functools import cache

import pytest

from rows import each_row
from samples import GB, TB, model, system, tier
from shardwise import estimate
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import InputError
from shardwise.planning.search.explain import explain
from shardwise.planning.search.run import search

pytestmark = pytest.mark.any_software

MODEL = model()
SYSTEM = system(network=[tier("in", domain=4), tier("out", bandwidth=10 * GB)], node=4)
SPACE = {
    "scope": "full",
    "gpus": [8, 16],
    "global_batch_size": [8],
    "recompute": ["none", "full"],
    "tp_overlap": ["stack", "ring"],
    "tp_regather": [True],
    "dp_overlap": [True],
    "fused_activation": [False],
}


def fields(changes):
    return {change.field: (change.given, change.value) for change in changes}


LEGAL = {"gpus": 8, "tp": 2, "pp": 2, "recompute": "none"}


@cache
def best_of_space():
    """What a search of the space finds."""
    return search(MODEL, SYSTEM, SPACE, all_variants=True, fits=None).best[0]


def test_the_best_of_a_space_is_first_and_loses_nothing():
    """Rank 1, no better one, no difference, no change that improves it."""
    best = best_of_space()
    found = explain(MODEL, SYSTEM, SPACE, best.strategy)
    assert (found.rank, found.better, found.differs, found.in_space) == (1, 0, (), True)
    assert set(found.loss.parts_s.values()) == {0.0}
    assert not any(change.improves for change in found.changes)


def test_the_parts_of_a_loss_sum_to_the_difference():
    """Every part of the step once, largest loss first, against the best of a search."""
    found = explain(MODEL, SYSTEM, SPACE, LEGAL)
    best = best_of_space()
    loss = found.loss
    assert dict(found.best).items() <= dict(best).items()
    assert set(loss.parts_s) == set(TIME_PARTS)
    assert list(loss.parts_s.values()) == sorted(loss.parts_s.values(), reverse=True)
    assert sum(loss.parts_s.values()) == pytest.approx(loss.difference_s, rel=1e-9)
    assert loss.difference_s == loss.step_time_s - best.step_time_s > 0
    assert loss.step_time_s == estimate(MODEL, SYSTEM, {**LEGAL, "gbs": 8}).step_time_s


def test_every_broken_rule_is_named():
    """Three faults at once: degrees that do not divide, heads, and a ZeRO stage."""
    found = explain(MODEL, SYSTEM, SPACE, {"gpus": 16, "tp": "3", "zero": 4})
    named = {rule.reason: (rule.field, rule.value) for rule in found.broken}
    assert named["heads"] == ("tp", 3)
    assert named["zero"] == ("zero", 4)
    assert named["degrees"] == ("tp", 3)
    assert found.broken[0].problem == "must divide gpus 16"
    assert "batch" not in named  # the replicas are not known
    assert (found.legal, found.fits, found.estimate, found.rank) == (False, None, None, None)


def test_a_field_that_follows_counts_where_it_was_given_and_cannot_be():
    """8 GPUs are not tp 2 x dp 3; dp 4, which follows from the rest, is the one change."""
    found = explain(MODEL, SYSTEM, SPACE, {"gpus": 8, "tp": 2, "dp": 3})
    assert found.broken[0].reason == "degrees"
    assert fields(found.changes[0].fields) == {"dp": (3, 4)}
    wrong = explain(MODEL, SYSTEM, SPACE, {**LEGAL, "vpp": 2, "schedule": "1f1b"})
    assert fields(wrong.changes[0].fields) == {"schedule": ("1f1b", "interleaved")}


def test_the_number_of_gpus_is_a_change_and_the_replicas_follow():
    """With one strategy for each number of GPUs in the space, only `gpus` is named."""
    degrees = {"tp": 2, "pp": 2, "zero": 1, "recompute": "none", "tp_overlap": "stack"}
    fixed = {"vpp": 1, "micro_batch_size": 1, "tp_exchange": "rs_ag"}
    space = {**SPACE, **degrees, **fixed, "placement": "tp-cp-dp-pp"}
    found = explain(MODEL, SYSTEM, space, {"gpus": 8})
    assert fields(found.differs) == {"gpus": (8, 16)}
    assert (found.strategy["dp"], found.best.strategy["dp"]) == (2, 4)


def test_an_exchange_that_was_not_given_follows_from_the_degree():
    """To tp 2 with rs_ag is one change, with all_reduce two; the other way round if it was said."""
    space = {**SPACE, "gpus": 8, "tp": 2, "tp_exchange": "all_reduce"}
    open_ = explain(MODEL, SYSTEM, space, {"tp": 1})
    assert open_.strategy["tp_exchange"] == "all_reduce"  # the only one of the space
    free = {**space, "tp_exchange": ["all_reduce", "rs_ag"]}
    for said, one in (({}, "rs_ag"), ({"sequence_parallel": False}, "all_reduce")):
        found = explain(MODEL, SYSTEM, free, {"tp": 1, **said})
        nearest = found.changes[0]
        assert fields(nearest.fields) == {"tp": (1, 2)}
        assert nearest.plan.strategy["tp_exchange"] == one


def test_what_is_too_big_lacks_what_its_fullest_stage_needs():
    """The lack is what the runtime and all parts need beyond what may be used, biggest first."""
    found = explain(MODEL, SYSTEM, SPACE, LEGAL, max_memory="2 GiB", reserve=1e6)
    stages = estimate(MODEL, SYSTEM, {**LEGAL, "gbs": 8}).stages
    record = max(stages, key=lambda stage: stage.total)
    (short,) = found.shortages
    assert (found.legal, found.fits, found.rank) == (True, False, None)
    assert (short.tier, short.stage, short.usable_bytes) == ("hbm", record.stage, 2 * 2**30 - 1e6)
    assert short.needed_bytes == record.reserved
    assert short.excess_bytes == record.reserved - short.usable_bytes
    assert sum(short.parts.values()) == pytest.approx(record.reserved, rel=1e-12)
    assert list(short.parts.values()) == sorted(short.parts.values(), reverse=True)
    assert short.parts["weights"] == record.weights


def test_the_second_tier_lacks_what_is_offloaded_to_it():
    """2 stages: the first holds the weights of 2 layers and their activations there, no more."""
    tiers = [
        {"name": "hbm", "capacity": 80 * GB, "bandwidth": 1 * TB},
        {"name": "host", "capacity": 1e5, "bandwidth": 0.1 * TB},
    ]
    machine = system(memory=tiers)
    offload = {"offload_weights": True, "offload_activations": True}
    found = explain(MODEL, machine, None, {"gpus": 2, "pp": 2, "gbs": 4, **offload})
    (short,) = found.shortages
    assert (short.tier, short.usable_bytes) == ("host", 1e5)
    assert short.needed_bytes == found.estimate.memory_bytes.offloaded
    assert sum(short.parts.values()) == pytest.approx(short.needed_bytes, rel=1e-12)
    assert short.parts["weights"] == 2 * 2 * (4 * 64 * 64 + 8 * 64 * 64 + 64 * 13)
    assert set(short.parts) == {"weights", "activations"}


def test_the_second_tier_lacks_the_parts_that_are_offloaded_to_it():
    """Weights, and of the activations of 2 layers the inputs of norms with their mask alone."""
    tiers = [
        {"name": "hbm", "capacity": 80 * GB, "bandwidth": 1 * TB},
        {"name": "host", "capacity": 1e5, "bandwidth": 0.1 * TB},
    ]
    said = {"gpus": 1, "mbs": 2, "gbs": 2, "offload_weights": True, "offload_activations": True}
    found = explain(MODEL, system(memory=tiers), None, said | {"offload_parts": "mlp_norm"})
    (short,) = found.shortages
    assert short.parts["activations"] == 4 * (64 * 64 * 2 + 64 * 64)
    assert short.needed_bytes == found.estimate.memory_bytes.offloaded


def test_parts_of_what_is_not_offloaded_are_a_field_to_change():
    """The rule is named; the nearest legal strategy leaves them out."""
    said = {"gpus": 1, "gbs": 2, "offload_parts": "mlp_norm"}
    found = explain(MODEL, SYSTEM, {"offload_activations": False}, said)
    assert [rule.reason for rule in found.broken] == ["offload_parts"]
    assert found.broken[0].problem == "has no effect without offload_activations; leave it out"


def test_what_the_space_does_not_try_is_named_with_what_it_tries():
    """Fields outside, each with its values; what has no effect here, and what is open, is not."""
    space = {**SPACE, "tp": [1, 2], "zero": 0, "placement": "tp-cp-dp-pp"}
    said = {"gpus": 8, "tp": 4, "pp": 2, "tp_overlap": "pipe"}
    found = explain(MODEL, SYSTEM, space, {**said, "zero": 1})
    named = {outside.field: (outside.value, outside.tried) for outside in found.outside}
    assert named == {"tp": (4, (1, 2)), "tp_overlap": ("pipe", ("stack", "ring"))}
    assert not found.in_space
    elsewhere = {"tp": 2, "pp": 4, "tp_overlap": "ring", "placement": "pp-dp-cp-tp"}
    seated = explain(MODEL, SYSTEM, space, {**said, **elsewhere})
    assert [outside.field for outside in seated.outside] == ["placement"]


def test_what_is_not_given_is_the_one_value_of_the_space_or_the_default():
    """GPUs, batch and recompute from the space; of several values none, but the default."""
    space = {**SPACE, "gpus": 8, "recompute": "full", "zero": [0, 1], "tp": 2}
    found = explain(MODEL, SYSTEM, space, {"mbs": 2})
    expected = {"gpus": 8, "dp": 4, "tp": 2, "recompute": "full", "zero": 1, "pp": 1}
    assert {name: found.strategy[name] for name in expected} == expected
    assert found.strategy["micro_batch_size"] == 2
    with pytest.raises(InputError, match="gpus"):
        explain(MODEL, SYSTEM, SPACE, {"tp": 2})


def test_a_space_without_scale_has_that_of_the_strategy():
    """Neither GPUs nor batch need be given twice."""
    rest = {name: values for name, values in SPACE.items() if name != "gpus"}
    found = explain(MODEL, SYSTEM, {**rest, "global_batch_size": None}, {**LEGAL, "gbs": 8})
    assert (found.candidates, found.in_space) == (
        search(MODEL, SYSTEM, rest, gpus=8).candidates,
        True,
    )


def test_the_largest_batch_follows_from_the_replicas():
    """Of 20 sequences 3 replicas run 18 and 4 run 20: no change beside that of the GPUs."""
    fixed = {"pp": 1, "tp": 1, "recompute": "none", "micro_batch_size": 1, "zero": 1}
    space = {**SPACE, **fixed, "gpus": [3, 4], "global_batch_size": 20, "batch": "largest"}
    found = explain(MODEL, SYSTEM, space, {"gpus": 3}, objective="step_time")
    assert (found.strategy["global_batch_size"], found.in_space) == (18, True)
    assert [(c.changes, fields(c.fields)) for c in found.changes] == [(1, {"gpus": (3, 4)})]
    assert found.best.strategy["global_batch_size"] == 20
    other = explain(MODEL, SYSTEM, space, {"gpus": 3, "gbs": 15})
    assert [(o.field, o.value, o.tried) for o in other.outside] == [
        ("global_batch_size", 15, (18,))
    ]


def test_the_objective_decides_what_is_better():
    """On 4 GPUs a step takes longer than on 8, but each GPU does more."""
    fixed = {"pp": 1, "tp": 1, "recompute": "none", "micro_batch_size": 1, "zero": 1}
    space = {**SPACE, **fixed, "gpus": [4, 8]}
    ranks = [
        explain(MODEL, SYSTEM, space, {"gpus": 4}, objective=objective).rank
        for objective in ("step_time", "tokens_per_s_per_gpu")
    ]
    assert ranks[0] > 1 == ranks[1]


def test_a_tier_of_none_leaves_the_axis_to_the_placement():
    """On the command line the word stands for no tier of its own."""
    space = {**SPACE, "gpus": 8, "tp_tier": [0, None]}
    found = explain(MODEL, SYSTEM, space, {"tp": 2, "tp_tier": "none"})
    assert (found.strategy["tp_tier"], found.in_space) == (None, True)


def test_a_placement_that_seats_nobody_elsewhere_is_no_change():
    """With all 4 members inside one domain, the order of the axes does not matter."""
    space = {**SPACE, "gpus": 4, "tp": 2, "pp": 1}
    found = explain(MODEL, SYSTEM, space, {"placement": "dp-pp-cp-tp", "tp": 2})
    assert found.in_space
    assert "placement" not in {f.field for c in found.changes for f in c.fields}


def test_nothing_feasible_has_no_best_and_no_changes():
    """The strategy is still judged: it is legal and does not fit."""
    found = explain(MODEL, SYSTEM, SPACE, LEGAL, max_memory=1e6)
    assert (found.feasible, found.best, found.changes, found.loss) == (0, None, (), None)
    assert found.legal
    assert found.shortages[0].excess_bytes > 0


def test_an_interruption_leaves_what_was_found_so_far():
    """Ctrl-C while candidates are looked at."""

    def stop(done, whole, best):
        assert 0 < done < whole
        assert best.step_time_s > 0
        raise KeyboardInterrupt

    found = explain(MODEL, SYSTEM, SPACE, LEGAL, progress=stop)
    assert not found.complete
    assert 0 < found.feasible < found.candidates


def test_an_explanation_is_ready_for_json():
    """With fields of a stack in the space and in the strategy, too."""
    space = {**SPACE, "gpus": 4, "stack": [{"base": "megatron-core-2025", "tp_hidden": 0.5}]}
    found = explain(MODEL, SYSTEM, space, {"tp": 2, "stack": "megatron-core-2025"})
    record = json.loads(json.dumps(found.to_dict()))
    assert [outside["field"] for outside in record["outside"]] == ["stack"]
    assert record["changes"][0]["fields"][0]["field"] == "stack"


@each_row(
    ("strategy", "problem"),
    [
        ({"tp": "many"}, "tp: 'many'"),
        ({"tpp": 2}, "tpp: unknown key"),
        ({"zero": -1}, "zero: -1"),
    ],
)
def test_what_is_no_strategy_is_refused(strategy, problem):
    """A value that no strategy can have is bad input, not an illegal strategy."""
    with pytest.raises(InputError, match=problem):
        explain(MODEL, SYSTEM, SPACE, {"gpus": 8, **strategy})


def test_an_unknown_objective_is_refused():
    """Before anything is looked at."""
    with pytest.raises(InputError, match="step_time"):
        explain(MODEL, SYSTEM, SPACE, LEGAL, objective="speed")

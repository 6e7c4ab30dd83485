"""The nearest plan: fewest changed fields, then the shortest step, against all strategies."""

from itertools import product

import pytest

from rows import first_of
from shardwise import InputError, Model, Strategy, System, estimate, estimate_many
from shardwise.planning import nearest
from shardwise.planning.nearest import (
    blamed_fields,
    nearest_plan,
    set_fields,
    with_possible_degrees,
)

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
STACK = "megatron-bridge-2026"
WORK = {"gpus": 16, "global_batch_size": 64, "seq_len": 4096, "stack": STACK}
VALUES = {
    "tp": (1, 2, 4, 16),
    "pp": (1, 2, 4),
    "zero": (0, 1, 3),
    "recompute": ("none", "full"),
    "micro_batch_size": (1, 4),
    "schedule": ("1f1b", "zb-h1"),
}
FIELDS = tuple(VALUES)


@pytest.fixture(scope="module")
def every():
    """Step time of every strategy of a small space that is legal and fits; others are left out."""
    times = {}
    for row in product(*VALUES.values()):
        fields = dict(zip(FIELDS, row, strict=True))
        try:
            found = estimate(MODEL, SYSTEM, WORK | fields)
        except InputError:
            continue
        if found.fits:
            times[row] = found.step_time_s
    assert 20 < len(times) < 288 / 2
    return times


def _brute_force(every, own, accepts):
    """The least changes, and the shortest step with so many."""
    changes = {
        row: sum(one != other for one, other in zip(row, own, strict=True))
        for row in every
        if accepts(dict(zip(FIELDS, row, strict=True)))
    }
    changes = {row: number for row, number in changes.items() if number}
    if not changes:
        return None
    least = min(changes.values())
    return least, min(every[row] for row, number in changes.items() if number == least)


def _accepts_all(_):
    return True


STARTS = {
    "a schedule that the stack lacks": (2, 2, 1, "none", 1, "zb-h1"),
    "too many tensor-parallel ranks": (16, 1, 1, "none", 1, "1f1b"),
    "FSDP in a pipeline": (1, 4, 3, "none", 1, "1f1b"),
    "nothing is sharded": (1, 1, 0, "none", 4, "1f1b"),
    "several faults": (4, 4, 3, "none", 4, "zb-h1"),
    "a plan that runs": (2, 1, 1, "none", 1, "1f1b"),
}
PREDICATES = {
    "all": _accepts_all,
    "no ZeRO-1": lambda fields: fields["zero"] != 1,
    "recompute and no pipeline": lambda fields: fields["pp"] == 1 and fields["recompute"] == "full",
    "none": lambda _: False,
}


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("start", first_of(3, reversed(STARTS)))
def test_no_strategy_is_nearer(monkeypatch, every, start, predicate):
    """Every strategy of the space is estimated alone; none has fewer changes or is faster."""
    own, accepts = STARTS[start], PREDICATES[predicate]

    def values(name, _model, _system, base):
        return tuple(v for v in VALUES.get(name, ()) if v != getattr(base, name))

    monkeypatch.setattr(nearest, "changed_values", values)
    strategy = Strategy(**WORK, **dict(zip(FIELDS, own, strict=True)))

    def accepted(candidate):
        return accepts({name: getattr(candidate, name) for name in FIELDS})

    at_fault = set(FIELDS)
    found = nearest_plan(
        Model.load(MODEL), System.load(SYSTEM), strategy, accepted, at_fault=at_fault
    )
    expected = _brute_force(every, own, accepts)
    if expected is None:
        assert found is None
        return
    assert (len(found.changes), found.step_time_s) == (expected[0], pytest.approx(expected[1]))
    assert estimate(MODEL, SYSTEM, found.strategy).step_time_s == pytest.approx(found.step_time_s)


def test_the_work_stays_the_same():
    """Accelerators, batch, sequence, types and model are those of the strategy."""
    own = Strategy(**WORK, tp=2, pp=2, schedule="zb-v", dtype="fp16")
    found = nearest_plan(Model.load(MODEL), System.load(SYSTEM), own, at_fault={"schedule"})
    assert [(one.field, one.given, one.value) for one in found.changes] == [
        ("schedule", "zb-v", "1f1b")
    ]
    for name in ("gpus", "global_batch_size", "seq_len", "dtype", "stack"):
        assert found.strategy[name] == own.to_dict()[name]


def test_fields_that_follow_are_no_changes():
    """Without tensor parallelism there is no reduce-scatter: `tp_exchange` follows, and dp."""
    own = Strategy(**WORK, tp=16)
    found = nearest_plan(
        Model.load(MODEL), System.load(SYSTEM), own, lambda s: s.tp == 1, at_fault={"tp"}
    )
    assert {one.field for one in found.changes} == {"tp"}
    assert (found.strategy["dp"], found.strategy["tp_exchange"]) == (16, "all_reduce")


def test_a_plan_that_does_not_fit_gets_one_that_does():
    """Memory alone is at fault then, which is of no field."""
    own = Strategy(gpus=16, global_batch_size=64, stack=STACK, zero=0)
    assert not estimate("llama3-70b", SYSTEM, own).fits
    found = nearest_plan(Model.load("llama3-70b"), System.load(SYSTEM), own)
    assert estimate("llama3-70b", SYSTEM, found.strategy).fits
    assert 1 <= len(found.changes) <= 3


@pytest.mark.parametrize(
    ("own", "changes"),
    [
        ({"gpus": 64, "tp": 3}, {"tp": (3, 4)}),
        ({"gpus": 64, "tp": 2, "pp": 5, "zero": 1}, {"pp": (5, 4)}),
        ({"gpus": 64, "tp": 2, "pp": 5}, {"pp": (5, 1)}),  # FSDP runs without a pipeline
        ({"gpus": 64, "tp": 2, "dp": 16}, {"dp": (16, 32)}),
        ({"gpus": 64, "tp": 3, "schedule": "zb-h1"}, {"tp": (3, 4), "schedule": ("zb-h1", "1f1b")}),
        ({"dp": 16, "tp": 2, "schedule": "zb-h1"}, {"schedule": ("zb-h1", "1f1b")}),
    ],
)
def test_degrees_that_do_not_divide_become_the_closest_that_do(own, changes):
    """Fewest degrees, then least factors; what is at fault otherwise changes as well."""
    fields = {"global_batch_size": 96, "stack": STACK, "zero": 3, "recompute": "full"}
    strategy = Strategy(**fields | own)
    found = nearest_plan(Model.load(MODEL), System.load(SYSTEM), strategy)
    assert {one.field: (one.given, one.value) for one in found.changes} == changes


def test_degrees_change_by_the_least_factors():
    """6 x 8 of 5 x 7 rather than 4 x 6; what divides stays as it is."""
    own = Strategy(gpus=48, tp=5, pp=7, dp=2)
    found = with_possible_degrees(own)
    assert (found.tp, found.pp, found.dp, found.gpus) == (6, 8, None, 48)
    assert with_possible_degrees(found) is found
    assert with_possible_degrees(Strategy(dp=3, tp=5)) == Strategy(dp=3, tp=5)


def test_fields_to_set_give_the_strategy_again():
    """What a user must set, with defaults of the stack, resolves to the same strategy."""
    model = Model.load("deepseek-v3")
    for own in (
        {"tp": 2, "pp": 4, "vpp": 2, "ep": 8},
        {"tp": 4, "tp_exchange": "all_reduce", "dispatcher": "all_to_all"},
        {"pp": 2, "zero": 0, "recompute": "selective", "recompute_parts": ["mlp", "moe"]},
    ):
        for stack in (STACK, "torchtitan-2025"):
            strategy = Strategy(gpus=64, global_batch_size=128, stack=stack, **own)
            resolved = strategy.resolved(model)
            fields = set_fields(model, resolved)
            assert Strategy(**fields, stack=stack).resolved(model) == resolved
            assert fields.keys() <= {
                "gpus",
                "global_batch_size",
                "zero",
                *own,
                "recompute_parts",
                "fsdp_reshard",
                "etp",
            }


@pytest.mark.parametrize("etp", [1, 2])
def test_experts_are_split_as_the_stack_splits_them(etp):
    """Experts of Megatron-LM are tensor-parallel as the rest; recipes of Megatron-Bridge set 1."""
    model, own = Model.load("mixtral-8x7b"), {"gpus": 16, "tp": 2, "ep": 8, "gbs": 128}
    stack = "megatron-lm-2024" if etp == 2 else "megatron-bridge-2025"
    assert Strategy(**own, stack=stack).resolved(model).etp == etp
    assert estimate_many(model, "h100-sxm", own | {"stack": [stack]}).table.etp == [etp]
    other = Strategy(**own, stack=stack, etp=3 - etp).resolved(model)
    assert set_fields(model, other)["etp"] == 3 - etp


def test_fields_to_set_are_those_that_a_recipe_changes():
    """A recipe has its own default of the weights, which another plan must state."""
    model, stack = Model.load("qwen3-235b-a22b"), "megatron-bridge-nvl72"
    own = {"gpus": 256, "gbs": 4096, "pp": 4, "ep": 32, "stack": stack, "quantization": "mxfp8"}
    for quantized in (False, True):
        plan = Strategy.validated(own | {"quantized_weights": quantized}).resolved(model)
        assert Strategy(**set_fields(model, plan), stack=stack).resolved(model) == plan


def test_the_fault_of_dp_is_of_the_degrees():
    """Replicas follow from the other degrees: these are what may change."""
    with pytest.raises(InputError) as caught:
        estimate(MODEL, SYSTEM, WORK | {"dp": 3})
    assert blamed_fields(caught.value) <= {"dp", "tp", "pp", "cp", "gpus"}

"""The planner on a block of three products, by hand: times, memory, usual wrappings, refusals."""

import numpy as np
import pytest

from rows import each_row
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.fsdp.plan import Setting, Unit, Wrapping
from shardwise.fsdp.planner.collectives import LinearTime, LinearTimes, SystemTimes
from shardwise.fsdp.planner.planner import (
    Planner,
    compare_common_wrappings,
    largest_batch,
    smallest_gpus,
)
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule

MIB = 2.0**20


def hand_made(*, frozen=False):
    """Root with a block of two linears, each segment one millisecond."""
    modules = (
        ProfiledModule(
            name="",
            kind="Net",
            parent=-1,
            end=4,
            forward=(0, 5),
            backward=(6, 11),
            reduced_last=True,
        ),
        ProfiledModule(name="a", kind="Linear", parent=0, end=2, forward=(1, 2), backward=(9, 10)),
        ProfiledModule(name="b", kind="Linear", parent=0, end=3, forward=(2, 3), backward=(8, 9)),
        ProfiledModule(name="c", kind="Linear", parent=0, end=4, forward=(3, 4), backward=(7, 8)),
    )
    parameters = tuple(
        Parameter(
            name=f"{name}.weight",
            shape=(1024, 1024),
            holders=(place,),
            element_bytes=2.0,
            gradient_segment=-1 if frozen and name == "b" else segment,
            trainable=not (frozen and name == "b"),
        )
        for name, place, segment in (("a", 1, 9), ("b", 2, 8), ("c", 3, 7))
    )
    kept = np.array([0, 1, 2, 3, 3, 3, 3, 2, 1, 0, 0], dtype=float) * MIB
    bare = Profile(
        name="net",
        source="test",
        modules=modules,
        parameters=parameters,
        forward_segments=6,
        seconds=np.full(11, 1e-3),
        resident_bytes=kept,
        end_bytes=kept,
    )
    with_gradients = kept + bare.gradient_bytes
    return Profile(
        name="net",
        source="test",
        modules=modules,
        parameters=parameters,
        forward_segments=6,
        seconds=np.full(11, 1e-3),
        resident_bytes=with_gradients,
        end_bytes=with_gradients,
    )


SLOW = LinearTimes(
    all_gather=LinearTime(latency_s=0.5e-3, bytes_per_s=2 * MIB / 2.5e-3),
    reduce_scatter=LinearTime(latency_s=0.25e-3, bytes_per_s=4 * MIB / 0.5e-3),
)


def test_exposed_time_by_hand():
    """Gathers of 3 ms, reduce-scatters of 0.75 ms, 1 ms of compute anywhere.

    Forward: the root owns nothing; a waits 3 - 1 (the root's own segment), b and c 3 - 1 each: 6.
    Backward: nobody gathers c ahead: 3. Before b: its gather against c's 1 ms: 2. Before a: its
    gather and c's reduce-scatter against b's 1 ms: 2.75. At the end: b's reduce-scatter behind a
    (0.75 - 1 < 0: nothing), a's behind the root's last segment: nothing.
    """
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), collectives=SLOW)
    plan = planner.evaluate(
        Wrapping(units=(Unit(modules=("a",)), Unit(modules=("b",)), Unit(modules=("c",))))
    )
    assert plan.exposed_s == pytest.approx((6 + 3 + 2 + 2.75) * 1e-3)
    assert plan.compute_s == pytest.approx(11e-3)


def test_memory_by_hand():
    """Two ranks, fp32 stored, Adam: 3 MiB of weights in numbers, so 6 sharded and 12 of state.

    Root only, at the last reduce-scatter: 6 of unsharded gradients (bf16) beside 12 of its input
    in fp32, weights freed: 36. Forward: 6 of weights, 6 of buffer, 3 of activations: 33.
    """
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), collectives=SLOW)
    plan = planner.evaluate(Wrapping(units=()))
    assert plan.peak.total_bytes == pytest.approx(38 * MIB)
    assert sum(plan.peak.bytes.values()) == pytest.approx(plan.peak.total_bytes)


def test_usual_wrappings_and_counts():
    """Blocks are found by their numbers; budgets give the fewest GPUs and the largest batch."""
    from shardwise.config.model import Model  # noqa: PLC0415
    from shardwise.fsdp.from_catalog import profile_of  # noqa: PLC0415 - only here

    system, model = System.load("h100-sxm"), Model.load("llama3.2-1b")

    def planner(gpus, batch=1):
        setting = Setting(shards=gpus)
        profile = profile_of(model, system, batch=batch, seq_len=2048)
        return Planner(
            profile=profile,
            setting=setting,
            collectives=SystemTimes(system=system, setting=setting),
        )

    eight = planner(8)
    names = {named.name: named.plan for named in compare_common_wrappings(eight)}
    assert [len(plan.wrapping.units) for plan in names.values()] == [0, 16, 17]
    best = eight.best()
    assert best is not None
    assert best.plan.exposed_s <= min(plan.exposed_s for plan in names.values())
    budget = planner(16).least_peak_bytes
    assert smallest_gpus(planner, budget, [2, 4, 8, 16, 32]) == 16
    three = planner(8, 3).least_peak_bytes
    assert largest_batch(lambda batch: planner(8, batch), three, most=8) == 3


@pytest.mark.nightly
def test_checkpointing_all_and_as_many_as_needed():
    """A budget below what fits without is met by checkpointing the first blocks, no more of them
    than it takes, and the proof counts recomputation."""
    from shardwise.config.model import Model  # noqa: PLC0415
    from shardwise.fsdp.from_catalog import profile_of  # noqa: PLC0415

    system = System.load("h100-sxm")
    setting = Setting(shards=8)
    collectives = SystemTimes(system=system, setting=setting)
    profile = profile_of(Model.load("llama3-8b"), system, batch=1)
    none = Planner(profile=profile, setting=setting, collectives=collectives)
    some = Planner(profile=profile, setting=setting, collectives=collectives, checkpoint="choose")
    every = Planner(profile=profile, setting=setting, collectives=collectives, checkpoint="all")
    assert every.least_peak_bytes < none.least_peak_bytes
    budget = 0.5 * (every.least_peak_bytes + none.least_peak_bytes)
    assert none.best(budget) is None
    found, full = some.best(budget), every.best(budget)
    assert found is not None
    assert full is not None
    assert found.optimal
    assert 0 < len(found.plan.wrapping.checkpointed) < 32
    assert found.cost_s < full.cost_s
    assert found.plan.wrapping.checkpointed[0] == "layers.0"


@each_row(
    ("wrapping", "words"),
    [
        (Wrapping(units=(Unit(modules=("nope",)),)), "no such module"),
        (Wrapping(units=(Unit(modules=("",)),)), "the root is a unit"),
        (Wrapping(units=(Unit(modules=("a",)), Unit(modules=("a",)))), "more than one unit"),
        (Wrapping(units=(), checkpointed=("x",)), "no such module"),
    ],
)
def test_wrong_wrappings_are_refused(wrapping, words):
    """With the module and the reason."""
    planner = Planner(profile=hand_made(), setting=Setting(shards=2), collectives=SLOW)
    with pytest.raises(InputError, match=words):
        planner.evaluate(wrapping)


def test_frozen_weights_are_not_mixed():
    """Not by the planner, and not for a user: b is frozen between a and c."""
    planner = Planner(profile=hand_made(frozen=True), setting=Setting(shards=2), collectives=SLOW)
    with pytest.raises(InputError, match="mixes frozen and trainable"):
        planner.evaluate(Wrapping(units=(Unit(modules=("a", "b")),)))
    edges = [edge.unit.modules for edges in planner.rules().step.edges for edge in edges]
    assert ("b",) in edges
    assert ("a", "b") not in edges


def test_one_rank_is_refused():
    """There is nothing to shard."""
    with pytest.raises(InputError, match="two ranks or more"):
        Planner(profile=hand_made(), setting=Setting(shards=1), collectives=SLOW)


def test_compute_dtype_must_be_the_profiles():
    """A profile in 16 bits says nothing of 32."""
    setting = Setting(shards=2, compute_dtype="fp32")
    with pytest.raises(InputError, match="2 bytes"):
        Planner(profile=hand_made(), setting=setting, collectives=SLOW)

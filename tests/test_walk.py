"""Peak memory of operations, by hand and against a simulation with a list of buffers.

By hand: three operations that save 10, 20 and 30 bytes.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import drawn, examples
from rows import each_row
from samples import column
from shardwise import Model
from shardwise.config.enums import RecomputePart
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, step_of, walk
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations, mtp_operations
from shardwise.ops.operation import Operation

pytestmark = pytest.mark.any_software

fast = examples(200)
HALF = frozenset({"every_other"})
EVERY_OTHER = RecomputePart.bits(HALF)
CORE, MLP = (
    RecomputePart.bits(frozenset({"core_attention"})),
    RecomputePart.bits(frozenset({"mlp"})),
)


def step(saved: float, forward: float, backward: float, **fields: Any) -> Step:
    """One operation; its parts drop all it saves unless `rebuilt` says otherwise."""
    plain: dict[str, Any] = {
        "rebuilt": saved,
        "reruns": 0,
        "drops": 0,
        "part": 1,
        "modules": 0,
        "trains": False,
    } | fields
    plain["rebuilt"] = column(plain["rebuilt"] if plain["drops"] else 0)
    plain["half_rebuilt"] = column(plain.get("half_rebuilt", 0))
    return Step(saved=column(saved), forward=column(forward), backward=column(backward), **plain)


def peak(steps: Sequence[Step], parts: int = 0, checkpoint: float = 0) -> tuple[float, ...]:
    """Saved bytes, additional bytes at the peak, and the position of the peak."""
    found = walk(steps, parts, column(checkpoint))
    return float(found.saved[0]), float(found.over[0]), int(found.peak[0])


def test_backward_releases_what_it_has_passed() -> None:
    """60 are saved. Backward: 60 + 5, 30 + 50, 10 + 40; forward at most 30 + 5."""
    steps = [step(10, 0, 40), step(20, 0, 50), step(30, 5, 5)]
    assert peak(steps) == (60, 20, 1)


def test_the_peak_may_be_in_the_forward_pass() -> None:
    """Before the last saves its 30 it needs 45 in addition to 30; backward it needs nothing."""
    steps = [step(10, 0, 0), step(20, 0, 0), step(30, 45, 0)]
    assert peak(steps) == (60, 15, 2 + 3)


def test_gradients_of_weights_come_after_the_loss() -> None:
    """The loss goes backward at 60 + 50; once the head has a gradient, at most 30 + 20 are live."""
    steps = [step(10, 0, 40), step(20, 0, 20, trains=True), step(30, 5, 50)]
    found = walk(steps, 0, column(0))
    assert peak(steps) == (60, 50, 2)
    assert float(found.trained_over[0]) == 30 + 20 - 60
    assert float(walk(steps[:1], 0, column(0)).trained_over[0]) == float("-inf")


def test_without_transients_the_peak_is_the_start_of_backward() -> None:
    """All 60 and no more, when the last operation goes backward."""
    assert peak([step(10, 0, 0), step(20, 0, 0), step(30, 0, 0)]) == (60, 0, 2)


def test_forward_only_saves_nothing() -> None:
    """The largest transient of the forward pass."""
    steps = [step(10, 7, 40), step(20, 9, 50), step(30, 8, 5)]
    assert peak(steps, FORWARD_ONLY) == (0, 9, 1 + 3)


def test_full_recompute_saves_its_checkpoint() -> None:
    """60 are rebuilt, and 5 in addition, less the 8 that are saved."""
    steps = [step(10, 0, 20), step(20, 0, 20), step(30, 0, 5)]
    assert peak(steps, FULL, checkpoint=8) == (8, 57, 2)


def test_a_part_is_rebuilt_before_its_own_operations() -> None:
    """The middle drops its 20: 40 are saved. Last 40 + 5; middle 10 + 20 + 30; first 10 + 1."""
    steps = [step(10, 0, 1), step(20, 0, 30, reruns=CORE, drops=CORE), step(30, 0, 5)]
    assert peak(steps, CORE) == (40, 20, 1)
    assert peak(steps, MLP) == peak(steps, 0) == (60, 5, 2)


def test_the_first_operation_that_runs_again_rebuilds_for_all() -> None:
    """The last runs again too, which rebuilds all of its part: 10 + 20 + 30 + 5."""
    steps = [
        step(10, 0, 1),
        step(20, 0, 30, reruns=MLP, drops=MLP),
        step(30, 0, 5, reruns=MLP),
    ]
    assert peak(steps, MLP) == (40, 25, 2)
    # A part that only drops what the last saved, all but 12 of it: 28 saved, the same 65 in all.
    steps[2] = step(30, 0, 5, drops=MLP, rebuilt=18)
    assert peak(steps, MLP) == (22, 43, 2)


def test_every_other_drops_less_than_other_parts() -> None:
    """Of the middle's 20 it rebuilds 15: 45 saved; with the other part, all: 40."""
    both = MLP | EVERY_OTHER
    steps = [step(10, 0, 1), step(20, 0, 30, reruns=both, drops=both, half_rebuilt=15)]
    steps.append(step(30, 0, 5))
    assert peak(steps, EVERY_OTHER) == (45, 15, 1)
    assert peak(steps, MLP) == peak(steps, both) == (40, 20, 1)


def test_two_parts_are_rebuilt_one_by_one() -> None:
    """The last rebuilds its own 30 before the middle's 20: 10 + 30 + 5, 10 + 20 + 30."""
    steps = [
        step(10, 0, 1),
        step(20, 0, 30, reruns=CORE, drops=CORE),
        step(30, 0, 5, reruns=MLP, drops=MLP),
    ]
    assert peak(steps, CORE | MLP) == (10, 50, 1)
    steps[1] = step(20, 0, 3, reruns=CORE, drops=CORE)
    assert peak(steps, CORE | MLP) == (10, 35, 2)


def test_each_row_has_its_own_peak() -> None:
    """The same operations of other sizes: the middle decides in one row, the last in another."""
    many = [
        Step(
            saved=column(10, 10),
            rebuilt=column(0, 0),
            half_rebuilt=column(0, 0),
            forward=column(0, 0),
            backward=column(backward, 5),
            reruns=0,
            drops=0,
            part=1,
            modules=0,
            trains=False,
        )
        for backward in (0, 30, 5)
    ]
    found = walk(many, 0, column(0, 0))
    assert found.over.tolist() == [20, 5]
    assert found.peak.tolist() == [1, 2]


def dropped_bytes(operation: Operation, parts: frozenset[str]) -> float:
    """Bytes that parts drop of an operation; every_other alone has its own figure."""
    dropping = operation.dropped_with & parts
    half = operation.half_rebuilt_bytes
    if dropping == HALF and half is not None:
        return float(half[0])
    return float(operation.saved_bytes[0]) if dropping else 0.0


def simulated(operations: Sequence[Operation], parts: frozenset[str], checkpoint: float) -> float:
    """Most bytes at once in a forward and a backward pass, with a list of buffers by name.

    Parameters
    ----------
    parts
        Recompute parts that run again; "full" for the full layer.
    """
    full = "full" in parts

    def saved_by(operation: Operation) -> float:
        if full:
            return 0.0
        return float(operation.saved_bytes[0]) - dropped_bytes(operation, parts)

    buffers = {"checkpoint": checkpoint if full else 0.0}
    most = sum(buffers.values())
    for operation in operations:
        forward = operation.forward_working_bytes
        needed = operation.working_bytes if forward is None else forward
        if not full:
            most = max(most, sum(buffers.values()) + float(needed[0]))
        buffers[operation.name] = saved_by(operation)
    if full:  # the input of the layer is its first operation's
        buffers["checkpoint"] = 0.0
    for operation in reversed(operations):
        again = {"full"} if full else (operation.reruns_with | operation.dropped_with) & parts
        for other in operations:
            if other.name in buffers and (full or other.dropped_with & again):
                buffers[other.name] = float(other.saved_bytes[0])
        most = max(most, sum(buffers.values()) + float(operation.working_bytes[0]))
        del buffers[operation.name]
    return most


LAYERS: dict[str, tuple[Model, int]] = {
    "gpt": (samples.model(), 0),
    "llama": (samples.llama(), 0),
    "parallel": (samples.model(samples.layer(parallel=True)), 0),
    "latent": (samples.deepseek(), 0),
    "experts": (samples.deepseek(), 1),
    "wide experts": (samples.deepseek({"ffn": 512, "shared_ffn": 8}), 1),
}
WORK: list[dict[str, Any]] = [
    {},
    {"flash": False},
    {"tp": 2, "sequence_parallel": True},
    {"seq_len": 512, "fused_activation": True},
]


@each_row("kind", LAYERS)
@each_row("work", WORK)
def test_a_layer_agrees_with_the_simulation(kind: str, work: dict[str, Any]) -> None:
    """Up to three parts, all parts, and full recompute: saved bytes and peak."""
    model, which = LAYERS[kind]
    operations = layer_operations(model, model.layers[which], samples.rank_work(**work))
    steps = [step_of(operation) for operation in operations]
    few = [frozenset(c) for n in range(4) for c in combinations(RecomputePart, n)]
    for parts in [*few[:: len(few) // drawn(len(few))], frozenset(RecomputePart)]:
        code = sum(1 << RecomputePart(part).code for part in parts)
        found = walk(steps, code, column(0))
        saved = sum(float(o.saved_bytes[0]) - dropped_bytes(o, parts) for o in operations)
        assert found.saved[0] == pytest.approx(saved)
        most = float(found.saved[0] + found.over[0])
        assert most == pytest.approx(simulated(operations, parts, 0)), parts
        assert 0 <= found.peak[0] < 2 * len(steps)
    checkpoint = float(operations[0].saved_bytes[0])
    found = walk(steps, FULL, column(checkpoint))
    assert found.saved[0] == checkpoint
    most = simulated(operations, frozenset({"full"}), checkpoint)
    assert found.saved[0] + found.over[0] == pytest.approx(most)


def test_embedding_head_and_mtp_modules_agree_with_the_simulation() -> None:
    """Without recompute; no two operations have the same name."""
    model, work = samples.deepseek(mtp=1), samples.rank_work()
    for operations in (
        embedding_operations(model, work),
        head_operations(model, work, holds_copy=np.array([True])),
        mtp_operations(model, work),
    ):
        assert len({operation.name for operation in operations}) == len(operations)
        found = walk([step_of(operation) for operation in operations], 0, column(0))
        most = simulated(operations, frozenset(), 0)
        assert found.saved[0] + found.over[0] == pytest.approx(most)


sizes = st.integers(0, 50)
marks = st.sampled_from([0, CORE, MLP, CORE | MLP])


@fast
@given(st.lists(st.tuples(sizes, sizes, sizes, marks), min_size=1, max_size=8), marks)
def test_more_recompute_saves_less_and_never_raises_the_peak(
    figures: list[tuple[int, int, int, int]], parts: int
) -> None:
    """Saved bytes fall; the peak is at most that without recompute."""
    steps = [step(s, a, b, reruns=m, drops=m) for s, a, b, m in figures]
    none, some, full = (walk(steps, code, column(0)) for code in (0, parts, FULL))
    assert full.saved <= some.saved <= none.saved
    assert some.saved + some.over <= none.saved + none.over
    assert full.saved + full.over <= none.saved + none.over
    assert none.saved == sum(s for s, *_ in figures)
    largest = max(b for *_, b, _ in figures)
    assert some.saved + some.over >= largest

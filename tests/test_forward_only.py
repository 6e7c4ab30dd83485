"""Steps that only go forward, by hand: GPT sample, micro-batches of 2 x 32 tokens in bf16."""

from typing import Any

import pytest

import samples
from samples import run
from shardwise import Estimate

SBH = 64 * 64
LAYER = 12 * 64**2 + 13 * 64
WHOLE = 4 * LAYER + 2 * 64 + (1000 + 32) * 64
HOP = 2 * SBH / 100e9


def both(**columns: Any) -> tuple[Estimate, Estimate]:
    """The same strategy forward only and in training."""
    return run(training=False, **columns), run(**columns)


def test_only_forward_is_left_on_one_accelerator() -> None:
    """As long as in training; nothing else."""
    once, training = both(gbs=8)
    assert {part for part, time in once.time_s.items() if time > 0} == {"forward"}
    assert once.time_s["forward"] == once.step_time_s == training.time_s["forward"]


def test_exchanges_of_the_ranks_are_those_of_forward() -> None:
    """4 scatters and gathers of half an activation in a layer, one of embedding and head.

    And 3 all-reduces of the loss. Training has 6 more in a layer, 3 of embedding and head.
    """
    once, training = both(tp=2)
    layer = 4 * 4 * SBH
    ends = SBH + SBH + 3 * 64 * 4
    assert once.time_s["tp_comm"] == pytest.approx((layer + ends) / 100e9)
    more = training.time_s["tp_comm"] - once.time_s["tp_comm"]
    assert more == pytest.approx((4 * 6 + 3) * SBH / 100e9)


def test_a_pipeline_fills_once_and_hands_over_once() -> None:
    """8 micro-batches and 3 hops one way; the forward passes of the other stages."""
    once, training = both(pp=4, gbs=16)
    times = [stage.micro_batch_s for stage in once.stages]
    assert times[3] == pytest.approx(once.time_s["forward"] / 8)
    assert once.time_s["bubble"] == pytest.approx(sum(times[:3]) + 3 * HOP)
    assert once.time_s["pp_comm"] == pytest.approx(8 * HOP) == training.time_s["pp_comm"] / 2
    assert once.comm_s["pp"].total == once.time_s["pp_comm"]
    # Interleaved, two messages each, and half of the filling.
    chunks = run(training=False, pp=2, vpp=2, gbs=16)
    first = chunks.stages[0].micro_batch_s
    assert chunks.time_s["bubble"] == pytest.approx(first / 2 + HOP)
    assert chunks.time_s["pp_comm"] == pytest.approx(2 * 8 * HOP)


def test_replicas_have_nothing_to_exchange_or_update() -> None:
    """Nor do the copies of tied words on the first and last stage."""
    for columns in ({"dp": 4, "gbs": 8}, {"dp": 2, "pp": 2, "gbs": 8, "zero": 0}):
        once, training = both(**columns)
        assert training.comm_s["dp"].total > 0
        assert once.comm_s["dp"].total == once.time_s["dp_comm"] == once.time_s["optimizer"] == 0


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_nothing_is_recomputed(recompute: str) -> None:
    """Neither time nor FLOPs nor bytes differ from no recompute."""
    plain, again = (run(training=False, recompute=kind) for kind in ("none", recompute))
    assert again.time_s == plain.time_s
    assert again.memory_bytes == plain.memory_bytes
    assert again.hfu == again.mfu == plain.mfu
    assert again.layers == plain.layers


def test_weights_and_one_working_set_are_held() -> None:
    """2 bytes of weights; the head's input and output beside the residual stream of 2 s b h."""
    held = run(training=False, gbs=8).memory_bytes
    assert held.weights == 2 * WHOLE
    assert held.gradients == held.optimizer == held.activations == 0
    assert held.buffers == 64 * (64 + 1000) * 2 + 2 * SBH
    first = run(training=False, pp=2, gbs=8).stages[0]
    assert first.buffers == 2 * 64 * 256 * 2 + 2 * SBH
    # A buffer for each shape of weights is for their gradients.
    software = {"weight_gradient_buffers": True, "gradient_dtype": "compute"}
    assert run(None, software, training=False, gbs=8).memory_bytes == held


def test_only_weights_can_be_away() -> None:
    """State and activations that are not there wait nowhere and move never."""
    memory = [{"name": name, "capacity": 1e12, "bandwidth": 1e9} for name in ("hbm", "host")]
    machine = samples.system(memory=memory)
    flags = {"offload_activations": True, "offload_optimizer": True}
    once = run(machine=machine, training=False, **flags)
    assert once.comm_s["offload"].total == once.memory_bytes.offloaded == 0
    weights = run(machine=machine, training=False, offload_weights=True, gbs=8)
    assert weights.memory_bytes.offloaded == 2 * 4 * LAYER
    assert weights.comm_s["offload"].total == pytest.approx(4 * 4 * 2 * LAYER / 1e9)


def test_utilisation_is_that_of_a_third_of_the_flops() -> None:
    """2 FLOPs per weight and token, and a third of the scores'."""
    result = run(training=False)
    tokens, flops = 64, 2 * (4 * LAYER + 2 * 64 + 64_000) + 2 * 4 * 32 * 64
    assert result.mfu == pytest.approx(tokens * flops / result.step_time_s / 100e12)
    assert result.efficiency.total == pytest.approx(result.mfu)
    assert result.efficiency.system == 1


def test_layers_go_forward_only() -> None:
    """Their totals are those of training's forward, and nothing for the rest."""
    once, training = (result.layers[0] for result in both(tp=2, dp=2, gbs=4, recompute="full"))
    assert once.forward == training.forward
    assert once.tp_forward == training.tp_forward
    for phase in ("recompute", "input_grad", "weight_grad", "optimizer"):
        assert set(getattr(once, phase).to_dict().values()) == {0}
        assert getattr(training, phase).time_s > 0
    for exchanges in ("tp_backward", "tp_again"):
        assert set(getattr(once, exchanges).to_dict().values()) == {0}
    assert once.gradient_bytes == once.optimizer_bytes == once.kept_bytes == 0
    assert once.weight_bytes == training.weight_bytes > 0


def test_required_bandwidths_are_those_of_forward() -> None:
    """No gradients, no activations, no state; weights and split exchanges behind forward."""
    result = run(training=False, tp=2, dp=2, gbs=4)
    needed, layer = result.required_bandwidth, result.layers[0]
    assert needed.dp_chunks == needed.dp_tail == 0
    assert needed.offload_activations == needed.offload_optimizer == 0
    ahead = layer.forward.time_s + layer.tp_forward.exposed_s
    assert needed.offload_weights == pytest.approx(layer.weight_bytes / ahead)
    rows = run(training=False, tp=2, dp=2, gbs=4, operations=True).operations or ()
    products = [r for r in rows if r.part == "layer" and r.phase == "forward"]
    shortest = min(r.time_s for r in products if r.kind == "matmul")
    assert needed.tp_overlap == pytest.approx(2 * SBH / shortest)


def test_operations_are_those_of_forward() -> None:
    """No gradient, nothing run again or kept, no update; half the transfers between stages."""
    once, training = (
        run(training=on, operations=True, pp=2, gbs=4, recompute="full") for on in (False, True)
    )
    rows = once.operations or ()
    assert {row.phase for row in rows} == {"forward", "step"}
    assert sum(row.saved_bytes for row in rows) == 0 == once.memory_bytes.activations
    assert [row.operation for row in rows if row.part == "step"] == ["stage_transfers"]
    handed = [
        next(row for row in result.operations or () if row.operation == "stage_transfers")
        for result in (once, training)
    ]
    assert 2 * handed[0].volume_bytes == handed[1].volume_bytes == 2 * 2 * (2 * SBH)
    assert {stage.peak.phase for stage in once.stages} == {"forward"}

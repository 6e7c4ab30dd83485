"""Transfers to the second memory tier and what stays in the first, by hand.

GPT sample, unsharded: 4 layers of 12 h^2 + 13 h weights with h = 64, micro-batches of 2 x 32 tokens
in bf16. The link is so slow (1 GB/s) that it decides, or so fast (1e15) that nothing shows.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import column, passes, run
from shardwise import Estimate, System
from shardwise.config.system import EfficiencyCurve
from shardwise.cost.overlap import d2h_time, h2d_time, optimizer_transfer

pytestmark = pytest.mark.any_software

LAYER = 12 * 64**2 + 13 * 64
WEIGHTS = 2 * LAYER
SBH = 64 * 64
KEPT = 34 * SBH + 4 * 64 * 8
EMBEDDING, NORM = (1000 + 32) * 64, 2 * 64
SLOW, FAST = 1e9, 1e15
CURVE = EfficiencyCurve(points=((0, 0.25), (WEIGHTS, 0.5), (2 * WEIGHTS, 1)))
PARTS = ("weights", "activations", "optimizer")


def machine(
    bandwidth: float, *, capacity: float = 1e12, curve: EfficiencyCurve | None = None
) -> System:
    """The sample machine with a second tier behind a link."""
    first = {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12}
    second = {"name": "host", "capacity": capacity, "bandwidth": bandwidth, "efficiency": curve}
    return samples.system(memory=[first, second])


def away(*parts: str, bandwidth: float = SLOW, **columns: Any) -> Estimate:
    """Run with some parts in the second tier."""
    flags: dict[str, Any] = {f"offload_{part}": True for part in parts}
    flags |= {"cpu_optimizer": "none"} if "optimizer" in parts else {}
    return run(machine=machine(bandwidth), **({"zero": 0} | flags | columns))


def test_the_link_moves_bytes_at_its_share_of_the_bandwidth() -> None:
    """10^9 byte/s; by a curve a quarter, half or all of it by the bytes of one transfer."""
    sizes = column(0, WEIGHTS / 2, WEIGHTS, 3 * WEIGHTS)
    for time in (h2d_time, d2h_time):
        np.testing.assert_allclose(time(machine(SLOW), sizes), sizes / 1e9)
        curved = time(machine(SLOW, curve=CURVE.to_dict()), sizes)
        np.testing.assert_allclose(curved, np.array([0, 2, 2, 3]) * WEIGHTS / 1e9)
        assert time(samples.system(), sizes).tolist() == [0, 0, 0, 0]


def test_the_update_hides_its_transfer_behind_an_idle_link() -> None:
    """12 bytes in and 16 out at 1 byte/s, each way behind its own 0 to 20 s: the later one."""
    slow = machine(1)
    moved = {"state_bytes": column(12, 12, 12, 12), "weight_bytes": column(4, 4, 4, 4)}
    idle = {"idle_in_s": column(0, 6, 2, 20), "idle_out_s": column(0, 6, 16, 20)}
    alone, exposed = optimizer_transfer(slow, **moved, **idle)
    assert alone.tolist() == [16, 16, 16, 16]
    assert exposed.tolist() == [16, 10, 10, 0]


def test_weights_come_in_twice_and_go_back_once() -> None:
    """Exposed: what takes longer than a layer's pass, forward and backward.

    The updated weights go back while those of the last backward pass come in. The gradients' sweep
    and the update of all weights take 36 bytes each at 1 TB/s.
    """
    result = away("weights", gbs=8)
    forward, backward = passes(result)
    each = WEIGHTS / SLOW
    assert each > backward > forward
    update = result.time_s["optimizer"]
    assert update == pytest.approx((4 * LAYER + EMBEDDING + NORM) * 36e-12)
    expected = 4 * 4 * (2 * each - forward - backward)
    assert result.time_s["offload"] == pytest.approx(expected)
    assert result.comm_s["offload"].total == pytest.approx(4 * 4 * 2 * each + 4 * each)
    assert result.comm_s["offload"].exposed == result.time_s["offload"]


def test_activations_go_out_and_come_in() -> None:
    """Once each in a micro-batch, and nothing in the update."""
    result = away("activations", gbs=8)
    forward, backward = passes(result)
    each = KEPT / SLOW
    assert result.time_s["offload"] == pytest.approx(4 * 4 * (2 * each - forward - backward))
    assert result.comm_s["offload"].total == pytest.approx(4 * 4 * 2 * each)


def test_forward_the_link_works_both_ways_at_once() -> None:
    """Weights come in while activations go out: the longer; backward both come in: the sum."""
    result = away("weights", "activations")
    forward, backward = passes(result)
    assert KEPT > WEIGHTS
    layers = 4 * ((KEPT - forward * SLOW) + (KEPT + WEIGHTS - backward * SLOW)) / SLOW
    assert result.time_s["offload"] == pytest.approx(layers)


def test_optimizer_state_moves_behind_the_last_backward_pass() -> None:
    """12 bytes of each layer's weights, less one backward pass with the head, less the update."""
    result = away("optimizer", gbs=8)
    alone = 12 * 4 * LAYER / SLOW
    idle = result.time_s["backward"] / 4 + result.time_s["optimizer"]
    assert alone > idle
    assert result.time_s["offload"] == pytest.approx(alone - idle)
    assert result.comm_s["offload"].total == pytest.approx(alone)
    shared = away("optimizer", dp=4, gbs=8, zero=1)
    assert shared.comm_s["offload"].total == pytest.approx(alone / 4)


@each_row("recompute", ["none", "selective", "full"])
def test_only_saved_activations_move(recompute: str) -> None:
    """With full recompute the input of a layer alone."""
    result = away("activations", recompute=recompute)
    # Selective: all but the row sums of a fused core; queries, keys and values stay.
    kept = {"none": KEPT, "selective": 34 * SBH, "full": 2 * SBH}[recompute]
    assert result.layers[0].kept_bytes == kept
    assert result.comm_s["offload"].total == pytest.approx(2 * 4 * kept / SLOW)


def test_a_fast_link_shows_nothing() -> None:
    """All three at 1e15 byte/s: the step of the same strategy without them."""
    plain, all_three = away(), away(*PARTS, bandwidth=FAST)
    assert all_three.time_s["offload"] == 0
    assert all_three.comm_s["offload"].total > 0
    assert all_three.step_time_s == plain.step_time_s


def test_transfers_of_a_layer_take_their_share_of_the_curve() -> None:
    """Weights alone at half of the bandwidth; twice as much in the fp32 of another run at all."""
    given = {"offload_weights": True, "zero": 0, "training": False}
    curved = machine(SLOW, curve=CURVE.to_dict())
    for dtype, each in (("bf16", 2 * WEIGHTS), ("fp32", 2 * WEIGHTS)):
        result = run(machine=curved, dtype=dtype, **given)
        forward = result.layers[0].forward.time_s
        assert result.time_s["offload"] == pytest.approx(4 * (each / SLOW - forward))


def test_tensor_parallelism_moves_a_part_and_hides_more() -> None:
    """Ranks bring their half in; exposed exchanges of the layer lengthen what it hides behind."""
    result = away("weights", tp=2, sequence_parallel=False, tp_overlap="none", training=False)
    layer = result.layers[0]
    ahead = layer.forward.time_s + layer.tp_forward.exposed_s
    split, whole = 12 * 64**2 + 7 * 64, 6 * 64
    assert layer.weight_bytes == 2 * (split / 2 + whole)
    expected = 4 * (layer.weight_bytes / SLOW - ahead)
    assert result.time_s["offload"] == pytest.approx(expected)


def test_interleaved_or_not_the_others_wait_for_transfers() -> None:
    """The bubble has the exposed transfers of the other stage: of all its layers, or of a chunk.

    With it stand the message back to the first stage and all of the embedding: forward before the
    last stage starts; backward once, with chunks twice, as two micro-batches come out one right
    after the other. Of 4 micro-batches the last stage meets 1 message each, with chunks 3.
    """
    hop = 2 * SBH / 100e9
    # Forward the words are read and written; backward gradients are read, and added in 4 bytes.
    forward, backward = 2 * 2 * SBH / 1e12, (2 + 4 + 4) * SBH / 1e12
    for chunks, out, messages in ((1, 1, 1), (2, 2, 3)):
        result = away("activations", pp=2, vpp=chunks, gbs=8)
        first, last = (stage.micro_batch_s for stage in result.stages)
        assert last > first > 2 * 2 * KEPT / SLOW
        waits = (first - forward - backward) / chunks + forward + out * backward + hop
        assert result.time_s["bubble"] == pytest.approx(waits)
        assert result.time_s["pp_comm"] == pytest.approx(messages * 4 * hop)


def test_two_layers_stay() -> None:
    """Of 4 layers' weights, state and kept activations half is away at any moment.

    A copy of all of it waits in the second tier. Embedding, head and gradients stay.
    """
    plain, all_three = away().memory_bytes, away(*PARTS)
    held = all_three.memory_bytes
    assert held.weights == 2 * (2 * LAYER + EMBEDDING + NORM)
    assert held.optimizer == 12 * (2 * LAYER + EMBEDDING + NORM)
    assert held.activations == 2 * KEPT + SBH
    assert (held.gradients, held.buffers) == (plain.gradients, plain.buffers)
    assert held.offloaded == 4 * (WEIGHTS + 12 * LAYER + KEPT)
    assert plain.offloaded == 0
    assert held.total == plain.total - held.offloaded / 2


def test_a_stage_of_one_layer_keeps_it() -> None:
    """Nothing leaves but what waits: of 4 micro-batches in flight on the first stage, 2 stay."""
    plain, all_three = (away(*parts, pp=4, gbs=16).stages for parts in ((), PARTS))
    for before, stage, flying in zip(plain, all_three, (4, 3, 2, 1), strict=True):
        assert (stage.weights, stage.optimizer) == (before.weights, before.optimizer)
        assert stage.offloaded == WEIGHTS + 12 * LAYER + flying * KEPT
        assert before.activations - stage.activations == (flying - min(flying, 2)) * KEPT


def test_micro_batches_in_flight_wait_in_the_second_tier() -> None:
    """8 layers on 2 stages: of 4 layers of 2 micro-batches 2 stay; the embedding's all."""
    model = samples.model(samples.layer(count=8))
    given = {"pp": 2, "gbs": 8, "zero": 0, "offload_activations": True}
    first = run(model, machine=machine(SLOW), **given).stages[0]
    assert first.activations == 2 * KEPT + 2 * SBH
    assert first.offloaded == 2 * 4 * KEPT


def test_sharded_state_waits_in_parts() -> None:
    """A quarter of 12 bytes per weight on each of 4 replicas."""
    held = away("optimizer", dp=4, gbs=8, zero=1).memory_bytes
    assert held.offloaded == 4 * 3 * LAYER
    assert held.optimizer == 3 * (2 * LAYER + EMBEDDING + NORM)


@each_row("spare", [0, -1])
def test_the_second_tier_is_full_at_its_last_byte(spare: int) -> None:
    """What is offloaded fits up to the capacity, which the estimate names."""
    given = {"zero": 0, "offload_weights": True}
    result = run(machine=machine(SLOW, capacity=4 * WEIGHTS + spare), **given)
    assert result.fits is (spare == 0)
    assert result.memory_bytes.offload_capacity == 4 * WEIGHTS + spare
    assert run(machine=samples.system()).memory_bytes.offload_capacity == 0


def last(result: Estimate) -> float:
    """The last backward pass and the update."""
    return result.time_s["backward"] / result.micro_batches + result.time_s["optimizer"]


def test_bandwidth_that_would_hide_a_part() -> None:
    """A layer's bytes over its shorter pass; the state of all over the last backward and update."""
    result = away(bandwidth=FAST)
    forward, backward = passes(result)
    assert forward < backward
    needed = result.required_bandwidth
    assert needed.offload_weights == pytest.approx(WEIGHTS / forward)
    assert needed.offload_activations == pytest.approx(KEPT / forward)
    assert needed.offload_optimizer == pytest.approx(4 * 12 * LAYER / last(result))
    assert needed.offload == 0


def test_bandwidth_that_would_hide_all_that_moves() -> None:
    """Forward the larger of weights and activations, backward the sum of all that is away."""
    needed = {}
    for parts in (("weights",), ("weights", "activations"), ("optimizer",)):
        result = away(*parts)
        needed[parts] = result.required_bandwidth.offload
        forward, backward = passes(result)
    assert needed["weights",] == pytest.approx(WEIGHTS / forward)
    both = max(KEPT / forward, (WEIGHTS + KEPT) / backward)
    assert needed["weights", "activations"] == pytest.approx(both)
    assert needed["optimizer",] == pytest.approx(4 * 12 * LAYER / last(result))


@each_row("parts", [("weights",), ("activations",), ("weights", "activations")])
def test_at_the_required_bandwidth_layers_hide_their_transfers(parts: tuple[str, ...]) -> None:
    """Forward only or in training: nothing of a micro-batch shows there, and something below."""
    needed = away(*parts).required_bandwidth.offload
    training = away(*parts, bandwidth=needed * (1 + 1e-9), gbs=20)
    once = away(*parts, bandwidth=needed * (1 + 1e-9), gbs=2)
    assert training.time_s["offload"] == pytest.approx(once.time_s["offload"], abs=1e-15)
    slower = away(*parts, bandwidth=needed * 0.99, gbs=20)
    assert slower.time_s["offload"] > training.time_s["offload"]


def test_it_fits_only_if_every_stage_does() -> None:
    """The last stage is fullest here, the first has more in the second tier: 4 micro-batches."""
    columns = {"pp": 4, "gbs": 16, "offload_activations": True, "offload_weights": True}
    model = samples.model(vocab=50000)
    roomy = run(model, machine=machine(1e10), **columns)
    most, least = roomy.stages[0].offloaded, roomy.stages[-1].offloaded
    assert roomy.stages[-1].total > roomy.stages[0].total
    assert most == pytest.approx(WEIGHTS + 4 * KEPT)
    assert roomy.memory_bytes.offloaded == most > least
    assert not run(model, machine=machine(1e10, capacity=(most + least) / 2), **columns).fits
    assert run(model, machine=machine(1e10, capacity=most), **columns).fits


def test_the_update_waits_for_the_stage_with_most_layers() -> None:
    """3 layers on 2 stages: 12 bytes of 2 layers, although the last, with the head, is slower."""
    model = samples.model(samples.layer(count=3), vocab=20000)
    columns = {"pp": 2, "gbs": 8, "zero": 0, "offload_optimizer": True, "cpu_optimizer": "none"}
    result = run(model, machine=machine(SLOW), **columns)
    assert [stage.layers for stage in result.stages] == [2, 1]
    assert result.stages[1].micro_batch_s > result.stages[0].micro_batch_s
    assert result.comm_s["offload"].total == pytest.approx(2 * LAYER * 12 / SLOW)


def test_operations_show_the_link() -> None:
    """One row of a step, as long as all transfers; none where nothing is offloaded."""
    result = run(machine=machine(SLOW), offload_weights=True, operations=True)
    (row,) = [row for row in result.operations or () if row.operation == "offload"]
    assert (row.part, row.kind, row.bound) == ("step", "link", "network")
    assert (row.time_s, row.exposed_s) == (
        result.comm_s["offload"].total,
        result.comm_s["offload"].exposed,
    )
    still = run(machine=machine(SLOW), operations=True)
    assert "offload" not in {row.operation for row in still.operations or ()}


@each_row("parts", [PARTS[:1], PARTS[1:], PARTS[::2], PARTS])
def test_at_the_required_bandwidth_nothing_is_exposed(parts: tuple[str, ...]) -> None:
    """A link of exactly that rate hides all; one of 0.9 of it does not."""
    needed = away(*parts, bandwidth=FAST, gbs=8).required_bandwidth.offload
    assert needed is not None
    assert away(*parts, bandwidth=needed * (1 + 1e-9), gbs=8).time_s["offload"] == 0
    assert away(*parts, bandwidth=needed * 0.9, gbs=8).time_s["offload"] > 0


@each_row("cpu_optimizer", ["none", "fused", "superoffload"])
@each_row("zero", [0, 1, 2])
@each_row("parts", [("optimizer",), ("optimizer", "weights", "activations")])
def test_a_faster_machine_is_never_slower(
    zero: int, parts: tuple[str, ...], cpu_optimizer: str
) -> None:
    """What the link and the network each have left when the pass is over they do side by side."""
    second = {"name": "host", "capacity": 1e12, "bandwidth": 4e9}
    flags = {f"offload_{part}": True for part in parts}
    steps = []
    for speed in (1, 2, 4, 8, 1000):
        first = {"name": "hbm", "capacity": 80e9, "bandwidth": speed * 1e11}
        network = [samples.tier(bandwidth=1e9)]
        slow = samples.system(memory=[first, second], network=network)
        columns = {"zero": zero, "dp": 4, "gbs": 8, "cpu_optimizer": cpu_optimizer}
        steps.append(run(machine=slow, **columns, **flags).step_time_s)
    assert all(later <= one * (1 + 1e-12) for one, later in pairwise(steps))
    assert cpu_optimizer != "none" or steps[0] > steps[-1]

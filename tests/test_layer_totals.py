"""What a layer adds up to, the bandwidths that would hide what moves, and shares of the step."""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import run
from shardwise import Estimate
from shardwise.analysis.results import LayerTotals

pytestmark = pytest.mark.any_software

SBH = 64 * 64
LAYER = 12 * 64**2 + 13 * 64
EXCHANGES = ("tp_forward", "tp_backward", "tp_again")
WAYS: list[dict[str, Any]] = [
    {},
    {"recompute": "selective"},
    {"recompute": "full", "dp": 2, "gbs": 16},
    {"tp": 2, "tp_overlap": "ring"},
    {"tp": 4, "tp_overlap": "pipe", "recompute": "full"},
    {"tp": 2, "tp_regather": False, "fused_activation": True},
    {"tp": 2, "tp_exchange": "all_reduce", "attention": "multiquery"},
    {"tp": 2, "training": False},
]


def ends(result: Estimate, phases: tuple[str, ...], kinds: tuple[str, ...]) -> float:
    """Exposed time of embedding and head, one micro-batch."""
    rows = [row for row in result.operations or () if row.part in ("embedding", "head")]
    return sum(row.exposed_s for row in rows if row.phase in phases and (row.bound in kinds))


@each_row("columns", WAYS)
@each_row("attention", ["flash", "unfused"])
def test_layers_and_ends_add_up_to_the_step(columns: dict[str, Any], attention: str) -> None:
    """Of one stage, launched without delay: micro-batches times layers, with embedding and head."""
    machine = samples.system(network=[samples.tier(bandwidth=1e12) | {"processor_share": 0.1}])
    given = {"gbs": 8} | columns
    result = run(samples.llama(), {"attention": attention}, machine, operations=True, **given)
    [layer] = result.layers
    m, training = result.micro_batches, columns.get("training", True)
    busy = ("compute", "memory", "launch")
    back = ("input_grad", "weight_grad") if training else ()
    expected = {
        "forward": m * (4 * layer.forward.time_s + ends(result, ("forward",), busy)),
        "backward": m
        * (4 * (layer.input_grad.time_s + layer.weight_grad.time_s) + ends(result, back, busy)),
        "recompute": m * 4 * layer.recompute.time_s,
        "tp_comm": m
        * (
            4 * sum(getattr(layer, name).exposed_s for name in EXCHANGES)
            + ends(result, ("forward", *back), ("network",))
        ),
    }
    assert {part: result.time_s[part] for part in expected} == pytest.approx(expected)
    assert (expected["recompute"] > 0) == (columns.get("recompute", "none") != "none" and training)
    held = result.memory_bytes
    stage, rest = result.stages[0], result.stages[0].parameters - 4 * layer.parameters
    assert held.weights == 2 * stage.parameters
    assert 4 * layer.weight_bytes == 2 * 4 * layer.parameters == held.weights - 2 * rest
    assert held.activations == pytest.approx(4 * layer.kept_bytes)  # without dropout, no more


def test_a_layer_by_hand() -> None:
    """34 s b h kept, its weights in 2 + 4 + 12 bytes, the largest working set, its update."""
    [layer] = run(dp=4, gbs=8, zero=1).layers
    assert (layer.count, layer.parameters) == (4, LAYER)
    assert layer.weight_bytes == 2 * LAYER
    assert layer.gradient_bytes == 4 * LAYER
    assert layer.optimizer_bytes == 12 * LAYER / 4
    assert layer.kept_bytes == 34 * SBH + 4 * 64 * 8
    assert layer.working_bytes == 2 * 64 * 256 * 2
    assert layer.boundary_bytes == 0
    assert run(pp=2, gbs=8).layers[0].boundary_bytes == 2 * SBH
    assert layer.optimizer.time_s == pytest.approx(LAYER * (30 / 4 + 6) / 1e12)
    assert layer.optimizer.bytes == pytest.approx(LAYER * (30 / 4 + 6))
    # Three times 24 h^2 in products; attention 4 s h at half, 2.5 times that backward.
    products, core = 64 * 24 * 64**2, 64 * 2 * 32 * 64
    assert layer.forward.matrix_flops == products + core
    assert layer.input_grad.matrix_flops == products + 2.5 * core
    assert layer.weight_grad.matrix_flops == products
    assert layer.forward.flops > layer.forward.matrix_flops
    assert layer.recompute.flops == 0


@each_row("recompute", ["none", "selective", "full"])
def test_recompute_runs_again_what_it_does_not_keep(recompute: str) -> None:
    """All of forward, the core of attention, or nothing; kept is the input, or all but the core."""
    [layer] = run(recompute=recompute).layers
    core = 64 * 2 * 32 * 64
    again = {"none": 0, "selective": core, "full": layer.forward.matrix_flops}[recompute]
    assert layer.recompute.matrix_flops == again
    kept = {"none": 34 * SBH + 4 * 64 * 8, "selective": 34 * SBH, "full": 2 * SBH}[recompute]
    assert layer.kept_bytes == kept


def test_each_kind_of_layer_has_its_totals() -> None:
    """One with an MLP twice as wide."""
    model = samples.model(samples.layer(count=3), samples.layer(mlp={"ffn": 512}))
    narrow, wide = run(model).layers
    assert (narrow.count, wide.count) == (3, 4)
    assert wide.parameters - narrow.parameters == 256 * (2 * 64 + 1)
    assert narrow == run(samples.model(samples.layer(count=3))).layers[0]


def test_bandwidth_that_would_hide_tensor_parallelism() -> None:
    """An activation over the shortest product that has an exchange beside it: one of 64^3 / 2.

    The attention's output, 64 x 32 by 32 x 64, whose reduction is padded nowhere.
    """
    memory = [{"name": "hbm", "capacity": 1e12, "bandwidth": 1e30}]
    result = run(machine=samples.system(memory=memory), tp=2)
    assert result.required_bandwidth.tp_overlap == pytest.approx(2 * SBH * 1e14 / (64**3))
    assert run().required_bandwidth.tp_overlap == 0


def test_bandwidth_that_would_hide_the_gradients() -> None:
    """4 bytes of all weights over a backward pass; interleaved over passes of chunks."""
    model = samples.model(tied_embeddings=False)
    result = run(model, dp=2, gbs=8)
    needed, held = result.required_bandwidth, result.stages[0].parameters
    assert needed.dp_chunks == 0
    assert needed.dp_tail == pytest.approx(4 * held / (result.time_s["backward"] / 2))
    result = run(model, pp=2, vpp=2, dp=2, gbs=8, pp_tier=1, dp_tier=0)
    needed, held = result.required_bandwidth, max(s.parameters for s in result.stages)
    chunk = result.time_s["backward"] / 2 / 2
    assert needed.dp_tail == pytest.approx(2 * held / chunk)
    assert needed.dp_chunks == pytest.approx(2 * held / (2 * chunk))
    alone = run(model, gbs=8).required_bandwidth
    assert alone.dp_tail == alone.dp_chunks == 0


def test_the_required_bandwidth_hides_unsharded_gradients() -> None:
    """A pair passes all of its gradients in an all-reduce: what is needed hides it, no less."""
    given = {"dp": 2, "gbs": 8, "zero": 0}
    needed = run(**given).required_bandwidth.dp_tail
    for share, hides in ((1 + 1e-9, True), (0.99, False)):
        machine = samples.system(network=[samples.tier(bandwidth=needed * share)])
        exposed = run(machine=machine, **given).time_s["dp_comm"]
        assert (exposed < 1e-15) is hides


@each_row("columns", WAYS)
def test_shares_of_the_step(columns: dict[str, Any]) -> None:
    """Model FLOPs over the peak while it computes; computing over the step; the product is MFU."""
    result = run(**({"gbs": 16} | columns))
    shares, times = result.efficiency, result.time_s
    busy = times["forward"] + times["backward"] + times["optimizer"]
    flops = result.model_tflops_per_gpu * 1e12 * result.step_time_s
    assert shares.compute == pytest.approx(flops / 1e14 / busy)
    assert shares.system == pytest.approx(busy / result.step_time_s)
    assert shares.total == pytest.approx(result.mfu) == shares.compute * shares.system


def test_totals_are_plain_figures() -> None:
    """Every field of a layer's totals is there in the dictionary of an estimate."""
    told = run(tp=2).to_dict()["layers"][0]
    assert set(told) == set(LayerTotals.model_fields)
    assert LayerTotals(**told) == run(tp=2).layers[0]

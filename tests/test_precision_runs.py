"""Runs in fewer than 16 bits: weights, exchanges among replicas, casts of a step, rules.

The sample is that of `precision_samples`; its layers have no biases.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

import samples
from precision_samples import LINEAR, PEAKS, chip, mixture
from rows import each_row
from samples import GB, TB
from shardwise import InputError, Model, Strategy, System, estimate, estimate_many
from shardwise.analysis.results import Estimate
from shardwise.config.enums import Quantization
from shardwise.config.strategy_table import Table
from shardwise.planning.search.space import Space

pytestmark = pytest.mark.any_software

RECIPES = list(Quantization)[1:]
# Weights of a layer that products read: 64 x 96, 64 x 64, 64 x 384, 192 x 64; and two norms.
PRODUCTS = 64 * (96 + 64 + 384 + 192)
LAYER = PRODUCTS + 2 * 64
MEMORY = [
    {"name": "hbm", "capacity": 80 * GB, "bandwidth": TB},
    {"name": "host", "capacity": 1e12, "bandwidth": 20 * GB},
]


def run(machine: System | None = None, **columns: Any) -> Estimate:
    return samples.run(samples.llama(), None, machine or chip(), **columns)


@each_row(("quantization", "faster"), [("fp8_tensor", 2), ("nvfp4", 4)])
def test_products_are_faster_by_the_ratio_of_the_rates(quantization: str, faster: int) -> None:
    """Where bytes cost nothing, all products of layers are, and neither attention nor head."""
    memory = [{"name": "hbm", "capacity": 80 * GB, "bandwidth": 1e9 * TB}]
    free = chip(memory=memory, attention={"memory_efficiency": 1})
    plain, fewer = (
        samples.run(samples.llama(), None, free, quantization=kind, operations=True)
        for kind in ("none", quantization)
    )
    assert plain.operations is not None
    assert fewer.operations is not None
    before = {(o.operation, o.phase): o.time_s for o in plain.operations if o.kind == "matmul"}
    after = {(o.operation, o.phase): o.time_s for o in fewer.operations if o.kind == "matmul"}
    for (name, phase), time_s in before.items():
        ratio = 1 if name == "head" else faster
        assert after[name, phase] == pytest.approx(time_s / ratio, rel=1e-6)
    assert {name for name, _ in before} == {*LINEAR, "head"}


def weights(**columns: Any) -> float:
    return run(**columns).memory_bytes.weights


def test_weights_by_hand() -> None:
    """Two copies beside 16 bits, or in place of them; one forward only; ends stay as they are."""
    plain = weights()
    ends = plain - 4 * 2 * LAYER
    assert ends > 0
    norms = 2 * 4 * 2 * 64
    sizes = {"fp8_tensor": 1.0, "fp8_block": 1 + 4 / 128**2, "mxfp8": 1.03125, "nvfp4": 0.5625}
    for name, size in sizes.items():
        copies = 4 * PRODUCTS * 2 * size
        assert weights(quantization=name) == plain + copies
        assert weights(quantization=name, quantized_weights=True) == ends + norms + copies
    one = weights(quantization="fp8_tensor", training=False)
    assert one == weights(training=False) + 4 * PRODUCTS
    alone = {"quantization": "fp8_tensor", "quantized_weights": True, "training": False}
    assert weights(**alone) == weights(training=False) - 4 * PRODUCTS


def test_gradients_buffers_and_state_keep_their_types() -> None:
    """A buffer for each shape of weights has the 16 bits that TE's has."""
    plain, fewer = (run(quantization=kind).memory_bytes for kind in ("none", "nvfp4"))
    assert fewer.gradients == plain.gradients
    assert fewer.optimizer == plain.optimizer
    assert fewer.activations < plain.activations

    def buffers(*, kept: bool, **columns: Any) -> float:
        software = {"weight_gradient_buffers": kept}
        return samples.run(samples.llama(), software, chip(), **columns).memory_bytes.buffers

    head = 1000 * 64
    for columns in ({}, {"quantization": "fp8_tensor"}):
        shapes = buffers(kept=True, **columns) - buffers(kept=False, **columns)
        assert shapes == 2 * (PRODUCTS + head)


def test_quantised_copies_of_split_weights_are_of_one_layer() -> None:
    """ZeRO 3 releases them with the layer; kept whole, they are of all layers.

    With few words: the head, which is not quantised, would be the fullest.
    """
    few = samples.llama(vocab=10)

    def run(**columns: Any) -> Estimate:
        return samples.run(few, None, chip(), **columns)

    columns = {"dp": 2, "zero": 3, "gbs": 4, "fsdp_prefetch": 0}
    for alone in (False, True):
        fewer = {"quantization": "fp8_tensor", "quantized_weights": alone}
        plain, split = (run(**columns, **kind).memory_bytes for kind in ({}, fewer))
        gathered = [
            memory.buffers - run(**columns | {"zero": 2}, **kind).memory_bytes.buffers
            for memory, kind in ((plain, {}), (split, fewer))
        ]
        stored = PRODUCTS if alone else 0  # a byte less each
        copies = PRODUCTS * (1 if alone else 2)
        assert gathered[1] - gathered[0] == copies - stored
        assert split.weights == plain.weights
        whole, kept = (
            run(**columns, fsdp_reshard=False, **kind).memory_bytes for kind in ({}, fewer)
        )
        assert kept.weights - whole.weights == 4 * (copies - stored)


@each_row(
    ("name", "size"),
    [("fp8_tensor", 1.0), ("fp8_block", 1 + 4 / 128**2), ("mxfp8", 2.0), ("nvfp4", 0.5625)],
)
def test_replicas_gather_quantised_weights(name: str, size: float) -> None:
    """Half of 2 - s bytes for each weight at 100 GB/s between two; mxfp8 travels in 16 bits."""

    def exchange(**columns: Any) -> float:
        return run(dp=2, gbs=8, **columns).comm_s["dp"].total

    for zero, gathers in ((1, 1), (2, 1), (3, 4)):  # twice in each of two micro-batches
        plain, beside = (exchange(zero=zero, quantization=kind) for kind in ("none", name))
        alone = exchange(zero=zero, quantization=name, quantized_weights=True)
        assert beside == plain
        saved_s = gathers * 4 * PRODUCTS * (2 - size) / 2 / (100 * GB)
        assert plain - alone == pytest.approx(saved_s, rel=1e-9, abs=1e-18)


def test_weights_are_cast_once_a_step_or_after_every_gather() -> None:
    """Read in 16 bits and written in two orientations at 1 TB/s; those held so are transposed."""

    def update(**columns: Any) -> float:
        name = "fp8_tensor" if columns else "none"
        return run(dp=2, gbs=8, quantization=name, **columns).time_s["optimizer"]

    assert update(zero=1) - update() == pytest.approx(4 * PRODUCTS * 4 / TB)
    alone = update(zero=1, quantized_weights=True)
    assert alone - update() == pytest.approx(4 * PRODUCTS * 2 / TB)
    again = update(zero=3)
    assert again - update(zero=2) == pytest.approx(3 * 4 * PRODUCTS * 4 / TB)  # 4 times, not once
    kept = update(zero=3, fsdp_reshard=False)
    assert kept - update(zero=2) == pytest.approx(1 * 4 * PRODUCTS * 4 / TB)
    assert run(quantization="fp8_tensor", training=False).time_s["optimizer"] == 0


def test_utilisation_counts_the_peak_of_the_products() -> None:
    for name, peak in (("none", 1e14), ("fp8_block", 2e14), ("nvfp4", 4e14)):
        result = run(quantization=name)
        rate = result.model_tflops_per_gpu * 1e12
        assert result.mfu == pytest.approx(rate / peak)
        assert result.efficiency.total == pytest.approx(rate / peak)
        again = run(quantization=name, recompute="full")
        assert again.hfu > again.mfu == pytest.approx(again.model_tflops_per_gpu * 1e12 / peak)


def test_sources_of_the_type_used() -> None:
    """Sources of the recipe's type are told beside those of the strategy's."""
    told = {"gpus": 8, "gbs": 8, "tp": 8, "seq_len": 2048}
    for quantization, known in (("none", False), ("fp8_tensor", True)):
        result = estimate("llama3-8b", "h100-sxm", told | {"quantization": quantization})
        assert ("system.accelerator.matmul.fp8" in result.provenance) is known
        assert "system.accelerator.matmul.bf16" in result.provenance


def test_rows_of_a_table_do_not_mix() -> None:
    """Rows that differ in one field have the results that they have alone."""
    base = {"tp": 2, "dp": 2, "ep": 2, "gbs": 8, "mbs": 2, "zero": 3, "quantization": "fp8_block"}
    base |= {"quantized_weights": False, "training": True, "dispatch_dtype": "dtype"}
    others = {
        "quantization": ("none", "fp8_tensor", "mxfp8", "nvfp4"),
        "quantized_weights": (True,),
        "training": (False,),
        "dispatch_dtype": ("fp8",),
    }
    rows = [base, *(base | {name: value} for name in others for value in others[name])]
    columns = {name: [row[name] for row in rows] for name in base}
    model, machine, software = mixture(), chip(), {"stack": samples.stack()}
    together = estimate_many(model, machine, columns | software)
    alone = [estimate(model, machine, row | software) for row in rows]
    assert together.step_time_s.tolist() == [one.step_time_s for one in alone]
    assert together.memory_total_bytes.tolist() == [one.memory_bytes.total for one in alone]
    assert together.mfu.tolist() == [one.mfu for one in alone]
    assert len({one.step_time_s for one in alone}) == len(rows)


def faults(machine: System, model: Model | None = None, **columns: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        samples.run(model or samples.llama(), None, machine, **columns)
    return [f"{fault.field}: {fault.problem}" for fault in caught.value.faults]


def without(*types: str) -> System:
    return chip(matrix={name: peak for name, peak in PEAKS.items() if name not in types})


def test_recipes_need_units_of_their_type() -> None:
    """Those of mxfp8 came with fp4's."""
    lacks = "quantization: sample chip has no matrix rate for it; allowed: "
    for name in RECIPES:
        assert faults(without("fp8", "fp4"), quantization=name) == [lacks + "none"]
    hopper = without("fp4")
    assert faults(hopper, quantization="mxfp8") == [lacks + "none, fp8_tensor, fp8_row, fp8_block"]
    assert faults(hopper, quantization="nvfp4") == [lacks + "none, fp8_tensor, fp8_row, fp8_block"]
    assert run(hopper, quantization="fp8_block").fits
    assert faults(without("fp8"), quantization="mxfp8") == [lacks + "none, nvfp4"]


def test_what_has_no_effect_is_refused() -> None:
    assert faults(chip(), quantization="mxfp8", dtype="fp32") == [
        "quantization: quantizes 16-bit tensors; needs dtype bf16 or fp16"
    ]
    assert faults(chip(), quantized_weights=True) == [
        "quantized_weights: has no effect with quantization none; leave it out"
    ]
    assert faults(chip(), dispatch_dtype="fp8") == [
        "dispatch_dtype: sample has no experts to send tokens to; leave it out"
    ]
    assert faults(without("fp8", "fp4"), mixture(), dispatch_dtype="fp8") == [
        "dispatch_dtype: sample chip has no fp8; allowed: dtype"
    ]


def test_every_other_combination_is_modeled() -> None:
    """All recipes with all that shares their columns, finite and positive."""
    choices = {
        "quantization": RECIPES,
        "quantized_weights": (False, True),
        "dtype": ("bf16", "fp16"),
        "training": (False, True),
        "zero": (1, 3),
        "cp": (1, 2),
        "recompute": ("none", "full"),
        "tp_overlap": ("stack", "pipe"),
        "offload_weights": (False, True),
    }
    rows = list(product(*choices.values()))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(choices)}
    fixed = {"tp": 2, "dp": 2, "gbs": 8, "stack": samples.stack()}
    result = estimate_many(samples.llama(), chip(memory=MEMORY), columns | fixed)
    assert np.all(result.refused < 0)
    assert np.all(np.isfinite(result.step_time_s) & (result.step_time_s > 0))
    assert np.all(result.memory_total_bytes > 0)


def test_offloaded_weights_travel_with_their_copies() -> None:
    plain, fewer = (
        run(chip(memory=MEMORY), offload_weights=True, quantization=kind)
        for kind in ("none", "fp8_tensor")
    )
    away = fewer.memory_bytes.offloaded - plain.memory_bytes.offloaded
    assert away == 4 * PRODUCTS * 2
    assert fewer.layers[0].weight_bytes - plain.layers[0].weight_bytes == PRODUCTS * 2
    # Forward, backward and, updated, back again, over 20 GB/s.
    more = fewer.comm_s["offload"].total - plain.comm_s["offload"].total
    assert more == pytest.approx(3 * away / (20 * GB))


def test_searches_try_one_type_unless_told_otherwise() -> None:
    space = Space.validated({"quantization": "none,mxfp8"})
    assert space.values("quantization", chip()) == ("none", "mxfp8")
    assert Space().values("quantization", chip()) == ("none",)
    assert Space().values("quantized_weights", chip()) == (False,)
    assert Space().values("dispatch_dtype", chip()) == ("dtype",)
    given = {"quantization": "nvfp4", "quantized_weights": True, "dispatch_dtype": "fp8"}
    table = Table.of(mixture(), [Strategy(dp=2, gbs=4, **given)])
    assert {name: getattr(table.strategy(0), name) for name in given} == given


@each_row(
    ("quantization", "expert_kernel", "kernels"),
    [
        ("fp8_tensor", "calls", 3 * 8),  # largest value, scale, cast; for each of 8 experts
        ("fp8_tensor", "grouped", 3),
        ("fp8_block", "calls", 8),
        ("mxfp8", "calls", 8),
        ("mxfp8", "grouped", 1),
        ("nvfp4", "calls", 2 * 8),
    ],
)
def test_experts_are_quantized_by_kernels_of_their_own(
    quantization: str, expert_kernel: str, kernels: int
) -> None:
    """Inputs of the two products forward, gradients of both outputs backward: a floor for each.

    Norms of the recipes may write the inputs of other products quantized, so that these have fewer.
    """
    floor = 1e-3
    slow = chip(memory_bound={"efficiency": 1, "launch": floor})
    software = {"expert_kernel": expert_kernel}
    with_floor, without = (
        samples.run(mixture(), software, machine, quantization=quantization, operations=True)
        for machine in (slow, chip())
    )
    assert with_floor.operations is not None
    assert without.operations is not None
    pairs = zip(with_floor.operations, without.operations, strict=True)
    added = {
        (one.operation, one.phase): one.time_s - other.time_s
        for one, other in pairs
        if one.kind == "memory" and one.operation in ("moe.up", "moe.down")
    }
    assert set(added) >= set(product(("moe.up", "moe.down"), ("forward", "input_grad")))
    for key, time_s in added.items():
        assert time_s == pytest.approx(kernels * floor, rel=1e-6), key

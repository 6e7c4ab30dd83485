"""Memory of fine-tuning, by hand for the Llama sample: pure 16 bits, 4-bit bases, adapters."""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise.analysis.results import Estimate
from shardwise.config.strategy_table import Table
from shardwise.ops.lora import Subset
from shardwise.ops.param_count import flops_per_token
from trained_samples import DOWN, NORMS, OUT, QKV, SIZES, UP, WORDS, adapters, run

pytestmark = pytest.mark.any_software

WHOLE = sum(SIZES.values())
PRODUCTS = 4 * (QKV + OUT + UP + DOWN)
REST = WHOLE - PRODUCTS
PURE = {"master_dtype": "none", "gradient_dtype": "compute"}
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
INT4 = 0.5 + 2 / 128 + 0.5 / 128
STREAM = 2 * 64 * 64
"""Input of a layer: 64 tokens of width 64 in 2 bytes."""


def tuned(software: dict[str, Any] | None = None, **columns: Any) -> Estimate:
    """A step with some software."""
    return run(stack=samples.stack(**(software or {})), **columns)


def test_pure_16_bits() -> None:
    """2 bytes of a weight, 2 of its gradient, 4 of moments, and the root of one in the update."""
    software = PURE | {"update_bytes": 4000}
    memory = tuned(software, optimizer="adamw-bf16").memory_bytes
    assert memory.weights == memory.gradients == 2 * WHOLE
    assert memory.optimizer == 4 * WHOLE
    assert memory.buffers == 2000 * WHOLE
    assert memory.activations == 0


@each_row(
    ("optimizer", "share"), [("adamw", 1), ("adamw-bf16", 0.5), ("adamw-8bit", 0), ("sgd", 1)]
)
def test_temporaries_have_the_type_of_the_state(optimizer: str, share: float) -> None:
    """No copy of 16-bit gradients where the weights have none."""
    many = [tuned(PURE | {"update_bytes": size}, optimizer=optimizer) for size in (4000, 8000)]
    sizes = [one.memory_bytes.buffers for one in many]
    assert sizes[1] - sizes[0] == pytest.approx(4000 * share * WHOLE)
    if share:
        assert sizes[0] == pytest.approx(4000 * share * WHOLE)


def test_the_update_of_16_bit_weights_moves_fewer_bytes() -> None:
    """Per weight 2 of gradient and 3 of its sweeps, 2 x 2 of itself, 2 x 4 of state."""
    update = tuned(PURE, optimizer="adamw-bf16").time_s["optimizer"]
    assert update == pytest.approx(17 * WHOLE / 1e12)


def test_zero_3_shards_16_bit_weights_that_have_no_copy() -> None:
    """Otherwise fp32 shards are gathered, and there are no others."""
    sharded = {"dp": 8, "gbs": 16, "zero": 3}
    memory = tuned(PURE, optimizer="adamw-bf16", **sharded).memory_bytes
    assert memory.weights == pytest.approx(2 * WHOLE / 8)
    assert memory.optimizer == pytest.approx(4 * WHOLE / 8)
    usual = tuned(**sharded).memory_bytes
    assert usual.weights == pytest.approx(4 * WHOLE / 8)
    assert usual.optimizer == pytest.approx(8 * WHOLE / 8)


def test_gradients_that_are_freed_are_not_there_when_activations_peak() -> None:
    """One micro-batch: the larger of both moments; several: gradients are there throughout."""
    small, large = {"mbs": 1, "gbs": 1}, {"mbs": 64, "gbs": 64}
    for batch in (small, large):
        usual, freed = (
            tuned({"clears_gradients": clears}, **batch).memory_bytes for clears in (False, True)
        )
        assert usual.gradients == 4 * WHOLE
        assert freed.total < usual.total
        at_end = freed.gradients > 0
        assert at_end == (batch is small)
        if not at_end:
            assert freed.total == pytest.approx(usual.total - 4 * WHOLE)
        assert freed.total >= freed.weights + freed.optimizer + 4 * WHOLE
    several = {"mbs": 64, "gbs": 128}
    both = [tuned({"clears_gradients": clears}, **several).memory_bytes for clears in (0, 1)]
    assert both[0] == both[1]


def test_updates_within_backward_need_gradients_of_one_component() -> None:
    """The embedding and the head are the largest; there is no update after backward."""
    software = {"update_in_backward": True, "update_bytes": 4000}
    memory = tuned(software).memory_bytes
    assert memory.gradients == 4 * max(WORDS, QKV + OUT + UP + DOWN + NORMS, WORDS + 64)
    assert memory.buffers < 4000 * WORDS


@each_row(("kind", "each"), [("nf4", NF4), ("int4", INT4)])
def test_frozen_weights_in_4_bits(kind: str, each: float) -> None:
    """Those of products of layers; norms, embedding, head and adapters have 16 bits."""
    memory = tuned({"frozen_weights": kind}, lora_rank=3).memory_bytes
    assert memory.weights == pytest.approx(each * PRODUCTS + 2 * (REST + adapters(3)))
    assert memory.optimizer == pytest.approx(12 * adapters(3))
    sharded = {"dp": 8, "gbs": 16, "zero": 3}
    memory = tuned({"frozen_weights": kind}, lora_rank=3, **sharded).memory_bytes
    assert memory.weights == pytest.approx((each * PRODUCTS + 2 * REST + 4 * adapters(3)) / 8)
    beside = {"frozen_weights": kind, "gathers_master": False}
    memory = tuned(beside, lora_rank=3, **sharded).memory_bytes
    assert memory.weights == pytest.approx((each * PRODUCTS + 2 * (REST + adapters(3))) / 8)


def test_trained_weights_are_not_stored_in_4_bits() -> None:
    plain, quantized = tuned(), tuned({"frozen_weights": "nf4"})
    assert (quantized.memory_bytes, quantized.step_time_s) == (
        plain.memory_bytes,
        plain.step_time_s,
    )
    frozen = tuned({"frozen_weights": "nf4"}, frozen=("mlp",)).memory_bytes.weights
    own = 4 * (UP + DOWN)
    assert frozen == pytest.approx(NF4 * own + 2 * (WHOLE - own))


def test_copies_of_4_bit_weights_take_time_and_memory() -> None:
    """Read in 4 bits and written in 16, forward and backward; once more with recompute."""
    moved = (NF4 + 2) * PRODUCTS / 1e12
    for recompute, passes in (("none", 2), ("full", 3)):
        plain, quantized = (
            tuned({"frozen_weights": kind}, lora_rank=3, recompute=recompute)
            for kind in ("dtype", "nf4")
        )
        more = quantized.step_time_s - plain.step_time_s
        assert more == pytest.approx(passes * moved, rel=1e-6)


@each_row(("recompute", "passes"), [("none", 1), ("full", 2)])
def test_int4_weights_that_pytorch_unpacks(recompute: str, passes: int) -> None:
    """16.5 bytes per weight forward; the 16-bit copies of all layers, or of one, stay."""
    plain, fused, unpacked = (
        tuned(software, lora_rank=3, recompute=recompute)
        for software in (
            {},
            {"frozen_weights": "int4"},
            {"frozen_weights": "int4", "fused_int4": False},
        )
    )
    more = unpacked.step_time_s - plain.step_time_s
    assert more == pytest.approx(passes * 16.5 * PRODUCTS / 1e12, rel=1e-6)
    assert unpacked.memory_bytes.weights == fused.memory_bytes.weights
    saved = unpacked.memory_bytes.activations - fused.memory_bytes.activations
    assert saved == (2 * PRODUCTS if recompute == "none" else 0)
    nf4 = {"frozen_weights": "nf4"}
    usual, other = (tuned(nf4 | {"fused_int4": own}, lora_rank=3) for own in (True, False))
    assert usual.step_time_s == other.step_time_s


def test_gathers_of_4_bit_weights_are_smaller() -> None:
    sharded = {"dp": 8, "gbs": 16, "zero": 3, "lora_rank": 3, "dp_overlap": False}
    plain, quantized = (
        tuned({"frozen_weights": kind}, **sharded).comm_s["dp"].total for kind in ("dtype", "nf4")
    )
    assert quantized < 0.75 * plain


def test_embedding_and_head_next_to_adapters() -> None:
    """Trained in full as copies, so stored twice; counted as trained once."""
    ends = {"lora_rank": 3, "lora_parts": ("attention", "mlp", "embedding", "head")}
    found = tuned(**ends)
    trained = adapters(3) + 2 * WORDS
    assert found.trainable_parameters == trained
    assert found.memory_bytes.weights == 2 * (WHOLE + trained)
    assert found.memory_bytes.gradients == 4 * trained
    assert found.memory_bytes.optimizer == 12 * trained
    # A gradient of the head's weights for each token.
    per_token = [
        flops_per_token(
            samples.llama(),
            32,
            subset=Subset.of(Table.of(samples.llama(), {"dp": 1, "gbs": 1} | row)),
        )
        for row in (ends, {"lora_rank": 3})
    ]
    assert per_token[0] - per_token[1] == pytest.approx(2 * WORDS)


def test_inputs_of_frozen_layers_that_fsdp_keeps() -> None:
    """Checkpoints of 4 layers, and the gradients of as many, at the end of backward."""
    case = {"dp": 8, "mbs": 64, "gbs": 512, "zero": 3, "lora_rank": 3, "recompute": "full"}
    software = {"loss_saved_bytes": 0}
    kept = tuned(software | {"keeps_frozen_inputs": True}, **case).memory_bytes
    freed = tuned(software, **case).memory_bytes
    assert freed.activations == 32 * 4 * STREAM
    assert kept.activations == 2 * 32 * 4 * STREAM
    for other in ({"lora_rank": None}, {"zero": 2}, {"recompute": "none"}):
        changed = case | other
        both = [tuned(software | {"keeps_frozen_inputs": on}, **changed) for on in (False, True)]
        assert both[0].memory_bytes == both[1].memory_bytes


def test_updates_that_read_16_bit_gradients_copy_none() -> None:
    """Where they are copied to fp32: 4 bytes per weight in the update."""
    software = {"gradient_dtype": "compute", "update_bytes": 1000}
    sizes = [
        tuned(software | {"copies_gradients": copies}).memory_bytes.buffers
        for copies in (True, False)
    ]
    assert sizes == [1004 * WHOLE, 1000 * WHOLE]


def test_checkpoints_in_fp32() -> None:
    """4 bytes of each element of the input of 4 layers; nothing else, and none without them."""
    case = {"mbs": 2, "gbs": 2, "lora_rank": 3, "recompute": "full"}
    usual, wide = (
        tuned({"fp32_checkpoints": on, "loss_saved_bytes": 400}, **case).memory_bytes
        for on in (False, True)
    )
    assert (usual.activations, wide.activations) == (4 * STREAM, 8 * STREAM)
    assert usual.buffers == wide.buffers
    whole = [tuned({"fp32_checkpoints": on}, lora_rank=3).memory_bytes for on in (False, True)]
    assert whole[0] == whole[1]

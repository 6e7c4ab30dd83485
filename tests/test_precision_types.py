"""Types of weights, masters, moments and gradients: bytes per parameter, and what they exclude."""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Estimate, InputError, Stack

pytestmark = pytest.mark.any_software

LAYER = 12 * 64**2 + 13 * 64
WHOLE = 4 * LAYER + (10 + 32) * 64 + 2 * 64


def run(**columns: Any) -> Estimate:
    """8 replicas of the sample of GPT with 10 words on one stage, two micro-batches each."""
    rows = {"dp": 8, "gbs": 32, "dp_overlap": False} | columns
    software = rows.pop("software", None)
    return samples.run(samples.model(vocab=10), software, None, **rows)


PURE = {"weight_dtype": "compute", "master_dtype": "none", "gradient_dtype": "compute"}
FSDP = {"weight_dtype": "fp32", "zero": 3}
HALF = {"zero": 1, "master_dtype": "fp16"}


@each_row(
    ("types", "each"),
    [
        # transformers before 5, autocast: fp32 weights and their 16-bit copies, gradients, moments
        ({"weight_dtype": "fp32", "zero": 0}, (4 + 2, 4, 8)),
        # transformers 5, torchtune, AutoModel: 16 bits throughout
        (PURE | {"moment_dtype": "bf16", "zero": 0}, (2, 2, 4)),
        # FSDP with mixed precision (accelerate, torchtitan): fp32 shards
        (FSDP, (4 / 8, 4 / 8, 8 / 8)),
        # DeepSpeed bf16: 16-bit weights, fp32 masters and moments
        ({"zero": 0, "gradient_dtype": "compute"}, (2, 2, 4 + 8)),
        ({"zero": 3, "weight_dtype": "compute"}, (2 / 8, 4 / 8, 12 / 8)),
        # DeepSpeed with masters, gradients and states in bf16
        (
            {"zero": 3, **PURE, "master_dtype": "bf16", "moment_dtype": "bf16"},
            (1 / 4, 1 / 4, 6 / 8),
        ),
        # Megatron's distributed optimizer, and its precision-aware one
        ({"zero": 1}, (2, 4, 12 / 8)),
        (HALF | {"moment_dtype": "fp8"}, (2, 4, (2 + 2) / 8)),
        (HALF | {"moment_dtype": "fp16"}, (2, 4, (2 + 4) / 8)),
        # 8-bit AdamW: two moments of a byte with an fp32 scale for each 256
        (PURE | {"optimizer": "adamw-8bit", "zero": 0}, (2, 2, 2 * (1 + 4 / 256))),
        ({"optimizer": "adamw", "moment_dtype": "int8", "zero": 0}, (2, 4, 4 + 2 * (1 + 4 / 256))),
        # fp32 weights on each replica with ZeRO 1: moments alone are split
        ({"weight_dtype": "fp32", "zero": 1}, (4 + 2, 4, 8 / 8)),
    ],
)
def test_bytes_per_parameter(types: dict[str, Any], each: tuple[float, float, float]) -> None:
    """Weights, gradients and optimizer state of a rank, over the parameters of the model."""
    memory = run(**types).memory_bytes
    found = (memory.weights, memory.gradients, memory.optimizer)
    assert found == pytest.approx([size * WHOLE for size in each])


@each_row(
    ("named", "fields"),
    [
        ({"optimizer": "adamw-bf16"}, {"optimizer": "adamw", "moment_dtype": "bf16"}),
        ({"optimizer": "adamw-8bit"}, {"optimizer": "adamw", "moment_dtype": "int8"}),
        ({"software": {"master_weights": False}}, {"master_dtype": "none"}),
        ({"software": {"gradient_dtype": "compute"}}, {"gradient_dtype": "compute"}),
        ({"software": {"moment_dtype": "bf16"}}, {"moment_dtype": "bf16"}),
        ({"software": {"weight_dtype": "fp32"}}, {"weight_dtype": "fp32"}),
        (
            {"software": {"reduce_dtype": "compute"}, "zero": 2},
            {"reduce_dtype": "compute", "zero": 2},
        ),
    ],
)
def test_a_field_means_what_a_name_or_the_stack_says(
    named: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Time and memory are equal, whichever says the type."""
    one, other = run(**named), run(**fields)
    assert one.memory_bytes == other.memory_bytes
    assert one.step_time_s == pytest.approx(other.step_time_s)


@each_row(
    ("sync", "types", "each"),
    [
        # FSDP2, plain: shards in the type of fp32 weights, whatever the reduction
        ("micro_batch", {"reduce_dtype": "compute"}, 4 / 8),
        ("micro_batch", {}, 4 / 8),
        # FSDP2 without set_requires_gradient_sync, torch pipelining: unsharded in reduce_dtype
        ("step", {"reduce_dtype": "fp32"}, 4),
        # FSDP1's and accelerate's no_sync: unsharded in the type of products
        ("step", {"reduce_dtype": "compute"}, 2),
        # AutoModel until May 2026: 16 bits throughout
        ("step", PURE | {"moment_dtype": "bf16"}, 2),
    ],
)
def test_gradients_that_stay_between_micro_batches(
    sync: str, types: dict[str, Any], each: float
) -> None:
    """Bytes per parameter of ZeRO 3 while micro-batches accumulate."""
    memory = run(zero=3, grad_sync=sync, **types).memory_bytes
    assert memory.gradients == pytest.approx(each * WHOLE)


def test_gradients_travel_in_the_type_of_their_reduction() -> None:
    """2 instead of 4 bytes; a stack says so of sharded gradients alone."""
    times = {
        word: run(zero=2, reduce_dtype=word).comm_s["dp"].total for word in ("gradient", "compute")
    }
    # 2 x 4 or 2 x 2 bytes of gradients of two micro-batches, and once 2 bytes of weights.
    assert times["gradient"] / times["compute"] == pytest.approx((2 * 4 + 2) / (2 * 2 + 2))
    narrow = {"software": {"reduce_dtype": "compute"}}
    assert run(zero=1, **narrow).comm_s == run(zero=1).comm_s


def test_words_of_a_strategy_are_none_of_a_stack() -> None:
    base = samples.stack().to_dict()
    for name in ("weight_dtype", "master_dtype", "moment_dtype", "gradient_dtype", "reduce_dtype"):
        with pytest.raises(InputError, match=f"{name}: .*is what a stack does"):
            Stack.load(base | {name: "stack"})


def test_files_of_stacks_of_earlier_releases_load() -> None:
    """`master_weights` became `master_dtype`; its source goes with it."""
    base = {"base": "megatron-core-2025", "name": "mine"}
    source = {"master_weights": {"kind": "assumed", "text": "a guess"}}
    one = Stack.load(base | {"master_weights": False, "sources": source})
    assert (one.master_dtype, one.weight_dtype) == ("none", "compute")
    assert one.sources["master_dtype"].text == "a guess"
    assert Stack.load(base | {"master_weights": True}).master_dtype == "fp32"


def test_buffers_of_zero() -> None:
    """DeepSpeed: one bucket of gradients, two where ZeRO 1 and 2 overlap; live weights of ZeRO 3.

    Half of the reuse distance is in front of the turn from forward to backward.
    """
    bucket = {"reduce_bucket_size": 1000}
    for zero, overlap, buffers in ((0, True, 0), (2, False, 1), (2, True, 2), (3, True, 1)):
        bare, with_it = (
            run(zero=zero, dp_overlap=overlap, software=one).memory_bytes.buffers
            for one in ({}, bucket)
        )
        assert with_it - bare == buffers * 4 * 1000
    live = {"max_live_parameters": 1e9, "max_reuse_distance": 1e9, "gathers_master": False}
    few = {"gathers_master": False}
    kept, usual = (run(zero=3, software=one).memory_bytes.buffers for one in (live, few))
    assert kept - usual == pytest.approx(2 * WHOLE - 2 * 2 * LAYER)
    near = live | {"max_reuse_distance": 2 * 3 * LAYER}
    some = run(zero=3, software=near).memory_bytes.buffers
    assert some - usual == pytest.approx(2 * 3 * LAYER - 2 * 2 * LAYER)


@each_row(
    ("software", "columns", "elements"),
    [
        ({"prefetch_bucket_size": 500}, {}, 500),
        ({"prefetch_bucket_size": 1e9}, {}, LAYER),  # no more than a layer
        ({"prefetch_bucket_size": 500}, {"fsdp_prefetch": 0}, 0),
        ({"prefetch_bucket_size": 500}, {"fsdp_prefetch": 3}, 3 * LAYER),
        ({"prefetch_bucket_size": 500, "buckets_by_width": True}, {}, 0.9 * 64**2),
        ({"buckets_by_width": True}, {}, LAYER),  # of software without such buckets
    ],
)
def test_weights_gathered_in_advance(
    software: dict[str, Any], columns: dict[str, Any], elements: float
) -> None:
    """A bucket of DeepSpeed in place of one layer; as many layers as a strategy sets otherwise."""
    apart = {"gathers_master": False}
    none, some = (
        run(zero=3, software=apart | more, **row).memory_bytes.buffers
        for more, row in (({}, {"fsdp_prefetch": 0}), (software, columns))
    )
    assert some - none == pytest.approx(2 * elements)


def test_buckets_of_reduction_by_width() -> None:
    """The width squared in place of the size; none with ZeRO 1 and wider gradients."""
    bucket = {"reduce_bucket_size": 1000, "buckets_by_width": True}
    for zero, size, elements in ((2, 4, 64**2), (1, 4, 0), (1, 2, 64**2)):
        same = {"gradient_dtype": "fp32" if size > 2 else "compute"}
        bare, with_it = (
            run(zero=zero, software=same | one).memory_bytes.buffers for one in ({}, bucket)
        )
        assert with_it - bare == size * elements

"""What software holds beyond the least, each term by hand, and that sharding more never holds more.

The samples of GPT and Llama: width 64, 4 layers; two micro-batches of 2 x 32 tokens in 2 bytes on
each of 8 replicas; gradients in 4 bytes, 12 of optimizer state.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import Estimate, Model, estimate_many
from shardwise.config.stack import Stack

pytestmark = pytest.mark.any_software

LAYER = 12 * 64**2 + 13 * 64
NORM = 2 * 64
TABLE = (10 + 32) * 64
WHOLE = 4 * LAYER + TABLE + NORM
TOKENS = 64
GIB = 2**30


def run(
    software: dict[str, Any] | None = None, architecture: Model | None = None, **columns: Any
) -> Estimate:
    """A tiny vocabulary, unless told, so that layers are fullest."""
    model = architecture or samples.model(vocab=10)
    return samples.run(model, software, None, **({"dp": 8, "gbs": 32} | columns))


@each_row(("dtype", "each"), [("fp32", 6), ("compute", 2)])
def test_gradients_in_addition_to_those_in_fp32(dtype: str, each: int) -> None:
    """2 bytes more for each weight; nothing more where gradients accumulate in 2 bytes."""
    software = {"plain_gradients": True, "gradient_dtype": dtype}
    assert run(software, zero=1).memory_bytes.gradients == each * WHOLE
    assert run(software, zero=2).memory_bytes.gradients == pytest.approx(each * WHOLE / 8)


def test_additional_gradients_leave_the_update_alone() -> None:
    """Its temporaries are of weights, not of what their gradients take."""
    large = {"update_bytes": 1000}
    bare, beside = run(large, zero=1), run(large | {"plain_gradients": True}, zero=1)
    assert beside.memory_bytes.buffers == bare.memory_bytes.buffers


def test_pipelines_that_shard_gradients_last_store_them_unsharded() -> None:
    """4 bytes of all weights of a stage, and none whole for one layer besides."""
    software = {"pipeline_grad_sync": "step"}
    for zero in (2, 3):
        split = run(zero=zero, pp=2, dp=4, grad_sync="micro_batch")
        whole = run(software, zero=zero, pp=2, dp=4)
        assert [stage.gradients for stage in whole.stages] == [
            pytest.approx(4 * stage.gradients) for stage in split.stages
        ]
        assert whole.memory_bytes.buffers == split.memory_bytes.buffers - 4 * LAYER
        assert _same_memory(software, zero)
    assert _same_memory(software, zero=1, pp=2, dp=4)


@each_row(("zero", "reshard", "times"), [(3, False, 1), (2, True, 1), (3, True, 1.5)])
def test_they_reduce_them_once_per_step(zero: int, reshard: bool, times: float) -> None:
    """Rather than with each of two micro-batches; weights that are released are gathered by each.

    Of a micro-batch, 2 + 2 bytes are gathered for two passes, and 4 bytes scattered.
    """
    columns = {"zero": zero, "fsdp_reshard": reshard, "pp": 2, "dp": 4, "gbs": 16}
    every = run(**columns, grad_sync="micro_batch").comm_s["dp"].total
    once = run({"pipeline_grad_sync": "step"}, **columns).comm_s["dp"].total
    tables = _gathered_once(columns)
    assert once - tables == pytest.approx((every - tables) * times / 2)


def _gathered_once(columns: dict[str, Any]) -> float:
    """Time of what is exchanged once a step anyway: a tied head's gradients, ZeRO 2's weights."""
    one = run(**columns | {"gbs": 8}).comm_s["dp"].total
    return 2 * one - run(**columns, grad_sync="micro_batch").comm_s["dp"].total


def _same_memory(software: dict[str, Any], zero: int, **columns: Any) -> bool:
    """Whether the software holds what plain one does."""
    one, other = run(software, zero=zero, **columns), run(zero=zero, **columns)
    return one.memory_bytes == other.memory_bytes


@each_row(
    ("software", "zero", "each"),
    [
        ({"update_bytes": 1000}, 1, 1000),
        ({"update_bytes": 1000, "flat_gradients": True}, 1, 1000 + 4),
        ({"update_bytes": 1000, "flat_gradients": True}, 3, 1000),
        ({"update_bytes": 1000, "gradient_dtype": "compute"}, 1, 1000 + 4),
        (
            {"update_bytes": 1000, "gradient_dtype": "compute", "flat_gradients": True},
            2,
            1000 + 4 + 2,
        ),
    ],
)
def test_what_the_update_holds(software: dict[str, Any], zero: int, each: int) -> None:
    """Temporaries, fp32 copies of 2-byte gradients, a flat buffer before: of a shard."""
    memory = run(software, zero=zero).memory_bytes
    assert memory.buffers == pytest.approx(each * WHOLE / 8)
    assert memory.activations == 0


@each_row(("zero", "updated"), [(3, WHOLE / 16), (2, WHOLE / 8)])
def test_zero_3_copies_the_gradients_of_a_sub_group(zero: int, updated: float) -> None:
    """Half of a shard at a time: a flat copy of 2 bytes, one in fp32, and temporaries."""
    software = {"update_bytes": 2000, "flat_gradients": True, "sub_group_size": WHOLE / 16}
    memory = run(software | {"gradient_dtype": "compute"}, zero=zero).memory_bytes
    assert memory.buffers == pytest.approx((2000 + 4 + 2) * updated)


def test_a_flat_buffer_is_of_sharded_optimizers() -> None:
    """Without replicas that share the state there is none."""
    memory = run({"update_bytes": 1000, "flat_gradients": True}, zero=0).memory_bytes
    assert memory.buffers == 1000 * WHOLE


def test_embedding_and_head_gathered_as_one() -> None:
    """Their 2 bytes are whole from first forward on, the head's gradient behind backward."""
    bare = run(zero=3).memory_bytes.buffers
    whole = run({"whole_ends": True}, zero=3).memory_bytes.buffers
    assert whole - bare == 2 * (TABLE + NORM) + 2 * NORM
    assert _same_memory({"whole_ends": True}, zero=2)


@each_row(
    ("threshold", "adapters", "weights"),
    [
        (63, {}, 0),
        (64, {}, 9 * 64),  # one norm of each block, and the last
        # A of three products with 64 inputs, and B of two with 64 outputs.
        (64, {"lora_rank": 1}, 9 * 64 + 4 * (3 + 2) * 64),
    ],
)
def test_small_tensors_stay_gathered(threshold: int, adapters: Any, weights: int) -> None:
    """In 2 bytes next to the shards of ZeRO-3; ZeRO-2 gathers nothing layer by layer."""
    llama = samples.llama()
    fields: dict[str, Any] = {"zero": 3} | adapters
    bare = run({}, llama, **fields).memory_bytes.weights
    small = run({"persistence_threshold": threshold}, llama, **fields).memory_bytes.weights
    assert small - bare == 2 * weights
    assert _same_memory({"persistence_threshold": threshold}, zero=2)


def test_ends_gathered_as_one_at_the_loss() -> None:
    """There the head's weights are whole anyway: those of the embedding come in addition."""
    words = samples.llama(vocab=20_000)
    bare = run(architecture=words, zero=3).memory_bytes.buffers
    whole = run({"whole_ends": True}, words, zero=3).memory_bytes.buffers
    assert whole - bare == 2 * 20_000 * 64


def test_ends_on_stages_of_their_own() -> None:
    """The first gathers the embedding alone, the last the head and its gradient."""
    model = samples.llama(vocab=10)
    bare = run(architecture=model, zero=3, pp=2, dp=4).stages
    whole = run({"whole_ends": True}, model, zero=3, pp=2, dp=4).stages
    more = [one.buffers - other.buffers for one, other in zip(whole, bare, strict=True)]
    assert more == [2 * 10 * 64, 4 * (10 * 64 + 64)]


def test_a_loss_of_split_logits_holds_more() -> None:
    """3 bytes of each logit more on two ranks that split them, none on one."""
    words = samples.model(vocab=20_000)
    software = {"loss_split_bytes": 3}
    one, two = ({"architecture": words, "tp": tp, "dp": 4} for tp in (1, 2))
    assert run(software, **one).memory_bytes == run(**one).memory_bytes
    more = run(software, **two).memory_bytes.buffers - run(**two).memory_bytes.buffers
    assert more == 3 * TOKENS * 10_000


def test_zero_3_of_deepspeed_stores_what_its_own_estimate_counts() -> None:
    """18 bytes per weight: estimate_zero3_model_states_mem_needs (docs of DeepSpeed 0.5)."""
    for name in ("deepspeed-2021", "megatron-deepspeed-2022"):
        found = run(architecture=samples.model(), zero=3, stack=name, dtype="fp16").memory_bytes
        states = found.weights + found.gradients + found.optimizer
        weights = run(architecture=samples.model(), zero=0, stack=name, dtype="fp16").memory_bytes
        assert states == pytest.approx(18 * weights.weights / 2 / 8)


@each_row(
    ("software", "each"),
    [
        # Input 64, queries 64 and values 16, output of the core 64, one of two products 192.
        ({}, 64 + 64 + 16 + 64 + 192),
        # Kernels of their own for norm and activation keep nothing that is not kept before.
        ({"fused_norm": False, "fused_swiglu": False}, 64 + 64 + 16 + 64 + 192),
    ],
)
def test_every_other_product_is_saved(software: dict[str, Any], each: int) -> None:
    """Elements of a token in 2 bytes, and 4 bytes of statistics for each of 8 heads."""
    layers = {"recompute": "selective", "recompute_parts": ["every_other"]}
    found = run(software, samples.llama(vocab=10), **layers)
    kept = TOKENS * (2 * each + 4 * 8)
    assert found.memory_bytes.activations == 4 * kept
    assert found.layers[0].kept_bytes == kept


software_terms = st.fixed_dictionaries(
    {
        "plain_gradients": st.booleans(),
        "grad_sync": st.sampled_from(["step", "micro_batch"]),
        "pipeline_grad_sync": st.sampled_from(["step", "micro_batch"]),
        "flat_gradients": st.booleans(),
        "update_bytes": st.sampled_from([0, 8, 2000]),
        "whole_ends": st.booleans(),
        "loss_split_bytes": st.sampled_from([0, 4]),
        "gradient_dtype": st.sampled_from(["fp32", "compute"]),
        "gathers_master": st.booleans(),
        "master_dtype": st.sampled_from(["fp32", "none"]),
        "clears_gradients": st.booleans(),
        "update_in_backward": st.booleans(),
    }
)


@examples(40)
@given(software_terms, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.booleans())
def test_more_replicas_that_share_never_hold_more(
    software: dict[str, Any], zero: int, pp: int, reshard: bool
) -> None:
    """1, 2, 4, 8 of them, two micro-batches each."""
    table = estimate_many(
        samples.llama(vocab=1000),
        samples.system(),
        {
            "dp": [1, 2, 4, 8],
            "pp": pp,
            "mbs": 2,
            "gbs": [4, 8, 16, 32],
            "zero": zero,
            "fsdp_reshard": reshard,
            "stack": samples.stack(**software),
        },
    )
    held = table.memory_total_bytes.tolist()
    assert held == sorted(held, reverse=True)


@examples(40)
@given(software_terms, st.sampled_from([0, 1, 2, 3]))
def test_no_term_holds_less(software: dict[str, Any], zero: int) -> None:
    """Software with such a term holds at least what the same without it does."""
    savings = ("gradient_dtype", "gathers_master", "master_dtype")
    savings += ("clears_gradients", "update_in_backward")
    same = {name: software[name] for name in savings}
    bare, terms = (run(some, zero=zero, pp=2, dp=4).memory_bytes for some in (same, software))
    assert terms.total >= bare.total


def test_software_of_the_catalog() -> None:
    """Each generation says what it holds."""
    said = {
        name: Stack.load(name)
        for name in (
            "torchtitan-2024",
            "torchtitan-2025",
            "internevo-2023",
            "megatron-deepspeed-2022",
        )
    }
    assert (said["torchtitan-2024"].loss_saved_bytes, said["torchtitan-2024"].allocator_slack) == (
        12,
        1.13,
    )
    assert said["torchtitan-2025"].loss_saved_bytes == 4
    assert said["torchtitan-2025"].whole_ends
    assert said["internevo-2023"].update_bytes == 8
    assert said["megatron-deepspeed-2022"].runtime_memory == 7 * GIB


def test_pipelines_that_reserve_buffers() -> None:
    """2 pp micro-batches on all stages but the last, at most as many as there are."""
    for micro_batches, first in ((3, 3), (6, 6), (32, 8)):
        columns = {"dp": 1, "pp": 4, "mbs": 2, "gbs": 2 * micro_batches}
        usual, wide = (run({"pipeline_buffers": on}, **columns).stages for on in (False, True))
        each = usual[-1].activations  # of one micro-batch
        embedding = usual[0].activations / min(micro_batches, 4) - each
        assert [stage.activations for stage in wide[1:3]] == pytest.approx([first * each] * 2)
        assert wide[0].activations >= first * each + embedding
        assert wide[3].activations == usual[3].activations
    alone = [run({"pipeline_buffers": on}).memory_bytes for on in (False, True)]
    assert alone[0] == alone[1]

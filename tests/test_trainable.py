"""Frozen parts, by hand for the Llama sample: operations, memory, exchanges, what is counted."""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import exchanges, flops, held, moved, saved
from shardwise import Model, Strategy, estimate
from shardwise.config.enums import FrozenPart
from shardwise.config.strategy_table import Table
from shardwise.ops.layer import layer_operations
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import Phase
from shardwise.ops.param_count import count_parameters, flops_per_token
from trained_samples import (
    BELOW_THE_HEAD,
    DOWN,
    FORWARD,
    IN_A_LAYER,
    INPUT_GRAD,
    INPUTS,
    OTHERS,
    OUT,
    QKV,
    SIZES,
    UP,
    WEIGHT_GRAD,
    WORDS,
    T,
    adapters,
    kept,
    layer,
    mixture,
    run,
    subset,
)

pytestmark = pytest.mark.any_software


def test_a_frozen_product_has_no_gradient_of_its_weights() -> None:
    """Its gradient of the input remains; its input is not kept, what the activation needs is."""
    whole, part = samples.operations(samples.llama()), layer(subset("mlp"))
    assert list(whole) == list(part)
    for name, size in (("mlp.up", UP), ("mlp.down", DOWN)):
        assert flops(part[name], FORWARD) == flops(part[name], INPUT_GRAD) == 2 * T * size
        assert flops(part[name], WEIGHT_GRAD) == 0
        assert (held([part[name]]), part[name].trained[0], part[name].saved_bytes[0]) == (
            size,
            0,
            0,
        )
    assert part["mlp.activation"].saved_bytes[0] == 2 * T * 384
    for name in set(whole) - {"mlp.up", "mlp.down"}:
        assert part[name].trained[0] == whole[name].parameters[0]
        assert part[name].saved_bytes[0] == whole[name].saved_bytes[0]
        assert flops(part[name], WEIGHT_GRAD) == flops(whole[name], WEIGHT_GRAD)
    assert saved(whole.values()) == sum(INPUTS.values()) + OTHERS


def test_flash_attention_needs_its_output_whoever_is_trained() -> None:
    """Unfused products do not, nor does the output where heads were swapped before it."""
    assert kept(layer(subset("attention"))) == INPUTS | {"attention.qkv": 0}
    assert kept(layer(subset("attention"), flash=False))["attention.out"] == 0
    swapped = layer(subset("attention"), cp=2, cp_exchange=2)
    assert kept(swapped)["attention.out"] == 0
    assert kept(layer(subset("attention"), cp=2))["attention.out"] == 2 * T * 64


def test_frozen_norms_keep_their_input_and_pass_gradients_on() -> None:
    """Only their weights are not trained."""
    whole, part = samples.operations(samples.llama()), layer(subset("norms"))
    for name, operation in part.items():
        assert operation.trained[0] == (0 if name.endswith("norm") else operation.parameters[0])
        assert operation.saved_bytes[0] == whole[name].saved_bytes[0]
        for phase in Phase:
            assert moved(operation, phase) == moved(whole[name], phase)


def test_biases_of_frozen_products_have_no_gradient() -> None:
    """64 x 256 sums of the gradient of the GPT sample's first product."""
    gpt = samples.model()
    assert moved(layer(subset("attention"), gpt)["mlp.up"], WEIGHT_GRAD) == 2 * T * 256
    assert moved(layer(subset("mlp"), gpt)["mlp.up"], WEIGHT_GRAD) == 0


def test_an_input_is_saved_while_one_of_its_readers_is_trained() -> None:
    """Parallel blocks: the attention keeps it for the MLP. Experts: the router for shared ones."""
    parallel = samples.llama(layers=[samples.layer(attention={"bias": "none"}, parallel=True)])
    for frozen, size in ((("attention",), 2 * T * 64), (("attention", "mlp"), 0)):
        assert layer(subset(*frozen), parallel)["attention.qkv"].saved_bytes[0] == size
    whole = {"tp": 2, "sequence_parallel": True, "regather": False}
    assert layer(subset("attention"), parallel, **whole)["attention.qkv"].saved_bytes[0] == (
        2 * T * 64
    )
    for frozen, size in ((("router",), 2 * T * 64), (("router", "mlp"), 0)):
        assert layer(subset(*frozen), mixture())["moe.router"].saved_bytes[0] == size
    routed = layer(subset("router"), mixture(), **whole)  # shared ones keep a copy
    assert (routed["moe.router"].saved_bytes[0], routed["moe.shared_up"].saved_bytes[0]) == (
        0,
        2 * T * 64,
    )


def test_collectives_of_frozen_products() -> None:
    """The input is not gathered a second time; the rest of a layer's exchanges is as before."""
    work = {"tp": 2, "sequence_parallel": True}
    whole = exchanges(samples.operations(samples.llama(), **work)["attention.qkv"])
    part = exchanges(layer(subset("attention"), **work)["attention.qkv"])
    again = ("all_gather", "weight_grad", 2 * T * 64)
    assert [one for one in whole if one != again] == part
    assert again in whole


@each_row("part", SIZES)
def test_each_part_frozen_by_hand(part: str) -> None:
    """2 bytes of every weight; 4 of gradients and 12 of state of those that are trained."""
    result, whole = run(frozen=(part,)), run()
    trained = sum(SIZES.values()) - SIZES[part]
    assert result.parameters == whole.parameters == sum(SIZES.values())
    assert result.trainable_parameters == trained
    memory = result.memory_bytes
    assert memory.weights == whole.memory_bytes.weights == 2 * sum(SIZES.values())
    assert (memory.gradients, memory.optimizer) == (4 * trained, 12 * trained)
    # The optimizer's bytes: 4 + 2 x 12 + 2 an owned weight, 1.5 x 4 a local one.
    assert result.time_s["optimizer"] == pytest.approx(36e-12 * trained)
    assert result.time_s["forward"] == whole.time_s["forward"]
    for one in result.layers:
        assert one.gradient_bytes == 4 * (one.parameters - IN_A_LAYER.get(part, 0))
        assert one.optimizer_bytes == 3 * one.gradient_bytes


def test_all_but_the_head_frozen() -> None:
    """Layers go forward alone and keep nothing; head: its weights; the loss as ever."""
    result, forward = run(frozen=BELOW_THE_HEAD), run(training=False)
    assert result.trainable_parameters == WORDS
    assert result.time_s["forward"] == forward.time_s["forward"]
    whole = {(o.part, o.operation, o.phase): o for o in run(operations=True).operations or ()}
    back = run(frozen=BELOW_THE_HEAD, operations=True).operations or ()
    told = {(o.part, o.operation, o.phase): o for o in back if o.phase in (INPUT_GRAD, WEIGHT_GRAD)}
    assert set(told) == {("head", "head", "weight_grad"), ("head", "loss", "input_grad")}
    assert result.time_s["backward"] == pytest.approx(sum(whole[key].time_s for key in told))
    # The input of the head and, for a moment, the logits at 4 bytes.
    assert result.memory_bytes.activations == 0
    assert result.memory_bytes.buffers == 2 * T * 64 + 4 * T * 1000


def test_a_frozen_embedding_changes_nothing_for_layers() -> None:
    """Its gradient alone is gone: read and written in 4 bytes, and its 2-byte source read."""
    result, whole = run(frozen=("embedding",)), run()
    less = whole.time_s["backward"] - result.time_s["backward"]
    assert less == pytest.approx(T * 64 * (2 * 4 + 2) / 1e12)
    assert [one.input_grad for one in result.layers] == [one.input_grad for one in whole.layers]
    assert result.memory_bytes.activations == whole.memory_bytes.activations
    split = {"tp": 2, "tp_overlap": "none"}
    less = run(**split).comm_s["tp"].total - run(**split, frozen="embedding").comm_s["tp"].total
    assert less == pytest.approx(2 * T * 64 / 2 / 100e9)  # the gradient is not gathered


def test_replicas_communicate_trained_weights_only() -> None:
    """Ten bytes a link-second: whole gradients and, sharded, weights; with ZeRO 3 all weights."""
    given = {"dp": 4, "gbs": 8, "dp_overlap": False, "frozen": ("attention", "embedding")}
    trained = sum(SIZES.values()) - SIZES["attention"] - SIZES["embedding"]
    share = 3 / 4 / 100e9
    assert run(**given).comm_s["dp"].total == pytest.approx(2 * 4 * trained * share)
    assert run(**given | {"zero": 1}).comm_s["dp"].total == pytest.approx(6 * trained * share)
    assert run(**given | {"zero": 2}).comm_s["dp"].total == pytest.approx(6 * trained * share)
    whole = 2 * 2 * sum(SIZES.values()) + 4 * trained
    assert run(**given | {"zero": 3}).comm_s["dp"].total == pytest.approx(whole * share)


def test_frozen_weights_have_no_copy_to_be_gathered_from() -> None:
    """ZeRO 3: trained ones are fp32 shards, frozen ones have 2 bytes."""
    memory = run(dp=4, gbs=8, zero=3, frozen=("mlp",)).memory_bytes
    trained = sum(SIZES.values()) - SIZES["mlp"]
    assert memory.weights == (2 * SIZES["mlp"] + 4 * trained) / 4
    assert memory.optimizer == 8 * trained / 4


def test_frozen_products_need_no_buffer_for_their_gradient() -> None:
    """One for each shape that is left, 2 bytes each, and the head's."""
    model, given = samples.llama(), {"dp": 1, "mbs": 2, "gbs": 2, "zero": 0}
    square = samples.layer(attention={"bias": "none"}, mlp={"ffn": 64, "bias": False})
    alike = samples.llama(layers=[square])  # output, up and down are 64 x 64
    for chosen, frozen, shapes in (
        (model, "mlp", QKV + OUT),
        (model, "attention", UP + DOWN),
        (alike, "attention", 64 * 64),
        (alike, "mlp", 64 * 3 * 64 + 64 * 64),
    ):
        plain, buffered = (
            estimate(
                chosen,
                samples.system(),
                given | {"frozen": frozen, "stack": samples.stack(weight_gradient_buffers=held)},
            ).memory_bytes.buffers
            for held in (False, True)
        )
        assert buffered - plain == 2 * (shapes + WORDS)


def test_tied_copies_communicate_nothing_when_frozen() -> None:
    """On two stages of one replica there is nothing else to exchange."""
    gpt, given = samples.model(), {"pp": 2, "gbs": 4}
    assert run(gpt, **given).comm_s["dp"].total > 0
    assert run(gpt, **given, frozen=("embedding", "head")).comm_s["dp"].total == 0


def test_model_flops() -> None:
    """4 for each frozen weight, 6 for others and adapters; 2 where no gradient passes."""
    model, scores = samples.llama(), 6 * 4 * 8 * 16 * 16
    active = sum(SIZES.values()) - SIZES["embedding"]
    per_token = flops_per_token(model, 32)
    assert per_token == 6 * active + scores
    mlp, head = (flops_per_token(model, 32, subset=subset(part)) for part in ("mlp", "head"))
    assert per_token - mlp == 2 * SIZES["mlp"]
    assert per_token - head == 2 * WORDS
    assert flops_per_token(model, 32, subset=subset("embedding")) == per_token
    adapted = flops_per_token(model, 32, subset=subset(rank=3))
    assert adapted == 4 * active + 6 * adapters(3) + scores
    alone = flops_per_token(model, 32, subset=subset(*BELOW_THE_HEAD))
    assert alone == 2 * active + 2 * WORDS + scores / 3
    tied = samples.llama(tied_embeddings=True)
    assert per_token - flops_per_token(tied, 32, subset=subset("embedding", "head")) == 2 * WORDS
    experts = subset("experts")
    active = 4 * 2 * (64 * 64 + 32 * 64)
    both = [flops_per_token(mixture(), 32, subset=chosen) for chosen in (None, experts)]
    assert both[0] - both[1] == 2 * active


def test_utilisation_counts_what_is_trained() -> None:
    """The step's FLOPs over the peak, row by row as in the single estimates."""
    ways: list[dict[str, Any]] = [
        {},
        {"frozen": "mlp"},
        {"lora_rank": 4},
        {"lora_rank": 4, "lora_parts": "mlp"},
    ]
    for way in ways:
        result, chosen = run(**way), Strategy.validated(way)
        rank = chosen.lora_rank or 0
        one = subset(*chosen.frozen, rank=rank, parts=chosen.lora_parts)
        counted = 64 * flops_per_token(samples.llama(), 32, subset=one)
        assert result.mfu == pytest.approx(counted / result.step_time_s / 1e14)


@each_row("name", ["llama2-7b", "mixtral-8x7b", "deepseek-v2-lite", "gpt3-175b"])
def test_parts_share_all_parameters(name: str) -> None:
    """What freezing each part takes away adds up to the model, tied tables once."""
    model = Model.load(name)
    counted = count_parameters(model)
    table = Table.of(model, {"dp": 1, "gbs": 1, "seq_len": 32})
    assert Subset.of(table).frozen[0] == 0
    lost = 0.0
    for part in FrozenPart:
        columns = samples.rank_work()
        for one in model.layers:
            whole = layer_operations(model, one, columns)
            rest = with_subset(model, "layer", whole, columns, subset(part))
            lost += one.count * (held(whole) - sum(float(o.trained[0]) for o in rest))
    outside = ("embedding", "head", "final_norm")
    ends = sum(size for key, size in counted.breakdown.items() if key in outside)
    assert lost == counted.total - ends

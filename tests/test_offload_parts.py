"""Offload of chosen activations: what each part keeps and moves, by hand.

Micro-batches of 2 x 32 tokens of width 64 in bf16, so that T rows of the stream are T x 128 bytes.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from shardwise import InputError, Model, System
from shardwise.analysis.results import Estimate
from shardwise.config.enums import OffloadPart
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, walk
from shardwise.ops.layer import layer_operations, mtp_operations, part_of
from shardwise.ops.linear import linear
from shardwise.ops.operation import Operation, RankWork
from shardwise.ops.registry import register_layer

pytestmark = pytest.mark.any_software

T = 64
ROWS = T * 64 * 2
SUMS = T * 8 * 4
SLOW = 1e9
DENSE = samples.llama()
SPARSE = samples.deepseek().to_dict()["layers"][1]
EXPERTS = samples.llama(layers=[SPARSE])
MIXED = samples.deepseek(mtp=1)
PARALLEL = samples.model(samples.layer(parallel=True))
NORMED = samples.model(samples.layer(attention={"qk_norm": "head"}, norms="both"), dropout=False)


def machine() -> System:
    """With a second tier behind a link."""
    sizes = {"hbm": 1e12, "host": SLOW}
    memory = [{"name": n, "capacity": 80e9, "bandwidth": rate} for n, rate in sizes.items()]
    return samples.system(memory=memory)


def away(model: Model, *parts: str, **columns: Any) -> Estimate:
    """With some parts in the second tier; with all of a layer if none is named."""
    told = {"offload_activations": True, "offload_parts": parts or None}
    return samples.run(model, machine=machine(), **(told | columns))


# Projections read the normed stream; SwiGLU is 192 wide; 2 of 8 heads for keys and for values.
OF_DENSE = {
    "attention_norm": ROWS,
    "qkv": ROWS,
    "core_attention": T * (64 + 16 + 16) * 2 + SUMS,
    "attention_out": ROWS,
    "mlp_norm": ROWS,
    "mlp": ROWS + T * 192 * 2,
    "activation": T * 2 * 192 * 2,
}
# Latents of 24 and 16, before and after their norms; 8 heads of 12, 12 and 8; 2 experts for each
# token, 32 wide, beside one shared one 64 wide, whose input the router keeps with its 8 logits.
OF_EXPERTS = {
    "attention_norm": ROWS,
    "qkv": ROWS + T * (24 + 24 + 16 + 16) * 2,
    "core_attention": T * 8 * (12 + 12 + 8) * 2 + SUMS,
    "attention_out": ROWS,
    "mlp_norm": ROWS,
    "mlp": ROWS,
    "router": ROWS + T * 8 * 8,
    "expert_up": 2 * ROWS,
    "activation": T * 2 * 64 * 2 + 2 * T * 2 * 32 * 2,
    "expert_down": 2 * T * 32 * 2,
}
# What dropout keeps beside: a byte for each element, of both branches.
OF_PARALLEL = {
    "attention_norm": ROWS + T * 64,
    "qkv": ROWS,
    "core_attention": 3 * ROWS + SUMS,
    "attention_out": ROWS,
    "mlp": T * 256 * 2,
    "activation": T * 256 * 2,
}
# Four norms with an input each, and one of 8 heads each of queries and keys.
OF_NORMED = {
    "attention_norm": 2 * ROWS,
    "qkv": 3 * ROWS,
    "core_attention": 3 * ROWS + SUMS,
    "attention_out": ROWS,
    "mlp_norm": 2 * ROWS,
    "mlp": ROWS + T * 256 * 2,
    "activation": T * 256 * 2,
}
BY_HAND = [(DENSE, 4, OF_DENSE), (EXPERTS, 3, OF_EXPERTS)]
BY_HAND += [(PARALLEL, 4, OF_PARALLEL), (NORMED, 4, OF_NORMED)]


@each_row(("model", "layers", "kept"), BY_HAND)
def test_bytes_of_every_part_by_hand(model: Model, layers: int, kept: dict[str, int]) -> None:
    """Of all layers of a micro-batch away, two here; once out and once in over the link."""
    plain = away(model, offload_activations=False)
    assert plain.layers[0].kept_bytes == sum(kept.values())
    for part in OffloadPart:
        if part not in kept:
            with pytest.raises(InputError, match=f"has no {part}; nothing would be offloaded"):
                away(model, part)
            continue
        one = away(model, part)
        assert one.memory_bytes.offloaded == layers * kept[part]
        less = plain.memory_bytes.activations - one.memory_bytes.activations
        assert less == (layers - 2) * kept[part]
        assert one.memory_bytes.buffers == plain.memory_bytes.buffers
        assert one.comm_s["offload"].total == pytest.approx(2 * layers * kept[part] / SLOW)


def test_experts_alone_have_no_product_of_an_mlp() -> None:
    """Without shared ones; of several parts it is enough that one is there."""
    alone = samples.llama(layers=[SPARSE | {"moe": SPARSE["moe"] | {"shared_ffn": 0}}])
    with pytest.raises(InputError, match="has no mlp or other; nothing would be offloaded"):
        away(alone, "mlp", "other")
    assert away(alone, "mlp", "qkv").memory_bytes.offloaded == 3 * OF_EXPERTS["qkv"]


def test_activations_of_an_mtp_module_outside_its_layer_are_another_part() -> None:
    """Two norms, a projection from 2 h, final norm and head in 2 bytes, logits in 4."""
    beside = 2 * ROWS + 2 * ROWS + ROWS + ROWS + T * 1000 * 4
    one = away(samples.llama(mtp=1), "other")
    assert one.memory_bytes.offloaded == beside
    assert away(samples.llama(mtp=1), "qkv").memory_bytes.offloaded == 5 * ROWS


def test_the_link_shows_what_takes_longer_than_a_pass() -> None:
    """Each way less the pass beside it, of 4 layers and 4 micro-batches."""
    result = away(DENSE, "core_attention", "activation", gbs=8)
    layer = result.layers[0]
    backward = layer.input_grad.time_s + layer.weight_grad.time_s
    each = (OF_DENSE["core_attention"] + OF_DENSE["activation"]) / SLOW
    assert each > backward > layer.forward.time_s
    expected = 4 * 4 * (2 * each - layer.forward.time_s - backward)
    assert result.time_s["offload"] == pytest.approx(expected)
    forward = layer.forward.time_s
    assert result.required_bandwidth.offload == pytest.approx(each * SLOW / forward)
    assert result.required_bandwidth.offload_activations == pytest.approx(each * SLOW / forward)


def test_two_of_the_layers_that_keep_any_of_it_stay() -> None:
    """Of 5 layers 3 have experts: 1 of these is away; without them, 3 of 5 are."""
    model = samples.deepseek().to_dict()
    kinds = [kind | {"count": n} for kind, n in zip(model["layers"], (2, 3), strict=True)]
    mixed = Model.validated(model | {"layers": kinds})
    plain = away(mixed, offload_activations=False).memory_bytes.activations
    rows = away(mixed, "expert_up").memory_bytes
    assert (plain - rows.activations, rows.offloaded) == (2 * ROWS, 3 * 2 * ROWS)
    norms = away(mixed, "mlp_norm").memory_bytes
    assert (plain - norms.activations, norms.offloaded) == (3 * ROWS, 5 * ROWS)
    two = [kind | {"count": n} for kind, n in zip(model["layers"], (3, 2), strict=True)]
    few = Model.validated(model | {"layers": two})
    whole = away(few, offload_activations=False).memory_bytes.activations
    assert away(few, "expert_up").memory_bytes.activations == whole


def test_what_is_run_again_is_not_there_to_move() -> None:
    """A part that is run again, one that is not, and one whose input is rebuilt by a norm."""
    again: dict[str, Any] = {"recompute": "selective", "recompute_parts": ("moe",)}
    assert away(EXPERTS, "expert_up", "activation", **again).memory_bytes.offloaded == 0
    assert (
        away(EXPERTS, "expert_up", "qkv", **again).memory_bytes.offloaded == 3 * (OF_EXPERTS["qkv"])
    )
    norm = again | {"recompute_parts": ("attention_norm",)}
    assert away(DENSE, "qkv", **norm).memory_bytes.offloaded == 0
    assert away(DENSE, "attention_norm", **norm).memory_bytes.offloaded == 4 * ROWS


def test_the_checkpoint_belongs_to_the_first_operation() -> None:
    """Full recompute of 3 of 4 layers: their inputs are the norm's; the last keeps all it does."""
    whole: dict[str, Any] = {"recompute": "full"}
    assert away(DENSE, "attention_norm", **whole).memory_bytes.offloaded == 4 * ROWS
    assert away(DENSE, "mlp", "qkv", **whole).memory_bytes.offloaded == 0
    some = whole | {"recompute_layers": 3}
    assert away(DENSE, "attention_norm", **some).memory_bytes.offloaded == 4 * ROWS
    assert away(DENSE, "mlp", **some).memory_bytes.offloaded == OF_DENSE["mlp"]
    post = samples.model(samples.layer(norms="post"))
    assert away(post, "qkv", **whole).memory_bytes.offloaded == 4 * ROWS
    assert away(post, "attention_norm", **whole).memory_bytes.offloaded == 0


def test_fused_and_quantised_kernels_keep_less_of_a_part() -> None:
    """A fused activation writes its product again; products keep inputs in a byte, and a core not.

    What the core has written is kept in 16 bits, for its own backward kernel.
    """
    fused = away(DENSE, "mlp", fused_activation=True)
    assert fused.memory_bytes.offloaded == 4 * ROWS
    eight_bits = samples.system(
        memory=machine().to_dict()["accelerator"]["memory"],
        matrix={"bf16": 100e12, "fp8": 200e12},
    )
    told = {"offload_activations": True, "quantization": "fp8_tensor"}
    for part, kept in (
        ("qkv", ROWS / 2),
        ("attention_out", ROWS),
        ("mlp", OF_DENSE["mlp"] / 2),
        ("activation", OF_DENSE["activation"]),
    ):
        one = samples.run(DENSE, machine=eight_bits, offload_parts=(part,), **told)
        assert one.memory_bytes.offloaded == 4 * kept, part


def test_adapters_count_with_their_product() -> None:
    """Rank-wide intermediates beside the inputs that they read: of queries, keys and values."""
    tuned = {"lora_rank": 4, "lora_parts": ("attention",)}
    assert away(DENSE, "qkv", **tuned).memory_bytes.offloaded == 4 * (ROWS + T * 4 * 2)
    assert away(DENSE, "attention_out", **tuned).memory_bytes.offloaded == 4 * (ROWS + T * 4 * 2)


def test_forward_only_saves_nothing_to_move() -> None:
    """Neither time nor bytes."""
    once = away(DENSE, "qkv", training=False)
    assert once.comm_s["offload"].total == once.memory_bytes.offloaded == 0


def every_operation() -> list[Operation]:
    """Operations of layers of all kinds, with and without fused kernels."""
    gated = samples.deepseek({"shared_gate": True})
    queries = SPARSE["attention"]["latent"] | {"q_rank": None}
    direct = SPARSE | {"attention": SPARSE["attention"] | {"latent": queries}}
    models = [
        *(DENSE, EXPERTS, PARALLEL, NORMED, MIXED, gated, samples.llama(layers=[direct])),
        *(samples.model(position=word) for word in ("relative-xl", "relative-bias")),
    ]
    work = [samples.rank_work(), samples.rank_work(flash=False, fused_norm=False)]
    return [
        operation
        for model, one in product(models, work)
        for layer in model.layers
        for operation in layer_operations(model, layer, one)
    ]


def test_every_operation_of_a_layer_has_a_part() -> None:
    """None of ours is another's; only what a module does beside its layer is."""
    assert {part_of(operation.name) for operation in every_operation()} == {*list(OffloadPart)[:-1]}
    beside = {
        operation.name
        for operation in mtp_operations(MIXED, samples.rank_work())
        if part_of(operation.name) == "other"
    }
    ends = (
        "embedding",
        "embedding_norm",
        "hidden_norm",
        "projection",
        "final_norm",
        "head",
        "loss",
    )
    assert beside == {f"mtp.{name}" for name in ends}


def test_layers_of_registered_kinds_are_another_part() -> None:
    """All that they keep under names of their own; a rule knows nothing of the rest of them."""

    def mixer(model: Model, _: Any, work: RankWork) -> list[Operation]:
        return [linear("mixer", work, tokens=work.tokens, inputs=model.hidden, outputs=64.0)]

    register_layer("offload-mixer", mixer)
    kind = samples.layer(count=4) | {"kind": "offload-mixer"}
    model = samples.llama(layers=[kind])
    assert away(model, "other").memory_bytes.offloaded == 4 * ROWS
    assert away(model, "router").memory_bytes.offloaded == 0


def step(saved: float, part: int, **fields: Any) -> Step:
    """One operation of a part."""
    plain: dict[str, Any] = {"reruns": 0, "drops": 0, "modules": 0, "trains": False} | fields
    zero, size = samples.column(0, 0, 0), samples.column(*[saved] * 3)
    rebuilt = size if plain["drops"] else zero
    return Step(
        saved=size,
        rebuilt=rebuilt,
        half_rebuilt=zero,
        forward=zero,
        backward=zero,
        part=part,
        **plain,
    )


def test_rows_of_a_walk_name_parts_of_their_own() -> None:
    """All, the first, and the other two of 10, 20 and 30 bytes; the last is run again by a part."""
    steps = [step(10, 1), step(20, 2), step(30, 4, reruns=1, drops=1)]
    parts = np.array([0, 1, 6])
    checkpoint = samples.column(8, 8, 8)
    assert walk(steps, 0, checkpoint, parts).movable.tolist() == [60, 10, 50]
    assert walk(steps, 1, checkpoint, parts).movable.tolist() == [30, 10, 20]
    assert walk(steps, FULL, checkpoint, parts).movable.tolist() == [8, 8, 0]
    assert walk(steps, FORWARD_ONLY, checkpoint, parts).movable.tolist() == [0, 0, 0]
    assert walk(steps, 0, checkpoint).movable.tolist() == [60, 60, 60]

"""What a stack fuses, by hand: norms, gated activations, the sum of weight gradients."""

from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import flops, moved, saved
from shardwise import InputError, Stack, Strategy, System, catalog, estimate, estimate_many
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import with_accumulation
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase
T = 64
FIELDS = ("fused_norm", "fused_swiglu", "fused_gradient_accumulation", "fused_rope")
NORM = "attention.norm"
PLAIN = {"targets": np.array([0]), "dora": np.array([False])}
NONE = Subset(frozen=np.array([0]), rank=np.array([0]), adapted=np.array([3]), **PLAIN)


def layer(**work: Any) -> dict[str, Operation]:
    return samples.operations(samples.llama(), **work)


def apart(subset: Subset = NONE, **work: Any) -> dict[str, Operation]:
    """Operations of a layer whose products do not add up gradients."""
    model, columns = samples.llama(), samples.rank_work(**work | {"fused_accumulation": False})
    whole = layer_operations(model, model.layers[0], columns)
    listed = with_subset(model, "layer", whole, columns, subset)
    return {o.name: o for o in with_accumulation(listed, columns)}


def kernels(operation: Operation, phase: Phase) -> list[MemoryBound]:
    """Element-wise kernels that run in a phase."""
    every = [k for k in operation.kernels if isinstance(k, MemoryBound) and k.phase is phase]
    return [k for k in every if k.bytes[0] > 0]


def test_every_stack_of_the_catalog_fuses_everything() -> None:
    """But for those in plain PyTorch, one of which has Apex's norm, and one in TensorFlow."""
    swiglu, tensorflow = ["fused_norm", "fused_swiglu"], ["fused_norm", FIELDS[2]]
    plain = {"internevo-2023": swiglu, "torchtitan-eager": swiglu, "gpipe-2019": tensorflow}
    plain |= {
        f"{name}-2024": [*FIELDS[:3]] for name in ("deepspeed", "huggingface", "llama-factory")
    }
    plain |= {f"{name}-2026": [*FIELDS[:3]] for name in ("accelerate", "deepspeed")}
    plain["unsloth-2025"] = plain["oneflow-2021"] = [FIELDS[2]]
    plain["gpt-neox-2023"] = plain["paddlenlp-2024"] = [*FIELDS[1:3]]
    plain["megatron-deepspeed-2024"] = [*FIELDS[:3]]  # on GPUs of Intel
    plain["unknown-eager"] = [*FIELDS]
    plain["pytorch-cpu"], plain["pytorch-cuda"] = [*FIELDS[:3]], [*FIELDS[1:]]
    for name in catalog.names("stacks"):
        apart = [field for field in FIELDS if not getattr(Stack.load(name), field)]
        assert apart == plain.get(name, [])
    assert all(getattr(samples.stack(), field) for field in FIELDS)


def test_a_norm_of_several_kernels() -> None:
    """Of 64 x 64 elements in 2 bytes.

    Forward: 2 + 4 to fp32, 8 squared, 4 summed, 8 scaled, 4 + 2 back, 4 weighed. Backward: 4 and 8
    of the weighing, 2 + 4 to fp32, 8 and 16 of the scaling, 8 of the square, 12 added, 4 + 2 back.
    """
    fused, several = layer()[NORM], layer(fused_norm=False)[NORM]
    elements = T * 64
    assert (moved(fused, FORWARD), moved(fused, INPUT_GRAD)) == (4 * elements, 6 * elements)
    assert (moved(several, FORWARD), moved(several, INPUT_GRAD)) == (36 * elements, 68 * elements)
    assert [k.bytes[0] / elements for k in kernels(several, FORWARD)] == [6, 8, 4, 8, 6, 4]
    assert len(kernels(several, INPUT_GRAD)) == 8
    for phase in (FORWARD, INPUT_GRAD):
        done = [sum(k.flops[0] for k in kernels(one, phase)) for one in (fused, several)]
        assert done[0] == pytest.approx(done[1])
    assert (saved([fused]), saved([several])) == (2 * elements, 6 * elements)
    assert several.working_bytes[0] == fused.working_bytes[0] + 4 * elements


def test_a_norm_in_fp32_needs_no_conversion() -> None:
    """Six kernels forward become four, eight backward six; input and what is weighed are kept."""
    several = layer(fused_norm=False, element_bytes=4)[NORM]
    elements = T * 64
    assert [k.bytes[0] / elements for k in kernels(several, FORWARD)] == [8, 4, 8, 8]
    assert [k.bytes[0] / elements for k in kernels(several, INPUT_GRAD)] == [8, 16, 8, 16, 8, 12]
    assert saved([several]) == 8 * elements


def test_a_layer_norm_of_pytorch_is_one_kernel() -> None:
    """Only the field of its own kind makes a norm several kernels."""
    several = samples.operations(samples.model(), fused_layer_norm=False)[NORM]
    fused = samples.operations(samples.model(), fused_norm=False)[NORM]
    assert len(kernels(fused, FORWARD)) == 1
    assert len(kernels(several, FORWARD)) == 6
    assert saved([several]) - saved([fused]) == 4 * T * 64
    assert saved([layer(fused_layer_norm=False)[NORM]]) == saved([layer()[NORM]])


# Bytes per token that autograd saves for one more layer, counted by hooks on saved tensors in
# PyTorch 2 on a CPU with SDPA: GPT-2 and Llama of transformers, width 384, 6 heads, 512 tokens.
_GPT2 = {"ffn": 1536, "activation": "gelu", "bias": True}, {"kv_heads": 6, "bias": "all"}
_LLAMA = {"ffn": 1024, "activation": "swiglu"}, {"kv_heads": 2}


@each_row(
    ("norm", "parts", "dtype", "measured"),
    [
        ("layernorm", _GPT2, "bf16", 12_320),
        ("layernorm", _GPT2, "fp32", 24_616),
        ("rmsnorm", _LLAMA, "bf16", 16_416),
        ("rmsnorm", _LLAMA, "fp32", 29_728),
    ],
)
def test_eager_layers_save_what_pytorch_saves(
    norm: str, parts: tuple[dict[str, Any], dict[str, Any]], dtype: str, measured: float
) -> None:
    """Within 0.1 %: at most 8 bytes of statistics of each norm are not counted."""
    mlp, attention = parts
    layers = [{"count": 2, "attention": {"heads": 6, "head_dim": 64, **attention}, "mlp": mlp}]
    position = "rope" if norm == "rmsnorm" else "learned"
    sizes = {"hidden": 384, "vocab": 128, "seq_len": 512, "dropout": False, "layers": layers}
    model = samples.model(norm=norm, position=position, **sizes)
    run = {"gpus": 1, "mbs": 1, "gbs": 1, "dtype": dtype, "stack": "torchtitan-eager"}
    found = estimate(model, System.load("a100-80gb-sxm"), Strategy.model_validate(run))
    missing = measured - found.layers[0].kept_bytes / 512
    assert 0 <= missing <= 2 * 8


def test_fp32_runs_in_the_flash_kernel_of_a_stack_that_has_one() -> None:
    """And so it may split the sequence, which unfused attention cannot."""
    run = {"gpus": 2, "cp": 2, "mbs": 1, "gbs": 1, "dtype": "fp32"}
    columns = run | {"stack": [samples.stack(), samples.stack(flash_fp32=True)]}
    found = estimate_many(samples.llama(seq_len=64), samples.system(), columns)
    assert [found.reason(row) for row in (0, 1)] == ["context_attention", None]


def test_a_gated_activation_of_two_kernels() -> None:
    """One tensor of 64 x 192 more: written, read, kept; and its gradient written and read."""
    fused, two = layer()["mlp.activation"], layer(fused_swiglu=False)["mlp.activation"]
    size = 2 * T * 192
    assert [k.bytes[0] / size for k in kernels(two, FORWARD)] == [3, 2]
    assert (moved(fused, INPUT_GRAD), moved(two, INPUT_GRAD)) == (5 * size, 9 * size)
    assert (saved([fused]), saved([two])) == (2 * size, 3 * size)
    assert two.working_bytes[0] == fused.working_bytes[0] + size
    gelu = [samples.operations(samples.model(), fused_swiglu=f)["mlp.activation"] for f in (1, 0)]
    for phase in Phase:
        assert moved(gelu[0], phase) == moved(gelu[1], phase)
    assert saved(gelu[:1]) == saved(gelu[1:])


def test_the_input_of_an_activation_saved_in_eight_bits() -> None:
    """2 x 14,336 elements of 8,192 tokens a layer: 1 + 4 / 128 bytes each in fp8 blocks, not 2."""
    plain = {
        "gpus": 8,
        "tp": 1,
        "gbs": 8,
        "recompute": "selective",
        "recompute_parts": "activation",
    }
    peaks = {}
    for recipe in ("none", "fp8_block"):
        for saved_so in (False, True):
            stack = {"base": "deepseek-2024", "quantized_activation_input": saved_so}
            fields = plain | {"quantization": recipe, "stack": stack}
            result = estimate("llama3-8b", "h100-sxm", fields)
            peaks[recipe, saved_so] = result.memory_bytes.activations
    assert peaks["none", True] == peaks["none", False]
    less = 32 * 8192 * 2 * 14336 * (2 - (1 + 4 / 128))
    assert peaks["fp8_block", False] - peaks["fp8_block", True] == pytest.approx(less, rel=1e-9)


@each_row(("element_bytes", "gradient_bytes"), [(2, 4), (2, 2), (4, 4)])
def test_gradients_added_by_another_kernel(element_bytes: int, gradient_bytes: int) -> None:
    """The product writes them in the compute type; they are read, the sum is read and written."""
    work: dict[str, Any] = {"element_bytes": element_bytes, "gradient_bytes": gradient_bytes}
    fused, two = layer(**work)["mlp.down"], apart(**work)["mlp.down"]
    weights = 192 * 64
    wide = [[k for k in o.kernels if isinstance(k, Matmul)][-1] for o in (fused, two)]
    assert [k.phase for k in wide] == [WEIGHT_GRAD] * 2
    assert [k.output_bytes[0] for k in wide] == [2 * gradient_bytes, element_bytes]
    assert moved(fused, WEIGHT_GRAD) == 0
    assert moved(two, WEIGHT_GRAD) == weights * (element_bytes + 2 * gradient_bytes)
    assert two.working_bytes[0] == fused.working_bytes[0] + weights * element_bytes
    assert two.forward_working_bytes is not None
    assert two.forward_working_bytes[0] == fused.working_bytes[0]
    assert (saved([two]), flops(two, WEIGHT_GRAD)) == (saved([fused]), flops(fused, WEIGHT_GRAD))
    for name, operation in apart(**work).items():
        if name.endswith(("norm", "residual", "activation", "core")):
            assert operation.working_bytes[0] == layer(**work)[name].working_bytes[0]


def test_frozen_products_have_no_gradient_to_add() -> None:
    """Neither bytes nor a buffer."""
    frozen = Subset(frozen=np.array([4]), rank=np.array([0]), adapted=np.array([3]), **PLAIN)
    down = apart(frozen)["mlp.down"]
    assert moved(down, WEIGHT_GRAD) == 0
    assert down.working_bytes[0] == layer()["mlp.down"].working_bytes[0]


@each_row("field", FIELDS)
def test_a_fused_kernel_is_faster_and_smaller(field: str) -> None:
    """Side by side in one table; what is not fused alone differs."""
    stacks = [samples.stack(), samples.stack(**{field: False}), samples.stack()]
    columns = {"dp": 1, "mbs": 2, "gbs": 4, "stack": stacks}
    found = estimate_many(samples.llama(), samples.system(), columns)
    step, total = found.step_time_s, found.memory_total_bytes
    assert step[0] == step[2] < step[1]
    assert total[0] == total[2] <= total[1]
    ahead = found.time_s["forward"]
    assert bool(ahead[0] < ahead[1]) is (field != "fused_gradient_accumulation")
    same = estimate_many(samples.llama(), samples.system(), columns | {"stack": stacks[1]})
    assert same.step_time_s[0] == step[1]


def test_host_launches_every_kernel() -> None:
    """9 norms of 5 and 7 kernels more; 4 activations of 1 and 1 more; 17 products of 1 more."""

    def step(**fields: Any) -> dict[str, float]:
        stack = samples.stack(host_launch=1.0, **fields)  # the host alone counts
        given = {"dp": 1, "gbs": 1, "stack": stack}
        found = estimate_many(samples.llama(), samples.system(), given).time_s
        return {part: float(found[part][0]) for part in ("forward", "backward")}

    usual = step()
    for fields, forward, backward in (
        ({"fused_norm": False}, 9 * 5, 9 * 7),
        ({"fused_swiglu": False}, 4, 4),
        ({"fused_gradient_accumulation": False}, 0, 4 * 4 + 1),
    ):
        several = step(**fields)
        assert several["forward"] - usual["forward"] == pytest.approx(forward)
        assert several["backward"] - usual["backward"] == pytest.approx(backward)


def test_what_products_that_add_need_is_refused_without_them() -> None:
    """Their buffers, and the activation computed again beside its gradient."""
    with pytest.raises(InputError) as refused:
        samples.stack(fused_gradient_accumulation=False, weight_gradient_buffers=True)
    assert str(refused.value) == (
        "weight_gradient_buffers: true: are of fused_gradient_accumulation; allowed without it: "
        "false"
    )
    software = {"fused_swiglu": False}
    with pytest.raises(InputError) as refused:
        samples.run(samples.llama(), software, fused_activation=True)
    assert str(refused.value) == (
        "strategy: fused_activation: true: plain has no fused_swiglu kernel; allowed: false"
    )
    samples.run(samples.model(), software, fused_activation=True)  # GELU is one kernel


@pytest.mark.parametrize(("size", "moved"), [(2, 4 + 6 + 4 + 6), (4, 8)])
def test_queries_and_keys_rotated_in_plain_pytorch(size: int, moved: int) -> None:
    """To fp32 and back around a product in fp32, each of which reads and writes an element."""
    one, several = (
        layer(element_bytes=size, fused_rope=fused)["attention.rope"] for fused in (True, False)
    )
    for phase in (Phase.FORWARD, Phase.INPUT_GRAD):
        (fused,), (apart_,) = kernels(one, phase), kernels(several, phase)
        elements = fused.bytes / (2 * size)
        assert apart_.bytes == pytest.approx(elements * moved)
    assert saved([several]) == saved([one])


def test_latent_queries_are_joined_in_plain_pytorch() -> None:
    """What is not rotated of them is copied, too: 12 - 4 numbers of each head."""
    model = samples.deepseek()
    one, several = (
        samples.operations(model, element_bytes=4, fused_rope=fused)["attention.rope"]
        for fused in (True, False)
    )
    (fused,), (apart_,) = kernels(one, Phase.FORWARD), kernels(several, Phase.FORWARD)
    read_and_written = 2 * 4 * model.layers[0].own_attention.heads * (12 - 4)
    assert apart_.bytes - fused.bytes == pytest.approx(T * read_and_written)

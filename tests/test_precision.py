"""Products in fewer than 16 bits, by hand: rates, casts, what is kept and what is exchanged.

The sample is that of `precision_samples`.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from precision_samples import LINEAR, chip, mixture
from profiles import examples
from rows import each_row
from samples import exchanges, moved, operations, saved
from shardwise import Model
from shardwise.config.enums import Quantization
from shardwise.config.strategy_table import Table
from shardwise.cost.kernels import KernelRates, product_peak
from shardwise.ops.operation import Matmul, Operation, Phase

pytestmark = pytest.mark.any_software

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
TENSOR, BLOCK, MXFP8, NVFP4 = (
    Quantization(name).code for name in ("fp8_tensor", "fp8_block", "mxfp8", "nvfp4")
)
# Bytes of an element of an operand with its scales.
SIZE = {TENSOR: 1.0, BLOCK: 1.03125, MXFP8: 1.03125, NVFP4: 0.5625}


def runs_quantized(operation: Operation) -> set[bool]:
    return {k.quantized for k in operation.kernels if isinstance(k, Matmul)}


@each_row("quantization", [BLOCK, NVFP4])
def test_casts_of_recipes_that_fuse_nothing(quantization: int) -> None:
    """X: read, written in two orientations; dY the same; nvfp4 reads a second time."""
    ops = operations(samples.llama(), quantization=quantization)
    size = SIZE[quantization]
    read = {BLOCK: 2, NVFP4: 4}[quantization]
    widths = {"attention.qkv": (64, 96), "mlp.up": (64, 384), "mlp.down": (192, 64)}
    for name, (inputs, outputs) in widths.items():
        assert moved(ops[name], FORWARD) == 64 * inputs * (read + 2 * size)
        assert moved(ops[name], INPUT_GRAD) == 64 * outputs * (read + 2 * size)
        assert moved(ops[name], WEIGHT_GRAD) == 0
    # What flash attention keeps in 16 bits is not kept a second time but cast again.
    assert moved(ops["attention.out"], FORWARD) == 64 * 64 * (read + size)
    assert moved(ops["attention.out"], WEIGHT_GRAD) == 64 * 64 * (read + size)
    assert moved(ops["attention.out"], INPUT_GRAD) == 64 * 64 * (read + 2 * size)


@each_row("quantization", [TENSOR, MXFP8])
def test_norms_and_sums_of_biases_that_are_fused_with_casts(quantization: int) -> None:
    """GPT's projections after norms cast nothing; biases are summed while dY is cast."""
    ops = operations(samples.model(), quantization=quantization)
    both = 2 + 2 * SIZE[quantization]
    assert moved(ops["attention.qkv"], FORWARD) == moved(ops["mlp.up"], FORWARD) == 0
    assert moved(ops["mlp.down"], FORWARD) == 64 * 256 * both
    assert all(moved(ops[name], WEIGHT_GRAD) == 0 for name in ("attention.qkv", "mlp.down"))
    plain = operations(samples.model(), quantization=BLOCK)
    assert moved(plain["mlp.up"], WEIGHT_GRAD) == 64 * 256 * 2
    after = samples.model(samples.layer(norms="post"))
    assert moved(operations(after, quantization=quantization)["mlp.up"], FORWARD) == 64 * 64 * both


def test_forward_only_casts_one_orientation() -> None:
    ops = operations(samples.llama(), quantization=BLOCK, training=False)
    assert moved(ops["mlp.down"], FORWARD) == 64 * 192 * (2 + SIZE[BLOCK])


def test_inputs_are_saved_quantized() -> None:
    """But the output of flash attention; a fused activation keeps none and casts again."""
    for quantization, size in SIZE.items():
        ops = operations(samples.llama(), quantization=quantization)
        kept = {name: saved([ops[name]]) for name in LINEAR}
        assert kept == {
            "attention.qkv": 64 * 64 * size,
            "attention.out": 64 * 64 * 2,
            "mlp.up": 64 * 64 * size,
            "mlp.down": 64 * 192 * size,
        }
        assert saved([ops["mlp.activation"]]) == 64 * 2 * 192 * 2
    unfused = operations(samples.llama(), quantization=TENSOR, flash=False)
    assert saved([unfused["attention.out"]]) == 64 * 64
    fused = operations(samples.llama(), quantization=TENSOR, fused_activation=True)["mlp.down"]
    assert saved([fused]) == 0
    assert moved(fused, WEIGHT_GRAD) == 64 * 192 * (2 + 1)


def test_what_stays_in_sixteen_bits() -> None:
    """Head, router, gate of shared experts, relative positions; products of the rest do not."""
    sparse = mixture(shared_ffn=32, shared_gate=True)
    ops = operations(sparse, quantization=TENSOR) | samples.head(sparse, quantization=TENSOR)
    ran = {name: runs_quantized(o) for name, o in ops.items() if runs_quantized(o)}
    plain = {"attention.core", "moe.router", "moe.shared_gate", "head"}
    assert {name for name, types in ran.items() if types == {False}} == plain
    assert {name for name, types in ran.items() if types == {True}} == {
        *("attention.qkv", "attention.out"),
        *("moe.shared_up", "moe.shared_down", "moe.up", "moe.down"),
    }
    far = operations(samples.model(position="relative-xl"), quantization=TENSOR)
    assert runs_quantized(far["attention.relative"]) == {False}
    # The router keeps the input of the shared experts too, in 16 bits.
    assert saved([ops["moe.router"]]) == 64 * 64 * 2
    assert saved([ops["moe.shared_up"]]) == 0
    assert moved(ops["moe.shared_up"], WEIGHT_GRAD) == 64 * 64 * 3


@each_row(("quantization", "gradients"), [(TENSOR, 1), (MXFP8, 2), (NVFP4, 2)])
def test_sequences_are_gathered_quantised(quantization: int, gradients: int) -> None:
    """Inputs in one orientation, gradients in one or two; each rank casts its own half."""
    ops = operations(samples.llama(), tp=2, sequence_parallel=True, quantization=quantization)
    whole, size = 64 * 64 * 2, SIZE[quantization]
    assert exchanges(ops["mlp.up"]) == [
        ("all_gather", "forward", whole * size / 2),
        ("all_gather", "weight_grad", whole * size / 2),
        ("reduce_scatter", "input_grad", whole),
    ]
    assert exchanges(ops["mlp.down"]) == [
        ("reduce_scatter", "forward", whole),
        ("all_gather", "input_grad", gradients * whole * size / 2),
    ]
    read = 4 if quantization == NVFP4 else 2
    assert moved(ops["mlp.down"], INPUT_GRAD) == 32 * 64 * (read + 2 * size)
    assert moved(ops["mlp.down"], FORWARD) == 64 * 96 * (read + 2 * size)
    alone = operations(samples.llama(), tp=2, quantization=quantization)
    assert exchanges(alone["mlp.down"]) == [("all_reduce", "forward", whole)]
    assert moved(alone["mlp.down"], INPUT_GRAD) == 64 * 64 * (read + 2 * size)


def test_scales_of_rows_are_found_where_a_product_runs() -> None:
    """Ranks gather and save 16 bits; each casts all rows of its products, reading them twice."""
    recipe = Quantization("fp8_row").code
    ops = operations(samples.llama(), tp=2, sequence_parallel=True, quantization=recipe)
    plain = operations(samples.llama(), tp=2, sequence_parallel=True)
    for name in LINEAR:
        assert exchanges(ops[name]) == exchanges(plain[name])
        assert saved([ops[name]]) == saved([plain[name]])
    assert moved(ops["mlp.up"], FORWARD) == moved(ops["mlp.up"], WEIGHT_GRAD) == 64 * 64 * (4 + 1)
    assert moved(ops["mlp.down"], INPUT_GRAD) == 64 * 64 * (4 + 2)


@each_row(("generation", "slower"), [("hopper", 1.3), ("blackwell", 1.3), ("cdna3", 1.0)])
def test_products_of_rows_with_their_own_scales(generation: str, slower: float) -> None:
    """CUTLASS kernels on NVIDIA GPUs; other products of the same step are as fast as ever."""
    columns = {"quantization": ["fp8_tensor", "fp8_row"], "dp": 1, "gbs": 1}
    columns |= {"stack": samples.stack()}
    rates = KernelRates.of(chip(generation=generation), Table.of(samples.llama(), columns))
    sizes = {name: np.full(2, 1e5) for name in ("m", "n", "k")}
    rest = {"input_bytes": np.zeros(2), "output_bytes": np.zeros(2), "batch": np.ones(2)}
    for quantized, ratio in ((True, slower), (False, 1.0)):
        kernel = Matmul(phase=FORWARD, **sizes, **rest, quantized=quantized)
        by_tensor, by_row = rates.times(kernel)[0]
        assert by_row / by_tensor == pytest.approx(ratio)


def test_operands_and_results() -> None:
    """Operands move in the recipe's type, results and gradients of weights in their own."""
    up = operations(samples.llama(), quantization=NVFP4)["mlp.up"]
    products = {k.phase: k for k in up.kernels if isinstance(k, Matmul)}
    assert products[FORWARD].bytes[0] == 0.5625 * (64 * 64 + 64 * 384) + 2 * 64 * 384
    assert products[WEIGHT_GRAD].bytes[0] == 0.5625 * (64 * 64 + 64 * 384) + 8 * 64 * 384
    assert float(up.read_quantized[0]) == 64 * 384


def test_rates_by_row() -> None:
    """A product of 2e14 FLOP: 2 s in 16 bits, 1 s in 8, half a second in 4, 4 s in fp32."""
    columns = {"quantization": ["none", "fp8_tensor", "nvfp4", "none"], "dp": 1, "gbs": 1}
    columns |= {"dtype": ["bf16", "bf16", "fp16", "fp32"], "stack": samples.stack()}
    table = Table.of(samples.llama(), columns)
    rates = KernelRates.of(chip(), table)

    def times(*, quantized: bool) -> list[float]:
        kernel = Matmul(
            phase=FORWARD,
            m=np.full(4, 64 * 1600.0),
            n=np.full(4, 64 * 1600.0),
            k=np.full(4, 1e14 / (64 * 1600) ** 2),
            input_bytes=np.zeros(4),
            output_bytes=np.zeros(4),
            batch=np.ones(4),
            quantized=quantized,
        )
        return rates.times(kernel)[0].tolist()

    assert times(quantized=True) == pytest.approx([2, 1, 0.5, 4])
    assert times(quantized=False) == pytest.approx([2, 2, 2, 4])
    assert product_peak(chip().accelerator, table).tolist() == [1e14, 2e14, 4e14, 5e13]


def test_dispatch_in_fp8() -> None:
    """Tokens travel in 1 + 4/128 bytes forward; what comes back and all gradients in 2."""
    size, fewer = 1.03125, {"dispatch_bytes": 1.03125, "quantization": BLOCK}
    plain, ops = (operations(mixture(), ep=2, **work) for work in ({}, fewer))
    copies = 128 * 64
    assert exchanges(ops["moe.dispatch"]) == [
        ("all_to_all", "forward", copies * size),
        ("all_to_all", "input_grad", copies * 2),
    ]
    assert exchanges(ops["moe.combine"]) == exchanges(plain["moe.combine"])
    # Cast before they are copied, then copied and sorted in one byte and its scale.
    ahead = 64 * 64 * (2 + size) + (64 + 128) * 64 * size + 2 * copies * size
    assert moved(ops["moe.dispatch"], FORWARD) == ahead
    assert moved(ops["moe.dispatch"], INPUT_GRAD) == moved(plain["moe.dispatch"], INPUT_GRAD)
    # The first product takes them as they come and only makes the other orientation.
    assert moved(ops["moe.up"], FORWARD) == copies * (size + size)
    assert saved([ops["moe.up"]]) == copies * size
    alone = operations(mixture(), ep=2, **(fewer | {"training": False}))
    assert moved(alone["moe.up"], FORWARD) == 0
    shared = operations(mixture(), etp=2, tp=2, **fewer)["moe.dispatch"]
    assert exchanges(shared, "etp")[0] == ("all_gather", "forward", 2 * copies * size)


def test_dispatch_in_fp8_before_other_types() -> None:
    """In 16 bits what arrives is cast back; in 4 it is cast to them."""
    size = 1.03125
    plain = operations(mixture(), dispatch_bytes=size)
    copies = 128 * 64
    moved_rows = (64 + 128) * 64 * size + 2 * copies * size
    casts = (64 * 64 + copies) * (2 + size)
    assert moved(plain["moe.dispatch"], FORWARD) == moved_rows + casts
    assert moved(plain["moe.up"], FORWARD) == 0
    assert saved([plain["moe.up"]]) == copies * 2
    fewer = operations(mixture(), dispatch_bytes=size, quantization=NVFP4)
    assert moved(fewer["moe.up"], FORWARD) == copies * (size + 2 * 0.5625)


WORK: dict[str, Any] = {
    "sequences": st.integers(1, 8),
    "seq_len": st.sampled_from([32, 64, 1000]),
    "tp": st.sampled_from([1, 2, 4]),
    "etp": st.sampled_from([1, 2]),
    "ep": st.sampled_from([1, 2, 4]),
    "sequence_parallel": st.booleans(),
    "regather": st.booleans(),
    "fused_activation": st.booleans(),
    "flash": st.booleans(),
}


@examples(40)
@given(
    work=st.fixed_dictionaries(WORK),
    quantization=st.sampled_from(list(SIZE)),
    model=st.sampled_from([samples.model(), samples.llama(), mixture(shared_ffn=32)]),
)
def test_quantized_layers_never_save_or_communicate_more(
    work: dict[str, Any], quantization: int, model: Model
) -> None:
    """Work, weights and the order of operations stay; gathers of gradients may grow by scales."""
    plain = operations(model, **work)
    fewer = operations(model, quantization=quantization, **work)
    assert list(plain) == list(fewer)
    for name, before in plain.items():
        after = fewer[name]
        assert after.saved_bytes[0] <= before.saved_bytes[0]
        assert after.parameters[0] == before.parameters[0]
        assert 0 <= after.read_quantized[0] <= after.parameters[0]
        for phase in Phase:
            assert samples.flops(after, phase) == samples.flops(before, phase)
        assert after.working_bytes[0] >= before.working_bytes[0]
        for one, other in zip(before.collectives, after.collectives, strict=True):
            most = 1.03125 if one.kind == "all_gather" else 1.0
            assert other.bytes[0] <= most * one.bytes[0]

"""Products of experts: together in one kernel, or each in a kernel of its own, by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from samples import TFLOPS, column, operations
from shardwise.config.strategy_table import Table
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.matmul import MatmulRates, matmul_times, separate_matmul_times
from shardwise.cost.operations import Machine, operation_cost
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import Phase
from shardwise.parallel.placement import place

fast = examples(60)
EXPERTS: dict[str, Any] = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"}


def grouped(
    batch: float, m: float, n: float, k: float, moved: float = 0.0, **given: Any
) -> list[float]:
    """Compute, memory and whole time on 100 TFLOP/s and 1 TB/s over 100 multiprocessors."""
    kernels, weight_grad = given.pop("kernels", None), given.pop("weight_grad", False)
    plain = {"efficiency": 1, "fill_depth": 0, "fill_tiles": 0, "launch_s": 0} | given
    figures: dict[str, Any] = {name: column(value) for name, value in plain.items()}
    rates = MatmulRates(
        peak=column(100 * TFLOPS),
        memory_rate=column(1e12),
        multiprocessors=100,
        **figures,
    )
    shape = column(m), column(n), column(k), column(batch), column(moved)
    if kernels is None:
        times = matmul_times(*shape, rates, weight_grad=weight_grad)
    else:
        apart = {"kernels": column(kernels), "weight_grad": weight_grad}
        times = separate_matmul_times(*shape, rates, **apart)
    return [float(part[0]) for part in times]


def test_experts_in_one_kernel_fill_the_chip_together() -> None:
    """100 products of a tile each are one tile on each of 100 multiprocessors: 2^0.4 as long."""
    work = 100 * 2 * 128 * 128 * 500 / 1e14
    whole = grouped(100, 128, 128, 500, fill_tiles=1, launch_s=1e-6)[2]
    assert whole == pytest.approx(1e-6 + work * 2**0.4)


def test_experts_in_a_kernel_each_fill_the_chip_one_by_one() -> None:
    """Each has a hundredth of the tiles, (1 + 100^2.5)^0.4 as long, and a launch of its own."""
    work = 100 * 2 * 128 * 128 * 500 / 1e14
    times = grouped(100, 128, 128, 500, fill_tiles=1, launch_s=1e-6, kernels=100)
    slowed = work * (1 + 100**2.5) ** 0.4
    assert times == pytest.approx([slowed, 0, 100e-6 + slowed])


def test_kernels_share_products_and_bytes_evenly() -> None:
    """6 products in 3 kernels take three times two products, of compute, memory and together."""
    shape = {"fill_tiles": 0.7, "launch_s": 2e-6, "fill_depth": 30}
    two = grouped(2, 300, 500, 400, 3e6, **shape)
    six = grouped(6, 300, 500, 400, 9e6, kernels=3, **shape)
    assert six == pytest.approx([3 * part for part in two])
    gradient = grouped(6, 300, 500, 400, 9e6, kernels=3, weight_grad=True, **shape)
    assert gradient[0] == pytest.approx(six[0] / 0.95)


def test_no_products_take_no_time() -> None:
    """Neither launch."""
    assert grouped(0, 128, 128, 128, launch_s=1e-6, kernels=4) == [0, 0, 0]


@fast
@given(
    st.integers(1, 64),
    st.integers(1, 4000),
    st.floats(0, 2),
    st.floats(0, 1e-5),
    st.floats(1e3, 1e9),
)
def test_more_kernels_are_never_faster(
    batch: int, tokens: int, fill_tiles: float, launch_s: float, moved: float
) -> None:
    """Between one kernel for all and one for each; padding is the same in both."""
    given = {"fill_tiles": fill_tiles, "launch_s": launch_s}
    together = grouped(batch, tokens, 512, 256, moved, **given)
    apart = grouped(batch, tokens, 512, 256, moved, kernels=batch, **given)
    half = grouped(batch, tokens, 512, 256, moved, kernels=(batch + 1) / 2, **given)
    assert together[2] <= half[2] * (1 + 1e-12) <= apart[2] * (1 + 1e-11)
    assert apart[1] == pytest.approx(together[1])
    if fill_tiles == 0:
        assert apart[0] == pytest.approx(together[0])


def expert_compute_s(moe: dict[str, Any] | None = None, **stack: Any) -> float:
    """Compute time of the first product of 8 experts on one rank, forward [s]."""
    layer = samples.layer() | {"mlp": None, "moe": EXPERTS | (moe or {})}
    model = samples.llama(layers=[layer])
    table = Table.of(model, {"dp": 1, "mbs": 1, "gbs": 1, "stack": samples.stack(**stack)})
    system = samples.system()
    machine = Machine.of(system, table)
    times = CollectiveTimes(Links.of(system, table, place(system, table)))
    operations = layer_operations(model, model.layers[0], rank_work(table))
    up = next(o for o in operations if o.name == "moe.up")
    return float(operation_cost(up, machine, times).kernels[0].compute_s[0])


def test_large_products_lose_the_additional_time() -> None:
    """Twice as long at any size; with half of it left at the product's own FLOPs, 1.5 times."""
    plain = expert_compute_s()
    assert expert_compute_s(grouped_time_factor=2) == pytest.approx(2 * plain)
    own = 2 * 8 * 64 * 64  # each of 8 experts has 8 of 32 tokens twice, 64 wide, 64 inner columns
    for times, factor in ((1, 1.5), (3, 1.75), (1e9, 2)):
        found = expert_compute_s(grouped_time_factor=2, grouped_half_flops=times * own)
        assert found == pytest.approx(factor * plain)


def test_biases_of_experts_have_kernels_of_their_own() -> None:
    """28 and 40 bytes for each of 128 rows of 64; none in a fused kernel or without biases."""
    layer = samples.layer() | {"mlp": None, "moe": EXPERTS | {"bias": True}}
    model = samples.llama(layers=[layer])
    apart = operations(model, adds_expert_bias=True)["moe.output_bias"]
    assert [float(kernel.bytes[0]) for kernel in apart.kernels] == [128 * 64 * 28, 128 * 64 * 40]
    assert [kernel.phase for kernel in apart.kernels] == [Phase.FORWARD, Phase.INPUT_GRAD]
    assert "moe.output_bias" not in operations(model, adds_expert_bias=False)
    plain = samples.llama(layers=[layer | {"moe": EXPERTS}])
    assert "moe.output_bias" not in operations(plain, adds_expert_bias=True)

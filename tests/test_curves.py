"""Efficiency curves by the size of an operation, and the ways in which times join, by hand."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from samples import BYTES, GB, MATRIX, column, curve, curved, exchange
from shardwise import System
from shardwise.arrays import Floats
from shardwise.config.strategy_table import Table
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.component_costs import operation_costs
from shardwise.cost.curve import RowCurves, joined_times, share_at
from shardwise.cost.kernels import KernelRates, memory_bound_times
from shardwise.cost.operations import Machine
from shardwise.ops.operation import (
    CollectiveKind,
    FlashAttention,
    Kernel,
    Matmul,
    MemoryBound,
    Phase,
)
from shardwise.parallel.placement import place

pytestmark = pytest.mark.any_software

fast = examples(60)


def rates(machine: System, *dtypes: str, **stack: Any) -> KernelRates:
    columns = {
        "dp": 1,
        "gbs": 1,
        "dtype": list(dtypes) or ["bf16"],
        "stack": samples.stack(**stack),
    }
    return KernelRates.of(machine, Table.of(samples.model(), columns))


def matmul(m: float, n: float, k: float, batch: float = 1, phase: Phase = Phase.FORWARD) -> Matmul:
    sides = {"m": column(m), "n": column(n), "k": column(k), "batch": column(batch)}
    return Matmul(phase=phase, **sides, input_bytes=column(2), output_bytes=column(2))


def flash(phase: Phase = Phase.FORWARD, heads: float = 8) -> FlashAttention:
    """Two sequences of 256 tokens, 8 heads of width 64: 2 x 2 x 2 x 8 x 256^2 x 64 / 2 FLOPs."""
    return FlashAttention(
        phase=phase,
        sequences=column(2),
        seq_len=column(256),
        keys=column(256),
        heads=column(heads),
        kv_heads=column(8),
        head_dim=64.0,
        v_head_dim=64.0,
        causal=True,
        element_bytes=column(2),
    )


def elementwise(moved: float, flops: float) -> MemoryBound:
    return MemoryBound(phase=Phase.FORWARD, bytes=column(moved), flops=column(flops))


def times(machine: System, kernel: Kernel, *dtypes: str) -> list[float]:
    """Compute, memory and whole time in a table of one row."""
    return [float(part[0]) for part in rates(machine, *dtypes).times(kernel)]


def test_step_takes_the_last_point_at_or_below_the_size() -> None:
    """0.1 up to 999,999, 0.5 from a million, 0.8 from a billion on, however large."""
    sizes = column(0, 1, 999_999, 1e6, 1e9 - 1, 1e9, 1e30)
    assert share_at(curve(MATRIX), sizes).tolist() == [0.1, 0.1, 0.1, 0.5, 0.5, 0.8, 0.8]


def test_interpolation_is_linear_in_the_logarithm() -> None:
    """From 0.1 at 0, which counts as 1, half way to a million is a thousand: 0.3."""
    sizes = column(0, 1, 1e3, 1e6, 1e7, 1e9, 1e12)
    expected = [0.1, 0.1, 0.3, 0.5, 0.6, 0.8, 0.8]
    shares = share_at(curve(MATRIX, interpolate=True), sizes)
    np.testing.assert_allclose(shares, expected, rtol=1e-15)


def test_without_a_curve_the_peak_is_reached() -> None:
    """No curve: a share of 1 at any size."""
    assert share_at(None, column(0, 5, 1e20)).tolist() == [1, 1, 1]


def test_each_row_has_the_curve_of_its_type() -> None:
    """Type 0 has none, type 1 the steps, type 2 a constant."""
    by_type = (None, curve(MATRIX), curve([[0, 0.9]]))
    rows = RowCurves(curves=by_type, codes=np.array([0, 1, 2, 1, 0]))
    assert rows.shares(column(1e7, 1e7, 1e7, 1, 0)).tolist() == [1, 0.5, 0.9, 0.1, 1]
    assert rows.shares(column(1e7)).tolist() == [1, 0.5, 0.9, 0.5, 1]


def test_compute_and_memory_join_as_the_machine_says() -> None:
    """3 s and 4 s: 5 s with exponent 2, the larger, or their sum."""
    both = column(3), column(4)
    assert joined_times(*both, "measured", 2) == pytest.approx(5)
    assert joined_times(*both, "measured", math.inf) == 4
    assert joined_times(*both, "roofline", 2) == 4
    assert joined_times(*both, "no_overlap", 2) == 7


def test_product_on_a_curve_takes_its_flops_whatever_its_shape() -> None:
    """65 x 100 x 50 is not padded: 650,000 FLOPs at 0.1; two of them pass a million: at 0.5."""
    moved = 2 * (65 * 50 + 100 * 50 + 65 * 100)
    compute, memory, whole = times(curved(), matmul(65, 100, 50))
    assert compute == pytest.approx(650_000 / (0.1 * 1e14))
    assert memory == pytest.approx(moved / (0.25 * 1e12))
    assert whole == pytest.approx(compute + memory)
    twice = matmul(65, 100, 50, batch=2, phase=Phase.WEIGHT_GRAD)
    assert times(curved(), twice)[0] == pytest.approx(1_300_000 / (0.5 * 1e14))
    # 1000 x 1000 x 1000 moves 6 MB, at half the bandwidth.
    large = times(curved(processing="roofline"), matmul(1000, 1000, 1000))
    assert large == pytest.approx([2e9 / 0.8e14, 6e6 / 0.5e12, 2e9 / 0.8e14])
    assert times(curved(processing="measured"), matmul(1000, 1000, 1000))[2] == pytest.approx(
        ((2e9 / 0.8e14) ** 2.3 + (6e6 / 0.5e12) ** 2.3) ** (1 / 2.3)
    )
    assert times(curved(), matmul(0, 1000, 1000)) == [0, 0, 0]


def test_attention_without_a_closed_form_is_a_product() -> None:
    """Its FLOPs on the matrix curve plus its bytes; five products instead of two backward."""
    flops = 2 * 2 * 0.5 * 2 * 8 * 256**2 * 64
    moved = 2 * 256 * 2 * 16 * 64 * 2
    forward = times(curved(), flash())
    expected = [flops / 0.5e14, moved / 0.5e12, flops / 0.5e14 + moved / 0.5e12]
    assert forward == pytest.approx(expected)
    back = times(curved(), flash(Phase.INPUT_GRAD))
    assert back[:2] == pytest.approx([2.5 * flops / 0.5e14, 2 * moved / 0.5e12])
    assert times(curved(), flash(heads=0)) == [0, 0, 0]


def test_elementwise_kernels_use_vector_and_memory_curves() -> None:
    """5 M FLOPs at half of 10 TFLOP/s and 0.5 MB at a quarter of 1 TB/s add up, or the larger."""
    kernel = elementwise(5e5, 5e6)
    assert times(curved(), kernel) == pytest.approx([1e-6, 2e-6, 3e-6])
    assert times(curved(processing="roofline"), kernel)[2] == pytest.approx(2e-6)
    assert times(curved(processing="measured"), kernel)[2] == pytest.approx(2e-6)
    own = {"efficiency": 0.5, "launch": 1e-6}
    assert times(curved(memory_bound=own), kernel)[1:] == pytest.approx([4e-6, 6e-6])
    moving_twice = rates(curved(), memory_traffic_factor=2).times(kernel)
    assert moving_twice[1] == pytest.approx(4e-6)


def test_a_type_without_vector_rate_runs_as_fp32() -> None:
    """bf16 as fp32, with its curve; fp16 has a rate of its own, which no curve lowers."""
    figures = {
        "matrix": {"bf16": 1e14, "fp16": 1e14},
        "matmul_curve": {"bf16": {"points": MATRIX}, "fp16": {"points": MATRIX}},
        "vector": {"fp32": 1e13, "fp16": 2e13},
    }
    compute = rates(curved(**figures), "bf16", "fp16").times(elementwise(1, 1e7))[0]
    np.testing.assert_allclose(compute, [1e7 / 0.5e13, 1e7 / 2e13])
    only = curved(**figures | {"vector": {"fp16": 2e13, "bf16": 3e13}, "vector_curve": {}})
    compute = rates(only, "bf16", "fp16").times(elementwise(1, 1e7))[0]
    np.testing.assert_allclose(compute, [1e7 / 3e13, 1e7 / 2e13])


def test_closed_forms_and_curves_stand_side_by_side() -> None:
    """A row of each type is timed as on a machine that knows only its own way."""
    closed = samples.system(matmul={"fill_tiles": 1, "launch": 1e-6, "memory_efficiency": 0.5})
    fields = closed.to_dict()
    chip = fields["accelerator"]
    chip["matmul_curve"] = {"bf16": {"points": MATRIX}}
    del chip["matmul"]["bf16"]
    mixed = System.validated(fields)
    for phase in Phase:
        product = matmul(1000, 500, 700, phase=phase)
        both = [part.tolist() for part in rates(mixed, "bf16", "fp16").times(product)]
        on_curve = curved(processing="measured", memory=chip["memory"])
        assert [part[0] for part in both] == pytest.approx(times(on_curve, product))
        assert [part[1] for part in both] == times(closed, product, "fp16")


def test_kernels_multiply_their_own_share_with_that_of_the_bytes() -> None:
    """6 MB at half of the bandwidth, of which the product gets half and attention a fifth."""
    fields = samples.system(
        matmul={"memory_efficiency": 0.5}, attention={"memory_efficiency": 0.2}
    ).to_dict()
    fields["accelerator"]["memory"][0]["efficiency"] = {"points": BYTES}
    fields["accelerator"]["processing"] = "no_overlap"
    machine = System.validated(fields)
    compute, memory, whole = times(machine, matmul(1000, 1000, 1000))
    assert memory == pytest.approx(6e6 / 0.25e12)
    assert whole == pytest.approx(compute + memory)
    moved = 2 * 256 * 2 * 16 * 64 * 2
    compute, memory, whole = times(machine, flash())
    assert memory == pytest.approx(moved / 0.1e12)
    assert whole == pytest.approx(compute + memory)
    assert times(machine, flash(Phase.INPUT_GRAD))[0] == pytest.approx(2.5 * compute)


def test_the_rate_of_large_transfers_is_that_of_the_last_point() -> None:
    """The optimizer moves gigabytes: 0.75 of 1 TB/s, half of it with twice the traffic."""
    for interpolate in (False, True):
        efficiency = {"points": BYTES, "interpolate": interpolate}
        hbm = {"name": "hbm", "capacity": 8e10, "bandwidth": 1e12, "efficiency": efficiency}
        table = Table.of(
            samples.model(),
            {"dp": 1, "gbs": 1, "stack": samples.stack(memory_traffic_factor=2)},
        )
        described = curved(memory=[hbm])
        machine = Machine.of(described, table)
        assert machine.memory_rate == pytest.approx(0.375e12)


def scaled(scale: float, offset: float, **fields: Any) -> dict[str, Any]:
    """A tier whose group collectives pass scale (1 + offset / n) of the buffer."""
    tier = samples.tier(**{"scale": scale, "offset": offset} | fields)
    message = {n: v for n, v in tier["collectives"]["p2p"].items() if n != "offset"}
    return tier | {"collectives": tier["collectives"] | {"p2p": message}}


def test_scale_and_offset_give_the_bytes_that_pass() -> None:
    """1.5 (1 - 1/4) of 8 GB at 100 GB/s; the same for every kind; 2 (1 + 1/4) upwards."""
    for kind in list(CollectiveKind)[:4]:
        assert exchange(kind, 8 * GB, [4], scaled(1.5, -1)) == pytest.approx(0.09)
        assert exchange(kind, 8 * GB, [4], scaled(2, 1)) == pytest.approx(0.2)
    assert exchange(CollectiveKind.P2P, 8 * GB, [4], scaled(1.5, -1)) == pytest.approx(0.12)
    assert exchange(CollectiveKind.P2P, 8 * GB, [4], samples.tier()) == pytest.approx(0.08)
    message = transfer_time(samples.system(network=[scaled(1.5, -1)]), column(8e9), np.array([[2]]))
    assert message == pytest.approx(0.12)


def test_each_tier_passes_bytes_in_its_own_way() -> None:
    """16 members, 4 per domain: inside 2 S at 100 GB/s, between 15/16 S at 4 x 10 GB/s."""
    inside, between = scaled(2, 0, domain=4), samples.tier(bandwidth=10 * GB)
    gather = CollectiveKind.ALL_GATHER
    assert exchange(gather, 16 * GB, [4, 16], inside, between) == pytest.approx(15 / 40)
    slower = scaled(10, 2, domain=4)
    # The members are those of the whole group, 16.
    assert exchange(gather, 16 * GB, [4, 16], slower, between) == pytest.approx(1.6 * 1.125)
    assert exchange(gather, 16 * GB, [1, 16], slower, between) == pytest.approx(1.5)


def test_latency_and_transfer_join_by_the_exponent_of_the_outermost_tier() -> None:
    """Exponent 1 adds them; a group that stays inside joins by the exponent there."""
    inside = samples.tier(domain=4, latency=1) | {"join_exponent": 1}
    between = samples.tier(latency=1, bandwidth=10 * GB) | {"join_exponent": 0.5}
    machine = samples.system(network=[inside, between], node=4)
    extents = np.array([[4, 4, 1], [4, 16, 4]])
    size = np.array([100 * GB / 0.75, 40 * GB / (15 / 16), 10 * GB / 0.75])
    whole = collective_time(machine, CollectiveKind.ALL_GATHER, size, extents)
    # Transfers of 1 s each; latencies of 1, 2 and 1 s.
    np.testing.assert_allclose(whole, [2, (math.sqrt(2) + 1) ** 2, 4])
    sent = transfer_time(machine, np.array([100 * GB, 10 * GB, 10 * GB]), extents)
    np.testing.assert_allclose(sent, [2, 4, 4])


sizes = st.floats(0, 1e13)
curves = st.lists(
    st.tuples(st.floats(1.5, 1e12), st.floats(0.01, 1)),
    max_size=6,
    unique_by=lambda p: math.log10(p[0]),
).map(lambda points: [(0.0, 0.3), *sorted(points)])


def looked_up(points: list[tuple[float, float]], size: float, *, interpolate: bool) -> float:
    """The share by the definition, point by point."""
    found = points[0][1]
    for (low, before), (high, after) in pairwise([*points, (math.inf, points[-1][1])]):
        if low <= size < high:
            if not interpolate:
                return before
            if high == math.inf:
                return before
            start, end, here = (math.log10(max(x, 1)) for x in (low, high, size))
            return before + (after - before) * (here - start) / (end - start)
    return found


@fast
@given(curves, st.lists(sizes, min_size=1, max_size=8), st.booleans())
def test_share_is_that_of_a_plain_look_up(
    points: list[tuple[float, float]], given_sizes: list[float], interpolate: bool
) -> None:
    """Arrays give what one look-up after another gives, also exactly at a point."""
    asked = [*given_sizes, *(size for size, _ in points)]
    shares: Floats = share_at(curve(points, interpolate=interpolate), column(*asked))
    expected = [looked_up(points, size, interpolate=interpolate) for size in asked]
    np.testing.assert_allclose(shares, expected, rtol=1e-9)


@fast
@given(curves, sizes, st.floats(1, 1e6), st.booleans())
def test_an_ascending_curve_gives_larger_operations_larger_shares(
    points: list[tuple[float, float]], size: float, times_larger: float, interpolate: bool
) -> None:
    """Shares stay within those of the curve, and ascend with it."""
    ascending = [
        (size, share)
        for (size, _), share in zip(points, sorted(share for _, share in points), strict=True)
    ]
    shares = share_at(curve(ascending, interpolate=interpolate), column(size, size * times_larger))
    assert ascending[0][1] - 1e-12 <= shares[0] <= shares[1] + 1e-12
    assert shares[1] <= ascending[-1][1] + 1e-12


@fast
@given(curves, st.lists(st.tuples(st.integers(0, 2), sizes), min_size=1, max_size=8), st.booleans())
def test_rows_of_several_types_do_not_touch_one_another(
    points: list[tuple[float, float]], rows: list[tuple[int, float]], interpolate: bool
) -> None:
    """A column of types gives what each row alone gives."""
    by_type = (curve(points, interpolate=interpolate), None, curve(MATRIX))
    codes, asked = np.array([code for code, _ in rows]), column(*(size for _, size in rows))
    shares = RowCurves(curves=by_type, codes=codes).shares(asked)
    alone = [float(share_at(by_type[code], column(size))[0]) for code, size in rows]
    assert shares.tolist() == alone


@fast
@given(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.floats(1, 4))
def test_no_overlap_is_slowest_and_roofline_fastest(
    compute: float, memory: float, exponent: float
) -> None:
    """max <= (c^x + m^x)^(1/x) <= c + m for every x of 1 and more."""
    both = column(compute), column(memory)
    least, between, most = (
        float(joined_times(*both, way, exponent)[0])
        for way in ("roofline", "measured", "no_overlap")
    )
    assert least * (1 - 1e-9) <= between <= most * (1 + 1e-9)


@fast
@given(
    st.sampled_from(list(CollectiveKind)[:4]),
    st.integers(2, 64),
    st.floats(0, 1e10),
    st.floats(0.1, 3),
    st.floats(-1, 1),
    st.floats(0, 1e-3),
)
def test_join_one_is_latency_plus_bytes_over_rate(
    kind: CollectiveKind, members: int, size: float, scale: float, offset: float, latency: float
) -> None:
    """Calculon's time of a network operation, with the size-independent efficiency of 0.65."""
    tier = scaled(scale, offset, latency=latency, efficiency={1: 0.65}) | {"join_exponent": 1}
    time = exchange(kind, size, [members], tier)
    expected = latency + size * scale * (1 + offset / members) / (100 * GB * 0.65)
    assert time == pytest.approx(expected if size > 0 else 0, rel=1e-12)


def test_compute_without_work_joins_the_bytes() -> None:
    """2 us beside 3 us of compute and 4 us of bytes: the larger, or their sum; launches aside."""
    bytes_, flops, latency = column(4e6), column(3e8), 2e-6
    for processing, joined in (("measured", 5e-6), ("roofline", 5e-6), ("no_overlap", 9e-6)):
        told = memory_bound_times(
            bytes_,
            flops,
            memory_rate=1e12,
            vector_rate=1e14,
            launch_s=1e-6,
            compute_latency_s=latency,
            processing=processing,
        )
        assert [float(part[0]) for part in told] == pytest.approx([5e-6, 4e-6, 1e-6 + joined])
    costs = {}
    for processing in ("no_overlap", "roofline"):
        for latency in (0.0, 1e-7):
            machine = samples.system(processing=processing, compute_latency=latency)
            table = Table.of(samples.model(), {"dp": 1, "gbs": 1, "stack": samples.stack()})
            parts = operation_costs(samples.model(), machine, table, place(machine, table))
            kernels = [kernel for _, _, listed in parts for one in listed for kernel in one.kernels]
            costs[processing, latency] = [(k.compute_s, k.memory_s, k.time_s) for k in kernels]
    pairs = zip(costs["no_overlap", 0.0], costs["no_overlap", 1e-7], strict=True)
    for (*_, time), (*_, late) in pairs:
        assert late == pytest.approx(time + 1e-7 if time > 0 else 0)
    pairs = zip(costs["roofline", 0.0], costs["roofline", 1e-7], strict=True)
    for (compute, memory, time), (*_, late) in pairs:
        assert late == pytest.approx(max(compute + 1e-7, memory) if time > 0 else 0)
    hidden = [late for _, memory, late in costs["roofline", 1e-7] if late == memory > 1e-7]
    assert hidden

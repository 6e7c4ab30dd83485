"""Times of kernels and exchanges, by hand on round machines, and what must hold on any."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import GB, column, exchange, flash, product
from shardwise.config.strategy_table import Table
from shardwise.config.system import FusedAttention, System
from shardwise.cost.attention import head_efficiency
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.component_costs import component_costs, operation_costs
from shardwise.cost.kernels import memory_bound_times
from shardwise.cost.operations import OperationCost
from shardwise.ops.operation import CollectiveKind, Phase
from shardwise.parallel.placement import place

KINDS = list(CollectiveKind)
fast = examples(60)


def test_large_product_runs_at_its_share_of_the_peak() -> None:
    """2 m n k / (P e), plus launch; the gradient of weights at 0.95 of the efficiency."""
    assert product(1280, 640, 1000) == pytest.approx(2 * 1280 * 640 * 1000 / 1e14)
    half = product(1280, 640, 1000, efficiency=0.5, launch_s=1e-6)
    assert half == pytest.approx(1e-6 + 2 * 1280 * 640 * 1000 / 5e13)
    gradient = product(1280, 640, 1000, weight_grad=True)
    assert gradient == pytest.approx(2 * 1280 * 640 * 1000 / 1e14 / 0.95)


def test_product_pays_for_padding_and_fill() -> None:
    """65 x 100 is computed as 128 x 128; a fill of 24 elements lengthens a reduction of 1000."""
    assert product(65, 100, 1000) == pytest.approx(2 * 128 * 128 * 1000 / 1e14)
    assert product(64, 64, 1000, fill_depth=24) == pytest.approx(2 * 64 * 64 * 1024 / 1e14)


def test_product_with_few_tiles_leaves_multiprocessors_idle() -> None:
    """1280 x 1280 is one 128 x 128 tile on each of 100: at the half-full mark, 2^0.4 as long."""
    whole = 2 * 1280 * 1280 * 500 / 1e14
    assert product(1280, 1280, 500, fill_tiles=1) == pytest.approx(whole * 2**0.4)
    # 16,512 rows are 129 tiles, which is 1.29 for each multiprocessor.
    tall = 2 * 16_512 * 128 * 500 / 1e14
    assert product(16_512, 128, 500, fill_tiles=1) == pytest.approx(
        tall * (1 + (1 / 1.29) ** 2.5) ** 0.4
    )
    # Ten products of a tenth of the tiles fill it as well.
    tenth = product(128, 1280, 500, batch=10, fill_tiles=1)
    assert tenth == pytest.approx(whole * 2**0.4)


def test_product_joins_compute_and_memory() -> None:
    """Equal times join to 2^(1/2.3); bytes alone take bytes / bandwidth."""
    compute = 2 * 640 * 640 * 1000 / 1e14
    assert product(640, 640, 1000, compute * 1e12) == pytest.approx(compute * 2 ** (1 / 2.3))
    assert product(64, 64, 1, 1e9) == pytest.approx(1e-3, rel=1e-4)


def test_attention_works_through_tiles_of_queries() -> None:
    """256 queries are 2 tiles of 128, which see (256 + 128) / 2 keys when causal and 256 if not."""
    per_key = 4 * 128 * 64 / 1e14
    assert flash(2, 256, 8) == pytest.approx(2 * 8 * 2 * 192 * per_key)
    assert flash(2, 256, 8, causal=False) == pytest.approx(2 * 8 * 2 * 256 * per_key)
    assert flash(2, 129, 8) == pytest.approx(2 * 8 * 2 * (129 + 128) / 2 * per_key)
    assert flash(2, 256, 8, backward=True) == pytest.approx(3 * flash(2, 256, 8))
    assert flash(2, 256, 8, factor=1.25, launch=1e-6) == pytest.approx(
        1e-6 + 1.25 * flash(2, 256, 8)
    )


def test_attention_waits_for_the_longest_tile_and_for_memory() -> None:
    """Even work equal to the longest tile joins to 2^(1/1.5), equal to memory to 2^(1/1.2)."""
    # One sequence of 128 x 100 heads: one tile per multiprocessor, 128 keys each, as the longest.
    even = 128 * 4 * 128 * 64 * 100 / 1e14
    assert flash(1, 128, 100, longest_weight=1) == pytest.approx(even * 2 ** (1 / 1.5))
    assert flash(1, 128, 100, even * 1e12) == pytest.approx(even * 2 ** (1 / 1.2))


def test_head_width_between_two_known_is_interpolated_in_its_logarithm() -> None:
    """0.4 at 64 and 0.6 at 256 give 0.5 at 128; outside, the nearest holds."""
    described = {"tile": 128, "longest_weight": 0, "memory_efficiency": 1, "launch": 0}
    shares = {"efficiency": {256: 0.6, 64: 0.4}, "backward_ratio": 3}
    kernel = FusedAttention.validated(described | shares)
    assert head_efficiency(kernel, 128) == pytest.approx(0.5)
    assert [head_efficiency(kernel, width) for width in (32, 64, 256, 512)] == [0.4, 0.4, 0.6, 0.6]


def test_memory_bound_kernel_takes_the_longer_of_bytes_and_flops() -> None:
    """Launch plus 1 s of bytes, or plus 2 s of vector FLOPs; nothing moved, nothing run."""
    rates = {"memory_rate": 1e12, "vector_rate": 1e13, "launch_s": 0.5}
    times = memory_bound_times(column(1e12, 1e12, 0), column(1e13, 2e13, 0), **rates)
    np.testing.assert_allclose(times, [[1, 2, 0], [1, 1, 0], [1.5, 2.5, 0]])


def test_collective_passes_its_part_of_the_buffer() -> None:
    """Of 8 GB among 4 at 100 GB/s, 3/4 pass each member; an all-reduce passes it twice."""
    for kind in (
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
    ):
        assert exchange(kind, 8 * GB, [4], samples.tier()) == pytest.approx(0.06)
    assert exchange(CollectiveKind.ALL_REDUCE, 8 * GB, [4], samples.tier()) == pytest.approx(0.12)


def test_latency_grows_with_members_and_joins_with_the_transfer() -> None:
    """10 us + 2 x 1 us for 4; equal to the transfer, the join is 2^(1/0.6)."""
    tier = samples.tier(latency=10e-6, latency_per_member=1e-6)
    gather = CollectiveKind.ALL_GATHER
    assert exchange(gather, 1e-9, [4], tier) == pytest.approx(12e-6, rel=1e-3)
    size = 12e-6 * 100 * GB / 0.75
    assert exchange(gather, size, [4], tier) == pytest.approx(12e-6 * 2 ** (1 / 0.6))


def test_collective_over_two_tiers() -> None:
    """16 members, 4 in each domain: latencies add; the slower of NVLink and 4 NICs at once."""
    inside = samples.tier(domain=4, bandwidth=100 * GB, latency=1e-6, latency_per_member=0.5e-6)
    outside = samples.tier(bandwidth=10 * GB, latency=10e-6, latency_per_member=2e-6)
    instant = [t | {"collectives": samples.tier()["collectives"]} for t in (inside, outside)]
    gather, reduce = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE
    assert exchange(gather, 16 * GB, [4, 16], *instant) == pytest.approx(15 / (4 * 10))
    assert exchange(gather, 1e-9, [4, 16], inside, outside) == pytest.approx(2e-6 + 14e-6, rel=1e-3)
    # Beyond the first tier an all-reduce pays per doubling: log2(4) - 1 = 1.
    assert exchange(reduce, 1e-9, [4, 16], inside, outside) == pytest.approx(2e-6 + 12e-6, rel=1e-3)
    # A group with one member per domain has a single NIC; one that stays inside has NVLink.
    assert exchange(gather, 16 * GB, [1, 4], *instant) == pytest.approx(12 / 10)
    assert exchange(gather, 16 * GB, [4, 4], *instant) == pytest.approx(12 / 100)


def test_efficiency_is_interpolated_in_the_logarithm_of_the_members() -> None:
    """First tier by its members; beyond, by those in the domain inside: 2 of {1: .5, 4: 1}."""
    shares = {1: 0.5, 4: 1.0}
    first = samples.tier(domain=8, bandwidth=100 * GB, efficiency=shares)
    second = samples.tier(bandwidth=10 * GB, efficiency=shares)
    gather = CollectiveKind.ALL_GATHER
    assert exchange(gather, 8 * GB, [2, 2], first, second) == pytest.approx(4 / 75)
    assert exchange(gather, 8 * GB, [2, 8], first, second) == pytest.approx(7 / (2 * 0.75 * 10))
    assert exchange(gather, 8 * GB, [8, 8], first, second) == pytest.approx(7 / 100)


def test_accelerators_of_a_node_share_its_links() -> None:
    """4 links of 50 GB/s for 8 accelerators are 25 GB/s each; one gets half a bandwidth share."""
    shared = samples.tier(bandwidth=50 * GB, links_per_node=4)
    assert exchange(CollectiveKind.ALL_GATHER, 8 * GB, [4], shared) == pytest.approx(6 / 25)
    described = samples.system(network=[shared])
    halved = collective_time(
        described, CollectiveKind.ALL_GATHER, column(8e9), np.array([[4]]), 0.5
    )
    assert halved == pytest.approx(12 / 25)


def test_message_crosses_the_outermost_tier_its_axis_spans() -> None:
    """1 GB at 100 GB/s while all members share a domain, else at 10; never to oneself."""
    extents = np.array([[1, 4, 2, 1], [1, 4, 4, 4]])
    times = transfer_time(samples.system(), np.full(4, 1 * GB), extents)
    np.testing.assert_allclose(times, [0, 0.01, 0.1, 0.1])
    assert not transfer_time(samples.system(), np.zeros(4), extents).any()


def costs(machine: System, *, split: bool = False, **stack: Any) -> dict[str, OperationCost]:
    """Operations of GPT's layer on tp 4, without or with sequence parallelism."""
    software = samples.stack(**stack)
    columns = {"tp": 4, "dp": 1, "gbs": 2, "mbs": 2, "sequence_parallel": split, "stack": software}
    model = samples.model()
    table = Table.of(model, columns)
    parts = operation_costs(model, machine, table, place(machine, table))
    return {cost.operation.name: cost for _, _, group in parts for cost in group}


def exposed(cost: OperationCost) -> list[float]:
    return [float(e.exposed_s[0]) for e in cost.collectives if e.time_s[0] > 0]


def test_a_collective_is_exposed_unless_behind_a_product() -> None:
    """64 x 64 x 2 bytes all-reduced; a product of G seconds hides G of it, tp_hidden nothing."""
    machine = samples.system(memory=[{"name": "hbm", "capacity": 1e12, "bandwidth": 1e30}])
    alone = 2 * 3 / 4 * 8192 / 100e9
    plain, split, behind = (
        costs(machine),
        costs(machine, tp_hidden=0.25),
        costs(machine, tp_backward_async=True),
    )
    for name in ("mlp.up", "mlp.down"):
        assert exposed(plain[name]) == pytest.approx([alone])
        assert exposed(split[name]) == pytest.approx([alone])
    # Behind the gradient of the weights, 64 x 64 x 64 at 0.95 of the peak, and of the biases.
    products = 2 * 64**3 / 0.95e14 + 64 * 64 / 1e13
    assert exposed(behind["mlp.up"]) == pytest.approx([alone - products])
    assert exposed(behind["mlp.down"]) == pytest.approx([alone])


def test_a_split_collective_hides_a_share_and_at_most_its_product() -> None:
    """Half of 64 x 64 x 2 bytes, or the product's 2 x 64 x 64 x 64 FLOPs, whichever is less.

    Forward the gathered input, backward its gradient scattered and the gradient of the output
    gathered; the second gather of the input is no part of a split product.
    """
    memory = [{"name": "hbm", "capacity": 1e12, "bandwidth": 1e30}]
    machine = samples.system(memory=memory)
    alone = 3 / 4 * 8192 / 100e9
    product = 2 * 64**3 / 1e14
    assert 0.5 * alone > product
    part = costs(machine, split=True, tp_hidden=0.5)
    assert exposed(part["mlp.up"]) == pytest.approx([alone - product, alone, alone - product])
    assert exposed(part["mlp.down"]) == pytest.approx([alone - product] * 2)
    slight = costs(machine, split=True, tp_hidden=0.01)
    assert exposed(slight["mlp.down"]) == pytest.approx([0.99 * alone] * 2)
    # Between nodes there are no such pieces; nor where there is no product.
    apart = samples.system(memory=memory, network=[samples.tier(domain=2), samples.tier()])
    far = costs(apart, split=True, tp_hidden=0.5)
    assert exposed(far["mlp.down"]) == [
        float(e.time_s[0]) for e in far["mlp.down"].collectives[::2]
    ]
    assert exposed(part["embedding"]) == pytest.approx([alone] * 2)


@each_row(("attention", "forward", "backward"), [("flash", 10, 18), ("unfused", 13, 23)])
def test_launches_of_a_layer(attention: str, forward: int, backward: int) -> None:
    """A host of 1 ms per launch, far slower than the kernels, decides: 10 kernels forward, 18 back.

    Forward: 2 norms, 4 products, attention, activation, 2 residuals. Backward: the products twice
    and their 4 biases. Unfused: 2 products, softmax and dropout; 4 products, the two again.
    """
    model = samples.model()
    software = samples.stack(host_launch=1e-3, attention=attention)
    table = Table.of(model, {"dp": 1, "gbs": 1, "stack": software})
    machine = samples.system()
    layer = component_costs(model, machine, table, place(machine, table)).of_all().kinds[0].times
    assert layer.forward_s == pytest.approx(forward * 1e-3, rel=1e-6)
    assert layer.backward_s == pytest.approx(backward * 1e-3, rel=1e-6)


def test_recompute_runs_forward_or_the_core_again() -> None:
    """Full: forward with its exchanges; selective: the core's kernels and no exchange."""
    model, machine = samples.model(), samples.system()
    columns = {"recompute": ["none", "selective", "full"], "tp": 4, "dp": 1, "gbs": 1}
    table = Table.of(model, columns | {"stack": samples.stack()})
    layer = component_costs(model, machine, table, place(machine, table)).of_all().kinds[0].times
    parts = operation_costs(model, machine, table, place(machine, table))
    named = {cost.operation.name: cost for _, _, group in parts for cost in group}
    again = [0, named["attention.core"].kernel_s(Phase.FORWARD)[0], layer.forward_s[0]]
    np.testing.assert_allclose(layer.recompute_s, again)
    # A layer has four exchanges forward and six backward, all of the same bytes.
    forward, backward = layer.exposed_forward_s.tp, layer.exposed_backward_s.tp
    np.testing.assert_allclose(forward / forward[0], [1, 1, 1])
    np.testing.assert_allclose(backward / forward[0], [1.5, 1.5, 2.5])
    np.testing.assert_allclose(layer.alone_forward_s.tp, forward)
    np.testing.assert_allclose(layer.alone_backward_s.tp, backward)
    for axis in ("cp", "ep"):
        assert not getattr(layer.alone_backward_s, axis).any()


sizes = st.integers(1, 20_000)
shares = st.floats(0.05, 1)


@fast
@given(sizes, sizes, sizes, sizes, st.integers(1, 8), shares, st.floats(0, 4))
def test_longer_reduction_more_products_and_bytes_never_take_less_time(
    m: int, n: int, k: int, more: int, batch: int, efficiency: float, fill: float
) -> None:
    """Times grow with k, batch and bytes."""
    figures = {"efficiency": efficiency, "fill_tiles": fill, "fill_depth": 100}
    least = product(m, n, k, m * n, batch=batch, **figures)
    slack = 1 - 1e-12
    assert product(m, n, k + more, m * n, batch=batch, **figures) >= least * slack
    assert product(m, n, k, m * n, batch=batch + 1, **figures) >= least * slack
    assert product(m, n, k, m * n + more, batch=batch, **figures) >= least * slack


@fast
@given(sizes, sizes, sizes, sizes, st.floats(0, 4))
def test_wider_products_never_take_much_less_time(
    m: int, n: int, k: int, more: int, fill: float
) -> None:
    """Whole tiles more never take less; part of a tile may, by a quarter, where few tiles run."""
    least = product(m, n, k, fill_tiles=fill)
    assert product(m + more, n, k, fill_tiles=fill) >= 0.75 * least * (1 - 1e-12)
    assert product(m, n + more, k, fill_tiles=fill) >= 0.75 * least * (1 - 1e-12)
    tiles = 128 * -(-m // 128)
    assert product(tiles + 128 * more, n, k, fill_tiles=fill) >= product(
        tiles, n, k, fill_tiles=fill
    ) * (1 - 1e-12)


@fast
@given(sizes, sizes, sizes, sizes, shares, st.floats(0, 4))
def test_product_never_beats_the_roofline(
    m: int, n: int, k: int, batch: int, efficiency: float, fill: float
) -> None:
    """Neither 2 m n k over the peak nor bytes over the bandwidth."""
    moved = 2.0 * batch * (m * k + k * n + m * n)
    time = product(m, n, k, moved, batch=batch, efficiency=efficiency, fill_tiles=fill)
    assert time >= max(2.0 * batch * m * n * k / 1e14, moved / 1e12) * (1 - 1e-12)


@fast
@given(st.integers(1, 16), st.integers(1, 9000), st.integers(1, 64), shares, st.booleans())
def test_attention_never_beats_the_roofline_and_grows(
    sequences: int, seq_len: int, heads: int, share: float, causal: bool
) -> None:
    """At least 4 s^2 d / 2 FLOPs per causal head over the peak; more of anything takes longer."""
    figures = {"causal": causal, "efficiency": {64: share}, "longest_weight": 0.5}
    time = flash(sequences, seq_len, heads, 1e6, **figures)
    products = sequences * heads * 4 * 64 * seq_len**2 / (2 if causal else 1)
    assert time >= max(products / 1e14, 1e6 / 1e12)
    assert flash(sequences + 1, seq_len, heads, 1e6, **figures) >= time
    assert flash(sequences, seq_len + 1, heads, 1e6, **figures) >= time
    assert flash(sequences, seq_len, heads + 1, 1e6, **figures) >= time
    if seq_len >= 128:
        assert flash(sequences, seq_len, heads, 1e6, **figures | {"causal": False}) >= time


def test_no_work_takes_no_time() -> None:
    """A kernel that a row does not run costs nothing, not even its launch."""
    assert product(640, 640, 640, batch=0, launch_s=1) == 0
    assert flash(2, 256, 0, launch=1) == 0


groups = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda g: [2 ** g[0], 2 ** sum(g)])
latencies = st.floats(0, 1e-4)


@fast
@given(st.sampled_from(KINDS), groups, st.floats(0, 1e10), latencies, latencies, st.floats(1, 8))
def test_collectives(
    kind: CollectiveKind,
    extents: list[int],
    size: float,
    alpha: float,
    per_member: float,
    times: float,
) -> None:
    """One member or no bytes: no time. More bytes never faster, more bandwidth never slower."""

    def network(factor: float) -> list[dict[str, Any]]:
        rates = {"latency": alpha, "latency_per_member": per_member}
        inside = samples.tier(domain=64, bandwidth=factor * 100 * GB, efficiency={2: 0.5, 8: 0.8})
        return [inside, samples.tier(bandwidth=factor * 10 * GB, efficiency={1: 0.6}, **rates)]

    time = exchange(kind, size, extents, *network(1))
    assert (time == 0) or (size > 0 and extents[-1] > 1)
    assert exchange(kind, 0, extents, *network(1)) == exchange(kind, size, [1, 1], *network(1)) == 0
    assert exchange(kind, size * times, extents, *network(1)) >= time * (1 - 1e-12)
    assert exchange(kind, size, extents, *network(times)) <= time * (1 + 1e-12)
    # Never faster than the bytes that leave a member over all the bandwidth it has.
    passing = size * (extents[-1] - 1) / extents[-1]
    assert time >= passing / (extents[0] * 100 * GB)


@fast
@given(st.lists(st.tuples(groups, st.floats(0, 1e10)), min_size=1, max_size=6))
def test_rows_of_a_collective_do_not_touch_one_another(rows: list[tuple[list[int], float]]) -> None:
    """Evaluating a column equals evaluating each of its elements."""
    machine = samples.system(network=[samples.tier(domain=64), samples.tier(bandwidth=1 * GB)])
    extents = np.array([extents for extents, _ in rows]).T
    buffers = column(*(size for _, size in rows))
    for kind in KINDS:
        whole = collective_time(machine, kind, buffers, extents)
        single = [
            float(collective_time(machine, kind, buffers[[i]], extents[:, [i]])[0])
            for i in range(len(rows))
        ]
        assert whole.tolist() == single
    sent = transfer_time(machine, buffers, extents)
    alone = [transfer_time(machine, buffers[[i]], extents[:, [i]]) for i in range(len(rows))]
    assert sent.tolist() == np.concatenate(alone).tolist()

"""SimuMax's systems in the catalog: what their files say, and SimuMax's own times."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import column
from shardwise import System
from shardwise.arrays import Ints
from shardwise.config.strategy_table import Table
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.kernels import KernelRates
from shardwise.ops.operation import (
    CollectiveKind,
    FlashAttention,
    Kernel,
    Matmul,
    MemoryBound,
    Phase,
)
from test_catalog_systems import numeric_fields
from test_simumax_files import DATA

GIB = 2**30
fast = examples(60)
CATALOG = {"a100_pcie.json": "simumax-a100-pcie", "b200.json": "simumax-b200"}
PCIE, NCCL = System.load("simumax-a100-pcie"), System.load("simumax-b200")


@pytest.fixture(params=CATALOG)
def pair(request: pytest.FixtureRequest) -> tuple[System, System]:
    """A file and the entry of the catalog that was made from the whole of it."""
    return System.load(DATA / request.param), System.load(CATALOG[request.param])


def test_the_catalog_has_what_the_files_say(pair: tuple[System, System]) -> None:
    """Rates, least times, tiers; and every shape of the file, rounded to four digits."""
    file, entry = pair
    ours, theirs = file.accelerator, entry.accelerator
    assert ours.matrix == theirs.matrix
    assert ours.memory[0].bandwidth == theirs.memory[0].bandwidth
    assert ours.memory_bound == theirs.memory_bound
    for kind, rates in ours.memory_bound_class.items():
        found = theirs.memory_bound_class[kind]
        assert found.launch == rates.launch
        assert found.efficiency == pytest.approx(rates.efficiency, rel=1e-3)
    for mine, listed in zip(file.network, entry.network, strict=True):
        assert (mine.domain, mine.bandwidth) == (listed.domain, listed.bandwidth)
        for name, rates in mine.collectives.items():
            known = listed.collectives[name]
            assert (known.scale, known.offset) == (rates.scale, rates.offset)
            assert known.efficiency == pytest.approx(rates.efficiency, rel=1e-5)
            assert known.latency == pytest.approx(rates.latency, abs=1e-12)
            assert known.latency_per_member == pytest.approx(rates.latency_per_member, abs=1e-12)
    for field in ("matmul_table", "grouped_table", "attention_table"):
        few, many = getattr(ours, field)["bf16"], getattr(theirs, field)["bf16"]
        assert few.sizes == many.sizes
        assert few.fallback == pytest.approx(many.fallback, rel=1e-3)
        for phase, rows in few.rows.items():
            known = {row[:-1]: row[-1] for row in many.rows[phase]}
            for row in rows:
                assert known[row[:-1]] == pytest.approx(row[-1], rel=6e-4)


@each_row(
    ("name", "counts"),
    [
        ("simumax-a100-pcie", {"matmul_table": 183, "grouped_table": 12, "attention_table": 24}),
        ("simumax-b200", {"matmul_table": 514, "grouped_table": 76, "attention_table": 38}),
    ],
)
def test_every_shape_is_there(name: str, counts: dict[str, int]) -> None:
    """16 of 36 grouped ones were measured twice, with gradients of 2 and 4 bytes."""
    chip = System.load(name).accelerator
    for field, count in counts.items():
        rows = getattr(chip, field)["bf16"].rows.values()
        assert sum(map(len, rows)) == count


@each_row("name", CATALOG.values())
def test_every_number_has_a_source_and_no_source_is_astray(name: str) -> None:
    """As of all systems of the catalog."""
    system = System.load(name)
    numbers = list(numeric_fields(system.model_dump(exclude={"sources"})))
    assert [field for field in numbers if system.source_of(field) is None] == []
    for prefix in system.sources:
        assert any(f"{field}.".startswith(f"{prefix}.") for field in numbers), prefix


def test_the_capacity_is_that_of_the_accelerator() -> None:
    """Not the 80 of the file, which its own runs exceed; a file is taken at its word."""
    assert NCCL.accelerator.memory[0].capacity == 183359 * 2**20
    assert System.load(DATA / "b200.json").accelerator.memory[0].capacity == 80 * GIB


def seconds(system: System, kernel: Kernel) -> float:
    table = Table.of(samples.model(), {"dp": 1, "gbs": 1, "stack": samples.stack()})
    rates = KernelRates.of(system, table)
    assert not rates.missed(kernel).any()
    return float(rates.times(kernel)[2][0])


def product(phase: Phase, m: float, n: float, k: float, **given: Any) -> Matmul:
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k, "input_bytes": 2, "output_bytes": 2}
    sizes |= {"batch": 1, "output_bytes": 8 if phase is Phase.WEIGHT_GRAD else 2} | given
    grouped = bool(sizes.pop("grouped", False))
    columns: dict[str, Any] = {name: column(value) for name, value in sizes.items()}
    return Matmul(phase=phase, **columns, grouped=grouped)


FORWARD, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
# Times of SimuMax's formula at the efficiencies of its files [us].
PRODUCTS = [
    (NCCL, product(FORWARD, 4096, 10240, 8192), 0.6451614),
    (NCCL, product(INPUT, 4096, 8192, 10240), 0.4980446),
    (NCCL, product(WEIGHT, 8192, 10240, 4096), 0.5979462),
    (NCCL, product(WEIGHT, 8192, 10240, 4096, output_bytes=4), 0.6430972),
    (NCCL, product(FORWARD, 1232, 3072, 5120, batch=20, grouped=True), (0.5134154 + 0.4501892) / 2),
    (NCCL, product(INPUT, 1232, 5120, 3072, batch=20, grouped=True), (0.4215408 + 0.3895777) / 2),
    (NCCL, product(WEIGHT, 5120, 3072, 1232, batch=20, grouped=True), 0.3276001),
    (
        NCCL,
        product(WEIGHT, 5120, 3072, 1232, batch=20, grouped=True, output_bytes=4),
        0.384859,
    ),
    (PCIE, product(WEIGHT, 5120, 1536, 4096), 0.6244546),
    (PCIE, product(WEIGHT, 5120, 3072, 616, batch=40, grouped=True), 0.5196854),
]


@each_row(("system", "kernel", "share"), PRODUCTS)
def test_products_take_their_measured_time(system: System, kernel: Matmul, share: float) -> None:
    """FLOPs over the share of the peak: 2.25 and 0.312 PFLOP/s."""
    peak = system.accelerator.matrix["bf16"]
    expected = float(kernel.flops[0]) / (peak * share)
    assert seconds(system, kernel) == pytest.approx(expected, rel=1e-3)


def attention(phase: Phase, heads: int, kv_heads: int, head_dim: int) -> FlashAttention:
    """One causal sequence of 4,096, values 128 wide."""
    counts = {"sequences": 1, "seq_len": 4096, "keys": 4096, "heads": heads, "kv_heads": kv_heads}
    columns: dict[str, Any] = {name: column(count) for name, count in counts.items()}
    widths: dict[str, Any] = {"head_dim": float(head_dim), "v_head_dim": 128.0}
    return FlashAttention(phase=phase, **columns, **widths, causal=True, element_bytes=column(2))


@each_row(
    ("system", "kernel", "expected_us"),
    [
        (PCIE, attention(FORWARD, 128, 128, 192), 4105.526),
        (PCIE, attention(INPUT, 128, 128, 192), 13734.206),
        (NCCL, attention(FORWARD, 64, 8, 128), 2 * 64 * 4096**2 * 256 / 2.25e9 / 0.8715234),
        (NCCL, attention(INPUT, 64, 8, 128), 5 * 64 * 4096**2 * 256 / 2.25e9 / 0.7294011),
    ],
)
def test_attention_takes_its_measured_time(
    system: System, kernel: FlashAttention, expected_us: float
) -> None:
    """Counted over all pairs there, and backward with 2.5 times the FLOPs whatever the widths."""
    assert seconds(system, kernel) * 1e6 == pytest.approx(expected_us, rel=1e-3)


def test_no_kernel_is_faster_than_the_least_time() -> None:
    """30 us on B200, whatever it computes, and as much again as its bytes take."""
    tiny = product(FORWARD, 1024, 160, 1280)
    moved = float(tiny.bytes[0]) / (8000 * GIB * 0.666)
    assert seconds(NCCL, tiny) == pytest.approx(30e-6 + moved)
    for kind, share in (("default", 0.666), ("permute", 0.5008), ("loss", 0.2795)):
        kernel = MemoryBound(phase=FORWARD, bytes=column(GIB), flops=column(1e9), kind=kind)
        assert seconds(NCCL, kernel) == pytest.approx(30e-6 + 1 / 8000 / share)


NCCL_OPS = {
    "all_reduce": (2, 0.7424, 5.5183, 22.2316),
    "all_gather": (1, 0.6735, 9.1828, 23.1049),
    "reduce_scatter": (1, 0.6731, 8.0325, 25.5604),
}


@given(
    kind=st.sampled_from(sorted(NCCL_OPS)),
    members=st.integers(2, 8),
    size=st.floats(1, 1e10),
)
@fast
def test_exchanges_within_a_node_take_simumax_time(kind: str, members: int, size: float) -> None:
    """N scale (1 - 1 / n) / (900 GiB/s e) + base (n - 1) scale + what is fixed."""
    scale, share, base, fixed = NCCL_OPS[kind]
    moved = size * scale * (1 - 1 / members) / (900 * GIB * share)
    expected = moved + (base * (members - 1) * scale + fixed) * 1e-6
    found = collective_time(
        NCCL, CollectiveKind(kind), column(size), np.array([[members], [members]])
    )
    assert found[0] == pytest.approx(expected, rel=1e-4)


def exchange(system: System, kind: CollectiveKind, extents: list[int], size: float = GIB) -> float:
    """Time [s] of a GiB among members that lie so on the tiers."""
    places: Ints = np.array(extents, dtype=np.int64)[:, None]
    if kind is CollectiveKind.P2P:
        return float(transfer_time(system, column(size), places)[0])
    return float(collective_time(system, kind, column(size), places)[0])


AR, AG, RS, A2A, P2P, *_ = CollectiveKind


@each_row(
    ("kind", "extents", "gib_s", "latency_us"),
    [
        (AG, [2, 2, 2, 2], 0.6866 * 30, 24.84),
        (AR, [2, 2, 2, 2], 0.6965 * 30, 31.02),
        (A2A, [2, 4, 4, 4], 0.638 * 30, 41.52),
        (AG, [2, 4, 8, 8], 0.4497 * 30, 33.81),
        (RS, [2, 4, 8, 8], 0.3688 * 30, 131.3),
        (A2A, [2, 4, 8, 8], 0.2754 * 30, 210.28),
        # Replicas beside tensor parallelism of 2 and of 4, which SimuMax gives fixed rates.
        (AG, [1, 2, 4, 4], 7.65, 8.97),
        (RS, [1, 2, 4, 4], 7.0, 0.0),
        (AG, [1, 1, 2, 2], 4.0, 7.02),
        (RS, [1, 1, 2, 2], 3.9, 0.0),
        (AR, [1, 1, 2, 2], 0.4176 * 30, 94.7),
        (AG, [1, 2, 2, 2], 0.6915 * 30, 1.95),
        # Nodes: what is slowest; all links of a node together; one of them.
        (AR, [2, 4, 8, 16], 0.4176 * 30, 205.72),
        (AG, [1, 1, 1, 2], 0.6 * 25 / 8, 40.0),
        (A2A, [2, 4, 8, 16], 0.6 * 25 / 8, 250.28),
    ],
)
def test_exchanges_on_pcie(
    kind: CollectiveKind, extents: list[int], gib_s: float, latency_us: float
) -> None:
    """The network of 2, of 4 or of 8, whichever reaches all; a GiB of which (n - 1) / n moves."""
    passing = (2 if kind is AR else 1) * (1 - 1 / extents[-1])
    found = exchange(PCIE, kind, extents) - latency_us * 1e-6
    assert passing / found == pytest.approx(gib_s, rel=1e-5)


@each_row(
    ("kind", "extents", "gib_s", "latency_us"),
    [
        (AG, [8, 16], 200, 32.2877 + 6 * 9.1828 + 35),
        (RS, [2, 4], 200 / 4, 33.5929 + 35),
        (AR, [1, 4], 200 / 8, 140),
        (A2A, [8, 32], 200 / 8, 50.2036 + 3 * 35),
    ],
)
def test_exchanges_between_nodes(
    kind: CollectiveKind, extents: list[int], gib_s: float, latency_us: float
) -> None:
    """A node's 200 GiB/s are those of the members in it; of all-to-all each has an eighth."""
    passing = (2 if kind is AR else 1) * (1 - 1 / extents[-1])
    found = exchange(NCCL, kind, extents) - latency_us * 1e-6
    assert passing / found == pytest.approx(gib_s, rel=1e-5)


@each_row(
    ("system", "extents", "gib_s", "latency_us"),
    [
        (PCIE, [2, 2, 2, 2], 15, 10),
        (PCIE, [1, 2, 2, 2], 15, 10),
        (PCIE, [1, 1, 2, 2], 15, 10),
        (PCIE, [1, 1, 1, 2], 25 * 0.6 / 8, 40),
        (NCCL, [2, 2], 900 * 1.4517, 16.0668),
        (NCCL, [1, 2], 200 / 8, 35),
    ],
)
def test_messages(system: System, extents: list[int], gib_s: float, latency_us: float) -> None:
    """At a share of the same networks, as published; between nodes an eighth of a node's rate."""
    found = exchange(system, P2P, extents) - latency_us * 1e-6
    assert 1 / found == pytest.approx(gib_s, rel=1e-5)

"""The systems of the catalog: loadable, sourced figure by figure, and in sensible proportion."""

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import Model, Strategy, catalog, estimate
from shardwise.config.system import System
from shardwise.cost.links import slowed_by_compute

# Those with the figures of another tool have its name in front.
SYSTEMS = [
    name
    for name in catalog.names("systems")
    if not name.startswith(("calculon-", "nersc-", "simumax-"))
]
# Rates over those of the next wider type, where they do not double.
RATIOS = {
    ("l40s", "bf16"): 362 / 183,
    ("l40s", "fp8"): 733 / 362,
    ("trainium1", "bf16"): 1.0,
    ("trainium2", "bf16"): 1.0,
    ("trainium2", "fp8"): 1299 / 667,
    ("gaudi3", "fp8"): 1.0,
    ("b300-sxm", "fp4"): 14 / 4.5,
    ("gb300-nvl72", "fp4"): 3.0,
}


def numeric_fields(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all numbers inside a record."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numeric_fields(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from numeric_fields(item, f"{prefix}.{index}")
    elif isinstance(value, (int, float)):
        yield prefix


def sustained_rate(name: str) -> float:
    """Rate of a large fp16 product while training [FLOP/s]."""
    accelerator = System.load(name).accelerator
    return accelerator.matrix["fp16"] * accelerator.matmul["fp16"].efficiency


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> System:
    """Each system in turn."""
    return System.load(request.param)


@each_row("name", catalog.names("systems"))
def test_every_file_loads_under_its_own_name(name: str) -> None:
    """Each file of the catalog is a valid system whose name is that of the file."""
    assert System.load(name).name == name


@each_row("name", SYSTEMS)
def test_underscores_and_capitals_find_the_same_system(name: str) -> None:
    """A name is found however it is spelt."""
    assert System.load(name.upper().replace("-", "_")) == System.load(name)


@each_row(
    ("called", "name"),
    [
        ("B300", "b300-sxm"),
        ("DGX B200", "b200-sxm"),
        ("GB300", "gb300-nvl72"),
        ("A800", "a800-sxm"),
        ("H800", "h800-sxm"),
        ("H200", "h200-sxm"),
        ("MI300X", "mi300x"),
        ("TPU v5e", "tpu-v5e"),
        ("v5p", "tpu-v5p"),
        ("Trillium", "tpu-v6e"),
        ("Ironwood", "tpu-v7x"),
        ("TPU7x", "tpu-v7x"),
        ("trn1.32xlarge", "trainium1"),
        ("Gaudi 2", "gaudi2"),
        ("Ascend 910B", "ascend-910b"),
        ("RTX 4090", "rtx-4090"),
        ("RTX 3090", "rtx-3090"),
        ("GeForce RTX 5090", "rtx-5090"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("A10G", "a10g"),
        ("A6000", "rtx-a6000"),
        ("RTX 5060 Ti", "rtx-5060-ti"),
        ("H20", "h20-sxm"),
        ("GH200", "gh200"),
        ("A40", "a40"),
        ("L40", "l40"),
        ("L4", "l4"),
        ("Tesla T4", "t4"),
        ("H100 NVL", "h100-nvl"),
        ("A100 64GB", "a100-64gb-sxm"),
        ("MI250X", "mi250x-gcd"),
        ("Gaudi 3", "gaudi3"),
        ("trn2.48xlarge", "trainium2"),
        ("DGX Spark", "gb10"),
        ("Intel CPU", "cpu-server"),
    ],
)
def test_systems_are_found_by_what_people_call_them(called: str, name: str) -> None:
    """A short name stands for the only system it can mean."""
    assert System.load(called) is System.load(name)


def test_every_number_has_a_source(system: System) -> None:
    """No figure goes without saying where it comes from."""
    numbers = list(numeric_fields(system.model_dump(exclude={"sources"})))

    assert numbers
    assert [field for field in numbers if system.source_of(field) is None] == []


def test_every_source_is_of_a_field_that_exists(system: System) -> None:
    """A source names a field of the system, so that a misspelt one cannot hide."""
    numbers = list(numeric_fields(system.model_dump(exclude={"sources"})))
    numbers.append("accelerator.tuned_until")  # a month

    for prefix in system.sources:
        assert any(f"{field}.".startswith(f"{prefix}.") for field in numbers), prefix


def test_sources_are_public(system: System) -> None:
    """Sources cite what a reader can look up, not files on somebody's disk."""
    for source in system.sources.values():
        assert not source.text.startswith(("/", "."))
        assert ".md" not in source.text


def test_a_written_system_reads_back_the_same(system: System, tmp_path: Path) -> None:
    """Writing to a file and loading it loses nothing, in a format drawn for each."""
    ending = Random(system.name).choice([".yaml", ".json", ".yaml.gz"])  # noqa: S311 - no secret
    path = tmp_path / f"system{ending}"
    system.to_file(path)

    assert System.load(path) == system


def test_sustained_is_no_faster_than_a_burst(system: System) -> None:
    """Training clocks are at most those of a short micro-benchmark."""
    for kernel in system.accelerator.matmul.values():
        if kernel.burst_efficiency is not None:
            assert kernel.efficiency <= kernel.burst_efficiency


def test_a_narrower_type_has_a_higher_peak(system: System) -> None:
    """Halving the input type mostly doubles the matrix peak; fp32, where known, is the vectors'."""
    matrix, vector = system.accelerator.matrix, system.accelerator.vector

    assert vector == {"fp32": matrix.get("fp32", vector["fp32"])}
    for wide, narrow in [("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")]:
        if wide in matrix and narrow in matrix:
            ratio = RATIOS.get((system.name, narrow), 2.0)
            assert matrix[narrow] == pytest.approx(ratio * matrix[wide], rel=2e-3)


def test_bf16_and_fp16_run_alike_where_both_exist(system: System) -> None:
    """The 16-bit types share units; P100, V100, T4 have no bf16, TPU, Gaudi and CPUs no fp16."""
    accelerator = system.accelerator

    assert ("bf16" in accelerator.matrix) is not system.name.startswith(("p100", "v100", "t4"))
    assert ("fp16" in accelerator.matrix) is not system.name.startswith(("tpu", "gaudi", "cpu"))
    if {"bf16", "fp16"} <= set(accelerator.matrix):
        assert accelerator.matrix["fp16"] == accelerator.matrix["bf16"]
        assert accelerator.matmul["fp16"] == accelerator.matmul["bf16"]


def test_tiers_get_slower_outwards(system: System) -> None:
    """Device memory is faster than the host's, NVLink or PCIe than the share of the fabric."""
    hbm, host = system.accelerator.memory

    assert (hbm.name, host.name) == ("hbm", "host")
    assert hbm.bandwidth > host.bandwidth
    assert system.tier_bandwidth(0) > system.tier_bandwidth(1)


def test_a_node_fits_in_the_domain_inside_the_fabric(system: System) -> None:
    """All accelerators of a node share one domain; the fabric has no limit."""
    *inside, fabric = system.network

    assert inside[-1].domain is not None
    assert inside[-1].domain % system.node.accelerators == 0
    assert fabric.domain is None
    names = [tier.name for tier in inside]
    assert len(names) == 1 or names in (["pcie", "sockets"], ["card", "xe-link"])


@each_row(
    "name", ["a100-40gb-pcie", "a100-80gb-pcie", "h100-pcie", "l40s"]
    + [name for name in SYSTEMS if name.startswith("rtx-")],
)  # fmt: skip
def test_rings_between_sockets_share_one_link(name: str) -> None:
    """One ring over 8 cards is as fast as two rings at once, or four, up to a quarter."""
    system = System.load(name)
    assert [tier.domain for tier in system.network] == [4, 8, None]
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        shares = system.network[1].rates_of(kind).efficiency
        assert sorted(shares) == [1, 2, 4]
        assert max(shares.values()) < 1.26 * min(shares.values())
        ring = shares[4] * 4 * system.tier_bandwidth(1)
        inside = system.network[0].rates_of(kind).efficiency[4] * system.tier_bandwidth(0)
        assert ring < inside


def test_a_node_draws_more_than_its_boards(system: System) -> None:
    """The limit of the node covers the limits of the boards in it."""
    if system.node.power is not None and system.board_power is not None:
        assert system.node.power > system.node.accelerators * system.board_power


def test_a_price_is_dated_and_cites_its_page(system: System) -> None:
    """A price says whose, of which day and where it can be looked up."""
    if system.price is not None:
        assert system.price.as_of >= date(2026, 1, 1)
        assert "read 20" in system.price.source


@each_row(
    ("slower", "faster"),
    [
        ("p100-pcie", "v100-sxm-16gb"),
        ("v100-sxm-32gb", "a100-40gb-pcie"),
        ("a100-40gb-pcie", "a100-80gb-pcie"),
        ("a100-80gb-pcie", "a100-80gb-sxm"),
        ("a100-80gb-sxm", "h100-pcie"),
        ("h100-pcie", "h100-sxm"),
        ("h200-sxm", "b200-sxm"),
        ("b200-sxm", "b300-sxm"),
        ("b300-sxm", "gb300-nvl72"),
        ("mi300x", "mi325x"),
        ("mi325x", "mi355x"),
        ("rtx-a5000", "rtx-a6000"),
        ("rtx-a6000", "rtx-4090"),
        ("rtx-4090", "rtx-6000-ada"),
        ("l40s", "rtx-6000-ada"),
    ],
)
def test_a_newer_or_larger_board_computes_faster(slower: str, faster: str) -> None:
    """16-bit rates rise from P100 to Blackwell Ultra, from PCIe to SXM, and at AMD.

    Peaks do; so do sustained rates, within a tenth: boards that ran differently well are fitted
    apart, and some never ran.
    """
    peaks = [System.load(name).accelerator.matrix["fp16"] for name in (slower, faster)]
    assert peaks == sorted(peaks)
    assert sustained_rate(slower) < 1.1 * sustained_rate(faster)


def test_memory_bandwidth_rises_with_the_generation() -> None:
    """P100 < V100 < A100 40 GB < A100 80 GB < H100 < H200 < B200 < GB200."""
    order = ["p100-pcie", "v100-sxm-32gb", "a100-40gb-sxm", "a100-80gb-sxm", "h100-sxm", "h200-sxm"]
    order += ["b200-sxm", "gb200-nvl72"]
    rates = [System.load(name).accelerator.memory[0].bandwidth for name in order]

    assert rates == sorted(set(rates))


@each_row(
    ("name", "gib"),
    [
        ("p100-pcie", 15.9),
        ("v100-sxm-16gb", 16),
        ("v100-sxm-32gb", 32),
        ("a100-40gb-sxm", 40),
        ("a100-80gb-sxm", 80),
        ("h100-sxm", 79.6),
        ("h200-sxm", 140.4),
        ("b200-sxm", 179.1),
        ("gb200-nvl72", 185.0),
        ("b300-sxm", 268.6),
        ("gb300-nvl72", 277.5),
        ("rtx-4090", 24.0),
        ("rtx-a6000", 48.0),
        ("l40s", 45.0),
    ],
)
def test_capacities_are_those_that_nvidia_smi_prints(name: str, gib: float) -> None:
    """Device memory is what the driver reports, below the decimal figure of the box."""
    assert System.load(name).accelerator.memory[0].capacity / 2**30 == pytest.approx(gib, abs=0.06)


@each_row(
    ("name", "gigabytes_per_second"),
    [
        ("v100-sxm-32gb", 150),
        ("a100-80gb-sxm", 300),
        ("h800-sxm", 200),
        ("h100-sxm", 450),
        ("b200-sxm", 900),
        ("gb200-nvl72", 900),
        ("a800-sxm", 200),
        ("b300-sxm", 900),
        ("gb300-nvl72", 900),
    ],
)
def test_nvlink_counts_one_direction(name: str, gigabytes_per_second: float) -> None:
    """NVLink is half of the figure that data sheets print for both directions."""
    assert System.load(name).network[0].bandwidth == gigabytes_per_second * 1e9


@each_row(("cut", "full"), [("h800-sxm", "h100-sxm"), ("a800-sxm", "a100-80gb-sxm")])
def test_the_800s_are_like_the_100s_with_slower_nvlink(cut: str, full: str) -> None:
    """H800 and H100, A800 and A100 compute alike and differ in NVLink; one has been timed alone."""
    less, more = System.load(cut), System.load(full)

    apart = {"name": "one", "benchmark": None}
    assert less.accelerator.model_copy(update=apart) == more.accelerator.model_copy(update=apart)
    assert less.network[0].bandwidth < more.network[0].bandwidth
    assert less.network[0].collectives == more.network[0].collectives
    one = {"rate_spread": 1.0}  # of one cluster
    assert less.network[1].model_copy(update=one) == more.network[1].model_copy(update=one)


def test_latency_is_that_of_two_members() -> None:
    """The fitted alpha + lambda (n - 1) starts at n = 2: A100's all-gather at 9.2 + 0.83 us.

    Alone it reaches 53, 63 and 72 % of the links; beside compute as much less of all.
    """
    gather = System.load("a100-80gb-sxm").network[0].collectives["all_gather"]

    assert gather.latency == pytest.approx(10.03e-6)
    assert gather.latency_per_member == pytest.approx(0.83e-6)
    alone = {2: 0.53, 4: 0.63, 8: 0.72}
    shares = [gather.efficiency[n] / share for n, share in alone.items()]
    assert shares == pytest.approx([shares[0]] * 3, rel=5e-3)
    assert 0.3 < shares[0] <= 1


def test_the_rack_spans_eighteen_trays() -> None:
    """GB200 NVL72 joins 72 accelerators by NVLink, four to a tray, one network card each."""
    rack = System.load("gb200-nvl72")

    assert rack.network[0].domain == 72
    assert rack.node.accelerators == 4
    assert rack.tier_bandwidth(1) == rack.network[1].bandwidth


def test_compute_does_not_slow_what_a_slow_link_limits() -> None:
    """Only on tiers that say so do collectives take longer next to products."""
    for name, limit in (("a100-80gb-pcie", 1.0), ("a100-80gb-sxm", 2.0)):
        stack = {"base": "megatron-core-2025", "tp_hidden": 0}
        fields = {"gpus": 8, "tp": 8, "gbs": 8, "tp_exchange": "rs_ag"}
        alone, doubled = (
            estimate(
                Model.load("llama3-8b"),
                System.load(name),
                Strategy.validated(fields | {"stack": stack | {"exchange_time_factor": factor}}),
            ).comm_s["tp"].total
            for factor in (1.0, 2.0)
        )  # fmt: skip
        assert doubled == pytest.approx(limit * alone)


def test_the_outermost_tier_says_whether_compute_slows_it() -> None:
    """NVLink is slowed; groups over both sockets of PCIe and over nodes, by hand, are not."""
    groups = np.array([[1, 4, 4, 4, 1], [1, 4, 8, 8, 1], [1, 4, 8, 16, 2]])
    pcie, nvlink = System.load("a100-80gb-pcie"), System.load("a100-80gb-sxm")

    assert slowed_by_compute(pcie, groups).tolist() == [True, False, False, False, False]
    in_node, over_nodes = np.array([[8], [8]]), np.array([[8], [16]])
    assert slowed_by_compute(nvlink, in_node).tolist() == [True]
    assert slowed_by_compute(nvlink, over_nodes).tolist() == [False]


def test_compute_slows_no_network_between_nodes(system: System) -> None:
    """Network cards and not processors limit it, where the catalog describes those of servers."""
    tier = system.network[-1]
    if tier.name == "fabric":
        assert not tier.slowed_by_compute


@each_row(
    ("name", "size"),
    [
        ("a100-80gb-pcie", 8),
        ("simumax-a100-pcie", 8),
        ("max1550-tile", 12),
        ("h100-sxm", 8),
        ("gb200-nvl72", 72),
        ("tpu-v5e", 256),
        ("calculon-h100-80g-nvl8", 8),
    ],
)
def test_the_fast_domain_is_a_server_or_more(name: str, size: int) -> None:
    """All tiers inside a node, and a first tier that is larger."""
    assert System.load(name).fast_domain == size

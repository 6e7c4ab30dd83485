"""What rows say of their machines: systems of the catalog, their own network between nodes."""

import pytest
from published_samples import row_of

from published_rows.hardware import system_of
from published_rows.packed import load_rows
from rows import each_row
from shardwise.config.system import System
from shardwise.validate.measured.runs import NotModeledError

GB = 1e9


def _system(accelerator, *, assumed=None, count=64, **stated):
    fields = {"accelerator": accelerator, "count": count, **stated}
    return system_of(row_of("x", hardware=fields), [] if assumed is None else assumed)


def _per_node(inter, accelerator="H100", per_node=8):
    """GB/s of all links of a node, or None where the system keeps its own."""
    system = _system(accelerator, inter=inter, per_node=per_node)
    own, tier = System.load(system.name).network[-1], system.network[-1]
    links = tier.links_per_node or system.node.accelerators
    return None if tier == own else tier.bandwidth * links / GB


@each_row(
    ("stated", "name"),
    [
        ({"accelerator": "A100"}, "a100-80gb-sxm"),
        ({"accelerator": "A100", "variant": "SXM4 40GB (DGX A100)"}, "a100-40gb-sxm"),
        ({"accelerator": "A100", "mem_gb": 40.0}, "a100-40gb-sxm"),
        ({"accelerator": "A100", "mem_gb": 80.0}, "a100-80gb-sxm"),
        ({"accelerator": "A100", "variant": "80 GB PCIe"}, "a100-80gb-pcie"),
        ({"accelerator": "A800", "variant": "A800 80GB"}, "a800-sxm"),
        ({"accelerator": "H100", "variant": "96GB HBM2e 2.4TB/s, 500W power cap"},
         "h100-sxm-500w"),
        ({"accelerator": "H100", "variant": "94-95GB HBM2e lower TDP"}, "h100-sxm-500w"),
        ({"accelerator": "H100", "variant": "PCIe"}, "h100-pcie"),
        ({"accelerator": "H100", "variant": "SXM5 80GB HBM3"}, "h100-sxm"),
        ({"accelerator": "H200"}, "h200-sxm"),
        ({"accelerator": "GB200", "variant": "NVIDIA Blackwell GPU (GB200)"}, "gb200-nvl72"),
        ({"accelerator": "B200", "variant": "B200-SXM-180GB"}, "b200-sxm"),
        ({"accelerator": "B300", "mem_gb": 288.0}, "b300-sxm"),
        ({"accelerator": "GB300"}, "gb300-nvl72"),
        ({"accelerator": "H800"}, "h800-sxm"),
        ({"accelerator": "AMD Instinct MI325X 256GB HBM3E DLC"}, "mi325x"),
        ({"accelerator": "TPU-trillium"}, "tpu-v6e"),
        ({"accelerator": "TPU-v5p"}, "tpu-v5p"),
        ({"accelerator": "TPU v4"}, "tpu-v4"),
        ({"accelerator": "TPU v5e"}, "tpu-v5e"),
        ({"accelerator": "TPU v7x"}, "tpu-v7x"),
        ({"accelerator": "MI300X", "variant": "192GB HBM3 OAM"}, "mi300x"),
        ({"accelerator": "MI355X"}, "mi355x"),
        ({"accelerator": "Trainium1"}, "trainium1"),
        ({"accelerator": "Gaudi2", "family": "Gaudi2"}, "gaudi2"),
        ({"accelerator": "V100", "mem_gb": 32.0}, "v100-sxm-32gb"),
        ({"accelerator": "V100"}, "v100-sxm-16gb"),
        ({"accelerator": "A100", "variant": "40GB PCIe"}, "a100-40gb-pcie"),
        ({"accelerator": "A100", "variant": "PCIe", "mem_gb": 40.0}, "a100-40gb-pcie"),
        ({"accelerator": "H100", "variant": "SXM5, NVLink"}, "h100-sxm"),
        ({"accelerator": "Ascend 910B", "mem_gb": 64.0}, "ascend-910b"),
        ({"accelerator": "Max1550-tile", "family": "PVC"}, "max1550-tile"),
        ({"accelerator": "L40S", "variant": "48GB"}, "l40s"),
        ({"accelerator": "RTX4090", "variant": "24GB"}, "rtx-4090"),
        ({"accelerator": "RTX 3090"}, "rtx-3090"),
        ({"accelerator": "RTX5090", "variant": "32GB"}, "rtx-5090"),
        ({"accelerator": "RTX PRO 6000 Blackwell"}, "rtx-pro-6000"),
        ({"accelerator": "A10G", "variant": "g5.48xlarge"}, "a10g"),
        ({"accelerator": "NVIDIA GeForce RTX 4090"}, "rtx-4090"),
        ({"accelerator": "RTX 6000 Ada"}, "rtx-6000-ada"),
        ({"accelerator": "A6000", "family": "A6000", "mem_gb": 48.0}, "rtx-a6000"),
        ({"accelerator": "RTX A5000"}, "rtx-a5000"),
    ],
)  # fmt: skip
def test_accelerators_by_what_rows_call_them(stated, name):
    """Family, name, variant and memory; special ones before usual ones."""
    assert _system(**stated).name == name


@each_row(
    ("stated", "said"),
    [
        ({"accelerator": "H200", "variant": "NVIDIA H200-NVL-141GB"},
         "an H200 NVL as one in SXM servers"),
        ({"accelerator": "H100 NVL"}, "an H100 NVL as an H100 PCIe"),
        ({"accelerator": "A800", "variant": "80GB PCIe"}, "an A800 PCIe as an A100 PCIe"),
        ({"accelerator": "RTX 4090D"}, "another RTX 4090 as one of 450 W"),
        ({"accelerator": "GH200"}, "a GH200 as an H200 in SXM servers"),
        ({"accelerator": "RTX 4090 Laptop"}, "another RTX 4090 as one of 450 W"),
    ],
)  # fmt: skip
def test_variants_that_another_system_stands_in_for_say_so(stated, said):
    """Their power or links differ."""
    assumed = []
    _system(**stated, count=8, assumed=assumed)
    assert assumed == [said]


def test_bins_of_an_ascend_differ_in_speed():
    """313 TFLOP/s of a 910B3 over the 376 of the catalog; the usual one where none is named."""
    assert _system("Ascend 910B3").accelerator.speed == pytest.approx(313 / 376)
    assert _system("Ascend 910B").accelerator.speed == 1
    assert _system("Ascend 910B2").accelerator.speed == 1


@each_row(
    "name",
    ["V100 or A100 (not stated in doc)", "X1", "L40", "L4", "RTX 3080", "A40", "Max1550"],
)
def test_unknown_accelerators_are_refused(name):
    """And those that may be one or the other."""
    with pytest.raises(NotModeledError) as refused:
        _system(name)
    assert str(refused.value) == f"accelerator {name}: not in the catalog"


@each_row(
    ("inter", "rate"),
    [
        ("8x 200Gb/s InfiniBand HDR per node", 200),
        ("4x 100Gb RoCE per node", 50),
        ("8x ConnectX-7 IB NDR 200Gb/s + 200Gb/s Ethernet NIC", 200),
        ("8x 200Gb/s IB (CX-7)", 200),
        ("Compute: 8x MT43244 BlueField-3 200Gb/s, Management: 2x100Gb/s Ethernet NIC", 200),
        ("Storage: 2x BF3 ConnectX-7 400Gb/s, Compute: 8x BF3 ConnectX-7 100Gb/s, Management", 100),
        ("Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s, Management: 25Gb/s Ethernet NIC", 200),
        ("4x Omni-Path 100 Gb/s per node (JZ; 4 OPA links per node stated)", 15),
        ("3x100GbE RoCE per card scale-out (24 ports total)", 300),
        ("200 Gb/s RDMA per GPU", 200),
        ("800 Gb/s per node (4x HDR, vTrain config)", 100),
        ("1600 Gbps node-node RoCE (stated)", 200),
        ("400 Gbps per node", 50),
        ("8x Slingshot-11 200 Gb/s per node", 200),
    ],
)  # fmt: skip
def test_networks_between_nodes(inter, rate):
    """GB/s of all links of a node, from words as sources have them."""
    assert _per_node(inter) == pytest.approx(rate)


def test_a100_of_aws_have_the_network_of_their_instances():
    """Of p4d and p4de, 50 GB/s a node; other accelerators and clouds keep the usual one."""
    assert _per_node("not stated (Stability AI AWS cluster)", "A100") == pytest.approx(50)
    assert _per_node("not stated (Stability AI AWS cluster)", "H100") is None
    assert _per_node("not stated (OCI/MosaicML cluster)", "A100") is None


@each_row(
    "inter", ["Ethernet, Infiniband", "DCN across slices", "none (single node)", "10G Ethernet"]
)
def test_networks_without_a_rate_are_the_usual_ones(inter):
    """Which is said, with number and rate, of runs of more than one node."""
    assert _per_node(inter) is None
    for count, said in ((8, []), (16, ["NICs per node: 8 x 400 Gbit/s"])):
        assumed = []
        _system("H100", inter=inter, count=count, assumed=assumed)
        assert assumed == said


@each_row(
    ("stated", "count", "said"),
    [
        ({"accelerator": "A800", "inter": "InfiniBand 200 Gb/s"}, 16, "number of NICs per node: 8"),
        ({"accelerator": "RTX 4090"}, 16, "NICs per node: 1 x 100 Gbit/s"),
        # Slices of 256 chips, and racks of 72 GPUs, are one network.
        ({"accelerator": "TPU v5e", "inter": "DCN across slices"}, 256, None),
        ({"accelerator": "TPU v5e", "inter": "DCN across slices"}, 512,
         "NICs per node: 2 x 100 Gbit/s"),
        ({"accelerator": "GB200"}, 72, None),
        ({"accelerator": "GB200"}, 144, "NICs per node: 4 x 400 Gbit/s"),
    ],
)  # fmt: skip
def test_only_networks_that_are_used_are_assumed(stated, count, said):
    """A rate without a number of links is that of each of the usual ones."""
    assumed = []
    _system(**stated, count=count, assumed=assumed)
    assert assumed == [said] * (said is not None)


def test_networks_by_accelerator_are_shared_as_the_node_has_them():
    """400 Gb/s for each of 4 in a tray is 200 GB/s a tray: what the catalog has, too."""
    assert _per_node("400Gb/s InfiniBand per GPU", "GB200", per_node=4) is None
    assert _per_node("800Gb/s InfiniBand per GPU", "GB200", per_node=4) == pytest.approx(400)
    # Three links of a card are 24 of a server.
    assert _per_node("3x100GbE RoCE per card", "Gaudi2") is None
    assert _per_node("3x200GbE RoCE per card", "Gaudi2") == pytest.approx(600)


def test_runs_over_several_small_nodes_have_nodes_of_that_size():
    """Two servers of two GPUs talk over the fabric, not over the NVLink of a server of eight."""
    system = _system("A100", per_node=2, count=4)
    assert system.node.accelerators == 2
    assert [tier.domain for tier in system.network] == [2, None]
    own = System.load("a100-80gb-sxm")
    assert system.tier_bandwidth(1) == own.tier_bandwidth(1)
    pcie = _system("RTX 4090", per_node=4, count=8)
    assert [tier.domain for tier in pcie.network] == [4, None]
    pair = _system("RTX 4090", per_node=2, count=4).network[0].through_host
    assert pair is not None
    assert pair.shared_by == 2
    alone = _system("RTX 4090", per_node=1, count=4, inter="100 Gb/s per node")
    assert alone.tier_bandwidth(len(alone.network) - 1) == pytest.approx(12.5 * GB)
    assert _system("A100", per_node=2, count=2) == own
    assert _system("A100", per_node=8, count=16) == own
    assert _system("TPU v6e", per_node=4, count=8) == System.load("tpu-v6e")


@each_row(
    ("stated", "domains"),
    [
        ({"accelerator": "A6000", "intra": "NVLink bridge between pairs"}, [2, 4, 8, None]),
        ({"accelerator": "A6000", "intra": "PCIe 4.0, no NVLink"}, [4, 8, None]),
        ({"accelerator": "A6000"}, [4, 8, None]),
        ({"accelerator": "RTX 3090", "intra": "NVLink between pairs"}, [2, 4, 8, None]),
        ({"accelerator": "RTX 4090", "intra": "NVLink"}, [4, 8, None]),
    ],
)
def test_bridges_between_pairs_of_cards_are_a_tier(stated, domains):
    """Of cards that can have them, where a row has them."""
    system = _system(**stated, count=8)
    assert [tier.domain for tier in system.network] == domains
    if len(domains) > 3:
        assert system.tier_bandwidth(0) > system.tier_bandwidth(1)


def test_other_networks_change_nothing_else():
    """Neither the tiers inside nor the accelerator; one machine of rows that name none."""
    changed, own = _system("A100", inter="4x 100Gb RoCE per node"), System.load("a100-80gb-sxm")
    assert changed.network[:-1] == own.network[:-1]
    assert changed.accelerator == own.accelerator
    assert changed.network[-1].collectives == own.network[-1].collectives
    assert _system("A100", count=None) == own


def test_all_rows_have_a_system_or_a_reason():
    """Only of those that do not say which of two accelerators it is there is none."""
    refused = set()
    for run in load_rows():
        try:
            system_of(run, [])
        except NotModeledError as reason:
            refused.add(str(reason))
    assert refused == {"accelerator V100 or A100 (not stated in doc): not in the catalog"}

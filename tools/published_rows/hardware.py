"""The `System` of a measured run: one of the catalog with the network of the run."""

import math
import re

from published_rows.row import Run
from shardwise.config.network import Tier
from shardwise.config.system import System
from shardwise.validate.measured.runs import NotModeledError

_GIGABIT = 1e9 / 8
# Jean Zay's all-reduces of 4 nodes reached 15 to 42 Gbit/s of algorithm bandwidth in early 2022
# (bigscience-workshop/bigscience): at best 2 x 42 of the 400 of its four links, 0.21, where
# InfiniBand reaches about 0.7.
_OMNI_PATH = 0.3
# Accelerators of the catalog by their names in rows; the first match in "family accelerator
# variant" counts, so that special ones come first.
_NAMES: tuple[tuple[str, str], ...] = (
    (r"A800.*PCI", "a100-80gb-pcie"),
    (r"A800", "a800-sxm"),
    (r"A100.*PCI.*\b40 ?GB|A100.*\b40 ?GB.*PCI", "a100-40gb-pcie"),
    (r"A100.*PCI", "a100-80gb-pcie"),
    (r"A100.*\b40 ?GB", "a100-40gb-sxm"),
    (r"V100 or A100", ""),
    (r"A100", "a100-80gb-sxm"),
    (r"H100.*(500 ?W|HBM2e)", "h100-sxm-500w"),
    (r"H100.*PCI|H100[- ]NVL\b", "h100-pcie"),
    (r"H100", "h100-sxm"),
    (r"H200", "h200-sxm"),
    (r"H800", "h800-sxm"),
    (r"GB300", "gb300-nvl72"),
    (r"GB200", "gb200-nvl72"),
    (r"B300", "b300-sxm"),
    (r"B200", "b200-sxm"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI350X", "mi350x"),
    (r"MI355X", "mi355x"),
    (r"TPU[ -]?v4", "tpu-v4"),
    (r"TPU[ -]?v5e", "tpu-v5e"),
    (r"TPU[ -]?v5p", "tpu-v5p"),
    (r"TPU[ -]?(v6e|trillium)", "tpu-v6e"),
    (r"TPU[ -]?v7x", "tpu-v7x"),
    (r"Trainium", "trainium1"),
    (r"Gaudi ?2", "gaudi2"),
    (r"V100.*32", "v100-sxm-32gb"),
    (r"V100", "v100-sxm-16gb"),
    (r"910B", "ascend-910b"),
    (r"Max ?1550.*tile", "max1550-tile"),
    (r"\bL40S\b", "l40s"),
    (r"\bA10G\b", "a10g"),
    (r"\b3090\b|\bRTX ?3090\b", "rtx-3090"),
    (r"\b5090D?\b|\bRTX ?5090D?\b", "rtx-5090"),
    (r"PRO ?6000", "rtx-pro-6000"),
    (r"\b4090D?\b|\bRTX ?4090D?\b", "rtx-4090"),
    (r"6000 ?Ada", "rtx-6000-ada"),
    (r"\bA6000\b", "rtx-a6000"),
    (r"\bA5000\b", "rtx-a5000"),
)
# Variants of other power or links than the system that stands in for them.
_STAND_INS = (
    (r"\bH200.*NVL", "an H200 NVL as one in SXM servers"),
    (r"\bH100[- ]NVL\b", "an H100 NVL as an H100 PCIe"),
    (r"A800.*PCI", "an A800 PCIe as an A100 PCIe"),
    (r"GH200", "a GH200 as an H200 in SXM servers"),
    (r"4090 ?(D\b|Laptop)", "another RTX 4090 as one of 450 W"),
    (r"5090 ?(D\b|Laptop)", "another RTX 5090 as one of 575 W"),
    (r"PRO ?6000.*Max-?Q", "an RTX PRO 6000 of 300 W as one of 600 W"),
    (r"power[- ]limited", "full power of a power-limited accelerator"),
    (r"power variant not stated", "full power"),
)
# Rates of the bins of an Ascend 910B over that of the catalog, 376 TFLOP/s (910B2 in Atlas 900 A2):
# 313 in Atlas 800T A2, with 20 of 24 cores, 280 in Atlas 800I A2.
_BINS = {"910B1": 400 / 376, "910B3": 313 / 376, "910B4": 280 / 376}
# All links of a p4d or p4de instance of AWS, which are what it has A100 in: 400 Gbit/s of EFA.
_AWS_A100 = 400 * _GIGABIT
# NVLink bridges between two cards, one direction [byte/s] (data sheets of the cards).
_BRIDGES = {
    "a100-40gb-pcie": 300e9,
    "a100-80gb-pcie": 300e9,
    "h100-pcie": 300e9,
    "rtx-3090": 56.25e9,
    "rtx-a5000": 56.25e9,
    "rtx-a6000": 56.25e9,
}
# Names of network cards have numbers of their own.
_CARDS = re.compile(r"(ConnectX|CX|BlueField|Slingshot)-\d+|\bBF\d\b|\bMT\d+\b")


def system_of(run: Run, assumed: list[str]) -> System:
    """Find the system of a run, with its network between nodes.

    Raises
    ------
    NotModeledError
        If the accelerator is unknown or not in the catalog.
    """
    row = run.hardware
    text = " ".join(str(t) for t in (row.family, row.accelerator, row.variant) if t)
    if row.mem_gb:
        text += f" {row.mem_gb:g} GB"
    name = next((name for pattern, name in _NAMES if re.search(pattern, text, re.IGNORECASE)), "")
    if not name:
        raise NotModeledError(f"accelerator {row.accelerator}: not in the catalog")
    assumed += [said for pattern, said in _STAND_INS if re.search(pattern, text, re.IGNORECASE)]
    system = _with_slices(System.load(name), row.extra.get("chips_per_slice"))
    if (found := re.search(r"910B[134]", text)) is not None:
        chip = system.accelerator.model_copy(update={"speed": _BINS[found[0]]})
        system = system.model_copy(update={"accelerator": chip})
    if row.per_node and (row.count or 1) > row.per_node:
        system = _with_nodes(system, row.per_node)
    system = _with_bridges(system, row.intra or "")
    rate = _node_rate(row.inter or "", row.per_node or system.node.accelerators)
    if rate is None and re.search(r"A100.*\bAWS\b", f"{text} {row.inter}"):
        rate = _AWS_A100
    if len(system.network) == 1:
        return system
    if rate is None:
        rate, said = _usual_rate(system, row.inter or "")
        inside = system.network[-2].domain
        assumed += [said] if inside is not None and (row.count or 1) > inside else []
    return _with_fabric(system, rate)


def _usual_rate(system: System, text: str) -> tuple[float, str]:
    """Rate of all links of a node [byte/s] where no number of links is stated, and what is assumed.

    The usual number of links, of the stated rate if there is one.
    """
    tier = system.network[-1]
    links = tier.links_per_node or system.node.accelerators
    stated = re.search(r"InfiniBand (\d{1,9}) ?Gb", text)
    if stated:
        return links * int(stated[1]) * _GIGABIT, f"number of NICs per node: {links}"
    rate = tier.bandwidth / _GIGABIT
    return links * tier.bandwidth, f"NICs per node: {links} x {rate:.4g} Gbit/s"


def _with_slices(system: System, chips: int | None) -> System:
    """The system with slices of `chips` in its innermost network; None: unchanged."""
    inner = system.network[0]
    if chips is None or inner.domain is None or chips >= inner.domain:
        return system
    changed = inner.model_copy(update={"domain": chips})
    return system.model_copy(update={"network": (changed, *system.network[1:])})


def _with_nodes(system: System, size: int) -> System:
    """The system with smaller nodes, which have their part of the network cards; else unchanged."""
    node, first = system.node.accelerators, system.network[0].domain
    if size >= node or node % size or first is None or first > node:
        return system
    tiers: list[Tier] = []
    for tier in system.network:
        inside = tier.domain is not None and tier.domain <= node
        if inside and tiers and tiers[-1].domain == size:
            continue
        links = tier.links_per_node and max(tier.links_per_node * size // node, 1)
        domain = min(tier.domain or size, size) if inside else tier.domain
        changed = tier.model_copy(update={"domain": domain, "links_per_node": links})
        tiers.append(changed.among(size))
    memory = tuple(
        tier.model_copy(
            update={
                "host": tier.host
                and tier.host.model_copy(update={"shared_by": min(tier.host.shared_by, size)})
            }
        )
        for tier in system.accelerator.memory
    )
    update = {
        "node": system.node.model_copy(update={"accelerators": size, "power": None}),
        "network": tuple(tiers),
        "accelerator": system.accelerator.model_copy(update={"memory": memory}),
    }
    return system.model_copy(update=update)


def _with_bridges(system: System, text: str) -> System:
    """The system with NVLink bridges between pairs of its PCIe cards, where a row has them."""
    rate = _BRIDGES.get(system.name)
    if rate is None or "NVLink" not in text or re.search(r"\b(no|without) NVLink", text):
        return system
    like = System.load("a100-80gb-sxm").network[0]
    pairs = like.model_copy(update={"name": "bridge", "domain": 2, "bandwidth": rate})
    return system.model_copy(update={"network": (pairs, *system.network)})


def _node_rate(text: str, per_node: int) -> float | None:
    """Rate of all links of one node to others, one direction [byte/s]; None: unknown.

    Examples
    --------
    >>> _node_rate("8x 400Gb/s InfiniBand NDR per node", 8) / 1e9
    400.0
    """
    compute = re.search(r"[Cc]ompute: (.*?)(,|$)", text)
    text = _CARDS.sub("", compute[1] if compute else text)
    if found := re.search(r"(\d{1,9})x Omni-Path (\d{1,9})", text):
        return int(found[1]) * int(found[2]) * _GIGABIT * _OMNI_PATH
    if found := re.search(r"(\d{1,9})x\D*?(\d{1,9}) ?Gb", text):
        cards = per_node if "per card" in text else 1
        return int(found[1]) * int(found[2]) * cards * _GIGABIT
    if found := re.search(r"(\d{1,9}) ?Gb(?:/s|ps)[^.;]*?per GPU", text):
        return int(found[1]) * per_node * _GIGABIT
    if found := re.search(r"(\d{1,9}) ?Gb(?:/s|ps)[^.;]*?(?:per node|node-node)", text):
        return int(found[1]) * _GIGABIT
    return None


def _with_fabric(system: System, rate: float) -> System:
    """The system with another rate of its outermost tier."""
    tier = system.network[-1]
    links = tier.links_per_node or system.node.accelerators
    if math.isclose(tier.bandwidth * links, rate):
        return system
    changed = tier.model_copy(update={"bandwidth": rate / links})
    update: dict[str, object] = {"network": (*system.network[:-1], changed)}
    return system.model_copy(update=update)

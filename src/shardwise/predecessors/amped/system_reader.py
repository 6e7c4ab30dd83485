"""AMPeD's accelerator and network as fields of our `System`.

AMPeD has one rate for products, one for the rest, and latency and bandwidth of two networks. It has
no memory: that is set in addition to its parameters, or is that of the catalog's system of the same
name.
"""

import re
from collections.abc import Mapping
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.predecessors.amped.files import AmpedConfig, parse_amped, unit_letters
from shardwise.predecessors.amped.parameters import (
    CATEGORIES,
    DERIVED,
    MEMORY_BANDWIDTH,
    MEMORY_CAPACITY,
)
from shardwise.predecessors.amped.reader import Reader, has_network
from shardwise.units import LEAST_SHARE

EFFICIENCY = 0.51
"""Share of the peak that products reach: AMPeD's constant."""
FLOPS_PER_NON_LINEAR = 8
"""FLOPs for one of AMPeD's non-linear operations, of which it counts one for each element: as many
as an activation has here for an element forward."""
_BITS = 8
_TYPES = ("fp32", "fp16", "bf16", "fp8")
_SHARES = {
    "effective_perf_perc_K_Q_V": ("query_MAC_operations", "attention_heads", 3),
    "effective_perf_perc_attention": ("self_attention_MAC_operations", "attention_heads", 1),
    "effective_perf_perc_output": ("attention_sublayer_output_MAC_operations", None, 1),
    "effective_perf_perc_MLP": ("total_MLP_sublayer_MAC_operations", None, 1),
}
# What a row may be called, and whose memory it has then. A100 and V100 were sold with two sizes;
# these are the larger ones, and a row that names the size has its own.
_CATALOG = {
    "v100": "v100-sxm-32gb",
    "a100": "a100-80gb-sxm",
    "h100": "h100-sxm",
    "h100-sxm5": "h100-sxm",
}
_FORMS = ("", "-sxm", "-pcie")
# In one byte per accelerator; what is outside is a number in other units.
_CAPACITY = (1e8, 1e14)
_BANDWIDTH = (1e9, 1e15)


def system_fields(config: AmpedConfig, name: str) -> dict[str, Any]:
    """A cluster of AMPeD's rates: the larger of compute and memory time, latencies that add up."""
    read = Reader(config)
    row = config.rows.get(CATEGORIES[-1])
    called = catalog.canonical(row) if row else name
    memory, origin = _memory(read, row)
    peak = 2 * _rate(read, "peak_compute_8bit_MACs")
    vector = FLOPS_PER_NON_LINEAR * _rate(read, "peak_compute_8bit_NLINs")
    share, share_source = _efficiency(read)
    curve = {"points": [[0, share]]}
    per_node = read.count("number_of_accelerators_per_node")
    network = _network(read, per_node)
    cores = read.number("number_of_cores", 1)
    read.done()
    text = "AMPeD configuration" + (f", its lookup table's row {row}" if row else "")
    return {
        "name": f"amped-{called}",
        "description": "Imported from an AMPeD configuration.",
        "accelerator": {
            "name": row or name,
            "multiprocessors": int(cores) if "number_of_cores" in config else None,
            "matrix": dict.fromkeys(_TYPES, peak),
            "vector": {"fp32": vector},
            "memory": [memory],
            "matmul_curve": dict.fromkeys(_TYPES, curve),
            "attention": None,
            "memory_bound": {"efficiency": 1, "launch": 0},
            "processing": "roofline",
        },
        "node": {"accelerators": per_node},
        "network": network,
        "sources": {
            "": {"kind": "published", "text": text},
            "accelerator.matmul_curve": share_source,
            "accelerator.memory": origin,
            **_ASSUMED,
        },
    }


_ASSUMED = {
    "accelerator.matrix": {
        "kind": "published",
        "text": "AMPeD's peak rate, the same for all types of up to 32 bits there; 2 FLOP "
        "for a multiply-accumulate",
    },
    "accelerator.vector": {
        "kind": "assumed",
        "text": f"AMPeD's peak rate of non-linear operations, {FLOPS_PER_NON_LINEAR} FLOP each, "
        "as an activation has here",
    },
    "accelerator.memory_bound": {
        "kind": "assumed",
        "text": "AMPeD has no memory in its time; here kernels move their bytes at its bandwidth",
    },
    "accelerator.processing": {
        "kind": "assumed",
        "text": "AMPeD has no memory in its time; here the longer of compute and memory counts",
    },
    "network.0.collectives.all_to_all": {"kind": "assumed", "text": "latency as of a ring"},
    "network.1.collectives.all_to_all": {"kind": "assumed", "text": "latency as of a ring"},
}


def _rate(read: Reader, peak: str) -> float:
    """A peak rate: set, or the product of what it is calculated from [operation/s]."""
    if peak in read.config:
        return read.number(peak)
    inputs = [read.number(needed) for needed in DERIVED[peak].inputs]
    return float(DERIVED[peak].function(*inputs))


def _efficiency(read: Reader) -> tuple[float, dict[str, str]]:
    """Share of the peak: AMPeD's constant, or that of the four kinds of products where set.

    Shares that are set combine as the times of one layer do: sum of MAC / sum of (MAC / share).
    AMPeD calculates the four for its list of products; only those that are set count here.
    """
    config = read.config
    own = [n for n in _SHARES if n in config and config[n].origin != "calculated"]
    constant = {"kind": "fitted", "text": "AMPeD's constant share of the peak, 0.51"}
    overall = ["efficiency"] if "efficiency" in config else []
    if not own and not overall:
        return EFFICIENCY, constant
    for name in [*overall, *own]:
        if not LEAST_SHARE <= config[name].value <= 1:
            read.fault(name, f"must be a share from {LEAST_SHARE:g} to 1")
            return EFFICIENCY, constant
    if overall:
        return config["efficiency"].value, {"kind": "published", "text": "set in its file"}
    work = {n: _operations(read, *of) for n, of in _SHARES.items()}
    shares = {n: config[n].value if n in own else EFFICIENCY for n in _SHARES}
    time = sum(work[n] / shares[n] for n in _SHARES)
    text = f"{', '.join(own)} of the configuration, weighted by the operations of a layer"
    return sum(work.values()) / time, {"kind": "published", "text": text}


def _operations(read: Reader, name: str, heads: str | None, kinds: int) -> float:
    """Multiply-accumulates of one kind of product in a layer."""
    if name in read.config:
        one = read.number(name)
    else:
        needed = DERIVED[name].inputs
        values = {n: read.number(n, _implied(read, n)) for n in needed}
        one = float(DERIVED[name].function(**values))
    return one * kinds * (read.number(heads) if heads else 1.0)


def _implied(read: Reader, name: str) -> float | None:
    if name == "hidden_layer_dimension_MLP_1":
        return read.number("dimensionality")
    if name == "hidden_layer_dimension_for_attention_sublayers":
        return read.number("dimensionality") / read.number("attention_heads")
    return None


def _network(read: Reader, per_node: int) -> list[dict[str, object]]:
    """Links inside a node, and the network cards that its accelerators share."""
    inside = read.number("inter_accelerator_bandwidth", None if per_node > 1 else 1e12)
    first_latency = read.number("inter_accelerator_latency", None if per_node > 1 else 0.0)
    first = _tier("node", inside, first_latency) | {"domain": per_node}
    if not has_network(read.config):
        for words in ("data", "tensor", "pipeline"):
            if read.number(f"inter_node_{words}_parallel_degree", 1) > 1:
                read.number("bandwidth_per_network_card")
                break
        return [first]
    cards = read.count("number_of_network_cards_per_node", _cards(read))
    if "inter_node_bandwidth" in read.config:
        card = read.number("inter_node_bandwidth") / cards
    else:
        card = read.number("bandwidth_per_network_card")
    second = _tier("between nodes", card, read.number("inter_node_latency"))
    return [first, second | {"domain": None, "links_per_node": cards}]


def _cards(read: Reader) -> int:
    """One for each accelerator that is used, as AMPeD calculates it."""
    used = 1
    for words in ("data", "tensor", "pipeline"):
        used *= read.count(f"intra_node_{words}_parallel_degree", 1)
    return used


def _tier(name: str, bit_per_s: float, latency: float) -> dict[str, Any]:
    """A ring of n - 1 steps, twice that for an all-reduce, at the full bandwidth.

    Between nodes an all-reduce waits for doublings instead, as on all systems here.
    """
    ring = {"latency": latency, "latency_per_member": latency, "efficiency": {1: 1}}
    twice = ring | {"latency": 2 * latency, "latency_per_member": 2 * latency}
    return {
        "name": name,
        "bandwidth": bit_per_s / _BITS,
        "join_exponent": 1,
        "collectives": {
            "all_reduce": twice,
            **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), ring),
            "p2p": ring | {"latency_per_member": 0},
        },
    }


def _memory(read: Reader, row: str | None) -> tuple[dict[str, object], dict[str, str]]:
    """Capacity and bandwidth: from the file, from the row, or of the catalog's system."""
    found: dict[str, object] = {"name": "hbm"}
    read_from = []
    for figure, names, range_ in (
        ("capacity", MEMORY_CAPACITY, _CAPACITY),
        ("bandwidth", MEMORY_BANDWIDTH, _BANDWIDTH),
    ):
        if (name := next((n for n in names if n in read.config), None)) is not None:
            one = read.config[name]
            value, raw, where = one.value, one.raw, "the configuration"
        elif (
            name := next((n for n in names if n in read.config.accelerator_row), None)
        ) is not None:
            raw, where = (
                read.config.accelerator_row[name],
                f"row {row} of {read.config.tables_source}",
            )
            value = _number(read, name, raw)
        else:
            continue
        found[figure] = value
        read_from.append(f"{name} of {where}")
        _check_memory(read, name, raw, value, range_)
    if {"capacity", "bandwidth"} <= found.keys():
        return found, {"kind": "published", "text": f"{' and '.join(read_from)}; in bytes"}
    known = _of_catalog(row)
    if known is None:
        lacking = {"capacity": "memory_capacity", "bandwidth": "memory_bandwidth"}
        of = f"no system of the catalog is called like the row {row}" if row else "no row is named"
        for figure, name in lacking.items():
            if figure not in found:
                such = {"capacity": "16 GB", "bandwidth": "732 GB/s"}[figure]
                problem = f"AMPeD has no memory, and {of}; add it to {CATEGORIES[-1]}, such as"
                read.missing(name, f"{problem} {such}")
        return {"name": "hbm", "capacity": 1e9, "bandwidth": 1e9}, {"kind": "assumed", "text": "-"}
    system, memory = known
    text = f"AMPeD has no memory; that of {system}, by the name of its row {row}"
    return {**memory, **found}, {"kind": "assumed", "text": text}


def _number(read: Reader, name: str, value: object) -> float:
    try:
        return parse_amped(value)
    except ValueError as error:
        read.missing(name, f"row in {read.config.tables_source}: {error}")
        return 1.0


def _check_memory(
    read: Reader, name: str, raw: object, value: float, range_: tuple[float, float]
) -> None:
    """Refuse a value in bits, or so small or large that it must have another unit."""
    letters = unit_letters(raw)
    if re.match(r"b($|/|it|ps)", letters):
        read.fault(name, f"must be in bytes, not {letters}")
    elif not range_[0] <= value <= range_[1]:
        least, most = range_
        read.fault(name, f"must be in bytes, from {least:g} to {most:g}")


def _of_catalog(row: str | None) -> tuple[str, Mapping[str, object]] | None:
    """The catalog's system that a row is called like, and its nearest memory."""
    if row is None:
        return None
    plain = catalog.canonical(row).removeprefix("nvidia-")
    names = [_CATALOG.get(plain, plain), *(plain + form for form in _FORMS)]
    names += [f"{kind}-{size}-{form}" for kind, form, size in _sized(plain)]
    for name in names:
        if (path := catalog.find("systems", name)) is not None:
            return path.stem, files.read_mapping(path)["accelerator"]["memory"][0]
    return None


def _sized(name: str) -> list[tuple[str, str, str]]:
    """Kind, form and size of a name that has them in another order: A100 SXM 40GB."""
    match = re.fullmatch(r"([a-z0-9]+)-(sxm|pcie)\d?-(\d+gb)", name)
    return [(match[1], match[2], match[3])] if match else []

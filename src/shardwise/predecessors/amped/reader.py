"""AMPeD's configurations as fields of our `Model` and `Strategy`; `docs/from/amped.md` lists them.

One file holds model, system and strategy. What it leaves open is filled in as AMPeD's formulas have
it, or as GPT-2 has it, and has a source that says so.

AMPeD's accelerator and network as fields of our `System`.

AMPeD has one rate for products, one for the rest, and latency and bandwidth of two networks. It has
no memory: that is set in addition to its parameters, or is that of the catalog's system of the same
name.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from shardwise import catalog
from shardwise.config.extents import extents_text
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest
from shardwise.predecessors.amped.files import (
    CATEGORIES,
    DERIVED,
    KNOWN,
    MEMORY_BANDWIDTH,
    MEMORY_CAPACITY,
    AmpedConfig,
    Parameter,
    parse_amped,
    unit_letters,
)
from shardwise.units import LEAST_SHARE

_HINTS = {
    "dimensionality": "width of the network, such as 1024",
    "attention_heads": "such as 16",
    "layers": "such as 24",
    "context": "tokens per sequence, such as 2048",
    "number_of_tokens_in_vocabulary": "such as 50257",
    "hidden_layer_dimension_MLP_2": "inner width of the MLP, such as 4096",
    "batch_size": "sequences in a step, of all replicas together",
    "weight_precision": "bits: 8, 16, 32",
    "frequency": "such as 1.41 GHz",
    "number_of_accelerators_per_node": "such as 8",
    "inter_accelerator_bandwidth": "in bit/s, such as 2.4 T",
    "inter_accelerator_latency": "in seconds, such as 1 us",
    "bandwidth_per_network_card": "in bit/s, such as 200 G",
    "inter_node_latency": "in seconds, such as 5 us",
}


def has_network(config: AmpedConfig) -> bool:
    """Whether a configuration has a network between nodes."""
    return "inter_node_bandwidth" in config or "bandwidth_per_network_card" in config


class Reader:
    """Numbers by name; what is missing or wrong is collected until `done`.

    A missing number is read as 1, so that the caller can go on to the next.
    """

    def __init__(self, config: AmpedConfig) -> None:
        self.config = config
        self._faults: list[Fault] = []

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter's value, or the default where the file does not have it."""
        if name in self.config:
            return self.config[name].value
        if default is None:
            self.missing(name, _HINTS.get(name, "such as another accelerator's row has it"))
            return 1.0
        return float(default)

    def count(self, name: str, default: int | None = None) -> int:
        """The same of a count or a number of bits."""
        value = self.number(name, default)
        if not value.is_integer() or value < 1:
            self.fault(name, "must be a whole number of at least 1")
            return 1
        return int(value)

    def fault(self, name: str, problem: str) -> None:
        """Collect a fault of a parameter that is there, or of what it is calculated from."""
        self._faults.append(self._named(name, problem))

    def missing(self, name: str, what: str) -> None:
        """Collect a fault of a parameter that is not there."""
        hint = nearest(name, [one for one in self.config.parameters if one not in KNOWN])
        fault = Fault(source=self.config.source, field=name, problem=f"is missing: {what}{hint}")
        self._faults.append(fault)

    def done(self) -> None:
        """Raise an `InputError` if anything was wrong."""
        if self._faults:
            raise InputError(list(dict.fromkeys(self._faults)))

    def _named(self, name: str, problem: str) -> Fault:
        place: dict[str, Any] = {"source": self.config.source, "field": name, "problem": problem}
        one: Parameter | None = self.config.parameters.get(name)
        if one is None:
            return Fault(**place)
        value = one.raw if one.raw is not None else one.value
        return Fault(**(place | {"field": one.place, "value": value, "has_value": True}))


DTYPES = {8: "bf16", 16: "bf16", 32: "fp32"}
"""Types by AMPeD's precision in bits; with 8 bits products run in fp8 and the rest in 16."""
_WITHOUT_BF16 = re.compile(r"(nvidia-)?(v100|p100|p40|t4|titan)\b.*")
_OPTIMIZERS = {8: "adamw-8bit", 16: "adamw-bf16", 32: "adamw"}
_AXES = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
_STACK = "megatron-core-2025"


def model_fields(config: AmpedConfig, name: str) -> dict[str, Any]:
    """A decoder like GPT-2 of AMPeD's widths, with experts in every second layer if any."""
    read = Reader(config)
    hidden = read.count("dimensionality")
    heads = read.count("attention_heads")
    ffn = read.count("hidden_layer_dimension_MLP_2")
    vocab = read.count("number_of_tokens_in_vocabulary")
    layers = read.count("layers")
    context = read.count("context")
    experts = read.count("number_of_experts", 1)
    head_dim = _head_dim(read, hidden, heads)
    if "hidden_layer_dimension_MLP_1" in config and read.count("hidden_layer_dimension_MLP_1") != (
        hidden
    ):
        problem = f"must be the dimensionality {hidden}, the width that an MLP reads and writes"
        read.fault("hidden_layer_dimension_MLP_1", problem)
    if experts > 1 and layers < 2:  # noqa: PLR2004 - every second one
        read.fault("number_of_experts", "every second layer has experts; there is only one")
    read.done()
    attention = {"heads": heads, "kv_heads": heads, "head_dim": head_dim, "bias": "all"}
    dense = {
        "count": layers - (layers // 2 if experts > 1 else 0),
        "attention": attention,
        "mlp": {"ffn": ffn, "activation": "gelu", "bias": True},
    }
    sparse = {
        "count": layers // 2,
        "attention": attention,
        "moe": {"experts": experts, "top_k": 1, "ffn": ffn, "activation": "gelu", "bias": True},
    }
    row = config.rows.get(CATEGORIES[0])
    published = {"": _published(config, "neural_network_training_parameters")}
    alternating = {"layers": [dense, sparse], "interleave": [1, 1]} if experts > 1 else {}
    return {
        "name": catalog.canonical(row) if row else name,
        "description": "Imported from an AMPeD configuration.",
        "hidden": hidden,
        "vocab": vocab,
        "seq_len": context,
        "layers": [dense],
        **alternating,
        "norm": "layernorm",
        "position": "learned",
        "tied_embeddings": True,
        "sources": published | _assumed_of_model(experts),
    }


def _head_dim(read: Reader, hidden: int, heads: int) -> int:
    """Width of a head: set, or set as that of all heads, or an equal share of the model's width."""
    names = ("hidden_layer_dimension_for_attention_sublayers", "key_query_value_length")
    found = {}
    for name in names:
        if name in read.config:
            width = read.count(name)
            if width == hidden and heads > 1:
                if hidden % heads:
                    read.fault(name, f"is the width of all heads, which {heads} do not divide")
                width = max(hidden // heads, 1)
            found[name] = width
    if not found:
        if hidden % heads:
            read.missing(names[0], f"{heads} heads do not divide the dimensionality {hidden}")
        return max(hidden // heads, 1)
    first, *rest = found.values()
    if any(other != first for other in rest):
        problem = f"contradicts {names[1]} {rest[0]}: both are the width of one head"
        read.fault(names[0], problem)
    return first


def _assumed_of_model(experts: int) -> dict[str, Any]:
    of_gpt2 = "not set; as in GPT-2"
    sources = {
        "norm": _assumed(of_gpt2),
        "position": _assumed("not set; learned as in GPT-2, one row for each token of a context"),
        "tied_embeddings": _assumed("AMPeD counts the embedding's parameters once"),
        "layers.0.attention.bias": _assumed(of_gpt2),
        "layers.0.mlp.activation": _assumed(of_gpt2),
        "layers.0.mlp.bias": _assumed(of_gpt2),
    }
    if experts > 1:
        one = "not set; AMPeD counts the products of one expert for each token"
        sources["layers.1.moe.top_k"] = _assumed(one)
        sources["interleave"] = _assumed("AMPeD has experts in every second layer")
    return sources


def strategy_fields(config: AmpedConfig) -> dict[str, object]:
    """Degrees, batch, types and what AMPeD's time model assumes."""
    read = Reader(config)
    inside, degrees = _degrees(read)
    batch = read.count("batch_size")
    micro_batches = read.count("number_of_microbatches_per_minibatch", degrees["pp"])
    if "batch_size" in config and batch % (degrees["dp"] * micro_batches):
        problem = f"must be a multiple of {micro_batches} micro-batches x {degrees['dp']} replicas"
        read.fault("batch_size", problem)
    types = _types(read)
    experts = read.count("number_of_experts", 1)
    fields = {
        **degrees,
        "micro_batch_size": max(batch // (degrees["dp"] * micro_batches), 1),
        "global_batch_size": batch,
        "seq_len": read.count("context"),
        **types,
        "dp_overlap": False,
        "any_software": True,  # AMPeD binds nothing to what software runs
        **fields_by_degrees(experts=experts, **degrees),
    }
    if has_network(config):  # else all of it is one node
        fields["extents"] = extents_text([inside])
    read.done()
    return fields


def fields_by_degrees(*, tp: int, pp: int, dp: int, experts: int) -> dict[str, object]:
    """What AMPeD's models of time and memory assume, as far as degrees matter."""
    # Experts need tokens split along the sequence; both ways send the same bytes.
    fields: dict[str, object] = {"tp_exchange": "rs_ag" if experts > 1 and tp > 1 else "all_reduce"}
    if tp > 1:
        fields["tp_overlap"] = "none"
    if dp > 1:
        fields["zero"] = 3 if pp == 1 else 1
    if experts > 1:
        fields["ep"] = math.gcd(experts, dp)
    return fields


def _degrees(read: Reader) -> tuple[dict[str, int], dict[str, int]]:
    """Members of each axis inside a node, and in all; a degree that is not set is 1."""
    inside, total = {}, {}
    for axis, words in _AXES.items():
        intra, inter, product = (
            f"{part}{words}_parallel_degree" for part in ("intra_node_", "inter_node_", "")
        )
        if product in read.config and intra not in read.config and inter not in read.config:
            problem = f"{intra} and {inter} place its members; set them"
            read.missing(intra, problem)
        inside[axis] = read.count(intra, 1)
        total[axis] = inside[axis] * read.count(inter, 1)
    return inside, total


def _types(read: Reader) -> dict[str, object]:
    """Types of weights and activations, of gradients, and of the optimizer's state."""
    weights = read.count("weight_precision")
    activations = read.count("activation_precision", weights)
    if "weight_precision" in read.config and weights not in DTYPES:
        read.fault("weight_precision", f"allowed: {', '.join(map(str, DTYPES))} bits")
    elif "weight_precision" in read.config and activations != weights:
        problem = f"must be as weight_precision {weights}: a strategy has one type for both"
        read.fault("activation_precision", problem)
    gradients = read.count("gradient_precision", 32)
    types: dict[str, object] = {"dtype": DTYPES.get(weights, "bf16")}
    if types["dtype"] == "bf16" and _lacks_bf16(read.config):
        types["dtype"] = "fp16"
    if weights == min(DTYPES):
        types["quantization"] = "fp8_tensor"
    if gradients == 16:  # noqa: PLR2004 - bits
        types["stack"] = {"base": _STACK, "gradient_dtype": "compute"}
    elif gradients != max(DTYPES):
        read.fault("gradient_precision", "allowed: 16, 32 bits")
    state = read.count("optimizer_state_precision", 32)
    if state not in _OPTIMIZERS:
        allowed = ", ".join(map(str, _OPTIMIZERS))
        read.fault("optimizer_state_precision", f"allowed: {allowed} bits")
    else:
        types["optimizer"] = _OPTIMIZERS[state]
    return types


def _lacks_bf16(config: AmpedConfig) -> bool:
    """Whether the accelerator's row names one that has fp16 but not bf16."""
    row = catalog.canonical(config.rows.get(CATEGORIES[-1], ""))
    return _WITHOUT_BF16.fullmatch(row) is not None


def _published(config: AmpedConfig, category: str) -> dict[str, str]:
    row = config.rows.get(category)
    text = "AMPeD configuration" + (f", its lookup table's row {row}" if row else "")
    return {"kind": "published", "text": text}


def _assumed(text: str) -> dict[str, str]:
    return {"kind": "assumed", "text": text}


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
    if match := re.fullmatch(r"([a-z0-9]+)-(sxm|pcie)\d?-(\d+gb)", plain):  # A100 SXM 40GB
        names.append(f"{match[1]}-{match[3]}-{match[2]}")
    for name in names:
        if (path := catalog.find("systems", name)) is not None:
            return path.stem, System.load(path.stem).accelerator.memory[0].to_dict()
    return None

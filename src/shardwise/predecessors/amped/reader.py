"""AMPeD's configurations as fields of our `Model` and `Strategy`; `docs/from/amped.md` lists them.

One file holds model, system and strategy. What it leaves open is filled in as AMPeD's formulas have
it, or as GPT-2 has it, and has a source that says so.
"""

import math
import re
from typing import Any

from shardwise import catalog
from shardwise.config.extents import extents_text
from shardwise.errors import Fault, InputError, nearest
from shardwise.predecessors.amped.files import AmpedConfig
from shardwise.predecessors.amped.parameters import CATEGORIES, KNOWN, Parameter

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

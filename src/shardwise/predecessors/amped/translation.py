"""Runs as AMPeD describes them: shardwise configurations, or its own parameters.

Shardwise configurations in AMPeD's parameters.

A node is a domain of the first network tier, as far as the run fills one; links have the bandwidth
of the data sheet, and one hop of a ring the latency per further member of an all-gather. The peak
of the matrix units is cut into cores with one unit each and the multiply-accumulates of a cycle of
1 GHz; that of the vector units likewise, where AMPeD counts one core alone. Tokens to train are
those of one batch.

Left out, because it has nothing of the kind:

- of a model its name, positions, residuals, causal masks (all pairs are scored), dropout, the kinds
  of norm and of activation, and which products have biases;
- of a system its names, price, power, kernels of every kind (products reach 0.51 of the peak),
  memory, network tiers between the first and the outermost, and what sets collectives apart;
- of a strategy the stack, what hides communication (nothing does), ZeRO (memory is always divided
  by all accelerators, communication always grows by a quarter) and which tensor-parallel
  collectives stand for two all-reduces; of experts their placement (distributed over the nodes).

Whatever else it has no word for is refused by name.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.config.enums import Optimizer, Quantization
from shardwise.config.model import Model, ModelLike
from shardwise.config.network import Tier
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import Accelerator, System, SystemLike
from shardwise.errors import Fault, refuse
from shardwise.parallel.placement import place
from shardwise.predecessors.amped import reference as amped
from shardwise.predecessors.amped.files import BY_DEFINITION
from shardwise.predecessors.amped.reference import EFFICIENCY, LABELS, MEMORY, MicrobatchEfficiency
from shardwise.predecessors.translation import (
    PLAIN,
    layer_lacks,
    refusals_of,
    unsupported_fields,
    with_dtype_of,
)

_fault = refusals_of("AMPeD")
_BITS_PER_BYTE = 8
_CYCLES = 1e9
_FLOP_PER_MAC = 2
BITS = {"fp16": 16, "bf16": 16, "fp32": 32}
"""Of our types."""
_STATE_BITS = 32
_TIERS = 2
_MOST_KINDS = 2


def model_for_amped(
    model: ModelLike, *, seq_len: int | None = None, dtype: str = "bf16"
) -> dict[str, float]:
    """Return a model of the catalog or of a file in AMPeD's parameters, but for batch and tokens.

    Parameters
    ----------
    seq_len
        Tokens of a sequence; by default the model's.
    dtype
        Type of weights, activations and gradients; the optimizer has three states of 32 bits.
    """
    loaded = Model.load(model)
    length = seq_len or loaded.seq_len
    refuse(_model_faults(loaded, length))
    layer, bits = loaded.layers[0], BITS[dtype]
    experts = {one.moe.experts for one in loaded.layers if one.moe is not None} or {1}
    found: dict[str, float] = {
        "context": float(length or 0),
        "dimensionality": loaded.hidden,
        "attention_heads": layer.own_attention.heads,
        "layers": sum(one.count for one in loaded.layers),
        "number_of_tokens_in_vocabulary": loaded.vocab,
        "hidden_layer_dimension_for_attention_sublayers": layer.own_attention.head_dim,
        "key_query_value_length": layer.own_attention.head_dim,
        "hidden_layer_dimension_MLP_1": loaded.hidden,
        "hidden_layer_dimension_MLP_2": layer.feed_forward.ffn,
        "number_of_experts": max(experts),
        "weight_precision": bits,
        "activation_precision": bits,
        "gradient_precision": bits,
        "optimizer_state_precision": _STATE_BITS,
        "OPS_per_MAC": _FLOP_PER_MAC,
        "decoder_flag": 1 if loaded.vocab else 0,
    }
    return {name: float(value) for name, value in found.items()}


def _model_faults(model: Model, length: int | None) -> Iterator[Fault]:
    if length is None:
        yield _fault(model.name, "seq_len", None, "needs the length of a sequence")
    if model.mtp:
        yield _fault(model.name, "mtp", model.mtp, "knows no multi-token prediction")
    yield from _kinds_faults(model)
    width = f"has an output of width {model.hidden} x {model.hidden}: heads must divide it"
    for index, layer in enumerate(model.layers):
        where = f"layers[{index}]"
        for lacking, value, problem in layer_lacks(model, layer, where, width):
            yield _fault(model.name, lacking, value, problem)
        if layer.moe is not None and layer.moe.top_k != 1:
            problem = "sends a token to one expert; allowed: 1"
            yield _fault(model.name, f"{where}.moe.top_k", layer.moe.top_k, problem)
        if layer.moe is not None and layer.moe.shared_ffn > 0:
            problem = "knows no shared expert; allowed: 0"
            yield _fault(model.name, f"{where}.moe.shared_ffn", layer.moe.shared_ffn, problem)


def _kinds_faults(model: Model) -> Iterator[Fault]:
    """All layers equal, or experts in every second one."""
    moe = [layer.count for layer in model.layers if layer.moe is not None]
    kinds = len(model.layers)
    equal = kinds == 1 and not moe
    second = kinds == _MOST_KINDS and len(moe) == 1 and model.interleave == (1, 1)
    if not equal and not (second and moe[0] == sum(one.count for one in model.layers) // 2):
        problem = "knows one kind of layer, or experts in every second layer (interleave 1, 1)"
        yield _fault(model.name, "layers", kinds, problem)
    elif second:
        first, last = model.layers
        if not (first.is_transformer and last.is_transformer):
            return
        if first.attention != last.attention or first.feed_forward.ffn != last.feed_forward.ffn:
            problem = "has equal attention and inner width in all layers and experts"
            yield _fault(model.name, "layers[1]", "another", problem)


def system_for_amped(system: SystemLike, *, dtype: str = "bf16") -> dict[str, float]:
    """Return a system of the catalog or of a file in AMPeD's parameters, with full nodes."""
    loaded = System.load(system)
    refuse(_system_faults(loaded, dtype))
    inner, outer = loaded.network[0], loaded.network[-1]
    domain, node = inner.domain or loaded.node.accelerators, loaded.node.accelerators
    return _units(loaded.accelerator, dtype) | {
        "number_of_accelerators_per_node": float(domain),
        "number_of_network_cards_per_node": domain * (outer.links_per_node or node) / node,
        "bandwidth_per_network_card": outer.bandwidth * _BITS_PER_BYTE,
        "inter_node_latency": _latency(outer),
        "inter_accelerator_bandwidth": inner.bandwidth * _BITS_PER_BYTE,
        "inter_accelerator_latency": _latency(inner),
    }


def _units(chip: Accelerator, dtype: str) -> dict[str, float]:
    """Peaks cut into cores and cycles."""
    cores = chip.multiprocessors or 1
    matrix = {str(kind): rate for kind, rate in chip.matrix.items()}
    vector = {str(kind): rate for kind, rate in chip.vector.items()}
    plain = vector[dtype if dtype in vector else "fp32"]
    rate = _CYCLES * cores * _FLOP_PER_MAC
    return {
        "frequency": _CYCLES,
        "number_of_cores": float(cores),
        "functional_units_per_core": 1.0,
        "functional_unit_hardware_8bit_MAC_per_cycle": matrix[dtype] / rate,
        "non_linear_functional_units_per_core": 1.0,
        "non_linear_functional_unit_hardware_8bit_NLIN_per_cycle": plain / rate,
    }


def _latency(tier: Tier) -> float:
    """Time of one hop of a ring."""
    rates = tier.collectives["all_gather"]
    return rates.latency_per_member or rates.latency


def _system_faults(system: System, dtype: str) -> Iterator[Fault]:
    if dtype not in system.accelerator.matrix:
        types = ", ".join(system.accelerator.matrix)
        yield _fault(system.name, "accelerator.matrix", types, f"needs the rate of {dtype}")
    if not {dtype, "fp32"} & set(system.accelerator.vector):
        types = ", ".join(system.accelerator.vector)
        yield _fault(system.name, "accelerator.vector", types, f"needs the rate of {dtype} or fp32")
    if len(system.network) < _TIERS:
        problem = "knows a network in a node and one among nodes; give two tiers"
        yield _fault(system.name, "network", len(system.network), problem)


def mapping_for_amped(
    model: Model, system: System, strategy: Strategy, source: str
) -> dict[str, float]:
    """Return degrees, batch, tokens and used accelerators per node of a resolved strategy.

    `source` is what faults call it.
    """
    refuse(_strategy_faults(strategy, source, experts=any(x.moe for x in model.layers)))
    extents = place(system, Table.of(model, [strategy]))
    found: dict[str, float] = {}
    inside = 1
    for axis, word in (("dp", "data"), ("tp", "tensor"), ("pp", "pipeline")):
        intra, degree = int(getattr(extents, axis)[0, 0]), getattr(strategy, axis)
        found[f"intra_node_{word}_parallel_degree"] = intra
        found[f"inter_node_{word}_parallel_degree"] = degree // intra
        inside *= intra
    batch = strategy.global_batch_size or 1
    found["batch_size"] = batch
    replica = batch / (strategy.dp or 1)
    found["number_of_microbatches_per_minibatch"] = replica / strategy.micro_batch_size
    found["number_of_accelerators_per_node"] = inside
    found["tokens_to_train"] = batch * (strategy.seq_len or 0)
    return {name: float(value) for name, value in found.items()}


_ONLY: dict[str, object] = {
    **PLAIN,
    "cp": 1,
    "tp2": 1,
    "expert_capacity": None,
    "expert_imbalance": 1.0,
    "dispatch_dtype": "dtype",
    "expert_overlap": False,
}


def _strategy_faults(strategy: Strategy, source: str, *, experts: bool) -> Iterator[Fault]:
    yield from unsupported_fields(strategy, _ONLY, "AMPeD", source)
    if strategy.ep > 1 and not experts:
        yield _fault(source, "ep", strategy.ep, "does not know it; allowed without experts: 1")
    if strategy.attention == "multiquery":
        problem = "has keys and values of its own for each head; allowed: model, multihead"
        yield _fault(source, "attention", strategy.attention, problem)
    if strategy.schedule not in ("1f1b", "gpipe"):
        problem = "knows one bubble of a pipeline; allowed: 1f1b, gpipe"
        yield _fault(source, "schedule", strategy.schedule, problem)
    if strategy.tp > 1 and strategy.tp_exchange not in ("all_reduce", "rs_ag"):
        problem = "knows two all-reduces of a layer; allowed: all_reduce, rs_ag"
        yield _fault(source, "tp_exchange", strategy.tp_exchange, problem)
    if strategy.tp_overlap not in ("stack", "none"):
        yield _fault(source, "tp_overlap", strategy.tp_overlap, "hides none; allowed: stack, none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmpedCase:
    """A run as AMPeD describes it."""

    parameters: Mapping[str, float]
    """By its names, without what follows from them."""
    efficiency: float | MicrobatchEfficiency = EFFICIENCY
    rows: Mapping[str, str] = field(default_factory=dict)
    """Rows of the lookup tables: `transformer`, `accelerator`."""
    assumed: Mapping[str, float] = field(default_factory=dict)
    """Those of the parameters that were assumed."""
    source: str = "parameters"

    def figures(self) -> dict[str, float]:
        """Return all that its formulas give, by the names of its parameters and methods."""
        found = amped.evaluate(self.parameters, efficiency=self.efficiency, source=self.source)
        return {name: float(value) for name, value in found.items()}

    def answer(self) -> dict[str, Any]:
        """Return the lines of its breakdown, memory, batches, and what was assumed, if anything."""
        figures = self.figures()
        found: dict[str, object] = {label: figures[name] for label, name in LABELS.items()}
        found |= {name: figures[name] for name in MEMORY}
        found["number_of_batches"] = figures["number_of_batches"]
        return found | ({"assumed": dict(self.assumed)} if self.assumed else {})

    def layers(self) -> list[dict[str, Any]]:
        """Return the terms of its time model, of one layer and batch [s]."""
        figures = self.figures()
        return [{"name": name, "seconds": figures[name]} for name in amped.TERMS]

    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Return rows, inner, columns of one layer's products, not divided by any degree."""
        return amped.layer_shapes({**self.figures(), **self.parameters})

    def breakdown_text(self) -> str:
        """Return its training_time_breakdown.txt."""
        return amped.breakdown_text(self.answer())

    def summary_text(self) -> str:
        """Return its config_summary.txt."""
        return amped.summary_text({**self.parameters, **self.figures()}, **self.rows)


def amped_case_of_parameters(
    parameters: Mapping[str, float],
    *,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
    rows: Mapping[str, str] | None = None,
    fill: bool = False,
    source: str = "parameters",
) -> AmpedCase:
    """Return a run described by AMPeD's own parameters.

    Parameters
    ----------
    parameters
        By its names; bandwidths in bit/s. What it can calculate need not be there, but for
        `decoder_flag`; what is, is used as it is.
    rows
        Rows of the lookup tables that were used: `transformer`, `accelerator`.
    fill
        Whether to assume what is not there, as an import of a configuration does: one expert, a
        head that counts, activations as weights, 32 bits of gradients and state, OPS_per_MAC 2,
        one member of an axis, one batch to train on.
    source
        What faults call them.
    """
    assumed = _assumed(parameters) if fill else {}
    case = AmpedCase(
        parameters={**parameters, **assumed},
        efficiency=efficiency,
        rows=rows or {},
        assumed=assumed,
        source=source,
    )
    case.figures()
    return case


_ASSUMED = {
    "number_of_experts": 1.0,
    "decoder_flag": 1.0,
    "OPS_per_MAC": 2.0,
    "gradient_precision": 32.0,
    "optimizer_state_precision": 32.0,
    **dict.fromkeys(amped.DEGREES, 1.0),
}
_WIDTH = "hidden_layer_dimension_for_attention_sublayers"
_LIKE = {"activation_precision": "weight_precision", "key_query_value_length": _WIDTH}


def _assumed(parameters: Mapping[str, float]) -> dict[str, float]:
    """What an import assumes of what is not there."""
    found = {name: value for name, value in _ASSUMED.items() if name not in parameters}
    if _WIDTH not in parameters and {"dimensionality", "attention_heads"} <= parameters.keys():
        found[_WIDTH] = parameters["dimensionality"] / max(parameters["attention_heads"], 1.0)
    for name, other in _LIKE.items():
        if name not in parameters and (value := {**parameters, **found}.get(other)) is not None:
            found[name] = value
    batches = {"tokens_to_train", "samples", "number_of_batches"} & parameters.keys()
    if not batches and {"batch_size", "context"} <= parameters.keys():
        found["tokens_to_train"] = parameters["batch_size"] * parameters["context"]
    return found


def free_parameters(parameters: Mapping[str, float]) -> dict[str, float]:
    """Parameters that do not follow from degrees and batch, and so are valid for any of these."""
    follow = {*BY_DEFINITION}
    if "tokens_to_train" in parameters:
        follow |= {"samples", "number_of_batches"}
    return {name: value for name, value in parameters.items() if name not in follow}


def amped_case_with(
    parameters: Mapping[str, float],
    model: Model,
    system: System,
    strategy: Strategy,
    *,
    changed: Collection[str],
    rows: Mapping[str, str],
    source: str,
) -> AmpedCase:
    """Return a run described by AMPeD's own parameters, with another strategy.

    Degrees, batch and length are the strategy's; its type of weights and activations counts where
    it was changed. All else, such as efficiency and tokens to train, stays as it is set.
    """
    resolved = strategy.resolved(model)
    # Types of the parameters are among them: only changed ones must be expressed.
    known = {"optimizer": Optimizer.ADAMW, "quantization": Quantization.NONE}
    resolved = resolved.model_copy(update={n: v for n, v in known.items() if n not in changed})
    mapping = mapping_for_amped(model, system, resolved, "strategy")
    for own in ("number_of_accelerators_per_node", "tokens_to_train"):
        del mapping[own]
    mapping["context"] = float(resolved.seq_len or 0)
    if "dtype" in changed:
        types = ("weight_precision", "activation_precision")
        mapping |= dict.fromkeys(types, float(BITS[resolved.dtype]))
    changed_parameters = free_parameters(parameters) | mapping
    return amped_case_of_parameters(changed_parameters, rows=rows, fill=True, source=source)


def amped_case(
    model: ModelLike,
    system: SystemLike,
    strategy: Strategy | Mapping[str, object] | str | Path,
    *,
    efficiency: float | MicrobatchEfficiency = EFFICIENCY,
    source: str = "strategy",
) -> AmpedCase:
    """Describe a run in AMPeD's words."""
    loaded, machine = Model.load(model), System.load(system)
    complete = with_dtype_of(machine, Strategy.load(strategy))
    resolved = complete.resolved(loaded, machine.stack)
    in_words = loaded.with_attention(resolved.attention)
    parameters = model_for_amped(in_words, seq_len=resolved.seq_len, dtype=resolved.dtype)
    parameters |= system_for_amped(machine, dtype=resolved.dtype)
    parameters |= mapping_for_amped(in_words, machine, resolved, source)
    rows = {"transformer": loaded.name, "accelerator": machine.name}
    return amped_case_of_parameters(parameters, efficiency=efficiency, rows=rows, source=source)

"""AMPeD's parameters: what each becomes here, or why nothing, and what is wrong with them.

AMPeD divides as real numbers do: with degrees that do not divide it computes with fractions of
layers, heads, sequences and nodes, without a word. Here each is a fault.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from shardwise.errors import Fault, refuse
from shardwise.predecessors.amped.formulas import MACHINE, NETWORK, Derived

DERIVED: Mapping[str, Derived] = NETWORK | MACHINE
"""Every quantity that AMPeD can calculate, by its name there."""

Purpose = Literal["model", "system", "strategy", "run"]
"""What parameters are for; `run`: the training run, in addition to the estimate of a step."""

CATEGORIES = (
    "neural_network_training_parameters",
    "mapping_parameters",
    "system_architecture_parameters",
    "accelerator_architecture_parameters",
)
MEMORY_CAPACITY = (
    *("memory_capacity", "main_memory_capacity", "memory_size", "main_memory_size"),
    *("hbm_capacity", "hbm_size", "dram_capacity", "memory"),
)
"""Names that the capacity of an accelerator's memory is known by; AMPeD itself reads none."""
MEMORY_BANDWIDTH = ("memory_bandwidth", "main_memory_bandwidth", "hbm_bandwidth", "dram_bandwidth")
"""The same of its bandwidth."""

# Fields of `Model`, `Strategy` and `System` that are read from a parameter.
_MODEL = {
    "dimensionality": "hidden",
    "attention_heads": "layers.attention.heads",
    "hidden_layer_dimension_for_attention_sublayers": "layers.attention.head_dim",
    "key_query_value_length": "layers.attention.head_dim",
    "hidden_layer_dimension_MLP_1": "hidden",
    "hidden_layer_dimension_MLP_2": "layers.mlp.ffn",
    "layers": "layers.count",
    "number_of_tokens_in_vocabulary": "vocab",
    "number_of_experts": "layers.moe.experts",
    "context": "seq_len",
}
_STRATEGY = {
    "batch_size": "global_batch_size",
    "minibatch_size": "global_batch_size",
    "microbatch_size": "micro_batch_size",
    "number_of_microbatches_per_minibatch": "micro_batch_size",
    "context": "seq_len",
    **{
        f"{where}_node_{words}_parallel_degree": f"{axis}, extents"
        for axis, words in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"))
        for where in ("intra", "inter")
    },
    "tensor_parallel_degree": "tp",
    "pipeline_parallel_degree": "pp",
    "data_parallel_degree": "dp",
    "weight_precision": "dtype",
    "activation_precision": "dtype",
    "gradient_precision": "stack.gradient_dtype",
    "optimizer_state_precision": "optimizer",
    "number_of_experts": "ep",
}
_SYSTEM = {
    "number_of_accelerators_per_node": "node.accelerators, network.0.domain",
    "inter_accelerator_bandwidth": "network.0.bandwidth",
    "inter_accelerator_latency": "network.0.collectives",
    "number_of_network_cards_per_node": "network.1.links_per_node",
    "bandwidth_per_network_card": "network.1.bandwidth",
    "inter_node_bandwidth": "network.1.bandwidth",
    "inter_node_latency": "network.1.collectives",
    **dict.fromkeys(
        (
            *("frequency", "number_of_cores", "functional_units_per_core"),
            *("functional_unit_hardware_8bit_MAC_per_cycle", "peak_compute_8bit_MACs"),
        ),
        "accelerator.matrix",
    ),
    **dict.fromkeys(
        (
            "non_linear_functional_units_per_core",
            "non_linear_functional_unit_hardware_8bit_NLIN_per_cycle",
            "peak_compute_8bit_NLINs",
        ),
        "accelerator.vector",
    ),
    **dict.fromkeys(MEMORY_CAPACITY, "accelerator.memory.0.capacity"),
    **dict.fromkeys(MEMORY_BANDWIDTH, "accelerator.memory.0.bandwidth"),
    "efficiency": "accelerator.matmul_curve",
    **{
        f"effective_perf_perc_{part}": "accelerator.matmul_curve"
        for part in ("K_Q_V", "attention", "output", "MLP")
    },
}
USES: Mapping[Purpose, Mapping[str, str]] = {
    "model": _MODEL,
    "strategy": _STRATEGY,
    "system": _SYSTEM,
    "run": {"tokens_to_train": "tokens"},
}
"""Shardwise fields that are read from a parameter, by purpose."""

_TILES = "only AMPeD's list of matrix products has tiles; efficiency here is one number"
_ITS_FORMULA = "computed here from operations and bytes"
_CONSTANT = "a constant of AMPeD's own time model (--also amped)"
_WHY = {
    **dict.fromkeys(("W_FU_MAC", "W_FU_NONLIN", "M_f_DP", "r_non_overlapping"), _CONSTANT),
    "samples": "follows from tokens, context and batch",
    "number_of_batches": "follows from tokens, context and batch",
    "summarization_len": "of inference; the estimate is of training",
    "OPS_per_MAC": "a multiply-accumulate is 2 FLOP here",
    "peak_compute_8bit_OPS": "a multiply-accumulate is 2 FLOP here",
    "decoder_flag": "the head is always counted here",
    "number_of_nodes": "the strategy's degrees set the number of accelerators",
    "total_number_of_accelerators": "the strategy's degrees set the number of accelerators",
    "total_intra_node_bandwidth": "each accelerator has its own link here",
    "bigger_tile_block_size": _TILES,
    "tile_block_size": _TILES,
}
COUNTS = frozenset(
    (
        *("batch_size", "context", "dimensionality", "attention_heads", "layers"),
        *("number_of_tokens_in_vocabulary", "number_of_experts", "key_query_value_length"),
        "hidden_layer_dimension_for_attention_sublayers",
        *("hidden_layer_dimension_MLP_1", "hidden_layer_dimension_MLP_2"),
        *("minibatch_size", "microbatch_size", "number_of_microbatches_per_minibatch"),
        *(name for name in _STRATEGY if name.endswith("_degree")),
        *("accelerators_per_node_required", "number_of_accelerators_required"),
        *("number_of_nodes_required", "number_of_accelerators_per_node"),
        *("number_of_network_cards_per_node", "number_of_cores"),
    )
)
"""Parameters that are whole numbers of at least 1."""
KNOWN = (
    frozenset((*_WHY, *DERIVED))
    | {name for fields in USES.values() for name in fields}
    | {needed for derived in DERIVED.values() for needed in derived.inputs}
)
"""Every parameter that AMPeD's formulas or this import know."""


def why_not(name: str) -> str:
    """Why a parameter has no meaning here."""
    if name in _WHY:
        return _WHY[name]
    if name.startswith(("parallelization_degree", "compute_intensity", "effective_perf_perc")):
        return _TILES
    if name in DERIVED:
        return _ITS_FORMULA
    return "unknown here, and no formula of AMPeD needs it"


_SAME = 1e-6
_ALIKE = 0.88
# More tokens in a step than any published training has, sixteen times over (DeepSeek-V3: 63 M).
_MOST_TOKENS = 1e9
BY_DEFINITION = (
    *("data_parallel_degree", "tensor_parallel_degree", "pipeline_parallel_degree"),
    *("minibatch_size", "microbatch_size", "accelerators_per_node_required"),
    *("number_of_accelerators_required", "number_of_nodes_required"),
)
"""Quantities that are what their formula says, so that another value contradicts its inputs."""
# Pairs of a number and what must divide it.
_DIVIDE = (
    ("tensor_parallel_degree", "attention_heads"),
    ("tensor_parallel_degree", "hidden_layer_dimension_MLP_2"),
    ("pipeline_parallel_degree", "layers"),
    ("data_parallel_degree", "batch_size"),
    ("number_of_microbatches_per_minibatch", "minibatch_size"),
    ("accelerators_per_node_required", "number_of_accelerators_per_node"),
)
_POSITIVE = ("bandwidth", "frequency", "per_cycle", "units_per_core", "precision", "peak_compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter, with its value and where it is from."""

    name: str
    category: str
    value: float = math.nan
    origin: Literal["given", "looked up", "calculated"] = "given"
    raw: object = None
    """What was read, as it is written; None for what was calculated."""
    written: object = None
    """The value in the configuration, used or not."""
    also_calculated: bool = False
    """Whether it was looked up though it is marked calculated too."""
    lookup_name: str | None = None
    description: str = ""

    @property
    def place(self) -> str:
        """Category and name, as faults name it."""
        return f"{self.category}.{self.name}"


def check_numbers(parameters: Iterable[Parameter], source: str) -> None:
    """Raise an `InputError` with one fault for each number that its parameter cannot have.

    For parameters that are set: what is calculated from them would be wrong for the same reason.
    """
    known = {one.name: one for one in parameters}
    refuse([*_not_numbers(known, source), *_misspelt(known, source)])


def check(parameters: Mapping[str, Parameter], source: str) -> None:
    """Raise an `InputError` with one fault for each thing that contradicts or cannot be."""
    refuse(_not_numbers(parameters, source))  # the others would follow from these
    faults = [
        *_contradicting(parameters, source),
        *_dividing(parameters, source),
        *_too_many_tokens(parameters, source),
    ]
    refuse(faults)


def _fault(one: Parameter, source: str, problem: str) -> Fault:
    value = one.raw if one.raw is not None else _plain(one.value)
    return Fault.of(one.place, value, problem, source)


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _not_numbers(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    for one in parameters.values():
        if not math.isfinite(one.value):
            yield _fault(one, source, "is not finite: check the values it is calculated from")
        elif one.name in COUNTS and (one.value < 1 or not one.value.is_integer()):
            rest = "" if one.origin != "calculated" else f" ({_formula(one.name, parameters)})"
            yield _fault(one, source, f"must be a whole number of at least 1{rest}")
        elif one.value < 0 or (one.value == 0 and any(word in one.name for word in _POSITIVE)):
            least = "above 0" if any(word in one.name for word in _POSITIVE) else "at least 0"
            yield _fault(one, source, f"must be {least}")


def _misspelt(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """Parameters that nothing knows, but for a letter or two."""
    for one in parameters.values():
        if one.name in KNOWN:
            continue
        free = KNOWN - set(parameters)
        if alike := get_close_matches(one.name, free, n=1, cutoff=_ALIKE):
            yield _fault(one, source, f"unknown parameter; did you mean {alike[0]!r}?")


def _formula(name: str, parameters: Mapping[str, Parameter]) -> str:
    """What a quantity is calculated from."""
    inputs = DERIVED[name].inputs
    return " and ".join(f"{i} {_plain(parameters[i].value):g}" for i in inputs if i in parameters)


def _values(parameters: Mapping[str, Parameter]) -> Callable[[str], float | None]:
    """Return a value, computed by AMPeD's formula where the file does not set it; or None."""

    def value(name: str) -> float | None:
        if name in parameters:
            return parameters[name].value
        if name not in DERIVED:
            return None
        inputs = [value(needed) for needed in DERIVED[name].inputs]
        return None if None in inputs else float(DERIVED[name].function(*inputs))

    return value


def _contradicting(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """Two ways of saying one thing that differ."""
    value = _values(parameters)
    for name in BY_DEFINITION:
        one = parameters.get(name)
        if one is None or one.origin == "calculated":
            continue
        inputs = [value(needed) for needed in DERIVED[name].inputs]
        if None in inputs:
            continue
        computed = float(DERIVED[name].function(*inputs))
        if abs(computed - one.value) > _SAME * abs(computed):
            inputs_make = f"{_formula(name, parameters)} make it {_plain(computed):g}"
            yield _fault(one, source, f"{inputs_make}; mark it calculated")
    nodes, per_node = value("number_of_nodes"), value("number_of_accelerators_per_node")
    needed, one = value("number_of_accelerators_required"), parameters.get("number_of_nodes")
    if one is not None and nodes and per_node and needed and nodes * per_node < needed - _SAME:
        problem = f"with {per_node:g} accelerators each, fewer than the {needed:g} of the degrees"
        yield _fault(one, source, problem)


def _dividing(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    value = _values(parameters)
    for divisor, divided in _DIVIDE:
        small, large = value(divisor), value(divided)
        if small and large and large.is_integer() and large % small:
            one = parameters.get(divisor) or Parameter(
                name=divisor, category=CATEGORIES[1], value=small
            )
            yield _fault(one, source, f"must divide {divided} {_plain(large):,}")


def _too_many_tokens(parameters: Mapping[str, Parameter], source: str) -> Iterator[Fault]:
    """A batch in tokens where AMPeD counts sequences."""
    batch, context = parameters.get("batch_size"), parameters.get("context")
    if batch is None or context is None:
        return
    tokens = batch.value * context.value
    trained = parameters.get("tokens_to_train")
    of = (
        f"counts sequences, of {_plain(context.value):,} tokens each: {tokens:.3g} tokens in a step"
    )
    if tokens > _MOST_TOKENS:
        meant = f"{batch.value / context.value:.0f}"
        problem = f"{of}, more than any training has; if tokens were meant, give {meant}"
        yield _fault(batch, source, problem)
    elif trained is not None and trained.value < tokens:
        yield _fault(batch, source, f"{of}, more than the tokens_to_train {trained.value:.3g}")

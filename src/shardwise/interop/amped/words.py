"""AMPeD's parameters: what becomes of each here, or why nothing does."""

from collections.abc import Mapping
from typing import Literal

from shardwise.interop.amped.derived import DERIVED

__all__ = [
    "CATEGORIES",
    "KNOWN",
    "MEMORY_BANDWIDTH",
    "MEMORY_CAPACITY",
    "USES",
    "WHOLE",
    "ConfigBase",
    "why_not",
]

ConfigBase = Literal["model", "system", "strategy", "run"]
"""What parameters are for; `run`: the whole training, beside the estimate of a step."""

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

# What becomes of a parameter: fields of our nouns, by the noun that reads it.
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
USES: Mapping[ConfigBase, Mapping[str, str]] = {
    "model": _MODEL,
    "strategy": _STRATEGY,
    "system": _SYSTEM,
    "run": {"tokens_to_train": "tokens"},
}
"""Fields that each noun takes from a parameter."""

_TILES = "only AMPeD's list of matrix products has tiles; efficiency here is one number"
_ITS_FORMULA = "worked out here anew, by operations and bytes"
_CONSTANT = "a constant of AMPeD's own time model (--also amped)"
_WHY = {
    **dict.fromkeys(("W_FU_MAC", "W_FU_NONLIN", "M_f_DP", "r_non_overlapping"), _CONSTANT),
    "samples": "follows from tokens, context and batch",
    "number_of_batches": "follows from tokens, context and batch",
    "summarization_len": "of inference; the estimate is of training",
    "OPS_per_MAC": "a multiply-accumulate is 2 FLOP here",
    "peak_compute_8bit_OPS": "a multiply-accumulate is 2 FLOP here",
    "decoder_flag": "the head is always counted here",
    "number_of_nodes": "the strategy's degrees say how many accelerators run",
    "total_number_of_accelerators": "the strategy's degrees say how many accelerators run",
    "total_intra_node_bandwidth": "each accelerator has its own link here",
    "bigger_tile_block_size": _TILES,
    "tile_block_size": _TILES,
}
# Counts: whole numbers of at least 1.
WHOLE = frozenset(
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
"""Parameters that count something."""
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

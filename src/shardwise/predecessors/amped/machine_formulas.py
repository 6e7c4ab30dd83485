"""What AMPeD calculates of mapping, cluster and accelerator, exactly as published.

As in `network_formulas`: AMPeD's names, inputs by signature, faults included. Bandwidths
are in bit/s, as the time model multiplies volumes by precisions in bits.
"""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

import numpy as np

from shardwise.arrays import Floats
from shardwise.predecessors.amped.formulas import Derived, as_derived, formulas

MACHINE: dict[str, Derived] = {}
"""Quantities of mapping, cluster and accelerator, by AMPeD's names."""
_of = formulas(MACHINE)


@_of("")
def data_parallel_degree(
    intra_node_data_parallel_degree: Floats, inter_node_data_parallel_degree: Floats
) -> Floats:
    """Replicas: intra x inter."""
    return intra_node_data_parallel_degree * inter_node_data_parallel_degree


@_of("")
def tensor_parallel_degree(
    intra_node_tensor_parallel_degree: Floats, inter_node_tensor_parallel_degree: Floats
) -> Floats:
    """Accelerators that share each product: intra x inter."""
    return intra_node_tensor_parallel_degree * inter_node_tensor_parallel_degree


@_of("")
def pipeline_parallel_degree(
    intra_node_pipeline_parallel_degree: Floats, inter_node_pipeline_parallel_degree: Floats
) -> Floats:
    """Pipeline stages: intra x inter."""
    return intra_node_pipeline_parallel_degree * inter_node_pipeline_parallel_degree


@_of("micro-batches")
def number_of_microbatches_per_minibatch(pipeline_parallel_degree: Floats) -> Floats:
    """Micro-batches of a step: one for each stage."""
    return pipeline_parallel_degree


@_of("accelerators")
def accelerators_per_node_required(
    intra_node_data_parallel_degree: Floats,
    intra_node_tensor_parallel_degree: Floats,
    intra_node_pipeline_parallel_degree: Floats,
) -> Floats:
    """Accelerators of a node that are used: the product of the degrees inside it."""
    inside = intra_node_data_parallel_degree * intra_node_tensor_parallel_degree
    return inside * intra_node_pipeline_parallel_degree


@_of("accelerators")
def number_of_accelerators_required(
    data_parallel_degree: Floats, tensor_parallel_degree: Floats, pipeline_parallel_degree: Floats
) -> Floats:
    """Accelerators that are used: N_DP N_TP N_PP."""
    return data_parallel_degree * tensor_parallel_degree * pipeline_parallel_degree


@_of("nodes")
def number_of_nodes_required(
    number_of_accelerators_required: Floats, accelerators_per_node_required: Floats
) -> Floats:
    """Nodes that are used, rounded down."""
    return np.floor_divide(number_of_accelerators_required, accelerators_per_node_required)


@_of("")
def tile_block_size() -> Floats:
    """Side of the tiles of a product: 1."""
    return np.ones(())


@_of("GB")
def required_memory_per_accelerator_weights(
    weight_precision: Floats,
    gradient_precision: Floats,
    optimizer_state_precision: Floats,
    total_number_of_parameters_without_embedding: Floats,
    number_of_accelerators_required: Floats,
) -> Floats:
    """Weights, gradients and three optimizer states: (Sw + Sg + 3 So) / 8 P / N / 1e9.

    Divided by all accelerators, replicas too, as if everything were sharded over them.
    """
    bits = weight_precision + gradient_precision + 3 * optimizer_state_precision
    total = bits / 8 * total_number_of_parameters_without_embedding
    return total / number_of_accelerators_required / 1e9


@_of("GB")
def required_memory_per_accelerator_activations(
    activation_precision: Floats,
    layers: Floats,
    non_linear_operations_for_attention_sublayer: Floats,
    non_linear_operations_for_MLP_sublayer: Floats,
    error_volume_per_layer_batch: Floats,
    number_of_microbatches_per_minibatch: Floats,
    data_parallel_degree: Floats,
    number_of_accelerators_required: Floats,
) -> Floats:
    """Activations: Sa L (non-linear of attention + of MLP + 2 errors) / N_ub / N_DP / (8 N) / 1e9.

    N has N_DP in it already, so it divides twice; only one micro-batch is counted.
    """
    non_linear = (
        non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer
    )
    elements = layers * (non_linear + 2 * error_volume_per_layer_batch)
    per_replica = elements / number_of_microbatches_per_minibatch / data_parallel_degree
    return activation_precision * per_replica / (8 * number_of_accelerators_required) / 1e9


@_of("GB")
def total_required_memory_per_accelerator(
    required_memory_per_accelerator_weights: Floats,
    required_memory_per_accelerator_activations: Floats,
) -> Floats:
    """Memory of one accelerator: what belongs to weights, and activations."""
    return required_memory_per_accelerator_weights + required_memory_per_accelerator_activations


@_of("GB")
def min_required_memory_per_accelerator(
    weight_precision: Floats,
    gradient_precision: Floats,
    total_number_of_parameters_without_embedding: Floats,
    number_of_accelerators_required: Floats,
    required_memory_per_accelerator_activations: Floats,
) -> Floats:
    """Least memory of one accelerator: (Sw + Sg / 2) / 8 P / N / 1e9 + activations."""
    bits = weight_precision + gradient_precision / 2
    total = bits / 8 * total_number_of_parameters_without_embedding
    least = total / number_of_accelerators_required / 1e9
    return least + required_memory_per_accelerator_activations


@_of("cards")
def number_of_network_cards_per_node(accelerators_per_node_required: Floats) -> Floats:
    """Network cards of a node: one for each accelerator that is used."""
    return accelerators_per_node_required


@_of("bit/s")
def inter_node_bandwidth(
    number_of_network_cards_per_node: Floats, bandwidth_per_network_card: Floats
) -> Floats:
    """Bandwidth of a node to others: that of all its cards."""
    return number_of_network_cards_per_node * bandwidth_per_network_card


@_of("bit/s")
def total_intra_node_bandwidth(
    inter_accelerator_bandwidth: Floats, number_of_accelerators_per_node: Floats
) -> Floats:
    """Bandwidth inside a node: that of all its accelerators."""
    return inter_accelerator_bandwidth * number_of_accelerators_per_node


@_of("nodes")
def number_of_nodes(
    number_of_accelerators_required: Floats, number_of_accelerators_per_node: Floats
) -> Floats:
    """Nodes of the cluster, fractional where the accelerators do not fill them."""
    return number_of_accelerators_required / number_of_accelerators_per_node


@_of("accelerators")
def total_number_of_accelerators(
    number_of_accelerators_per_node: Floats, number_of_nodes: Floats
) -> Floats:
    """Accelerators of the cluster."""
    return number_of_accelerators_per_node * number_of_nodes


def _per_tile(
    microbatch_size: Floats,
    context: Floats,
    hidden_layer_dimension_for_attention_sublayers: Floats,
    tile_block_size: Floats,
) -> Floats:
    """Tiles of queries, keys and values, or of scores, of a micro-batch: b s a / tile^2."""
    elements = microbatch_size * context * hidden_layer_dimension_for_attention_sublayers
    return elements / tile_block_size**2


MACHINE["parallelization_degree_K_Q_V"] = as_derived(_per_tile, "tiles")
MACHINE["parallelization_degree_attention"] = as_derived(_per_tile, "tiles")


@_of("tiles")
def parallelization_degree_output(
    microbatch_size: Floats, context: Floats, dimensionality: Floats, bigger_tile_block_size: Floats
) -> Floats:
    """Tiles of the output projection of a micro-batch: b s d / tile^2."""
    return microbatch_size * context * dimensionality / bigger_tile_block_size**2


@_of("tiles")
def parallelization_degree_MLP(
    microbatch_size: Floats,
    context: Floats,
    hidden_layer_dimension_MLP_2: Floats,
    bigger_tile_block_size: Floats,
) -> Floats:
    """Tiles of the MLP of a micro-batch: b s f2 / tile^2."""
    return microbatch_size * context * hidden_layer_dimension_MLP_2 / bigger_tile_block_size**2


def share_of_tiles(degree: Floats) -> Floats:
    """Share of the peak that so many tiles reach: min(1, tiles / 100)."""
    return np.minimum(1.0, degree / 100)


@_of("")
def effective_perf_perc_K_Q_V(parallelization_degree_K_Q_V: Floats) -> Floats:
    """Share of the peak in queries, keys and values: min(1, tiles / 100)."""
    return share_of_tiles(parallelization_degree_K_Q_V)


@_of("")
def effective_perf_perc_attention(parallelization_degree_attention: Floats) -> Floats:
    """Share of the peak in scores: min(1, tiles / 100)."""
    return share_of_tiles(parallelization_degree_attention)


@_of("")
def effective_perf_perc_output(parallelization_degree_output: Floats) -> Floats:
    """Share of the peak in the output projection: min(1, tiles / 100)."""
    return share_of_tiles(parallelization_degree_output)


@_of("")
def effective_perf_perc_MLP(parallelization_degree_MLP: Floats) -> Floats:
    """Share of the peak in the MLP: min(1, tiles / 100)."""
    return share_of_tiles(parallelization_degree_MLP)


def _of_width(dimensionality: Floats, tile_block_size: Floats) -> Floats:
    """Compute intensity of products with a side d: d / (d / tile + 1) / 2."""
    return dimensionality / (dimensionality / tile_block_size + 1) / 2


MACHINE["compute_intensity_K_Q_V"] = as_derived(_of_width, "MAC/byte")
MACHINE["compute_intensity_attention_output"] = as_derived(_of_width, "MAC/byte")


@_of("MAC/byte")
def compute_intensity_self_attention(
    microbatch_size: Floats, context: Floats, tile_block_size: Floats
) -> Floats:
    """Compute intensity of scores: b s / (b s / tile + 1) / 2."""
    tokens = microbatch_size * context
    return tokens / (tokens / tile_block_size + 1) / 2


@_of("MAC/byte")
def compute_intensity_MLP(
    hidden_layer_dimension_MLP_1: Floats, tile_block_size: Floats, activation_precision: Floats
) -> Floats:
    """Compute intensity of the MLP: f1 / (f1 / tile + 1) / (Sa / 8)."""
    f1 = hidden_layer_dimension_MLP_1
    return f1 / (f1 / tile_block_size + 1) / (activation_precision / 8)


@_of("MAC/byte")
def compute_intensity_weight_updates() -> Floats:
    """Compute intensity of weight updates: 1 / 3."""
    return np.full((), 1 / 3)


@_of("MAC/byte")
def compute_intensity_NonLin_ops() -> Floats:
    """Compute intensity of non-linear operations: 0."""
    return np.zeros(())


@_of("MAC/s")
def peak_compute_8bit_MACs(
    frequency: Floats,
    number_of_cores: Floats,
    functional_units_per_core: Floats,
    functional_unit_hardware_8bit_MAC_per_cycle: Floats,
) -> Floats:
    """Peak rate of products: frequency x cores x units x multiply-accumulates per cycle."""
    units = number_of_cores * functional_units_per_core
    return frequency * units * functional_unit_hardware_8bit_MAC_per_cycle


@_of("operations/s")
def peak_compute_8bit_OPS(peak_compute_8bit_MACs: Floats, OPS_per_MAC: Floats) -> Floats:
    """Peak rate of products in operations, of which a multiply-accumulate is OPS_per_MAC."""
    return peak_compute_8bit_MACs * OPS_per_MAC


@_of("operations/s")
def peak_compute_8bit_NLINs(
    frequency: Floats,
    number_of_cores: Floats,
    non_linear_functional_units_per_core: Floats,
    non_linear_functional_unit_hardware_8bit_NLIN_per_cycle: Floats,
) -> Floats:
    """Peak rate of non-linear operations: frequency x cores x units x operations per cycle.

    The time model leaves the cores out.
    """
    units = number_of_cores * non_linear_functional_units_per_core
    return frequency * units * non_linear_functional_unit_hardware_8bit_NLIN_per_cycle

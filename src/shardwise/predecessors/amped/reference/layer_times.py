"""Times of compute and communication of one layer, global batch (section 3).

Compute is timed as if one accelerator did it. Volumes are in elements, precisions in bits,
bandwidths in bit/s. Every all-reduce is a ring: 2 (n - 1) latencies and 2 (n - 1) / n of its
volume.
"""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

from dataclasses import replace

import numpy as np

from shardwise.arrays import Floats
from shardwise.predecessors.amped.formulas import Derived, formulas

COMPUTE: dict[str, Derived] = {}
"""Times of compute, by the names of AMPeD's methods."""
_compute = formulas(COMPUTE)


@_compute("s")
def reciprocal_of_OPS(
    frequency: Floats,
    number_of_cores: Floats,
    functional_units_per_core: Floats,
    efficiency: Floats,
    functional_unit_hardware_8bit_MAC_per_cycle: Floats,
) -> Floats:
    """C_mac, time of a multiply-accumulate: 1 / (frequency cores units efficiency MAC/cycle)."""
    units = number_of_cores * functional_units_per_core
    rate = frequency * units * functional_unit_hardware_8bit_MAC_per_cycle
    return 1 / (rate * efficiency)


@_compute("s")
def C_NONLIN(
    frequency: Floats,
    non_linear_functional_units_per_core: Floats,
    non_linear_functional_unit_hardware_8bit_NLIN_per_cycle: Floats,
) -> Floats:
    """C_nl, time of a non-linear operation: 1 / (frequency units NLIN/cycle).

    Fault: of one core, though an accelerator has many.
    """
    units = non_linear_functional_units_per_core
    return 1 / (frequency * units * non_linear_functional_unit_hardware_8bit_NLIN_per_cycle)


@_compute("s")
def compute_time_forward_pass(
    reciprocal_of_OPS: Floats,
    C_NONLIN: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
    decoder_NMACs: Floats,
    non_linear_operations_for_attention_sublayer: Floats,
    non_linear_operations_for_MLP_sublayer: Floats,
    weight_precision: Floats,
    activation_precision: Floats,
    W_FU_MAC: Floats,
    W_FU_NONLIN: Floats,
) -> Floats:
    """U_f = C_mac (attention + MLP + gating / 2 + head) ceil(Sw / W) + C_nl nl ceil(Sa / W).

    Faults: the head counts in each layer, and gating is that of all layers.
    """
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    products = layer + gating_MAC_operations / 2 + decoder_NMACs
    others = non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer
    of_products = reciprocal_of_OPS * products * np.ceil(weight_precision / W_FU_MAC)
    return of_products + C_NONLIN * others * np.ceil(activation_precision / W_FU_NONLIN)


@_compute("s")
def compute_time_backward_pass(
    reciprocal_of_OPS: Floats,
    C_NONLIN: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
    non_linear_operations_for_attention_sublayer: Floats,
    non_linear_operations_for_MLP_sublayer: Floats,
    weight_precision: Floats,
    gradient_precision: Floats,
    W_FU_MAC: Floats,
    W_FU_NONLIN: Floats,
) -> Floats:
    """U_b = C_mac (attention + MLP + gating / 2) ceil(max(Sw, Sg) / W) + C_nl nl ceil(Sw / W).

    As many products as forward: those of gradients of weights are in the update.
    """
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    products = layer + gating_MAC_operations / 2
    others = non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer
    widest = np.maximum(weight_precision, gradient_precision)
    of_products = reciprocal_of_OPS * products * np.ceil(widest / W_FU_MAC)
    return of_products + C_NONLIN * others * np.ceil(weight_precision / W_FU_NONLIN)


@_compute("s")
def weight_update_time(
    reciprocal_of_OPS: Floats,
    total_attention_sublayer_MAC_operations: Floats,
    total_MLP_sublayer_MAC_operations: Floats,
    gating_MAC_operations: Floats,
) -> Floats:
    """U_w = C_mac (attention + MLP + gating)."""
    layer = total_attention_sublayer_MAC_operations + total_MLP_sublayer_MAC_operations
    return reciprocal_of_OPS * (layer + gating_MAC_operations)


@_compute("s")
def gating_network_compute_overhead(
    reciprocal_of_OPS: Floats,
    gating_MAC_operations: Floats,
    weight_precision: Floats,
    gradient_precision: Floats,
    W_FU_MAC: Floats,
) -> Floats:
    """Part of gating in U_f + U_b + U_w."""
    forward = np.ceil(weight_precision / W_FU_MAC)
    backward = np.ceil(np.maximum(weight_precision, gradient_precision) / W_FU_MAC)
    return reciprocal_of_OPS * gating_MAC_operations * (forward / 2 + backward / 2 + 1)


COMMUNICATION: dict[str, Derived] = {}
"""Times of communication, by the names of AMPeD's methods."""
_communication = formulas(COMMUNICATION)


def ring(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of an all-reduce in a ring: 2 (n - 1) latency + 2 (n - 1) / n bits / bandwidth [s].

    Nothing for one member.
    """
    passes = 2 * (members - 1) / members
    return latency * passes * members + bits * passes / bandwidth


def message(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of a message to the next of several stages: latency + bits / bandwidth [s]."""
    return np.where(np.asarray(members) > 1, latency + bits / bandwidth, 0.0)


@_communication("s")
def forward_tensor_model_intra(
    intra_node_tensor_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    number_of_nodes_required: Floats,
    activation_precision: Floats,
    inter_accelerator_bandwidth: Floats,
) -> Floats:
    """Two all-reduces within a node: ring of 2 A / nodes; their latency is paid once."""
    bits = 2 * activations_volume_per_layer_batch / number_of_nodes_required * activation_precision
    degree = intra_node_tensor_parallel_degree
    return ring(degree, inter_accelerator_latency, bits, inter_accelerator_bandwidth)


@_communication("s")
def forward_tensor_parallel_inter(
    inter_node_tensor_parallel_degree: Floats,
    inter_node_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    activation_precision: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """Two all-reduces among nodes: ring of 2 A, of the global batch."""
    bits = 2 * activations_volume_per_layer_batch * activation_precision
    degree = inter_node_tensor_parallel_degree
    return ring(degree, inter_node_latency, bits, inter_node_bandwidth)


@_communication("s")
def forward_pipeline_parallelism(
    intra_node_pipeline_parallel_degree: Floats,
    inter_node_pipeline_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    inter_node_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    activation_precision: Floats,
    inter_accelerator_bandwidth: Floats,
    inter_node_bandwidth: Floats,
    layers: Floats,
) -> Floats:
    """(latency + A Sa / bandwidth) / L within nodes or among them, whichever is more."""
    bits = activations_volume_per_layer_batch * activation_precision
    intra, inter = intra_node_pipeline_parallel_degree, inter_node_pipeline_parallel_degree
    intra_s = message(intra, inter_accelerator_latency, bits, inter_accelerator_bandwidth)
    inter_s = message(inter, inter_node_latency, bits, inter_node_bandwidth)
    return np.maximum(intra_s, inter_s) / layers


@_communication("s")
def MoE_overhead_per_layer_fw_pass(
    expert_flag: Floats,
    number_of_nodes_required: Floats,
    inter_node_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    activation_precision: Floats,
    number_of_experts: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """One of the two all-to-alls of a layer with experts, counted in every layer.

    (nodes - 1) (latency + bits / (E nodes) / bandwidth) [s]. Low trust: AMPeD's expression was not
    found, only that it splits the volume over experts and nodes. Here each node sends each other
    node the tokens of one of its experts, one after another.
    """
    bits = activations_volume_per_layer_batch * activation_precision
    nodes = number_of_nodes_required
    message_s = inter_node_latency + bits / (number_of_experts * nodes) / inter_node_bandwidth
    return expert_flag * (nodes - 1) * message_s


@_communication("s")
def forward_zero_DP(
    M_f_DP: Floats,
    forward_tensor_model_intra: Floats,
    forward_tensor_parallel_inter: Floats,
    forward_pipeline_parallelism: Floats,
    MoE_overhead_per_layer_fw_pass: Floats,
) -> Floats:
    """Weights gathered again, as a share z of the other communication, whatever is sharded."""
    tensor = forward_tensor_model_intra + forward_tensor_parallel_inter
    return M_f_DP * (tensor + 2 * MoE_overhead_per_layer_fw_pass + forward_pipeline_parallelism)


@_communication("s")
def communication_time_forward_pass(
    forward_tensor_model_intra: Floats,
    forward_tensor_parallel_inter: Floats,
    forward_pipeline_parallelism: Floats,
    forward_zero_DP: Floats,
    MoE_overhead_per_layer_fw_pass: Floats,
) -> Floats:
    """M_f = (1 + z) (TP intra + TP inter + 2 MoE + max(PP intra, PP inter))."""
    tensor = forward_tensor_model_intra + forward_tensor_parallel_inter
    others = forward_pipeline_parallelism + forward_zero_DP
    return tensor + others + 2 * MoE_overhead_per_layer_fw_pass


_BACKWARD = {
    "activations_volume_per_layer_batch": "error_volume_per_layer_batch",
    "activation_precision": "gradient_precision",
}
for _forward, _backward in (
    ("forward_tensor_model_intra", "backward_tensor_model_intra"),
    ("forward_tensor_parallel_inter", "backward_tensor_parallel_inter"),
    ("forward_pipeline_parallelism", "backward_pipeline_parallelism"),
    ("MoE_overhead_per_layer_fw_pass", "MoE_overhead_per_layer_bw_pass"),
    ("forward_zero_DP", "backward_zero_DP"),
    ("communication_time_forward_pass", "communication_time_backward_pass"),
):
    # The backward pass is as the forward pass, of errors in the precision of gradients.
    _BACKWARD[_forward] = _backward
    _formula = COMMUNICATION[_forward]
    COMMUNICATION[_backward] = replace(
        _formula, inputs=tuple(_BACKWARD.get(name, name) for name in _formula.inputs)
    )


@_communication("s")
def all_reduce_gradients_for_DP_intra(
    intra_node_data_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    number_of_parameters_per_layer: Floats,
    tensor_parallel_degree: Floats,
    gradient_precision: Floats,
    inter_accelerator_bandwidth: Floats,
    r_non_overlapping: Floats,
) -> Floats:
    """R times a ring, within a node, of the gradients of a layer on one accelerator.

    Gradients of experts but the first are omitted.
    """
    bits = number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision
    degree = intra_node_data_parallel_degree
    time = ring(degree, inter_accelerator_latency, bits, inter_accelerator_bandwidth)
    return r_non_overlapping * time


@_communication("s")
def all_reduce_gradients_for_DP_inter(
    inter_node_data_parallel_degree: Floats,
    inter_node_latency: Floats,
    number_of_parameters_per_layer: Floats,
    tensor_parallel_degree: Floats,
    gradient_precision: Floats,
    inter_node_bandwidth: Floats,
    r_non_overlapping: Floats,
) -> Floats:
    """The same among nodes, again of all gradients, at the bandwidth of all cards of a node."""
    bits = number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision
    degree = inter_node_data_parallel_degree
    return r_non_overlapping * ring(degree, inter_node_latency, bits, inter_node_bandwidth)


@_communication("s")
def communication_time_backwards_DP_all_reduce(
    all_reduce_gradients_for_DP_intra: Floats, all_reduce_gradients_for_DP_inter: Floats
) -> Floats:
    """M_g: within nodes and among them."""
    return all_reduce_gradients_for_DP_intra + all_reduce_gradients_for_DP_inter

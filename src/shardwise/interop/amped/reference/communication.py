"""Time of the exchanges of one layer, whole batch (section 3).

Volumes are in elements, precisions in bits, bandwidths in bit/s. Every exchange is a ring:
2 (n - 1) latencies and 2 (n - 1) / n of the volume.
"""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

import numpy as np

from shardwise.arrays import Floats
from shardwise.interop.amped.formula import Derived, formulas

__all__ = ["COMMUNICATION"]

COMMUNICATION: dict[str, Derived] = {}
"""Times of exchanges, by the names of AMPeD's methods."""
_of = formulas(COMMUNICATION)


def ring(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of an all-reduce in a ring: 2 (n - 1) latency + 2 (n - 1) / n bits / bandwidth [s].

    Nothing for one member.
    """
    passes = 2 * (members - 1) / members
    return latency * passes * members + bits * passes / bandwidth


def message(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of a message to the next of several stages: latency + bits / bandwidth [s]."""
    return np.where(np.asarray(members) > 1, latency + bits / bandwidth, 0.0)


@_of("s")
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


@_of("s")
def backward_tensor_model_intra(
    intra_node_tensor_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    error_volume_per_layer_batch: Floats,
    number_of_nodes_required: Floats,
    gradient_precision: Floats,
    inter_accelerator_bandwidth: Floats,
) -> Floats:
    """As forward, of errors in the type of gradients."""
    bits = 2 * error_volume_per_layer_batch / number_of_nodes_required * gradient_precision
    degree = intra_node_tensor_parallel_degree
    return ring(degree, inter_accelerator_latency, bits, inter_accelerator_bandwidth)


@_of("s")
def forward_tensor_parallel_inter(
    inter_node_tensor_parallel_degree: Floats,
    inter_node_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    activation_precision: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """Two all-reduces among nodes: ring of 2 A, of the whole batch."""
    bits = 2 * activations_volume_per_layer_batch * activation_precision
    degree = inter_node_tensor_parallel_degree
    return ring(degree, inter_node_latency, bits, inter_node_bandwidth)


@_of("s")
def backward_tensor_parallel_inter(
    inter_node_tensor_parallel_degree: Floats,
    inter_node_latency: Floats,
    error_volume_per_layer_batch: Floats,
    gradient_precision: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """As forward, of errors in the type of gradients."""
    bits = 2 * error_volume_per_layer_batch * gradient_precision
    degree = inter_node_tensor_parallel_degree
    return ring(degree, inter_node_latency, bits, inter_node_bandwidth)


@_of("s")
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
    near = message(intra, inter_accelerator_latency, bits, inter_accelerator_bandwidth)
    far = message(inter, inter_node_latency, bits, inter_node_bandwidth)
    return np.maximum(near, far) / layers


@_of("s")
def backward_pipeline_parallelism(
    intra_node_pipeline_parallel_degree: Floats,
    inter_node_pipeline_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    inter_node_latency: Floats,
    error_volume_per_layer_batch: Floats,
    gradient_precision: Floats,
    inter_accelerator_bandwidth: Floats,
    inter_node_bandwidth: Floats,
    layers: Floats,
) -> Floats:
    """As forward, of errors in the type of gradients."""
    bits = error_volume_per_layer_batch * gradient_precision
    intra, inter = intra_node_pipeline_parallel_degree, inter_node_pipeline_parallel_degree
    near = message(intra, inter_accelerator_latency, bits, inter_accelerator_bandwidth)
    far = message(inter, inter_node_latency, bits, inter_node_bandwidth)
    return np.maximum(near, far) / layers


def exchange_of_experts(
    flag: Floats, nodes: Floats, latency: Floats, bits: Floats, experts: Floats, bandwidth: Floats
) -> Floats:
    """Time of one all-to-all: (nodes - 1) (latency + bits / (E nodes) / bandwidth) [s].

    Low trust: AMPeD's expression was not found, only that it splits the volume over experts and
    nodes. Here each node sends each other node what one of its experts takes, one after another.
    """
    return flag * (nodes - 1) * (latency + bits / (experts * nodes) / bandwidth)


@_of("s")
def MoE_overhead_per_layer_fw_pass(
    expert_flag: Floats,
    number_of_nodes_required: Floats,
    inter_node_latency: Floats,
    activations_volume_per_layer_batch: Floats,
    activation_precision: Floats,
    number_of_experts: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """One of the two all-to-alls of a layer with experts, counted in every layer."""
    bits = activations_volume_per_layer_batch * activation_precision
    nodes = number_of_nodes_required
    return exchange_of_experts(
        expert_flag, nodes, inter_node_latency, bits, number_of_experts, inter_node_bandwidth
    )


@_of("s")
def MoE_overhead_per_layer_bw_pass(
    expert_flag: Floats,
    number_of_nodes_required: Floats,
    inter_node_latency: Floats,
    error_volume_per_layer_batch: Floats,
    gradient_precision: Floats,
    number_of_experts: Floats,
    inter_node_bandwidth: Floats,
) -> Floats:
    """As forward, of errors in the type of gradients."""
    bits = error_volume_per_layer_batch * gradient_precision
    nodes = number_of_nodes_required
    return exchange_of_experts(
        expert_flag, nodes, inter_node_latency, bits, number_of_experts, inter_node_bandwidth
    )


@_of("s")
def forward_zero_DP(
    M_f_DP: Floats,
    forward_tensor_model_intra: Floats,
    forward_tensor_parallel_inter: Floats,
    forward_pipeline_parallelism: Floats,
    MoE_overhead_per_layer_fw_pass: Floats,
) -> Floats:
    """Weights gathered again, as a share z of the other exchanges, whatever is sharded."""
    tensor = forward_tensor_model_intra + forward_tensor_parallel_inter
    return M_f_DP * (tensor + 2 * MoE_overhead_per_layer_fw_pass + forward_pipeline_parallelism)


@_of("s")
def backward_zero_DP(
    M_f_DP: Floats,
    backward_tensor_model_intra: Floats,
    backward_tensor_parallel_inter: Floats,
    backward_pipeline_parallelism: Floats,
    MoE_overhead_per_layer_bw_pass: Floats,
) -> Floats:
    """As forward."""
    tensor = backward_tensor_model_intra + backward_tensor_parallel_inter
    return M_f_DP * (tensor + 2 * MoE_overhead_per_layer_bw_pass + backward_pipeline_parallelism)


@_of("s")
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


@_of("s")
def communication_time_backward_pass(
    backward_tensor_model_intra: Floats,
    backward_tensor_parallel_inter: Floats,
    backward_pipeline_parallelism: Floats,
    backward_zero_DP: Floats,
    MoE_overhead_per_layer_bw_pass: Floats,
) -> Floats:
    """M_b, as M_f."""
    tensor = backward_tensor_model_intra + backward_tensor_parallel_inter
    others = backward_pipeline_parallelism + backward_zero_DP
    return tensor + others + 2 * MoE_overhead_per_layer_bw_pass


@_of("s")
def all_reduce_gradients_for_DP_intra(
    intra_node_data_parallel_degree: Floats,
    inter_accelerator_latency: Floats,
    number_of_parameters_per_layer: Floats,
    tensor_parallel_degree: Floats,
    gradient_precision: Floats,
    inter_accelerator_bandwidth: Floats,
    r_non_overlapping: Floats,
) -> Floats:
    """R times a ring, within a node, of the gradients of a layer that one accelerator holds.

    Gradients of experts but the first are left out.
    """
    bits = number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision
    degree = intra_node_data_parallel_degree
    time = ring(degree, inter_accelerator_latency, bits, inter_accelerator_bandwidth)
    return r_non_overlapping * time


@_of("s")
def all_reduce_gradients_for_DP_inter(
    inter_node_data_parallel_degree: Floats,
    inter_node_latency: Floats,
    number_of_parameters_per_layer: Floats,
    tensor_parallel_degree: Floats,
    gradient_precision: Floats,
    inter_node_bandwidth: Floats,
    r_non_overlapping: Floats,
) -> Floats:
    """The same among nodes, again of all of the gradients, at the bandwidth of a whole node."""
    bits = number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision
    degree = inter_node_data_parallel_degree
    return r_non_overlapping * ring(degree, inter_node_latency, bits, inter_node_bandwidth)


@_of("s")
def communication_time_backwards_DP_all_reduce(
    all_reduce_gradients_for_DP_intra: Floats, all_reduce_gradients_for_DP_inter: Floats
) -> Floats:
    """M_g: within nodes and among them."""
    return all_reduce_gradients_for_DP_intra + all_reduce_gradients_for_DP_inter

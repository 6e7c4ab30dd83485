"""What AMPeD calculates of the network that is trained, exactly as published.

Operations, volumes and parameters are those of one layer and the global batch unless noted. Names
are AMPeD's, which are also those of the arguments: a formula's inputs are read from its signature.
Where a formula counts too little or too much its docstring says so; nothing is corrected here.

Source: Moolchandani et al., "AMPeD: An Analytical Model for Performance in Distributed Training of
Transformers", ISPASS 2023, and the table of calculated inputs of its program.
"""

# ruff: noqa: N802, N803 - the names of AMPeD's parameters

import numpy as np

from shardwise.arrays import Floats
from shardwise.predecessors.amped.formulas import Derived, as_derived, formulas

NETWORK: dict[str, Derived] = {}
"""Quantities of the network, by AMPeD's names."""
_of = formulas(NETWORK)


@_of("sequences")
def minibatch_size(batch_size: Floats, data_parallel_degree: Floats) -> Floats:
    """Sequences of one replica in a step: B / N_DP, fractional where it does not divide."""
    return batch_size / data_parallel_degree


@_of("sequences")
def microbatch_size(minibatch_size: Floats, number_of_microbatches_per_minibatch: Floats) -> Floats:
    """Sequences of one micro-batch: the mini-batch / N_ub, fractional where it does not divide."""
    return minibatch_size / number_of_microbatches_per_minibatch


@_of("sequences")
def samples(tokens_to_train: Floats, context: Floats) -> Floats:
    """Sequences of the training run: tokens / s."""
    return tokens_to_train / context


@_of("batches")
def number_of_batches(samples: Floats, batch_size: Floats) -> Floats:
    """Steps of the training run: sequences / B."""
    return samples / batch_size


@_of("elements")
def activations_volume_per_layer_batch(
    batch_size: Floats, context: Floats, hidden_layer_dimension_for_attention_sublayers: Floats
) -> Floats:
    """Activations that a layer outputs: B s a.

    Where a is the width of one head, this is too small by the number of heads.
    """
    return batch_size * context * hidden_layer_dimension_for_attention_sublayers


@_of("elements")
def error_volume_per_layer_batch(
    batch_size: Floats, context: Floats, hidden_layer_dimension_for_attention_sublayers: Floats
) -> Floats:
    """Gradients that a layer sends back: B s a, as many as activations."""
    return batch_size * context * hidden_layer_dimension_for_attention_sublayers


def _head_projection(
    batch_size: Floats,
    context: Floats,
    hidden_layer_dimension_for_attention_sublayers: Floats,
    dimensionality: Floats,
) -> Floats:
    """Multiply-accumulates of the queries, the keys or the values of one head: B s a d."""
    return batch_size * context * hidden_layer_dimension_for_attention_sublayers * dimensionality


for _name in ("query", "key", "value"):
    NETWORK[f"{_name}_MAC_operations"] = as_derived(_head_projection, "MAC")


@_of("MAC")
def self_attention_MAC_operations(
    batch_size: Floats, context: Floats, hidden_layer_dimension_for_attention_sublayers: Floats
) -> Floats:
    """Multiply-accumulates of scores and weighted values of one head: 2 B s s a, without a mask."""
    a = hidden_layer_dimension_for_attention_sublayers
    return 2 * batch_size * context * context * a


@_of("MAC")
def multihead_MAC_operations(
    attention_heads: Floats,
    query_MAC_operations: Floats,
    key_MAC_operations: Floats,
    value_MAC_operations: Floats,
    self_attention_MAC_operations: Floats,
) -> Floats:
    """Multiply-accumulates of all heads: H (Q + K + V + scores)."""
    projections = query_MAC_operations + key_MAC_operations + value_MAC_operations
    return attention_heads * (projections + self_attention_MAC_operations)


@_of("MAC")
def attention_sublayer_output_MAC_operations(
    batch_size: Floats, context: Floats, dimensionality: Floats
) -> Floats:
    """Multiply-accumulates of the output projection: B s d^2."""
    return batch_size * context * dimensionality**2


@_of("MAC")
def total_attention_sublayer_MAC_operations(
    multihead_MAC_operations: Floats, attention_sublayer_output_MAC_operations: Floats
) -> Floats:
    """Multiply-accumulates of the attention sub-layer: heads + output projection."""
    return multihead_MAC_operations + attention_sublayer_output_MAC_operations


@_of("MAC")
def total_MLP_sublayer_MAC_operations(
    batch_size: Floats,
    context: Floats,
    hidden_layer_dimension_MLP_1: Floats,
    hidden_layer_dimension_MLP_2: Floats,
) -> Floats:
    """Multiply-accumulates of the MLP: 2 B s f1 f2."""
    return 2 * batch_size * context * hidden_layer_dimension_MLP_1 * hidden_layer_dimension_MLP_2


@_of("operations")
def non_linear_operations_for_attention_sublayer(
    batch_size: Floats,
    context: Floats,
    hidden_layer_dimension_for_attention_sublayers: Floats,
    attention_heads: Floats,
) -> Floats:
    """Non-linear operations of the attention sub-layer: B s a H, though a softmax has B H s s."""
    a = hidden_layer_dimension_for_attention_sublayers
    return batch_size * context * a * attention_heads


@_of("operations")
def non_linear_operations_for_MLP_sublayer(
    batch_size: Floats, hidden_layer_dimension_MLP_1: Floats, hidden_layer_dimension_MLP_2: Floats
) -> Floats:
    """Non-linear operations of the MLP: 2 B (f1 + f2), too small by the context s."""
    return 2 * batch_size * (hidden_layer_dimension_MLP_1 + hidden_layer_dimension_MLP_2)


def _width(dimensionality: Floats) -> Floats:
    """Length of one side of a weight, or of a vector of a layer: d."""
    return dimensionality


_OF_ONE_WIDTH = (
    *("dim_query_weight", "dim_key_weight", "dim_value_weight", "projection_weight"),
    *("feedforward_bias_1", "feedforward_bias_2", "feedforward_scale_1", "feedforward_scale_2"),
    "hidden_layer_dimension_MLP_1",
)
for _name in _OF_ONE_WIDTH:
    NETWORK[_name] = as_derived(_width, "elements")


@_of("parameters")
def embedding_layer_parameters(
    number_of_tokens_in_vocabulary: Floats, dimensionality: Floats
) -> Floats:
    """Parameters of the embedding: V d."""
    return number_of_tokens_in_vocabulary * dimensionality


@_of("parameters")
def number_of_parameters_per_layer(
    dim_query_weight: Floats,
    dim_key_weight: Floats,
    dim_value_weight: Floats,
    projection_weight: Floats,
    key_query_value_length: Floats,
    attention_heads: Floats,
    feedforward_bias_1: Floats,
    feedforward_bias_2: Floats,
    feedforward_scale_1: Floats,
    feedforward_scale_2: Floats,
    hidden_layer_dimension_MLP_1: Floats,
    hidden_layer_dimension_MLP_2: Floats,
    embedding_layer_parameters: Floats,
    layers: Floats,
) -> Floats:
    """Parameters of a layer and its share of the embedding: 4 d kqv H + 4 d + 2 f1 f2 + V d / L.

    The bias of the inner width f2 counts as d, and the embedding is in it.
    """
    sides = dim_query_weight + dim_key_weight + dim_value_weight + projection_weight
    vectors = feedforward_bias_1 + feedforward_bias_2 + feedforward_scale_1 + feedforward_scale_2
    products = 2 * hidden_layer_dimension_MLP_1 * hidden_layer_dimension_MLP_2
    attention = sides * key_query_value_length * attention_heads
    return attention + vectors + products + embedding_layer_parameters / layers


@_of("parameters")
def number_of_parameters_per_expert(
    number_of_parameters_per_layer: Floats, layers: Floats
) -> Floats:
    """Parameters of the network with one expert in each layer: L times those of a layer."""
    return number_of_parameters_per_layer * layers


@_of("layers")
def number_of_MoE_layers(layers: Floats) -> Floats:
    """Layers with experts, every second one: floor(L / 2), whether there are experts or not."""
    return np.floor_divide(layers, 2)


@_of("")
def expert_flag(number_of_experts: Floats) -> Floats:
    """1 where there is more than one expert, else 0."""
    return np.where(np.asarray(number_of_experts) > 1, 1.0, 0.0)


@_of("parameters")
def number_of_gating_parameters(
    expert_flag: Floats,
    dimensionality: Floats,
    number_of_experts: Floats,
    number_of_MoE_layers: Floats,
) -> Floats:
    """Parameters of all routers of the network: d E L_moe."""
    return expert_flag * dimensionality * number_of_experts * number_of_MoE_layers


@_of("parameters")
def number_of_expert_parameters(
    number_of_experts: Floats,
    number_of_MoE_layers: Floats,
    hidden_layer_dimension_MLP_1: Floats,
    hidden_layer_dimension_MLP_2: Floats,
) -> Floats:
    """Parameters of all experts of the network beyond the first of each: (E - 1) L_moe 2 f1 f2."""
    products = 2 * hidden_layer_dimension_MLP_1 * hidden_layer_dimension_MLP_2
    return (number_of_experts - 1) * number_of_MoE_layers * products


@_of("MAC")
def gating_MAC_operations(
    context: Floats,
    dimensionality: Floats,
    batch_size: Floats,
    expert_flag: Floats,
    number_of_experts: Floats,
    number_of_MoE_layers: Floats,
) -> Floats:
    """Multiply-accumulates of all routers: s (d - 1) B E L_moe.

    Of all layers, though the time model adds it to each layer.
    """
    scores = context * (dimensionality - 1) * batch_size * expert_flag
    return scores * number_of_experts * number_of_MoE_layers


@_of("parameters")
def total_number_of_parameters_without_embedding(
    number_of_parameters_per_layer: Floats,
    layers: Floats,
    number_of_gating_parameters: Floats,
    number_of_expert_parameters: Floats,
) -> Floats:
    """Parameters of layers, routers and experts; the embedding is in it in spite of the name."""
    dense = number_of_parameters_per_layer * layers
    return dense + number_of_gating_parameters + number_of_expert_parameters


@_of("")
def decoder_flag(
    minibatch_size: Floats, embedding_layer_parameters: Floats, query_MAC_operations: Floats
) -> Floats:
    """Whether the head is counted. The input is 0 or 1; this product, as published, is not."""
    return minibatch_size * embedding_layer_parameters * query_MAC_operations


@_of("MAC")
def decoder_NMACs(
    batch_size: Floats,
    number_of_tokens_in_vocabulary: Floats,
    dimensionality: Floats,
    decoder_flag: Floats,
) -> Floats:
    """Multiply-accumulates of the head: B V d, too small by the context s."""
    return batch_size * number_of_tokens_in_vocabulary * dimensionality * decoder_flag

"""AMPeD's formulas, exactly as published: name, unit and expression of each.

Names are AMPeD's. Operations, volumes and parameters are those of one layer and the global batch
unless noted, volumes in elements, precisions in bits, bandwidths in bit/s. Where a formula counts
too little or too much its comment says so; nothing is corrected here.

Source: Moolchandani et al., "AMPeD: An Analytical Model for Performance in Distributed Training of
Transformers", ISPASS 2023, and the table of calculated inputs of its program.

AMPeD finds what a formula needs by calling it with a recorder, which sees one branch alone, and
runs into a cycle without end. Here the names in an expression are its inputs, and a cycle is a
fault with its name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

import numpy as np

from shardwise.arrays import Floats
from shardwise.errors import Fault, InputError, nearest, refuse

Formula = Callable[..., Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A quantity that AMPeD calculates where a file says so."""

    inputs: tuple[str, ...]
    """Names of the parameters that its formula takes, in order."""
    function: Formula
    unit: str
    """Empty for a plain number."""
    description: str
    """In one line."""


def ring(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of an all-reduce in a ring: 2 (n - 1) latency + 2 (n - 1) / n bits / bandwidth [s].

    Nothing for one member.
    """
    passes = 2 * (members - 1) / members
    return latency * passes * members + bits * passes / bandwidth


def message(members: Floats, latency: Floats, bits: Floats, bandwidth: Floats) -> Floats:
    """Time of a message to the next of several stages: latency + bits / bandwidth [s]."""
    return np.where(np.asarray(members) > 1, latency + bits / bandwidth, 0.0)


def share_of_tiles(degree: Floats) -> Floats:
    """Share of the peak that so many tiles reach: min(1, tiles / 100)."""
    return np.minimum(1.0, degree / 100)


_FUNCTIONS: Mapping[str, Callable[..., Floats]] = {
    **{name: getattr(np, name) for name in ("ceil", "floor_divide", "maximum", "where")},
    **{f.__name__: f for f in (ring, message, share_of_tiles)},
}
_HEAD = re.compile(r"^(?=\w)", re.MULTILINE)
_NAME = re.compile(r"\b[A-Za-z_]\w*")


def derived(expression: str, unit: str = "", description: str = "") -> Derived:
    """Return a quantity of an expression of AMPeD's names and the functions above."""
    names = dict.fromkeys(_NAME.findall(expression))
    inputs = tuple(name for name in names if name not in _FUNCTIONS)
    code = f"lambda {', '.join(inputs)}: {expression}"
    function = eval(code, dict(_FUNCTIONS))  # noqa: S307 - text of this package
    return Derived(inputs=inputs, function=function, unit=unit, description=description)


def _read(text: str) -> dict[str, Derived]:
    """Read formulas: names and unit, comments of which the first describes it, an expression."""
    found: dict[str, Derived] = {}
    for block in filter(None, _HEAD.split(text)):
        head, _, rest = block.partition("]\n")
        names, unit = head.split("[")
        lines = [line.strip() for line in rest.splitlines()]
        words = [line.removeprefix("# ") for line in lines if line.startswith("#")]
        code = " ".join(line for line in lines if not line.startswith("#"))
        one = derived(code, unit, words[0])
        found |= {name.strip(): one for name in names.split(",")}
    return found


NETWORK: dict[str, Derived] = _read("""\
minibatch_size [sequences]
    # Sequences of one replica in a step: B / N_DP, fractional where it does not divide.
    batch_size / data_parallel_degree
microbatch_size [sequences]
    # Sequences of one micro-batch: the mini-batch / N_ub, fractional where it does not divide.
    minibatch_size / number_of_microbatches_per_minibatch
samples [sequences]
    # Sequences of the training run: tokens / s.
    tokens_to_train / context
number_of_batches [batches]
    # Steps of the training run: sequences / B.
    samples / batch_size
activations_volume_per_layer_batch [elements]
    # Activations that a layer outputs: B s a.
    # Where a is the width of one head, this is too small by the number of heads.
    batch_size * context * hidden_layer_dimension_for_attention_sublayers
error_volume_per_layer_batch [elements]
    # Gradients that a layer sends back: B s a, as many as activations.
    batch_size * context * hidden_layer_dimension_for_attention_sublayers
query_MAC_operations, key_MAC_operations, value_MAC_operations [MAC]
    # Multiply-accumulates of the queries, the keys or the values of one head: B s a d.
    batch_size * context * hidden_layer_dimension_for_attention_sublayers * dimensionality
self_attention_MAC_operations [MAC]
    # Multiply-accumulates of scores and weighted values of one head: 2 B s s a, without a mask.
    2 * batch_size * context * context * hidden_layer_dimension_for_attention_sublayers
multihead_MAC_operations [MAC]
    # Multiply-accumulates of all heads: H (Q + K + V + scores).
    attention_heads * (query_MAC_operations + key_MAC_operations + value_MAC_operations
    + self_attention_MAC_operations)
attention_sublayer_output_MAC_operations [MAC]
    # Multiply-accumulates of the output projection: B s d^2.
    batch_size * context * dimensionality**2
total_attention_sublayer_MAC_operations [MAC]
    # Multiply-accumulates of the attention sub-layer: heads + output projection.
    multihead_MAC_operations + attention_sublayer_output_MAC_operations
total_MLP_sublayer_MAC_operations [MAC]
    # Multiply-accumulates of the MLP: 2 B s f1 f2.
    2 * batch_size * context * hidden_layer_dimension_MLP_1 * hidden_layer_dimension_MLP_2
non_linear_operations_for_attention_sublayer [operations]
    # Non-linear operations of the attention sub-layer: B s a H, though a softmax has B H s s.
    batch_size * context * hidden_layer_dimension_for_attention_sublayers * attention_heads
non_linear_operations_for_MLP_sublayer [operations]
    # Non-linear operations of the MLP: 2 B (f1 + f2), too small by the context s.
    2 * batch_size * (hidden_layer_dimension_MLP_1 + hidden_layer_dimension_MLP_2)
dim_query_weight, dim_key_weight, dim_value_weight, projection_weight, feedforward_bias_1,
    feedforward_bias_2, feedforward_scale_1, feedforward_scale_2, hidden_layer_dimension_MLP_1
    [elements]
    # Length of one side of a weight, or of a vector of a layer: d.
    dimensionality
embedding_layer_parameters [parameters]
    # Parameters of the embedding: V d.
    number_of_tokens_in_vocabulary * dimensionality
number_of_parameters_per_layer [parameters]
    # Parameters of a layer and its share of the embedding: 4 d kqv H + 4 d + 2 f1 f2 + V d / L.
    # The bias of the inner width f2 counts as d, and the embedding is in it.
    (dim_query_weight + dim_key_weight + dim_value_weight + projection_weight)
    * key_query_value_length * attention_heads + (feedforward_bias_1 + feedforward_bias_2
    + feedforward_scale_1 + feedforward_scale_2) + 2 * hidden_layer_dimension_MLP_1
    * hidden_layer_dimension_MLP_2 + embedding_layer_parameters / layers
number_of_parameters_per_expert [parameters]
    # Parameters of the network with one expert in each layer: L times those of a layer.
    number_of_parameters_per_layer * layers
number_of_MoE_layers [layers]
    # Layers with experts, every second one: floor(L / 2), whether there are experts or not.
    floor_divide(layers, 2)
expert_flag []
    # 1 where there is more than one expert, else 0.
    where(number_of_experts > 1, 1.0, 0.0)
number_of_gating_parameters [parameters]
    # Parameters of all routers of the network: d E L_moe.
    expert_flag * dimensionality * number_of_experts * number_of_MoE_layers
number_of_expert_parameters [parameters]
    # Parameters of all experts of the network beyond the first of each: (E - 1) L_moe 2 f1 f2.
    (number_of_experts - 1) * number_of_MoE_layers * (2 * hidden_layer_dimension_MLP_1
    * hidden_layer_dimension_MLP_2)
gating_MAC_operations [MAC]
    # Multiply-accumulates of all routers: s (d - 1) B E L_moe.
    # Of all layers, though the time model adds it to each layer.
    context * (dimensionality - 1) * batch_size * expert_flag * number_of_experts
    * number_of_MoE_layers
total_number_of_parameters_without_embedding [parameters]
    # Parameters of layers, routers and experts; the embedding is in it in spite of the name.
    number_of_parameters_per_layer * layers + number_of_gating_parameters
    + number_of_expert_parameters
decoder_flag []
    # Whether the head is counted. The input is 0 or 1; this product, as published, is not.
    minibatch_size * embedding_layer_parameters * query_MAC_operations
decoder_NMACs [MAC]
    # Multiply-accumulates of the head: B V d, too small by the context s.
    batch_size * number_of_tokens_in_vocabulary * dimensionality * decoder_flag
""")
"""Quantities of the network that is trained."""

MACHINE: dict[str, Derived] = _read("""\
data_parallel_degree []
    # Replicas: intra x inter.
    intra_node_data_parallel_degree * inter_node_data_parallel_degree
tensor_parallel_degree []
    # Accelerators that share each product: intra x inter.
    intra_node_tensor_parallel_degree * inter_node_tensor_parallel_degree
pipeline_parallel_degree []
    # Pipeline stages: intra x inter.
    intra_node_pipeline_parallel_degree * inter_node_pipeline_parallel_degree
number_of_microbatches_per_minibatch [micro-batches]
    # Micro-batches of a step: one for each stage.
    pipeline_parallel_degree
accelerators_per_node_required [accelerators]
    # Accelerators of a node that are used: the product of the degrees inside it.
    intra_node_data_parallel_degree * intra_node_tensor_parallel_degree
    * intra_node_pipeline_parallel_degree
number_of_accelerators_required [accelerators]
    # Accelerators that are used: N_DP N_TP N_PP.
    data_parallel_degree * tensor_parallel_degree * pipeline_parallel_degree
number_of_nodes_required [nodes]
    # Nodes that are used, rounded down.
    floor_divide(number_of_accelerators_required, accelerators_per_node_required)
tile_block_size []
    # Side of the tiles of a product: 1.
    1.0
required_memory_per_accelerator_weights [GB]
    # Weights, gradients and three optimizer states: (Sw + Sg + 3 So) / 8 P / N / 1e9.
    # Divided by all accelerators, replicas too, as if everything were sharded over them.
    (weight_precision + gradient_precision + 3 * optimizer_state_precision) / 8
    * total_number_of_parameters_without_embedding / number_of_accelerators_required / 1e9
required_memory_per_accelerator_activations [GB]
    # Activations: Sa L (non-linear of attention + of MLP + 2 errors) / N_ub / N_DP / (8 N) / 1e9.
    # N has N_DP in it already, so it divides twice; only one micro-batch is counted.
    activation_precision * (layers * (non_linear_operations_for_attention_sublayer
    + non_linear_operations_for_MLP_sublayer + 2 * error_volume_per_layer_batch)
    / number_of_microbatches_per_minibatch / data_parallel_degree) / (8
    * number_of_accelerators_required) / 1e9
total_required_memory_per_accelerator [GB]
    # Memory of one accelerator: what belongs to weights, and activations.
    required_memory_per_accelerator_weights + required_memory_per_accelerator_activations
min_required_memory_per_accelerator [GB]
    # Least memory of one accelerator: (Sw + Sg / 2) / 8 P / N / 1e9 + activations.
    (weight_precision + gradient_precision / 2) / 8
    * total_number_of_parameters_without_embedding / number_of_accelerators_required / 1e9
    + required_memory_per_accelerator_activations
number_of_network_cards_per_node [cards]
    # Network cards of a node: one for each accelerator that is used.
    accelerators_per_node_required
inter_node_bandwidth [bit/s]
    # Bandwidth of a node to others: that of all its cards.
    number_of_network_cards_per_node * bandwidth_per_network_card
total_intra_node_bandwidth [bit/s]
    # Bandwidth inside a node: that of all its accelerators.
    inter_accelerator_bandwidth * number_of_accelerators_per_node
number_of_nodes [nodes]
    # Nodes of the cluster, fractional where the accelerators do not fill them.
    number_of_accelerators_required / number_of_accelerators_per_node
total_number_of_accelerators [accelerators]
    # Accelerators of the cluster.
    number_of_accelerators_per_node * number_of_nodes
parallelization_degree_K_Q_V, parallelization_degree_attention [tiles]
    # Tiles of queries, keys and values, or of scores, of a micro-batch: b s a / tile^2.
    microbatch_size * context * hidden_layer_dimension_for_attention_sublayers
    / tile_block_size**2
parallelization_degree_output [tiles]
    # Tiles of the output projection of a micro-batch: b s d / tile^2.
    microbatch_size * context * dimensionality / bigger_tile_block_size**2
parallelization_degree_MLP [tiles]
    # Tiles of the MLP of a micro-batch: b s f2 / tile^2.
    microbatch_size * context * hidden_layer_dimension_MLP_2 / bigger_tile_block_size**2
effective_perf_perc_K_Q_V []
    # Share of the peak in queries, keys and values: min(1, tiles / 100).
    share_of_tiles(parallelization_degree_K_Q_V)
effective_perf_perc_attention []
    # Share of the peak in scores: min(1, tiles / 100).
    share_of_tiles(parallelization_degree_attention)
effective_perf_perc_output []
    # Share of the peak in the output projection: min(1, tiles / 100).
    share_of_tiles(parallelization_degree_output)
effective_perf_perc_MLP []
    # Share of the peak in the MLP: min(1, tiles / 100).
    share_of_tiles(parallelization_degree_MLP)
compute_intensity_K_Q_V, compute_intensity_attention_output [MAC/byte]
    # Compute intensity of products with a side d: d / (d / tile + 1) / 2.
    dimensionality / (dimensionality / tile_block_size + 1) / 2
compute_intensity_self_attention [MAC/byte]
    # Compute intensity of scores: b s / (b s / tile + 1) / 2.
    microbatch_size * context / (microbatch_size * context / tile_block_size + 1) / 2
compute_intensity_MLP [MAC/byte]
    # Compute intensity of the MLP: f1 / (f1 / tile + 1) / (Sa / 8).
    hidden_layer_dimension_MLP_1 / (hidden_layer_dimension_MLP_1 / tile_block_size + 1)
    / (activation_precision / 8)
compute_intensity_weight_updates [MAC/byte]
    # Compute intensity of weight updates: 1 / 3.
    1 / 3
compute_intensity_NonLin_ops [MAC/byte]
    # Compute intensity of non-linear operations: 0.
    0.0
peak_compute_8bit_MACs [MAC/s]
    # Peak rate of products: frequency x cores x units x multiply-accumulates per cycle.
    frequency * (number_of_cores * functional_units_per_core)
    * functional_unit_hardware_8bit_MAC_per_cycle
peak_compute_8bit_OPS [operations/s]
    # Peak rate of products in operations, of which a multiply-accumulate is OPS_per_MAC.
    peak_compute_8bit_MACs * OPS_per_MAC
peak_compute_8bit_NLINs [operations/s]
    # Peak rate of non-linear operations: frequency x cores x units x operations per cycle.
    # The time model leaves the cores out.
    frequency * (number_of_cores * non_linear_functional_units_per_core)
    * non_linear_functional_unit_hardware_8bit_NLIN_per_cycle
""")
"""Quantities of mapping, cluster and accelerator."""

COMPUTE: dict[str, Derived] = _read("""\
reciprocal_of_OPS [s]
    # C_mac, time of a multiply-accumulate: 1 / (frequency cores units efficiency MAC/cycle).
    1 / (frequency * (number_of_cores * functional_units_per_core)
    * functional_unit_hardware_8bit_MAC_per_cycle * efficiency)
C_NONLIN [s]
    # C_nl, time of a non-linear operation: 1 / (frequency units NLIN/cycle).
    # Fault: of one core, though an accelerator has many.
    1 / (frequency * non_linear_functional_units_per_core
    * non_linear_functional_unit_hardware_8bit_NLIN_per_cycle)
compute_time_forward_pass [s]
    # U_f = C_mac (attention + MLP + gating / 2 + head) ceil(Sw / W) + C_nl nl ceil(Sa / W).
    # Faults: the head counts in each layer, and gating is that of all layers.
    reciprocal_of_OPS * (total_attention_sublayer_MAC_operations
    + total_MLP_sublayer_MAC_operations + gating_MAC_operations / 2 + decoder_NMACs)
    * ceil(weight_precision / W_FU_MAC) + C_NONLIN * (non_linear_operations_for_attention_sublayer
    + non_linear_operations_for_MLP_sublayer) * ceil(activation_precision / W_FU_NONLIN)
compute_time_backward_pass [s]
    # U_b = C_mac (attention + MLP + gating / 2) ceil(max(Sw, Sg) / W) + C_nl nl ceil(Sw / W).
    # As many products as forward: those of gradients of weights are in the update.
    reciprocal_of_OPS * (total_attention_sublayer_MAC_operations
    + total_MLP_sublayer_MAC_operations + gating_MAC_operations / 2)
    * ceil(maximum(weight_precision, gradient_precision) / W_FU_MAC) + C_NONLIN
    * (non_linear_operations_for_attention_sublayer + non_linear_operations_for_MLP_sublayer)
    * ceil(weight_precision / W_FU_NONLIN)
weight_update_time [s]
    # U_w = C_mac (attention + MLP + gating).
    reciprocal_of_OPS * (total_attention_sublayer_MAC_operations
    + total_MLP_sublayer_MAC_operations + gating_MAC_operations)
gating_network_compute_overhead [s]
    # Part of gating in U_f + U_b + U_w.
    reciprocal_of_OPS * gating_MAC_operations * (ceil(weight_precision / W_FU_MAC) / 2
    + ceil(maximum(weight_precision, gradient_precision) / W_FU_MAC) / 2 + 1)
""")
"""Times of compute of one layer, as if one accelerator did it, by AMPeD's methods."""

COMMUNICATION: dict[str, Derived] = _read("""\
forward_tensor_model_intra [s]
    # Two all-reduces within a node: ring of 2 A / nodes; their latency is paid once.
    ring(intra_node_tensor_parallel_degree, inter_accelerator_latency, 2
    * activations_volume_per_layer_batch / number_of_nodes_required * activation_precision,
    inter_accelerator_bandwidth)
forward_tensor_parallel_inter [s]
    # Two all-reduces among nodes: ring of 2 A, of the global batch.
    ring(inter_node_tensor_parallel_degree, inter_node_latency, 2
    * activations_volume_per_layer_batch * activation_precision, inter_node_bandwidth)
forward_pipeline_parallelism [s]
    # (latency + A Sa / bandwidth) / L within nodes or among them, whichever is more.
    maximum(message(intra_node_pipeline_parallel_degree, inter_accelerator_latency,
    activations_volume_per_layer_batch * activation_precision, inter_accelerator_bandwidth),
    message(inter_node_pipeline_parallel_degree, inter_node_latency,
    activations_volume_per_layer_batch * activation_precision, inter_node_bandwidth)) / layers
MoE_overhead_per_layer_fw_pass [s]
    # One of the two all-to-alls of a layer with experts, counted in every layer.
    # (nodes - 1) (latency + bits / (E nodes) / bandwidth) [s]. Low trust: AMPeD's expression was
    # not found, only that it splits the volume over experts and nodes. Here each node sends each
    # other node the tokens of one of its experts, one after another.
    expert_flag * (number_of_nodes_required - 1) * (inter_node_latency
    + activations_volume_per_layer_batch * activation_precision / (number_of_experts
    * number_of_nodes_required) / inter_node_bandwidth)
forward_zero_DP [s]
    # Weights gathered again, as a share z of the other communication, whatever is sharded.
    M_f_DP * (forward_tensor_model_intra + forward_tensor_parallel_inter + 2
    * MoE_overhead_per_layer_fw_pass + forward_pipeline_parallelism)
communication_time_forward_pass [s]
    # M_f = (1 + z) (TP intra + TP inter + 2 MoE + max(PP intra, PP inter)).
    forward_tensor_model_intra + forward_tensor_parallel_inter + (forward_pipeline_parallelism
    + forward_zero_DP) + 2 * MoE_overhead_per_layer_fw_pass
""")
"""Times of communication of one layer, global batch, by AMPeD's methods."""

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
COMMUNICATION |= _read("""\
all_reduce_gradients_for_DP_intra [s]
    # R times a ring, within a node, of the gradients of a layer on one accelerator.
    # Gradients of experts but the first are omitted.
    r_non_overlapping * ring(intra_node_data_parallel_degree, inter_accelerator_latency,
    number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision,
    inter_accelerator_bandwidth)
all_reduce_gradients_for_DP_inter [s]
    # The same among nodes, again of all gradients, at the bandwidth of all cards of a node.
    r_non_overlapping * ring(inter_node_data_parallel_degree, inter_node_latency,
    number_of_parameters_per_layer / tensor_parallel_degree * gradient_precision,
    inter_node_bandwidth)
communication_time_backwards_DP_all_reduce [s]
    # M_g: within nodes and among them.
    all_reduce_gradients_for_DP_intra + all_reduce_gradients_for_DP_inter
""")

TOTALS: dict[str, Derived] = _read("""\
waiting_time_due_to_pipeline_bubbles [s]
    # W = r (N_PP - 1) ((U_f + U_b) / (N L) + M_f + M_b) / N_ub, of one layer and batch.
    # Fault: multiplied by L layers later, the compute part is that of one layer of a stage.
    r_non_overlapping * (pipeline_parallel_degree - 1) * ((compute_time_forward_pass
    + compute_time_backward_pass) / (number_of_accelerators_required * layers)
    + (communication_time_forward_pass + communication_time_backward_pass))
    / number_of_microbatches_per_minibatch
""")
"""The bubble, and the totals of the training run, by AMPeD's methods."""


def _add_total(term: str, name: str, share: str = "") -> None:
    """Add a total: a term in all layers and batches, of compute what one accelerator has of it."""
    expression = f"number_of_batches * layers * {term}{share}"
    words = f"Batches x layers x the term{' / accelerators' if share else ''}."
    TOTALS[name] = derived(expression, "s", words)


for _term, _total in (
    ("compute_time_forward_pass", "computation_time_forward_pass"),
    ("compute_time_backward_pass", "computation_time_backward_pass"),
    ("weight_update_time", "computation_time_weight_updates"),
    ("gating_network_compute_overhead", "MoE_gating_network_compute_overhead"),
):
    _add_total(_term, f"total_{_total}", " / number_of_accelerators_required")
for _pass in ("forward", "backward"):
    for _part in ("tensor_model_intra", "tensor_parallel_inter", "pipeline_parallelism", "zero_DP"):
        _add_total(f"{_pass}_{_part}", f"total_{_pass}_{_part}")
    _add_total(f"communication_time_{_pass}_pass", f"total_communication_time_{_pass}_pass")
_add_total("all_reduce_gradients_for_DP_intra", "total_all_reduce_gradients_for_DP_intra")
_add_total("all_reduce_gradients_for_DP_inter", "total_all_reduce_gradients_for_inter")
_add_total("communication_time_backwards_DP_all_reduce", "total_all_reduce_gradients_for_DP")
_add_total("waiting_time_due_to_pipeline_bubbles", "total_waiting_time_due_to_pipeline_bubbles")
for _short in ("fw", "bw"):
    TOTALS[f"total_MoE_overhead_{_short}_pass"] = derived(
        f"number_of_batches * layers * 2 * MoE_overhead_per_layer_{_short}_pass",
        "s",
        "Both all-to-alls of all layers and batches.",
    )
TOTALS |= _read("""\
total_MoE_overhead [s]
    # All communication of experts.
    total_MoE_overhead_fw_pass + total_MoE_overhead_bw_pass
total_computation_time [s]
    # (U_f + U_b + U_w) / N in all layers and batches.
    total_computation_time_forward_pass + total_computation_time_backward_pass
    + total_computation_time_weight_updates
total_communication_time [s]
    # M_f + M_b + M_g in all layers and batches.
    total_communication_time_forward_pass + total_communication_time_backward_pass
    + total_all_reduce_gradients_for_DP
total_time_to_train [s]
    # Batches x layers x ((U_f + U_b + U_w) / N + M_f + M_g + M_b + W).
    total_computation_time + total_communication_time
    + total_waiting_time_due_to_pipeline_bubbles
total_time_to_train_days [days]
    # Of 24 hours.
    total_time_to_train / 86400
total_time_to_train_years [years]
    # Of 365 days.
    total_time_to_train_days / 365
total_MACs [MAC]
    # Multiply-accumulates that its times count: L (3 (attention + MLP) + 2 gating + head).
    # Low trust: the label is known, not the formula.
    number_of_batches * layers * (3 * (total_attention_sublayer_MAC_operations
    + total_MLP_sublayer_MAC_operations) + 2 * gating_MAC_operations + decoder_NMACs)
total_TFLOPS [TFLOP]
    # The same in operations.
    total_MACs * OPS_per_MAC / 1e12
total_TFLOPS_per_second [TFLOP/s]
    # Of all accelerators.
    total_TFLOPS / total_time_to_train
total_TFLOPS_per_second_per_gpu [TFLOP/s]
    # Of one accelerator.
    total_TFLOPS_per_second / number_of_accelerators_required
total_TFLOPS_per_second_per_gpu_peak [TFLOP/s]
    # Peak of one accelerator; low trust: the label is known, not the formula.
    peak_compute_8bit_OPS / 1e12
""")


def layer_shapes(values: Mapping[str, float]) -> tuple[tuple[int, int, int], ...]:
    """Rows, inner, columns of the products of one layer, as AMPeD writes them for DeepFlow.

    With B sequences of s tokens, H heads of width a, widths d, f1 and f2: (3 B s, d, a H),
    (B s, a, s H), (B s, s, a H), (B s, d, d), (B s, d, f1), (B s, f1, f2). Nothing is divided by
    degrees.
    """
    rows, sequence = values["batch_size"] * values["context"], values["context"]
    width, heads = (
        values["hidden_layer_dimension_for_attention_sublayers"],
        values["attention_heads"],
    )
    model = values["dimensionality"]
    inner = values["hidden_layer_dimension_MLP_1"], values["hidden_layer_dimension_MLP_2"]
    shapes = (
        (3 * rows, model, width * heads),
        (rows, width, sequence * heads),
        (rows, sequence, width * heads),
        (rows, model, model),
        (rows, model, inner[0]),
        (rows, *inner),
    )
    return tuple((int(m), int(k), int(n)) for m, k, n in shapes)


def resolve(
    given: Mapping[str, Floats | float],
    calculated: Iterable[str],
    *,
    table: Mapping[str, Derived],
    source: str = "",
) -> dict[str, Floats]:
    """Compute quantities, each after those that it needs.

    Parameters
    ----------
    given
        Values by name: numbers, or columns of equal length.
    calculated
        Names of quantities to compute, in any order; the formula of one may need others of them.
    table
        Formulas by name.
    source
        File that faults name.

    Returns
    -------
    Given and computed values as arrays, 0-dimensional where all that a quantity depends on are
    numbers.
    """
    wanted = dict.fromkeys(calculated)
    refuse([*_unknown(given, wanted, table, source), *_missing(given, wanted, table, source)])
    needs = {name: [i for i in table[name].inputs if i in wanted] for name in wanted}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        problem = f"is calculated from itself: {' needs '.join(circle)}; give one of them a value"
        raise InputError(Fault(source=source, field=circle[0], problem=problem)) from None
    values = {name: np.asarray(value, dtype=np.float64) for name, value in given.items()}
    for name in order:
        formula = table[name]
        result = formula.function(*(values[needed] for needed in formula.inputs))
        values[name] = np.asarray(result, dtype=np.float64)
    return values


def _unknown(
    given: Mapping[str, object],
    wanted: Iterable[str],
    table: Mapping[str, Derived],
    source: str,
) -> list[Fault]:
    faults = []
    for name in wanted:
        if name not in table:
            problem = f"is marked calculated, but AMPeD has no formula for it{nearest(name, table)}"
            faults.append(Fault(source=source, field=name, problem=problem))
        elif name in given:
            problem = "is both set and calculated; leave one out"
            faults.append(Fault(source=source, field=name, problem=problem))
    return faults


def _missing(
    given: Mapping[str, object],
    wanted: Mapping[str, object],
    table: Mapping[str, Derived],
    source: str,
) -> list[Fault]:
    """One fault for each input that is nowhere, naming all that need it."""
    needed_by: dict[str, list[str]] = {}
    for name in wanted:
        for needed in table[name].inputs if name in table else ():
            if needed not in given and needed not in wanted:
                needed_by.setdefault(needed, []).append(name)
    return [
        Fault(
            source=source,
            field=name,
            problem=f"is missing, and needed for {', '.join(users)}; give it"
            + (" or mark it calculated" if name in table else ""),
        )
        for name, users in needed_by.items()
    ]

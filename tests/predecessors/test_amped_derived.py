"""AMPeD's derived quantities: hand-computed values, the order of need, and what is refused."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from shardwise.errors import InputError
from shardwise.predecessors.amped.files import DERIVED
from shardwise.predecessors.amped.formulas import derived as expression_of
from shardwise.predecessors.amped.formulas import resolve as resolve_with

resolve = partial(resolve_with, table=DERIVED)

# A toy network with experts on 2 nodes of 4, whose every figure can be worked out on paper.
GIVEN = {
    "batch_size": 16,
    "context": 10,
    "dimensionality": 8,
    "attention_heads": 2,
    "layers": 5,
    "tokens_to_train": 1600,
    "number_of_tokens_in_vocabulary": 100,
    "hidden_layer_dimension_for_attention_sublayers": 4,
    "key_query_value_length": 4,
    "hidden_layer_dimension_MLP_2": 32,
    "number_of_experts": 3,
    "weight_precision": 16,
    "activation_precision": 16,
    "gradient_precision": 32,
    "optimizer_state_precision": 32,
    "OPS_per_MAC": 2,
    "intra_node_data_parallel_degree": 1,
    "inter_node_data_parallel_degree": 2,
    "intra_node_tensor_parallel_degree": 2,
    "inter_node_tensor_parallel_degree": 1,
    "intra_node_pipeline_parallel_degree": 2,
    "inter_node_pipeline_parallel_degree": 1,
    "number_of_accelerators_per_node": 4,
    "bandwidth_per_network_card": 100e9,
    "inter_accelerator_bandwidth": 300e9,
    "bigger_tile_block_size": 2,
    "frequency": 1e9,
    "number_of_cores": 10,
    "functional_units_per_core": 4,
    "functional_unit_hardware_8bit_MAC_per_cycle": 64,
    "non_linear_functional_units_per_core": 3,
    "non_linear_functional_unit_hardware_8bit_NLIN_per_cycle": 2,
}
# Of a layer: 4 x 8 x 4 x 2 attention, 4 x 8 vectors, 2 x 8 x 32 MLP, 800 / 5 embedding.
LAYER = 256 + 32 + 512 + 160
PARAMETERS = 5 * LAYER + 8 * 3 * 2 + 2 * 2 * 512
BY_HAND = {
    "minibatch_size": 8,
    "microbatch_size": 4,
    "samples": 160,
    "number_of_batches": 10,
    "activations_volume_per_layer_batch": 640,
    "error_volume_per_layer_batch": 640,
    "query_MAC_operations": 5120,
    "key_MAC_operations": 5120,
    "value_MAC_operations": 5120,
    "self_attention_MAC_operations": 12800,
    "multihead_MAC_operations": 56320,
    "attention_sublayer_output_MAC_operations": 10240,
    "total_attention_sublayer_MAC_operations": 66560,
    "total_MLP_sublayer_MAC_operations": 81920,
    "non_linear_operations_for_attention_sublayer": 1280,
    "non_linear_operations_for_MLP_sublayer": 1280,
    "dim_query_weight": 8,
    "projection_weight": 8,
    "feedforward_bias_2": 8,
    "hidden_layer_dimension_MLP_1": 8,
    "embedding_layer_parameters": 800,
    "number_of_parameters_per_layer": LAYER,
    "number_of_parameters_per_expert": 5 * LAYER,
    "number_of_MoE_layers": 2,
    "expert_flag": 1,
    "number_of_gating_parameters": 48,
    "number_of_expert_parameters": 2048,
    "gating_MAC_operations": 10 * 7 * 16 * 3 * 2,
    "total_number_of_parameters_without_embedding": PARAMETERS,
    "decoder_flag": 8 * 800 * 5120,
    "decoder_NMACs": 16 * 100 * 8 * 8 * 800 * 5120,
    "data_parallel_degree": 2,
    "tensor_parallel_degree": 2,
    "pipeline_parallel_degree": 2,
    "number_of_microbatches_per_minibatch": 2,
    "accelerators_per_node_required": 4,
    "number_of_accelerators_required": 8,
    "number_of_nodes_required": 2,
    "tile_block_size": 1,
    "required_memory_per_accelerator_weights": (16 + 32 + 96) / 8 * PARAMETERS / 8 / 1e9,
    "required_memory_per_accelerator_activations": 16 * 5 * 3840 / 2 / 2 / 64 / 1e9,
    "total_required_memory_per_accelerator": (18 * PARAMETERS / 8 + 1200) / 1e9,
    "min_required_memory_per_accelerator": (4 * PARAMETERS / 8 + 1200) / 1e9,
    "number_of_network_cards_per_node": 4,
    "inter_node_bandwidth": 400e9,
    "total_intra_node_bandwidth": 1200e9,
    "number_of_nodes": 2,
    "total_number_of_accelerators": 8,
    "parallelization_degree_K_Q_V": 160,
    "parallelization_degree_attention": 160,
    "parallelization_degree_output": 80,
    "parallelization_degree_MLP": 320,
    "effective_perf_perc_K_Q_V": 1,
    "effective_perf_perc_attention": 1,
    "effective_perf_perc_output": 0.8,
    "effective_perf_perc_MLP": 1,
    "compute_intensity_K_Q_V": 8 / 9 / 2,
    "compute_intensity_attention_output": 8 / 9 / 2,
    "compute_intensity_self_attention": 40 / 41 / 2,
    "compute_intensity_MLP": 8 / 9 / 2,
    "compute_intensity_weight_updates": 1 / 3,
    "compute_intensity_NonLin_ops": 0,
    "peak_compute_8bit_MACs": 2.56e12,
    "peak_compute_8bit_OPS": 5.12e12,
    "peak_compute_8bit_NLINs": 6e10,
}


def test_every_quantity_by_hand():
    """Every formula of the table gives what paper and pencil give."""
    found = resolve(GIVEN, DERIVED)
    alike = {"dim_key_weight", "dim_value_weight"}
    alike |= {"feedforward_bias_1", "feedforward_scale_1", "feedforward_scale_2"}
    assert set(DERIVED) == set(BY_HAND) | alike
    for name, expected in BY_HAND.items():
        assert float(found[name]) == pytest.approx(expected, rel=1e-12), name
    assert all(float(found[name]) == 8 for name in alike)


def test_every_quantity_is_described():
    """Each has a unit or is a plain number, one line of words, and inputs that can be had."""
    for name, derived in DERIVED.items():
        assert derived.description.strip(), name
        assert set(derived.inputs) <= set(GIVEN) | set(DERIVED), name


@examples(20)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=5), st.randoms())
def test_a_column_equals_its_rows_in_any_order(batches, random):
    """Ten rows at once are ten times one row, in whatever order names are asked for."""
    names = list(DERIVED)
    random.shuffle(names)
    columns = resolve(GIVEN | {"batch_size": np.array(batches, dtype=float)}, names)
    for row, batch in enumerate(batches):
        one = resolve(GIVEN | {"batch_size": batch}, DERIVED)
        for name in DERIVED:
            column = np.broadcast_to(columns[name], (len(batches),))
            assert column[row] == float(one[name]), name


def test_only_what_is_asked_for_is_worked_out():
    """A quantity with a value is not calculated, and none that nobody marked."""
    found = resolve({"batch_size": 8, "data_parallel_degree": 4}, ["minibatch_size"])
    assert {name: float(value) for name, value in found.items()} == {
        "batch_size": 8,
        "data_parallel_degree": 4,
        "minibatch_size": 2,
    }


def test_what_is_missing_unknown_or_twice_is_named():
    """One fault for each, and for a missing input all that need it."""
    with pytest.raises(InputError) as raised:
        resolve(
            {"batch_size": 8, "samples": 1, "context": 1, "tokens_to_train": 9},
            ["minibatch_size", "samples", "bach_size"],
            source="config.json",
        )
    taken, unknown, missing = str(raised.value).splitlines()
    assert taken == "config.json: samples: is both set and calculated; leave one out"
    problem = (
        "is marked calculated, but AMPeD has no formula for it; did you mean 'minibatch_size'?"
    )
    assert unknown == f"config.json: bach_size: {problem}"
    problem = "is missing, and needed for minibatch_size; give it or mark it calculated"
    assert missing == f"config.json: data_parallel_degree: {problem}"


def test_a_cycle_is_named():
    """A formula that needs itself through another stops with the way round."""

    ways = {"one": "two", "two": "three", "three": "one"}
    table = {name: expression_of(needed) for name, needed in ways.items()}
    with pytest.raises(InputError) as raised:
        resolve({}, table, table=table)
    text = str(raised.value)
    assert "is calculated from itself" in text
    ways = ["one needs two needs three needs one", "two needs three needs one needs two"]
    assert any(way in text for way in [*ways, "three needs one needs two needs three"])

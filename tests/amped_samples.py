"""AMPeD files made up for tests: a small configuration that is whole, and changes of it."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "from" / "amped"
CONFIG, TABLES = FOLDER / "config.json", FOLDER / "lookup_tables.json"
NETWORK, MAPPING, CLUSTER, CHIP = (
    "neural_network_training_parameters",
    "mapping_parameters",
    "system_architecture_parameters",
    "accelerator_architecture_parameters",
)
SMALL: dict[str, dict[str, Any]] = {
    NETWORK: {
        "batch_size": 64,
        "context": 128,
        "dimensionality": 256,
        "attention_heads": 4,
        "layers": 6,
        "number_of_tokens_in_vocabulary": 1000,
        "hidden_layer_dimension_for_attention_sublayers": 64,
        "hidden_layer_dimension_MLP_2": 1024,
        "weight_precision": 16,
    },
    MAPPING: {
        "intra_node_tensor_parallel_degree": 2,
        "intra_node_pipeline_parallel_degree": 1,
        "intra_node_data_parallel_degree": 2,
        "inter_node_tensor_parallel_degree": 1,
        "inter_node_pipeline_parallel_degree": 2,
        "inter_node_data_parallel_degree": 4,
        "number_of_microbatches_per_minibatch": 4,
    },
    CLUSTER: {
        "number_of_accelerators_per_node": 4,
        "number_of_network_cards_per_node": 2,
        "bandwidth_per_network_card": "200 G",
        "inter_node_latency": "5 us",
        "inter_accelerator_bandwidth": "2.4 T",
        "inter_accelerator_latency": 1e-6,
    },
    CHIP: {
        "frequency": "1.5 GHz",
        "number_of_cores": 100,
        "functional_units_per_core": 4,
        "functional_unit_hardware_8bit_MAC_per_cycle": 256,
        "non_linear_functional_units_per_core": 16,
        "non_linear_functional_unit_hardware_8bit_NLIN_per_cycle": 2,
        "memory_capacity": "40 GB",
        "memory_bandwidth": "1.5 TB/s",
    },
}
CALCULATED = {"calculated": True}


def small(**changes: Any) -> dict[str, Any]:
    """The small configuration; None leaves a parameter out, a mapping is what stands for it.

    Parameters that it does not have go to the last category, as they may stand in any.
    """
    wanted = deepcopy(SMALL)
    for name, value in changes.items():
        homes = [category for category in wanted if name in wanted[category]] or [CHIP]
        wanted[homes[0]][name] = value
    return {
        category: {
            "parameters": {
                name: value if isinstance(value, dict) else {"value": value}
                for name, value in parameters.items()
                if value is not None
            }
        }
        for category, parameters in wanted.items()
    }


def whole() -> dict[str, Any]:
    """The example of the documentation."""
    data: dict[str, Any] = json.loads(CONFIG.read_text())
    return data


def tables() -> dict[str, Any]:
    """Its lookup tables."""
    data: dict[str, Any] = json.loads(TABLES.read_text())
    return data

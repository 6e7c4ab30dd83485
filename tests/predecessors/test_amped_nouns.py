"""AMPeD's configurations as model, system and strategy: figure by figure, by hand."""

import json

import numpy as np
import pytest

from amped_samples import CALCULATED, CHIP, CLUSTER, CONFIG, MAPPING, NETWORK, TABLES, small, tables
from rows import each_row
from samples import column
from shardwise import InputError, Model, Strategy, System, estimate
from shardwise.cost.collective import collective_time
from shardwise.ops.operation import CollectiveKind
from shardwise.ops.param_count import count_parameters
from shardwise.predecessors.amped.files import read_config
from shardwise.predecessors.amped.import_record import import_record
from shardwise.predecessors.amped.reader import system_fields
from test_catalog_systems import numeric_fields


def the_fault(noun, data):
    with pytest.raises(InputError) as caught:
        noun.load(data)
    (line,) = str(caught.value).splitlines()
    return line


def test_a_model_has_its_widths():
    """A decoder like GPT-2, whose parameters can be counted on paper."""
    model = Model.load(small())
    (layer,) = model.layers
    assert (model.hidden, model.vocab, model.seq_len, model.depth) == (256, 1000, 128, 6)
    assert (layer.attention.heads, layer.attention.head_dim, layer.attention.causal) == (
        4,
        64,
        True,
    )
    assert (layer.mlp.ffn, layer.mlp.activation, model.tied_embeddings) == (1024, "gelu", True)
    of_layer = 4 * 256**2 + 4 * 256 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    assert count_parameters(model).total == 6 * of_layer + 1000 * 256 + 128 * 256 + 2 * 256


def test_parameters_agree_with_theirs_but_for_biases_and_positions():
    """The documented example: 145.59 B there, 0.02 % more here."""
    theirs = read_config(json.loads(CONFIG.read_text()), str(CONFIG))
    total = theirs["total_number_of_parameters_without_embedding"].value
    # There a layer has four vectors; here biases of 9 d and 4 d and norms of 4 d, beside the rows
    # of 2,048 positions and the last norm.
    more = 80 * (4 + 5 + 4 - 4) * 12288 + (2048 + 2) * 12288
    assert count_parameters(Model.load(CONFIG)).total - total == more


@each_row(
    ("changes", "width"),
    [
        ({}, 64),
        ({"hidden_layer_dimension_for_attention_sublayers": 256}, 64),
        ({"hidden_layer_dimension_for_attention_sublayers": 32}, 32),
        ({"hidden_layer_dimension_for_attention_sublayers": None}, 64),
        ({"key_query_value_length": 64}, 64),
        (
            {
                "hidden_layer_dimension_for_attention_sublayers": None,
                "key_query_value_length": 16,
            },
            16,
        ),
    ],
)
def test_the_width_of_a_head(changes, width):
    """Told of one head, told of all, told as the length of keys, or the equal part."""
    assert Model.load(small(**changes)).layers[0].attention.head_dim == width


def test_experts_stand_in_every_second_layer():
    """One expert for each token; the other layers are dense; ep as the replicas allow."""
    data = small(number_of_experts=6, layers=6)
    model = Model.load(data)
    assert [layer.count for layer in model.layers] == [3, 3]
    assert [model.layers[kind].moe is not None for kind in model.order] == [False, True] * 3
    assert (model.layers[1].moe.experts, model.layers[1].moe.top_k) == (6, 1)
    assert Strategy.load(data).ep == 2
    assert "one expert for each token" in model.source_of("layers.1.moe.top_k").text
    result = estimate(model, System.load(data), Strategy.load(data))
    assert result.comm_s["ep"].total > 0


@each_row(
    ("changes", "problem"),
    [
        ({"hidden_layer_dimension_MLP_1": 512}, "512: must be the dimensionality 256"),
        ({"key_query_value_length": 32}, "64: contradicts key_query_value_length 32"),
        ({"hidden_layer_dimension_MLP_2": None}, "is missing: inner width of the MLP"),
        (
            {"number_of_experts": 4, "layers": 1, "inter_node_pipeline_parallel_degree": 1},
            "4: every second layer has experts; there is only one",
        ),
        (
            {"attention_heads": 6, "hidden_layer_dimension_for_attention_sublayers": None},
            "is missing: 6 heads do not divide the dimensionality 256",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, problem):
    """With category and parameter."""
    assert problem in the_fault(Model, small(**changes))


def test_a_strategy_has_its_degrees_and_where_they_are():
    """Products of the six degrees, members inside a node, micro-batches, types."""
    given = Strategy.load(small()).model_dump(exclude_unset=True)
    assert given == {
        "tp": 2,
        "pp": 2,
        "dp": 8,
        "micro_batch_size": 2,
        "global_batch_size": 64,
        "seq_len": 128,
        "dtype": "bf16",
        "optimizer": "adamw",
        "tp_exchange": "all_reduce",
        "dp_overlap": False,
        "any_software": True,
        "tp_overlap": "none",
        "extents": "tp=2+dp=2",
        "zero": 1,
    }
    data = small()
    result = estimate(data, data, data)
    assert result.extents == {"tp": (2, 2), "tp2": (1, 1), "cp": (1, 1), "dp": (2, 8), "pp": (1, 2)}
    assert (result.strategy["gpus"], result.micro_batches) == (32, 4)


@each_row(
    ("changes", "fields"),
    [
        ({"weight_precision": 32, "activation_precision": 32}, {"dtype": "fp32"}),
        ({"weight_precision": 8}, {"dtype": "bf16", "quantization": "fp8_tensor"}),
        ({"gradient_precision": 32, "optimizer_state_precision": 16}, {"optimizer": "adamw-bf16"}),
        ({"optimizer_state_precision": 8}, {"optimizer": "adamw-8bit"}),
        ({"inter_node_pipeline_parallel_degree": 1}, {"zero": 3, "pp": 1}),
        (
            {"number_of_microbatches_per_minibatch": None},
            {"micro_batch_size": 4},
        ),
    ],
)
def test_types_and_shards(changes, fields):
    """Precisions in bits become types; without stages weights are sharded as AMPeD has it."""
    strategy = Strategy.load(small(**changes))
    assert {name: getattr(strategy, name) for name in fields} == fields


def test_gradients_of_16_bits_are_those_of_the_stack():
    """And with the estimate they run."""
    data = small(gradient_precision=16)
    assert Strategy.load(data).stack.gradient_dtype == "compute"
    half, full = (estimate(one, one, one) for one in (data, small()))
    assert half.memory_bytes.gradients < full.memory_bytes.gradients


@each_row(
    ("changes", "problem"),
    [
        ({"weight_precision": 12}, "12: allowed: 8, 16, 32 bits"),
        ({"activation_precision": 32}, "32: must be as weight_precision 16"),
        ({"gradient_precision": 8}, "8: allowed: 16, 32 bits"),
        ({"optimizer_state_precision": 64}, "64: allowed: 8, 16, 32 bits"),
        ({"weight_precision": None}, "is missing: bits: 8, 16, 32"),
        ({"batch_size": None}, "is missing: sequences in a step"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(changes, problem):
    """With category and parameter."""
    assert problem in the_fault(Strategy, small(**changes))


def test_whole_degrees_need_their_places():
    """A product alone does not say what is inside a node."""
    data = small(
        intra_node_data_parallel_degree=None,
        inter_node_data_parallel_degree=None,
        data_parallel_degree=8,
    )
    assert the_fault(Strategy, data).startswith(
        "strategy: intra_node_data_parallel_degree: is missing: "
    )


def test_a_system_has_its_rates():
    """Peaks by frequency, cores, units and operations per cycle; bandwidths are in bit/s."""
    system = System.load(small())
    chip = system.accelerator
    assert chip.matrix == dict.fromkeys(("fp32", "fp16", "bf16", "fp8"), 2 * 1.5e9 * 400 * 256)
    assert chip.vector == {"fp32": 8 * 1.5e9 * 1600 * 2}
    assert {kind: curve.points for kind, curve in chip.matmul_curve.items()} == dict.fromkeys(
        chip.matrix, ((0.0, 0.51),)
    )
    assert (chip.memory[0].capacity, chip.memory[0].bandwidth) == (40e9, 1.5e12)
    inside, between = system.network
    assert (system.node.accelerators, inside.domain, inside.bandwidth) == (4, 4, 300e9)
    assert (between.domain, between.links_per_node, between.bandwidth) == (None, 2, 25e9)
    assert system.tier_bandwidth(1) == 12.5e9
    numbers = list(numeric_fields(system.model_dump(exclude={"sources"})))
    assert [field for field in numbers if system.source_of(field) is None] == []


def test_a_non_linear_operation_is_an_activation_of_one_element():
    """A layer's activation takes as long here as AMPeD's operations of as many elements."""
    data = small()
    system, model = System.load(data), Model.load(data)
    tokens, width = 2 * 128, 1024 // 2
    result = estimate(model, system, data, operations=True)
    (kernel,) = [
        one
        for one in result.operations
        if one.operation == "mlp.activation" and one.phase == "forward"
    ]
    assert kernel.flops / system.accelerator.vector["fp32"] == pytest.approx(
        tokens * width / (1.5e9 * 1600 * 2)
    )


def test_rings_take_their_steps():
    """2 (n - 1) latencies and volumes / n of an all-reduce inside a node, as in AMPeD's term."""
    system = System.load(small())
    extents = np.array([[4], [4]])
    time = collective_time(system, CollectiveKind.ALL_REDUCE, column(8e6), extents)
    assert time[0] == pytest.approx(2 * 3 * 1e-6 + 2 * 3 / 4 * 8e6 * 8 / 2.4e12)


def test_told_shares_stand_in_place_of_the_constant():
    """Joined as the times of a layer's products are."""
    shares = {"effective_perf_perc_MLP": 0.8, "effective_perf_perc_K_Q_V": 0.6}
    curve = System.load(small(**shares)).accelerator.matmul_curve["bf16"]
    projections, scores, output, mlp = 3 * 256 * 256, 2 * 128 * 256, 256**2, 2 * 256 * 1024
    time = projections / 0.6 + scores / 0.51 + output / 0.51 + mlp / 0.8
    assert curve.points[0][1] == pytest.approx((projections + scores + output + mlp) / time)
    assert System.load(small(efficiency=0.4)).accelerator.matmul_curve["bf16"].points[0][1] == 0.4
    for name in ("effective_perf_perc_MLP", "efficiency"):
        assert "80: must be a share" in the_fault(System, small(**{name: 80}))
    calculated = {"effective_perf_perc_MLP": CALCULATED, "parallelization_degree_MLP": 7}
    assert System.load(small(**calculated)).accelerator.matmul_curve["bf16"].points[0][1] == 0.51


def row(name, **changes):
    """The small configuration with a row of an accelerator, without memory of its own."""
    data = small(memory_capacity=None, memory_bandwidth=None, **changes)
    data[CHIP]["lookup_config"] = {"lookup_table_name": "chips", "lookup_table_row": name}
    data[CHIP]["parameters"]["frequency"] = {"from_lookup_table": True}
    return data


def of_row(name, properties, **changes):
    config = read_config(row(name, **changes), "c.json", ({"chips": {name: properties}}, "t.json"))
    return System.validated(system_fields(config, "c"))


@each_row(
    ("name", "system"),
    [
        ("A100", "a100-80gb-sxm"),
        ("A100 40GB PCIe", "a100-40gb-pcie"),
        ("NVIDIA A100-SXM-40GB", "a100-40gb-sxm"),
        ("V100", "v100-sxm-32gb"),
        ("H100 PCIe", "h100-pcie"),
        ("H100 SXM5", "h100-sxm"),
        ("MI300X", "mi300x"),
        ("P100", "p100-pcie"),
    ],
)
def test_memory_that_nobody_told_is_that_of_the_catalog(name, system):
    """By the row's name, and said so."""
    found = of_row(name, {"frequency": "1 GHz"})
    expected = System.load(system).accelerator.memory[0]
    assert found.accelerator.memory == (expected,)
    assert found.source_of("accelerator.memory.0.capacity").kind == "assumed"
    assert system in found.source_of("accelerator.memory.0.capacity").text


def test_memory_of_the_row_counts_first():
    """Properties that the configuration does not name."""
    found = of_row("P100", {"frequency": 1e9, "hbm_size": "16 GB", "hbm_bandwidth": "732 GB/s"})
    assert found.accelerator.memory[0].capacity == 16e9
    assert found.source_of("accelerator.memory.0.capacity").kind == "published"
    part = of_row("A100", {"frequency": 1e9, "memory_size": "20 GB"}).accelerator.memory[0]
    assert (part.capacity, part.bandwidth) == (
        20e9,
        System.load("a100-80gb-sxm").accelerator.memory[0].bandwidth,
    )


def test_memory_that_nobody_knows_is_asked_for():
    """Both figures, each in a line."""
    with pytest.raises(InputError) as caught:
        of_row("K80", {"frequency": 1e9})
    capacity, bandwidth = str(caught.value).splitlines()
    assert capacity == (
        "c.json: memory_capacity: is missing: AMPeD has no memory, and no system of the catalog is "
        f"called like the row K80; add it to {CHIP}, such as 16 GB"
    )
    assert bandwidth.endswith("such as 732 GB/s")


@each_row(
    ("changes", "problem"),
    [
        ({"memory_capacity": 40}, "40: must be in bytes, from 1e+08 to 1e+14"),
        ({"memory_bandwidth": "12 Tbit/s"}, "'12 Tbit/s': must be in bytes, not bit/s"),
        ({"frequency": None}, "frequency: is missing: such as 1.41 GHz"),
        ({"number_of_cores": None}, "number_of_cores: is missing"),
        ({"inter_accelerator_bandwidth": None}, "is missing: in bit/s, such as 2.4 T"),
        ({"bandwidth_per_network_card": None}, "is missing: in bit/s, such as 200 G"),
    ],
)
def test_a_system_that_cannot_be_is_refused(changes, problem):
    """With category and parameter."""
    assert problem in the_fault(System, small(**changes))


def test_one_node_needs_no_network_beyond_it():
    """One tier, and a strategy without extents; more accelerators than that are refused."""
    alone = dict.fromkeys(SMALL_NETWORK) | dict.fromkeys(BETWEEN, 1)
    data = small(**alone, batch_size=8)
    assert [tier.name for tier in System.load(data).network] == ["node"]
    assert Strategy.load(data).extents is None
    assert estimate(data, data, data).strategy["gpus"] == 4
    with pytest.raises(InputError):
        estimate(data, data, {"gpus": 8, "gbs": 8})


SMALL_NETWORK = (
    "number_of_network_cards_per_node",
    "bandwidth_per_network_card",
    "inter_node_latency",
)
BETWEEN = tuple(f"inter_node_{words}_parallel_degree" for words in ("data", "tensor", "pipeline"))


def test_everything_is_told():
    """Each parameter is either taken, with the field, or not used, with the reason."""
    config = read_config(json.loads(CONFIG.read_text()), str(CONFIG))
    for nouns in ((), ("model",), ("model", "system", "strategy", "run")):
        record = import_record(config, nouns)
        told = [one["parameter"] for one in (*record["taken"], *record["not_used"])]
        assert sorted(told) == sorted(config.parameters)
        assert all(one["as"] for one in record["taken"])
        assert all(one["why"] for one in record["not_used"])
    vocabulary = next(
        one for one in record["taken"] if one["parameter"] == "number_of_tokens_in_vocabulary"
    )
    assert vocabulary == {
        "parameter": "number_of_tokens_in_vocabulary",
        "category": NETWORK,
        "value": 51200,
        "origin": "looked up",
        "description": "words",
        "lookup_name": "vocabulary",
        "as": "model vocab",
    }
    assert record["rows"] == {
        NETWORK: "Megatron 145B",
        CLUSTER: "A100",
        CHIP: "A100",
    }
    assert (record["format"], record["tables"]) == ("amped", str(TABLES))


def test_notes_say_what_was_left_and_how_figures_are_read():
    """Values beside a look-up, bytes that AMPeD reads as bits, the width of all heads."""
    data = small(
        inter_accelerator_bandwidth="300 GB/s",
        hidden_layer_dimension_for_attention_sublayers=256,
        minibatch_size={"value": 3, "calculated": True},
        data_parallel_degree=CALCULATED,
    )
    data[MAPPING]["parameters"]["spare_cards"] = {"value": 3, "description": "in the cupboard"}
    record = import_record(read_config(data, "c.json"), ("model", "system", "strategy"))
    notes = "\n".join(record["notes"])
    assert "300 GB/s is read in bit/s, as AMPeD does whatever the letters: 37.5 GB/s" in notes
    assert "256 is the width of all heads; one has 64" in notes
    assert "minibatch_size: 8 was calculated; its value 3 was ignored" in notes
    (spare,) = [one for one in record["not_used"] if one["parameter"] == "spare_cards"]
    assert (spare["why"], spare["description"]) == (
        "unknown here, and no formula of AMPeD needs it",
        "in the cupboard",
    )


def test_the_example_rows_make_systems():
    """Every accelerator of the documented tables; peaks as on their data sheets [TFLOP/s]."""
    peaks = {"P100": 18.7, "V100": 125, "A100": 312, "H100 PCIe": 756, "H100 SXM5": 989.4}
    assert set(tables()["accelerator_specifications"]) == set(peaks)
    data = json.loads(CONFIG.read_text())
    for name, peak in peaks.items():
        for category in (CLUSTER, CHIP):
            data[category]["lookup_config"]["lookup_table_row"] = name
        system = System.validated(system_fields(read_config(data, str(CONFIG)), "c"))
        assert system.accelerator.matrix["fp16"] / 1e12 == pytest.approx(peak, rel=3e-3)

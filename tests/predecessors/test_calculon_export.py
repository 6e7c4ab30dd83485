"""What Calculon's files have no word for is refused by name."""

import copy

import pytest

from calculon_runs import README, RUNS, system_of
from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.predecessors.calculon.translation import (
    calculon_case,
    calculon_execution,
    calculon_model,
    calculon_system,
)

MODEL = Model.load("calculon-gpt3-13b").to_dict()
SYSTEM = System.load("calculon-a100-80g").to_dict()
STRATEGY = Strategy(gpus=8, tp=8, gbs=8, dtype="fp16", seq_len=2048)
TIERS = {"tp": 0, "pp": 0, "dp": 0}


def refused(export, fields, *path, value):
    """Faults of a record in which one field was changed."""
    changed = copy.deepcopy(fields)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(InputError) as error:
        export(changed)
    return [str(fault) for fault in error.value.faults]


@each_row(
    ("path", "value", "told"),
    [
        (("layers", 0, "attention", "kv_heads"), 8, "kv_heads: 8: Calculon knows multi-head"),
        (("layers", 0, "mlp", "activation"), "swiglu", "activation: 'swiglu': Calculon knows no"),
        (
            ("layers", 0, "attention", "qk_norm"),
            True,
            "qk_norm: true: Calculon knows no norm of queries and keys",
        ),
        (("layers", 0, "parallel"), True, "parallel: true: Calculon knows no parallel"),
        (("seq_len",), None, "seq_len: null: Calculon needs the length"),
        (("layers",), MODEL["layers"] * 2, "layers: 2: Calculon knows one kind"),
    ],
)
def test_models(path, value, told):
    """Grouped or normed queries, gates, parallel blocks, several kinds of layers, no length."""
    (fault,) = refused(calculon_model, MODEL, *path, value=value)
    assert fault.startswith("calculon-gpt3-13b: ")
    assert told in fault


def test_one_key_value_head_is_multiquery():
    """It is the execution that says so in Calculon."""
    fields = copy.deepcopy(MODEL)
    fields["layers"][0]["attention"]["kv_heads"] = 1
    assert calculon_model(fields) == calculon_model(MODEL)
    resolved = STRATEGY.resolved(Model.load("calculon-gpt3-13b")).to_dict()
    for multiquery, kind in ((True, "multiquery"), (False, "multihead")):
        found = calculon_execution(resolved, multiquery=multiquery, tiers=TIERS)
        assert found.attention_type == kind
    said = resolved | {"attention": "multihead"}
    found = calculon_execution(said, multiquery=True, tiers=TIERS)
    assert found.attention_type == "multihead"


@each_row(
    ("path", "value", "told"),
    [
        (("accelerator", "processing"), "measured", "accelerator.processing: 'measured'"),
        (("accelerator", "memory_bound", "launch"), 1e-6, "accelerator.memory_bound"),
        (("accelerator", "memory_bound", "efficiency"), 0.9, "accelerator.memory_bound"),
        (("accelerator", "compute_latency"), 2e-5, "accelerator.compute_latency"),
        (
            ("accelerator", "matmul_curve", "fp16", "interpolate"),
            True,
            "accelerator.matmul_curve.fp16.interpolate: true",
        ),
        (
            ("accelerator", "memory", 1, "efficiency", "interpolate"),
            True,
            "accelerator.memory[1].efficiency.interpolate: true",
        ),
        (("accelerator", "memory", 1, "host"), {"shared_by": 2}, "accelerator.memory[1].host"),
        (
            ("accelerator", "memory"),
            [*SYSTEM["accelerator"]["memory"], SYSTEM["accelerator"]["memory"][1]],
            "accelerator.memory: 3: Calculon knows two tiers",
        ),
        (
            ("accelerator", "matrix", "fp4"),
            1e15,
            "accelerator.matrix: 'fp4': Calculon has no name for it; allowed: fp8, fp16, bf16",
        ),
        (("accelerator", "vector", "tf32"), 1e15, "accelerator.vector: 'tf32': Calculon has no"),
        (("network", 1, "domain"), None, "network[1].domain: null"),
        (("network", 0, "links_per_node"), 4, "network[0].links_per_node: 4"),
        (("network", 0, "join_exponent"), 0.6, "network[0].join_exponent: 0.6"),
        (("network", 1, "collectives", "p2p", "latency"), 1.0, "network[1].collectives"),
        (
            ("network", 1, "collectives", "all_gather", "latency_per_member"),
            1e-6,
            "network[1].collectives",
        ),
        (("network", 0, "collectives", "all_gather", "scale"), None, "network[0].collectives"),
        (("network", 0, "collectives", "p2p", "efficiency"), {2: 0.5}, "network[0].collectives"),
    ],
)
def test_systems(path, value, told):
    """Launches, interpolation, more memory and types, shared NICs, latencies that grow, rings."""
    (fault,) = refused(calculon_system, SYSTEM, *path, value=value)
    assert fault.startswith("calculon-a100-80g: ")
    assert told in fault
    assert "Calculon" in fault


def test_a_memory_or_engine_without_a_curve_reaches_its_peak():
    """One row, for everything: the whole bandwidth, the whole rate."""
    fields = copy.deepcopy(SYSTEM)
    fields["accelerator"]["memory"][0]["efficiency"] = None
    fields["accelerator"]["vector_curve"] = {}
    theirs = calculon_system(fields)
    assert theirs.mem1.MB_efficiency == ((0, 1),)
    assert theirs.vector["float16"].gflops_efficiency == ((0, 1),)


@each_row(
    ("changes", "told"),
    [
        ({"cp": 2}, "cp: 2: Calculon does not know this axis"),
        ({"ep": 2}, "ep: 2: Calculon does not know this axis"),
        ({"zero": 3}, "zero: 3: Calculon shards the optimizer; allowed: 0, 1"),
        ({"schedule": "interleaved"}, "schedule: 'interleaved': Calculon interleaves where vpp"),
        ({"vpp": 2}, "schedule: '1f1b': Calculon interleaves where vpp is above 1, and only"),
        ({"quantization": "mxfp8"}, "quantization: 'mxfp8': Calculon does not know it; allowed: n"),
        ({"quantization": "fp8_tensor"}, "quantized_weights: false: Calculon stores weights of"),
        ({"dtype": "fp4"}, "dtype: 'fp4': Calculon does not know it; allowed: fp8, fp16"),
    ],
)
def test_strategies(changes, told):
    """Axes, sharding, schedules and types that it does not have."""
    resolved = STRATEGY.resolved(Model.load("calculon-gpt3-13b")).to_dict()
    with pytest.raises(InputError) as error:
        calculon_execution(resolved | changes, multiquery=False, tiers=TIERS)
    (fault,) = error.value.faults
    assert told in str(fault)


@each_row("model", ["calculon-gpt3-175b", RUNS["models"]["gpt3-175B"]])
def test_sequences_are_as_long_as_the_strategy_says(model):
    """Ours over Calculon's file too; without a word of it, as the model has them."""
    system, flags = "calculon-a100-80g", {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16"}
    case = calculon_case(model, system, flags | {"seq_len": 1024})
    assert case.model.seq_size == 1024
    whole = calculon_case(model, system, flags)
    assert whole.model.seq_size == 2048
    assert case.statistics()["fw_time"] < whole.statistics()["fw_time"]


def test_a_model_without_a_length_takes_the_strategys(tmp_path):
    """It needs one from somewhere; an execution of Calculon's has none."""
    fields = Model.load("calculon-gpt3-175b").to_dict()
    path = tmp_path / "model.yaml"
    Model.validated(fields | {"seq_len": None, "position": "rope"}).to_file(path)
    flags = {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16"}
    case = calculon_case(path, "calculon-a100-80g", flags | {"seq_len": 512})
    assert case.model.seq_size == 512
    with pytest.raises(InputError, match="seq_len: is missing"):
        calculon_case(path, "calculon-a100-80g", flags)
    with pytest.raises(InputError) as error:
        calculon_case(path, system_of(README), README["execution"])
    assert str(error.value).startswith(f"{path}: seq_len: null: Calculon needs the length")


def test_an_execution_of_calculons_leaves_the_length_to_the_model():
    """It has no word for it."""
    theirs = RUNS["models"][README["model"]] | {"seq_size": 1024}
    for model in (theirs, Model.load(theirs)):
        case = calculon_case(model, system_of(README), README["execution"])
        assert case.model.seq_size == 1024


def test_a_strategy_that_does_not_go_with_the_model_is_named_by_its_file(tmp_path):
    """Where it has one."""
    flags = {"gpus": 5, "tp": 5, "gbs": 8, "dtype": "fp16"}
    path = tmp_path / "five.yaml"
    Strategy.validated(flags).to_file(path)
    for strategy, source in ((path, path), (str(path), path), (flags, "strategy")):
        with pytest.raises(InputError) as error:
            calculon_case("calculon-gpt3-175b", "calculon-a100-80g", strategy)
        assert {fault.source for fault in error.value.faults} == {str(source)}
        assert error.value.faults[0].field == "tensor_par"


def test_names_of_the_catalog_come_before_files(tmp_path, monkeypatch):
    """As everywhere; a name that no file can have is no crash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calculon-gpt3-175b").write_text("something else")
    flags = {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "dtype": "fp16"}
    assert calculon_case("calculon-gpt3-175b", "calculon-a100-80g", flags).model.hidden == 12288
    with pytest.raises(InputError, match="no such model"):
        calculon_case("x" * 300, "calculon-a100-80g", flags)

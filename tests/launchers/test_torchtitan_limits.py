"""What torchtitan v0.2.2 can express of a strategy: all that its column says, and nothing else."""

from collections.abc import Mapping
from typing import Any

import pytest

from shardwise import Model
from shardwise.config.enums import PLACEMENTS, RecomputePart
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.torchtitan import LAUNCHER
from shardwise.launchers.torchtitan.fields import release_faults
from shardwise.launchers.torchtitan.models import builder_of
from shardwise.launchers.writing import launch_files, written_by_release
from shardwise.parallel.constraints import illegal_faults
from torchtitan_plans import made

DENSE, GROUPED, LATENT = "llama3-8b", "llama4-scout", "deepseek-v2-lite"
PP, TP, CP = {"pp": 4}, {"tp": 4}, {"cp": 2, "cp_exchange": "all_gather"}
EP, OFFLOAD = {"ep": 8}, {"offload_activations": True}
Fields = Mapping[str, Any]


def parts(*names: str) -> Fields:
    return {"recompute": "selective", "recompute_parts": names}


# Rows of the table of abilities (column TT, v0.2.2 where it differs) that have no dash.
CAN: list[tuple[str, Fields]] = [
    (DENSE, PP | {"schedule": "1f1b"}),
    (DENSE, PP | {"schedule": "gpipe"}),
    (DENSE, PP | {"schedule": "interleaved", "vpp": 2}),
    (DENSE, PP | {"schedule": "zb-v", "stack": "torchtitan-eager"}),
    (DENSE, PP | {"first_stage_layers": 5, "last_stage_layers": 5}),
    (DENSE, PP | {"stage_layers": [7, 8, 8, 9]}),
    (DENSE, PP | {"embedding_as_layer": True, "loss_as_layer": True}),
    (DENSE, TP | {"tp_exchange": "rs_ag", "tp_overlap": "none"}),
    (DENSE, TP | {"tp_overlap": "ring"}),
    (DENSE, CP),
    (DENSE, CP | {"cp_exchange": "ring"}),
    (GROUPED, EP),
    (GROUPED, {"ep": 8, "tp": 4, "etp": 4}),
    (GROUPED, {"ep": 16, "tp": 8, "gpus": 16, "gbs": 64}),
    (GROUPED, EP | {"dispatcher": "deepep"}),
    (DENSE, {"dp_overlap": True}),
    (DENSE, {"zero": 0}),
    (DENSE, {"zero": 2}),
    (DENSE, {"zero": 3}),
    (DENSE, PP | {"zero": 3}),
    (DENSE, {"dp_shard": 16}),
    (DENSE, {"fsdp_reshard": False}),
    (DENSE, {"quantization": "fp8_tensor"}),
    (DENSE, {"quantization": "fp8_tensor", "quantized_weights": True}),
    (DENSE, {"quantization": "fp8_row"}),
    (DENSE, {"quantization": "mxfp8"}),
    (DENSE, {"recompute": "full"}),
    (DENSE, parts("every_other")),
    (DENSE, {"offload_weights": True, "offload_optimizer": True}),
    (DENSE, {"placement": "tp-cp-dp-pp"}),
    (DENSE, {"optimizer": "adamw"}),
    (DENSE, {"dtype": "fp32"}),
]
# Its dashes, and the field that is refused.
CANNOT: list[tuple[str, str, Fields]] = [
    (DENSE, "schedule", PP | {"schedule": "zb-h1"}),
    (DENSE, "schedule", PP | {"schedule": "dualpipe"}),
    (DENSE, "tp_exchange", TP | {"tp_exchange": "all_reduce"}),
    (DENSE, "tp_exchange", TP | {"tp_exchange": "p2p_rs_ag"}),
    (DENSE, "tp2", TP | {"tp_exchange": "summa", "tp2": 2}),
    (DENSE, "tp_overlap", TP | {"tp_overlap": "pipe"}),
    (DENSE, "tp_regather", TP | {"tp_regather": False}),
    (DENSE, "cp_exchange", CP | {"cp_exchange": "all_to_all"}),
    (GROUPED, "etp", {"ep": 8, "tp": 4, "etp": 2}),
    (GROUPED, "expert_capacity", EP | {"expert_capacity": 1.5}),
    (GROUPED, "dispatch_dtype", EP | {"dispatch_dtype": "fp8"}),
    (GROUPED, "expert_overlap", EP | {"expert_overlap": True}),
    (GROUPED, "dispatcher", EP | {"dispatcher": "hybridep"}),
    (GROUPED, "dispatcher", EP | {"dispatcher": "all_gather"}),
    (DENSE, "dp_overlap", {"dp_overlap": False}),
    (DENSE, "zero", {"zero": 1}),
    (DENSE, "fsdp_prefetch", {"fsdp_prefetch": 2}),
    (DENSE, "quantization", {"quantization": "fp8_block"}),
    (DENSE, "quantization", {"quantization": "nvfp4"}),
    (DENSE, "quantized_weights", {"quantization": "mxfp8", "quantized_weights": True}),
    (DENSE, "recompute_layers", {"recompute": "full", "recompute_layers": 8}),
    *(
        (LATENT if part == "mla_up" else GROUPED, "recompute_parts", parts(part))
        for part in RecomputePart
        if part not in ("every_other", "mlp")
    ),
    (DENSE, "recompute_parts", parts("mlp")),
    (DENSE, "fused_activation", {"fused_activation": True}),
    (DENSE, "offload_weights", {"offload_weights": True}),
    (DENSE, "offload_optimizer", {"offload_optimizer": True}),
    (DENSE, "offload_activations", OFFLOAD),
    (DENSE, "offload_activations", OFFLOAD | {"offload_parts": ["qkv"]}),
    *(
        (DENSE, "placement", {**TP, **PP, **CP, "placement": order})
        for order in PLACEMENTS
        if order != "tp-cp-dp-pp"
    ),
    (DENSE, "frozen", {"frozen": ["embedding"]}),
    (DENSE, "lora_rank", {"lora_rank": 16}),
    *(
        (DENSE, "optimizer", {"optimizer": word})
        for word in COLUMNS["optimizer"].words
        if word != "adamw"
    ),
    (DENSE, "dtype", {"dtype": "fp16"}),
]
# What the launcher has no option for, of plans that its stack runs.
NO_OPTION: list[tuple[str, str, Fields]] = [
    (DENSE, "training", {"training": False}),
    (DENSE, "document_len", {"document_len": 2048}),
    (DENSE, "attention", {"attention": "multihead"}),
    (DENSE, "dtype", {"tp": 8, "gpus": 8}),
    (DENSE, "dp_shard", {"tp": 8, "gpus": 64, "dp_shard": 1}),
    (DENSE, "seq_len", TP | {"seq_len": 8196}),
    (GROUPED, "etp", {"tp": 4, "etp": 1}),
    ("qwen3-8b", "pp", PP),
    ("qwen3-30b-a3b", "dispatcher", EP | {"dispatcher": "deepep"}),
    (LATENT, "cp", CP),
    ("deepseek-v3", "mtp", {"gpus": 256, "gbs": 256}),
    ("llama2-7b", "model", {}),
]


def faults_of(plan: LaunchPlan) -> dict[str, Fault]:
    """Fields that are refused, by the stack or by the launcher."""
    table = Table.of(plan.model, [plan.strategy])
    found = [
        *illegal_faults(plan.model, plan.system, table).values(),
        *LAUNCHER.faults(plan.model, plan.strategy),
        *release_faults(plan.model, plan.strategy, "0.2.2"),
    ]
    return {one.field: one for one in found}


def _named(fields: Fields) -> str:
    return "-".join(f"{name}={value}" for name, value in fields.items())


@pytest.mark.parametrize(("model", "fields"), CAN, ids=[_named(case[1]) for case in CAN])
def test_what_the_column_says_can_be_expressed(model: str, fields: Fields) -> None:
    plan = made(Model.load(model), **fields)
    assert faults_of(plan) == {}
    assert launch_files(LAUNCHER, plan)[0].text


@pytest.mark.parametrize(
    ("model", "field", "fields"), CANNOT, ids=[_named(case[2]) for case in CANNOT]
)
def test_its_dashes_cannot_be_expressed(model: str, field: str, fields: Fields) -> None:
    assert field in faults_of(made(Model.load(model), **fields))


def test_every_word_is_in_one_of_both() -> None:
    """The table says something of each word of each field that it is about."""
    known: dict[str, set[str]] = {}
    for fields in [case[1] for case in CAN] + [case[2] for case in CANNOT]:
        for name, value in fields.items():
            values = value if isinstance(value, (tuple, list)) else [value]
            known.setdefault(name, set()).update(map(str, values))
    words = ("schedule", "tp_exchange", "cp_exchange", "quantization", "optimizer", "dtype")
    for name in (*words, "recompute_parts", "dispatch_dtype", "placement"):
        missing = set(COLUMNS[name].words) - known[name] - {"none", "dtype", "bf16"}
        assert (name, missing) == (name, set())
    assert known["zero"] == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("model", "field", "fields"), NO_OPTION, ids=[f"{case[0]}-{case[1]}" for case in NO_OPTION]
)
def test_what_has_no_option_is_refused_by_name(model: str, field: str, fields: Fields) -> None:
    plan = made(Model.load(model), **fields)
    with pytest.raises(InputError) as caught:
        launch_files(LAUNCHER, plan)
    assert field in [fault.field for fault in caught.value.faults]
    assert all("torchtitan" in fault.problem for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("model", "field", "fields"),
    [
        (DENSE, "cp_exchange", CP | {"cp_exchange": "ring"}),
        (DENSE, "quantization", {"quantization": "fp8_tensor"}),
        (DENSE, "quantized_weights", {"quantization": "fp8_tensor", "quantized_weights": True}),
        (LATENT, "etp", {"ep": 8, "tp": 4, "etp": 4}),
        (LATENT, "seq_len", {"seq_len": 32768}),
        (GROUPED, "model", EP),
        ("qwen2-7b", "model", {"tp": 2}),
    ],
)
def test_python_of_release_0_3_lacks_some_of_it(model: str, field: str, fields: Fields) -> None:
    plan = made(Model.load(model), **fields)
    with pytest.raises(InputError) as caught:
        launch_files(LAUNCHER, plan, release="0.3.0", ending=".py")
    assert field in [fault.field for fault in caught.value.faults]


@pytest.mark.parametrize(
    "changes", [{"window": 4096}, {"chunk": 4096}, {"sinks": True}, {"bias": "qkv"}]
)
def test_other_attention_has_no_builder(changes: Fields) -> None:
    """It builds layers of plain attention only."""
    model = Model.load("llama2-7b")
    layer = model.layers[0]
    attention = layer.attention.model_copy(update=dict(changes))
    other = layer.model_copy(update={"attention": attention})
    assert builder_of(model) is not None
    assert builder_of(model.model_copy(update={"layers": (other,)})) is None


def test_the_first_release_that_can_is_used() -> None:
    """The ending decides; without one, what TOML cannot express is written in Python."""
    plan, own = made(Model.load(DENSE)), made(Model.load("llama2-7b"))
    assert written_by_release(LAUNCHER, plan)[0] == "0.2.2"
    assert written_by_release(LAUNCHER, plan, ending=".py")[0] == "0.3.0"
    assert written_by_release(LAUNCHER, own)[0] == "0.3.0"


def test_a_release_has_one_form() -> None:
    plan = made(Model.load(DENSE))
    with pytest.raises(InputError, match=r"reads Python; the output must end in \.py"):
        launch_files(LAUNCHER, plan, release="0.3.0", ending=".toml")
    with pytest.raises(InputError, match=r"reads TOML; the output must end in \.toml"):
        launch_files(LAUNCHER, plan, release="0.2.2", ending=".py")
    with pytest.raises(InputError, match=r"allowed: 0\.2\.2, 0\.3\.0"):
        launch_files(LAUNCHER, plan, release="0.1.0")

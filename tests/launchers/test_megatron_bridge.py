"""Plans as launch files of Megatron-Bridge, and back."""

from typing import Any

import pytest

from megatron_plans import architecture, effective, legal_plans
from profiles import drawn
from shardwise import InputError, Model, Strategy, System
from shardwise.config.launch import Launch
from shardwise.config.strategy_table import Table
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.megatron_bridge import LAUNCHER
from shardwise.launchers.megatron_bridge.files import environment
from shardwise.launchers.megatron_bridge.recipes import RECIPES, model_of, recipe_of
from shardwise.launchers.registry import recognised_launcher
from shardwise.parallel.constraints import illegal_faults

DENSE, GROUPED, LATENT = "llama3-70b", "qwen3-30b-a3b", "deepseek-v3"
Fields = dict[str, Any]


def plan(model: str, system: str = "h100-sxm", **fields: Any) -> LaunchPlan:
    loaded, machine = Model.load(model), System.load(system)
    stack = {"stack": "megatron-bridge-2026"}
    strategy = Strategy(**({"gpus": 64, "gbs": 128} | stack | fields)).resolved(loaded)
    return LaunchPlan(model=loaded, system=machine, strategy=strategy)


def text_of(one: LaunchPlan, ending: str) -> str:
    (file,) = LAUNCHER.write(one, LAUNCHER.releases[0], ending)
    assert file.ending == ending
    assert file.executable == (ending == ".sh")
    return file.text


def read(text: str, source: str = "job.yaml", **known: Any) -> Launch:
    assert recognised_launcher(text, source) is LAUNCHER
    return LAUNCHER.read(LaunchText(source=source, text=text, **known))


@pytest.mark.parametrize("ending", LAUNCHER.endings)
def test_what_is_written_reads_back(ending: str) -> None:
    """Model and strategy of random plans, from files without their comments."""
    for one in legal_plans(LAUNCHER.stack, drawn(200, 6), 24, LAUNCHER.faults):
        try:
            text = text_of(one, ending)
        except InputError as error:
            assert error.faults[0].field == "dispatcher"  # noqa: PT017 - DeepEP in racks
            continue
        bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        launch = read(bare, f"job{ending}")
        model = one.model.with_attention(one.strategy.attention)
        assert launch.model is not None
        strategy = Strategy(**launch.strategy)
        assert effective(launch.model, strategy) == effective(model, one.strategy)
        assert architecture(launch.model) == architecture(model)
        assert launch.strategy["gpus"] == one.strategy.gpus
        assert launch.not_understood == ()


@pytest.mark.parametrize("ending", LAUNCHER.endings)
@pytest.mark.parametrize(
    "fields",
    [
        {"lora_rank": 16},
        {"lora_rank": 8, "lora_parts": ["attention"]},
        {"lora_rank": 8, "lora_parts": ["mlp"]},
        {"tp": 8, "tp_overlap": "ring"},
        {"tp": 8, "stack": {"base": "megatron-bridge-2026", "tp_hidden": 0.0}},
        {"tp": 8, "stack": {"base": "megatron-bridge-2026", "gradient_dtype": "fp32"}},
        {"cuda_graphs": "full"},
        {"cuda_graphs": "partial", "graph_scope": ["attn"]},
        {"zero": 3, "dp_shard": 16},
        {"pp": 4, "vpp": 5, "expert_overlap": False},
        {"offload_activations": True, "offload_parts": ["core_attention", "attention_out"]},
        {"quantization": "mxfp8", "quantized_weights": True},
        {
            "quantization": "mxfp8",
            "stack": {
                "base": "megatron-bridge-2026",
                "quantized_attention": ["mxfp8"],
                "quantized_head": ["mxfp8"],
            },
        },
    ],
    ids=str,
)
def test_features_read_back(fields: Fields, ending: str) -> None:
    one = plan(DENSE, "b200-sxm", **fields)
    launch = read(text_of(one, ending), f"job{ending}")
    got = Strategy(**launch.strategy).resolved(one.model).to_dict()
    wanted = one.strategy.to_dict()
    assert {name: got[name] for name in fields} == {name: wanted[name] for name in fields}
    assert launch.release == "0.6.0"


@pytest.mark.parametrize("parts", [["attention", "experts"], ["mlp", "experts"], ["mlp"]])
def test_adapters_of_experts_read_back(parts: list[str]) -> None:
    """Names of modules tell routed experts from the other MLPs."""
    for model in (GROUPED, LATENT):
        one = plan(model, gpus=256, ep=8, lora_rank=4, lora_parts=parts)
        launch = read(text_of(one, ".yaml"))
        assert tuple(launch.strategy["lora_parts"]) == tuple(parts)  # type: ignore[arg-type]


def test_a_script_has_recipe_processes_environment_and_comments() -> None:
    """The launch command of 4 nodes, and what people read."""
    one = plan(DENSE, gpus=32, tp=8, pp=2)
    one = LaunchPlan(
        model=one.model, system=one.system, strategy=one.strategy, comments=("step time 1.2 s",)
    )
    text = text_of(one, ".sh")
    assert "# step time 1.2 s\n" in text
    assert "--nnodes=4 --nproc-per-node=8" in text
    assert "--recipe llama3_70b_pretrain_config" in text
    assert "Megatron-Bridge v0.6.0 (Megatron-Core 0.19.0)" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text
    assert "\n  model.tensor_model_parallel_size=8 \\\n" in text
    assert "\n  ddp.average_in_collective=true \\\n" in text
    assert " checkpoint.ckpt_format=torch_dist " in text


def test_fsdp_has_its_switch_and_format_of_checkpoints() -> None:
    text = text_of(plan(DENSE, zero=3), ".sh")
    for words in (
        "dist.use_megatron_fsdp=true",
        "ddp.use_megatron_fsdp=true",
        "ddp.data_parallel_sharding_strategy=optim_grads_params",
        "ddp.average_in_collective=false",
        "checkpoint.ckpt_format=fsdp_dtensor",
    ):
        assert words in text
    assert environment(plan(DENSE, zero=3, tp=8))["CUDA_DEVICE_MAX_CONNECTIONS"] != "1"


def test_experts_have_a_flex_dispatcher_without_overlapped_shared_experts() -> None:
    """HybridEP with the stack's multiprocessors."""
    fields: Fields = {"gpus": 1024, "gbs": 2048, "ep": 64}
    text = text_of(plan(LATENT, "gb200-nvl72", **fields), ".sh")
    for words in (
        "model.moe_token_dispatcher_type=flex",
        "model.moe_flex_dispatcher_backend=hybridep",
        "model.moe_flex_dispatcher_num_sms=32",
        "model.moe_shared_expert_overlap=false",
    ):
        assert words in text
    text_of(plan(LATENT, "b200-sxm", **fields, dispatcher="deepep"), ".sh")


def test_fused_experts_are_those_of_racks() -> None:
    """mxfp8 on NVL72 runs all experts in one kernel, and reads back so; 16 bits do not."""
    fields: Fields = {"gpus": 64, "ep": 32, "stack": "megatron-bridge-nvl72"}
    for recipe, fused in (("mxfp8", True), ("none", False)):
        one = plan(GROUPED, "gb200-nvl72", **fields, quantization=recipe)
        text = text_of(one, ".yaml")
        assert f"use_transformer_engine_op_fuser: {str(fused).lower()}" in text
        wanted = "megatron-bridge-nvl72" if fused else "megatron-bridge-2026"
        assert read(text).strategy["stack"] == wanted


def test_recipes_are_of_catalog_models_or_carry_others() -> None:
    """Names lead back to models; a model without one has the recipe of its kind."""
    for name, base in RECIPES.items():
        assert recipe_of(Model.load(name), adapted=False) == f"{base}_pretrain_config"
        assert model_of(f"{base}_pretrain_config") == name
        assert model_of(f"{base}_pretrain_64gpu_h100_bf16_config") == name
    other = {
        "mixtral-8x7b": ("vanilla_gpt_pretrain_config", "llama3_8b_peft_config"),
        "deepseek-moe-16b": ("glm45_air_106b_pretrain_config", "moonlight_16b_peft_config"),
        "deepseek-v3": ("deepseek_v3_pretrain_config", "moonlight_16b_peft_config"),
        "llama3-8b": ("llama3_8b_pretrain_config", "llama3_8b_peft_config"),
    }
    for name, recipes in other.items():
        model = Model.load(name)
        assert tuple(recipe_of(model, adapted=one) for one in (False, True)) == recipes


# Cells of the column of Megatron-Bridge in a table of what launchers can express: "-", and plans
# next to them that it has options for.
CANNOT: list[tuple[str, Fields]] = [
    (DENSE, {"pp": 4, "schedule": "gpipe"}),
    (DENSE, {"pp": 4, "schedule": "zb-h1"}),
    (DENSE, {"pp": 4, "schedule": "zb-v"}),
    (DENSE, {"pp": 4, "schedule": "dualpipe"}),
    (DENSE, {"tp": 2, "tp_exchange": "p2p_rs_ag"}),
    (DENSE, {"tp": 2, "tp_exchange": "summa"}),
    (DENSE, {"tp": 2, "tp_regather": False}),
    (GROUPED, {"ep": 8, "dispatch_dtype": "fp8"}),
    (DENSE, {"zero": 3, "fsdp_reshard": False}),
    (DENSE, {"zero": 3, "fsdp_prefetch": 2}),
    (DENSE, {"fused_activation": True}),
    (DENSE, {"optimizer": "adafactor"}),
    (DENSE, {"placement": "dp-tp-cp-pp", "tp": 2, "cp": 2, "pp": 2}),
    (GROUPED, {"offload_activations": True, "offload_parts": ["router"], "ep": 8}),
    (DENSE, {"offload_activations": True, "offload_parts": ["mlp"]}),
    *(
        (DENSE, {"recompute": "selective", "recompute_parts": [part]})
        for part in ("attention", "every_other", "qkv", "attention_out", "mlp_up")
    ),
]
CAN: list[tuple[str, Fields]] = [
    (DENSE, {"pp": 4}),
    (DENSE, {"pp": 4, "vpp": 5}),
    (DENSE, {"pp": 4, "first_stage_layers": 17, "last_stage_layers": 21}),
    (DENSE, {"pp": 4, "stage_layers": [19, 21, 21, 19]}),
    (DENSE, {"tp": 2, "tp_exchange": "all_reduce"}),
    (DENSE, {"tp": 2, "tp_overlap": "ring"}),
    (DENSE, {"cp": 2, "cp_exchange": "all_gather"}),
    (DENSE, {"cp": 2, "cp_exchange": "all_to_all"}),
    (GROUPED, {"ep": 8, "etp": 2, "tp": 2}),
    (GROUPED, {"ep": 8, "expert_capacity": 1.5, "dispatcher": "all_to_all"}),
    (GROUPED, {"ep": 8, "expert_overlap": True}),
    *((DENSE, {"zero": zero}) for zero in range(4)),
    (DENSE, {"zero": 1, "dp_shard": 16}),
    *((DENSE, {"optimizer": one}) for one in ("adamw-8bit", "adamw-bf16", "muon", "sgd")),
    *((DENSE, {"quantization": one}) for one in ("fp8_tensor", "fp8_block", "mxfp8", "nvfp4")),
    (DENSE, {"offload_optimizer": True}),
    (DENSE, {"placement": "tp-cp-pp-dp", "pp": 2}),
    (LATENT, {"recompute": "selective", "recompute_parts": ["mla_up", "mlp"], "ep": 8}),
]


@pytest.mark.parametrize(("model", "fields"), CANNOT, ids=str)
def test_what_it_cannot_express_is_refused(model: str, fields: Fields) -> None:
    """By its stack, or by the launcher, naming a field of the plan."""
    one = plan(model, "b200-sxm", **fields)
    found = illegal_faults(one.model, one.system, Table.of(one.model, [one.strategy]))
    own = [fault.field for fault in LAUNCHER.faults(one.model, one.strategy)]
    named = " ".join([*own, *map(str, found.values())])
    assert any(field in named for field in fields)


@pytest.mark.parametrize(("model", "fields"), CAN, ids=str)
def test_what_it_can_express_is_written(model: str, fields: Fields) -> None:
    one = plan(model, "b200-sxm", **fields)
    table = Table.of(one.model, [one.strategy])
    assert illegal_faults(one.model, one.system, table) == {}
    assert list(LAUNCHER.faults(one.model, one.strategy)) == []
    launch = read(text_of(one, ".yaml"))
    assert effective(one.model, Strategy(**launch.strategy)) == effective(one.model, one.strategy)


def test_a_model_without_an_option_is_refused() -> None:
    one = plan("gemma2-9b")
    fields = [fault.field for fault in LAUNCHER.faults(one.model, one.strategy)]
    assert any("norms" in field for field in fields)


SMALL = """
model: {num_layers: 2, hidden_size: 128, num_attention_heads: 4, vocab_size: 1000,
        seq_length: 512, tensor_model_parallel_size: 2}
train: {micro_batch_size: 1, global_batch_size: 8}
"""


@pytest.mark.parametrize(
    ("added", "told"),
    [
        (
            "mixed_precision: fp9\n",
            "job.yaml: mixed_precision: 'fp9': is no preset; allowed: bf16_",
        ),
        ("ddp: 3\n", "job.yaml: ddp: 3: must be a section of fields"),
        (
            "optimizer: {optimizer: adamax}\n",
            "job.yaml: optimizer.optimizer: 'adamax': allowed: adam",
        ),
        (
            "ddp: {use_megatron_fsdp: true, data_parallel_sharding_strategy: all}\n",
            "job.yaml: ddp.data_parallel_sharding_strategy: 'all': allowed: no_shard, optim",
        ),
        (
            "ddp: {use_megatron_fsdp: true}\ncheckpoint: {save: /c, ckpt_format: torch_dist}\n",
            "job.yaml: checkpoint.ckpt_format: 'torch_dist': allowed with Megatron-FSDP",
        ),
        (
            "dataset: {seq_length: '${oc.env:LENGTH}'}\n",
            "LENGTH has no value here; set it: --set LENGTH=VALUE",
        ),
        (
            "ddp: {use_distributed_optimizer: '${ddp.missing}'}\n",
            "job.yaml: ddp.use_distributed_optimizer: '${ddp.missing}': refers to ddp.missing",
        ),
    ],
)
def test_a_wrong_value_is_a_fault_that_names_it(added: str, told: str) -> None:
    """File, field, value and what is allowed, in one line."""
    with pytest.raises(InputError) as caught:
        read(SMALL + added)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_script_asks_for_values_by_name() -> None:
    """Variables that only the user's shell has."""
    text = "python run_recipe.py --recipe llama3_8b_pretrain_config model.seq_length=$LENGTH\n"
    with pytest.raises(InputError, match="LENGTH has no value here; set it: --set LENGTH=VALUE"):
        read(text, "job.sh")
    launch = read(text, "job.sh", variables={"LENGTH": "2048"})
    assert launch.strategy["seq_len"] == 2048


def test_what_is_not_understood_is_listed() -> None:
    """An option that matters, one that nobody knows; not those without effect."""
    launch = read(
        SMALL + "optimizer: {lr: 0.1, overlap_param_gather_with_optimizer_step: true}\n"
        "logger: {log_interval: 1}\nspeed: {warp: 9}\nddp: {bucket_size: 1000}\n"
    )
    assert {one.option: one.value for one in launch.not_understood} == {
        "optimizer.overlap_param_gather_with_optimizer_step": True,
        "speed.warp": 9,
        "ddp.bucket_size": 1000,
    }

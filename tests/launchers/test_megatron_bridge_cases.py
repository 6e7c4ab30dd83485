"""Single options of Megatron-Bridge's and NeMo's files, by hand."""

from typing import Any

import pytest

from shardwise import InputError, Model, Strategy, System
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.megatron_bridge import LAUNCHER
from shardwise.launchers.megatron_bridge.files import environment
from shardwise.launchers.megatron_bridge.trees import resolved

SIZES = "num_layers: 4, hidden_size: 128, num_attention_heads: 4"
BRIDGE = (
    f"model: {{{SIZES}, vocab_size: 1000, seq_length: 512%s}}\ntrain: {{global_batch_size: 8}}\n"
)
NEMO_1 = (
    "trainer: {num_nodes: 2, devices: 8, precision: %s}\n"
    f"model: {{{SIZES}, encoder_seq_length: 512, override_vocab_size: 1000, micro_batch_size: 1,\n"
    "  global_batch_size: 64, tensor_model_parallel_size: 1%s}\n"
)
NEMO_2 = (
    "_target_: nemo.collections.llm.api.pretrain\n"
    "trainer: {devices: 8, plugins: {precision: %s}, strategy: {context_parallel_size: 1%s}}\n"
    f"model: {{config: {{{SIZES}, vocab_size: 1000, seq_length: 512}}}}\n"
    "data: {global_batch_size: 8, micro_batch_size: 1}\n"
)


def strategy_of(text: str, source: str = "job.yaml") -> dict[str, Any]:
    launch = LAUNCHER.read(LaunchText(source=source, text=text))
    strategy = dict(launch.strategy)
    stack = strategy.pop("stack")
    return strategy | ({"stack": stack} if isinstance(stack, str) else {**stack, "stack": stack})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (NEMO_1 % ("bf16", ", optim: {name: fused_adam}"), {"zero": 0, "gpus": 16}),
        (NEMO_1 % ("16", ", optim: {name: distributed_fused_adam}"), {"zero": 1, "dtype": "fp16"}),
        (NEMO_1 % ("32", ""), {"dtype": "fp32"}),
        (NEMO_1 % ("bf16", ", fp8: true"), {"quantization": "fp8_tensor"}),
        (NEMO_1 % ("bf16", ", fsdp: true, fsdp_sharding_strategy: grad"), {"zero": 2}),
        (NEMO_1 % ("bf16", ", use_flash_attention: false"), {"attention_kernel": "unfused"}),
        (NEMO_2 % ("16-mixed", ", fsdp: megatron"), {"dtype": "fp16", "zero": 3}),
        (NEMO_2 % ("bf16-mixed", ""), {"dtype": "bf16", "zero": 1, "gradient_dtype": "fp32"}),
    ],
)
def test_options_of_nemo(text: str, wanted: dict[str, Any]) -> None:
    found = strategy_of(text)
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: megatron_mamba\n" + NEMO_1 % ("bf16", ""), "name: 'megatron_mamba': is no GPT"),
        ("name: megatron_griffin\n" + NEMO_1 % ("bf16", ""), "'megatron_griffin': is no GPT"),
        (
            NEMO_1 % ("bf16", ", mamba_ssm_ngroups: 8"),
            "model.mamba_ssm_ngroups: 8: is no option of a GPT",
        ),
        (NEMO_1 % ("bf16", ", hybrid_override_pattern: null"), "hybrid_override_pattern: null"),
    ],
)
def test_nemo_1_files_of_other_classes_are_refused(text: str, message: str) -> None:
    """By the name of their class, or by keys that GPT models lack: no dense GPT is read instead."""
    with pytest.raises(InputError) as caught:
        strategy_of(text)
    assert message in str(caught.value)
    assert strategy_of("name: megatron_gpt\n" + NEMO_1 % ("bf16", ""))["gpus"] == 16


def test_gradients_of_nemo_1_are_in_fp32_unless_synchronized_in_bf16() -> None:
    wide = strategy_of(NEMO_1 % ("bf16", ""))
    half = strategy_of(NEMO_1 % ("bf16", ", optim: {grad_sync_dtype: bf16}"))
    assert wide["gradient_dtype"] == "fp32"
    assert "gradient_dtype" not in half


def test_delayed_scaling_of_nemo_1_is_listed() -> None:
    launch = LAUNCHER.read(LaunchText(source="a.yaml", text=NEMO_1 % ("bf16", ", fp8: true")))
    assert "delayed" in [one.value for one in launch.not_understood]


def test_launcher_files_may_have_their_settings_below_training() -> None:
    inside = "\n".join(f"  {line}" for line in (NEMO_1 % ("bf16", "")).splitlines())
    assert strategy_of(f"training:\n{inside}\n") == strategy_of(NEMO_1 % ("bf16", ""))


def test_a_relative_reference_does_not_lose_its_first_name() -> None:
    """A root stands for the file in absolute references only."""
    tree: Any = {"model": {"training": {"x": 5}, "y": "${.training.x}"}}
    found = resolved(tree, "a.yaml", needed=lambda _: True, roots=("training",))
    assert found["model"] == {"training": {"x": 5}, "y": 5}
    top: Any = {"z": "${.training.x}", "training": {"x": 7}}
    assert resolved(top, "a.yaml", needed=lambda _: True, roots=("training",))["z"] == 7


def test_fused_experts_are_inferred_in_low_precision_and_not_for_offload() -> None:
    experts = ", num_moe_experts: 4, use_transformer_engine_op_fuser: true"
    offload = ", fine_grained_activation_offloading: true, offload_modules: [fused_group_mlp]"
    low = "mixed_precision: bf16_with_mxfp8_mixed\n"
    for more, precision, rack in (
        (experts, low, True),
        (experts, "", False),
        (experts + offload, low, False),
    ):
        stack = strategy_of(BRIDGE % more + precision)["stack"]
        name = stack if isinstance(stack, str) else stack["base"]
        assert name == ("megatron-bridge-nvl72" if rack else "megatron-bridge-2026")
        text = LaunchText(source="job.yaml", text=BRIDGE % more + precision)
        notes = [one.option for one in LAUNCHER.read(text).not_understood]
        unused = not rack and more == experts
        assert ("model.use_transformer_engine_op_fuser" in notes) == unused


def test_a_format_of_checkpoints_that_nobody_saves_is_no_fault() -> None:
    text = "ddp: {use_megatron_fsdp: true}\ncheckpoint: {ckpt_format: torch_dist}\n"
    assert strategy_of(BRIDGE % "" + text)["zero"] == 3


def test_nodes_and_backend_of_a_script() -> None:
    text = (
        "./scripts/training/train.sh --nodes 2 --gpus-per-node 4 --recipe "
        "qwen3_30b_a3b_pretrain_config --moe_flex_dispatcher_backend deepep -ep 8 -gb 64 -mb 1\n"
    )
    found = strategy_of(text, "job.sh")
    assert (found["gpus"], found["ep"], found["etp"]) == (8, 8, 1)
    assert found["dispatcher"] == "deepep"


def test_blackwell_queues_and_values_of_sections() -> None:
    """32 queues with tensor parallelism; recipes of products that are not in use keep a name."""
    model, system = Model.load("llama3-70b"), System.load("b200-sxm")
    strategy = Strategy(gpus=64, gbs=128, tp=2, pp=4, stack=LAUNCHER.stack).resolved(model)
    plan = LaunchPlan(model=model, system=system, strategy=strategy)
    assert environment(plan)["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    (file,) = LAUNCHER.write(plan, "0.6.0", ".sh")
    assert "++comm_overlap.batch_p2p_comm=true" in file.text
    assert "++mixed_precision.fp8_recipe=tensorwise" in file.text


def test_adapters_of_dense_mlps_have_those_of_shared_experts() -> None:
    model, system = Model.load("deepseek-v3"), System.load("h100-sxm")
    strategy = Strategy(
        gpus=256, gbs=256, ep=8, lora_rank=4, lora_parts=["mlp"], stack=LAUNCHER.stack
    ).resolved(model)
    plan = LaunchPlan(model=model, system=system, strategy=strategy)
    (file,) = LAUNCHER.write(plan, "0.6.0", ".sh")
    assert "*.shared_experts.linear_fc1" in file.text
    assert "*.mlp.linear_fc2" in file.text
    assert "*.mlp.experts" not in file.text

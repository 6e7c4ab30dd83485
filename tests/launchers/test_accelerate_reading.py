"""accelerate's YAML of other repositories, and what is wrong with a configuration."""

from typing import Any

import pytest
import yaml

from rows import each_row
from shardwise import InputError
from shardwise.config.launch import Launch
from shardwise.launchers.accelerate import LAUNCHER
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.registry import recognised_launcher

USUAL = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 8,
    "rdzv_backend": "static",
    "same_network": True,
    "tpu_env": [],
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
}
FSDP2 = {
    "fsdp_activation_checkpointing": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_offload_params": False,
    "fsdp_reshard_after_forward": True,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_version": 2,
}
FSDP1 = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_forward_prefetch": False,
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_sync_module_states": True,
    "fsdp_use_orig_params": True,
}
NAMES = ("dp_replicate", "dp_shard", "tp", "cp")


def degrees(*sizes: int, **more: Any) -> dict[str, Any]:
    """`parallelism_config` of the degrees in `NAMES`."""
    named = {f"{name}_size": size for name, size in zip(NAMES, sizes, strict=True)} | more
    return {f"parallelism_config_{name}": value for name, value in named.items()}


def fsdp(config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    own = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": config or FSDP2}
    return USUAL | own | more


# huggingface/accelerate 571ca020, examples/torch_native_parallelism/configs/tp_hsdp.yaml
TP_HSDP = fsdp(enable_cpu_affinity=False, parallelism_config=degrees(2, 2, 2, 1))
# huggingface/accelerate 1d57b830, examples/torch_native_parallelism/configs/cp.yaml
CP = fsdp(
    FSDP2 | {"fsdp_activation_checkpointing": True},
    enable_cpu_affinity=False,
    parallelism_config=degrees(1, 1, 1, 8),
)
# huggingface/trl a91c73c6, examples/accelerate_configs/fsdp2.yaml
TRL = fsdp(FSDP2 | {"fsdp_cpu_ram_efficient_loading": True}, enable_cpu_affinity=False)
# huggingface/trl e0c3b15c, examples/accelerate_configs/fsdp_qlora.yaml
QLORA = fsdp(FSDP1 | {"fsdp_offload_params": True, "fsdp_use_orig_params": False})
# huggingface/accelerate 1a6af0bd, examples/config_yaml_templates/fsdp.yaml
TEMPLATE = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 2,
    "fsdp_config": FSDP1 | {"fsdp_activation_checkpointing": False},
}
# huggingface/trl 7d75884a, examples/accelerate_configs/deepspeed_zero3.yaml
ZERO3 = USUAL | {
    "deepspeed_config": {
        "deepspeed_multinode_launcher": "standard",
        "gradient_accumulation_steps": 1,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
    },
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "fp16",
}
# huggingface/trl 0b1bb590, examples/accelerate_configs/alst_ulysses_4gpu.yaml
ALST = USUAL | {
    "deepspeed_config": {
        "zero_stage": 3,
        "seq_parallel_communication_data_type": "bf16",
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
        "zero3_save_16bit_model": False,
    },
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "num_processes": 4,
    "parallelism_config": degrees(
        *(1, 2, 1, 2),
        cp_backend="deepspeed",
        cp_seq_length_is_variable=True,
        cp_attn_implementation="flash_attention_2",
    ),
}
# huggingface/accelerate 1d57b830, examples/config_yaml_templates/fp8.yaml
FP8 = {
    "distributed_type": "NO",
    "mixed_precision": "fp8",
    "fp8_config": {
        "backend": "TE",
        "amax_history_len": 1024,
        "fp8_format": "E4M3",
        "interval": 1,
        "margin": 0,
        "override_linear_precision": [False, False, False],
        "use_autocast_during_eval": False,
    },
}
MEGATRON = {
    f"megatron_lm_{name}": value
    for name, value in {
        "tp_degree": 4,
        "pp_degree": 2,
        "num_micro_batches": 8,
        "sequence_parallelism": True,
        "recompute_activations": True,
        "use_distributed_optimizer": True,
        "gradient_clipping": 1.0,
    }.items()
}
NEW, OLD, ENGINE = "accelerate-2026", "huggingface-2024", "deepspeed-2026"
PLAN = {"parallelism_config.parallelism_config_tp_size"}
BOTH = {"offload_weights": True, "offload_optimizer": True}


def read(config: dict[str, Any], gpus: int | None = None) -> Launch:
    text = LaunchText(source="a.yaml", text=yaml.safe_dump(config), gpus=gpus)
    assert recognised_launcher(text.text, text.source) is LAUNCHER
    return LAUNCHER.read(text)


def sharded(stack: str, gpus: int, zero: int = 3, **more: Any) -> dict[str, Any]:
    return {"stack": stack, "gpus": gpus, "dtype": "bf16", "zero": zero} | more


@each_row(
    ("config", "fields", "left"),
    [
        (TP_HSDP, sharded(NEW, 8, tp=2, tp_exchange="all_reduce", dp_shard=2), PLAN),
        (CP, sharded(NEW, 8, cp=8, cp_exchange="all_gather", recompute="full"), set()),
        (TRL, sharded(NEW, 8), set()),
        (QLORA, sharded(OLD, 8, **BOTH), set()),
        (TEMPLATE, sharded(OLD, 2), set()),
        (ZERO3, sharded(ENGINE, 8, dtype="fp16", dp_overlap=True), set()),
        (ALST, sharded(ENGINE, 4, cp=2, cp_exchange="all_to_all", dp_overlap=True), set()),
        (FP8, sharded(NEW, 1, 0, quantization="fp8_tensor"), set()),
        (
            USUAL
            | {"distributed_type": "MEGATRON_LM", "mixed_precision": "bf16"}
            | {"megatron_lm_config": MEGATRON},
            sharded(
                *("megatron-lm-2026", 8, 1),
                tp=4,
                pp=2,
                tp_exchange="rs_ag",
                recompute="selective",
                recompute_parts=("core_attention",),
            ),
            {"megatron_lm_config.megatron_lm_num_micro_batches"},
        ),
        (
            fsdp(FSDP1 | {"fsdp_sharding_strategy": 4}, num_machines=2, num_processes=16),
            sharded(OLD, 16, dp_shard=8),
            set(),
        ),
        (
            fsdp(FSDP1 | {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}),
            sharded(OLD, 8, 2),
            set(),
        ),
        (
            fsdp(FSDP2 | {"fsdp_reshard_after_forward": "false"}, dynamo_config={"backend": "x"}),
            sharded(NEW, 8, 2, compile="whole"),
            {"dynamo_config.backend"},
        ),
        (
            fsdp(FSDP2, dynamo_config={"dynamo_backend": "INDUCTOR", "dynamo_mode": "default"}),
            sharded(NEW, 8, 3, compile="whole"),
            set(),
        ),
        (
            fsdp(
                FSDP2,
                dynamo_config={"backend": "inductor", "dynamo_use_regional_compilation": True},
            ),
            sharded(NEW, 8, 3, compile="layers"),
            set(),
        ),
        (
            USUAL | {"distributed_type": "MULTI_GPU", "mixed_precision": "no", "extra": 1},
            sharded(NEW, 8, 0, dtype="fp32"),
            {"extra"},
        ),
        (
            fsdp(FSDP2 | {"fsdp_auto_wrap_policy": "NO_WRAP", "fsdp_forward_prefetch": True}),
            sharded(NEW, 8),
            {"fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_forward_prefetch"},
        ),
    ],
)
def test_configurations(config: dict[str, Any], fields: dict[str, Any], left: set[str]) -> None:
    """What they say is read, and nothing is left over but what is listed."""
    launch = read(config)
    assert {one.option for one in launch.not_understood} == left
    assert launch.strategy == fields


def test_processes_may_come_from_the_command_line() -> None:
    assert read(fsdp(num_processes=-1), 16).strategy["gpus"] == 16
    assert "gpus" not in read(fsdp(num_processes=-1)).strategy


@each_row(
    ("config", "message"),
    [
        (fsdp(parallelism_config=degrees(1, 2, 2, 1)), "parallelism_config: 4: dp_replicate 1 x"),
        (
            fsdp(parallelism_config=degrees(4, 1, 2, 1)),
            "dp_replicate_size: 4: with tp or cp needs dp_shard_size > 1",
        ),
        (fsdp({**FSDP2, "fsdp_version": 3}), "fsdp_config.fsdp_version: 3: allowed: 1, 2"),
        (
            fsdp(FSDP1 | {"fsdp_sharding_strategy": "FULL_SHARDS"}),
            "fsdp_config.fsdp_sharding_strategy: 'FULL_SHARDS': allowed: FULL_SHARD,",
        ),
        (fsdp(FSDP2 | {"fsdp_offload_params": "yes"}), "fsdp_offload_params: 'yes': must be true"),
        (fsdp(mixed_precision="bf8"), "mixed_precision: 'bf8': allowed: bf16, fp16, no, fp8"),
        (fsdp(num_processes="8x"), "num_processes: '8x': must be a whole number of at least 1"),
        (USUAL | {"distributed_type": "TPU"}, "distributed_type: 'TPU': allowed: NO,"),
        (fsdp(fsdp_config=[1]), "fsdp_config: [1]: must be a mapping"),
        (
            ZERO3 | {"deepspeed_config": {"zero_stage": 4}},
            "deepspeed_config.zero_stage: 4: allowed: 0, 1, 2, 3",
        ),
        (
            ZERO3 | {"deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}},
            "deepspeed_config.offload_param_device: 'cpu': is of ZeRO stage 3",
        ),
        (
            fsdp(parallelism_config=degrees(1, 4, 1, 1, sp_size=2)),
            "parallelism_config_sp_size: 2: needs distributed_type DEEPSPEED",
        ),
        (
            fsdp(parallelism_config=degrees(1, 1, 1, 8, cp_comm_strategy="ring")),
            "parallelism_config_cp_comm_strategy: 'ring': allowed: allgather, alltoall",
        ),
    ],
)
def test_wrong_values_are_named(config: dict[str, Any], message: str) -> None:
    """Each with the file, the option, the value and what is allowed."""
    with pytest.raises(InputError) as caught:
        LAUNCHER.read(LaunchText(source="a.yaml", text=yaml.safe_dump(config)))
    lines = [str(fault) for fault in caught.value.faults]
    assert len(lines) == 1, lines
    assert lines[0].startswith("a.yaml: ")
    assert message in lines[0]


def test_the_number_of_accelerators_is_checked() -> None:
    with pytest.raises(InputError, match="num_processes: 8: must be the 16 accelerators"):
        read(fsdp(), 16)


def test_other_yaml_is_not_accelerates() -> None:
    for text in ("hidden: 4096\n", "distributed_type: FSDP\n", "a:\n  distributed_type: FSDP\n"):
        assert not LAUNCHER.recognise(text, "a.yaml")
    assert not LAUNCHER.recognise(yaml.safe_dump(TRL), "a.json")

"""DeepSpeed's JSON of other repositories, and what is wrong with a configuration."""

import json
from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model
from shardwise.config.launch import Launch
from shardwise.launchers.deepspeed import LAUNCHER
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.registry import recognised_launcher

AUTO_BATCH = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
AUTO_TYPES = {"fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"}}
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}
ON_HOST = {"device": "cpu", "pin_memory": True}
OPEN = {"bf16.enabled", "fp16.enabled", *AUTO_BATCH}
BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
DENSE, EXPERTS = "llama3-8b", "qwen3-30b-a3b"

# QwenLM/Qwen af22d5e0, finetune/ds_config_zero2.json
QWEN = {
    **AUTO_BATCH,
    **AUTO_TYPES,
    "optimizer": ADAMW,
    "scheduler": {"type": "WarmupLR"},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 2e8,
        "contiguous_gradients": True,
    },
    "gradient_clipping": "auto",
    "steps_per_print": 100,
    "wall_clock_breakdown": False,
}
# hiyouga/LLaMA-Factory 1d6e8b21, examples/deepspeed/ds_z3_offload_config.json
FACTORY = {
    **AUTO_BATCH,
    **AUTO_TYPES,
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": ON_HOST,
        "offload_param": ON_HOST,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "comms_config": {"verbose": False},
    "monitor_config": {"enabled": True, "tag": "DeepSpeedMonitor"},
}
# hiyouga/LLaMA-Factory 01113f53, examples/deepspeed/ds_z2_autotp_config.json
AUTOTP = {
    "_comment": "a list of models",
    **AUTO_BATCH,
    **AUTO_TYPES,
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": False,
        "allgather_bucket_size": 5e8,
        "reduce_bucket_size": 5e8,
        "round_robin_gradients": True,
    },
    "tensor_parallel": {"autotp_size": 2},
}
# huggingface/transformers 61c7ec94, tests/deepspeed/ds_config_zero3.json
TRANSFORMERS = {
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": ON_HOST,
        "offload_param": ON_HOST,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e14,
        "reduce_bucket_size": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_fp16_weights_on_model_save": True,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 500}},
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}
# deepspeedai/DeepSpeedExamples 44e04e2e, training/expert_parallel/configs
AUTOEP = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "expert_parallel": {
        "enabled": True,
        "autoep_size": 8,
        "preset_model": "qwen3_5_moe",
        "load_balance_coeff": None,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 1000}},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 10,
}
# deepspeedai/DeepSpeedExamples ff01ee0d, training/tensor_parallel/hf_integration/configs
INTEGRATION = {
    **AUTO_BATCH,
    "bf16": {"enabled": "auto"},
    "optimizer": ADAMW,
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
    "zero_optimization": {"stage": 2, "gather_16bit_weights_on_model_save": True},
    "tensor_parallel": {"autotp_size": 4},
    "gradient_clipping": "auto",
    "steps_per_print": 1,
    "wall_clock_breakdown": False,
}
BUCKETS = {"zero_optimization.allgather_bucket_size"}
PIECES = "train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 4"
HOST = {"offload_weights": True, "offload_optimizer": True}


def read(config: dict[str, Any], model: str | None = None, gpus: int | None = None) -> Launch:
    loaded = None if model is None else Model.load(model)
    text = LaunchText(source="ds.json", text=json.dumps(config), model=loaded, gpus=gpus)
    assert recognised_launcher(text.text, text.source) is LAUNCHER
    return LAUNCHER.read(text)


def bucket(size: float, **more: float) -> dict[str, Any]:
    return {"stack": {"base": "deepspeed-2026", "reduce_bucket_size": size, **more}}


WIDTH = 4096
AUTO_BUCKETS = bucket(
    WIDTH**2, prefetch_bucket_size=int(0.9 * WIDTH**2), persistence_threshold=10 * WIDTH
)


@each_row(
    ("config", "model", "fields", "left"),
    [
        (
            QWEN,
            DENSE,
            {"zero": 2, "dp_overlap": True, "optimizer": "adamw", **bucket(2e8)},
            OPEN | BUCKETS,
        ),
        (
            FACTORY,
            DENSE,
            {"zero": 3, "dp_overlap": False, "fsdp_reshard": True, **HOST, **AUTO_BUCKETS},
            OPEN,
        ),
        (
            AUTOTP,
            DENSE,
            {"zero": 2, "dp_overlap": False, "tp": 2, "tp_exchange": "all_reduce"},
            OPEN | {"zero_optimization.round_robin_gradients"},
        ),
        (
            TRANSFORMERS,
            DENSE,
            {
                "zero": 3,
                "dtype": "fp16",
                "dp_overlap": True,
                "optimizer": "adamw",
                "fsdp_prefetch": 0,
                "fsdp_reshard": True,
                **HOST,
                **bucket(0, sub_group_size=10**14, persistence_threshold=0),
            },
            set(),
        ),
        (
            AUTOEP,
            EXPERTS,
            {
                "zero": 1,
                "dtype": "bf16",
                "ep": 8,
                "dp_overlap": False,
                "optimizer": "adamw",
                "micro_batch_size": 2,
                "global_batch_size": 32,
                "gpus": 16,
            },
            set(),
        ),
        (
            INTEGRATION,
            DENSE,
            {
                "zero": 2,
                "tp": 4,
                "tp_exchange": "all_reduce",
                "dp_overlap": False,
                "optimizer": "adamw",
            },
            OPEN - {"fp16.enabled"},
        ),
    ],
)
def test_published_configurations(
    config: dict[str, Any], model: str, fields: dict[str, Any], left: set[str]
) -> None:
    """What they say is read, and nothing is left over but what is listed."""
    launch = read(config, model, 16)
    assert {one.option for one in launch.not_understood} == left
    known = {"gpus": 16, "stack": "deepspeed-2026"} | fields
    assert launch.strategy == known


def test_what_the_trainer_fills_in_is_requested_by_name() -> None:
    listed = {one.option: str(one) for one in read(QWEN).not_understood}
    assert "set micro_batch_size (mbs)" in listed["train_micro_batch_size_per_gpu"]
    assert "set global_batch_size (gbs)" in listed["train_batch_size"]
    assert "--bf16" in listed["bf16.enabled"]


@each_row(
    ("config", "gpus", "fields"),
    [
        # 64 = 2 x 4 x 8 replicas, of 2 GPUs each
        (
            {**BATCH, "train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}},
            None,
            (16, 2, 64),
        ),
        ({**BATCH, "tensor_parallel": {"autotp_size": 2}}, 16, (16, 2, 64)),
        ({"train_batch_size": 64, "sequence_parallel_size": 4}, 16, (16, 16, 64)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 8, (8, 2, 64)),
        ({"train_micro_batch_size_per_gpu": 2}, 8, (8, 2, 16)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 4, (4, 2, 64)),
        ({**BATCH, "sequence_parallel_size": 4, "data_parallel_size": 2}, None, (8, 2, 16)),
        ({**BATCH, "train_batch_size": 32, "pipeline": {"stages": 4}}, None, (16, 2, 32)),
    ],
)
def test_batches_and_gpus_follow_from_one_another(
    config: dict[str, Any], gpus: int | None, fields: tuple[int, int, int]
) -> None:
    found = read({"zero_optimization": {"stage": 1}, **config}, DENSE, gpus).strategy
    named = ("gpus", "micro_batch_size", "global_batch_size")
    assert tuple(found[name] for name in named) == fields


@each_row(
    ("config", "gpus", "message"),
    [
        (
            {**BATCH, "train_batch_size": 48},
            8,
            f"train_batch_size: 48: must be {PIECES} x 8 replicas = 64",
        ),
        (
            {**BATCH, "train_batch_size": 44},
            None,
            f"train_batch_size: 44: must be a multiple of {PIECES} = 8",
        ),
        (
            BATCH | {"tensor_parallel": {"autotp_size": 3}},
            8,
            "gpus: 8: must be a multiple of the 3",
        ),
        ({"zero_optimization": {"stage": 4}}, 8, "zero_optimization.stage: 4: allowed: 0, 1, 2, 3"),
        (
            {"zero_optimization": {"stage": "two"}},
            8,
            "zero_optimization.stage: 'two': must be a whole",
        ),
        ({"zero_optimization": 3}, 8, "zero_optimization: 3: must be a mapping"),
        (
            {"zero_optimization": {"stage": 2, "overlap_comm": "yes"}},
            8,
            "overlap_comm: 'yes': must be",
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}},
            8,
            "zero_optimization.offload_param.device: 'disk': allowed: none, cpu, nvme",
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": ON_HOST}},
            8,
            "'pin_memory': true}: is of ZeRO stage 3",
        ),
        (
            {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
            8,
            "fp16.enabled: true: bf16 and fp16 exclude each other",
        ),
        (
            {"bf16": {"enabled": True, "bf16_optimizer_states": True}, "fp16": {}},
            8,
            "bf16.bf16_optimizer_states: true: needs bf16_master_weights_and_grads",
        ),
        (
            {"expert_parallel": {"enabled": True, "autoep_size": 2}, **BATCH},
            8,
            "expert_parallel.autoep_size: 2: llama3-8b has no experts",
        ),
        (
            {"expert_parallel": {"expert_tensor_parallel_size": 2}, **BATCH},
            8,
            "expert_parallel.expert_tensor_parallel_size: 2: v0.19.5 allows 1 only",
        ),
        (
            {**BATCH, "sequence_parallel_size": 2, "data_parallel_size": 2},
            8,
            "data_parallel_size: 2: must be 4 with 8 accelerators",
        ),
        (
            {"train_micro_batch_size_per_gpu": 0},
            8,
            "train_micro_batch_size_per_gpu: 0: must be a whole",
        ),
    ],
)
def test_wrong_values_are_named(config: dict[str, Any], gpus: int | None, message: str) -> None:
    """Each with the file, the option, the value and what is allowed."""
    with pytest.raises(InputError) as caught:
        LAUNCHER.read(
            LaunchText(
                source="ds.json", text=json.dumps(config), model=Model.load(DENSE), gpus=gpus
            )
        )
    lines = [str(fault) for fault in caught.value.faults]
    assert len(lines) == 1, lines
    assert lines[0].startswith("ds.json: ")
    assert message in lines[0]


def test_options_without_a_word_are_listed() -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True}
    config = {
        "zero_optimization": zero,
        "optimizer": {"type": "OneBitAdam"},
        "compile": {"deepcompile": True},
        "zero_optimisation": {},
        "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False},
    }
    listed = {one.option: str(one) for one in read(config, DENSE, 8).not_understood}
    assert set(listed) == {
        "zero_optimization.zero_hpz_partition_size",
        "zero_optimization.zero_quantized_weights",
        "optimizer.type",
        "compile",
        "zero_optimisation",
        "activation_checkpointing.partition_activations",
        "activation_checkpointing",
    }
    assert "did you mean 'zero_optimization'" in listed["zero_optimisation"]


def test_options_that_stand_for_fields() -> None:
    """ZeRO++'s neighbors: MiCS, checkpoints on the host, fp32 gradients, bf16 states, SGD."""
    mics = {"zero_optimization": {"stage": 3, "mics_shard_size": 4}}
    assert read(mics, DENSE, 8).strategy["dp_shard"] == 4
    host = read({**BATCH, "activation_checkpointing": {"cpu_checkpointing": True}}, DENSE, 8)
    assert host.strategy["recompute"] == "full"
    assert host.strategy["offload_activations"] is True
    types = read({**BATCH, "data_types": {"grad_accum_dtype": "fp32"}}, DENSE, 8)
    assert types.strategy["gradient_dtype"] == "fp32"
    for word, own in (("fp32", "fp32"), ("bf16", "compute")):
        reduced = read({**BATCH, "communication_data_type": word}, DENSE, 8).strategy
        assert reduced["reduce_dtype"] == own
    states = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    pure = read({**BATCH, "bf16": {"enabled": True, **states}}, DENSE, 8).strategy
    assert pure["optimizer"] == "adamw-bf16"
    assert pure["master_dtype"] == "bf16"
    both = {"data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": True, **states}}
    mixed = read({**BATCH, **both}, DENSE, 8).strategy
    assert (mixed["gradient_dtype"], mixed["master_dtype"]) == ("fp32", "bf16")
    cast = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
    launch = read({**BATCH, **cast}, DENSE, 8)
    assert launch.strategy["dtype"] == "fp16"
    assert [one.option for one in launch.not_understood] == ["torch_autocast"]
    for params, word in (({}, "sgd"), ({"momentum": 0.9}, "sgd-momentum")):
        optimizer = {"type": "SGD", "params": params}
        assert read({**BATCH, "optimizer": optimizer}, DENSE, 8).strategy["optimizer"] == word


def test_other_json_is_not_deepspeeds() -> None:
    for text in ('{"hidden_size": 4096}', "[1]", "zero_optimization: 1", '{"bf16": true}'):
        assert not LAUNCHER.recognise(text, "a.json")
    assert LAUNCHER.recognise('{"zero_optimization": ', "a.json")


@each_row(
    ("section", "fields"),
    [
        ({"device": "nvme", "nvme_path": "/nvme", "pin_memory": True}, {"offload_nvme": True}),
        ({"device": "cpu", "super_offload": True}, {"cpu_optimizer": "superoffload"}),
        ({"device": "cpu", "super_offload": False}, {}),
    ],
)
def test_where_the_optimizer_is_offloaded_to(
    section: dict[str, Any], fields: dict[str, object]
) -> None:
    """Drives, and SuperOffload, are fields of the strategy; nothing is left out."""
    launch = read({"zero_optimization": {"stage": 3, "offload_optimizer": section}}, DENSE, 8)
    names = ("offload_nvme", "cpu_optimizer")
    assert launch.strategy["offload_optimizer"] is True
    assert {n: launch.strategy[n] for n in names if n in launch.strategy} == fields
    assert not [one for one in launch.not_understood if "offload" in one.option]

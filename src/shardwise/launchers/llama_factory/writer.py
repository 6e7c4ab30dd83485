"""Plans as files of LLaMA-Factory."""

from collections.abc import Iterator
from typing import Any

from shardwise.config import enums
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.fine_tuning import writer as shared
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.llama_factory.reader import LENGTH, MICRO, STEPS

_LOSSES: dict[enums.Loss, dict[str, Any]] = {
    enums.Loss.EAGER: {},
    enums.Loss.FUSED_LINEAR: {"enable_liger_kernel": True},
}
_BASES: dict[enums.BaseWeights, dict[str, Any]] = {
    enums.BaseWeights.DTYPE: {},
    enums.BaseWeights.INT8: {"quantization_bit": 8},
    enums.BaseWeights.NF4: {"quantization_bit": 4},
    enums.BaseWeights.NF4_SINGLE: {"quantization_bit": 4, "double_quantization": False},
}
_TASKS: dict[enums.Task, dict[str, Any]] = {
    enums.Task.PRETRAIN: {"stage": "pt", "packing": True},
    enums.Task.SFT: {"stage": "sft", "packing": True},
    enums.Task.DPO: {"stage": "dpo", "pref_loss": "sigmoid"},
    enums.Task.ORPO: {"stage": "dpo", "pref_loss": "orpo"},
    enums.Task.KTO: {"stage": "kto"},
    enums.Task.RM: {"stage": "rm"},
}
_ROWS: dict[enums.Batching, dict[str, Any]] = {
    enums.Batching.PADDED: {"packing": False},
    enums.Batching.PACKED: {"packing": True, "neat_packing": True},
}
_KERNELS = {
    enums.AttentionKernel.FLASH2: "fa2",
    enums.AttentionKernel.FLASH3: "fa3",
    enums.AttentionKernel.UNFUSED: "disabled",
}


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what LLaMA-Factory has no option for, as `Launcher.faults`."""
    yield from shared.faults(
        model,
        strategy,
        losses=tuple(_LOSSES),
        kernels=tuple(_KERNELS),
        bases=tuple(_BASES),
        tasks=tuple(_TASKS),
        batchings=_ROWS,
        on_host=True,
    )
    if strategy.dtype == enums.Dtype.FP32:
        yield Fault.of("dtype", strategy.dtype, "allowed: bf16, fp16", "strategy")
    if shared.is_pure(strategy) and strategy.dtype != enums.Dtype.BF16:
        yield shared.pure_fault(strategy, "pure_bf16 is of bf16; allowed: stack, fp32")
    if strategy.reference_model == "precomputed":
        problem = "no option of the trainer sets it; allowed: usual"
        yield Fault.of("reference_model", strategy.reference_model, problem, "strategy")


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    command = (
        "FORCE_TORCHRUN=1 NNODES={nodes} NPROC_PER_NODE={each} \\\n"
        '  NODE_RANK="${{NODE_RANK:-0}}" MASTER_ADDR="${{MASTER_ADDR:-127.0.0.1}}" \\\n'
        "  llamafactory-cli train {config}"
    )
    return shared.files_of(plan, settings_of(plan), ending, f"LLaMA-Factory {release}", command)


def settings_of(plan: LaunchPlan) -> dict[str, Any]:
    """Return the options of a plan."""
    strategy = plan.strategy
    settings: dict[str, Any] = {
        "model_name_or_path": plan.model.name,
        **(_TASKS[strategy.task] | shared.rows_of(strategy, _ROWS)),
        "do_train": True,
        "finetuning_type": "full" if strategy.lora_rank is None else "lora",
        "dataset": "DATASET",
        "template": "default",
        "output_dir": "output",
        LENGTH: strategy.seq_len,
        MICRO: strategy.micro_batch_size,
        STEPS: shared.steps_of(strategy),
        "optim": shared.optimizer_name(strategy),
        "disable_gradient_checkpointing": not shared.recomputes(strategy),
        **({"pure_bf16": True} if shared.is_pure(strategy) else shared.half_flags(strategy)),
    }
    if strategy.checkpoint_place == enums.CheckpointPlace.HOST:
        settings["use_unsloth_gc"] = True
    if strategy.task in (enums.Task.PRETRAIN, enums.Task.SFT):
        settings |= _LOSSES.get(enums.Loss(strategy.in_effect("loss")), {})
    if strategy.attention_kernel in _KERNELS:
        settings["flash_attn"] = _KERNELS[strategy.attention_kernel]
    if strategy.lora_rank is not None:
        modules, saved = shared.modules_of(strategy)
        settings |= {"lora_rank": strategy.lora_rank, "lora_target": ",".join(modules)}
        settings |= {"additional_target": ",".join(saved)} if saved else {}
        settings |= {"use_dora": True} if shared.is_dora(strategy) else {}
        settings |= _BASES[enums.BaseWeights(strategy.in_effect("base_weights"))]
    if strategy.quantization != "none":
        settings["fp8"] = True
    if shared.is_sharded(strategy):
        config = shared.fsdp_config(strategy, version="version", offload="cpu_offload")
        settings |= {"fsdp": "full_shard auto_wrap", "fsdp_config": config}
    settings |= shared.deepspeed_section(plan.model, strategy)
    return settings | shared.trainer_settings(strategy)

"""Plans as files of TRL."""

from collections.abc import Iterator
from typing import Any

from shardwise.config.enums import BaseWeights, Batching, Dtype, Loss, Task
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.fine_tuning import writer as shared
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.trl import options

_LOSSES: dict[Loss, dict[str, Any]] = {
    Loss.EAGER: {"loss_type": "nll"},
    Loss.CHUNKED_RECOMPUTE: {"loss_type": "chunked_nll"},
    Loss.FUSED_LINEAR: {"use_liger_kernel": True},
}
_BASES: dict[BaseWeights, dict[str, Any]] = {
    BaseWeights.DTYPE: {},
    BaseWeights.FP32: {},
    BaseWeights.INT8: {"load_in_8bit": True},
    BaseWeights.NF4: {"load_in_4bit": True, "use_bnb_nested_quant": True},
    BaseWeights.NF4_SINGLE: {"load_in_4bit": True},
}
_TASKS: dict[Task, tuple[str, dict[str, Any]]] = {
    Task.PRETRAIN: ("sft", {"packing": True, "packing_strategy": "wrapped"}),
    Task.SFT: ("sft", {"packing": True, "packing_strategy": "wrapped"}),
    Task.DPO: ("dpo", {"loss_type": ["sigmoid"]}),
    Task.KTO: ("kto", {"desirable_weight": 1.0}),
    Task.RM: ("reward", {"center_rewards_coefficient": 0.0}),
}
"""Verbs of `trl`, and options that no other task has."""
_ROWS: dict[Batching, dict[str, Any]] = {
    Batching.PADDED: {"packing": False},
    Batching.PADDING_FREE: {"packing": False, "padding_free": True},
    Batching.PACKED: {"packing": True, "packing_strategy": "bfd"},
}
_NAMES = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP32: "float32"}


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what TRL has no option for, as `Launcher.faults`."""
    yield from shared.faults(
        model,
        strategy,
        losses=tuple(_LOSSES),
        kernels=tuple(shared.KERNELS),
        bases=tuple(_BASES),
        tasks=tuple(_TASKS),
        batchings=_ROWS,
        on_host=False,
    )
    yield from shared.fp8_fault(strategy)
    if shared.is_pure(strategy) and strategy.lora_rank is not None:
        yield shared.pure_fault(strategy, "PEFT has adapters in fp32; allowed: stack, fp32")
    elif shared.is_pure(strategy) and shared.is_sharded(strategy):
        yield shared.pure_fault(strategy, "FSDP trains weights in fp32; allowed: stack, fp32")


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    verb = _TASKS[plan.strategy.task][0]
    command = (
        f"trl {verb} --config {{config}} --num_machines {{nodes}} --num_processes {{gpus}} \\\n"
        '  --machine_rank "${{NODE_RANK:-0}}" --main_process_ip "${{MASTER_ADDR:-127.0.0.1}}"'
    )
    return shared.files_of(plan, settings_of(plan), ending, f"TRL {release}", command)


def settings_of(plan: LaunchPlan) -> dict[str, Any]:
    """Return the options of a plan."""
    strategy = plan.strategy
    settings: dict[str, Any] = {
        options.MODEL: plan.model.name,
        "dtype": _NAMES[_loaded(strategy)],
        "dataset_name": "DATASET",
        "output_dir": "output",
        options.LENGTHS[0]: strategy.seq_len,
        options.MICRO: strategy.micro_batch_size,
        options.STEPS: shared.steps_of(strategy),
        "optim": shared.optimizer_name(strategy),
        "gradient_checkpointing": shared.recomputes(strategy) and not shared.is_sharded(strategy),
        **shared.half_flags(strategy),
        **(_TASKS[strategy.task][1] | shared.rows_of(strategy, _ROWS)),
    }
    if strategy.task in (Task.PRETRAIN, Task.SFT):
        settings |= _LOSSES.get(Loss(strategy.in_effect("loss")), {"loss_type": "nll"})
    if strategy.reference_model == "precomputed":
        settings["precompute_ref_log_probs"] = True
    if strategy.attention_kernel in shared.KERNELS:
        settings["attn_implementation"] = shared.KERNELS[strategy.attention_kernel]
    if strategy.lora_rank is not None:
        modules, saved = shared.modules_of(strategy)
        settings |= {"use_peft": True, "lora_r": strategy.lora_rank, "lora_target_modules": modules}
        settings |= {"lora_modules_to_save": saved} if saved else {}
        settings |= {"use_dora": True} if shared.is_dora(strategy) else {}
        settings |= _BASES[BaseWeights(strategy.in_effect("base_weights"))]
    if shared.is_sharded(strategy):
        config = shared.fsdp_config(strategy, version="version", offload="cpu_offload")
        config["activation_checkpointing"] = shared.recomputes(strategy)
        settings |= {"fsdp": True, "fsdp_config": config}
    settings |= shared.deepspeed_section(plan.model, strategy)
    return settings | shared.trainer_settings(strategy)


def _loaded(strategy: Strategy) -> Dtype:
    """Type in which weights are loaded: fp32 if they are trained, unless in 16 bits alone."""
    if strategy.lora_rank is None:
        return strategy.dtype if shared.is_pure(strategy) else Dtype.FP32
    wide = strategy.in_effect("base_weights") == BaseWeights.FP32
    return Dtype.FP32 if wide else strategy.dtype

"""Plans as files of axolotl."""

from collections.abc import Iterator
from typing import Any

from shardwise.config import enums
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.axolotl import options
from shardwise.launchers.axolotl.reader import LENGTH, MICRO, STEPS
from shardwise.launchers.fine_tuning import writer as shared
from shardwise.launchers.launch import LaunchFile, LaunchPlan

_PLUGIN = "axolotl.integrations."
_LOSSES: dict[enums.Loss, dict[str, Any]] = {
    enums.Loss.EAGER: {},
    enums.Loss.FUSED_LINEAR: {
        "plugins": [f"{_PLUGIN}liger.LigerPlugin"],
        options.FUSED_LIGER: True,
    },
    enums.Loss.CUT: {"plugins": [f"{_PLUGIN}cut_cross_entropy.CutCrossEntropyPlugin"]},
    enums.Loss.CHUNKED: {options.CHUNKED: True},
}
_BASES: dict[enums.BaseWeights, dict[str, Any]] = {
    enums.BaseWeights.DTYPE: {"adapter": "lora"},
    enums.BaseWeights.INT8: {"adapter": "lora", "load_in_8bit": True},
    enums.BaseWeights.NF4: {"adapter": "qlora", "load_in_4bit": True},
}
_TASKS: dict[enums.Task, dict[str, Any]] = {
    enums.Task.PRETRAIN: {"sample_packing": True},
    enums.Task.SFT: {"sample_packing": True},
    enums.Task.DPO: {"rl": "dpo"},
    enums.Task.ORPO: {"rl": "orpo"},
    enums.Task.KTO: {"rl": "kto"},
    enums.Task.RM: {"reward_model": True},
}
_ROWS: dict[enums.Batching, dict[str, Any]] = {
    enums.Batching.PADDED: {"sample_packing": False},
    enums.Batching.PADDING_FREE: {"sample_packing": False, "batch_flattening": True},
    enums.Batching.PACKED: {"sample_packing": True},
}
_KERNELS = {**shared.KERNELS, enums.AttentionKernel.EFFICIENT: "xformers"}


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what axolotl has no option for, as `Launcher.faults`."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

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
    if strategy.tp > 1 and strategy.tp_exchange != enums.TpExchange.ALL_REDUCE:
        yield fault("tp_exchange", "allowed: all_reduce")
    if strategy.cp > 1 and strategy.cp_exchange != enums.CpExchange.RING:
        yield fault("cp_exchange", "allowed: ring")
    if shared.runs_deepspeed(strategy):
        return
    if (strategy.tp > 1 or strategy.cp > 1) and not shared.is_sharded(strategy):
        yield fault("zero", "tensor and context parallelism are with FSDP; allowed: 2, 3")
    half = strategy.dtype != enums.Dtype.FP32
    if (
        strategy.lora_rank is None
        and half
        and shared.is_pure(strategy) == shared.is_sharded(strategy)
    ):
        problem = (
            "FSDP trains weights in fp32; allowed: stack, fp32"
            if shared.is_sharded(strategy)
            else "weights are trained in the type they are loaded in; allowed: compute"
        )
        yield shared.pure_fault(strategy, problem)


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    command = (
        "axolotl train {config} --launcher torchrun -- --nnodes {nodes} --nproc_per_node {each}"
    )
    return shared.files_of(plan, settings_of(plan), ending, f"axolotl {release}", command)


def settings_of(plan: LaunchPlan) -> dict[str, Any]:
    """Return the options of a plan."""
    strategy = plan.strategy
    recompute: object = shared.recomputes(strategy)
    if strategy.checkpoint_place == enums.CheckpointPlace.HOST:
        recompute = "offload"
    settings: dict[str, Any] = {
        "base_model": plan.model.name,
        "datasets": [{"path": "DATASET", "type": "completion"}],
        "output_dir": "output",
        LENGTH: strategy.seq_len,
        MICRO: strategy.micro_batch_size,
        STEPS: shared.steps_of(strategy),
        "num_epochs": 1,
        "learning_rate": 0.00002,
        "optimizer": shared.optimizer_name(strategy),
        "gradient_checkpointing": recompute,
        **shared.half_flags(strategy),
        **(_TASKS[strategy.task] | shared.rows_of(strategy, _ROWS)),
    }
    if strategy.task in (enums.Task.PRETRAIN, enums.Task.SFT):
        settings |= _LOSSES.get(enums.Loss(strategy.in_effect("loss")), {})
    if strategy.reference_model == "precomputed":
        settings["precompute_ref_log_probs"] = True
    if strategy.attention_kernel in _KERNELS:
        settings["attn_implementation"] = _KERNELS[strategy.attention_kernel]
    if strategy.quantization != "none":
        settings["fp8"] = True
    settings |= _adapters(strategy) | _sharding(plan.model, strategy)
    return settings | shared.trainer_settings(strategy)


def _adapters(strategy: Strategy) -> dict[str, Any]:
    if strategy.lora_rank is None:
        return {}
    modules, saved = shared.modules_of(strategy)
    settings = {
        **_BASES[enums.BaseWeights(strategy.in_effect("base_weights"))],
        "lora_r": strategy.lora_rank,
        "lora_alpha": 2 * strategy.lora_rank,
        "lora_target_modules": modules,
    }
    if saved:
        settings["lora_modules_to_save"] = saved
    if shared.is_dora(strategy):
        settings["peft_use_dora"] = True
    if shared.is_pure(strategy):
        settings["peft_autocast_adapter_dtype"] = False
    return settings


def _sharding(model: Model, strategy: Strategy) -> dict[str, Any]:
    if shared.runs_deepspeed(strategy):
        ring = {"context_parallel_size": strategy.cp} if strategy.cp > 1 else {}
        return shared.deepspeed_section(model, strategy) | ring
    if not shared.is_sharded(strategy):
        return {}
    config = shared.fsdp_config(strategy, version="", offload="offload_params")
    settings: dict[str, Any] = {"fsdp_version": 2, "fsdp_config": config}
    dp = strategy.dp or 1
    shard = strategy.dp_shard or dp
    sizes = {
        "dp_shard_size": shard if shard != dp or strategy.tp > 1 or strategy.cp > 1 else 1,
        "dp_replicate_size": dp // shard,
        "tensor_parallel_size": strategy.tp,
        "context_parallel_size": strategy.cp,
    }
    return settings | {name: size for name, size in sizes.items() if size > 1}

"""What writers of fine-tuning files share: types, kernels, engines, scripts and refusals."""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.config import enums
from shardwise.config.model import Model
from shardwise.config.plain import as_yaml
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers import deepspeed
from shardwise.launchers.deepspeed.files import configuration
from shardwise.launchers.deepspeed.options import BATCHES
from shardwise.launchers.launch import (
    DOCUMENTS,
    NO_OPTIONS,
    NOT_SELECTIVE,
    PLACED,
    LaunchFile,
    LaunchPlan,
    as_comments,
    exports,
    fields_named,
    nodes_of,
    thread_variables,
)
from shardwise.launchers.sections import AUTO
from shardwise.launchers.stacks import STACKS
from shardwise.units import counted

SAYS = fields_named(
    "gpus dp micro_batch_size global_batch_size seq_len dtype recompute zero fsdp_reshard optimizer"
    " lora_rank lora_targets adapter base_weights weight_dtype master_dtype moment_dtype"
    " gradient_dtype loss attention_kernel compile grad_sync offload_weights offload_optimizer task"
    " reference_model checkpoint_place quantization batching"
    " reduce_dtype fsdp_prefetch dp_overlap offload_activations offload_nvme cpu_optimizer"
)
"""Fields that files of the Trainer's kind say; the last six in the section of DeepSpeed."""
ENGINES = (STACKS["deepspeed"], "deepspeed-2024")
"""Stacks of plans that its files run with, next to that of FSDP."""
_NO_DEGREE = "has no effect: degrees that it belongs to are refused"
IGNORES: Mapping[str, str] = {
    **NO_OPTIONS,
    **{name: why for name, why in DOCUMENTS.items() if name != "batching"},
    **PLACED,
    **NOT_SELECTIVE,
    "expert_kernel": "experts_implementation of the model's configuration decides it",
    "lora_parts": "lora_targets says the same by modules",
    **dict.fromkeys(("tp_exchange", "cp_exchange", "stage_layers"), _NO_DEGREE),
    **dict.fromkeys(("embedding_as_layer", "loss_as_layer"), _NO_DEGREE),
}
OPTIMIZERS: Mapping[enums.Optimizer, str] = {
    enums.Optimizer.ADAMW: "adamw_torch_fused",
    enums.Optimizer.ADAMW_8BIT: "adamw_bnb_8bit",
    enums.Optimizer.ADAFACTOR: "adafactor",
    enums.Optimizer.SGD: "sgd",
    enums.Optimizer.SGD_MOMENTUM: "sgd",
}
KERNELS: Mapping[enums.AttentionKernel, str] = {
    enums.AttentionKernel.FLASH2: "flash_attention_2",
    enums.AttentionKernel.FLASH3: "flash_attention_3",
    enums.AttentionKernel.UNFUSED: "eager",
    enums.AttentionKernel.TRITON: "flex_attention",
}
"""`attn_implementation` of transformers."""
_USUAL = (enums.Reference.USUAL, enums.Reference.PRECOMPUTED)


def runs_deepspeed(strategy: Strategy) -> bool:
    """Whether DeepSpeed trains, by the software of the plan, in place of DDP and FSDP."""
    return strategy.loaded_stack().name in ENGINES


def is_sharded(strategy: Strategy) -> bool:
    """Whether FSDP has ranks to shard over."""
    ranks = (strategy.dp or 1) * strategy.cp
    return strategy.zero > 0 and ranks > 1 and not runs_deepspeed(strategy)


def is_pure(strategy: Strategy) -> bool:
    """Whether trained weights have the type of products, and no masters."""
    half = strategy.dtype != enums.Dtype.FP32 and not runs_deepspeed(strategy)
    return half and strategy.in_effect("weight_dtype") == enums.WeightDtype.COMPUTE


def steps_of(strategy: Strategy) -> int:
    """Return the micro-batches of a step."""
    batch, dp = strategy.global_batch_size or 1, strategy.dp or 1
    return batch // (strategy.micro_batch_size * dp)


def optimizer_name(strategy: Strategy) -> str:
    """Return the name of the optimizer; that of bitsandbytes does not run on shards of FSDP2."""
    if is_sharded(strategy) and strategy.optimizer == enums.Optimizer.ADAMW_8BIT:
        return "adamw_torch_8bit"
    return OPTIMIZERS[strategy.optimizer]


def modules_of(strategy: Strategy) -> tuple[list[str], list[str]]:
    """Return modules with adapters, and those that are trained in full next to them."""
    targets = strategy.lora_targets or ()
    saved = {enums.LoraTarget.EMBEDDING: "embed_tokens", enums.LoraTarget.HEAD: "lm_head"}
    own = [str(one) for one in targets if one not in saved]
    return own, [saved[one] for one in targets if one in saved]


def half_flags(strategy: Strategy) -> dict[str, Any]:
    """Return `bf16` and `fp16`."""
    return (
        {"fp16": True}
        if strategy.dtype == enums.Dtype.FP16
        else {"bf16": strategy.dtype == enums.Dtype.BF16}
    )


def rows_of(strategy: Strategy, words: Mapping[enums.Batching, dict[str, Any]]) -> dict[str, Any]:
    """Return options of packing, where the plan says how sequences make a micro-batch.

    Other plans have full rows, as `_TASKS` of a trainer sets them.
    """
    if strategy.data_lengths is None and strategy.batching == enums.Batching.PADDED:
        return {}
    return (
        words[strategy.batching] if strategy.task in (enums.Task.PRETRAIN, enums.Task.SFT) else {}
    )


def trainer_settings(strategy: Strategy) -> dict[str, Any]:
    """Return options that have the same names in all trainers of this kind."""
    settings: dict[str, Any] = {}
    if strategy.optimizer == enums.Optimizer.SGD_MOMENTUM:
        settings["optim_args"] = "momentum=0.9"
    if strategy.in_effect("compile") == enums.Compile.WHOLE:
        settings["torch_compile"] = True
    by_micro_batch = strategy.in_effect("grad_sync") == enums.GradSync.MICRO_BATCH
    if by_micro_batch and not runs_deepspeed(strategy):  # its stage decides it
        sync = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        settings["accelerator_config"] = sync
    return settings


def fsdp_config(strategy: Strategy, *, version: str, offload: str) -> dict[str, Any]:
    """Return `fsdp_config`; keys of version and offload differ by trainer."""
    reshards = strategy.zero == 3 and strategy.fsdp_reshard  # noqa: PLR2004 - a ZeRO stage
    config: dict[str, Any] = {version: 2} if version else {}
    config |= {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": reshards,
        "state_dict_type": "SHARDED_STATE_DICT",
    }
    if strategy.offload_weights:
        config[offload] = True
    return config


def deepspeed_section(model: Model, strategy: Strategy) -> dict[str, Any]:
    """Return `deepspeed`, where it trains: its configuration, with the trainer's sizes."""
    if not runs_deepspeed(strategy):
        return {}
    config = configuration(model, strategy) | dict.fromkeys(BATCHES, AUTO)
    if not strategy.offload_optimizer:
        config.pop("optimizer", None)  # the trainer's
        config["zero_allow_untested_optimizer"] = True
    return {"deepspeed": config}


# --- Refusals -------------------------------------------------------------------------------------


def faults(
    model: Model,
    strategy: Strategy,
    *,
    losses: tuple[enums.Loss, ...],
    kernels: tuple[enums.AttentionKernel, ...],
    bases: tuple[enums.BaseWeights, ...],
    tasks: tuple[enums.Task, ...],
    batchings: Mapping[enums.Batching, object],
    on_host: bool,
) -> Iterator[Fault]:
    """Yield what a trainer has no option for.

    Parameters
    ----------
    losses, kernels, bases, tasks, batchings
        Those that its options can set.
    on_host
        Whether checkpoints may wait on the host.
    """
    text = strategy.task in (enums.Task.PRETRAIN, enums.Task.SFT)
    allowed: dict[str, tuple[object, ...]] = {
        "training": (True,),
        "task": tasks,
        "batching": tuple(batchings) if text else (enums.Batching.PADDED,),
        "reference_model": _USUAL,
        "checkpoint_place": tuple(enums.CheckpointPlace)
        if on_host
        else (enums.CheckpointPlace.DEVICE,),
        "optimizer": tuple(OPTIMIZERS),
        "compile": (enums.Compile.NONE, enums.Compile.WHOLE),
        "attention_kernel": ("stack", *kernels),
        "loss": losses if text else ("stack",),
    }
    if strategy.lora_rank is not None:
        allowed["base_weights"] = ("stack", *bases)
        if strategy.lora_targets is None:
            problem = "adapters are of modules: set them, such as all-linear"
            yield Fault.of("lora_targets", None, problem, "strategy")
    if runs_deepspeed(strategy):
        yield from deepspeed.LAUNCHER.faults(model, strategy)
        allowed |= {"tp": (1,), "ep": (1,), "compile": (enums.Compile.NONE,)}
    for field, values in allowed.items():
        value = getattr(strategy, field)
        used = strategy.in_effect(field) if field in ("compile", "loss") else value
        if used not in values and value not in values:
            words = ", ".join(map(str, values))
            yield Fault.of(field, value, f"no option sets it; allowed: {words}", "strategy")


def pure_fault(strategy: Strategy, problem: str) -> Fault:
    """Return the fault of types of trained weights that a trainer does not have."""
    return Fault.of("weight_dtype", strategy.weight_dtype, problem, "strategy")


def fp8_fault(strategy: Strategy) -> Iterator[Fault]:
    """Yield the fault of products in fp8, where a trainer has no option for them."""
    if strategy.quantization != enums.Quantization.NONE:
        problem = "no option of the trainer sets it; allowed: none"
        yield Fault.of("quantization", strategy.quantization, problem, "strategy")


def recomputes(strategy: Strategy) -> bool:
    """Whether layers are checkpoints."""
    return strategy.recompute == enums.Recompute.FULL


def is_dora(strategy: Strategy) -> bool:
    """Whether adapters are of DoRA."""
    return strategy.adapter == enums.Adapter.DORA


# --- Files ----------------------------------------------------------------------------------------


def files_of(
    plan: LaunchPlan, settings: Mapping[str, Any], ending: str, release: str, command: str
) -> tuple[LaunchFile, ...]:
    """Return the file of options and the script that starts it.

    Parameters
    ----------
    command
        Words that start the trainer; `{nodes}`, `{each}` and `{gpus}` are numbers of nodes, ranks
        of a node and ranks, `{config}` is the file.
    """
    strategy = plan.strategy
    nodes, each = nodes_of(plan.system, strategy.gpus or 1)
    gpus = counted(strategy.gpus or 1, "GPU")
    remarks = [
        release,
        *plan.comments,
        f"model {plan.model.name}: name its folder, or its name on the Hugging Face hub",
        f"{gpus}, batch {strategy.global_batch_size} x {strategy.seq_len} tokens",
        "data: put your own in place of the names here",
    ]
    start = command.format(
        nodes=nodes,
        each=each,
        gpus=strategy.gpus,
        config='"${CONFIG:-${BASH_SOURCE[0]%.sh}' + ending + '}"',
    )
    script = (
        "#!/usr/bin/env bash\n"
        f"# {counted(nodes, 'node')} x {counted(each, 'GPU')}: run once on every node.\n"
        f"{as_comments(plan.comments)}set -euo pipefail\n\n"
        f"{exports(thread_variables(strategy))}{start}\n"
    )
    return (
        LaunchFile(ending=ending, text=as_comments(remarks) + as_yaml(settings)),
        LaunchFile(ending=".sh", text=script, executable=True),
    )

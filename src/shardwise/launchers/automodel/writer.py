"""Plans as configurations of NeMo AutoModel."""

from collections.abc import Iterator
from typing import Any

from shardwise.config.enums import (
    AttentionKernel,
    BaseWeights,
    Batching,
    Compile,
    CudaGraphs,
    Dispatcher,
    Dtype,
    GradSync,
    Loss,
    Optimizer,
    Quantization,
    Recompute,
    Schedule,
    Task,
    TpExchange,
    WeightDtype,
)
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.automodel import options
from shardwise.launchers.fine_tuning import writer as shared
from shardwise.launchers.launch import LaunchFile, LaunchPlan, captured_graphs

_OPTIMIZERS = {
    Optimizer.ADAMW: "torch.optim.AdamW",
    Optimizer.ADAMW_8BIT: "bitsandbytes.optim.AdamW8bit",
}
_LOSSES = {Loss(loss): name for name, loss in options.LOSSES.items() if loss != "chunked"}
_DISPATCHERS = {
    Dispatcher(one): name for name, one in options.DISPATCHERS.items() if name != "uccl_ep"
}
_KERNELS = {AttentionKernel.BEST: "te", AttentionKernel.TRITON: "flex"}
_BASES: dict[BaseWeights, dict[str, Any]] = {
    BaseWeights.DTYPE: {},
    BaseWeights.INT8: {"load_in_8bit": True},
    BaseWeights.NF4: {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    BaseWeights.NF4_SINGLE: {"load_in_4bit": True},
}
_SCHEDULES = {
    Schedule.ONE_F_ONE_B: "1f1b",
    Schedule.GPIPE: "gpipe",
    Schedule.INTERLEAVED: "interleaved1f1b",
}
_SCALES = {Quantization.FP8_TENSOR: "tensorwise", Quantization.FP8_ROW: "rowwise"}
_NAME = "nemo_automodel."


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what AutoModel has no option for, as `Launcher.faults`."""
    allowed: dict[str, tuple[object, ...]] = {
        "training": (True,),
        "task": (Task.PRETRAIN, Task.SFT),
        "batching": (Batching.PADDED, Batching.PACKED),
        "dtype": (Dtype.BF16,),
        "zero": (0, 3),
        "optimizer": tuple(_OPTIMIZERS),
        "recompute": (Recompute.NONE, Recompute.FULL),
        "recompute_layers": (None,),
        "loss": ("stack", *_LOSSES),
        "attention_kernel": ("stack", *_KERNELS),
        "compile": ("stack", Compile.NONE, Compile.LAYERS),
        "quantization": (Quantization.NONE, *_SCALES),
        "frozen": ((),),
    }
    if model.has_experts:
        allowed |= {"dispatcher": tuple(_DISPATCHERS), "expert_kernel": ("stack",), "etp": (1,)}
    if strategy.lora_rank is not None:
        allowed["base_weights"] = ("stack", *_BASES)
    if strategy.tp > 1:
        allowed["tp_exchange"] = (TpExchange.ALL_REDUCE, TpExchange.RS_AG)
    for field, values in allowed.items():
        if (value := getattr(strategy, field)) not in values:
            words = ", ".join(map(str, values))
            yield Fault.of(field, value, f"no option sets it; allowed: {words}", "strategy")
    yield from _more_faults(model, strategy)


def _more_faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what depends on more than one field."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

    if strategy.lora_rank is not None and strategy.lora_targets is None:
        yield fault("lora_targets", "adapters are of modules: set them, such as all-linear")
    if shared.modules_of(strategy)[1]:
        yield fault("lora_targets", "embedding and head have no adapters here; leave them out")
    if strategy.vpp > 1 and _stages(model, strategy) != strategy.pp * strategy.vpp:
        yield fault("vpp", f"no layers_per_stage cuts {model.depth} layers into pp x vpp stages")
    # Whether types of trained weights are neither those of the stack nor fp32.
    usual = {name: Strategy.model_fields[name].default for name in _TYPES}
    own = [str(strategy.in_effect(name)) for name in _TYPES]
    stack = [str(strategy.model_copy(update=usual).in_effect(name)) for name in _TYPES]
    if own != stack and (own[:3] != _WIDE or strategy.lora_rank is not None):
        problem = "weights, gradients and moments have one type, torch_dtype: set all or none"
        yield fault("weight_dtype", problem)
    if strategy.in_effect("cuda_graphs") != CudaGraphs.NONE:
        graphs = captured_graphs(model, strategy)
        if graphs != CudaGraphs.NONE:
            yield Fault.of("cuda_graphs", graphs, "no option sets it; allowed: none", "strategy")


_TYPES = ("weight_dtype", "gradient_dtype", "moment_dtype", "master_dtype")
_WIDE = ["fp32"] * 3


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    command = (
        "torchrun --nnodes {nodes} --nproc_per_node {each} \\\n"
        '  --rdzv_backend c10d --rdzv_endpoint "${{MASTER_ADDR:-localhost}}:29500" \\\n'
        "  -m nemo_automodel.recipes.llm.train_ft --config {config}"
    )
    return shared.files_of(plan, settings_of(plan), ending, f"NeMo AutoModel {release}", command)


def settings_of(plan: LaunchPlan) -> dict[str, Any]:
    """Return the configuration of a plan."""
    strategy = plan.strategy
    in_flight = shared.steps_of(strategy) if strategy.pp > 1 else 1
    wide = strategy.in_effect("weight_dtype") == WeightDtype.FP32
    settings: dict[str, Any] = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": {
            "global_batch_size": strategy.global_batch_size,
            "local_batch_size": strategy.micro_batch_size * in_flight,
        },
        "dist_env": {"backend": "nccl", "timeout_minutes": 10},
        "model": {
            "_target_": f"{_NAME}NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": plan.model.name,
            "torch_dtype": "float32" if wide and strategy.lora_rank is None else "bfloat16",
        },
        "distributed": _distributed(plan),
        "dataset": {"_target_": "DATASET", "seq_length": strategy.seq_len},
        "packed_sequence": {"packed_sequence_size": _row(strategy)},
        "optimizer": {"_target_": _OPTIMIZERS[strategy.optimizer], "lr": 0.00001},
    }
    backend = _backend(plan)
    if backend:
        settings["model"]["backend"] = backend
    if strategy.loss != Loss.STACK:
        settings["loss_fn"] = {"_target_": options.LOSS + _LOSSES[strategy.loss]}
    if strategy.compile == Compile.LAYERS:
        settings["compile"] = {"enabled": True}
    if strategy.quantization != Quantization.NONE:
        gathers = strategy.quantized_weights
        word = _SCALES[strategy.quantization]
        recipe = {"recipe_name": word, "enable_fsdp_float8_all_gather": gathers}
        settings["fp8"] = {"enabled": True, **recipe}
    return settings | _adapters(strategy)


def _row(strategy: Strategy) -> int | None:
    """Tokens of a packed row; 0: sequences are padded."""
    padded = strategy.data_lengths is not None and strategy.batching == Batching.PADDED
    return 0 if padded else strategy.seq_len


def _backend(plan: LaunchPlan) -> dict[str, Any]:
    strategy, backend = plan.strategy, {}
    if strategy.attention_kernel in _KERNELS:
        backend["attn"] = _KERNELS[strategy.attention_kernel]
    if plan.model.has_experts and strategy.ep > 1:
        backend["dispatcher"] = _DISPATCHERS[
            Dispatcher(strategy.dispatcher or Dispatcher.ALL_TO_ALL)
        ]
    return backend


def _distributed(plan: LaunchPlan) -> dict[str, Any]:
    strategy = plan.strategy
    settings: dict[str, Any] = {"strategy": "fsdp2" if strategy.zero else "ddp"}
    settings |= {key: getattr(strategy, field) for key, field in options.DEGREES.items()}
    if strategy.tp > 1:
        settings["sequence_parallel"] = strategy.tp_exchange == TpExchange.RS_AG
    dp = strategy.dp or 1
    if (shard := strategy.dp_shard or dp) != dp:
        settings["dp_replicate_size"] = dp // shard
    if strategy.recompute == Recompute.FULL:
        settings["activation_checkpointing"] = True
    if not strategy.fsdp_reshard:
        settings["reshard_after_forward"] = False
    if strategy.in_effect("grad_sync") == GradSync.MICRO_BATCH:
        settings["defer_fsdp_grad_sync"] = False
    if strategy.pp > 1:
        pipeline: dict[str, Any] = {
            "pp_schedule": _SCHEDULES[strategy.schedule or Schedule.ONE_F_ONE_B],
            "pp_microbatch_size": strategy.micro_batch_size,
        }
        if strategy.vpp > 1:
            pipeline["layers_per_stage"] = _layers_per_stage(plan.model, strategy)
        settings["pipeline"] = pipeline
    return settings


def _layers_per_stage(model: Model, strategy: Strategy) -> int:
    """Layers of the longest stage."""
    return -(-model.depth // (strategy.pp * strategy.vpp))


def _stages(model: Model, strategy: Strategy) -> int:
    """Stages that AutoModel makes of it (`calculate_virtual_stages`): they differ by one layer."""
    return -(-model.depth // _layers_per_stage(model, strategy))


def _adapters(strategy: Strategy) -> dict[str, Any]:
    if strategy.lora_rank is None:
        return {}
    modules, _ = shared.modules_of(strategy)
    peft: dict[str, Any] = {
        "_target_": f"{_NAME}components._peft.lora.PeftConfig",
        "target_modules": [f"*.{name}" for name in modules],
        "dim": strategy.lora_rank,
        "alpha": 2 * strategy.lora_rank,
    }
    if shared.is_dora(strategy):
        peft["use_dora"] = True
    base = _BASES[BaseWeights(strategy.in_effect("base_weights"))]
    return {"peft": peft} | ({"quantization": base} if base else {})

"""A plan as DeepSpeed's JSON and the script that launches it."""

from collections.abc import Iterator
from typing import Any

from shardwise.config.enums import (
    ZERO_OPTIMIZER,
    ZERO_WEIGHTS,
    Dtype,
    Optimizer,
    Recompute,
    TpOverlap,
)
from shardwise.config.model import Model
from shardwise.config.plain import as_json
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.deepspeed import options
from shardwise.launchers.deepspeed.sizes import layer_weights, lives_through_step
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.nodes import as_comments, nodes_of, trained_in_code

_MOST_LIVE = 1_000_000_000
_STAGE_FIELDS = ("first_stage_layers", "last_stage_layers", "stage_layers")
_TRAINER_OPTIMIZERS = {"adamw-8bit": "adamw_bnb_8bit"}


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what the JSON has no option for, as `Launcher.faults`."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

    if not strategy.training:
        yield fault("training", "DeepSpeed's configuration is of training")
    for field in _STAGE_FIELDS:
        if strategy.pp > 1 and getattr(strategy, field) is not None:
            yield fault(field, "PipelineModule cuts stages by a method in Python, not by counts")
    if model.has_experts and strategy.expert_capacity is not None:
        yield fault("expert_capacity", "AutoEP drops no tokens")
    if strategy.optimizer == Optimizer.ADAMW_BF16:
        if strategy.dtype != Dtype.BF16:
            yield fault("optimizer", "bf16_optimizer_states needs dtype bf16")
        if _stack(strategy).master_weights:
            problem = "bf16_optimizer_states has no fp32 weights: set master_weights: false"
            yield fault("optimizer", f"{problem} in the stack")


def write(plan: LaunchPlan, release: str, _: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    config = as_json(configuration(plan.model, plan.strategy), indent=2) + "\n"
    script = _script(plan, release)
    return (
        LaunchFile(ending=".json", text=config),
        LaunchFile(ending=".sh", text=script, executable=True),
    )


def _stack(strategy: Strategy) -> Stack:
    return strategy.loaded_stack()


def _micro_batches(strategy: Strategy) -> int:
    batch, dp = strategy.global_batch_size or 1, strategy.dp or 1
    return batch // (strategy.micro_batch_size * dp)


def configuration(model: Model, strategy: Strategy) -> dict[str, Any]:
    """Return DeepSpeed's configuration of a strategy."""
    stack = _stack(strategy)
    config: dict[str, Any] = {
        "train_batch_size": strategy.global_batch_size,
        "train_micro_batch_size_per_gpu": strategy.micro_batch_size,
        "gradient_accumulation_steps": _micro_batches(strategy),
    }
    if strategy.dtype != Dtype.FP32:
        config[strategy.dtype.value] = {"enabled": True}
    if not stack.master_weights and strategy.dtype == Dtype.BF16:
        config["bf16"]["bf16_master_weights_and_grads"] = True
    if strategy.optimizer == Optimizer.ADAMW_BF16:
        config["bf16"]["bf16_optimizer_states"] = True
    if stack.gradient_dtype == "fp32":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    config["zero_optimization"] = _zero(model, strategy)
    if strategy.optimizer in options.OPTIMIZERS:
        kind, params = options.OPTIMIZERS[strategy.optimizer]
        config["optimizer"] = {"type": kind, "params": dict(params)}
    if strategy.optimizer in options.OF_TORCH or strategy.optimizer not in options.OPTIMIZERS:
        config["zero_allow_untested_optimizer"] = True
    if strategy.recompute == Recompute.FULL:
        config["activation_checkpointing"] = {"cpu_checkpointing": strategy.offload_activations}
    _add_degrees(config, model, strategy)
    return config


def _stage(strategy: Strategy) -> int:
    """ZeRO stage; on one replica, where none has an effect, that which other options need."""
    if strategy.offload_weights:
        return ZERO_WEIGHTS
    states = strategy.offload_optimizer or strategy.optimizer == Optimizer.ADAMW_BF16
    return max(strategy.zero, ZERO_OPTIMIZER if states else 0)


def _zero(model: Model, strategy: Strategy) -> dict[str, Any]:
    stage = _stage(strategy)
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": strategy.dp_overlap,
        "contiguous_gradients": True,
    }
    for field, (section, _) in options.OFFLOADS.items():
        if getattr(strategy, field):
            zero[section] = {"device": "cpu", "pin_memory": True}
    if stage == ZERO_WEIGHTS:
        through = lives_through_step(model)
        live = through if not strategy.fsdp_reshard else min(_MOST_LIVE, through // 2)
        zero["stage3_prefetch_bucket_size"] = strategy.fsdp_prefetch * layer_weights(model)
        zero["stage3_max_live_parameters"] = live
        zero["stage3_max_reuse_distance"] = live
    return zero


def _add_degrees(config: dict[str, Any], model: Model, strategy: Strategy) -> None:
    """Set the options that stand for one degree each, and what goes with them."""
    for option in options.DEGREES:
        value = getattr(strategy, option.field)
        if value == option.idle or (option is options.EP and not model.has_experts):
            continue
        section = config
        for name in option.path[:-1]:
            section = section.setdefault(name, {})
        section[option.path[-1]] = value
    if strategy.tp > 1:
        config["tensor_parallel"]["tp_overlap_comm"] = strategy.tp_overlap == TpOverlap.PIPE
    if strategy.cp > 1:
        config["data_parallel_size"] = strategy.dp
    if "expert_parallel" in config:
        config["expert_parallel"]["enabled"] = True


# --- The script -----------------------------------------------------------------------------------


def _in_code(plan: LaunchPlan) -> Iterator[str]:
    """What the JSON cannot hold: the model and what its code decides."""
    strategy, model = plan.strategy, plan.model
    yield f"model {model.name}, sequences of {strategy.seq_len} tokens, {strategy.gpus} GPUs"
    yield "learning rate and its schedule: optimizer.params, scheduler"
    if strategy.recompute == Recompute.FULL:
        yield "recompute full: model.gradient_checkpointing_enable(), which calls"
        yield "  deepspeed.checkpointing; with PipelineModule(activation_checkpoint_interval=1)"
    if strategy.tp > 1:
        yield f"tp {strategy.tp}: AutoTP splits the model by its tp_plan, or by"
        yield "  tensor_parallel.preset_model"
    if strategy.cp > 1:
        yield f"cp {strategy.cp}: UlyssesSPAttentionHF.register_with_transformers(..., "
        yield f"  sequence_parallel_size={strategy.cp}, "
        yield f"  micro_batch_size={strategy.micro_batch_size})"
    if strategy.pp > 1:
        yield f"pp {strategy.pp}: PipelineModule(layers, num_stages={strategy.pp}, "
        yield f"  partition_method='uniform'); ranks in the order {strategy.placement}"
    if strategy.optimizer not in options.OPTIMIZERS:
        yield f"optimizer {strategy.optimizer}: the client's, of bitsandbytes"
    yield from trained_in_code(strategy)


def _trainer_arguments(strategy: Strategy) -> Iterator[str]:
    """Arguments of the Hugging Face Trainer, which must agree with the JSON."""
    yield '--deepspeed "$CONFIG"'
    yield f"--per_device_train_batch_size {strategy.micro_batch_size}"
    yield f"--gradient_accumulation_steps {_micro_batches(strategy)}"
    if strategy.dtype != Dtype.FP32:
        yield f"--{strategy.dtype} true"
    if strategy.recompute == Recompute.FULL:
        yield "--gradient_checkpointing true"
    if strategy.optimizer in _TRAINER_OPTIMIZERS:
        yield f"--optim {_TRAINER_OPTIMIZERS[strategy.optimizer]}"


def _script(plan: LaunchPlan, release: str) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    threads = 8 if plan.strategy.offload_optimizer else 1
    trainer = " \\\n  ".join(_trainer_arguments(plan.strategy))
    torchrun = f"torchrun --nnodes {nodes} --nproc-per-node {per_node}"
    rendezvous = '--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"' if nodes > 1 else ""
    comments = [*plan.comments, "", "Not in the JSON:", *_in_code(plan)]
    return (
        "#!/usr/bin/env bash\n"
        f"# DeepSpeed {release}: {nodes} nodes x {per_node} GPUs.\n"
        f"{as_comments(comments)}"
        "set -euo pipefail\n\n"
        'CONFIG="${CONFIG:-${BASH_SOURCE[0]%.sh}.json}"\n'
        'SCRIPT="${SCRIPT:-train.py}"\n'
        f"export OMP_NUM_THREADS={threads}  # threads of Adam on the host\n\n"
        '# hostfile: one line per node, such as "node1 slots=' + f"{per_node}" + '"\n'
        f'deepspeed --hostfile "${{HOSTFILE:-hostfile}}" --num_nodes {nodes} --num_gpus {per_node} '
        f'"$SCRIPT" \\\n  {trainer}\n\n'
        "# The same by torchrun on every node, or by Slurm:\n"
        f'# {torchrun} {rendezvous} "$SCRIPT" ...\n'
        f'# srun --nodes {nodes} --ntasks-per-node 1 {torchrun} {rendezvous} "$SCRIPT" ...\n'
    )

"""A plan as accelerate's YAML, its tensor-parallel plan and the script that launches it."""

from collections.abc import Iterator
from typing import Any

from shardwise.config.enums import Dtype, Quantization, Recompute
from shardwise.config.model import Model
from shardwise.config.plain import as_yaml
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault
from shardwise.launchers.accelerate import options
from shardwise.launchers.accelerate.tensor_plan import missing_modules, python_plan
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.nodes import as_comments, nodes_of, trained_in_code


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what accelerate has no option for, as `Launcher.faults`."""

    def fault(field: str, problem: str) -> Fault:
        return Fault.of(field, getattr(strategy, field), problem, "strategy")

    if not strategy.training:
        yield fault("training", "accelerate's configuration is of training")
    if strategy.tp > 1 and (what := missing_modules(model)):
        problem = f"the tensor-parallel plan is of Llama's modules; {model.name} has {what}"
        yield fault("tp", problem)
    if strategy.cp > 1 and any(
        layer.attention.window or layer.attention.chunk or not layer.attention.causal
        for layer in model.layers
    ):
        yield fault("cp", f"needs causal attention over the sequence; {model.name} has another")
    if strategy.zero > 0 and strategy.dp_shard == 1 and (strategy.dp or 1) > 1:
        yield fault("dp_shard", "FSDP shards over at least 2; replicas alone are zero 0")
    if strategy.quantization != Quantization.NONE and strategy.dtype != Dtype.BF16:
        yield fault("quantization", f"mixed_precision fp8 is with bf16, not {strategy.dtype}")


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write a plan, as `Launcher.write`."""
    remarks = as_comments([f"accelerate {release}", *plan.comments, *_in_code(plan)])
    files = [LaunchFile(ending=ending, text=remarks + as_yaml(configuration(plan)))]
    if plan.strategy.tp > 1:
        files.append(LaunchFile(ending=".py", text=python_plan(plan.model, plan.strategy)))
    files.append(LaunchFile(ending=".sh", text=_script(plan, release, ending), executable=True))
    return tuple(files)


def _is_sharded(strategy: Strategy) -> bool:
    """Whether FSDP has ranks to shard over."""
    return strategy.zero > 0 and (strategy.dp or 1) * strategy.cp > 1


def configuration(plan: LaunchPlan) -> dict[str, Any]:
    """Return accelerate's configuration of a plan."""
    strategy = plan.strategy
    gpus = strategy.gpus or 1
    nodes, _ = nodes_of(plan.system, gpus)
    kind = "FSDP" if _is_sharded(strategy) else "MULTI_GPU" if gpus > 1 else "NO"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": options.MIXED_PRECISION[strategy.dtype],
        "num_machines": nodes,
        "num_processes": gpus,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if strategy.quantization != Quantization.NONE:
        gathers = strategy.quantized_weights
        config["mixed_precision"] = "fp8"
        config["fp8_config"] = {"backend": "AO", "enable_fsdp_float8_all_gather": gathers}
    if kind == "FSDP":
        config["fsdp_config"] = _fsdp(strategy)
    if kind == "FSDP" or strategy.tp > 1:
        config["parallelism_config"] = _mesh(strategy)
    return config


def _fsdp(strategy: Strategy) -> dict[str, Any]:
    reshards = options.RESHARDS[strategy.zero] and strategy.fsdp_reshard
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": reshards,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": strategy.offload_weights,
        "fsdp_activation_checkpointing": strategy.recompute == Recompute.FULL,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _mesh(strategy: Strategy) -> dict[str, Any]:
    dp = strategy.dp or 1
    shard = strategy.dp_shard or dp
    sizes = {"dp_replicate": dp // shard, "dp_shard": shard, "tp": strategy.tp, "cp": strategy.cp}
    mesh: dict[str, Any] = {f"parallelism_config_{name}_size": n for name, n in sizes.items()}
    if strategy.cp > 1:
        word = options.CP_STRATEGIES[strategy.cp_exchange]
        mesh["parallelism_config_cp_comm_strategy"] = word
    return mesh


# --- The script -----------------------------------------------------------------------------------


def _in_code(plan: LaunchPlan) -> Iterator[str]:
    """What the YAML cannot hold: the model and what its code decides."""
    strategy, model = plan.strategy, plan.model
    yield f"model {model.name}, sequences of {strategy.seq_len} tokens, {strategy.gpus} GPUs"
    yield f"micro_batch_size {strategy.micro_batch_size}, batch {strategy.global_batch_size}"
    if strategy.tp > 1:
        yield "tensor-parallel plan: parallelize(model, accelerator.torch_device_mesh['tp'])"
        yield f"  of the .py file ({strategy.tp_exchange}), before accelerator.prepare"
    if strategy.cp > 1:
        yield "context parallelism: accelerator.maybe_context_parallel(buffers=...) around a step"
    if strategy.recompute == Recompute.FULL and not _is_sharded(strategy):
        yield "recompute full: model.gradient_checkpointing_enable()"
    if model.tied_embeddings and _is_sharded(strategy):
        yield "tied embeddings: FSDP2 of PyTorch 2.13 shards them from accelerate 1.15.0 on"
    yield from trained_in_code(strategy)


def _trainer_arguments(strategy: Strategy) -> Iterator[str]:
    """Arguments of the Hugging Face Trainer."""
    steps = (strategy.global_batch_size or 1) // (strategy.micro_batch_size * (strategy.dp or 1))
    yield f"--per_device_train_batch_size {strategy.micro_batch_size}"
    yield f"--gradient_accumulation_steps {steps}"
    yield f"--optim {options.OPTIMIZERS[strategy.optimizer]}"
    if strategy.recompute == Recompute.FULL and not _is_sharded(strategy):
        yield "--gradient_checkpointing true"


def _script(plan: LaunchPlan, release: str, ending: str) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    trainer = " \\\n  ".join(_trainer_arguments(plan.strategy))
    rendezvous = ""
    if nodes > 1:
        rendezvous = (
            '  --machine_rank "${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK}}" \\\n'
            '  --main_process_ip "${MASTER_ADDR:?set MASTER_ADDR}" --main_process_port 29500 \\\n'
        )
    return (
        "#!/usr/bin/env bash\n"
        f"# accelerate {release}: {nodes} nodes x {per_node} GPUs; run once on every node, or\n"
        f"# srun --nodes {nodes} --ntasks-per-node 1 this script\n"
        f"{as_comments([*plan.comments, *_in_code(plan)])}"
        "set -euo pipefail\n\n"
        f'CONFIG="${{CONFIG:-${{BASH_SOURCE[0]%.sh}}{ending}}}"\n'
        'SCRIPT="${SCRIPT:-train.py}"\n\n'
        'accelerate launch --config_file "$CONFIG" \\\n'
        f'{rendezvous}  "$SCRIPT" \\\n  {trainer}\n'
    )

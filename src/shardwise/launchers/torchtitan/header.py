"""What stands above an exported configuration: the plan's figures and the launch commands."""

from collections.abc import Iterator

from shardwise.launchers.launch import LaunchPlan, as_comments, nodes_of, thread_variables
from shardwise.launchers.torchtitan.fields import is_compiled

_PORT = 29500


def header(plan: LaunchPlan, release: str, arguments: str, place: str) -> str:
    """Comments with the release, the predicted figures, how to launch, and the environment."""
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    lines = [
        f"{plan.model.name} on {plan.strategy.gpus} x {plan.system.name}, for torchtitan {release}",
        *(["", *plan.comments] if plan.comments else []),
        "",
        *(f"{name}={value}  # {why}" for name, value, why in _environment(plan)),
        "",
        f"Launch, {place}:",
        *_commands(nodes, per_node, arguments),
    ]
    return as_comments(lines)


def _environment(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    """Environment variables that matter for a plan (torchtitan's run_train.sh and docs)."""
    yield "PYTORCH_ALLOC_CONF", "expandable_segments:True", "less fragmented memory"
    strategy = plan.strategy
    for name, threads in thread_variables(strategy).items():
        yield name, threads, "threads of the optimizer on the host"
    if strategy.tp > 1 and strategy.tp_overlap == "ring" and is_compiled(strategy):
        yield "TORCH_SYMMMEM", "CUDA", "symmetric memory of async tensor parallelism"


def _commands(nodes: int, per_node: int, arguments: str) -> Iterator[str]:
    train = f"-m torchtitan.train {arguments}"
    if nodes == 1:
        yield f"  torchrun --standalone --nproc_per_node={per_node} {train}"
        return
    ranks = f"--nnodes={nodes} --nproc_per_node={per_node} --rdzv_backend=c10d"
    point = f"--rdzv_id=1 --rdzv_endpoint=HEAD_NODE:{_PORT}"
    yield f"  torchrun {ranks} {point} {train}"
    yield "or, with Slurm, HEAD_NODE being the first of the allocation:"
    yield f"  srun --nodes={nodes} --ntasks-per-node=1 torchrun {ranks} {point} {train}"

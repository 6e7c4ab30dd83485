"""Launch files of Megatron-Bridge: a script with overrides of a recipe, or a configuration file."""

import shlex
from collections.abc import Iterator

from shardwise.config.enums import Dispatcher
from shardwise.config.model import Model
from shardwise.config.plain import as_yaml
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import LaunchFile, LaunchPlan
from shardwise.launchers.megatron.core_options import core_faults, core_fields
from shardwise.launchers.megatron.writer import environment as core_environment
from shardwise.launchers.megatron_bridge import adapters, overlap, precision
from shardwise.launchers.megatron_bridge.hydra import overrides
from shardwise.launchers.megatron_bridge.recipes import has_recipe, recipe_of
from shardwise.launchers.megatron_bridge.sections import plan_tree
from shardwise.launchers.nodes import as_comments, nodes_of

RELEASES = ("0.6.0",)
_CORE = {"0.6.0": "0.19.0"}
"""Release of Megatron-Core that a release pins."""
SCRIPT = "scripts/training/run_recipe.py"
_OPTIONAL = (precision.SECTION, overlap.SECTION, adapters.SECTION)
"""Sections that a recipe may leave out, or have as a word."""
_ALWAYS = {
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "NCCL_NVLS_ENABLE": "0",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": "20",
    "NVTE_BWD_LAYERNORM_SM_MARGIN": "20",
}
"""Environment of all performance recipes (perf_recipes/_common.py, environment.py)."""
_RACKS = ("gb200", "gb300")


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Return the launch file of a plan.

    Raises
    ------
    InputError
        If Megatron-Bridge refuses the dispatcher on the system.
    """
    _refuse_dispatcher(plan)
    fields = core_fields(plan)
    tree = plan_tree(plan.model, plan.strategy, fields, keeps_formulas=has_recipe(plan.model))
    recipe = recipe_of(plan.model, adapted=plan.strategy.lora_rank is not None)
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    title = (
        f"Megatron-Bridge v{release} (Megatron-Core {_CORE[release]}): {plan.model.name} on "
        f"{plan.strategy.gpus} accelerators of {plan.system.name}"
    )
    if ending == ".sh":
        words = list(overrides(tree, _OPTIONAL))
        mode = _mode(plan.strategy)
        text = "".join(_script(plan, title, recipe, mode, (nodes, per_node), words))
        return (LaunchFile(ending=ending, text=text, executable=True),)
    usage = (
        f"Changes of recipe {recipe}: process_config_with_overrides(config, FILE).",
        f"Processes: {nodes} nodes of {per_node}.",
        *(f"Environment: {name}={value}" for name, value in environment(plan).items()),
    )
    header = as_comments((title, *plan.comments, *usage))
    return (LaunchFile(ending=ending, text=header + as_yaml(tree)),)


def _script(
    plan: LaunchPlan, title: str, recipe: str, mode: str, nodes: tuple[int, int], words: list[str]
) -> Iterator[str]:
    """Lines of a shell script; every override has a line."""
    count, per_node = nodes
    yield "#!/usr/bin/env bash\n"
    usage = "Run it in the folder of Megatron-Bridge"
    if count > 1:
        usage += (
            f", on each of {count} nodes, with MASTER_ADDR of the first; with Slurm:\n"
            f"srun --nodes={count} --ntasks-per-node=1 --gpus-per-node={per_node} bash FILE"
        )
    yield as_comments((title, *plan.comments, usage))
    yield "set -euo pipefail\n\n"
    yield from (f"export {name}={value}\n" for name, value in environment(plan).items())
    options = [f"--nnodes={count}", f"--nproc-per-node={per_node}"]
    if count > 1:
        options += ["--rdzv-backend=c10d", '--rdzv-endpoint="${MASTER_ADDR}:29500"']
    lines = [
        f"torchrun {' '.join(options)} {SCRIPT}",
        f"--recipe {recipe}",
        f"--mode {mode}",
        f"--dataset {'mock' if mode == 'pretrain' else 'squad'}",
        *map(shlex.quote, words),
    ]
    yield "\n" + " \\\n  ".join(lines) + "\n"


def _mode(strategy: Strategy) -> str:
    return "pretrain" if strategy.lora_rank is None else "lora"


def environment(plan: LaunchPlan) -> dict[str, str]:
    """Return the environment variables of a plan.

    Blackwell queues kernels in its own order, so that communication waits for nothing in more
    queues (training/comm_overlap.py).
    """
    strategy = plan.strategy
    variables = _ALWAYS | core_environment(plan)
    if "fp4" in plan.system.accelerator.matrix and (strategy.tp > 1 or strategy.cp > 1):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    return variables


def _refuse_dispatcher(plan: LaunchPlan) -> None:
    """Refuse DeepEP in racks of NVL72, as `validate_flex_dispatcher_backend` does."""
    in_rack = any(rack in plan.system.accelerator.name.lower() for rack in _RACKS)
    if plan.strategy.dispatcher == Dispatcher.DEEPEP and in_rack:
        problem = (
            f"Megatron-Bridge does not run it on {plan.system.accelerator.name}; allowed: "
            "all_to_all, all_gather, hybridep"
        )
        raise InputError(Fault.of("dispatcher", plan.strategy.dispatcher, problem))


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what Megatron-Bridge has no option for, in a strategy that its stack can run."""
    yield from core_faults(model, strategy)

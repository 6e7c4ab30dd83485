"""Launch files of Megatron-Bridge, read, and written as a script or a configuration."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from shardwise.config.enums import TpOverlap
from shardwise.config.files import entry_name
from shardwise.config.launch import Launch, NotUnderstood, Origin
from shardwise.config.model import Model
from shardwise.config.plain import as_yaml
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError, refuse
from shardwise.launchers.launch import LaunchFile, LaunchPlan, LaunchText, as_comments, nodes_of
from shardwise.launchers.megatron.core_hybrid import PATTERN, is_hybrid
from shardwise.launchers.megatron.core_model import model_fields
from shardwise.launchers.megatron.core_options import (
    CORE_DEFAULTS,
    CoreLaunch,
    core_faults,
    core_fields,
    read_core_fields,
)
from shardwise.launchers.megatron.core_stack import Fields
from shardwise.launchers.megatron.writer import environment as core_environment
from shardwise.launchers.megatron_bridge import adapters, overlap, precision
from shardwise.launchers.megatron_bridge.neutral import has_effect
from shardwise.launchers.megatron_bridge.recipes import has_recipe, recipe_defaults, recipe_of
from shardwise.launchers.megatron_bridge.sections import (
    FUSED_MODULE,
    Sections,
    plan_tree,
    read_sections,
)
from shardwise.launchers.megatron_bridge.trees import Tree, overrides, section
from shardwise.launchers.stacks import STACKS

NAME = "megatron-bridge"
STACK, RACK_STACK, NEMO_STACK = STACKS[NAME], "megatron-bridge-nvl72", "nemo-2025"
_RELEASE = re.compile(r"Megatron-Bridge v?(\d+\.\d+(?:\.\d+)?)")
_NEEDED = {
    "tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "context_parallel_size": "model.context_parallel_size",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
}
"""Fields whose value in a recipe is its own."""
_NOT_OF_LATENT = ("kv_channels", "num_query_groups")
"""Fields without effect with latent attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a launch file sets, in the sections of Megatron-Bridge."""

    tree: Tree
    origins: Mapping[str, str] = field(default_factory=dict)
    """Path of a field in the file, where it is not that of Megatron-Bridge."""
    recipe: str | None = None
    """Recipe that the sections change; None: they are complete."""
    model: Model | None = None
    """Model of the recipe."""
    gpus: int | None = None
    per_node: int | None = None
    """Ranks of a node."""
    stack: str = STACK
    defaults: Fields | None = None
    """What holds where the file sets nothing; None: that of recipes."""
    vocab: int = 0
    """Vocabulary of the tokenizer, where no field has it; 0: not known."""
    notes: tuple[NotUnderstood, ...] = ()

    def shown(self, path: str) -> str:
        """A path as the file has it."""
        return self.origins.get(path, path)


def launch_of(job: Job, text: LaunchText) -> Launch:
    """Return a launch.

    Raises
    ------
    InputError
        If a value is wrong or missing.
    """
    source = text.source
    if job.recipe is not None and job.model is None and text.model is None:
        sizes = section(job.tree, "model")
        if not {"num_layers", "hidden_size"} <= set(sizes):
            problem = "shardwise does not know the recipe: name its model (--model)"
            raise InputError(Fault.of("--recipe", job.recipe, problem, source))
    defaults = job.defaults or recipe_defaults(job.model or text.model)
    found = read_sections(job.tree, defaults, source)
    refuse(
        replace(fault, source=source, field=job.shown(fault.field))
        for fault in (*found.faults, *_checkpoint_faults(job.tree, found))
    )
    nulls = {name: CORE_DEFAULTS.get(name) for name, value in found.fields.items() if value is None}
    defaults = {**defaults, **nulls}
    gpus = text.gpus or job.gpus or _gpus(job.tree, found)
    core = _read_core(job, found, defaults, text, gpus)
    path = job.shown(adapters.SECTION)
    own, notes = adapters.read_adapters(job.tree.get(adapters.SECTION), core.model, path)
    rest = [
        NotUnderstood(option=job.shown(path), value=value, because="not modeled")
        for path, value in found.rest.items()
        if has_effect(path, value)
    ]
    missing = _missing(job, found)
    strategy = {key: item for key, item in core.strategy.items() if key not in missing} | own
    if overlap.is_ring(section(job.tree, overlap.SECTION).get("tp_comm_overlap_cfg")):
        strategy = {"tp_overlap": TpOverlap.RING} | strategy
    release = _RELEASE.search(text.text)
    return Launch(
        launcher=NAME,
        release=release[1] if release else None,
        source=source,
        model=core.model,
        strategy=strategy,
        decided=core.decided,
        not_understood=(*job.notes, *_of_recipe(job, missing), *core.not_understood, *notes, *rest),
        per_node=job.per_node,
        origins={name: core.origins.get(name, Origin.READ) for name in strategy},
    )


def _read_core(
    job: Job, found: Sections, defaults: Fields, text: LaunchText, gpus: int | None
) -> CoreLaunch:
    """Read the fields of Megatron-Core's classes."""
    fuses = job.stack == STACK and _fuses_experts(found.fields)
    return read_core_fields(
        found.fields,
        stack=RACK_STACK if fuses else job.stack,
        source=text.source,
        name=job.model.name if job.model else entry_name(PurePath(text.source).name),
        gpus=gpus,
        defaults=defaults,
        neutral=lambda name: (
            (name in _NOT_OF_LATENT and bool(found.fields.get("multi_latent_attention")))
            or not has_effect(found.path(name), found.fields[name])
        ),
        option=lambda name: job.shown(found.path(name)),
        padded_to=text.vocabulary() or job.vocab,
    )


def _fuses_experts(fields: Fields) -> bool:
    """Whether fused experts are a choice of speed, not for the sake of what is offloaded."""
    offloaded = fields.get("offload_modules")
    is_needed = isinstance(offloaded, tuple) and FUSED_MODULE in offloaded
    in_recipe = fields.get("fp8_recipe") == "mxfp8" or bool(fields.get("fp4"))
    return bool(fields.get("use_transformer_engine_op_fuser")) and in_recipe and not is_needed


def _gpus(tree: Tree, found: Sections) -> int | None:
    """Accelerators by the replicas that a configuration notes."""
    replicas = section(tree, overlap.SECTION).get("data_parallel_size")
    if not isinstance(replicas, int):
        return None
    gpus = replicas
    for axis in ("tensor_model", "pipeline_model", "context"):
        degree = found.fields.get(f"{axis}_parallel_size", 1)
        gpus *= degree if isinstance(degree, int) else 1
    return gpus


def _missing(job: Job, found: Sections) -> tuple[str, ...]:
    """Fields that only the recipe has, whose own values are not known."""
    if job.recipe is None:
        return ()
    return tuple(name for name in _NEEDED if found.fields.get(name) is None)


def _of_recipe(job: Job, missing: tuple[str, ...]) -> tuple[NotUnderstood, ...]:
    """The recipe, if values of its own are not known."""
    if not missing:
        return ()
    because = f"its own values are not known: set {', '.join(_NEEDED[one] for one in missing)}"
    return (NotUnderstood(option="--recipe", value=job.recipe, because=because),)


def _checkpoint_faults(tree: Tree, found: Sections) -> tuple[Fault, ...]:
    """Megatron-FSDP saves distributed tensors only."""
    checkpoint = section(tree, "checkpoint")
    form = checkpoint.get("ckpt_format")
    sharded = bool(found.fields.get("use_megatron_fsdp"))
    is_used = any(checkpoint.get(name) for name in ("save", "load"))
    if not (sharded and is_used) or form in (None, "fsdp_dtensor"):
        return ()
    problem = "allowed with Megatron-FSDP: fsdp_dtensor"
    return (Fault.of("checkpoint.ckpt_format", form, problem),)


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


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Return the launch file of a plan."""
    fields = core_fields(plan)
    if is_hybrid(plan.model):  # the recipe has the class of the model, whose fields others lack
        of_model = model_fields(plan.model)
        staged = {PATTERN} if "|" in str(fields[PATTERN]) else set()
        fields = {name: one for name, one in fields.items() if name not in of_model.keys() - staged}
        fields["seq_length"] = plan.strategy.seq_len
    tree = plan_tree(plan.model, plan.strategy, fields, keeps_formulas=has_recipe(plan.model))
    recipe = recipe_of(plan.model, adapted=plan.strategy.lora_rank is not None)
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    title = (
        f"Megatron-Bridge v{release} (Megatron-Core {_CORE[release]}): {plan.model.name} on "
        f"{plan.strategy.gpus} accelerators of {plan.system.name}"
    )
    if ending == ".sh":
        words = list(overrides(tree, _OPTIONAL))
        mode = "pretrain" if plan.strategy.lora_rank is None else "lora"
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


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what Megatron-Bridge has no option for, in a strategy that its stack can run."""
    yield from core_faults(model, strategy)
    if is_hybrid(model) and not has_recipe(model):
        problem = "Megatron-Bridge: hybrid models need a recipe of their own; here is none"
        yield Fault.of("name", model.name, problem, f"model {model.name}")

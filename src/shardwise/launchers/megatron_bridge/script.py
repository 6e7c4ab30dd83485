"""Scripts that launch Megatron-Bridge: options of its runners, and overrides."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardwise.config.launch import NotUnderstood
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError, refuse
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron_bridge.files import RACK_STACK, STACK, Job
from shardwise.launchers.megatron_bridge.neutral import is_neutral
from shardwise.launchers.megatron_bridge.performance import (
    PRESETS,
    performance_name,
    performance_tree,
)
from shardwise.launchers.megatron_bridge.recipes import gpus_of, model_of
from shardwise.launchers.megatron_bridge.trees import Leaf, Tree, apply_overrides, is_override, put
from shardwise.launchers.ranks import Ranks, parse_job, ranks_of
from shardwise.launchers.shell import Script, names_in, shown
from shardwise.units import read_whole

_SHORT = {
    "-tp": "--tensor_model_parallel_size",
    "-pp": "--pipeline_model_parallel_size",
    "-cp": "--context_parallel_size",
    "-vp": "--virtual_pipeline_model_parallel_size",
    "-ep": "--expert_model_parallel_size",
    "-et": "--expert_tensor_parallel_size",
    "-mb": "--micro_batch_size",
    "-gb": "--global_batch_size",
    "-sl": "--seq_length",
    "-ng": "--num_gpus",
    "-gn": "--gpus_per_node",
    "-c": "--compute_dtype",
    "-g": "--gpu",
    "-m": "--model_family_name",
    "-mr": "--model_recipe_name",
}
_MODEL_FIELDS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "pipeline_model_parallel_layout",
    "seq_length",
    "cuda_graph_impl",
    "cuda_graph_scope",
    "recompute_modules",
    "num_layers",
    "hidden_size",
    "num_moe_experts",
)
OPTIONS: Mapping[str, str] = {
    **{name: f"model.{name}" for name in _MODEL_FIELDS},
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "nccl_ub": "ddp.nccl_ub",
    "optimizer_type": "optimizer.optimizer",
    "max_steps": "train.train_iters",
    "lr": "optimizer.lr",
    "min_lr": "optimizer.min_lr",
    "save_dir": "checkpoint.save",
    "load_dir": "checkpoint.load",
    "pretrained_checkpoint": "checkpoint.pretrained_checkpoint",
    "activation_offload_layers": "model.cpu_offloading_num_layers",
}
"""Options of the runners (scripts/performance/argument_parser.py), and what they set."""
_FLAGS = ("use_megatron_fsdp", "nccl_ub", "moe_a2a_overlap", "packed_sequence", "use_tokendrop")
_READ = (
    *("recipe", "model", "model_recipe_name", "task", "mode", "num_gpus", "gpus_per_node"),
    *("gpu", "compute_dtype", "peft_scheme", "moe_flex_dispatcher_backend", "nodes"),
)
_NEUTRAL = (
    *("model_family_name", "dataset", "step_func", "hf_path", "config_variant", "account"),
    *("partition", "container_image", "time_limit", "log_dir", "mount", "env", "tokenizer_type"),
    *("tokenizer_model", "wandb_project", "warmup_iters", "script", "script_path", "dataset_type"),
)
_RACKS = ("gb200", "gb300", "vr200")
IS_SCRIPT = re.compile(
    r"(?:^|[\s\"'])(?:\+{0,2})(?:model|train|ddp|optimizer|mixed_precision|comm_overlap|dist|dataset)"
    r"\.[a-z_0-9.]+=|--model_recipe_name[= ]|--recipe[= ][\"']?\w+_config",
    re.MULTILINE,
)
"""Pattern that identifies a script of Megatron-Bridge."""


class _Options(NamedTuple):
    """A command line of a runner."""

    named: dict[str, list[str]]
    overrides: list[str]


def script_job(text: LaunchText) -> Job:
    """Return what a script launches.

    Raises
    ------
    InputError
        If there is no command of Megatron-Bridge, or a word of it has no literal value.
    """
    script = parse_job(text.text, text.variables, text.sibling)
    command = next((one for one in script.commands if _is_launch(one)), None)
    if command is None:
        problem = "has no command with a recipe or overrides of Megatron-Bridge"
        raise InputError(Fault(source=text.source, problem=problem))
    options = _options(_arguments(command))
    ranks = ranks_of(script, command)
    gpus = text.gpus or _accelerators(options.named, ranks)
    missing = () if gpus or ranks is None else ranks.missing
    refuse((*_open(options, script, text.source), *_open_ranks(missing, script, text.source)))
    recipe = performance_name(options.named) or _recipe(options.named)
    tree = (performance_tree(recipe, gpus) if recipe else None) or {}
    notes = list(_set_options(tree, options.named))
    apply_overrides(tree, options.overrides, text.source)
    name = model_of(recipe) if recipe else None
    gpu = (options.named.get("gpu") or [""])[0].lower()
    rack = gpu in _RACKS or any(f"_{one}_" in (recipe or "") for one in _RACKS)
    return Job(
        tree=tree,
        recipe=recipe,
        model=Model.load(name) if name else None,
        gpus=gpus or (gpus_of(recipe) if recipe else None),
        per_node=None if ranks is None else ranks.per_node,
        stack=RACK_STACK if rack else STACK,
        notes=tuple(notes),
    )


def _is_launch(command: Sequence[str]) -> bool:
    has_script = any(word.endswith((".py", "train.sh")) for word in command)
    names = ("--recipe", "--model_recipe_name", "-mr")
    chosen = any(word.partition("=")[0] in names for word in command)
    return has_script and (chosen or any(is_override(word) for word in command))


def _arguments(command: Sequence[str]) -> Sequence[str]:
    """Words after the training script."""
    at = next(i for i, word in enumerate(command) if word.endswith((".py", "train.sh")))
    return command[at + 1 :]


def _options(words: Sequence[str]) -> _Options:
    """Options by name, without dashes, and overrides."""
    options = _Options({}, [])
    name: str | None = None
    for word in words:
        full = _SHORT.get(word, word)
        if full.startswith("--") and len(full) > len("--"):
            name, equals, value = full.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            values = options.named.setdefault(name, [])
            if equals:
                values.append(value)
            if equals or name in _FLAGS:
                name = None
        elif is_override(word):
            options.overrides.append(word)
            name = None
        elif name is not None:
            options.named[name].append(word)
    return options


def _open(options: _Options, script: Script, source: str) -> Iterator[Fault]:
    """Words without a literal value, once for each variable; those without effect are dropped."""
    options.overrides[:] = [
        word
        for word in options.overrides
        if not (names_in(word) and is_neutral(word.partition("=")[0].lstrip("+~")))
    ]
    used = [
        name
        for name in options.named
        if name in _READ or (name in OPTIONS and not is_neutral(OPTIONS[name]))
    ]
    words = [(f"--{name}", value) for name in used for value in options.named[name]]
    words += [(word.partition("=")[0], word) for word in options.overrides]
    seen: set[str] = set()
    for place, word in words:
        for name in names_in(word):
            if name not in seen:
                seen.add(name)
                problem = f"{name} has no value here; {script.how_to_set(name)}"
                yield Fault.of(shown(place), shown(word), problem, source)


def _open_ranks(names: Sequence[str], script: Script, source: str) -> Iterator[Fault]:
    """Variables that say how many ranks there are."""
    for name in names:
        problem = f"{name} has no value here; {script.how_to_set(name)}, or set gpus"
        yield Fault.of("ranks", f"${name}", problem, source)


def _set_options(tree: Tree, named: Mapping[str, list[str]]) -> Iterator[NotUnderstood]:
    """Set what options of a runner mean; yields those that are not known."""
    for name, words in named.items():
        value: Leaf = words[0] if words else True
        number = read_whole(value) if isinstance(value, str) else None
        value = value if number is None else number
        if name in _FEATURES:
            _FEATURES[name](tree, value)
        elif name in OPTIONS:
            listed = name in ("recompute_modules", "cuda_graph_scope")
            put(tree, OPTIONS[name], _listed(words) if listed else value)
        elif name not in (*_READ, *_NEUTRAL):
            yield NotUnderstood(option=f"--{name}", value=value, because="not modeled")


def _set_precision(tree: Tree, value: Leaf) -> None:
    if "mixed_precision" not in tree:  # a known recipe is of that precision
        put(tree, "mixed_precision", PRESETS.get(str(value).replace("_", ""), str(value)))


def _set_chunks(tree: Tree, value: Leaf) -> None:
    if value != -1:  # which leaves it to the recipe
        put(tree, "model.virtual_pipeline_model_parallel_size", value)


def _set_recompute(tree: Tree, value: Leaf) -> None:
    fields: Tree = {"granularity": "full", "method": "block", "num_layers": value}
    for key, item in fields.items():
        put(tree, f"model.recompute_{key}", item)


def _set_backend(tree: Tree, value: Leaf) -> None:
    is_flex = value not in _NOTHING
    put(tree, "model.moe_token_dispatcher_type", "flex" if is_flex else "alltoall")
    put(tree, "model.moe_flex_dispatcher_backend", value if is_flex else None)


def _set_adapters(tree: Tree, value: Leaf) -> None:
    if value not in _NOTHING:
        put(tree, "peft", value)


_NOTHING = ("None", "none")
_FEATURES: Mapping[str, Callable[[Tree, Leaf], None]] = {
    "virtual_pipeline_model_parallel_size": _set_chunks,
    "compute_dtype": _set_precision,
    "peft_scheme": _set_adapters,
    "moe_a2a_overlap": lambda tree, _: put(
        tree, "comm_overlap.overlap_moe_expert_parallel_comm", True
    ),
    "recompute_num_layers": _set_recompute,
    "moe_flex_dispatcher_backend": _set_backend,
}
"""Options of the runners that stand for several fields."""


def _listed(words: Sequence[str]) -> Leaf:
    return [part for word in words for part in word.split(",") if part]


def _recipe(named: Mapping[str, list[str]]) -> str | None:
    """The recipe's name, from its options."""
    for name in ("recipe", "model_recipe_name", "model"):
        if named.get(name):
            return named[name][0]
    return None


def _accelerators(named: Mapping[str, list[str]], ranks: Ranks | None) -> int | None:
    """Accelerators by the options of the runner, else by the ranks that are started."""
    counts = {
        name: number
        for name in ("num_gpus", "nodes", "gpus_per_node")
        if named.get(name) and (number := read_whole(named[name][0])) is not None
    }
    if "num_gpus" in counts:
        return counts["num_gpus"]
    if "gpus_per_node" in counts:
        return counts.get("nodes", 1) * counts["gpus_per_node"]
    return None if ranks is None else ranks.gpus

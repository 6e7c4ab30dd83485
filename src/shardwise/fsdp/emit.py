"""Emit a wrapping as code: for plain PyTorch, for torchtitan, and as a plan of transformers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from shardwise.fsdp.call_writer import CallWriter, by_pattern, patterns
from shardwise.fsdp.plan import Dtype, Setting, Wrapping

_TORCH: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_DIVISION = (
    "where torchtitan divides gradients by tokens itself, its apply_fsdp ends with "
    "disable_fsdp_gradient_division(model): keep that call"
)
_FREE, _KEEP = "free_full_weight", "keep_full_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A wrapping in the form of another library, with notes on what that form cannot express."""

    text: str
    notes: tuple[str, ...] = ()


def python_code(
    wrapping: Wrapping,
    setting: Setting,
    *,
    model_name: str,
    modules: Collection[str] = (),
    keyed: Collection[str] = (),
    device: str = "cuda",
) -> str:
    """A Python module whose `shard(model, mesh=None)` applies the wrapping.

    `modules` are all names of the model: with them, a loop over a full list of layers needs no
    bounds. `keyed` are the names of those containers that are `nn.ModuleDict`s.
    """
    page = CallWriter(modules, keyed)
    mesh = _mesh(setting)
    lines = ["def shard(model, mesh=None):"]
    lines += [
        '    """Shard the model in place; all ranks call it, before the optimizer is made."""'
    ]
    lines += ["    if mesh is None:", f'        mesh = init_device_mesh("{device}", {mesh})']
    lines += page.checkpoints(wrapping.checkpointed)
    policy = _policy(setting)
    shared = '{"mesh": mesh}' if policy is None else '{"mesh": mesh, "mp_policy": mixed}'
    lines += [] if policy is None else [f"    mixed = {policy}"]
    lines += [f"    shared = {shared}", *page.shards(wrapping.units)]
    lines += ["    fully_shard(model, **shared)", "    return model"]
    return "\n".join([*_header(setting, model_name), *_imports(wrapping, policy), *lines, ""])


def torchtitan_form(
    wrapping: Wrapping,
    setting: Setting,
    *,
    model_name: str,
    modules: Collection[str] = (),
    keyed: Collection[str] = ("layers",),
) -> Form:
    """An `apply_fsdp` that replaces that of torchtitan's `models/*/parallelize.py`.

    The signature is torchtitan's of 2026; its models have their layers in an `nn.ModuleDict`.
    """
    lines = ["def apply_fsdp(", "    model,", "    dp_mesh,", "    param_dtype,"]
    lines += ["    reduce_dtype,", "    pp_enabled,", "    cpu_offload=False,"]
    lines += ['    reshard_after_forward_policy="default",', "):"]
    lines += ['    """Shard as planned: what to reshard stands below, whatever the policy says."""']
    lines += ["    if pp_enabled:", '        raise ValueError("planned without pipeline stages")']
    lines += ["    mixed = MixedPrecisionPolicy(param_dtype, reduce_dtype)"]
    lines += ['    shared = {"mesh": dp_mesh, "mp_policy": mixed}', "    if cpu_offload:"]
    lines += ['        shared["offload_policy"] = CPUOffloadPolicy()']
    lines += [
        *CallWriter(modules, keyed).shards(wrapping.units),
        "    fully_shard(model, **shared)",
    ]
    names = "CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard"
    head = [*_header(setting, model_name), f"from torch.distributed.fsdp import {names}", "", ""]
    shards, replicas = setting.shards, setting.replicas
    compute, reduce = _TORCH[setting.compute_dtype], _TORCH[setting.reduce_dtype]
    notes = [
        f"data_parallel_shard_degree = {shards}, data_parallel_replicate_degree = {replicas}",
        f'mixed_precision_param = "{compute}", mixed_precision_reduce = "{reduce}"',
        _DIVISION,
    ]
    if wrapping.checkpointed:
        named = ", ".join(patterns(wrapping.checkpointed))
        notes.append(f"checkpointing is torchtitan's own setting, by layers; planned: {named}")
    return Form(text="\n".join([*head, *lines, ""]), notes=tuple(notes))


def huggingface_form(
    wrapping: Wrapping, setting: Setting, *, modules: Collection[str] = ()
) -> Form:
    """The wrapping as `fsdp_plan` of transformers 5 (`transformers/distributed/fsdp.py`).

    A rule's name has `*` for every number, so it applies to all layers of a list or to none; its
    style is "free_full_weight" (gathered again in backward) or "keep_full_weight".
    """
    plan: dict[str, str] = {}
    for unit in wrapping.units:
        style = _FREE if unit.reshard_after_forward else _KEEP
        for rule in patterns(unit.modules):
            plan.setdefault(rule, style)
    notes = [*_rule_notes(wrapping, plan, modules), *_group_notes(wrapping, plan)]
    notes += _setting_notes(wrapping, setting)
    arguments = [f"fsdp_size={setting.shards}"]
    arguments += [f"dp_replicate_size={setting.replicas}"] if setting.replicas > 1 else []
    arguments += ["fsdp_plan=fsdp_plan"]
    arguments += ["fsdp_mixed_precision=True"] if _mixed(setting) else []
    lines = ["from transformers.distributed import DistributedConfig", "", "fsdp_plan = {"]
    lines += [*(f'    "{rule}": "{style}",' for rule, style in plan.items()), "}"]
    lines += [f"distributed_config = DistributedConfig({', '.join(arguments)})", ""]
    return Form(text="\n".join(lines), notes=tuple(dict.fromkeys(notes)))


def _header(setting: Setting, model_name: str) -> list[str]:
    """Comments on the model and the setting."""
    gpus = f"{setting.gpus} GPUs"
    if setting.replicas > 1:
        gpus += f" ({setting.replicas} replicas of {setting.shards} shards)"
    dtypes = f"Weights stored in {setting.stored_dtype}, gathered in {setting.compute_dtype}, "
    dtypes += f"gradients reduced in {setting.reduce_dtype}"
    name = " ".join(model_name.split())
    return [f"# FSDP2 units of {name} on {gpus}, planned by shardwise.", f"# {dtypes}."]


def _imports(wrapping: Wrapping, policy: str | None) -> list[str]:
    """Imports from PyTorch."""
    lines = [] if policy is None else ["import torch"]
    if wrapping.checkpointed:
        lines.append("from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (")
        lines += ["    apply_activation_checkpointing,", ")"]
    lines.append("from torch.distributed.device_mesh import init_device_mesh")
    names = "fully_shard" if policy is None else "MixedPrecisionPolicy, fully_shard"
    return [*lines, f"from torch.distributed.fsdp import {names}", "", ""]


def _mesh(setting: Setting) -> str:
    """Shape and names of the mesh."""
    if setting.replicas == 1:
        return f'({setting.shards},), mesh_dim_names=("shard",)'
    shape = f"({setting.replicas}, {setting.shards})"
    return f'{shape}, mesh_dim_names=("replicate", "shard")'


def _policy(setting: Setting) -> str | None:
    """The mixed precision, if any dtype differs from the one before it."""
    arguments = []
    if setting.compute_dtype != setting.stored_dtype:
        arguments.append(f"param_dtype=torch.{_TORCH[setting.compute_dtype]}")
    if setting.reduce_dtype != setting.compute_dtype:
        arguments.append(f"reduce_dtype=torch.{_TORCH[setting.reduce_dtype]}")
    return f"MixedPrecisionPolicy({', '.join(arguments)})" if arguments else None


def _rule_notes(
    wrapping: Wrapping, plan: Mapping[str, str], modules: Collection[str]
) -> Iterator[str]:
    """Where a rule differs from the plan."""
    for unit in wrapping.units:
        style = _FREE if unit.reshard_after_forward else _KEEP
        for rule in patterns(unit.modules):
            if plan[rule] != style:
                yield f"{rule}: planned {style} in part, but a rule holds for all"
    wrapped = {name for unit in wrapping.units for name in unit.modules}
    if not modules:
        yield "a rule holds for all layers of its list, planned or not"
    for rule, same in by_pattern(set(modules) - wrapped):
        if rule in plan:
            more = sorted(same)
            yield f"{rule}: the rule takes in {len(more)} more than planned, such as {more[0]}"
    yield "rules of the model's own plan stay in force where none here has the same name"


def _group_notes(wrapping: Wrapping, plan: Mapping[str, str]) -> Iterator[str]:
    """Where groups differ from the plan.

    transformers groups one pair alone, a final norm and head, if no other weights stay resident.
    Source: `is_norm_and_head_pair` in `transformers/distributed/fsdp.py` of 5.23.
    """
    unsharded = sorted(rule for rule, style in plan.items() if style == _KEEP)
    with_norm = any(rule == "norm" or rule.endswith(".norm") for rule in unsharded)
    pair = unsharded if with_norm and len(unsharded) == 2 else []  # noqa: PLR2004 - a pair
    grouped = [unit.modules for unit in wrapping.units if len(unit.modules) > 1]
    for names in grouped:
        if sorted(patterns(names)) != pair:
            named = ", ".join(patterns(names))
            yield f"{named}: planned in groups of {len(names)}, here each is a unit"
    if pair and pair not in [sorted(patterns(names)) for names in grouped]:
        yield f"{', '.join(pair)}: planned as two units, here one group if the model ends in them"


def _setting_notes(wrapping: Wrapping, setting: Setting) -> Iterator[str]:
    """What `DistributedConfig` cannot express."""
    if wrapping.checkpointed:
        named = ", ".join(patterns(wrapping.checkpointed))
        yield f"checkpointing is no part of a plan: {named}"
    if _policy(setting) is not None and not _mixed(setting):
        yield (
            "fsdp_mixed_precision is bf16 reduced in fp32, "
            f"not {setting.compute_dtype} in {setting.reduce_dtype}"
        )


def _mixed(setting: Setting) -> bool:
    """Whether the dtypes are those of `fsdp_mixed_precision`."""
    return (setting.compute_dtype, setting.reduce_dtype) == ("bf16", "fp32")

"""Emit a wrapping as code: for plain PyTorch, for torchtitan, and as a plan of transformers.

Calls are written as lines of Python, with loops where they repeat. They go from the inside out,
because a call of `fully_shard` owns the parameters that no earlier call owns
(https://docs.pytorch.org/docs/2.13/distributed.fsdp.fully_shard.html). Neighbors in a list of
layers that are wrapped alike become one loop.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from keyword import iskeyword

from shardwise.errors import InputError
from shardwise.fsdp.plan import Dtype, Setting, Unit, Wrapping
from shardwise.units import read_whole

_Path = tuple[str, ...]  # parts of a name; a key of a dictionary stands in quotes
_Write = Callable[[list[str], bool, str], list[str]]
_RESERVED = frozenset(
    {"fully_shard", "list", "mesh", "model", "mixed", "recomputed", "shared", "torch"}
)
_WIDTH = 88


@dataclass(frozen=True, slots=True)
class _Call:
    """One call on modules, by their paths from wherever the call stands."""

    paths: tuple[_Path, ...]
    reshard: bool = True


@dataclass(frozen=True, slots=True)
class _Loop:
    """The same calls on neighbors in a list: on each, or on each group of `width`."""

    container: _Path
    keyed: bool
    first: int
    width: int
    body: tuple[_Call, ...]
    steps: int = 1

    def at(self, step: int) -> _Path:
        """Path of a module of the list, counted from the first of the loop."""
        index = str(self.first + step)
        return (*self.container, f'"{index}"' if self.keyed else index)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Scope of calls: a module, as Python and as a path, and the variables of the loops around."""

    expression: str = "model"
    path: _Path = ()
    margin: str = "    "
    variables: frozenset[str] = _RESERVED


class CallWriter:
    """Writes calls, with loops where neighbors agree.

    `modules` are names of the model: where they cover a list, its loop has no bounds. `keyed` are
    the names of containers that are dictionaries with numbers for keys; `*` is any number.
    """

    def __init__(self, modules: Collection[str], keyed: Collection[str]) -> None:
        self._keyed = frozenset(keyed)
        self._lengths = _lengths(modules)

    def shards(self, units: Sequence[Unit]) -> list[str]:
        """Calls of `fully_shard`, bottom up."""
        calls = [
            _Call(tuple(map(self._path, unit.modules)), unit.reshard_after_forward)
            for unit in bottom_up(units)
        ]
        return self._lines(calls, _Scope(), _fully_shard)

    def checkpoints(self, names: Sequence[str]) -> list[str]:
        """Checkpointing: before sharding, and all modules looked up before any is wrapped."""
        if not names:
            return []
        for name in names:
            _check_name("checkpointed", name)
        calls = [_Call((self._path(name),)) for name in dict.fromkeys(names)]
        lines = ["    # A cache would be filled a second time when layers are computed again."]
        lines += ['    if getattr(getattr(model, "config", None), "use_cache", False):']
        lines += ["        model.config.use_cache = False", "    recomputed = set()"]
        lines += self._lines(
            calls, _Scope(), lambda named, _, margin: [f"{margin}recomputed.add({named[0]})"]
        )
        check = "check_fn=lambda module: module in recomputed"
        return [*lines, f"    apply_activation_checkpointing(model, {check})"]

    def _path(self, name: str) -> _Path:
        """A name split at its dots, with keys of dictionaries in quotes."""
        parts = name.split(".")
        for place, part in enumerate(parts):
            holder = ".".join(name.split(".")[:place])
            if _is_index(part) and not self._keyed.isdisjoint({holder, pattern(holder)}):
                parts[place] = f'"{part}"'
        return tuple(parts)

    def _lines(self, calls: Sequence[_Call], place: _Scope, write: _Write) -> list[str]:
        """Lines for calls in a scope."""
        lines: list[str] = []
        for item in _collapse(calls):
            if isinstance(item, _Call):
                named = [_expression(place, names) for names in item.paths]
                lines += write(named, item.reshard, place.margin)
            elif item.steps == 1:
                one = item.at(0)
                container = _expression(place, one)
                inner = replace(place, expression=container, path=(*place.path, *one))
                lines += self._lines(item.body, inner, write)
            else:
                lines += self._loop(item, place, write)
        return lines

    def _loop(self, loop: _Loop, place: _Scope, write: _Write) -> list[str]:
        """Lines for the same calls on neighbors."""
        name = _variable(loop.container, place.variables)
        inner = _Scope(
            name, (*place.path, *loop.at(0)), f"{place.margin}    ", place.variables | {name}
        )
        if loop.width == 1:
            head = f"for {name} in {self._neighbours(place, loop)}:"
            return [f"{place.margin}{head}", *self._lines(loop.body, inner, write)]
        container, after = _expression(place, loop.container), f"i + {loop.width}"
        (call,) = loop.body
        if loop.keyed:
            one = replace(inner, expression=f"{container}[str(j)]")
            group = f"*({_expression(one, call.paths[0])} for j in range(i, {after}))"
        elif call.paths[0]:
            group = f"*({_expression(inner, call.paths[0])} for {name} in {container}[i : {after}])"
        else:
            group = f"*{container}[i : {after}]"
        last = loop.first + loop.steps * loop.width
        head = f"for i in range({loop.first}, {last}, {loop.width}):"
        return [f"{place.margin}{head}", *write([group], call.reshard, inner.margin)]

    def _neighbours(self, place: _Scope, loop: _Loop) -> str:
        """The iterable of a loop: a full list, or a slice of it."""
        container = _expression(place, loop.container)
        last = loop.first + loop.steps
        names = (*place.path, *loop.container)
        generic = ".".join("*" if _is_place(part) else part for part in names)
        if loop.first == 0 and self._lengths.get(generic) == {last}:
            return f"{container}.values()" if loop.keyed else container
        if loop.keyed:
            return f"({container}[str(i)] for i in range({loop.first}, {last}))"
        return f"{container}[{loop.first or ''}:{last}]"


def _expression(place: _Scope, names: _Path) -> str:
    """Python for the module that has these names in a scope."""
    text = place.expression
    for name in names:
        if _is_place(name):
            text += f"[{name}]"
        elif name.isidentifier() and not iskeyword(name):
            text += f".{name}"
        else:
            text = f"getattr({text}, {json.dumps(name)})"
    return text


def _fully_shard(named: list[str], reshard: bool, margin: str) -> list[str]:
    """One call, on a module or on a list, formatted as by ruff and black."""
    listed = len(named) > 1 or named[0].startswith("*")
    what = f"[{', '.join(named)}]" if listed else named[0]
    arguments = ["**shared"] if reshard else ["**shared", "reshard_after_forward=False"]
    line = f"{margin}fully_shard({', '.join([what, *arguments])})"
    if len(line) <= _WIDTH:
        return [line]
    inner = f"{margin}    "
    first = [f"{inner}{what},"]
    if listed and len(first[0]) > _WIDTH:
        first = [f"{inner}[", *(f"{inner}    {name}," for name in named), f"{inner}],"]
    return [f"{margin}fully_shard(", *first, *(f"{inner}{one}," for one in arguments), f"{margin})"]


def _variable(container: _Path, used: frozenset[str]) -> str:
    """A name for one module of a list: "layer" of "layers"."""
    last = container[-1] if container else ""
    name = last[:-1] if last.endswith("s") and last[:-1].isidentifier() else "block"
    while name in used or iskeyword(name):
        name += "_"
    return name


def _collapse(calls: Sequence[_Call]) -> Iterator[_Call | _Loop]:
    """Join calls on the same layer, then consecutive layers with the same calls."""
    last: _Loop | None = None
    for item in _layers(calls):
        if isinstance(item, _Loop) and last is not None:
            follows = last.first + last.steps * last.width
            if replace(item, first=last.first, steps=last.steps) == last and item.first == follows:
                last = replace(last, steps=last.steps + 1)
                continue
        if last is not None:
            yield from _unless_alone(last)
        last = item if isinstance(item, _Loop) else None
        if isinstance(item, _Call):
            yield item
    if last is not None:
        yield from _unless_alone(last)


def _unless_alone(loop: _Loop) -> Iterator[_Call | _Loop]:
    """A loop, or its call if it has a single one."""
    if loop.steps == 1 and len(loop.body) == 1:
        (call,) = loop.body
        paths = [(*loop.at(step), *p) for step in range(loop.width) for p in call.paths]
        yield _Call(tuple(paths), call.reshard)
    else:
        yield loop


def _layers(calls: Sequence[_Call]) -> Iterator[_Call | _Loop]:
    """Calls in order, those on the same layer of a list together, with paths relative to it."""
    for (spot, width), group in groupby(calls, key=_common_layer):
        if spot is None:
            yield from group
            continue
        body = [_Call(tuple(p[len(spot) :] for p in c.paths), c.reshard) for c in group]
        keyed, first = spot[-1].startswith('"'), int(spot[-1].strip('"'))
        if width == 1:
            yield _Loop(spot[:-1], keyed, first, 1, tuple(body))
        else:  # the paths of a group differ in the place alone: one stands for all
            for call in body:
                yield _Loop(spot[:-1], keyed, first, width, (replace(call, paths=call.paths[:1]),))


def _common_layer(call: _Call) -> tuple[_Path | None, int]:
    """The layer that all paths are in, or the first of consecutive layers, one for each path."""
    places = [next((i for i, n in enumerate(p) if _is_place(n)), None) for p in call.paths]
    at = places[0]
    if at is None or any(place != at for place in places):
        return None, 1
    spot, rest = call.paths[0][: at + 1], call.paths[0][at + 1 :]
    if all(path[: at + 1] == spot for path in call.paths):
        return spot, 1
    keyed, first, width = spot[-1].startswith('"'), int(spot[-1].strip('"')), len(call.paths)
    loop = _Loop(spot[:-1], keyed, first, width, ())
    alike = all(path == (*loop.at(step), *rest) for step, path in enumerate(call.paths))
    return (spot, width) if alike else (None, 1)


def pattern(name: str) -> str:
    """A name with `*` for every number, as transformers and torchtitan write them."""
    return ".".join("*" if _is_index(part) else part for part in name.split("."))


def _is_index(name: str) -> bool:
    """Whether a component of a name is a number, as PyTorch writes it."""
    return str(read_whole(name)) == name


def _is_place(part: str) -> bool:
    """Whether a component of a path is an index of a list, or a key in quotes."""
    return _is_index(part.strip('"'))


def patterns(names: Collection[str]) -> list[str]:
    """Patterns of names, once each."""
    return list(dict.fromkeys(map(pattern, names)))


def by_pattern(names: Collection[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """Names together with those of the same pattern."""
    return groupby(sorted(names, key=pattern), key=pattern)


def _lengths(modules: Collection[str]) -> dict[str, set[int]]:
    """Lengths of all lists that have no gaps, by the pattern of their names."""
    places: dict[str, set[int]] = defaultdict(set)
    for name in modules:
        parts = name.split(".")
        for place, part in enumerate(parts):
            if _is_index(part):
                places[".".join(parts[:place])].add(int(part))
    lengths = {name: max(of) + 1 if max(of) < len(of) else 0 for name, of in places.items()}
    return {rule: {lengths[name] for name in same} for rule, same in by_pattern(places)}


def bottom_up(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Order units as `fully_shard` requires: units inside another come before it."""
    _check(units)
    inside: dict[str, list[int]] = defaultdict(list)
    for place, unit in enumerate(units):
        for name in unit.modules:
            for cut in (at for at, letter in enumerate(name) if letter == "."):
                inside[name[:cut]].append(place)
    ordered: dict[int, Unit] = {}
    begun: set[int] = set()

    def visit(place: int) -> None:
        if place in ordered:
            return
        if place in begun:
            problem = "holds a unit that in turn holds a part of it"
            raise InputError.of("units", units[place].modules, problem, "wrapping")
        begun.add(place)
        for name in units[place].modules:
            for inner in inside.get(name, ()):
                visit(inner)
        ordered[place] = units[place]

    for place in range(len(units)):
        visit(place)
    return tuple(ordered.values())


def _check(units: Sequence[Unit]) -> None:
    """Refuse units that no call can express: no modules, the root, a module twice."""
    seen: set[str] = set()
    for unit in units:
        if not unit.modules:
            raise InputError.of("units", unit.modules, "a unit needs modules", "wrapping")
        for name in unit.modules:
            _check_name("units", name)
            if name in seen:
                raise InputError.of(
                    "units", name, "is in more than one unit; FSDP2 shards it once", "wrapping"
                )
            seen.add(name)


def _check_name(field: str, name: str) -> None:
    """Refuse a name that names no module below the root."""
    if not all(name.split(".")):
        raise InputError.of(field, name, "must name a module below the root", "wrapping")


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
    mesh = f'({setting.shards},), mesh_dim_names=("shard",)'
    if setting.replicas > 1:
        mesh = f'({setting.replicas}, {setting.shards}), mesh_dim_names=("replicate", "shard")'
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

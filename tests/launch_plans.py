"""Random plans that a launcher can run, for round trips of its files."""

import random
from collections.abc import Collection, Iterator
from typing import Any

from launcher_draws import MODELS, NVIDIA, draw
from launcher_rules import stack_name
from launcher_rules.plan import plan_of
from shardwise import InputError, Model, Stack, Strategy, System
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.writing import refused
from shardwise.parallel.constraints import CONSTRAINTS


def is_legal(model: Model, system: System, strategy: Strategy) -> bool:
    """Whether nothing refuses a strategy; last come the rules of software, which most break."""
    table = Table.of(model, [strategy])
    return not any(one.violated(model, system, table)[0] for one in reversed(CONSTRAINTS))


def legal_plans(launcher: Launcher, count: int, *, pipelines: bool = True) -> Iterator[LaunchPlan]:
    """Plans that the launcher's stack runs and that its files can hold."""
    source = random.Random(launcher.name)  # noqa: S311 - of tests
    models = {name: Model.load(name) for name in MODELS}
    systems = {name: System.load(name) for name in NVIDIA}
    found = 0
    while found < count:
        model, system = models[source.choice(MODELS)], systems[source.choice(NVIDIA)]
        row = draw(source, launcher.stack)
        if row["pp"] > 1 and not pipelines:
            continue
        if source.random() < 1 / 2 and row["tp"] > 1:
            row["tp_exchange"] = source.choice(["all_reduce", "rs_ag"])
        if row["cp"] > 1:
            row["cp_exchange"] = source.choice(["ring", "all_gather", "all_to_all"])
        if source.random() < 1 / 8:
            row |= {"recompute": "full", "offload_activations": True, "offload_parts": None}
        if found % 4 == 1:  # drawn apart, so that all else is as without
            apart = random.Random(repr(sorted(row.items())))  # noqa: S311 - of tests
            name = "dtype" if found % 8 == 1 else apart.choice(TYPES)
            row[name] = apart.choice(COLUMNS[name].words)
        try:
            strategy = Strategy(**row).resolved(model)
        except InputError:
            continue
        if not is_legal(model, system, strategy):
            continue
        if any(launcher.faults(model, strategy)) or any(refused(launcher, strategy)):
            continue
        found += 1
        yield LaunchPlan(model=model, system=system, strategy=strategy, comments=("a comment",))


def with_effect(model: Model, fields: dict[str, Any], but: Collection[str]) -> dict[str, Any]:
    """Fields of a strategy that decide something, without some."""
    plan = plan_of(model, fields, "main")
    idle = {
        "recompute_parts": fields["recompute"] != "selective",
        "offload_parts": not fields["offload_activations"],
        "sequence_parallel": True,  # tp_exchange says the same
        "ep": not plan.experts,
        "etp": not plan.experts,
        "expert_overlap": not plan.experts,
        "dp_shard": fields["dp_shard"] == fields["dp"],
        "placement": plan.orders_as("tp-cp-dp-pp"),
        "quantized_weights": fields["quantization"] == "none",
    }
    stack = Stack.load(stack_name(fields))
    for name in ("cuda_graphs", "compile", "expert_kernel"):  # two words for one thing
        fields |= {name: "stack"} if fields[name] == getattr(stack, name) else {}
    return {
        name: value
        for name, value in fields.items()
        if name not in but and not idle.get(name, False) and not plan.is_idle(name)
    }


TYPES = ("weight_dtype", "master_dtype", "moment_dtype", "gradient_dtype", "reduce_dtype")
_NAMED = {("adamw", "bf16"): "adamw-bf16", ("adamw", "fp8"): "adamw-8bit"}


def with_types(fields: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """The fields, with the types in effect, which a file may say in one of several ways."""
    types = {name: str(strategy.in_effect(name)) for name in TYPES}
    if strategy.dtype == "fp32":  # they are fp32 then
        types |= dict.fromkeys(TYPES, "fp32") | {"moment_dtype": types["moment_dtype"]}
    kind = (str(strategy.optimizer), types["moment_dtype"])
    types["optimizer"] = _NAMED.get(kind, kind[0])
    if types["optimizer"] in ("adamw-bf16", "adamw-8bit"):
        types["moment_dtype"] = "by name"
    if types["reduce_dtype"] == types["gradient_dtype"]:
        types["reduce_dtype"] = "gradient"
    stack = fields.get("stack")
    if isinstance(stack, dict) and stack.keys() <= {"base", "gradient_dtype"}:
        types["stack"] = stack["base"]
    elif isinstance(stack, dict):
        types["stack"] = {name: value for name, value in stack.items() if name not in TYPES}
    return fields | {name: value for name, value in types.items() if name in fields}

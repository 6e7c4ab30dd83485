"""Plans drawn for Megatron-Core's launchers, and what of a strategy has an effect."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from launch_plans import is_legal, with_types
from launcher_draws import MODELS, NVIDIA, draw
from shardwise import Model, Strategy, System
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.megatron.core_strategy import order_of, overlaps_tp
from shardwise.launchers.registry import LAUNCHERS
from shardwise.launchers.writing import refused
from shardwise.parallel.pipeline_layout import layers_on_ranks

ASSUMED = ("document_len", "expert_imbalance")
"""What a plan assumes of its data: no launcher sets it."""


def legal_plans(
    stack: str, number: int, seed: int, faults: Callable[[Model, Strategy], Any]
) -> Iterator[LaunchPlan]:
    """So many plans that the stack can run and the launcher expresses."""
    drawn, found = random.Random(seed), 0  # noqa: S311
    launcher = next(one for one in LAUNCHERS if one.stack == stack)
    while found < number:
        model, system = Model.load(drawn.choice(MODELS)), System.load(drawn.choice(NVIDIA))
        try:
            strategy = Strategy(**draw(drawn, stack)).resolved(model)
        except InputError:
            continue
        problems = (*faults(model, strategy), *refused(launcher, strategy))
        if is_legal(model, system, strategy) and not problems:
            found += 1
            yield LaunchPlan(model=model, system=system, strategy=strategy)


def effective(model: Model, strategy: Strategy) -> dict[str, Any]:
    """Fields of a strategy, without those that have no effect, and one word for equal ones."""
    one = strategy.resolved(model)
    fields = one.to_dict()
    sends = model.has_experts and one.ep * one.etp > 1
    split = one.tp > 1 and one.tp_exchange == "rs_ag"
    unset = {
        "attention": True,  # the model has it
        "tp_exchange": one.tp == 1,
        "sequence_parallel": True,
        "tp_overlap": not split,
        "tp_regather": not split,
        "cp_exchange": one.cp == 1,
        "schedule": one.pp == 1,
        "etp": not model.has_experts,
        "ep": not model.has_experts,
        "dispatcher": not sends,
        "expert_capacity": not model.has_experts,
        "expert_overlap": not sends,
        "recompute_parts": one.recompute != "selective",
        "recompute_layers": one.recompute == "none",
        "dp_shard": not one.zero or one.dp_shard == one.dp,
        "fsdp_reshard": one.zero < 3,
        "fsdp_prefetch": one.zero < 3,
        "grad_sync": True,  # Megatron-FSDP reduces in every backward pass
        "offload_parts": not one.offload_activations,
        "any_software": True,
        **dict.fromkeys(("first_stage_layers", "last_stage_layers"), True),
        **dict.fromkeys(("embedding_as_layer", "loss_as_layer"), True),
        **dict.fromkeys(ASSUMED, True),
    }
    fields["stage_layers"] = layers_on_ranks(model.depth, Table.of(model, [one]), 0)
    fields["placement"] = order_of(one)
    if one.loss == one.loaded_stack().loss:
        fields["loss"] = "stack"
    for name in ("cuda_graphs", "compile", "expert_kernel"):  # two words for one thing
        if fields[name] == getattr(one.loaded_stack(), name):
            fields[name] = "stack"
    usual = {"attn", "mlp", "moe_router"} if model.has_experts else {"attn", "mlp"}
    if {*(one.graph_scope or ()), "mlp"} == usual:
        fields["graph_scope"] = None
    if split and not overlaps_tp(one):  # no option stops what overlaps in backward
        plain = one.loaded_stack().model_copy(update={"tp_hidden": 0.0})
        fields |= {"tp_overlap": "stack", "stack": plain.to_fields()}
    fields = with_types(fields, one)
    return fields | {name: None for name, without in unset.items() if without}


def architecture(model: Model) -> dict[str, Any]:
    """What a model is, layer by layer."""
    fields = model.to_dict()
    for name in ("name", "description", "sources", "layers", "interleave", "seq_len", "left_out"):
        del fields[name]
    fields["norm_bias"] = model.norm == "layernorm"
    layers = [model.layers[kind].to_dict() for kind in model.order]
    for layer in layers:
        del layer["count"]
        attention = layer["attention"]
        if attention is not None:
            attention["v_head_dim"] = attention["v_head_dim"] or attention["head_dim"]
    return fields | {"every_layer": layers}

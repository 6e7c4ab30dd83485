"""What the Hugging Face Trainer with accelerate's FSDP2 refuses."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher_rules.plan import (
    ALWAYS,
    NO_STAGES,
    NO_TIERS,
    NOWHERE,
    ON_HOST,
    Abilities,
    Plan,
    ability_faults,
    any_of,
    expert_degree_faults,
    grid_faults,
    plan_of,
)

_HUGGINGFACE: Abilities = {
    **NOWHERE,
    **ON_HOST,
    **NO_TIERS,
    **NO_STAGES,
    "schedule": any_of("1f1b"),
    "tp_exchange": any_of("all_reduce", "rs_ag"),
    "tp_overlap": any_of("stack", "none"),
    "cp_exchange": {"ring": (1, 10), "all_gather": (1, 10), "all_to_all": (1, 12)},
    "zero": any_of(0, 2, 3),
    "fsdp_prefetch": any_of(1),
    "dp_overlap": any_of(True),
    "etp": any_of(1),
    "expert_capacity": any_of(None),
    "dispatcher": any_of("all_to_all"),
    "dispatch_dtype": any_of("dtype"),
    "expert_overlap": any_of(False),
    "expert_kernel": {"stack": ALWAYS, "loop": ALWAYS, "grouped": (1, 12)},
    "cuda_graphs": any_of("stack", "none"),
    "compile": any_of("stack", "none", "layers", "whole"),
    "quantization": any_of("none", "fp8_tensor"),
    "recompute": any_of("none", "full"),
    "recompute_layers": any_of(None),
    "loss": {
        **any_of("stack", "eager", "fused_linear", "cut"),
        **dict.fromkeys(("chunked", "chunked_recompute"), (1, 14)),  # Unsloth and TRL of 2026
    },
    "offload_activations": any_of(False),
    # adamw-bf16 is AdamW of 16-bit weights, whose state has their type.
    "optimizer": any_of("adamw", "adamw-bf16", "adamw-8bit", "adafactor", "sgd", "sgd-momentum"),
}


def _huggingface_sharding(plan: Plan) -> Iterator[str]:
    shard = (plan["dp_shard"] or plan["dp"]) if plan["zero"] else 1
    is_mesh = plan["tp"] > 1 or plan["cp"] > 1
    if is_mesh and plan.release < (1, 10):
        yield "tp, cp: not before release 1.10"
    if is_mesh and plan["dp"] > shard == 1:
        yield "dp_shard: tp or cp with replicas needs shards"
    if plan["tp"] > 1 and plan.experts:  # plans of PyTorch's styles have none for experts
        yield "tp: not with experts"
    if plan["cp"] > 1 and plan["cp_exchange"] != "all_to_all" and plan["zero"] < 2:
        yield "cp: needs zero 2 or 3 (FSDP2)"
    if plan["ep"] > 1 and plan.release < (1, 10):  # styles of experts in tp_plan are younger
        yield "ep: not before release 1.10"
    for _, groups in plan.heads:  # colwise plans of key and value projections
        if groups % plan["tp"] and not plan.is_latent:
            yield f"tp {plan['tp']}: must divide {groups} key-value heads"
    if plan["ep"] > plan["dp"]:
        yield f"ep {plan['ep']}: at most dp {plan['dp']}"
    if not plan.orders_as("tp-cp-dp-pp"):
        yield f"placement {plan['placement']}: only tp-cp-dp"


def _huggingface_weights(plan: Plan) -> Iterator[str]:
    if plan["quantized_weights"] and plan.release < (1, 4):  # the recipe of torchao
        yield "quantized_weights: not before release 1.4"
    if plan["quantized_weights"] and plan["quantization"] != "fp8_tensor":
        yield "quantized_weights: of fp8_tensor only"
    if plan["training"] and plan["offload_weights"] != plan["offload_optimizer"]:
        yield "offload_weights, offload_optimizer: both or none"
    if plan["offload_weights"] and (plan["zero"] < 2 or plan["dp"] * plan["cp"] == 1):
        yield "offload_weights: needs zero 2 or 3"


def huggingface_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of accelerate's FSDP2 and the Trainer that a plan breaks; a release of accelerate."""
    plan = plan_of(model, strategy, release)
    return [
        *ability_faults(plan, _HUGGINGFACE),
        *grid_faults(plan),
        *expert_degree_faults(plan),
        *_huggingface_sharding(plan),
        *_huggingface_weights(plan),
    ]

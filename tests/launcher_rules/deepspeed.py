"""What DeepSpeed refuses."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher_rules.plan import (
    NO_TIERS,
    NOWHERE,
    Abilities,
    Plan,
    ability_faults,
    any_of,
    expert_degree_faults,
    grid_faults,
    plan_of,
)

_DEEPSPEED: Abilities = {
    **NOWHERE,
    **NO_TIERS,
    "schedule": any_of("1f1b"),
    "vpp": any_of(1),
    "embedding_as_layer": any_of(False),
    "loss_as_layer": any_of(False),
    "tp_exchange": {"all_reduce": (0, 16, 4)},
    "tp_overlap": any_of("stack", "none", "pipe"),
    "cp_exchange": {"all_to_all": (0, 12)},
    "dispatcher": any_of("all_to_all"),
    "dispatch_dtype": any_of("dtype"),
    "expert_overlap": any_of(False),
    "cuda_graphs": any_of("stack", "none"),
    "compile": any_of("stack", "none", "layers", "whole"),
    "grad_sync": any_of("stack", "micro_batch"),
    "loss": {
        **any_of("stack", "eager", "fused_linear"),
        **dict.fromkeys(("cut", "chunked_recompute"), (0, 19)),  # trainers of that year
    },
    "quantization": any_of("none"),
    "quantized_weights": any_of(False),
    "fused_activation": any_of(False),
    "cpu_optimizer": {**any_of("stack", "none", "fused", "unfused"), "superoffload": (0, 18)},
    "recompute_layers": any_of(None),  # checkpoints are of every layer, or every so many
}


def _deepspeed_degrees(plan: Plan) -> Iterator[str]:
    cp = plan["cp"]
    if plan["pp"] > 1 and plan["zero"] > (1 if plan.is_sharded else 2):
        yield "pp: with zero 0 and 1 only"
    for heads, groups in plan.heads:
        if heads % cp or (groups % cp and cp % groups):
            yield f"cp {cp}: must divide {heads} heads, and {groups} key-value heads or they it"
    if plan["seq_len"] % cp:
        yield f"cp {cp}: must divide seq_len {plan['seq_len']}"
    if not (plan.orders_as("tp-cp-dp-pp") or plan.orders_as("tp-cp-pp-dp")):
        yield f"placement {plan['placement']}: cannot"
    if plan["dp_shard"] not in (None, plan["dp"]) and plan["zero"] != 3:
        yield "dp_shard: with zero 3 only (MiCS)"
    unsharded = plan["zero"] == 0 and plan.is_sharded
    if plan["optimizer"] == "adamw-bf16" and (unsharded or plan.release < (0, 18, 4)):
        yield "optimizer adamw-bf16: with zero 1 to 3, from release 0.18.4"


def _deepspeed_experts(plan: Plan) -> Iterator[str]:
    has_auto = plan.release >= (0, 19, 5)
    if plan.experts and plan["etp"] > 1:  # auto_ep_folding.py: validate_folding_global
        yield f"etp {plan['etp']}: cannot"
    if plan.experts and plan["tp"] > 1 and plan["ep"] == 1:
        yield "tp: of experts with AutoEP only"
    if not plan.experts or plan["ep"] == 1:
        return
    offloads = plan["offload_weights"] or plan["offload_optimizer"]
    if plan["tp"] > 1 and (plan["pp"] > 1 or plan["cp"] > 1 or offloads):
        yield "ep: with tp not with pp, cp or offload"
    if plan["dp"] % plan["ep"]:
        yield f"ep {plan['ep']}: must divide dp {plan['dp']}"
    if plan["zero"] == 3:
        if not has_auto:
            yield "ep: not with zero 3 before release 0.19.5"
        if plan["tp"] > 1 or plan["cp"] > 1 or plan["dp_shard"] not in (None, plan["dp"]):
            yield "ep: with zero 3 not with tp, cp or dp_shard"


def _deepspeed_memory(plan: Plan) -> Iterator[str]:
    if plan["recompute"] == "selective":
        yield "recompute selective: cannot"
    if plan["offload_weights"] and plan["zero"] != 3 and plan.is_sharded:
        yield "offload_weights: with zero 3 only"
    if plan["offload_optimizer"] and plan["zero"] == 0 and plan.is_sharded:
        yield "offload_optimizer: with zero 1 to 3"
    early = plan["cpu_optimizer"] == "superoffload"
    if (plan["offload_nvme"] or early) and plan["zero"] != 3 and plan.is_sharded:
        yield "offload_nvme, superoffload: with zero 3 only"
    if plan["offload_nvme"] and early:
        yield "superoffload: not with offload_nvme"
    if plan.offloaded_parts:
        yield "offload_parts: cannot"
    if plan.offloads_all_activations and plan["recompute"] != "full":
        yield "offload_activations: of checkpoints, with recompute full"


def deepspeed_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of DeepSpeed that a plan breaks."""
    plan = plan_of(model, strategy, release)
    return [
        *ability_faults(plan, _DEEPSPEED),
        *grid_faults(plan),
        *expert_degree_faults(plan),
        *_deepspeed_degrees(plan),
        *_deepspeed_experts(plan),
        *_deepspeed_memory(plan),
    ]

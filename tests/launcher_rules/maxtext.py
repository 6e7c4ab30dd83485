"""What MaxText refuses."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher_rules.plan import (
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

_MAXTEXT: Abilities = {
    **NOWHERE,
    **ON_HOST,
    "first_stage_layers": any_of(None),
    "last_stage_layers": any_of(None),
    "stage_layers": any_of(None),
    "embedding_as_layer": any_of(False),
    "loss_as_layer": any_of(False),
    "tp_exchange": any_of("all_reduce", "rs_ag"),
    "tp_overlap": any_of("stack", "none", "ring"),
    "zero": any_of(0, 1, 3),
    "fsdp_reshard": any_of(True),
    "fsdp_prefetch": any_of(1),
    "grad_sync": any_of("stack", "micro_batch"),
    "dispatcher": any_of("all_to_all"),
    "expert_kernel": any_of("stack", "grouped"),
    "cuda_graphs": any_of("stack", "none"),
    "compile": any_of("stack", "whole"),
    "expert_overlap": any_of(False),  # what XLA overlaps is no option
    "dispatch_dtype": any_of("dtype"),
    "quantization": any_of("none", "fp8_tensor"),
    "quantized_weights": any_of(False),
    "recompute_layers": any_of(None),
    "loss": any_of("stack", "eager"),
    "fused_activation": any_of(False),
    "optimizer": any_of("adamw", "adamw-bf16", "muon", "sgd", "sgd-momentum"),
    "lora_rank": any_of(None),
    "task": any_of("pretrain"),
    "checkpoint_place": any_of("device"),
    "frozen": any_of(()),
}


def _maxtext_stages(plan: Plan) -> Iterator[str]:
    pp, vpp = plan["pp"], plan["vpp"]
    if pp > 1:
        if plan["schedule"] != "gpipe":
            yield f"schedule {plan['schedule']}: all forward passes come first"
        if plan.micro_batches % pp:
            yield f"pp: {plan.micro_batches} micro-batches are no multiple of {pp}"
    if plan.depth % (pp * vpp):
        yield f"pp {pp}: must divide {plan.depth} layers"
    if "every_other" in plan.parts:
        yield "recompute_parts every_other: cannot"
    if plan.experts and plan["etp"] != plan["tp"]:
        yield f"etp {plan['etp']}: experts are split as tp {plan['tp']}"


def maxtext_faults(model: Any, strategy: Mapping[str, Any], release: str) -> list[str]:
    """Rules of MaxText that a plan breaks."""
    plan = plan_of(model, strategy, release)
    return [
        *ability_faults(plan, _MAXTEXT),
        *grid_faults(plan),
        *expert_degree_faults(plan),
        *_maxtext_stages(plan),
    ]

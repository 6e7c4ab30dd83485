"""What torchtitan refuses."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher_rules.plan import (
    ALWAYS,
    NO_TIERS,
    NOWHERE,
    ON_HOST,
    Abilities,
    Plan,
    Release,
    ability_faults,
    any_of,
    expert_degree_faults,
    grid_faults,
    part_faults,
    plan_of,
)

_MAIN: Release = (0, 3)  # since 9810191bb of 2026-02-23, after v0.2.2
_TITAN: Abilities = {
    **NOWHERE,
    **ON_HOST,
    **NO_TIERS,
    "schedule": any_of("1f1b", "gpipe", "interleaved", "zb-v"),
    "tp_exchange": {"rs_ag": ALWAYS, "all_reduce": _MAIN},
    "tp_overlap": any_of("stack", "none", "ring"),
    "zero": any_of(0, 2, 3),
    "fsdp_prefetch": any_of(1),
    "dp_overlap": any_of(True),
    "recompute_layers": any_of(None),
    "loss": {**any_of("stack", "eager", "compiled", "loss_parallel"), "chunked": _MAIN},
    "quantized_weights": any_of(False, True),
    "dtype": any_of("bf16", "fp32"),
    "optimizer": {"adamw": ALWAYS, "adamw-bf16": _MAIN, "muon": _MAIN},
    "lora_rank": any_of(None),
    "task": any_of("pretrain"),
    "checkpoint_place": any_of("device"),
    "frozen": any_of(()),
    "fused_activation": any_of(False),
    "offload_activations": any_of(False),
    "expert_overlap": any_of(False),
    "expert_kernel": any_of("stack", "grouped"),
    "cuda_graphs": {"stack": ALWAYS, "none": ALWAYS, "full": _MAIN},
    "compile": {"stack": ALWAYS, "none": ALWAYS, "layers": ALWAYS, "loss": (0, 2)},
    "dispatch_dtype": any_of("dtype"),
    "dispatcher": {"all_to_all": ALWAYS, "deepep": (0, 2, 1), "hybridep": _MAIN},
}


def _titan_degrees(plan: Plan) -> Iterator[str]:
    tp, cp = plan["tp"], plan["cp"]
    for heads, groups in plan.heads:
        if heads % tp or groups % tp:
            yield f"tp {tp}: must divide {heads} heads and {groups} key-value heads"
    multiple = (tp if plan["tp_exchange"] == "rs_ag" else 1) * (2 * cp if cp > 1 else 1)
    if plan["micro_batch_size"] * plan["seq_len"] % multiple:
        yield f"seq_len: tokens of a micro-batch must be a multiple of {multiple}"
    if not plan.orders_as("tp-cp-dp-pp"):
        yield f"placement {plan['placement']}: only tp-cp-dp-pp"


def _titan_shards(plan: Plan) -> Iterator[str]:
    tp, cp, dp = plan["tp"], plan["cp"], plan["dp"]
    sync = "step" if plan["pp"] > 1 else "micro_batch"
    if plan["zero"] > 1 and plan["grad_sync"] not in ("stack", sync):
        yield f"grad_sync {plan['grad_sync']}: only {sync}"
    if plan["zero"] == 0 and cp > 1:
        yield "zero 0: cp shards weights"
    if plan["zero"] == 0 and dp > 1 and (tp > 1 or plan["pp"] > 1):
        yield "zero 0: DDP runs with no other parallelism"  # v0.2.2, llama3/infra/parallelize.py
    shard = 1 if plan["zero"] == 0 else plan["dp_shard"] or dp
    if dp % shard:
        yield f"dp_shard {shard}: must divide dp {dp}"
    if plan.experts:
        yield from _titan_experts(plan, shard)


def _titan_experts(plan: Plan, shard: int) -> Iterator[str]:
    tp, ep, etp = plan["tp"], plan["ep"], plan["etp"]
    has_etp = (0, 2) <= plan.release < _MAIN
    alone = ep == 1 and plan.release >= (0, 2)
    if not alone and etp not in ((1, tp) if has_etp else (1,)):
        yield f"etp {etp}: experts are not split inside"
    if alone and etp != tp:  # v0.2.2 and v0.3.0, apply_moe_ep_tp: the tp mesh alone
        yield f"etp {etp}: experts are split like tp {tp} without ep"
    if ep > 1 and etp > 1 and plan.dispatcher == "deepep":
        yield "etp: not with deepep"  # v0.2.2, deepseek_v3/infra/parallelize.py
    if ep > 1 and shard * plan["cp"] * tp % (ep * etp):
        yield f"ep {ep}: must divide dp_shard x cp x tp"
    if ep > 1 and plan.release < (0, 2):
        yield "ep: not before release 0.2"


def _titan_stages(plan: Plan, compiled: bool) -> Iterator[str]:
    schedule, vpp, pp = plan["schedule"], plan["vpp"], plan["pp"]
    if schedule in ("1f1b", "gpipe") and vpp > 1:
        yield f"vpp: {schedule} has one stage per rank"
    if schedule == "interleaved" and (vpp == 1 or pp == 1):
        yield "schedule interleaved: needs pp > 1 and vpp > 1"
    rounds = max(1, plan.micro_batches // pp)
    if schedule == "interleaved" and plan.micro_batches % rounds:  # PyTorch's schedules.py
        yield f"vpp: {plan.micro_batches} micro-batches are not {rounds} equal rounds"
    if schedule == "zb-v" and compiled:
        yield "schedule zb-v: not with torch.compile"
    if pp > 1 and plan.model.tied_embeddings:
        yield "pp: not with tied embeddings"
    if plan["stage_layers"] is not None and plan.release < (0, 1):
        yield "stage_layers: not before release 0.1"  # pipeline_parallel_split_points


def _titan_recompute(plan: Plan) -> Iterator[str]:
    yield from part_faults(plan, {"every_other": ALWAYS})
    if plan["cp"] > 1:
        known = {"all_gather"} if plan.release >= _MAIN else {"all_gather", "ring"}
        if plan["cp_exchange"] not in known:
            yield f"cp_exchange {plan['cp_exchange']}: cannot"
    if plan["training"] and plan["offload_weights"] != plan["offload_optimizer"]:
        yield "offload_weights, offload_optimizer: both or none"
    if plan["offload_weights"] and (plan["zero"] < 2 or plan["dp"] * plan["cp"] == 1):
        yield "offload_weights: needs zero 2 or 3"


def _titan_precision(plan: Plan, compiled: bool) -> Iterator[str]:
    is_main, recipe = plan.release >= _MAIN, plan["quantization"]
    own = ("fp8_row", "mxfp8", "nvfp4") if is_main else ("fp8_tensor", "fp8_row", "mxfp8")
    recipes = ("none", *own)
    if recipe not in recipes:
        yield f"quantization {recipe}: cannot"
    if recipe == "mxfp8" and plan.release < (0, 2):
        yield "quantization mxfp8: not before release 0.2"
    is_gathered = plan["zero"] >= 2 or not plan.is_sharded
    if plan["quantized_weights"] and (is_main or recipe != "fp8_tensor" or not is_gathered):
        yield "quantized_weights: of fp8_tensor with FSDP, up to release 0.2"
    if plan["tp"] > 1 and plan["loss"] == "eager":  # unless loss parallelism is off
        yield "loss eager: splits the vocabulary"
    if plan["tp"] > 1 and plan["tp_overlap"] == "ring" and not compiled:
        yield "tp_overlap ring: needs torch.compile"
    if plan["tp"] > 1 and plan["tp_overlap"] == "ring" and plan["tp_exchange"] != "rs_ag":
        yield "tp_overlap ring: needs tp_exchange rs_ag"
    if plan.experts and plan["expert_capacity"] is not None and plan.dispatcher != "hybridep":
        yield "expert_capacity: hybridep only"


def torchtitan_faults(
    model: Any, strategy: Mapping[str, Any], release: str, *, compiled: bool = True
) -> list[str]:
    """Rules of torchtitan that a plan breaks; `compiled` where torch.compile is on."""
    plan = plan_of(model, strategy, release)
    if plan["compile"] != "stack":
        compiled = plan["compile"] == "layers"
    abilities = dict(_TITAN)
    if plan.release >= _MAIN:
        del abilities["lora_rank"]
        del abilities["task"]
    return [
        *ability_faults(plan, abilities),
        *grid_faults(plan),
        *expert_degree_faults(plan),
        *_titan_degrees(plan),
        *_titan_shards(plan),
        *_titan_stages(plan, compiled),
        *_titan_recompute(plan),
        *_titan_precision(plan, compiled),
    ]

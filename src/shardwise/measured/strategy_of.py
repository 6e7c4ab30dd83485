"""What a measured run says of how the model was run, as a `Strategy`."""

import math
import re
from typing import Any

from shardwise.measured.refused import NotModelledError
from shardwise.measured.remat import is_xla, policy_of, remat_fields
from shardwise.measured.run import Run
from shardwise.measured.software import newest, truth
from shardwise.model import Model
from shardwise.stack import Stack
from shardwise.strategy import Strategy
from shardwise.system import System
from shardwise.words import ZERO_WEIGHTS

__all__ = ["strategy_of"]

_PARTS = {
    "core_attn": ("core_attention",),
    "layernorm": ("attention_norm", "mlp_norm"),
    "mla_up_proj": ("mla_up",),
    "moe_act": ("activation",),
    "mlp": ("mlp",),
    "moe": ("moe",),
    "shared_experts": (),
}


def strategy_of(
    run: Run, model: Model, system: System, stack: Stack, assumed: list[str]
) -> Strategy:
    """Translate degrees, batch, precision, recompute, sharding and schedule."""
    p = run.parallelism
    gpus = run.hardware.count
    if gpus is None:
        raise NotModelledError("hardware.count is not told")
    tp, pp, cp = p.tp or 1, p.pp or 1, p.cp or 1
    world, rest = tp * pp * cp, 0
    dp, rest = divmod(gpus, world)
    if rest:
        raise NotModelledError(f"{gpus} accelerators are no multiple of tp x pp x cp, {world}")
    if run.global_batch is None:
        raise NotModelledError("global_batch is not told")
    fields: dict[str, Any] = {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": p.ep or 1,
        "etp": p.etp or 1,
        "global_batch_size": run.global_batch,
        "seq_len": run.model.seq_len,
        "stack": stack,
    }
    fields |= _batch(run, dp, assumed)
    fields |= _precision(run, stack, assumed)
    fields |= _sharding(run, dp, system)
    fields |= _exchanges(run, tp)
    fields |= _recompute(run, model, stack, assumed)
    fields |= _stages(run, model, pp, assumed)
    fields |= _tuning(run)
    fields |= _experts(run, model)
    return Strategy.validated(fields, source=run.id)


def _batch(run: Run, dp: int, assumed: list[str]) -> dict[str, Any]:
    assert run.global_batch is not None  # noqa: S101 - checked before
    # MaxText and Pax print sequences for each accelerator, and accumulate no gradients.
    size = run.global_batch // dp if is_xla(run) else run.micro_batch
    if size is None:
        size = 1
        assumed.append("micro_batch 1")
    if run.global_batch % (dp * size):
        raise NotModelledError(
            f"global_batch {run.global_batch} is no multiple of {dp} replicas x micro_batch {size}"
        )
    return {"micro_batch_size": size}


def _precision(run: Run, stack: Stack, assumed: list[str]) -> dict[str, Any]:
    text = (run.precision or "").lower()
    fields: dict[str, Any] = {"dtype": "fp16" if text.startswith("fp16") else "bf16"}
    if not text:
        assumed.append("bf16")
    if "nvfp4" in text or "fp4" in text:
        fields["quantization"] = "nvfp4"
    elif "mxfp8" in text or "fp8_mx" in text:
        fields["quantization"] = "mxfp8"
    elif "block" in text:
        fields["quantization"] = "fp8_block"
    elif "fp8" in text or "float8" in text:
        fields["quantization"] = "fp8_tensor"
        if "ambiguous" in text:
            assumed.append("fp8 scaled by tensor")
        if "megatron" in stack.name or "nemo" in stack.name:
            fields["quantized_weights"] = True
    return fields


def _sharding(run: Run, dp: int, system: System) -> dict[str, Any]:
    p = run.parallelism
    shard = p.fsdp_shard
    zero3 = p.zero_stage == ZERO_WEIGHTS or bool(run.features.get("use_megatron_fsdp"))
    if shard is not None and (shard > 1 or shard == -1):
        zero3 = True
    if zero3:
        fields: dict[str, Any] = {"zero": ZERO_WEIGHTS}
        if is_xla(run) and (shard is None or shard < 1 or p.dp is None):
            shard = _slice(run, dp, system)
        if shard is not None and 1 < shard < dp and dp % shard == 0:
            fields["dp_shard"] = shard
        if (p.pp or 1) > 1:  # PyTorch's FSDP keeps the weights of a stage from one pass to the next
            fields["fsdp_reshard"] = False
        return fields
    stage = p.zero_stage
    if stage is None:
        stage = 1 if p.distributed_optimizer else 0
    fields = {"zero": int(stage)}
    group = p.extra.get("zero1_group")
    if group and group < dp and dp % group == 0:
        fields["dp_shard"] = group
    return fields


def _slice(run: Run, dp: int, system: System) -> int | None:
    """Replicas of a slice, which share shards where a recipe of MaxText names no other number."""
    chips = system.network[0].domain
    return math.gcd(dp, chips // (run.parallelism.tp or 1)) if chips else None


def _exchanges(run: Run, tp: int) -> dict[str, Any]:
    features = run.features
    fields: dict[str, Any] = {}
    if tp > 1:
        # XLA splits the residual stream over the ranks, as sequence parallelism does.
        fields["sequence_parallel"] = bool(run.parallelism.sp) or is_xla(run)
    if "disabled" in str(features.get("overlap") or "") or features.get("dp_overlap") is False:
        fields["dp_overlap"] = False
    if "cuda_launch_blocking" in features or "no gradient bucketing" in (run.notes or ""):
        fields["dp_overlap"] = False
    if "a2a" in str(features.get("cp_comm_type") or ""):
        fields["cp_exchange"] = "all_to_all"
    if (
        truth(features.get("moe_a2a_overlap"))
        or truth(features.get("overlap_moe_expert_parallel_comm"))
        or (run.model.experts and newest(run))
    ):
        fields["expert_overlap"] = True
    return fields


def _recompute(run: Run, model: Model, stack: Stack, assumed: list[str]) -> dict[str, Any]:
    if is_xla(run):
        return _remat(run, assumed)
    told = run.recompute or {}
    modules = re.findall(r"\w+", str(told.get("recompute_modules") or ""))
    parts = {part for m in modules for part in _PARTS.get(m, ())}
    text = str(told.get("granularity") or told.get("recompute_granularity") or "").lower()
    number = str(told.get("recompute_num_layers"))
    layers = int(number) if number.isdigit() else None
    if "full" in text and "flash" not in text:
        return {"recompute": "full"} | ({"recompute_layers": layers} if layers else {})
    if parts:
        return {"recompute": "selective", "recompute_parts": tuple(sorted(parts))}
    if "op-level" in text or "selective op" in text:
        return {"recompute": "selective", "recompute_parts": ("every_other",)}
    if "selective" in text and "no-op" not in text:
        if "every 2nd" in text:
            return {"recompute": "full", "recompute_layers": math.ceil(model.depth / 2)}
        if stack.attention == "unfused" or "core" in text:
            return {"recompute": "selective", "recompute_parts": ("core_attention",)}
    if not told or "unknown" in text:
        assumed.append("no recompute")
    return {}


def _remat(run: Run, assumed: list[str]) -> dict[str, Any]:
    """By the policy that the row names, or else MaxText's default (configs/base.yml)."""
    policy = policy_of(run)
    if policy is None:
        policy = "full"
        assumed.append("recompute of all but the last product of layers")
    return remat_fields(run, policy)


def _stages(run: Run, model: Model, pp: int, assumed: list[str]) -> dict[str, Any]:
    if pp == 1:
        return {}
    vpp = run.parallelism.vpp or 1
    if run.parallelism.vpp is None:
        assumed.append("no interleaving")
    fields: dict[str, Any] = {"vpp": vpp}
    chunks, layers = pp * vpp, model.depth
    layout = run.features.get("pp_layout")
    if layout:
        return fields | {"stage_layers": tuple(chunk.count("t") for chunk in _unrolled(layout))}
    if layers % chunks == 0:
        return fields
    assumed.append("layers spread over the stages")
    if (layers + 2) % chunks == 0:
        return fields | {"embedding_as_layer": True, "loss_as_layer": True}
    if model.mtp:
        most = math.ceil(layers / chunks)
        lengths = [most] * chunks
        lengths[-1] = layers - most * (chunks - 1)
        if lengths[-1] >= 0:
            return fields | {"stage_layers": tuple(lengths)}
    whole, more = divmod(layers + 2, chunks)
    lengths = [whole + (i < more) for i in range(chunks)]
    lengths[0] -= 1
    lengths[-1] -= 1
    return fields | {"stage_layers": tuple(lengths)}


def _unrolled(layout: str) -> list[str]:
    """Chunks of a pipeline layout such as Et*4|(t*4|)*14tmL."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    text = re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return text.split("|")


def _tuning(run: Run) -> dict[str, Any]:
    if run.task != "lora" and str(run.features.get("peft")) != "lora":
        return {}
    return {"lora_rank": 16, "lora_parts": ("attention",)}


def _experts(run: Run, model: Model) -> dict[str, Any]:
    if not model.has_experts:
        return {}
    capacity = run.features.get("moe_capacity_factor") or run.features.get("capacity_factor")
    dropping = "tokendrop" in (run.notes or "")
    if capacity is None and (dropping or "capacity factor 1" in str(run.features.get("moe") or "")):
        capacity = 1.0
    return {"expert_capacity": float(capacity)} if capacity else {}

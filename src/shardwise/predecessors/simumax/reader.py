"""SimuMax's models and strategies as fields of `Model` and `Strategy`.

What cannot be expressed here is refused under the keys of the file, never dropped.
`docs/from/simumax.md` has every key, and where it went.
"""

from collections.abc import Iterator
from typing import Any

from shardwise.errors import Fault, refuse
from shardwise.predecessors.simumax.files import SimumaxModel, SimumaxStrategy
from shardwise.units import read_whole

# What a stack of this name assumes of the vocabulary.
_VOCAB_MULTIPLE = 128
# Bytes per logit of the loss that is not fused, forward and backward (`ce`), and of fused ones
# (`ce_fusion`); what is kept: fp32 logits, or 16-bit ones. SimuMax 1.2, commit 4dcaae5.
_FUSED_LOSS = {"loss_forward_bytes": 4, "loss_backward_bytes": 4, "loss_saved_bytes": 2}

_MEGATRON_PARTS = {
    "layernorm": ("attention_norm", "mlp_norm"),
    "mla_up_proj": ("mla_up",),
    "moe_act": ("activation",),
    "mlp": ("mlp",),
    "moe": ("moe",),
}
# Checkpoints end before the output projection and the dispatch: neither is recomputed.
_SELECTIVE_PARTS = {
    "mla_rms_recompute": ("attention_norm",),
    "attn_recompute": ("qkv", "core_attention"),
    "mlp_rms_recompute": ("mlp_norm", "shared_experts"),
    "mlp_recompute": ("mlp", "experts"),
}


def model_fields(model: SimumaxModel, name: str, source: str = "") -> dict[str, Any]:
    """The layers of a SimuMax model: dense ones first, then mixtures of experts if it has any."""
    _refuse(_model_faults(model), source)
    attention = _attention(model)
    activation = "swiglu" if model.use_swiglu else "gelu"
    dense = {"mlp": {"ffn": model.intermediate_size, "activation": activation}}
    sparse = model.layer_num - model.dense_layers if model.has_experts else 0
    layers = [
        {"count": count, "attention": attention} | block
        for count, block in (
            (model.layer_num - sparse, dense),
            (sparse, {"moe": _experts(model, activation)} if sparse else {}),
        )
        if count
    ]
    return {
        "name": model.model_name or name,
        "description": "Imported from a SimuMax model.",
        "hidden": model.hidden_size,
        "vocab": model.orig_vocab_size or model.vocab_size,
        "layers": layers,
        "norm": "rmsnorm",
        "position": "rope",
        "sources": {"": {"kind": "published", "text": f"SimuMax's file {name}"}},
    }


def _attention(model: SimumaxModel) -> dict[str, Any]:
    if model.attention_type == "mha":
        return {
            "heads": model.head_num,
            "kv_heads": model.kv_head_num,
            "head_dim": model.head_size or model.hidden_size // model.head_num,
        }
    rotated = model.qk_pos_emb_head_dim or 0
    return {
        "heads": model.head_num,
        "kv_heads": model.head_num,
        "head_dim": (model.qk_head_dim or 0) + rotated,
        "v_head_dim": model.v_head_dim,
        "latent": {
            "q_rank": model.q_lora_rank,
            "kv_rank": model.kv_lora_rank,
            "rope_dim": rotated,
        },
    }


def _experts(model: SimumaxModel, activation: str) -> dict[str, object]:
    return {
        "experts": model.expert_num,
        "top_k": model.topk,
        "ffn": model.moe_ffn_hidden_size or model.intermediate_size,
        "activation": activation,
        "shared_ffn": model.moe_shared_expert_intermediate_size or 0,
    }


def _model_faults(model: SimumaxModel) -> Iterator[tuple[str, object, str]]:
    multiple = model.make_vocab_size_divisible_by if model.padded_vocab_size else 1
    if multiple != _VOCAB_MULTIPLE:
        field = "make_vocab_size_divisible_by" if model.padded_vocab_size else "padded_vocab_size"
        problem = f"must be {_VOCAB_MULTIPLE} or left out: padding is the stack's vocab_multiple"
        if not model.padded_vocab_size:
            problem = "must be true or left out: padding is the stack's vocab_multiple"
        yield field, getattr(model, field), problem
    if not model.has_experts:
        return
    if model.capacity != 1 and model.moe_pad_expert_input_to_capacity:
        problem = "must be 1 or left out: it is the strategy's expert_capacity"
        yield "capacity", model.capacity, problem
    if model.group_linear_mode != "parallel":
        problem = "must be parallel: SimuMax loses the weights of all experts but one otherwise"
        yield "group_linear_mode", model.group_linear_mode, problem


def strategy_fields(strategy: SimumaxStrategy, source: str = "") -> dict[str, object]:
    """A SimuMax strategy, run by software that does as SimuMax assumes."""
    _refuse(_strategy_faults(strategy), source)
    sequences = strategy.micro_batch_size * strategy.micro_batch_num
    fields: dict[str, object] = {
        "gpus": strategy.world_size,
        "tp": strategy.tp_size,
        "cp": strategy.cp_size,
        "pp": strategy.pp_size,
        "ep": strategy.ep_size,
        "etp": strategy.etp_size,
        "dp": strategy.replicas,
        "vpp": strategy.interleaving_size,
        "micro_batch_size": strategy.micro_batch_size,
        "global_batch_size": sequences * strategy.replicas,
        "seq_len": strategy.seq_len,
        "dtype": strategy.dtype,
        "quantization": "fp8_tensor" if strategy.fp8 else "none",
        "quantized_weights": strategy.fp8,
        "zero": strategy.zero_state,
        "first_stage_layers": strategy.num_layers_in_first_pipeline_stage,
        "last_stage_layers": strategy.num_layers_in_last_pipeline_stage,
        "embedding_as_layer": strategy.account_for_embedding_in_pipeline_split,
        "loss_as_layer": strategy.account_for_loss_in_pipeline_split,
        "sequence_parallel": strategy.enable_sequence_parallel,
        "cp_exchange": "all_to_all",
        "dp_overlap": False,
        "stack": {"base": "simumax"} | _stack(strategy),
    }
    if strategy.ep_size > 1:  # only then it is certain that there are experts
        fields["expert_capacity"] = 1
    if strategy.offload_groupgemm_col_inputs:
        fields |= {"offload_activations": True, "offload_parts": ("expert_up",)}
    return fields | _recompute(strategy)


def _stack(strategy: SimumaxStrategy) -> dict[str, Any]:
    """What differs from the software that is described under SimuMax's name."""
    plain = {
        "attention": "flash" if strategy.use_flash_sdp else "unfused",
        "fused_norm": strategy.use_fused_norm,
        "fused_swiglu": strategy.use_fused_swiglu,
        "fused_gradient_accumulation": strategy.use_fused_grad_accumulation,
        "weight_gradient_buffers": _reaches(
            strategy.te_version, strategy.te_dummy_wgrad_min_version
        ),
        "gradient_dtype": "compute" if strategy.grad_reduce_in_bf16 else "fp32",
        "allocator_slack": 1 / strategy.mem_factor,
    }
    loss = _FUSED_LOSS if strategy.cross_entropy_loss_fusion else {}
    even = {} if strategy.enable_straggler_model else {"straggler_per_doubling": 0}
    return plain | loss | even


def _reaches(version: str | None, least: str) -> bool:
    """Whether a release is not before another one; no release is."""
    if version is None:
        return False
    return _release(version) >= _release(least)


def _release(version: str) -> tuple[int, ...]:
    numbers = [
        read_whole("".join(filter(str.isdigit, part))) or 0 for part in version.split(".")[:3]
    ]
    return (*numbers, 0, 0, 0)[:3]


def _recompute(strategy: SimumaxStrategy) -> dict[str, Any]:
    if not strategy.recomputes:
        return {}
    layers = {"recompute_layers": strategy.recompute_layer_num}
    if strategy.recompute_granularity == "full_block":
        return layers | {"recompute": "full"}
    parts = _parts(strategy)
    return layers | {"recompute": "selective", "recompute_parts": parts} if parts else {}


def _parts(strategy: SimumaxStrategy) -> tuple[str, ...]:
    """What selective recompute runs again.

    A strategy does not know its model, so that MLP stands for dense ones and for experts.
    """
    match strategy.recompute_granularity:
        case "attn_only":
            return ("attention",)
        case "mlp_only":
            return ("mlp_norm", "mlp", "moe")
        case "sdp_only":
            return ("core_attention",)
    modules = strategy.megatron_recompute_modules or ()
    parts = [part for module in modules for part in _MEGATRON_PARTS[module]]
    for field, recomputed in _SELECTIVE_PARTS.items():
        parts += recomputed if getattr(strategy, field) else ()
    return tuple(parts)


def _strategy_faults(strategy: SimumaxStrategy) -> Iterator[tuple[str, object, str]]:
    if strategy.cache_groupgemm_col_fp8_inputs:
        problem = "must be false: inputs are saved one way here"
        yield "cache_groupgemm_col_fp8_inputs", True, problem
    for field in ("use_fp32_accum_grad", "use_accm_weight"):
        if not getattr(strategy, field):
            yield field, False, "must be true: there is no other way here"
    whole = strategy.recompute_granularity == "full_block"  # SimuMax leaves it out there
    if strategy.recompute_variance and strategy.recomputes and not whole:
        problem = "must be false: what is run again is run to its end here"
        yield "recompute_variance", True, problem


def _refuse(faults: Iterator[tuple[str, object, str]], source: str) -> None:
    found = [Fault.of(field, value, problem, source) for field, value, problem in faults]
    refuse(found)

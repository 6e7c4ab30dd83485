"""A strategy for each constraint that it violates: its fields, and parts of the message."""

from typing import Any

import precision_samples
import samples
from broken_summa_rules import BREAKING_SUMMA
from shardwise import Model, System

MODEL = samples.model()
SYSTEM = samples.system()
EXPERTS = samples.deepseek()


def island() -> System:
    return samples.system(network=[samples.tier(domain=8)])


SIXES = samples.model(
    samples.layer(attention={"heads": 12, "kv_heads": 12}, mlp={"ffn": 60}), seq_len=36
)


def filled() -> System:
    """Tiers of 8 and 32 accelerators, the inner one to be filled with whole groups."""
    inner = samples.tier("inside", domain=8) | {"must_be_filled": True}
    return samples.system(network=[inner, samples.tier("rack", domain=32), samples.tier("all")])


TIERS = [{"name": name, "capacity": 80e9, "bandwidth": 1e12} for name in ("hbm", "host")]
SECOND = samples.system(memory=TIERS)
BREAKING: dict[str, tuple[dict[str, Any], Model, System, tuple[str, ...]]] = {
    "degrees": ({"gpus": 8, "tp": 2, "pp": 2, "dp": 4}, MODEL, SYSTEM, ("8", "2 x 1 x 2 x 4 = 16")),
    "accelerators": ({"dp": 16}, MODEL, island(), ("16", "at most 8")),
    "dtype": ({"dtype": "bf16"}, MODEL, System.load("v100-sxm-32gb"), ("bf16", "fp16")),
    "heads": ({"tp": 16}, MODEL, SYSTEM, ("16", "heads of the model, 8")),
    "kv_heads": (
        {"tp": 6, "sequence_parallel": False},
        samples.model(samples.layer(attention={"heads": 12, "kv_heads": 4}, mlp={"ffn": 60})),
        SYSTEM,
        ("6", "key-value heads of the model, 4"),
    ),
    "ffn": ({"tp": 8}, samples.model(samples.layer(mlp={"ffn": 100})), SYSTEM, ("8", "100")),
    "sequence": ({"tp": 4, "seq_len": 30}, MODEL, SYSTEM, ("4", "30")),
    "layers": ({"pp": 2, "vpp": 4}, MODEL, SYSTEM, ("up to 2 layers", "vpp 4")),
    "batch": ({"dp": 2, "mbs": 3}, MODEL, SYSTEM, ("16", "2 x 3 = 6")),
    "stages": ({"vpp": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
    "schedule": ({"schedule": "interleaved"}, MODEL, SYSTEM, ("interleaved", "vpp is 1")),
    "positions": ({"seq_len": 64}, MODEL, SYSTEM, ("64", "32 learned positions")),
    "zero": ({"zero": 4}, MODEL, SYSTEM, ("4", "allowed: 0, 1, 2, 3")),
    "weight_dtype_recipe": (
        {"weight_dtype": "fp32", "quantization": "fp8_tensor", "quantized_weights": True},
        MODEL,
        System.load("h100-sxm"),
        ("fp32", "quantization"),
    ),
    "master_dtype": (
        {"weight_dtype": "fp32", "master_dtype": "fp16"},
        MODEL,
        SYSTEM,
        ("fp16", "updated themselves"),
    ),
    "gradient_dtype": (
        {"weight_dtype": "fp32", "gradient_dtype": "compute"},
        MODEL,
        SYSTEM,
        ("compute", "weights in fp32"),
    ),
    "moment_dtype": (
        {"optimizer": "adamw-8bit", "moment_dtype": "fp32"},
        MODEL,
        SYSTEM,
        ("fp32", "name of the optimizer"),
    ),
    "dp_shard": ({"dp": 4, "dp_shard": 3}, MODEL, SYSTEM, ("3", "must divide dp 4")),
    "dp_shard_zero": ({"dp": 4, "dp_shard": 2, "zero": 0}, MODEL, SYSTEM, ("2", "zero 0")),
    "dp_shard_experts": (
        {"dp": 4, "ep": 4, "dp_shard": 2},
        EXPERTS,
        SYSTEM,
        ("2", "dp 4", "the 1 replicas of an expert"),
    ),
    "fsdp_reshard": (
        {"fsdp_reshard": False, "zero": 2},
        MODEL,
        SYSTEM,
        ("false", "without zero 3"),
    ),
    "quantization": (
        {"quantization": "fp8_block"},
        MODEL,
        SYSTEM,
        ("fp8_block", "no matrix rate", "allowed: none"),
    ),
    "quantization_dtype": (
        {"quantization": "mxfp8", "dtype": "fp32"},
        MODEL,
        precision_samples.chip(),
        ("mxfp8", "dtype bf16 or fp16"),
    ),
    "quantized_weights": ({"quantized_weights": True}, MODEL, SYSTEM, ("quantization none",)),
    "graph_scope": (
        {"graph_scope": ("attn",)},
        MODEL,
        SYSTEM,
        ("attn", "without cuda_graphs partial"),
    ),
    "graph_scope_lacking": (
        {"cuda_graphs": "partial", "graph_scope": ("moe", "moe_router")},
        MODEL,
        SYSTEM,
        ("has no moe or moe_router",),
    ),
    "expert_kernel": ({"expert_kernel": "calls"}, MODEL, SYSTEM, ("calls", "no experts")),
    "expert_kernel_fused": (
        {"expert_kernel": "fused"},
        EXPERTS,
        SYSTEM,
        ("Blackwell", "allowed: stack, loop, calls, grouped"),
    ),
    "dispatcher": (
        {"dispatcher": "hybridep"},
        MODEL,
        SYSTEM,
        ("hybridep", "no experts"),
    ),
    "dispatch_dtype": (
        {"dispatch_dtype": "fp8"},
        MODEL,
        precision_samples.chip(),
        ("fp8", "no experts"),
    ),
    "dispatch_dtype_fp8": ({"dispatch_dtype": "fp8"}, EXPERTS, SYSTEM, ("no fp8", "dtype")),
    "documents": ({"document_len": 33}, MODEL, SYSTEM, ("33", "at most seq_len 32")),
    "recompute_parts": (
        {"recompute": "full", "recompute_parts": ("mlp",)},
        MODEL,
        SYSTEM,
        ("mlp", "without recompute selective"),
    ),
    "parts_lacking": (
        {"recompute": "selective", "recompute_parts": ("moe", "mla_up", "experts")},
        MODEL,
        SYSTEM,
        ("sample has no mla_up or moe or experts",),
    ),
    "norm_parts": (
        {
            "tp": 2,
            "tp_regather": False,
            "recompute": "selective",
            "recompute_parts": ("core_attention", "mlp_norm"),
        },
        MODEL,
        SYSTEM,
        ("mlp_norm", "tp_regather must be true"),
    ),
    "activation_parts": (
        {
            "fused_activation": True,
            "recompute": "selective",
            "recompute_parts": ("activation", "mlp"),
        },
        MODEL,
        SYSTEM,
        ("activation", "already"),
    ),
    "offload_parts": (
        {"offload_parts": ("mlp",)},
        MODEL,
        SECOND,
        ("mlp", "without offload_activations"),
    ),
    "offload_lacking": (
        {"offload_activations": True, "offload_parts": ("router", "expert_up", "other")},
        MODEL,
        SECOND,
        ("sample has no router or expert_up or other; nothing would be offloaded",),
    ),
    "frozen_adapters": (
        {"frozen": ("mlp",), "lora_rank": 4},
        MODEL,
        SYSTEM,
        ("mlp", "lora_rank freezes all weights"),
    ),
    "frozen_lacking": ({"frozen": ("mlp", "experts")}, MODEL, SYSTEM, ("sample has no experts",)),
    "frozen_everything": (
        {"frozen": ("embedding", "attention", "mlp", "norms", "head")},
        MODEL,
        SYSTEM,
        ("nothing to train", "training is false"),
    ),
    "frozen_tied": ({"frozen": ("embedding",)}, MODEL, SYSTEM, ("tied", "both or none")),
    "frozen_training": (
        {"frozen": ("mlp",), "training": False},
        MODEL,
        SYSTEM,
        ("mlp", "training only"),
    ),
    "frozen_recipe": (
        {
            "quantization": "fp8_tensor",
            "lora_rank": 4,
            "stack": samples.stack(frozen_weights="nf4"),
        },
        MODEL,
        precision_samples.chip(),
        ("16-bit copies of frozen weights", "none"),
    ),
    "lora_rank_training": ({"lora_rank": 4, "training": False}, MODEL, SYSTEM, ("training only",)),
    "lora_parts": ({"lora_parts": ("mlp",)}, MODEL, SYSTEM, ("mlp", "without lora_rank")),
    "lora_lacking": (
        {"lora_rank": 4, "lora_parts": ("mlp", "experts")},
        MODEL,
        SYSTEM,
        ("sample has no experts",),
    ),
    "lora_tied": (
        {"lora_rank": 4, "lora_parts": ("mlp", "head")},
        MODEL,
        SYSTEM,
        ("tied", "both or none"),
    ),
    "lora_targets": ({"lora_targets": ("q_proj",)}, MODEL, SYSTEM, ("q_proj", "without lora_rank")),
    "lora_targets_or_parts": (
        {"lora_rank": 4, "lora_targets": ("q_proj",), "lora_parts": ("mlp",)},
        MODEL,
        SYSTEM,
        ("lora_parts", "set one"),
    ),
    "lora_targets_lacking": (
        {"lora_rank": 4, "lora_targets": ("q_proj", "experts")},
        MODEL,
        SYSTEM,
        ("sample has no experts",),
    ),
    "adapter": ({"adapter": "dora"}, MODEL, SYSTEM, ("dora", "without lora_rank")),
    "adapter_tensor_parallel": (
        {"lora_rank": 4, "adapter": "dora", "tp": 2},
        MODEL,
        SYSTEM,
        ("tp > 1", "lora"),
    ),
    "base_weights": ({"base_weights": "nf4"}, MODEL, SYSTEM, ("without lora_rank or frozen",)),
    "task_training": ({"task": "sft", "training": False}, MODEL, SYSTEM, ("training only",)),
    "task_pipeline": ({"task": "dpo", "pp": 2}, MODEL, SYSTEM, ("pp > 1", "pretrain, sft")),
    "reference_model": (
        {"reference_model": "copy", "task": "orpo"},
        MODEL,
        SYSTEM,
        ("copy", "without task dpo or kto"),
    ),
    "reference_adapter": (
        {"reference_model": "adapter_off", "task": "dpo"},
        MODEL,
        SYSTEM,
        ("set lora_rank", "precomputed"),
    ),
    "reference_tier": (
        {"reference_model": "copy_host", "task": "dpo"},
        MODEL,
        SYSTEM,
        ("no second memory tier", "precomputed"),
    ),
    "checkpoint_place": (
        {"checkpoint_place": "host", "recompute": "none"},
        MODEL,
        SECOND,
        ("needs recompute full",),
    ),
    "checkpoint_tier": (
        {"checkpoint_place": "host", "recompute": "full"},
        MODEL,
        SYSTEM,
        ("no second memory tier", "device"),
    ),
    "recompute_frozen": (
        {"recompute": "full", "frozen": ("embedding", "attention", "mlp", "norms")},
        samples.llama(),
        SYSTEM,
        ("full", "nothing before the head", "allowed: none"),
    ),
    "fused_activation_stack": (
        {"fused_activation": True, "stack": samples.stack(fused_swiglu=False)},
        samples.llama(),
        SYSTEM,
        ("plain has no fused_swiglu", "allowed: false"),
    ),
    "recompute_depth": (
        {"recompute": "full", "recompute_layers": 5},
        MODEL,
        SYSTEM,
        ("5", "the 4 layers of sample"),
    ),
    "recompute_layers": ({"recompute_layers": 2}, MODEL, SYSTEM, ("2", "recompute none")),
    "context": ({"cp": 3}, MODEL, SYSTEM, ("3", "2 x cp must divide seq_len 32")),
    "context_heads": (
        {"tp": 4, "cp": 4, "cp_exchange": "all_to_all"},
        MODEL,
        SYSTEM,
        ("tp x cp = 16", "heads of the model, 8"),
    ),
    "context_attention": (
        {"cp": 2, "stack": samples.stack(attention_kernel="unfused")},
        MODEL,
        SYSTEM,
        ("2", "flash attention", "allowed: 1"),
    ),
    "attention_accelerator": (
        {"attention_kernel": "flash3", "recompute": "full", "seq_len": 2048, "dtype": "bf16"},
        Model.load("llama3-8b"),
        System.load("a100-80gb-sxm"),
        ("flash3", "(ampere)", "Hopper alone", "efficient, flash1, flash2, cudnn, triton"),
    ),
    "attention_heads": (
        {"attention_kernel": "flash1"},
        samples.model(samples.layer(attention={"head_dim": 192})),
        SYSTEM,
        ("flash1", "at most 128", "192"),
    ),
    "attention_fp32": (
        {"attention_kernel": "cudnn", "dtype": "fp32"},
        MODEL,
        SYSTEM,
        ("cudnn", "fp32 runs efficient, triton or unfused"),
    ),
    "attention_positions": (
        {"attention_kernel": "flash2"},
        samples.model(position="relative-xl"),
        SYSTEM,
        ("flash2", "relative-xl", "allowed: stack, best, unfused"),
    ),
    "loss_parallel": (
        {"loss": "loss_parallel", "tp": 1},
        MODEL,
        SYSTEM,
        ("loss_parallel", "needs tp > 1"),
    ),
    "loss_of_full_head": (
        {"loss": "fused_linear", "tp": 2},
        MODEL,
        SYSTEM,
        ("fused_linear", "allowed: tp 1"),
    ),
    "loss_of_2d_products": (
        {"loss": "chunked", "tp": 2, "tp2": 2, "tp_exchange": "summa"},
        MODEL,
        SYSTEM,
        ("chunked", "allowed: stack"),
    ),
    "latent_heads": ({"attention": "multiquery"}, EXPERTS, SYSTEM, ("latent", "allowed: model")),
    "half_stages": (
        {"pp": 4, "schedule": "zb-v"},
        MODEL,
        SYSTEM,
        ("4", "two stages on each rank", "half of the 4 layers"),
    ),
    "stage_list": ({"pp": 2, "stage_layers": (4,)}, MODEL, SYSTEM, ("[4]", "2 stages")),
    "stage_list_sum": ({"pp": 2, "stage_layers": (1, 2)}, MODEL, SYSTEM, ("[1, 2]", "4 layers")),
    "stage_list_only": (
        {"pp": 2, "stage_layers": (1, 3), "loss_as_layer": True},
        MODEL,
        SYSTEM,
        ("[1, 3]", "leave out", "loss_as_layer"),
    ),
    "spread": ({"pp": 2, "first_stage_layers": 5}, MODEL, SYSTEM, ("5", "4 layers over 2 stages")),
    "zero_bubble": ({"schedule": "zb-h1"}, MODEL, SYSTEM, ("zb-h1", "pp > 1", "training")),
    "software": (
        {"pp": 2, "schedule": "gpipe", "any_software": False},
        MODEL,
        SYSTEM,
        (
            "gpipe",
            "megatron-core-2025",
            "supports schedule 1f1b, interleaved only",
            "--any-software",
        ),
    ),
    "dualpipe": (
        {"pp": 2, "schedule": "dualpipe", "gbs": 5},
        MODEL,
        SYSTEM,
        ("dualpipe", "even pp", "pp is 2", "micro-batches are 5"),
    ),
    **{
        flag: ({flag: True}, MODEL, SYSTEM, ("no second memory tier", "allowed: false"))
        for flag in ("offload_weights", "offload_activations", "offload_optimizer")
    },
    **{
        f"{axis}_tier": ({f"{axis}_tier": 2}, MODEL, SYSTEM, ("2 tiers", "allowed: 0 to 1"))
        for axis in ("tp", "cp", "dp", "pp")
    },
    "tier_size": (
        {"tp": 8, "dp": 2, "pp": 4, "tp_tier": 0, "dp_tier": 1, "pp_tier": 1},
        MODEL,
        filled(),
        ("tp 8 x dp 2 x pp 4", "rack", "more than its 32"),
    ),
    **BREAKING_SUMMA,
    "tier_filled": ({"tp": 6, "tp_tier": 0}, SIXES, filled(), ("tp 6", "inside", "divide", "8")),
    "extents_tier": ({"extents": "dp=2", "dp": 2, "dp_tier": 0}, MODEL, SYSTEM, ("dp_tier",)),
    "extents_tiers": ({"extents": "dp=2/dp=2", "dp": 4}, MODEL, SYSTEM, ("2 tiers", "has 2")),
    "extents_degrees": (
        {"extents": "tp=2+dp=4+pp=3", "tp": 2, "dp": 2, "pp": 2},
        MODEL,
        SYSTEM,
        ("does not divide dp 2, pp 2",),
    ),
    "extents_experts": (
        {"extents": "dp=4+ep=3", "ep": 4, "dp": 8},
        EXPERTS,
        SYSTEM,
        ("ep 4, etp 1", "on every tier"),
    ),
    "edges": (
        {"tp": 4, "pp": 2, "seq_len": 30, "tp_exchange": "p2p_rs_ag"},
        MODEL,
        SYSTEM,
        ("tp 4", "= 30", "all_reduce"),
    ),
    "ep_experts": ({"ep": 2, "dp": 2}, MODEL, SYSTEM, ("2", "no experts", "allowed: 1")),
    "etp_experts": ({"etp": 2, "dp": 2}, MODEL, SYSTEM, ("2", "no experts", "allowed: 1")),
    "ep": ({"ep": 3, "dp": 3, "gbs": 3}, EXPERTS, SYSTEM, ("3", "experts of the model, 8")),
    "etp": ({"etp": 3, "dp": 3, "gbs": 3}, EXPERTS, SYSTEM, ("3", "experts' width, 32")),
    "expert_ranks": (
        {"ep": 4, "etp": 2, "dp": 4},
        EXPERTS,
        SYSTEM,
        ("ep x etp = 8", "tp x cp x dp = 4"),
    ),
    "routing": (
        {"tp": 2, "sequence_parallel": False},
        EXPERTS,
        SYSTEM,
        ("false", "tp 2", "allowed: true"),
    ),
    "expert_load": ({"expert_imbalance": 1.5}, MODEL, SYSTEM, ("1.5", "no experts")),
    "expert_overlap": ({"expert_overlap": True}, MODEL, SYSTEM, ("no experts", "allowed: false")),
    "expert_overload": (
        {"expert_capacity": 4.5},
        EXPERTS,
        SYSTEM,
        ("4.5", "every token once", "allowed: at most 4"),
    ),
    "expert_loads": (
        {"expert_capacity": 1.5, "expert_imbalance": 1.25},
        EXPERTS,
        SYSTEM,
        ("1.25", "no effect with expert_capacity", "allowed: 1"),
    ),
}

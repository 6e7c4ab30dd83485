"""Recipes of Megatron-Bridge, and what they set.

Names are those that `megatron.bridge.recipes` exports (v0.6 and main of 2026-08: the __init__ files
of its families, and scripts/training/text_pretrain_validation.json). `vanilla_gpt` has the defaults
of Megatron-Core's classes; `moonlight_16b` has latent attention, and `glm45_air_106b` layers with
and without experts: they carry models that have no recipe of their own.
"""

import re
from collections.abc import Mapping

from shardwise.config.enums import Position
from shardwise.config.model import Model
from shardwise.launchers.megatron.core_model import model_fields
from shardwise.launchers.megatron.core_options import CORE_DEFAULTS
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.units import read_whole

BRIDGE_DEFAULTS: Fields = {
    **CORE_DEFAULTS,
    "bf16": True,
    "grad_reduce_in_fp32": True,
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "gradient_accumulation_fusion": True,
    "cross_entropy_loss_fusion": True,
    "bias_activation_fusion": True,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
}
"""Of the base recipe of pre-training (recipes/common.py:60-130) and GPTModelProvider."""
_OF_LIBRARY: Mapping[str, Value] = {"cross_entropy_fusion_impl": "te"}
"""Of the recipes of models (recipes/, Megatron-Bridge 067f987d)."""


def recipe_defaults(model: Model | None) -> Fields:
    """Return what a recipe sets for a model of the catalog; None: the recipe is not known."""
    if model is None:
        return BRIDGE_DEFAULTS
    fields = {name: value for name, value in model_fields(model).items() if value is not None}
    fields["sequence_parallel"] = True  # with tensor parallelism, as all of them
    if model.position == Position.ROPE:
        fields.setdefault("position_embedding_type", "rope")
    if model.seq_len is not None:
        fields["seq_length"] = model.seq_len
    if model.has_experts:
        fields["expert_tensor_parallel_size"] = 1
    return {**BRIDGE_DEFAULTS, **_OF_LIBRARY, **fields}


RECIPES: Mapping[str, str] = {
    "deepseek-v2": "deepseek_v2",
    "deepseek-v2-lite": "deepseek_v2_lite",
    "deepseek-v3": "deepseek_v3",
    "gemma3-1b": "gemma3_1b",
    "glm4.5": "glm45_355b",
    "glm4.5-air": "glm45_air_106b",
    "gpt-oss-120b": "gpt_oss_120b",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt3-175b": "gpt3_175b",
    "kimi-k2": "kimi_k2",
    "llama2-7b": "llama2_7b",
    "llama3-405b": "llama31_405b",
    "llama3-70b": "llama3_70b",
    "llama3-8b": "llama3_8b",
    "llama3.2-1b": "llama32_1b",
    "llama3.2-3b": "llama32_3b",
    "nemotron-3-nano": "nemotron_3_nano",
    "nemotron-3-super": "nemotron_3_super",
    "nemotron-3-ultra": "nemotron_3_ultra",
    "nemotron-3.5-lightning": "nemotron_3_5_lightning",
    "nemotron-h-47b": "nemotronh_47b",
    "nemotron-h-4b": "nemotronh_4b",
    "nemotron-h-56b": "nemotronh_56b",
    "nemotron-h-8b": "nemotronh_8b",
    "qwen2-72b": "qwen2_72b",
    "qwen2-7b": "qwen2_7b",
    "qwen2.5-14b": "qwen25_14b",
    "qwen2.5-32b": "qwen25_32b",
    "qwen2.5-72b": "qwen25_72b",
    "qwen2.5-7b": "qwen25_7b",
    "qwen3-0.6b": "qwen3_600m",
    "qwen3-1.7b": "qwen3_1p7b",
    "qwen3-14b": "qwen3_14b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-4b": "qwen3_4b",
    "qwen3-8b": "qwen3_8b",
    "qwen3-next-80b-a3b": "qwen3_next_80b_a3b",
}
"""Models of the catalog, and what the names of their recipes begin with."""
_MORE = {
    "llama3-8b": ("llama31_8b",),
    "llama3-70b": ("llama31_70b",),
    "mistral-7b": ("mistral_7b",),
}
"""Other recipes with the architecture of a model."""
_PLAIN, _LATENT, _MIXED = "vanilla_gpt", "moonlight_16b", "glm45_air_106b"
_WITHOUT_ADAPTERS = ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "kimi_k2", "gpt3_175b")
_ADAPTED = {_PLAIN: "llama3_8b", _MIXED: _LATENT}
_NAME = re.compile(r"(?P<model>\w+?)_(?P<task>pretrain|sft|peft|lora|finetune)(_\w+)?")
_GPUS = re.compile(r"_(\d+)gpu_([a-z]+\d+)_")


def recipe_of(model: Model, *, adapted: bool) -> str:
    """Return the recipe whose overrides a plan is."""
    base = RECIPES.get(model.name) or _carrier(model)
    if not adapted:
        return f"{base}_pretrain_config"
    if base in (*_WITHOUT_ADAPTERS, *_ADAPTED):
        base = _ADAPTED.get(base, base)
        base = _LATENT if base in _WITHOUT_ADAPTERS else base
    return f"{base}_peft_config"


def has_recipe(model: Model) -> bool:
    """Whether Megatron-Bridge has a recipe for a model of the catalog."""
    return model.name in RECIPES


def _carrier(model: Model) -> str:
    """A recipe whose class of model has the fields of an architecture."""
    if any(attention.latent for attention in model.attentions):
        return _LATENT
    return _MIXED if len({layer.moe is None for layer in model.layers}) > 1 else _PLAIN


def model_of(recipe: str) -> str | None:
    """Return the model of the catalog that a recipe trains; None if it is not known."""
    found = _NAME.fullmatch(recipe)
    name = found["model"] if found else recipe
    names = {base: model for model, base in RECIPES.items()}
    names |= {base: model for model, bases in _MORE.items() for base in bases}
    return names.get(name)


def gpus_of(recipe: str) -> int | None:
    """Return the number of accelerators that the name of a recipe has."""
    found = _GPUS.search(recipe)
    return read_whole(found[1]) if found else None

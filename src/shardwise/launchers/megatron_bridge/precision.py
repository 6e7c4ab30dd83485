"""The section `mixed_precision` of a configuration: presets by name, and single fields.

Of training/mixed_precision.py, Megatron-Bridge 067f987d of 2026-08-22.
"""

from collections.abc import Mapping

from shardwise.errors import Fault, allowed_words
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree, torch_type

SECTION = "mixed_precision"
TARGET_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"

SHARED: tuple[str, ...] = (
    "bf16",
    "fp16",
    "fp8",
    "fp8_recipe",
    "fp8_param",
    "fp4",
    "fp4_recipe",
    "fp4_param",
    "grad_reduce_in_fp32",
    "reuse_grad_buf_for_mxfp8_param_ag",
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
    "fp8_dot_product_attention",
    "fp8_multi_head_attention",
)
"""Fields that Bridge copies over those of the same name in `model`, `ddp` and `optimizer`."""
_DEFAULTS: Mapping[str, Leaf] = {
    "fp8_recipe": "tensorwise",
    "fp4_recipe": "nvfp4",
    "grad_reduce_in_fp32": True,
    "num_layers_at_start_in_bf16": 0,
    "num_layers_at_end_in_bf16": 0,
}
"""Defaults of the class; the others are off or not set."""
_GATHERED = {"fp8_param_gather": "fp8_param", "fp4_param_gather": "fp4_param"}
"""Fields that Bridge makes equal to others."""

_HALVES: Mapping[str, Mapping[str, Leaf]] = {
    "bf16": {"bf16": True, "grad_reduce_in_fp32": True},
    "fp16": {"fp16": True, "grad_reduce_in_fp32": False},
}
_ENDS_IN_16_BITS: Mapping[str, Leaf] = {
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
}
_SCALINGS: Mapping[str, Mapping[str, Leaf]] = {
    "fp8_delayed_scaling": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param": True},
    "fp8_current_scaling": {
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
        "fp8_param": True,
        **_ENDS_IN_16_BITS,
    },
    "fp8_subchannel_scaling": {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param": False},
    "mxfp8": {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param": True,
        "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param": True},
}
_TWO_ENDS: Mapping[str, Leaf] = {
    **_ENDS_IN_16_BITS,
    "num_layers_at_start_in_bf16": 2,
    "num_layers_at_end_in_bf16": 2,
}
_OF_MODELS: Mapping[str, Mapping[str, Leaf]] = {
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {
        **_SCALINGS["fp8_current_scaling"],
        **_TWO_ENDS,
    },
    "nanov2_bf16_with_fp8_current_scaling_mixed": {
        **_SCALINGS["fp8_current_scaling"],
        "fp8_recipe": "blockwise",
        **_TWO_ENDS,
    },
    "nemotron_3_super_bf16_with_nvfp4_mixed": {
        **_SCALINGS["nvfp4"],
        "first_last_layers_bf16": True,
        "num_layers_at_end_in_bf16": 14,
    },
}
PRESETS: Mapping[str, Mapping[str, Leaf]] = {
    **{f"{half}_mixed": fields for half, fields in _HALVES.items()},
    **{
        f"{half}_with_{name}_mixed": {**fields, **scaling}
        for half, fields in _HALVES.items()
        for name, scaling in _SCALINGS.items()
    },
    **{name: {**_HALVES["bf16"], **fields} for name, fields in _OF_MODELS.items()},
    "bf16_with_fp8_mixed": {**_HALVES["bf16"], **_SCALINGS["fp8_delayed_scaling"]},
}
"""Fields of each preset, by its name; `bf16_with_fp8_mixed` is that of NeMo 2."""
_ALIASES = {"16_mixed": "fp16_mixed", "bf16": "bf16_mixed", "16": "fp16_mixed"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def _preset(name: str) -> Mapping[str, Leaf] | None:
    word = name.rpartition(".")[2].replace("-", "_")
    return PRESETS.get(_ALIASES.get(word, word))


def effective_precision(value: Leaf, path: str, source: str) -> Tree | Fault:
    """Return the fields of a section, those of its preset and defaults filled in.

    Parameters
    ----------
    value
        Name of a preset, or fields; without a type of 16 bits they change those of bf16_mixed.
    """
    if isinstance(value, str):
        preset = _preset(value)
        if preset is None:
            problem = f"is no preset; {allowed_words(value, PRESETS)}"
            return Fault.of(path, value, problem, source)
        return {**dict.fromkeys(SHARED), **_DEFAULTS, **preset}
    if not isinstance(value, dict):
        return Fault.of(path, value, "must be the name of a preset, or a section", source)
    target = str(value.get(TARGET, ""))
    base = _preset(target) if target else PRESETS["bf16_mixed"]
    own = {_GATHERED.get(name, name): item for name, item in value.items() if name != TARGET}
    if own.get("fp32") or own.get("fp16"):
        base = {}
    return {**dict.fromkeys(SHARED), **_DEFAULTS, **(base or {}), **own}


def precision_section(fields: Fields) -> Tree:
    """Return the section of a plan's fields, complete, so that no preset of a recipe remains."""
    half = next((name for name in _TYPES if fields.get(name)), None)
    section: Tree = {TARGET: TARGET_CLASS, "fp32": half is None}
    for name in ("params_dtype", "pipeline_dtype"):
        section[name] = torch_type(_TYPES.get(half or "", "float32"))
    for name in SHARED:
        section[name] = _leaf(fields.get(name, _OFF.get(name)))
    for gathered, param in _GATHERED.items():
        section[gathered] = section[param]
    for name in ("fp8_recipe", "fp4_recipe"):
        section[name] = section[name] or _DEFAULTS[name]
    return section


_OFF: Mapping[str, Value] = {
    "first_last_layers_bf16": False,
    "num_layers_at_start_in_bf16": 0,
    "num_layers_at_end_in_bf16": 0,
    "fp8_dot_product_attention": False,
    "fp8_multi_head_attention": False,
}


def _leaf(value: Value) -> Leaf:
    return None if isinstance(value, tuple) else value

"""Recompute of measured runs, as fields of a `Strategy`.

A policy of MaxText or Pax names the tensors of a layer that are saved on the device or offloaded to
the host; all others are recomputed. XLA then removes dead code: the last product of the MLP gives
the output of the layer, which the next layer saved as its input, so it is never recomputed
(MaxText, `layers/decoders.py`; `jax.checkpoint_policies`).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from published_rows.row import Run
from shardwise.config.enums import ZERO_WEIGHTS, AttentionKernel
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.units import read_whole

_QKV = frozenset({"query_proj", "key_proj", "value_proj", "qkv_proj"})
_PRODUCTS = _QKV | {"out_proj", "mlpwi", "mlpwo"}
# Tensors that each policy saves. Policies for products save none with a batch dimension; to XLA
# fused attention kernels are such products.
_SAVED: tuple[tuple[str, frozenset[str]], ...] = (
    ("minimal_flash", _PRODUCTS | {"context"}),
    ("minimal_with_context", _PRODUCTS | {"context"}),
    ("minimal", _PRODUCTS),
    ("save_dot_with_context_except_mlp", _QKV | {"context", "out_proj"}),
    ("save_dot_except_mlpwi", _QKV | {"out_proj", "mlpwo"}),
    ("save_dot_except_mlp", _QKV | {"out_proj"}),
    ("save_dot", _PRODUCTS),  # Pax: save_dot_only, save_dot_with_no_batch_dim
    ("save_qkv_out_proj", _QKV | {"out_proj"}),
    ("save_qkv_proj", _QKV),
    ("qkv_proj_offloaded", _QKV),
    ("save_out_proj", frozenset({"out_proj"})),
    ("full", frozenset()),
    ("save_nothing", frozenset()),
)
# The operation that saves each tensor for its backward.
_SAVED_BY = {
    "decoder_layer_input": "attention_norm",
    "query_proj": "core_attention",
    "key_proj": "core_attention",
    "value_proj": "core_attention",
    "qkv_proj": "core_attention",
    "context": "attention_out",
    "out_proj": "mlp_norm",
    "mlpwi": "activation",
    "mlpwi_0": "activation",
    "mlpwi_1": "activation",
}


def is_xla(run: Run) -> bool:
    """Whether JAX compiles the step."""
    return any(name in (run.software.framework or "").lower() for name in ("maxtext", "pax"))


def policy_of(run: Run) -> str | None:
    """Name of a run's policy; None: it names none."""
    settings = run.recompute or {}
    text = str(settings.get("granularity") or "").lower()
    if isinstance(settings.get("custom"), Mapping):
        return "custom"
    return next((name for name, _ in _SAVED if text.startswith(name)), None)


def remat_fields(run: Run, policy: str) -> dict[str, object]:
    """Strategy fields of a policy: recomputed parts, and parts offloaded to the host.

    Norms and the activation are always recomputed, the attention kernel unless its output
    (`context`) is saved, each product unless its own output is.
    """
    custom = (run.recompute or {}).get("custom")
    if policy == "custom" and isinstance(custom, Mapping):
        saved = frozenset(name for name, place in custom.items() if place in ("device", "offload"))
        offload = frozenset(name for name, place in custom.items() if place == "offload")
    else:
        saved = dict(_SAVED)[policy]
        offload = saved if policy.endswith("offloaded") else frozenset()
    saved |= {"mlpwi"} if "mlpwi_0" in saved else frozenset()
    recomputed = {"attention_norm", "mlp_norm", "activation"}
    recomputed |= set() if saved & _QKV else {"qkv"}
    recomputed |= set() if "context" in saved else {"core_attention"}
    recomputed |= set() if "out_proj" in saved else {"attention_out"}
    recomputed |= set() if "mlpwi" in saved else {"mlp_up"}
    if {"qkv", "core_attention", "attention_out"} <= recomputed:
        recomputed = recomputed - {"qkv", "core_attention"} | {"attention"}
    fields: dict[str, object] = {
        "recompute": "selective",
        "recompute_parts": tuple(sorted(recomputed)),
    }
    offloaded = {_SAVED_BY[name] for name in offload if name in _SAVED_BY}
    if offloaded:
        fields |= {"offload_activations": True, "offload_parts": tuple(sorted(offloaded))}
    return fields


_TENSORS = _PRODUCTS | _SAVED_BY.keys()
# Parts by words of sources that name no module.
_WORDS = {
    "norm": ("attention_norm", "mlp_norm"),
    "mla up": ("mla_up",),
    "activation func": ("activation",),
    "core attention": ("core_attention",),
}
_NORMS = {"attention_norm", "mlp_norm"}
_MODULES = {
    "core_attn": ("core_attention",),
    "layernorm": ("attention_norm", "mlp_norm"),
    "mla_up_proj": ("mla_up",),
    "moe_act": ("activation",),
    "mlp": ("mlp",),
    "moe": ("moe",),
    "shared_experts": ("shared_experts",),
}


_SWITCHED_ON = re.compile(r"(activation_|gradient_)?checkpointing[=: ]*(true|on|enabled)")


def _modules(settings: Mapping[str, Any]) -> object:
    return settings.get("recompute_modules") or settings.get("modules")


def _recompute(run: Run, model: Model, stack: Stack, assumed: list[str]) -> dict[str, Any]:
    settings = run.recompute or {}
    modules = re.findall(r"\w+", str(_modules(settings) or ""))
    parts = {part for m in modules for part in _MODULES.get(m, ())}
    if not model.has_experts and all(one.latent is None for one in model.attentions):
        parts -= _NORMS  # Megatron's dense layers have their norms in the products that follow
    text = str(settings.get("granularity") or settings.get("recompute_granularity") or "").lower()
    if re.search(r"norm.* recompute|recompute .*norm", text):
        parts |= {part for word, some in _WORDS.items() if word in text for part in some}
    number = str(settings.get("recompute_num_layers") or settings.get("num_layers"))
    layers = read_whole(number)
    whole = "full" in text and "flash" not in text
    if whole or _SWITCHED_ON.match(text):
        return {"recompute": "full"} | ({"recompute_layers": layers} if layers else {})
    if parts:
        return {"recompute": "selective", "recompute_parts": tuple(sorted(parts))}
    if any(name in text for name in ("op-level", "per-op", "selective op")):
        # Products in float8 were saved like those of 16 bits (pytorch/ao, issue 893).
        return {"recompute": "selective", "recompute_parts": ("every_other",)}
    if "selective" in text and "no-op" not in text:
        if "every 2nd" in text:
            return {"recompute": "full", "recompute_layers": math.ceil(model.depth / 2)}
        core = "core" in text or "recompute-activations" in text  # Megatron-LM's option
        if stack.attention_kernel == AttentionKernel.UNFUSED or core:
            return {"recompute": "selective", "recompute_parts": ("core_attention",)}
    if not settings or "unknown" in text:
        assumed.append("no recompute")
    return {}


def recompute_choices(
    run: Run, model: Model, stack: Stack, assumed: list[str]
) -> tuple[dict[str, object], ...]:
    """Strategy fields to try, in order; more than one where the least recompute that fits counts.

    That is so for sharded weights where the row does not say what is recomputed.
    """
    settings = [str(value) for value in (run.recompute or {}).values() if value]
    silent = not settings or "unknown" in settings[0]
    framework = run.software.framework or ""
    if silent and run.parallelism.zero_stage == ZERO_WEIGHTS and "MaxText" not in framework:
        assumed.append("the least recompute that fits")
        if is_xla(run):
            return remat_fields(run, "minimal"), remat_fields(run, "full")
        return {}, {"recompute": "full"}
    chosen = _remat(run, assumed) if is_xla(run) else _recompute(run, model, stack, assumed)
    return (chosen,)


def _remat(run: Run, assumed: list[str]) -> dict[str, object]:
    """Fields of the row's policy, or else of MaxText's default (configs/base.yml)."""
    policy = policy_of(run)
    if policy is None:
        policy = "full"
        assumed.append("recompute of all but the last product of layers")
    return remat_fields(run, policy)


# Texts of recompute that are understood, in lower case; those of XLA are names of policies.
_UNDERSTOOD = re.compile(
    r"(full|none|unknown|custom|selective \((core|recipe|--recompute-activations)|selective core|"
    r"selective op|per-op|selective layer ac \(every 2nd|selective$|"
    r"(activation_|gradient_)?checkpointing[=: ]*(true|on|enabled|false|off|not set)|"
    r"(rms|layer) ?norm.* recompute)"
)


def ignored_recompute(run: Run) -> tuple[str, ...]:
    """What a row says of recompute that is not understood or not modeled."""
    settings = run.recompute or {}
    found = []
    text = str(settings.get("granularity") or settings.get("recompute_granularity") or "").lower()
    modules = re.findall(r"\w+", str(_modules(settings) or "").lower())
    known = _UNDERSTOOD.match(text.strip('"')) or (is_xla(run) and policy_of(run))
    if text and not known:
        found.append(f"recompute {text!r}: not understood")
    unknown = sorted(set(modules) - _MODULES.keys() - {"none"})
    if unknown:
        found.append(f"recompute of {', '.join(unknown)}: not known")
    custom = settings.get("custom")
    tensors = custom.keys() - _TENSORS if isinstance(custom, Mapping) else ()
    if tensors:
        found.append(f"recompute.custom of {', '.join(sorted(tensors))}: not known")
    if settings.get("note"):
        found.append(f"recompute.note {settings['note']!r}: not used")
    if settings.get("cpu_offloading_num_layers"):
        found.append("activations of some layers on the host: not modeled")
    return tuple(found)

"""Recompute policies of MaxText and Pax, as parts that run again or wait in the host's memory.

A policy names the tensors of a layer that are kept on the device or sent to the host; what is not
kept is computed again. XLA then drops what nothing reads: the last product of the MLP gives the
output of the layer, which the next layer kept as its input, so it never runs again (MaxText,
`layers/decoders.py`; `jax.checkpoint_policies`).
"""

from collections.abc import Mapping
from typing import Any

from shardwise.validate.measured.run import Run

__all__ = ["is_xla", "policy_of", "remat_fields"]

_QKV = frozenset({"query_proj", "key_proj", "value_proj", "qkv_proj"})
_PRODUCTS = _QKV | {"out_proj", "mlpwi", "mlpwo"}
# Tensors that each policy keeps. Those that save products save none with a batch dimension, which
# fused attention kernels are to XLA.
_KEPT: tuple[tuple[str, frozenset[str]], ...] = (
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
# What holds a tensor of ours: the operation that keeps it for its own backward.
_HELD_BY = {
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
    """The policy of a run in its own word; None: it names none."""
    told = run.recompute or {}
    text = str(told.get("granularity") or "").lower()
    if isinstance(told.get("custom"), Mapping):
        return "custom"
    return next((name for name, _ in _KEPT if text.startswith(name)), None)


def remat_fields(run: Run, policy: str) -> dict[str, Any]:
    """Fields of a strategy: the parts that run again and those that wait in the host's memory.

    Norms and the activation always run again. The kernel of attention does unless its output
    (`context`) is kept, each product unless its own output is.
    """
    custom = (run.recompute or {}).get("custom")
    if policy == "custom" and isinstance(custom, Mapping):
        kept = frozenset(name for name, place in custom.items() if place in ("device", "offload"))
        away = frozenset(name for name, place in custom.items() if place == "offload")
    else:
        kept = dict(_KEPT)[policy]
        away = kept if policy.endswith("offloaded") else frozenset()
    kept |= {"mlpwi"} if "mlpwi_0" in kept else frozenset()
    again = {"attention_norm", "mlp_norm", "activation"}
    again |= set() if kept & _QKV else {"qkv"}
    again |= set() if "context" in kept else {"core_attention"}
    again |= set() if "out_proj" in kept else {"attention_out"}
    again |= set() if "mlpwi" in kept else {"mlp_up"}
    if {"qkv", "core_attention", "attention_out"} <= again:
        again = again - {"qkv", "core_attention"} | {"attention"}
    fields: dict[str, Any] = {"recompute": "selective", "recompute_parts": tuple(sorted(again))}
    moved = {_HELD_BY[name] for name in away if name in _HELD_BY}
    if moved:
        fields |= {"offload_activations": True, "offload_parts": tuple(sorted(moved))}
    return fields

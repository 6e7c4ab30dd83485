"""Which part of a layer what an operation keeps for backward belongs to, where parts are offloaded.

Every operation has one part of `OffloadPart`, so all parts together are all of a layer.
Of the modules of Megatron Core 0.19 (--offload-modules) attn_norm, qkv_linear, core_attn, attn_proj
and mlp_norm are the first five parts, expert_fc1 is expert_up, and moe_act is activation, which is
that of dense layers too.
"""

__all__ = ["part_of"]

_OTHER = "other"
# A norm keeps its input, a product its own, an activation what the products before it gave.
_OPERATIONS = {
    # With the mask of the residual after the block; in a parallel layer there is one of each.
    "attention_norm": (
        "attention.norm",
        "attention.post_norm",
        "attention.residual",
        "norm",
        "residual",
    ),
    # All projections to queries, keys and values, and what stands between them and the core.
    "qkv": (
        "attention.qkv",
        "attention.q",
        "attention.q_down",
        "attention.q_norm",
        "attention.q_up",
        "attention.kv_down",
        "attention.kv_norm",
        "attention.kv_up",
        "attention.qk_norm",
        "attention.relative",
        "attention.rope",
    ),
    "core_attention": ("attention.core", "attention.softmax"),
    "attention_out": ("attention.out",),
    "mlp_norm": ("mlp.norm", "mlp.post_norm", "mlp.residual"),
    "mlp": ("mlp.up", "mlp.down", "moe.shared_up", "moe.shared_down"),
    # Router and shared experts read one input, which the router keeps.
    "router": (
        "moe.router",
        "moe.top_k",
        "moe.dispatch",
        "moe.combine",
        "moe.shared_gate",
        "moe.add",
    ),
    "expert_up": ("moe.up",),
    "activation": ("mlp.activation", "moe.activation", "moe.shared_activation"),
    "expert_down": ("moe.down",),
}
_PARTS = {name: part for part, names in _OPERATIONS.items() for name in names}


def part_of(operation: str) -> str:
    """The part of an operation's name; adapters count with their product.

    Other is what modules of multi-token prediction keep beside their layer, what embedding and head
    keep, and what layers of registered kinds keep under names of their own.
    """
    product = operation.removeprefix("mtp.").removesuffix(".lora_a").removesuffix(".lora_b")
    return _PARTS.get(product, _OTHER)

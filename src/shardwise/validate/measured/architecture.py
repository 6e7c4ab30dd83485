"""What a measured run says of its model, as a `Model`."""

import re
from typing import Any

from shardwise.config.model import Model
from shardwise.validate.measured.run import Architecture, NotModelledError, Run

__all__ = ["model_of"]

_ACTIVATIONS = {"squared_relu": "relu2", "relu2": "relu2", "gelu": "gelu", "geglu": "geglu"}
_USUAL_HEAD = 128
_USUAL_VOCABULARY = 32_000
# Megatron-LM's --hidden-dropout and --attention-dropout are 0.1 unless set; recipes of later years
# set them to 0.
_LAST_WITH_DROPOUT = 2022
# Routers of so many experts, so many of them a token, beside a latent attention choose among 4 of
# 8 groups (arXiv 2412.19437, section 4.2).
_CHOSEN_IN_GROUPS = (256, 8)
_CHOSEN_GROUPS = 4
_GPT_VOCABULARY = 50_257  # of GPT-2, whose tokenizer Megatron-LM's tests have
_USUAL_LATENT = 1536, 512  # of queries, of keys and values: arXiv 2412.19437, section 4.2


def model_of(run: Run, assumed: list[str]) -> Model:
    """Translate; what nobody printed is assumed, and said so in `assumed`.

    Raises
    ------
    NotModelledError
        For architectures that are no transformers, and those without their main widths.
    """
    told = run.model
    if "hybrid" in (told.arch or "") or "mamba" in (told.arch or ""):
        raise NotModelledError("layers of a state space model (Mamba) are not modelled")
    for name in ("layers", "hidden"):
        if getattr(told, name) is None:
            raise NotModelledError(f"model.{name} is not told")
    if told.ffn is None and told.moe_ffn is None:
        raise NotModelledError("model.ffn is not told")
    vocab = told.vocab
    if vocab is None:
        megatron = run.software.framework == "Megatron-LM"
        vocab = _GPT_VOCABULARY if megatron else _USUAL_VOCABULARY
        assumed.append(f"vocabulary {vocab}")
    fields: dict[str, Any] = {
        "name": told.name or run.id,
        "hidden": told.hidden,
        "vocab": vocab,
        "seq_len": told.seq_len,
        "layers": _layers(run, assumed),
        "norm": "rmsnorm" if "rms" in (told.norm or "rmsnorm").lower() else "layernorm",
        "position": _position(told),
        "tied_embeddings": bool(told.tied_embeddings),
        "dropout": _drops_out(run, assumed),
        "mtp": told.mtp_layers or 0,
    }
    runs = fields["layers"]
    if len(runs) > 1 and _alternate(told):
        fields["interleave"] = _turns(told)
    return Model.validated(fields, source=run.id)


def _drops_out(run: Run, assumed: list[str]) -> bool:
    """By the default of the software; no row says it."""
    software = run.software.framework or ""
    plain = "Megatron" in software and "DeepSpeed" not in software
    early = run.year is not None and run.year <= _LAST_WITH_DROPOUT
    # Models with rotary positions are told not to, with that software alone others are not.
    drops = plain and (early or (software == "Megatron-LM" and _position(run.model) == "learned"))
    if drops:
        assumed.append("dropout")
    return drops


def _position(told: Architecture) -> str:
    text = (told.pos_emb or "rope").lower()
    if "learned" in text and "alibi" not in text:
        return "learned"
    return "alibi" if "alibi" in text else "rope"


def _layers(run: Run, assumed: list[str]) -> list[dict[str, Any]]:
    """Runs of equal layers: leading dense ones, or those that alternate."""
    told = run.model
    assert told.layers is not None  # noqa: S101 - checked before
    attentions = _attentions(run, assumed)
    if not told.experts:
        block: dict[str, Any] = {"mlp": _mlp(told)}
        if len(attentions) == 1:
            return [{"count": told.layers, "attention": attentions[0][1], **block}]
        return _shared_out(told.layers, attentions, block)
    experts = {"moe": _experts(told, assumed)}
    dense = told.dense_layers or 0
    if dense and len(attentions) > 1:
        raise NotModelledError(
            "leading dense layers beside windows that alternate are not modelled"
        )
    if dense:
        counts = ((dense, {"mlp": _mlp(told)}), (told.layers - dense, experts))
        return [{"count": n, "attention": attentions[0][1], **b} for n, b in counts]
    if len(attentions) == 1:
        return [{"count": told.layers, "attention": attentions[0][1], **experts}]
    return _shared_out(told.layers, attentions, experts)


def _shared_out(
    layers: int, kinds: list[tuple[int, dict[str, Any]]], block: dict[str, Any]
) -> list[dict[str, Any]]:
    """Layers of kinds that alternate, so many of each in turn."""
    turn = sum(count for count, _ in kinds)
    whole, rest = divmod(layers, turn)
    runs = []
    for count, attention in kinds:
        more = min(rest, count)
        rest -= more
        runs.append({"count": whole * count + more, "attention": attention, **block})
    return [run for run in runs if run["count"]]


def _alternate(told: Architecture) -> bool:
    """Whether kinds of layers take turns, rather than follow one another."""
    return _windows(told) is not None or _every_other_dense(told)


def _every_other_dense(told: Architecture) -> bool:
    return told.dense_layers is not None and told.dense_layers * 2 == told.layers


def _turns(told: Architecture) -> list[int]:
    windows = _windows(told)
    return [1, 1] if windows is None else [windows[0], 1]


def _windows(told: Architecture) -> tuple[int, int] | None:
    """Layers with a sliding window to one without, and the window."""
    text = told.attention or ""
    if found := re.search(r"alternating full / sliding-window-(\d+)", text):
        return 1, int(found[1])
    if found := re.search(r"(\d+):1 local\((\d+)\)", text):
        return int(found[1]), int(found[2])
    return None


def _attentions(run: Run, assumed: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Kinds of attention, each with how many of it follow one another."""
    told = run.model
    whole = _attention(run, assumed)
    windows = _windows(told)
    if windows is None:
        return [(1, whole)]
    count, window = windows
    return [(count, whole | {"window": window}), (1, whole)]


def _attention(run: Run, assumed: list[str]) -> dict[str, Any]:
    told = run.model
    assert told.hidden is not None  # noqa: S101 - checked before
    text = (told.attention or "").lower()
    heads = told.heads
    if heads is None:
        heads = _likely_heads(told.hidden, run.parallelism.tp or 1)
        assumed.append(f"{heads} attention heads")
    if "mla" in text:
        return _latent_attention(told, heads, assumed)
    fields: dict[str, Any] = {
        "heads": heads,
        "kv_heads": told.kv_heads or heads,
        "head_dim": told.head_dim or told.hidden // heads,
        "causal": "encoder" not in (told.arch or ""),
        "bias": _attention_bias(told),
        "sinks": "sink" in text,
        "qk_norm": "head" if "qk-norm" in text else "none",
    }
    if found := re.search(r"rotary_percent ([\d.]+)", told.pos_emb or ""):
        fields["rotary_dim"] = int(fields["head_dim"] * float(found[1]))
    return fields


def _latent_attention(told: Architecture, heads: int, assumed: list[str]) -> dict[str, Any]:
    rope, plain = told.qk_rope_head_dim or 64, told.qk_nope_head_dim or 128
    q_rank, kv_rank = told.q_lora_rank, told.kv_lora_rank
    if kv_rank is None:
        q_rank, kv_rank = _USUAL_LATENT
        assumed.append(f"latent attention of ranks {q_rank} and {kv_rank}")
    return {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": rope + plain,
        "v_head_dim": told.v_head_dim or plain,
        "latent": {"q_rank": q_rank, "kv_rank": kv_rank, "rope_dim": rope},
    }


def _attention_bias(told: Architecture) -> str:
    if told.linear_bias is True:
        return "all"
    text = str(told.linear_bias or "")
    if "qkv/o" in text:
        return "all"
    return "qkv" if "qkv" in text else "none"


def _likely_heads(hidden: int, tp: int) -> int:
    """Heads of a width nearest to the usual one that divide the hidden width and the ranks."""
    counts = [n for n in range(tp, hidden // 32 + 1, tp) if hidden % n == 0]
    if not counts:
        raise NotModelledError("model.heads is not told")
    return min(counts, key=lambda n: abs(hidden / n - _USUAL_HEAD))


def _activation(told: Architecture) -> str:
    text = (told.mlp or "swiglu").lower()
    return next((ours for name, ours in _ACTIVATIONS.items() if text.startswith(name)), "swiglu")


def _mlp(told: Architecture) -> dict[str, Any]:
    if told.ffn is None:
        raise NotModelledError("model.ffn is not told")
    return {
        "ffn": told.ffn,
        "activation": _activation(told),
        "bias": told.linear_bias is True,
    }


def _experts(told: Architecture, assumed: list[str]) -> dict[str, Any]:
    top_k = told.topk
    if top_k is None:
        top_k = 2
        assumed.append(f"{top_k} experts a token")
    biased = told.linear_bias is True
    latent = "mla" in (told.attention or "").lower()
    in_groups = latent and (told.experts, top_k) == _CHOSEN_IN_GROUPS
    return {
        "experts": told.experts,
        "top_k": top_k,
        "top_groups": _CHOSEN_GROUPS if in_groups else None,
        "ffn": told.moe_ffn or told.ffn,
        "activation": _activation(told),
        "bias": biased,
        "router_bias": biased,
        "shared_ffn": told.shared_expert_ffn or 0,
    }

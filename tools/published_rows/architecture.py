"""The `Model` of a measured run."""

import re
from typing import Any

from published_rows.mixers import hybrid_layers
from published_rows.remarks import vocabulary, window_of
from published_rows.row import Architecture, Run
from shardwise.config.layer_precision import with_16_bit_ends
from shardwise.config.model import Model
from shardwise.errors import InputError
from shardwise.validate.measured.runs import NotModeledError

_ACTIVATIONS = {"squared_relu": "relu2", "relu2": "relu2", "gelu": "gelu", "geglu": "geglu"}
_USUAL_HEAD = 128
_USUAL_VOCABULARY = 32_000
# Megatron-LM's --hidden-dropout and --attention-dropout are 0.1 unless set; recipes of later years
# set them to 0.
_LAST_WITH_DROPOUT = 2022
# Routers of so many experts, so many of them a token, with a latent attention choose among 4 of
# 8 groups (arXiv 2412.19437, section 4.2).
_CHOSEN_IN_GROUPS = (256, 8)
_GROUPS, _CHOSEN_GROUPS = 8, 4
_GPT_VOCABULARY = 50_257  # of GPT-2, whose tokenizer Megatron-LM's tests have
# Of Nemotron 3 Super, Ultra and 3.5 Lightning: mtp_num_layers of Megatron-Bridge's recipes.
_BRIDGE_MODULES = 2
# Blocks at the end in bf16: nemotron_3_super_bf16_with_nvfp4_mixed, which Megatron-Bridge
# 0.4 to 0.6 sets in recipes for nvfp4 (training/mixed_precision.py).
_LAST_IN_BF16 = {("nemotron-3-super", "nvfp4"): 14}
_USUAL_LATENT = 1536, 512  # of queries, of keys and values: arXiv 2412.19437, section 4.2


def model_of(run: Run, assumed: list[str]) -> Model:
    """Translate; values that no source printed are assumed and listed in `assumed`.

    Raises
    ------
    NotModeledError
        For architectures that are not transformers, and those without their main widths.
    """
    row = run.model
    mixed = "hybrid" in (row.arch or "") or "mamba" in (row.arch or "")
    unstated = row.layers is None or row.hidden is None
    if (mixed or unstated) and (known := _published(run, assumed)) is not None:
        return known
    for name in ("layers", "hidden"):
        if getattr(row, name) is None:
            raise NotModeledError(f"model.{name} is not stated")
    if row.ffn is None and row.moe_ffn is None:
        raise NotModeledError("model.ffn is not stated")
    vocab = row.vocab
    if vocab is None:
        megatron = run.software.framework == "Megatron-LM"
        vocab = _GPT_VOCABULARY if megatron else _USUAL_VOCABULARY
        assumed.append(f"vocabulary {vocab}")
    fields: dict[str, Any] = {
        "name": row.name or run.id,
        "hidden": row.hidden,
        "vocab": vocabulary(run, vocab),
        "seq_len": row.seq_len,
        "norm": "rmsnorm" if "rms" in (row.norm or "rmsnorm").lower() else "layernorm",
        "position": _position(row),
        "tied_embeddings": bool(row.tied_embeddings),
        "dropout": _has_dropout(run, assumed),
        "mtp": row.mtp_layers or 0,
    }
    if mixed:
        blocks = {"moe": _experts(row, assumed)} if row.experts else {}
        blocks |= {"mlp": _mlp(row)} if "-" in str(row.extra.get("hybrid_pattern", "-")) else {}
        attention = _attention(run, assumed) if row.heads is not None else None
        if (found := hybrid_layers(row, attention, blocks)) is None:
            raise NotModeledError("the sizes of its mixers are not stated")
        return Model.validated(fields | found, source=run.id)
    fields["layers"] = _layers(run, assumed)
    if len(fields["layers"]) > 1 and _layers_alternate(run):
        fields["interleave"] = _interleave(run)
    return Model.validated(fields, source=run.id)


def _published(run: Run, assumed: list[str]) -> Model | None:
    """The model of the catalog that a row names, where the row does not state its sizes.

    Sizes that it states must be those of the catalog.
    """
    row = run.model
    try:
        model = Model.load(row.name)
    except InputError:
        return None
    stated = {"layers": model.depth, "hidden": model.hidden, "vocab": model.vocab}
    for name, value in stated.items():
        if getattr(row, name) not in (None, value):
            return None
    changes: dict[str, Any] = {} if row.seq_len is None else {"seq_len": row.seq_len}
    if row.mtp_layers is not None:
        changes["mtp"] = row.mtp_layers
    elif model.mtp_pattern and "Bridge" in (run.software.framework or ""):
        changes["mtp"] = _BRIDGE_MODULES
        assumed.append(f"{_BRIDGE_MODULES} modules of multi-token prediction")
    assumed.append(f"shape of {model.name}")
    found = Model.validated(model.model_dump(exclude_unset=True) | changes, source=run.id)
    last = _LAST_IN_BF16.get((model.name, run.precision or ""), 0)
    if last and "Bridge" in (run.software.framework or ""):
        assumed.append(f"the last {last} blocks in bf16")
        return with_16_bit_ends(found, last=last)
    return found


def with_experts(row: Architecture, model: Model) -> Architecture:
    """The row with the experts of the model, where the model is one that the row only names."""
    experts = next((layer.moe for layer in model.layers if layer.moe is not None), None)
    if row.experts is not None or experts is None:
        return row
    return row.model_copy(update={"experts": experts.experts, "topk": experts.top_k})


def _has_dropout(run: Run, assumed: list[str]) -> bool:
    """By the default of the software; no row has it."""
    software = run.software.framework or ""
    plain = "Megatron" in software and "DeepSpeed" not in software
    early = run.year is not None and run.year <= _LAST_WITH_DROPOUT
    # Recipes with rotary positions turn it off; others do so with newer software alone.
    dropout = plain and (early or (software == "Megatron-LM" and _position(run.model) == "learned"))
    if dropout:
        assumed.append("dropout")
    return dropout


def _position(row: Architecture) -> str:
    text = (row.pos_emb or "rope").lower()
    if "learned" in text and "alibi" not in text:
        return "learned"
    return "alibi" if "alibi" in text else "rope"


def _layers(run: Run, assumed: list[str]) -> list[dict[str, object]]:
    """Groups of equal layers: leading dense ones, or those that alternate."""
    row = run.model
    assert row.layers is not None  # noqa: S101 - checked before
    attentions = _attentions(run, assumed)
    if not row.experts:
        layer: dict[str, object] = {"mlp": _mlp(row)}
        if len(attentions) == 1:
            return [{"count": row.layers, "attention": attentions[0][1], **layer}]
        return _alternating_layers(row.layers, attentions, layer)
    experts = {"moe": _experts(row, assumed)}
    dense = row.dense_layers or 0
    if dense and len(attentions) > 1:
        raise NotModeledError("leading dense layers with alternating windows are not modeled")
    if dense:
        counts = ((dense, {"mlp": _mlp(row)}), (row.layers - dense, experts))
        return [{"count": n, "attention": attentions[0][1], **b} for n, b in counts]
    if len(attentions) == 1:
        return [{"count": row.layers, "attention": attentions[0][1], **experts}]
    return _alternating_layers(row.layers, attentions, experts)


def _alternating_layers(
    layers: int, kinds: list[tuple[int, dict[str, Any]]], layer: dict[str, Any]
) -> list[dict[str, object]]:
    """Layers of kinds that alternate, a number of each in turn."""
    turn = sum(count for count, _ in kinds)
    full, rest = divmod(layers, turn)
    groups = []
    for count, attention in kinds:
        more = min(rest, count)
        rest -= more
        groups.append({"count": full * count + more, "attention": attention, **layer})
    return [run for run in groups if run["count"]]


def _layers_alternate(run: Run) -> bool:
    """Whether kinds of layers alternate, rather than follow one another."""
    return window_of(run) is not None or _every_other_dense(run.model)


def _every_other_dense(row: Architecture) -> bool:
    return row.dense_layers is not None and row.dense_layers * 2 == row.layers


def _interleave(run: Run) -> list[int]:
    windows = window_of(run)
    return [1, 1] if windows is None else [*windows[:2]]


def _attentions(run: Run, assumed: list[str]) -> list[tuple[int, dict[str, object]]]:
    """Kinds of attention, each with its number of consecutive layers."""
    full = _attention(run, assumed)
    windows = window_of(run)
    if windows is None:
        return [(1, full)]
    count, rest, window = windows
    kinds = [(count, full | {"window": window}), (rest, full)]
    return kinds if rest else [(1, kinds[0][1])]


def _attention(run: Run, assumed: list[str]) -> dict[str, Any]:
    row = run.model
    assert row.hidden is not None  # noqa: S101 - checked before
    text = (row.attention or "").lower()
    heads = row.heads
    if heads is None:
        heads = _likely_heads(row.hidden, run.parallelism.tp or 1)
        assumed.append(f"{heads} attention heads")
    if "mla" in text:
        return _latent_attention(row, heads, assumed)
    fields: dict[str, Any] = {
        "heads": heads,
        "kv_heads": row.kv_heads or heads,
        "head_dim": row.head_dim or row.hidden // heads,
        "causal": "encoder" not in (row.arch or ""),
        "bias": _attention_bias(row),
        "sinks": "sink" in text,
        "qk_norm": "head" if "qk-norm" in text else "none",
    }
    if found := re.search(r"rotary_percent (\d{1,9}(?:\.\d{1,9})?)", row.pos_emb or ""):
        fields["rotary_dim"] = int(fields["head_dim"] * float(found[1]))
    return fields


def _latent_attention(row: Architecture, heads: int, assumed: list[str]) -> dict[str, object]:
    rope, plain = row.qk_rope_head_dim or 64, row.qk_nope_head_dim or 128
    q_rank, kv_rank = row.q_lora_rank, row.kv_lora_rank
    if kv_rank is None:
        q_rank, kv_rank = _USUAL_LATENT
        assumed.append(f"latent attention of ranks {q_rank} and {kv_rank}")
    return {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": rope + plain,
        "v_head_dim": row.v_head_dim or plain,
        "latent": {"q_rank": q_rank, "kv_rank": kv_rank, "rope_dim": rope},
    }


def _attention_bias(row: Architecture) -> str:
    if row.linear_bias is True:
        return "all"
    text = str(row.linear_bias or "")
    if "qkv/o" in text:
        return "all"
    return "qkv" if "qkv" in text else "none"


def _likely_heads(hidden: int, tp: int) -> int:
    """Number of heads of about the usual width that divides the hidden width and the ranks."""
    counts = [n for n in range(tp, hidden // 32 + 1, tp) if hidden % n == 0]
    if not counts:
        raise NotModeledError("model.heads is not stated")
    return min(counts, key=lambda n: abs(hidden / n - _USUAL_HEAD))


def _activation(row: Architecture) -> str:
    text = (row.mlp or "swiglu").lower()
    return next((ours for name, ours in _ACTIVATIONS.items() if text.startswith(name)), "swiglu")


def _mlp(row: Architecture) -> dict[str, object]:
    if row.ffn is None:
        raise NotModeledError("model.ffn is not stated")
    return {
        "ffn": row.ffn,
        "activation": _activation(row),
        "bias": row.linear_bias is True,
    }


def _experts(row: Architecture, assumed: list[str]) -> dict[str, object]:
    top_k = row.topk
    if top_k is None:
        top_k = 2
        assumed.append(f"{top_k} experts a token")
    biased = row.linear_bias is True
    latent = "mla" in (row.attention or "").lower()
    in_groups = latent and (row.experts, top_k) == _CHOSEN_IN_GROUPS
    return {
        "experts": row.experts,
        "top_k": top_k,
        "groups": _GROUPS if in_groups else None,
        "top_groups": _CHOSEN_GROUPS if in_groups else None,
        "ffn": row.moe_ffn or row.ffn,
        "activation": _activation(row),
        "bias": biased,
        "router_bias": biased,
        "shared_ffn": row.shared_expert_ffn or 0,
    }

"""Strategies that break the rules of sparse attention and of what layers share."""

from typing import Any

import samples
from shardwise import Model, System

SYSTEM = samples.system()


def _with(attention: dict[str, Any], **fields: Any) -> Model:
    heads = {"kv_heads": 1, "head_dim": 16, "bias": "none"} | attention
    layer = samples.layer(attention=heads, mlp={"activation": "swiglu", "bias": False})
    return samples.llama(layers=[layer], **fields)


COMPRESSED = _with(
    {
        "window": 8,
        "compressed": {"q_rank": 8, "ratio": 8, "output_groups": 4, "output_rank": 8},
    }
)
SELECTED = _with(
    {
        "kv_heads": 8,
        "head_dim": 24,
        "v_head_dim": 16,
        "latent": {"q_rank": 8, "kv_rank": 8, "rope_dim": 8},
        "indexer": {"heads": 2, "head_dim": 8, "top_k": 16},
    }
)
SHARED = samples.llama(layer_embedding=8)
SPARSE_SUMMA = {"tp_exchange": "summa", "tp": 2, "tp2": 2}
MAMBA = samples.llama(
    layers=[
        {
            "count": 4,
            "mixer": {"kind": "mamba2", "heads": 8, "head_dim": 8, "state": 4, "groups": 2}
            | {"conv": 4},
            "mlp": {"ffn": 64, "activation": "swiglu"},
        }
    ]
)
BREAKING_SPARSE: dict[str, tuple[dict[str, Any], Model, System, tuple[str, ...]]] = {
    "mixer_heads": ({"tp": 4}, MAMBA, SYSTEM, ("4", "what it splits of mixers")),
    "mixer_context": (
        {"cp": 16, "cp_exchange": "all_to_all", "seq_len": 64, "gpus": 16},
        MAMBA,
        SYSTEM,
        ("16", "trades tokens for heads of mixers"),
    ),
    "summa_mixers": (SPARSE_SUMMA, MAMBA, SYSTEM, ("not modeled with mixers",)),
    "sparse_context": ({"cp": 2, "cp_exchange": "ring"}, COMPRESSED, SYSTEM, ("all_gather",)),
    "masked_context": (
        {"cp": 2, "cp_exchange": "all_gather", "stack": samples.stack(masked_selection=True)},
        SELECTED,
        SYSTEM,
        ("masks keys of full sequences", "allowed: 1"),
    ),
    "sparse_ratio": (
        {"cp": 4, "cp_exchange": "all_gather"},
        COMPRESSED,
        SYSTEM,
        ("2 x cp x 8", "one key stands for"),
    ),
    "output_groups": ({"tp": 8}, COMPRESSED, SYSTEM, ("8", "groups of the output, 4")),
    "sparse_summa": (SPARSE_SUMMA, SHARED, SYSTEM, ("not modeled with sparse attention",)),
    "shared_stages": ({"pp": 2}, SHARED, SYSTEM, ("embeddings of layers", "allowed: 1")),
}

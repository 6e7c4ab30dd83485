"""As `broken_rules`, of the rules for products that are cut in two dimensions."""

from typing import Any

import precision_samples
import samples
from shardwise import Model, System

MODEL = samples.model()
SYSTEM = samples.system()
EXPERTS = samples.deepseek()
SUMMA = {"tp": 2, "tp_exchange": "summa"}
MOE = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"}
BREAKING_SUMMA: dict[str, tuple[dict[str, Any], Model, System, tuple[str, ...]]] = {
    "tp2": ({"tp2": 2, "gpus": 2}, MODEL, SYSTEM, ("2 needs 2D products", "allowed without: 1")),
    "summa_panels": (
        SUMMA | {"tp": 1, "summa_panels": 4},
        MODEL,
        SYSTEM,
        ("4", "tp_exchange summa, and tp or tp2 above 1; leave it out"),
    ),
    "summa_hidden": (
        SUMMA | {"tp": 3},
        samples.model(samples.layer(attention={"heads": 9, "kv_heads": 9}, mlp={"ffn": 63})),
        SYSTEM,
        ("3", "with tp_exchange summa it must divide the width 64"),
    ),
    "summa_widths": (
        SUMMA | {"tp2": 8},
        samples.model(samples.layer(mlp={"ffn": 252})),
        SYSTEM,
        ("8", "must divide the rows of all weights, 64, 252"),
    ),
    "summa_cut": (
        SUMMA | {"tp2": 4, "summa_panels": 6},
        MODEL,
        SYSTEM,
        ("6", "a multiple of tp 2 and tp2 4 that divides the rows of all weights, 64, 256"),
    ),
    "summa_sequence": (
        SUMMA | {"tp2": 2, "seq_len": 30},
        MODEL,
        SYSTEM,
        ("2", "2 x tp2 = 4 must divide seq_len 30"),
    ),
    "summa_kv_heads": (
        SUMMA | {"tp": 4},
        samples.llama(),
        SYSTEM,
        ("4", "with tp_exchange summa it must divide the key-value heads of the model, 2"),
    ),
    "summa_context": (
        SUMMA | {"cp": 2},
        MODEL,
        SYSTEM,
        ("2", "must be 1 with tp_exchange summa: tp2 splits the sequence"),
    ),
    "summa_overlap": (
        SUMMA | {"tp_overlap": "pipe"},
        MODEL,
        SYSTEM,
        ("pipe", "what tp_exchange summa splits in panels already; allowed: stack, none"),
    ),
    "summa_attention": (
        SUMMA | {"tp2": 2, "dtype": "fp32"},
        MODEL,
        SYSTEM,
        ("2", "a stack with flash attention and 16 bits (or flash_fp32); allowed: 1"),
    ),
    "summa_quantization": (
        SUMMA | {"quantization": "fp8_tensor"},
        MODEL,
        precision_samples.chip(),
        ("fp8_tensor", "not modeled with tp_exchange summa; allowed: none"),
    ),
    "summa_lora": (
        SUMMA | {"lora_rank": 4},
        MODEL,
        SYSTEM,
        ("4", "not modeled with tp_exchange summa; leave it out"),
    ),
    "summa_experts": (
        SUMMA,
        samples.llama(layers=[samples.layer() | {"mlp": None, "moe": MOE}]),
        SYSTEM,
        ("summa", "not modeled with experts; allowed: all_reduce, rs_ag, p2p_rs_ag"),
    ),
    "summa_latent": (
        SUMMA,
        samples.llama(layers=[EXPERTS.to_dict()["layers"][0]]),
        SYSTEM,
        ("not modeled with latent attention;",),
    ),
    "summa_parallel": (
        SUMMA,
        samples.model(samples.layer(parallel=True)),
        SYSTEM,
        ("not modeled with parallel attention and MLP;",),
    ),
    "summa_kind": (
        SUMMA,
        samples.model(samples.layer(kind="mixer")),
        SYSTEM,
        ("not modeled with layers of registered kinds;",),
    ),
    "summa_prediction": (
        SUMMA,
        samples.llama(mtp=1),
        SYSTEM,
        ("not modeled with multi-token prediction;",),
    ),
    "summa_positions": (
        SUMMA,
        samples.model(position="relative-bias"),
        SYSTEM,
        ("not modeled with relative positions;",),
    ),
}

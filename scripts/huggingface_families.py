"""Families of causal language models that `transformers` knows: what is read, and how large it is.

Needs the extra `torch`. Writes what configuration classes fill in (`class_defaults.json`), the data
of `tests/huggingface/test_huggingface_families.py` and the table in
docs/reference/model-families.md.

Run `python scripts/huggingface_families.py`; run it again if it added defaults.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shardwise import InputError, Model
from shardwise.huggingface.families import ENCODERS
from shardwise.huggingface.files import Config, inside
from shardwise.huggingface.keys import ROTARY_NAMES, WRAPPERS
from shardwise.huggingface.readers import FAMILIES, MODEL_TYPES, READERS
from shardwise.ops.param_count import count_parameters

ROOT = Path(__file__).parent.parent
DEFAULTS = ROOT / "src/shardwise/huggingface/class_defaults.json"
DATA = ROOT / "tests/data/huggingface_families.json"
RECORDED = ROOT / "src/shardwise/huggingface/model_types.json"
PAGE = ROOT / "docs/reference/model-families.md"
MARKS = ("<!-- families -->\n", "<!-- end of families -->\n")

# Odd sizes, by every name that a family has for them.
_SIZES: dict[int, tuple[str, ...]] = {
    5: ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    60: ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"),
    6: ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "rotary_dim"),
    3: ("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "moe_k", "moe_topk"),
    14: ("head_dim",),
    77: ("intermediate_size", "ffn_dim", "ffn_hidden_size"),
    103: ("vocab_size",),
    35: ("moe_intermediate_size",),
    8: ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    41: ("shared_expert_intermediate_size", "shared_intermediate_size"),
    51: ("intermediate_size_mlp",),
    67: ("max_position_embeddings", "n_positions"),
    2: (
        *("n_shared_experts", "num_shared_experts", "first_k_dense_replace", "topk_group"),
        *("o_groups", "num_kv_shared_layers"),
    ),
    9: ("o_lora_rank", "hidden_size_per_layer_input"),
    4: ("n_group",),
    22: ("q_lora_rank",),
    18: ("kv_lora_rank",),
    10: ("qk_nope_head_dim", "index_head_dim"),
    12: ("v_head_dim",),
    16: ("sliding_window",),
}
_LATENT = {"qk_rope_head_dim": 6, "num_key_value_heads": 6}
_LISTS = ("layer_types", "mlp_layer_types", "no_rope_layers", "attention_layers")
# Keys that some classes cannot be built without, or have nothing for.
_HEAD = {"head_dim": 14}
_DELTA = {
    "linear_conv_kernel_dim": 3,
    "linear_key_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
}
_GROUPS = {"num_expert_group": 4, "topk_group": 2, "num_experts_per_token": 3}
_MAMBA = {"mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_d_state": 10, "mamba_n_groups": 3}
_STATES = {"state_size": 10, "conv_kernel": 3, "use_conv_bias": False, "time_step_rank": 7}
_ASSISTANT = {
    "backbone_hidden_size": 44,
    "num_centroids": 11,
    "use_ordered_embeddings": True,
    "text_config": {
        "global_head_dim": 20,
        "head_dim": 14,
        "hidden_size": 60,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 77,
        "num_attention_heads": 6,
        "num_hidden_layers": 5,
        "num_key_value_heads": 3,
        "num_kv_shared_layers": 5,
        "vocab_size": 103,
        "vocab_size_per_layer_input": 0,
    },
}
_ADDED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": [*["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2],
        "rope_parameters": {
            "full_attention": None,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "dbrx": {"ffn_config": {"ffn_hidden_size": 35, "hidden_size": 60, "moe_num_experts": 7}},
    "deepseek_v4": {"n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 3, "first_k_dense_replace": 1},
    "diffllama": {"num_key_value_heads": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3},
    "gemma3n_text": {
        "activation_sparsity_pattern": None,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        "vocab_size_per_layer_input": 101,
    },
    "gemma4_assistant": _ASSISTANT,
    "gemma4_unified_assistant": _ASSISTANT,
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD | {"num_experts": 8, "moe_topk": 3},
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 3},
    "bailing_hybrid": _GROUPS | {"layer_group_size": 3, "short_conv_kernel_size": 3},
    "bamba": _MAMBA | {"mamba_n_heads": 12, "attn_layer_indices": [1, 3]},
    "falcon_mamba": _STATES,
    "mamba": _STATES,
    "mamba2": _STATES | {"num_heads": 12, "head_dim": 10, "n_groups": 3},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 72, "mamba_n_heads": 6, "mamba_rms_norm": True},
    "granitemoehybrid": _MAMBA
    | {
        "mamba_n_heads": 12,
        "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 3],
    },
    "jamba": {
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 3,
        "mamba_conv_bias": False,
        "mamba_d_conv": 3,
        "mamba_d_state": 10,
        "mamba_dt_rank": 7,
        "mamba_expand": 3,
        "mamba_proj_bias": True,
    },
    "kimi_linear": _GROUPS
    | {"linear_num_heads": 5, "linear_head_dim": 14, "linear_conv_kernel_dim": 3},
    "lfm2": {"block_multiple_of": 16, "conv_L_cache": 4, "conv_bias": True}
    | {"full_attn_idxs": [1, 3]},
    "lfm2_moe": {"conv_L_cache": 4, "num_dense_layers": 1, "use_expert_bias": False}
    | {"layer_types": ["conv", "full_attention", "conv", "conv", "conv"]},
    "lfm3": {"conv_L_cache": 4, "use_attention_gate": False, "use_sandwich_norm": False},
    "nemotron_h": {
        "conv_kernel": 3,
        "hybrid_override_pattern": "ME*-MEM",
        "mamba_head_dim": 6,
        "mamba_num_heads": 12,
        "mlp_bias": False,
        "moe_latent_size": 24,
        "moe_shared_expert_intermediate_size": 41,
        "n_groups": 3,
        "num_hidden_layers": 7,
        "ssm_state_size": 10,
        "use_conv_bias": False,
    },
    "inkling2_text": {"conv_kernel_size": 3, "d_rel": 5, "unpadded_vocab_size": 97},
    "inkling_text": {"conv_kernel_size": 3, "d_rel": 5, "swa_num_attention_heads": 4}
    | {"swa_num_key_value_heads": 2, "swa_head_dim": 12, "sliding_window_size": 16},
    "moshi": {"ffn_dim": 154},
    "olmo_hybrid": _DELTA | {"linear_num_key_heads": 4},
    "qwen3_5_moe_text": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
    "roc_bert": {"shape_vocab_size": 19, "shape_embed_dim": 7, "enable_pronunciation": False},
    "xlnet": {"d_head": 10, "d_inner": 77},
    "xmod": {"languages": ["de_DE", "en_XX", "xh_ZA"], "adapter_reduction_factor": 3},
    "zaya": {"num_experts_per_tok": 1, "cca_time1": 3, "router_hidden_size": 23},
}
_WITHOUT_EFFECT = ("_token_id", "transformers_version", "initializer", "eps", "dtype", "id2label")
_TOWERS = (
    *("vision", "visual", "audio", "multi_modal_projector", "embed_tokens_extend", "image_encoder"),
    *(".lora.", "roformer.encoder.embed_positions"),  # adapters; sinusoids that are not trained
)
_SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")


def written(config: Any) -> dict[str, Any]:
    """What `save_pretrained` writes, but for what has no effect on the architecture."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return {k: v for k, v in data.items() if not any(part in k for part in _WITHOUT_EFFECT)}


def shrunken(kind: str) -> Any:
    """The configuration with odd sizes, and embeddings tied where they are not by default."""
    data = _tried(lambda: written(CONFIG_MAPPING[kind]())) or {}
    sizes = {key: size for size, keys in _SIZES.items() for key in keys if data.get(key)}
    if "kv_lora_rank" in data:
        sizes = {k: v for k, v in sizes.items() if k != "head_dim"} | _LATENT
    sizes |= {key: None for key in _LISTS if key in data} | _ADDED.get(kind, {})
    sizes["pad_token_id"] = 0
    record = FAMILIES.get(MODEL_TYPES.get(kind, ""))
    is_fixed = kind == "dbrx" or MODEL_TYPES.get(kind) in ENCODERS
    is_fixed |= record is not None and any(key == "tie_word_embeddings" for key, *_ in record.must)
    tied = {} if is_fixed else {"tie_word_embeddings": not data.get("tie_word_embeddings")}
    return CONFIG_MAPPING[kind](**sizes, **tied)


def parameters(config: Any) -> int:
    """Parameters of the model on the meta device: without towers, with biases of the selection.

    `transformers` keeps these biases as buffers; checkpoints hold them like parameters.
    """
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    held = [p for n, p in model.named_parameters() if not any(part in n for part in _TOWERS)]
    held += [b for n, b in model.named_buffers() if n.endswith(_SELECTION_BIASES)]
    return sum(tensor.numel() for tensor in held)


def class_defaults() -> dict[str, dict[str, Any]]:
    """Of each `model_type` that is read: what its class fills in, of the keys that are read."""
    found = {}
    for kind, name in sorted(MODEL_TYPES.items()):
        if kind not in CONFIG_MAPPING:
            continue
        family, made = FAMILIES[name], CONFIG_MAPPING[kind]()
        data = json.loads(made.to_json_string(use_diff=False))
        config = Config(data, source=kind, names=ROTARY_NAMES | family.names)
        READERS[name](config)
        skipped = {family.mtp, *config.names_of("hidden_act")}
        values = {key: inside(data, key) for key in config.read - skipped}
        found[kind] = {
            key: value
            for key, value in sorted(values.items())
            if isinstance(value, (bool, int, float, str))
            and value
            and ("." in key or getattr(CONFIG_MAPPING[kind], key, None) is not None)
        }
    return found


def _tried(make: Callable[[], Any]) -> Any:
    with suppress(Exception):  # classes whose defaults cannot be built raise what they like
        return make()
    return None


def family(kind: str, architecture: str) -> dict[str, Any]:
    """What is read of one family, and how many parameters `transformers` has for it."""
    made = {"architecture": architecture}
    default = _tried(lambda: written(CONFIG_MAPPING[kind]())) or {"model_type": kind}
    default |= {"architectures": [architecture]}
    row = made | {"parameters": _tried(lambda: parameters(CONFIG_MAPPING[kind]()))}
    try:
        if Model.load(default).sources[""].text.endswith("modules of transformers"):
            row["modules"] = True
    except InputError as error:
        problem = str(error).splitlines()[0].removeprefix("model: ")
        if architecture not in (*READERS, *WRAPPERS.values()):
            return row | {"refused": problem.split(": ", 2)[-1].split("; understood")[0]}
        row |= {"default_refused": problem}
    small = _tried(lambda: shrunken(kind))
    if small is None:
        return row | {"default": default}
    data = written(small) | {"architectures": [architecture]}
    return row | {
        "default": default,
        "small": data,
        "small_parameters": _tried(lambda: parameters(small)),
    }


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of the page."""
    lines = ["| `model_type` | class | parameters by default | |", "|---|---|---|---|"]
    for kind, row in rows.items():
        size = f"{row['parameters']:,}" if row["parameters"] else ""
        note = row.get("refused", row.get("default_refused", ""))
        note = "read from its modules" if row.get("modules") else note
        lines.append(f"| `{kind}` | `{row['architecture']}` | {size} | {note} |")
    return "\n".join(lines) + "\n"


def recorded(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What `models --coverage` lists: class, parameters by default, how it is read or why not."""
    families = {
        kind: {
            "architecture": row["architecture"],
            "parameters": row["parameters"],
            "read": "no" if "refused" in row else "modules" if row.get("modules") else "record",
            "why": row.get("refused", row.get("default_refused", "")),
        }
        for kind, row in rows.items()
    }
    lines = [f"{json.dumps(kind)}: {json.dumps(row)}" for kind, row in families.items()]
    head = f'{{"transformers": "{transformers.__version__}", "families": {{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    """Write all three files."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    DEFAULTS.write_text(json.dumps(class_defaults(), indent=1) + "\n")
    rows = {kind: family(kind, name) for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    lines = [f"{json.dumps(kind)}: {json.dumps(row, sort_keys=True)}" for kind, row in rows.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    RECORDED.write_text(recorded(rows))
    page = PAGE.read_text()
    before, rest = page.split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table(rows) + MARKS[1] + rest.split(MARKS[1])[1])
    for kind, row in rows.items():
        for which, count in (("default", "parameters"), ("small", "small_parameters")):
            if row.get(count) is None or which not in row or f"{which}_refused" in row:
                continue
            read = _tried(lambda data=row[which]: count_parameters(Model.load(data)).total)
            if read != row[count]:
                print(f"{kind} {which}: {read} read, {row[count]} in transformers")


if __name__ == "__main__":
    main()

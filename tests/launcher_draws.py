"""Strategies drawn for the comparison of stacks with the checker of launchers."""

import random
from typing import Any

from shardwise.config.enums import OffloadPart, RecomputePart
from shardwise.config.strategy_fields import COLUMNS

MODELS = (
    "llama3-8b",  # dense, untied
    "llama3.2-1b",  # dense, tied
    "qwen2-7b",  # 28 heads, 4 of keys and values
    "qwen3-30b-a3b",  # experts
    "mixtral-8x7b",  # 8 experts
    "deepseek-v2-lite",  # latent attention, a dense layer, shared experts
    "gpt-oss-20b",  # experts with biases
)
NVIDIA = ("h100-sxm", "b200-sxm", "gb200-nvl72")
SYSTEMS = {"primus-2026": ("mi300x", "mi355x"), "maxtext-2024": ("tpu-v5p", "tpu-v6e")}
"""Systems of each stack, where they are not NVIDIA's."""

_GROUPS: dict[str, list[list[str]]] = {
    "recompute_parts": [
        *([part] for part in RecomputePart),
        ["attention_norm", "mlp_norm"],
        ["attention_norm", "mlp_norm", "activation"],
        ["mla_up", "mlp"],
        ["mlp", "moe"],
    ],
    "offload_parts": [
        *([part] for part in OffloadPart),
        ["core_attention", "attention_out"],
        ["expert_up", "activation"],
        ["expert_up", "activation", "expert_down"],
    ],
}
_NUMBERS: dict[str, list[Any]] = {
    "seq_len": [4098, 4100, 4104, 8192],
    "recompute_layers": [1, 2, 4, 8],
    "dp_shard": [1, 2, 4],
    "fsdp_prefetch": [0, 1, 2],
    "lora_rank": [16],
    "first_stage_layers": [1, 4, 8],
    "last_stage_layers": [1, 4, 8],
    "expert_capacity": [1.5],
    "etp": [1, 2, 4],
    "attention_kernel": ["best", "unfused", "flash2", "flash3", "flash4", "cudnn"],
}
# Those that a draw always sets, and those that say nothing of what software runs.
_ALWAYS = ("tp", "pp", "cp", "dp", "zero", "gpus", "micro_batch_size", "global_batch_size")
_SKIPPED = (
    "stack",
    "any_software",
    "recompute_parts",
    "offload_parts",
    "sequence_parallel",
    "batching",
)


def _values(name: str) -> list[Any]:
    """Values to draw of a field; none where it is left as it is."""
    field = COLUMNS[name]
    if name in _NUMBERS:
        return _NUMBERS[name]
    if field.words and isinstance(field.default, tuple):
        return [[word] for word in field.words]
    if isinstance(field.default, bool):
        return [not field.default]
    return list(field.words)


_TYPES = ("weight_dtype", "master_dtype", "moment_dtype", "gradient_dtype", "reduce_dtype")
SOFTWARE = {name: _values(name) for name in ("cuda_graphs", "graph_scope", "compile")}
SOFTWARE |= {"expert_kernel": _values("expert_kernel")}
"""Choices of software, drawn apart from the other fields: most of their words few stacks run."""
CHANGES = {
    name: values
    for name in COLUMNS
    if name not in (*_ALWAYS, *_SKIPPED, *SOFTWARE, *_TYPES) and (values := _values(name))
}


def draw(drawn: random.Random, stack: str) -> dict[str, Any]:
    """A strategy that is plain but for up to three fields."""
    choose = drawn.choice
    tp, pp, cp = choose([1, 1, 2, 4]), choose([1, 1, 2, 4]), choose([1, 1, 1, 2, 4])
    dp, mbs = choose([1, 2, 4, 8]), choose([1, 2])
    row: dict[str, Any] = {
        "stack": stack,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": choose([1, 1, 2, 4, 8]),
        "gpus": tp * pp * cp * dp,
        "micro_batch_size": mbs,
        "global_batch_size": dp * mbs * choose([1, 4, 8, 8, 12]),
        "seq_len": 4096,
        "zero": choose([0, 1, 1, 2, 3, 3]),
    }
    if pp > 1 and drawn.random() < 1 / 2:
        row["vpp"] = choose([1, 2, 2, 3])
        row["schedule"] = "interleaved" if row["vpp"] > 1 else "1f1b"
    if drawn.random() < 1 / 3:
        row["recompute"] = choose(["full", "selective"])
    for name in drawn.sample(sorted(CHANGES), choose([0, 0, 1, 1, 1, 2, 2, 3])):
        row[name] = choose(CHANGES[name])
    apart = random.Random(f"software of {row}")  # noqa: S311 - of tests
    if apart.random() < 1 / 8:
        name = apart.choice(sorted(SOFTWARE))
        row[name] = apart.choice(SOFTWARE[name])
    return row | _consequences(drawn, row)


def _consequences(drawn: random.Random, row: dict[str, Any]) -> dict[str, Any]:
    """Fields without which others would be refused for reasons that are not software's."""
    changes: dict[str, Any] = {}
    if row.get("recompute_layers") and row.get("recompute", "none") == "none":
        changes["recompute"] = "full"
    if row.get("recompute") == "selective":
        changes["recompute_parts"] = drawn.choice(_GROUPS["recompute_parts"])
    if row.get("offload_activations"):
        changes["offload_parts"] = drawn.choice([None, *_GROUPS["offload_parts"]])
    if row.get("offload_weights"):
        changes["offload_optimizer"] = drawn.choice([True, False])
    if row.get("quantized_weights"):
        changes["quantization"] = drawn.choice(["fp8_tensor", "mxfp8"])
    if row.get("graph_scope"):
        changes["cuda_graphs"] = "partial"
    if row.get("fsdp_reshard") is False:
        changes["zero"] = 3
    return changes

"""The oracle of launchers: each of its rules is broken by one plan and kept by its neighbor."""

from functools import partial
from typing import Any

import pytest

from launcher_rules import (
    LAUNCHERS,
    deepspeed_faults,
    huggingface_faults,
    launch_faults,
    maxtext_faults,
    megatron_faults,
    release_numbers,
    stack_name,
    torchtitan_faults,
)
from shardwise import Model, Strategy, catalog

DENSE = "llama3-70b"  # 80 layers, 64 heads, 8 of keys and values
UNEVEN = "qwen2-7b"  # 28 heads, 4 of keys and values
TIED = "llama3.2-1b"
GROUPED = "qwen3-30b-a3b"  # 48 layers of 128 experts
LATENT = "deepseek-v3"  # 61 layers, the first 3 dense
BIASED = "gpt-oss-20b"  # biases in its experts
Fields = dict[str, Any]
LAUNCH = {
    "bridge": partial(megatron_faults, bridge=True),
    "primus": partial(megatron_faults, primus=True),
}


def plan(model: str, **fields: Any) -> tuple[Model, Fields]:
    """A model of the catalog and a strategy for it, as `estimate --json` writes it."""
    loaded = Model.load(model)
    values = Strategy(**({"gpus": 64, "gbs": 128} | fields)).resolved(loaded).to_dict()
    return loaded, values


TP: Fields = {"tp": 8}
EP: Fields = {"ep": 8}
PP: Fields = {"pp": 4}
CP: Fields = {"cp": 4}
VPP: Fields = {"pp": 4, "vpp": 5}
OFFLOAD: Fields = {"offload_activations": True}
LATENT_PP: Fields = {"pp": 4, "first_stage_layers": 16, "last_stage_layers": 15, "ep": 16}


def parts(*names: str) -> Fields:
    return {"recompute": "selective", "recompute_parts": list(names)}


def offloads(*names: str) -> Fields:
    return OFFLOAD | {"offload_parts": list(names)}


def fsdp(**fields: Any) -> Fields:
    return {"zero": 3} | fields


# A fault's beginning: (model, plan that has it, change that lifts it, options of the check).
MEGATRON: dict[str, list[tuple[Any, ...]]] = {
    "global_batch_size": [(DENSE, {}, {"gbs": 100}, {"gbs": 192})],
    "tp2": [(DENSE, {"tp": 2}, {"tp2": 2, "tp_exchange": "summa"}, {})],
    "ep": [
        (DENSE, {}, {"ep": 2}, {}),
        (GROUPED, {}, {"ep": 48, "gpus": 96, "gbs": 96}, {"ep": 32}),
        (GROUPED, {}, {"ep": 128}, {"ep": 64}),
    ],
    "tp": [
        (DENSE, {"gpus": 48, "gbs": 96}, {"tp": 6}, {"tp": 8}),
        (UNEVEN, {"gpus": 56, "gbs": 56}, {"tp": 7}, {"tp": 4}),
    ],
    "cp": [
        (DENSE, CP | {"cp_exchange": "all_to_all"}, {"tp": 4}, {"tp": 2}),
        (DENSE, TP | {"cp": 2}, {"cp_exchange": "all_to_all"}, {"cp_exchange": "ring"}),
    ],
    "seq_len": [
        (DENSE, CP, {"seq_len": 8196}, {"seq_len": 8200}),
        (DENSE, CP | {"tp": 8}, {"seq_len": 8200}, {"seq_len": 8224}),
    ],
    "etp": [(BIASED, {"ep": 4}, {"etp": 2, "tp": 2}, {"etp": 1, "tp": 2})],
    "placement": [
        (DENSE, PP | {"tp": 2}, {"placement": "dp-tp-cp-pp"}, {"placement": "tp-cp-pp-dp"}),
        (DENSE, {}, {"placement": "pp-dp-cp-tp", "tp": 2}, {"placement": "pp-tp-cp-dp"}),
        (DENSE, PP | {"placement": "tp-cp-pp-dp"}, {"cp": 2}, {"cp": 1}),
        (
            GROUPED,
            PP | {"placement": "tp-cp-pp-dp", "tp": 2, "cp": 2},
            {"ep": 2},
            {"ep": 4},
        ),
        (DENSE, PP | fsdp(), {"placement": "tp-cp-pp-dp"}, {}),
    ],
    "extents": [(DENSE, TP, {"extents": "tp=8"}, {})],
    "tp_tier": [(DENSE, TP, {"tp_tier": 0}, {})],
    "schedule": [
        (DENSE, PP, {"schedule": "gpipe"}, {}),
        (DENSE, PP, {"schedule": "zb-h1"}, {"schedule": "1f1b"}),
        (DENSE, PP, {"schedule": "dualpipe"}, {}),
        (DENSE, PP | {"schedule": "1f1b"}, {"vpp": 5}, {"vpp": 1}),
        (DENSE, PP | {"schedule": "interleaved"}, {"vpp": 1}, {"vpp": 2}),
    ],
    "vpp": [
        (DENSE, VPP | {"dp": 16}, {"gbs": 96}, {"gbs": 128}),
        (DENSE, {"vpp": 2, "schedule": "interleaved"}, {"pp": 1}, {"pp": 2}),
        (DENSE, PP, {"vpp": 3}, {"vpp": 4}),
    ],
    "pp": [(LATENT, {"ep": 16}, {"pp": 4}, LATENT_PP)],
    "first_stage_layers": [
        (DENSE, PP, {"first_stage_layers": 19}, {"first_stage_layers": 20}),
        (
            DENSE,
            PP,
            {"first_stage_layers": 20, "embedding_as_layer": True},
            {"first_stage_layers": 20},
        ),
        (DENSE, {"pp": 2, "first_stage_layers": 38}, {"last_stage_layers": 40}, {}),
        (
            DENSE,
            {"pp": 2, "first_stage_layers": 39, "last_stage_layers": 41},
            {"vpp": 3},
            {"vpp": 1},
        ),
        (DENSE, PP, {"first_stage_layers": 5}, {}, {"release": "0.8"}),
    ],
    "stage_layers": [
        (DENSE, PP, {"stage_layers": [20, 20, 39]}, {"stage_layers": [19, 21, 21, 19]}),
        (DENSE, PP, {"stage_layers": [20, 20, 20, 21]}, {"stage_layers": [20, 20, 20, 20]}),
        (
            DENSE,
            PP | {"stage_layers": [19, 21, 21, 19]},
            {"loss_as_layer": True},
            {"loss_as_layer": False},
        ),
        (DENSE, PP, {"stage_layers": [19, 21, 21, 19]}, {}, {"release": "0.12"}),
    ],
    "embedding_as_layer": [
        (
            DENSE,
            {"pp": 2},
            {"embedding_as_layer": True, "loss_as_layer": True},
            {},
            {"release": "0.10"},
        ),
    ],
    "tp_exchange": [
        (DENSE, TP, {"tp_exchange": "p2p_rs_ag"}, {"tp_exchange": "all_reduce"}),
        (GROUPED, {"tp": 2, "ep": 8}, {"tp_exchange": "all_reduce"}, {"tp_exchange": "rs_ag"}),
    ],
    "tp_regather": [(DENSE, TP, {"tp_regather": False}, {})],
    "tp_overlap": [
        (DENSE, TP | {"tp_overlap": "ring"}, {"tp_exchange": "all_reduce"}, {}),
        (DENSE, TP, {"tp_overlap": "pipe"}, {"tp_overlap": "ring"}),
    ],
    "cp_exchange": [
        (DENSE, CP, {"cp_exchange": "all_gather"}, {}, {"release": "0.9"}),
    ],
    "recompute_layers": [
        (DENSE, PP | {"recompute": "full"}, {"recompute_layers": 21}, {"recompute_layers": 20}),
        (DENSE, VPP | {"recompute": "full"}, {"recompute_layers": 4}, {"recompute_layers": 5}),
        (DENSE, PP | parts("mlp"), {"recompute_layers": 4}, {}),
    ],
    "recompute_parts": [
        (DENSE, {}, parts("attention"), parts("core_attention")),
        (DENSE, {}, parts("every_other"), parts("mlp")),
        (DENSE, {}, parts("qkv", "core_attention"), parts("core_attention")),
        (GROUPED, EP, parts("mlp_norm"), parts("mlp_norm", "attention_norm")),
        (DENSE, {}, parts("mlp_norm", "attention_norm"), {}),
        (GROUPED, EP, parts("mla_up"), parts("moe")),
        (DENSE, {}, parts("activation"), {}),
        (GROUPED, EP, parts("mlp"), parts("activation")),
        (GROUPED, EP, parts("shared_experts"), {}),
        (LATENT, LATENT_PP, parts("experts"), parts("shared_experts", "mla_up", "mlp")),
        (DENSE, {}, parts("mlp"), {}, {"release": "0.11"}),
    ],
    "zero": [
        (DENSE, {}, {"zero": 2}, {"zero": 3}, {"release": "0.11"}),
        (DENSE, {}, {"zero": 2, "optimizer": "muon"}, {"zero": 1, "optimizer": "muon"}),
    ],
    "dp_shard": [
        (DENSE, {}, {"dp_shard": 24}, {"dp_shard": 16}),
        (GROUPED, {"dp_shard": 8}, {"ep": 16}, {"ep": 8}),
        (DENSE, {}, fsdp(dp_shard=16), {"dp_shard": 16}, {"release": "0.13"}),
    ],
    "fsdp_reshard": [
        (DENSE, fsdp(fsdp_reshard=False), {"pp": 2}, {"pp": 1}),
        (DENSE, fsdp(fsdp_reshard=False), {"dtype": "fp16"}, {"dtype": "bf16"}),
        (TIED, fsdp(), {"fsdp_reshard": False}, {"fsdp_reshard": True}),
    ],
    "fsdp_prefetch": [(DENSE, fsdp(), {"fsdp_prefetch": 2}, {"fsdp_prefetch": 1})],
    "quantization": [
        (DENSE, {}, {"quantization": "nvfp4"}, {"quantization": "mxfp8"}, {"release": "0.14"}),
        (
            DENSE,
            {},
            {"quantization": "mxfp8"},
            {"quantization": "fp8_block"},
            {"machine": "h100-sxm"},
        ),
    ],
    "quantized_weights": [
        (DENSE, {}, {"quantized_weights": True}, {}),
        (
            DENSE,
            {"quantization": "mxfp8", "quantized_weights": True},
            {"zero": 0},
            {"zero": 1},
            {"machine": "b200-sxm"},
        ),
    ],
    "optimizer": [
        (DENSE, {}, {"optimizer": "adafactor"}, {"optimizer": "adamw-bf16"}),
        (DENSE, {"optimizer": "adamw-8bit"}, {"zero": 0}, {"zero": 1}),
        (DENSE, {"offload_optimizer": True}, {"zero": 0}, {"zero": 1}),
    ],
    "offload_optimizer": [
        (DENSE, {"offload_optimizer": True}, {"optimizer": "sgd"}, {"optimizer": "adamw"}),
    ],
    "expert_overlap": [
        (GROUPED, {"expert_overlap": True}, {"ep": 1}, {"ep": 8}),
        (GROUPED, EP | {"expert_overlap": True}, {"pp": 2}, {"pp": 2, "vpp": 2}),
        (GROUPED, EP | {"expert_overlap": True}, parts("moe"), parts("activation")),
        (GROUPED, EP | {"expert_overlap": True}, {"recompute": "full"}, {}),
        (GROUPED, EP | {"expert_overlap": True}, {"dtype": "fp32"}, {"dtype": "fp16"}),
        (GROUPED, EP, {"expert_overlap": True}, {}, {"release": "0.13"}),
    ],
    "dispatch_dtype": [(GROUPED, EP, {"dispatch_dtype": "fp8"}, {})],
    "fused_activation": [(DENSE, {}, {"fused_activation": True}, {})],
    "offload_weights": [(DENSE, {}, {"offload_weights": True}, {})],
    "offload": [
        (DENSE, {}, OFFLOAD, offloads("core_attention")),
        (DENSE, OFFLOAD, PP, PP | offloads("qkv", "core_attention", "attention_out")),
        (DENSE, OFFLOAD, {"recompute": "full"}, {"recompute": "full"} | offloads("qkv")),
        (DENSE, {}, OFFLOAD, {}, {"graphs": "partial"}),
    ],
    "offload_parts": [
        (DENSE, {}, offloads("mlp"), offloads("qkv")),
        (DENSE, {}, offloads("attention_out"), offloads("attention_out", "core_attention")),
        (DENSE, {}, offloads("activation"), {}),
        (GROUPED, EP, offloads("expert_down"), offloads("expert_up", "activation", "expert_down")),
        (
            GROUPED,
            EP,
            offloads("expert_up", "activation", "expert_down"),
            offloads("expert_up", "activation"),
            {"release": "0.17"},
        ),
        (GROUPED, EP | offloads("expert_up"), parts("moe"), parts("core_attention")),
        (GROUPED, EP, offloads("attention_norm"), offloads("mlp_norm")),
        (DENSE, {}, offloads("mlp_norm"), {}),
        (DENSE, {}, offloads("qkv"), {}, {"release": "0.15"}),
    ],
    "lora_rank": [(DENSE, {}, {"lora_rank": 16}, {})],
    "frozen": [(DENSE, {}, {"frozen": ["embedding"]}, {})],
    "recompute_parts moe": [
        (GROUPED, EP, parts("moe"), parts("activation"), {"graphs": "partial"}),
    ],
    "expert_capacity": [(GROUPED, EP, {"expert_capacity": 1.5}, {}, {"release": "0.6"})],
    "full CUDA graphs": [
        (GROUPED, EP, {}, {"expert_capacity": 1.0}, {"graphs": "full"}),
    ],
    "recompute full": [
        (DENSE, {}, {"recompute": "full"}, parts("mlp"), {"graphs": "partial"}),
    ],
}

BRIDGE: dict[str, list[tuple[Any, ...]]] = {
    "offload": [(DENSE, {}, {"offload_weights": True}, {"lora_rank": 16})],
}
PRIMUS: dict[str, list[tuple[Any, ...]]] = {
    "schedule": [
        (DENSE, PP | {"schedule": "zb-h1"}, {}, {"dp_overlap": False}),
        (
            DENSE,
            PP | {"schedule": "zb-h1", "dp_overlap": False},
            {"quantization": "fp8_tensor"},
            {"quantization": "none"},
        ),
        (DENSE, PP, {"schedule": "gpipe"}, {"schedule": "1f1b"}),
    ],
    "quantization": [(DENSE, {}, {"quantization": "nvfp4"}, {"quantization": "mxfp8"})],
}
DISPATCHERS: dict[str, list[tuple[Any, ...]]] = {
    "dispatcher": [
        (GROUPED, {}, {"dispatcher": "deepep"}, {"dispatcher": "deepep", "ep": 8}),
        (GROUPED, EP, {"dispatcher": "hybridep"}, {"dispatcher": "deepep"}, {"release": "0.15"}),
        (
            GROUPED,
            EP,
            {"dispatcher": "deepep"},
            {"dispatcher": "hybridep"},
            {"machine": "gb200-nvl72"},
        ),
    ],
    "expert_overlap": [
        (
            GROUPED,
            EP | {"expert_overlap": True},
            {"dispatcher": "all_gather"},
            {"dispatcher": "all_to_all"},
        ),
    ],
    "expert_capacity": [
        (
            GROUPED,
            EP | {"expert_capacity": 1.5},
            {"dispatcher": "deepep"},
            {"dispatcher": "all_to_all"},
        ),
    ],
}

FULLY = {"zero": 3}
TITAN: dict[str, list[tuple[Any, ...]]] = {
    "zero": [
        (DENSE, {}, {"zero": 1}, {"zero": 2}),
        (DENSE, CP | {"cp_exchange": "all_gather"}, {"zero": 0}, FULLY),
    ],
    "tp": [(UNEVEN, FULLY | {"gpus": 56, "gbs": 56}, {"tp": 14}, {"tp": 4})],
    "ep": [
        (GROUPED, FULLY | {"dp_shard": 4}, {"ep": 8}, {"ep": 4}),
        (GROUPED, FULLY, EP, {}, {"release": "0.1"}),
    ],
    "etp": [(GROUPED, FULLY | {"tp": 4, "ep": 8}, {"etp": 4}, {"etp": 1})],
    "dp_shard": [(DENSE, FULLY, {"dp_shard": 24}, {"dp_shard": 32})],
    "seq_len": [(DENSE, FULLY | TP, {"seq_len": 8196}, {"seq_len": 8200})],
    "placement": [
        (DENSE, FULLY | PP, {"placement": "tp-cp-pp-dp"}, {"placement": "cp-tp-dp-pp"}),
    ],
    "schedule": [
        (DENSE, FULLY | PP, {"schedule": "zb-h1"}, {"schedule": "gpipe"}),
        (DENSE, FULLY | PP, {"schedule": "dualpipe"}, VPP | {"schedule": "interleaved"}),
        (DENSE, FULLY | PP, {"schedule": "zb-v"}, {"schedule": "1f1b"}),
        (DENSE, FULLY | PP, {"schedule": "interleaved"}, {"schedule": "1f1b"}),
    ],
    "vpp": [
        (DENSE, FULLY | VPP, {"schedule": "1f1b"}, {"schedule": "interleaved"}),
        (DENSE, FULLY | VPP | {"dp": 16}, {"gbs": 176}, {"gbs": 160}),
    ],
    "pp": [(TIED, FULLY, {"pp": 2}, {"pp": 1})],
    "stage_layers": [
        (DENSE, FULLY | PP, {"stage_layers": [19, 21, 21, 19]}, {}, {"release": "0.1"}),
    ],
    "tp_exchange": [
        (DENSE, FULLY | TP, {"tp_exchange": "all_reduce"}, {}, {"release": "0.2.2"}),
        (DENSE, FULLY | TP, {"tp_exchange": "p2p_rs_ag"}, {"tp_exchange": "all_reduce"}),
    ],
    "tp_overlap": [
        (DENSE, FULLY | TP, {"tp_overlap": "pipe"}, {"tp_overlap": "ring"}),
        (DENSE, FULLY | TP | {"tp_overlap": "ring"}, {"tp_exchange": "all_reduce"}, {}),
        (DENSE, FULLY | TP, {"tp_overlap": "ring"}, {}, {"compiled": False}),
    ],
    "cp_exchange": [
        (DENSE, FULLY | CP, {"cp_exchange": "ring"}, {"cp_exchange": "all_gather"}),
        (DENSE, FULLY | CP, {"cp_exchange": "all_to_all"}, {}, {"release": "0.2.2"}),
    ],
    "recompute_parts": [(DENSE, FULLY, parts("mlp"), parts("every_other"))],
    "recompute_layers": [
        (DENSE, FULLY | {"recompute": "full"}, {"recompute_layers": 8}, {}),
    ],
    "quantization": [
        (DENSE, FULLY, {"quantization": "fp8_tensor"}, {"quantization": "nvfp4"}),
        (DENSE, FULLY, {"quantization": "fp8_block"}, {"quantization": "mxfp8"}),
        (
            DENSE,
            FULLY,
            {"quantization": "nvfp4"},
            {"quantization": "fp8_tensor", "quantized_weights": True},
            {"release": "0.2.2"},
        ),
    ],
    "quantized_weights": [
        (DENSE, FULLY | {"quantization": "mxfp8"}, {"quantized_weights": True}, {}),
    ],
    "dtype": [(DENSE, FULLY, {"dtype": "fp16"}, {"dtype": "fp32"})],
    "optimizer": [
        (DENSE, FULLY, {"optimizer": "adamw-8bit"}, {"optimizer": "adamw-bf16"}),
        (DENSE, FULLY, {"optimizer": "muon"}, {"optimizer": "adamw"}, {"release": "0.2.2"}),
    ],
    "lora_rank": [(DENSE, FULLY, {"lora_rank": 16}, {}, {"release": "0.2.2"})],
    "fused_activation": [(DENSE, FULLY, {"fused_activation": True}, {"lora_rank": 16})],
    "offload_weights": [
        (
            DENSE,
            FULLY,
            {"offload_weights": True},
            {"offload_weights": True, "offload_optimizer": True},
        ),
        (DENSE, {"offload_weights": True, "offload_optimizer": True}, {"zero": 0}, FULLY),
    ],
    "offload_activations": [(DENSE, FULLY, OFFLOAD, {})],
    "dp_overlap": [(DENSE, FULLY, {"dp_overlap": False}, {})],
    "expert_overlap": [(GROUPED, FULLY | EP, {"expert_overlap": True}, {})],
    "expert_capacity": [
        (
            GROUPED,
            FULLY | EP | {"expert_capacity": 1.5},
            {"dispatcher": "deepep"},
            {"dispatcher": "hybridep"},
        ),
    ],
    "dispatcher": [
        (GROUPED, FULLY | EP, {"dispatcher": "all_gather"}, {"dispatcher": "all_to_all"}),
        (
            GROUPED,
            FULLY | EP,
            {"dispatcher": "hybridep"},
            {"dispatcher": "deepep"},
            {"release": "0.2.2"},
        ),
    ],
}
DEEPSPEED: dict[str, list[tuple[Any, ...]]] = {
    "pp": [(DENSE, PP, {"zero": 2}, {"zero": 1})],
    "schedule": [(DENSE, PP, {"schedule": "gpipe"}, {})],
    "vpp": [(DENSE, PP, {"vpp": 2}, {"vpp": 1})],
    "embedding_as_layer": [
        (DENSE, {"pp": 2}, {"embedding_as_layer": True}, {"first_stage_layers": 38}),
    ],
    "tp_exchange": [(DENSE, TP, {"tp_exchange": "rs_ag"}, {"tp_exchange": "all_reduce"})],
    "tp_overlap": [
        (DENSE, TP | {"tp_exchange": "all_reduce"}, {"tp_overlap": "ring"}, {}),
    ],
    "cp_exchange": [(DENSE, CP, {"cp_exchange": "ring"}, {"cp_exchange": "all_to_all"})],
    "cp": [
        (UNEVEN, {"cp_exchange": "all_to_all"}, {"cp": 8}, CP),
        (UNEVEN, {"cp_exchange": "all_to_all"}, CP | {"seq_len": 4098}, CP),
    ],
    "ep": [
        (GROUPED, {"tp": 8, "tp_exchange": "all_reduce"}, {"ep": 16}, {"ep": 8}),
        (GROUPED, EP, {"zero": 3}, {"zero": 2}, {"release": "0.18"}),
        (GROUPED, EP | {"zero": 3}, CP | {"cp_exchange": "all_to_all"}, {}),
    ],
    "etp": [
        (
            GROUPED,
            {"tp": 2, "ep": 8, "tp_exchange": "all_reduce"},
            {"etp": 2},
            {"etp": 1},
            {"release": "0.18"},
        ),
    ],
    "placement": [
        (
            DENSE,
            PP | {"tp": 2, "tp_exchange": "all_reduce"},
            {"placement": "pp-tp-cp-dp"},
            {"placement": "tp-cp-pp-dp"},
        ),
    ],
    "dp_shard": [(DENSE, {"dp_shard": 8}, {"zero": 2}, {"zero": 3})],
    "optimizer": [
        (DENSE, {"optimizer": "adamw-bf16"}, {"zero": 0}, {"zero": 1}),
    ],
    "quantization": [(DENSE, {}, {"quantization": "fp8_tensor"}, {})],
    "recompute": [(DENSE, {}, parts("mlp"), {"recompute": "full"})],
    "offload_weights": [(DENSE, {"offload_weights": True}, {"zero": 2}, {"zero": 3})],
    "offload_optimizer": [(DENSE, {"offload_optimizer": True}, {"zero": 0}, {"zero": 1})],
    "offload_activations": [(DENSE, OFFLOAD, {}, {"recompute": "full"})],
    "offload_parts": [(DENSE, {"recompute": "full"}, offloads("qkv"), OFFLOAD)],
}
HUGGINGFACE: dict[str, list[tuple[Any, ...]]] = {
    "pp": [(DENSE, FULLY, PP, {})],
    "zero": [(DENSE, {}, {"zero": 1}, {"zero": 2})],
    "tp, cp": [(DENSE, FULLY, TP, {}, {"release": "1.9"})],
    "dp_shard": [(DENSE, FULLY | TP, {"dp_shard": 1}, {"dp_shard": 4})],
    "cp": [(DENSE, CP, {"zero": 0}, FULLY)],
    "cp_exchange": [
        (DENSE, FULLY | CP, {"cp_exchange": "all_to_all"}, {}, {"release": "1.11"}),
    ],
    "ep": [(GROUPED, FULLY | {"cp": 8}, {"ep": 16}, {"ep": 8})],
    "etp": [(GROUPED, FULLY | {"tp": 2, "ep": 8}, {"etp": 2}, {"etp": 1})],
    "recompute": [(DENSE, FULLY, parts("core_attention"), {"recompute": "full"})],
    "quantization": [
        (DENSE, FULLY, {"quantization": "mxfp8"}, {"quantization": "fp8_tensor"}),
    ],
    "quantized_weights": [(DENSE, FULLY, {"quantized_weights": True}, {})],
    "offload_weights": [
        (
            DENSE,
            FULLY,
            {"offload_optimizer": True},
            {"offload_weights": True, "offload_optimizer": True},
        ),
        (DENSE, {"offload_weights": True, "offload_optimizer": True}, {"zero": 0}, FULLY),
    ],
    "placement": [(DENSE, FULLY | TP, {"placement": "dp-tp-cp-pp"}, {})],
    "optimizer": [(DENSE, FULLY, {"optimizer": "muon"}, {"optimizer": "adafactor"})],
}
MAXTEXT: dict[str, list[tuple[Any, ...]]] = {
    "schedule": [(DENSE, PP, {"schedule": "1f1b"}, {"schedule": "gpipe"})],
    "pp": [
        (DENSE, PP | {"schedule": "gpipe"}, {"gbs": 96}, {"gbs": 128}),
        (DENSE, {"schedule": "gpipe", "gpus": 96, "gbs": 96}, {"pp": 3}, {"pp": 2}),
    ],
    "zero": [(DENSE, {}, {"zero": 2}, {"zero": 1})],
    "fsdp_reshard": [(DENSE, FULLY, {"fsdp_reshard": False}, {})],
    "etp": [(GROUPED, {"tp": 2, "ep": 4}, {"etp": 1}, {"etp": 2})],
    "recompute_parts": [(DENSE, {}, parts("every_other"), parts("attention"))],
    "quantization": [(DENSE, {}, {"quantization": "nvfp4"}, {"quantization": "fp8_tensor"})],
    "dispatcher": [
        (GROUPED, EP, {"dispatcher": "deepep"}, {"dispatcher": "all_to_all"}),
    ],
}


def check(
    faults: Any,
    default: str,
    start: str,
    model: str,
    base: Fields,
    broken: Fields,
    lifted: Fields,
    options: Fields | None = None,
) -> None:
    """The broken plan has a fault that starts so; the other plan has none at all."""
    chosen = {"release": default} | (options or {})
    assert any(
        fault.startswith(start) for fault in fault_list(faults, model, base | broken, chosen)
    )
    assert fault_list(faults, model, base | lifted, chosen) == []


def fault_list(faults: Any, model: str, fields: Fields, options: Fields) -> list[str]:
    dispatcher = {name: value for name, value in fields.items() if name == "dispatcher"}
    loaded, strategy = plan(
        model, **{name: value for name, value in fields.items() if name not in dispatcher}
    )
    return faults(loaded, strategy | dispatcher, **options)


def rules(table: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    return [
        pytest.param(start, case, id=f"{start}-{number}")
        for start, cases in table.items()
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("start", "case"), rules(MEGATRON) + rules(DISPATCHERS))
def test_megatron(start: str, case: tuple[Any, ...]) -> None:
    check(megatron_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(BRIDGE))
def test_megatron_bridge(start: str, case: tuple[Any, ...]) -> None:
    check(LAUNCH["bridge"], "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(PRIMUS))
def test_primus(start: str, case: tuple[Any, ...]) -> None:
    check(LAUNCH["primus"], "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(TITAN))
def test_torchtitan(start: str, case: tuple[Any, ...]) -> None:
    check(torchtitan_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(DEEPSPEED))
def test_deepspeed(start: str, case: tuple[Any, ...]) -> None:
    check(deepspeed_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(HUGGINGFACE))
def test_huggingface(start: str, case: tuple[Any, ...]) -> None:
    check(huggingface_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(MAXTEXT))
def test_maxtext(start: str, case: tuple[Any, ...]) -> None:
    check(maxtext_faults, "main", start, *case)


def test_degrees_multiply_to_the_accelerators() -> None:
    model, strategy = plan(DENSE, tp=8)
    assert megatron_faults(model, strategy, "main") == []
    assert "gpus 65: the degrees multiply to 64" in megatron_faults(
        model, strategy | {"gpus": 65}, "main"
    )


def test_uneven_stages_of_an_odd_model_are_legal() -> None:
    """61 layers on 4 stages: 16, 15, 15, 15."""
    model, strategy = plan(LATENT, **LATENT_PP)
    assert megatron_faults(model, strategy, "main") == []


def test_predicted_tokens_need_rotary_positions_and_overlap_with_one_module() -> None:
    model, strategy = plan(LATENT, **LATENT_PP)
    unplaced = model.model_copy(update={"mtp": 1, "position": "alibi"})
    assert megatron_faults(unplaced, strategy, "main") == ["mtp: not with alibi positions"]
    model, strategy = plan(LATENT, ep=16, expert_overlap=True)
    for modules in (1, 2):
        faults = megatron_faults(model.model_copy(update={"mtp": modules}), strategy, "main")
        assert len(faults) == modules - 1


def test_nothing_is_sharded_on_one_accelerator() -> None:
    """What one rank has no use for is no fault: ZeRO 1 of torchtitan, unhidden communication."""
    model, strategy = plan(TIED, gpus=1, zero=1, dp_overlap=False, dp_shard=1)
    assert torchtitan_faults(model, strategy, "main") == []
    assert megatron_faults(model, strategy, "main") == []


def test_releases_are_ordered_by_number() -> None:
    assert release_numbers("0.9") < release_numbers("0.16.1") < release_numbers("main")


def test_the_stack_of_a_strategy_chooses_the_launcher() -> None:
    """torchtitan has no ZeRO 1; its stack may be a name, a base with changes, or all its fields."""
    for stack in ("torchtitan-2025", {"base": "torchtitan-2025"}, {"name": "torchtitan-2025"}):
        model, strategy = plan(DENSE)
        strategy |= {"stack": stack}
        assert stack_name(strategy) == "torchtitan-2025"
        assert launch_faults(model, strategy) == ["zero 1: cannot"]
        assert launch_faults(model, strategy | {"stack": "simumax"}) == []


def test_launchers_are_those_of_stacks_in_the_catalog() -> None:
    assert set(LAUNCHERS) <= set(catalog.names("stacks"))

"""The checker of Megatron-LM and what wraps it: a plan breaks each rule, its neighbor does not."""

from functools import partial

import pytest

from launcher_cases import (
    BIASED,
    CP,
    DENSE,
    EP,
    GROUPED,
    LATENT,
    LATENT_PP,
    OFFLOAD,
    PP,
    TIED,
    TP,
    UNEVEN,
    VPP,
    Case,
    Cases,
    check,
    fsdp,
    offloads,
    parts,
    plan,
    rules,
)
from launcher_rules import megatron_faults

MEGATRON: Cases = {
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

BRIDGE: Cases = {
    "offload": [(DENSE, {}, {"offload_weights": True}, {"lora_rank": 16})],
}
PRIMUS: Cases = {
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
DISPATCHERS: Cases = {
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


@pytest.mark.parametrize(("start", "case"), rules(MEGATRON) + rules(DISPATCHERS))
def test_megatron(start: str, case: Case) -> None:
    check(megatron_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(BRIDGE))
def test_megatron_bridge(start: str, case: Case) -> None:
    check(partial(megatron_faults, bridge=True), "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(PRIMUS))
def test_primus(start: str, case: Case) -> None:
    check(partial(megatron_faults, primus=True), "main", start, *case)


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

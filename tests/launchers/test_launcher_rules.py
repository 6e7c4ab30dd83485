"""The checker of launchers: each of its rules is broken by one plan and not by its neighbor."""

import pytest

from launcher_cases import (
    CP,
    DENSE,
    EP,
    FULLY,
    GROUPED,
    OFFLOAD,
    PP,
    TIED,
    TP,
    UNEVEN,
    VPP,
    Case,
    Cases,
    check,
    offloads,
    parts,
    plan,
    rules,
)
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
from shardwise import catalog

TITAN: Cases = {
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
        (DENSE, FULLY | PP, {"stage_layers": [19, 21, 21, 19]}, {}, {"release": "0.0"}),
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
DEEPSPEED: Cases = {
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
HUGGINGFACE: Cases = {
    "pp": [(DENSE, FULLY, PP, {})],
    "zero": [(DENSE, {}, {"zero": 1}, {"zero": 2})],
    "tp, cp": [(DENSE, FULLY, TP, {}, {"release": "1.9"})],
    "dp_shard": [(DENSE, FULLY | TP, {"dp_shard": 1}, {"dp_shard": 4})],
    "cp": [(DENSE, CP, {"zero": 0}, FULLY)],
    "cp_exchange": [
        (DENSE, FULLY | CP, {"cp_exchange": "all_to_all"}, {}, {"release": "1.11"}),
    ],
    "ep": [(GROUPED, FULLY | {"cp": 8}, {"ep": 16}, {"ep": 8})],
    "etp": [(GROUPED, FULLY | {"ep": 8}, {"etp": 2}, {"etp": 1})],
    "tp: not with experts": [(GROUPED, FULLY | {"ep": 8}, {"tp": 2}, {"tp": 1})],
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
MAXTEXT: Cases = {
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


@pytest.mark.parametrize(("start", "case"), rules(TITAN))
def test_torchtitan(start: str, case: Case) -> None:
    check(torchtitan_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(DEEPSPEED))
def test_deepspeed(start: str, case: Case) -> None:
    check(deepspeed_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(HUGGINGFACE))
def test_huggingface(start: str, case: Case) -> None:
    check(huggingface_faults, "main", start, *case)


@pytest.mark.parametrize(("start", "case"), rules(MAXTEXT))
def test_maxtext(start: str, case: Case) -> None:
    check(maxtext_faults, "main", start, *case)


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

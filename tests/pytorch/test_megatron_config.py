"""Plans are configurations that megatron-core and torchtitan themselves accept.

A check that does not share the rules of shardwise: their own code decides. It needs the packages
`megatron-core` and `torchtitan` (0.2), and PyTorch, but no GPU: process groups are fake.
"""

from typing import Any

import pytest

from launcher_rules import megatron_faults, torchtitan_faults
from shardwise import Model, Strategy

launched_configs = pytest.importorskip("launched_configs")

DENSE, GROUPED, LATENT = "llama3-70b", "qwen3-30b-a3b", "deepseek-v3"
Fields = dict[str, Any]


def plan(model: str, **fields: Any) -> tuple[Model, Fields]:
    """A model of the catalog and a strategy for it, as `estimate --json` writes it."""
    dispatcher = {name: fields.pop(name) for name in ("dispatcher",) if name in fields}
    loaded = Model.load(model)
    strategy = Strategy(**({"gpus": 64, "gbs": 128} | fields)).resolved(loaded).to_dict()
    return loaded, strategy | dispatcher


def parts(*names: str) -> Fields:
    return {"recompute": "selective", "recompute_parts": list(names)}


def offloads(*names: str) -> Fields:
    return {"offload_activations": True, "offload_parts": list(names)}


# What can be launched, and a change that Megatron refuses, with the words of its refusal.
MEGATRON: list[tuple[str, Fields, Fields, str]] = [
    (DENSE, {"tp": 8, "pp": 4}, {"tp": 3, "gpus": 48, "gbs": 96}, "multiple of"),
    (DENSE, {"pp": 4, "vpp": 5}, {"vpp": 3}, "divisible"),
    (DENSE, {"pp": 4, "vpp": 5}, {"gbs": 100}, "100"),
    (DENSE, {"pp": 4, "vpp": 5, "gbs": 64}, {"gbs": 32}, "micro-batches"),
    (DENSE, {"pp": 4}, {"schedule": "zb-h1"}, "zb-h1"),
    (DENSE, {"pp": 4}, {"schedule": "gpipe"}, "gpipe"),
    (DENSE, {"pp": 8, "embedding_as_layer": False}, {"embedding_as_layer": True}, "divisible"),
    (
        DENSE,
        {"pp": 4, "stage_layers": [19, 21, 21, 19]},
        {"stage_layers": [19, 21, 21, 18]},
        "79",
    ),
    (
        DENSE,
        {"pp": 4, "first_stage_layers": 17},
        {"first_stage_layers": 18},
        "divisible",
    ),
    (DENSE, {"cp": 2, "cp_exchange": "all_gather"}, {"tp_exchange": "summa", "tp": 2}, "summa"),
    (DENSE, {"recompute": "full"}, parts("attention"), "attention"),
    (
        DENSE,
        {"recompute": "full", "recompute_layers": 4},
        parts("mla_up") | {"recompute_layers": None},
        "mla_up_proj",
    ),
    (DENSE, parts("mlp"), parts("mlp") | {"recompute_layers": 4}, "must be None"),
    (DENSE, {}, {"offload_weights": True}, "less than 80"),
    (DENSE, offloads("core_attention", "attention_out"), offloads("attention_out"), "attn_proj"),
    (DENSE, offloads("qkv"), offloads("mlp"), "mlp"),
    (DENSE, {"optimizer": "adamw-bf16"}, {"optimizer": "adamw-bf16", "zero": 0}, "distributed"),
    (DENSE, {"optimizer": "muon"}, {"optimizer": "adafactor"}, "adafactor"),
    (DENSE, {"offload_optimizer": True}, {"optimizer": "sgd"}, "adam"),
    (DENSE, {"quantization": "mxfp8", "quantized_weights": True}, {"quantization": "none"}, "fp8"),
    (DENSE, {"pp": 4, "placement": "tp-cp-pp-dp"}, {"cp": 2}, "pp-last"),
    (DENSE, {"tp": 2, "placement": "tp-cp-dp-pp"}, {"placement": "dp-tp-cp-pp"}, "dp-tp"),
    (DENSE, {"zero": 3, "dp_shard": 16}, {"dp_shard": 24}, "dp_shard"),
    (DENSE, {}, {"ep": 2}, "num_moe_experts"),
    (GROUPED, {"ep": 8}, {"ep": 48, "gpus": 64}, "divisible"),
    (GROUPED, {"ep": 8, "expert_overlap": True}, {"ep": 1}, "expert model parallelism"),
    (GROUPED, {"ep": 8, "expert_overlap": True}, {"recompute": "full"}, "recomputation"),
    (
        GROUPED,
        {"ep": 8, "pp": 2, "vpp": 2, "expert_overlap": True},
        {"vpp": 1},
        "virtual_pipeline",
    ),
    (
        GROUPED,
        {"ep": 8, "expert_capacity": 1.5},
        {"dispatcher": "deepep"},
        "moe_pad_expert_input_to_capacity",
    ),
    (
        GROUPED,
        {"ep": 8, "expert_overlap": True, "dispatcher": "hybridep"},
        {"dispatcher": "all_gather"},
        "dispatcher",
    ),
    (GROUPED, {"ep": 8} | parts("activation"), parts("mla_up"), "multi_latent_attention"),
    ("gpt-oss-20b", {"tp": 2, "ep": 4}, {"etp": 2}, "ETP==1"),
    (
        LATENT,
        {"pp": 4, "ep": 16, "first_stage_layers": 16} | parts("mla_up", "shared_experts"),
        {"first_stage_layers": 15},
        "divisible",
    ),
]


FULLY: Fields = {"zero": 3}
TITAN: list[tuple[str, Fields, Fields]] = [
    (DENSE, FULLY | {"tp": 8, "pp": 4}, {"tp_exchange": "all_reduce"}),
    (DENSE, FULLY | {"dp_shard": 16}, {"dp_shard": 24}),
    (DENSE, FULLY, {"zero": 1}),
    (DENSE, FULLY | {"pp": 4, "schedule": "zb-v"}, {"schedule": "interleaved"}),
    (DENSE, FULLY | {"pp": 4, "vpp": 5, "gbs": 160}, {"gbs": 176}),
    (DENSE, FULLY | {"pp": 4}, {"schedule": "zb-h1"}),
    (DENSE, FULLY | {"cp": 4}, {"cp_exchange": "all_to_all"}),
    (DENSE, FULLY | parts("every_other"), parts("mlp")),
    (DENSE, FULLY | {"recompute": "full", "tp": 2, "tp_overlap": "ring"}, {"tp_overlap": "pipe"}),
    (DENSE, FULLY | {"quantization": "fp8_tensor"}, {"quantization": "nvfp4"}),
    (DENSE, FULLY, {"dtype": "fp16"}),
    (DENSE, {"zero": 0}, {"optimizer": "muon"}),
    (GROUPED, FULLY | {"ep": 16, "tp": 2}, {"ep": 48}),
    (GROUPED, FULLY | {"ep": 8, "tp": 4, "etp": 4}, {"etp": 2}),
    (GROUPED, FULLY | {"ep": 8, "dispatcher": "deepep"}, {"dispatcher": "hybridep"}),
]


def _ids(cases: list[tuple[Any, ...]]) -> list[str]:
    return [f"{number}-{'-'.join(case[-2])}" for number, case in enumerate(cases)]


@pytest.mark.parametrize(("model", "fields", "change", "words"), MEGATRON, ids=_ids(MEGATRON))
def test_megatron_configures_a_plan_and_refuses_its_neighbor(
    model: str, fields: Fields, change: Fields, words: str
) -> None:
    """Our list of Megatron's rules judges both alike."""
    legal, refused = plan(model, **fields), plan(model, **(fields | change))
    launched_configs.megatron_run(*legal)
    with pytest.raises((AssertionError, ValueError, RuntimeError, KeyError), match=words):
        launched_configs.megatron_run(*refused)
    assert megatron_faults(*legal, "main", machine="b200-sxm") == []
    assert megatron_faults(*refused, "main", machine="b200-sxm")


def test_megatron_spreads_layers_as_the_plan_says() -> None:
    """DeepSeek V3's 61 layers on 16 stages, 4 first and 1 last; Llama's 80 in uneven chunks."""
    model, strategy = plan(
        LATENT, gpus=1024, gbs=2048, pp=16, ep=64, first_stage_layers=4, last_stage_layers=1
    )
    config = launched_configs.megatron_run(model, strategy)
    assert launched_configs.megatron_stages(config) == [4, *[4] * 14, 1]
    for counts in ([19, 20, 20, 21], [9, 10, 10, 10, 10, 10, 10, 11]):
        model, strategy = plan(DENSE, pp=4, vpp=len(counts) // 4, stage_layers=counts)
        config = launched_configs.megatron_run(model, strategy)
        assert launched_configs.megatron_stages(config) == counts


@pytest.mark.parametrize(("model", "fields", "change"), TITAN)
def test_torchtitan_configures_a_plan_and_refuses_its_neighbor(
    model: str, fields: Fields, change: Fields
) -> None:
    pytest.importorskip("tyro")
    legal, refused = plan(model, **fields), plan(model, **(fields | change))
    launched_configs.titan_run(legal[1])
    with pytest.raises((AssertionError, ValueError, RuntimeError, KeyError, SystemExit)):
        launched_configs.titan_run(refused[1])
    compiled = legal[1]["schedule"] != "zb-v"
    assert torchtitan_faults(*legal, "0.2.2", compiled=compiled) == []
    assert torchtitan_faults(*refused, "0.2.2", compiled=compiled)

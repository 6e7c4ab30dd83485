"""Stacks of the catalog: what the sources of each launcher refuse, and what a user tries first."""

from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model, Stack, System, catalog, estimate, export, search
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import illegal_faults, software
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINTS

Fields = dict[str, Any]
DENSE, TIED, GROUPED, LATENT = "llama3-8b", "llama3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"
CORE = ("megatron-core-2025", "nemo-2025", "megatron-bridge-2025", "megatron-bridge-2026")
MEGATRON = (*CORE, "primus-2026")
BRIDGE = ("megatron-bridge-2025", "megatron-bridge-2026", "primus-2026")
TITAN = ("torchtitan-2024", "torchtitan-2025", "torchtitan-eager")
SHARDED: Fields = {"zero": 3}
LORA: Fields = {"lora_rank": 16}


def parts(*names: str) -> Fields:
    return {"recompute": "selective", "recompute_parts": list(names)}


def refused(stack: str | Fields, model: str, fields: Fields, on: str = "h100-sxm") -> str:
    """What a stack says of a strategy on 64 GPUs; empty if it runs it. It breaks no other rule."""
    loaded, system = Model.load(model), System.load(on)
    own = {"gpus": 64, "gbs": 512, "stack": stack} | fields
    strategy = Strategy.validated(own).resolved(loaded)
    table = Table.of(loaded, [strategy])
    faults = illegal_faults(loaded, system, table)
    assert set(faults) <= {"software"}, faults
    broken = [bool(one.violated(loaded, system, table)[0]) for one in SOFTWARE_CONSTRAINTS]
    assert any(broken) == bool(faults)
    return str(faults.get("software", ""))


def _rows() -> list[tuple[tuple[str, ...], str, str, Fields, Fields]]:
    host, resident = {"offload_optimizer": True}, {"zero": 3, "fsdp_reshard": False}
    overlap = {"expert_overlap": True, "ep": 8}
    stages = {"pp": 2, "first_stage_layers": 12}
    spread = {"pp": 2, "stage_layers": [15, 17]}
    moved = SHARDED | {"offload_weights": True, "offload_optimizer": True}
    gpipe = {"pp": 4, "schedule": "gpipe", "zero": 1}
    reversed_ = {"pp": 4, "zero": 1, "schedule": "1f1b"}
    return [
        (MEGATRON, DENSE, "offload_optimizer", host | {"zero": 0}, host | {"zero": 1}),
        (MEGATRON, DENSE, "optimizer", {"optimizer": "adamw-bf16", "zero": 0}, {"zero": 0}),
        (CORE, TIED, "fsdp_reshard", resident, SHARDED),
        (CORE[:2], DENSE, "fsdp_reshard", resident | {"dtype": "fp16"}, resident),
        (CORE[2:], DENSE, "fsdp_reshard", resident, SHARDED),
        (CORE[1:], DENSE, "lora_parts", LORA | {"lora_parts": ["attention", "head"]}, LORA),
        (MEGATRON, GROUPED, "recompute_parts", {"ep": 8} | parts("mlp", "moe"), parts("moe")),
        (MEGATRON, DENSE, "recompute_parts", parts("mla_up", "mlp"), parts("mlp")),
        (MEGATRON, LATENT, "recompute_parts", parts("every_other"), parts("mla_up", "mlp")),
        (MEGATRON, DENSE, "schedule", {"pp": 2, "schedule": "gpipe"}, {"schedule": "gpipe"}),
        (
            BRIDGE,
            GROUPED,
            "expert_overlap",
            overlap | {"dispatcher": "all_gather"},
            overlap | {"dispatcher": "all_to_all"},
        ),
        (MEGATRON, DENSE, "frozen", {"frozen": ["embedding"]}, {}),
        (CORE[:1], DENSE, "lora_rank", {"lora_rank": 16}, {}),
        (MEGATRON[1:], DENSE, "tp_overlap", {"tp": 2, "tp_overlap": "pipe"}, {"lora_rank": 16}),
        (TITAN, DENSE, "recompute_layers", {"recompute": "full", "recompute_layers": 8}, stages),
        (TITAN, DENSE, "zero", {"zero": 1}, spread),
        (TITAN, DENSE, "offload_weights", moved | {"gpus": 4, "tp": 4}, moved),
        (TITAN[2:], DENSE, "tp_overlap", {"tp": 4, "tp_overlap": "ring"}, {"tp": 4}),
        (("huggingface-2024",), DENSE, "offload_weights", moved | {"gpus": 1}, moved),
        (("huggingface-2024",), DENSE, "dp_overlap", {"dp_overlap": False}, {"lora_rank": 16}),
        (("huggingface-2024",), DENSE, "optimizer", {"optimizer": "muon"}, {"zero": 2}),
        (("deepspeed-2024",), DENSE, "pp", {"pp": 4}, {"pp": 4, "zero": 1}),
        (("deepspeed-2024",), DENSE, "vpp", {"pp": 4, "vpp": 2, "zero": 1}, stages | {"zero": 1}),
        (("deepspeed-2024",), GROUPED, "ep", {"ep": 8}, {"ep": 8, "zero": 2}),
        (("deepspeed-2024",), GROUPED, "dispatcher", {"dispatcher": "all_gather"}, {}),
        (("deepspeed-2024",), DENSE, "dp_shard", {"dp_shard": 8, "zero": 2}, {"dp_shard": 8}),
        (("deepspeed-2024",), DENSE, "tp", {"tp": 2}, {"lora_rank": 16}),
        (("maxtext-2024",), DENSE, "recompute_parts", parts("every_other"), parts("attention")),
        (
            ("maxtext-2024",),
            DENSE,
            "recompute_layers",
            {"recompute": "full", "recompute_layers": 8},
            {"recompute": "full"},
        ),
        (("maxtext-2024",), GROUPED, "etp", {"tp": 2, "etp": 1, "ep": 4}, {"tp": 2, "ep": 4}),
        (("maxtext-2024",), DENSE, "fsdp_reshard", resident, SHARDED),
        (("maxtext-2024",), DENSE, "schedule", reversed_, gpipe),
        (("maxtext-2024",), DENSE, "embedding_as_layer", gpipe | {"embedding_as_layer": True}, {}),
        (("maxtext-2024",), DENSE, "loss_as_layer", gpipe | {"loss_as_layer": True}, {"pp": 4}),
    ]


@each_row(("stacks", "model", "field", "wrong", "right"), _rows())
def test_stacks_refuse_what_their_sources_do(
    stacks: tuple[str, ...], model: str, field: str, wrong: Fields, right: Fields
) -> None:
    """One strategy that the launcher refuses, and one next to it that it runs."""
    for stack in stacks:
        assert refused(stack, model, wrong).startswith(f"strategy: {field}: "), stack
        assert refused(stack, model, right) == "", stack


@each_row(
    ("dispatcher", "on", "runs"),
    [
        ("deepep", "a100-80gb-sxm", True),
        ("deepep", "h100-sxm", True),
        ("deepep", "b200-sxm", True),
        ("deepep", "b300-sxm", True),
        ("deepep", "gb200-nvl72", False),
        ("deepep", "gb300-nvl72", False),
        ("hybridep", "gb200-nvl72", True),
        ("hybridep", "mi300x", True),
        ("hybridep", "rtx-5090", False),
        ("deepep", "rtx-5090", False),
        ("all_to_all", "rtx-5090", True),
    ],
)
def test_libraries_of_dispatchers_run_on_some_accelerators(
    dispatcher: str, on: str, runs: bool
) -> None:
    """Megatron-Bridge 0.6 raises on others; estimates, searches and exports read one rule."""
    fields: Fields = {"gpus": 64, "gbs": 512, "ep": 8, "dispatcher": dispatcher}
    fields["stack"] = "megatron-bridge-2026"
    refusal = refused("megatron-bridge-2026", GROUPED, fields, on)
    assert (refusal == "") == runs
    lifted = estimate(GROUPED, on, fields | {"any_software": True})
    assert not lifted.software.checked
    found = search(GROUPED, on, fields, tp=1, pp=1, recompute="full", zero=1, top=1)
    assert (found.evaluated > 0) == runs
    if runs:
        return
    assert refusal.startswith(f"strategy: dispatcher: '{dispatcher}': ")
    with pytest.raises(InputError, match=f"dispatcher: '{dispatcher}': megatron-bridge-2026"):
        export("megatron-bridge", GROUPED, on, fields)


def test_graphs_of_the_stack_count_as_those_of_a_strategy() -> None:
    """Megatron-FSDP with overlapped experts captures no layers, whoever asks for it."""
    captures: Fields = {"base": "megatron-bridge-2026", "cuda_graphs": "partial"}
    fields: Fields = {"ep": 8, "expert_overlap": True, "zero": 2, "dispatcher": "hybridep"}
    own = fields | {"cuda_graphs": "partial"}
    assert "no graphs of layers" in refused("megatron-bridge-2026", GROUPED, own)
    assert "no graphs of layers" in refused(captures, GROUPED, fields)
    assert refused("megatron-bridge-2026", GROUPED, fields) == ""
    for runs in ({"cuda_graphs": "none"}, {"cuda_graphs": "full"}, {"zero": 1}):
        assert refused(captures, GROUPED, fields | runs) == ""


@each_row("stack", catalog.names("stacks"))
def test_a_stack_runs_what_a_user_tries_first(stack: str) -> None:
    """The number of GPUs and the batch are enough; unknown software is one of two."""
    found = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 16, "stack": stack})
    meant = "unknown-eager" if stack == "unknown" else Stack.load(stack).name
    assert found.software.stack == meant


def test_one_stage_has_no_schedule() -> None:
    """Without a pipeline a step accumulates gradients; GPipe saves one micro-batch, as 1F1B."""
    row = {"gpus": 8, "gbs": 128, "any_software": True, "recompute": "full"}
    plain, gpipe = (
        estimate("llama3-8b", "h100-sxm", row | {"schedule": word}).to_dict()
        for word in ("1f1b", "gpipe")
    )
    assert gpipe["memory_bytes"] == plain["memory_bytes"]
    assert gpipe["step_time_s"] == plain["step_time_s"]


def test_rules_of_a_stack_hold_after_those_of_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved of a legal strategy refuses as before when the checks are made again."""
    wrong = {"offload_optimizer": True, "optimizer": "adamw", "zero": 0}
    assert not refused("megatron-core-2025", "llama3-8b", {})
    before = refused("megatron-core-2025", "llama3-8b", wrong)
    monkeypatch.setattr(software, "_known", {})
    assert not refused("megatron-core-2025", "llama3-8b", {"zero": 2})
    assert refused("megatron-core-2025", "llama3-8b", wrong) == before != ""

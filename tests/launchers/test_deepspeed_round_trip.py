"""Plans written as DeepSpeed's JSON come back as they were."""

import json
from collections import Counter
from typing import Any

from launch_plans import legal_plans, with_effect, with_types
from profiles import drawn
from shardwise.launchers.deepspeed import LAUNCHER
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.writing import launch_files

IN_CODE = {
    "seq_len", "document_len", "data_lengths", "batching",  # of the data
    "attention", "frozen", "lora_rank", "lora_parts",  # of the model
    "placement", "expert_imbalance", "grad_sync", "attention_kernel", "etp", "schedule",
    "dispatcher", "loss",
    "compile", "expert_kernel", "host_threads",
}  # fmt: skip
"""Fields that the JSON does not hold: the model's code, or the stack, decides them."""
FLAGS = (
    "dp_overlap",
    "fsdp_reshard",
    "offload_weights",
    "offload_optimizer",
    "offload_activations",
)
CLIENT = ("adamw-8bit",)
"""Optimizers that the client brings."""


def expected(plan: LaunchPlan) -> dict[str, Any]:
    """Fields of a plan that the JSON holds."""
    fields = with_effect(plan.model, plan.strategy.to_dict(), IN_CODE)
    fields = with_types(fields, plan.strategy)
    if not fields["offload_activations"]:
        fields["recompute"] = "none"  # turned on by the model's code
    if fields["optimizer"] in CLIENT:
        fields["optimizer"] = "adamw"
        del fields["moment_dtype"]  # the name of the optimizer says it
    if fields.get("tp_overlap") == "none":
        fields["tp_overlap"] = "stack"  # which has none
    return fields


def returned(plan: LaunchPlan) -> dict[str, Any]:
    """The plan after it was written and read."""
    config, _ = launch_files(LAUNCHER, plan)
    text = LaunchText(
        source="plan.json", text=config.text, model=plan.model, gpus=plan.strategy.gpus
    )
    launch = LAUNCHER.read(text)
    left = {one.option for one in launch.not_understood}
    assert left <= {"activation_checkpointing"}, left
    fields = {name: value for name, value in launch.strategy.items() if name != "stack"}
    row = {"seq_len": plan.strategy.seq_len, "stack": LAUNCHER.stack, **fields}
    again = type(plan.strategy)(**row).resolved(plan.model)
    return with_types(again.to_dict(), again)


def test_plans_come_back() -> None:
    """Random plans that DeepSpeed can run, in every field that its JSON holds."""
    seen: Counter[str] = Counter()
    for plan in legal_plans(LAUNCHER, drawn(400)):
        want, got = expected(plan), returned(plan)
        assert {name: got[name] for name in want} == want
        seen.update(name for name in ("tp", "cp", "pp", "ep") if want.get(name, 1) > 1)
        seen.update(f"{name} {want[name]}" for name in ("zero", *FLAGS) if name in want)
    for name in ("tp", "cp", "pp", "ep", "zero 0", "zero 1", "zero 2", "zero 3"):
        assert seen[name], name
    for name in FLAGS:
        assert seen[f"{name} True"], name
        assert seen[f"{name} False"], name


def test_the_first_file_is_strict_json() -> None:
    """Without comments, which are in the script."""
    for plan in legal_plans(LAUNCHER, 5):
        config, script = launch_files(LAUNCHER, plan)
        data = json.loads(config.text)
        strategy = plan.strategy
        size = data["train_micro_batch_size_per_gpu"] * data["gradient_accumulation_steps"]
        assert data["train_batch_size"] == size * (strategy.dp or 0)
        assert "# a comment\n" in script.text
        assert script.text.startswith("#!/usr/bin/env bash\n")
        assert script.executable
        assert f"sequences of {strategy.seq_len} tokens" in script.text

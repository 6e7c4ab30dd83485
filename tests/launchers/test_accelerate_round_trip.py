"""Plans written as accelerate's YAML come back as they were."""

import ast
from collections import Counter
from typing import Any

import yaml

from launch_plans import legal_plans, with_effect, with_types
from profiles import drawn
from shardwise.launchers.accelerate import LAUNCHER
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.writing import launch_files

IN_CODE = {
    "seq_len", "document_len", "data_lengths", "batching",  # of the data
    "attention", "frozen", "lora_rank", "lora_parts",  # of the model
    "micro_batch_size", "global_batch_size", "optimizer",  # of the Trainer's command line
    "tp_exchange", "tp_overlap", "ep", "etp", "expert_imbalance", "dispatcher", "grad_sync", "loss",
    "attention_kernel",
    "weight_dtype", "master_dtype", "moment_dtype", "gradient_dtype", "reduce_dtype",
    "expert_kernel",
}  # fmt: skip
"""Fields that the YAML does not hold."""


def expected(plan: LaunchPlan) -> dict[str, Any]:
    """Fields of a plan that the YAML holds."""
    fields = with_effect(plan.model, plan.strategy.to_dict(), IN_CODE)
    fields = with_types(fields, plan.strategy)
    reshards = fields.pop("fsdp_reshard", True)
    if not reshards and "zero" in fields:  # one option, which ZeRO 2 has too
        fields["zero"] = 2
    if fields.get("zero", 0) == 0:
        fields["recompute"] = "none"  # turned on by the model's code
    return fields


def returned(plan: LaunchPlan) -> dict[str, Any]:
    """The plan after it was written and read."""
    config = launch_files(LAUNCHER, plan)[0]
    launch = LAUNCHER.read(LaunchText(source="plan.yaml", text=config.text, model=plan.model))
    left = {one.option for one in launch.not_understood}
    assert left <= {"parallelism_config.parallelism_config_tp_size"}, left
    strategy = plan.strategy
    own = {name: getattr(strategy, name) for name in ("seq_len", "global_batch_size")}
    again = type(strategy)(**{**own, **launch.strategy}).resolved(plan.model)
    return with_types(again.to_dict(), again)


def test_plans_come_back() -> None:
    """Random plans that accelerate can run, in every field that its YAML holds."""
    seen: Counter[str] = Counter()
    for plan in legal_plans(LAUNCHER, drawn(345), pipelines=False):
        want, got = expected(plan), returned(plan)
        assert {name: got[name] for name in want} == want
        seen.update(name for name in ("tp", "cp") if want.get(name, 1) > 1)
        names = ("zero", "cp_exchange", "recompute", "offload_weights", "quantization", "dtype")
        seen.update(f"{name} {want[name]}" for name in names if name in want)
        seen.update(["dp_shard"] if "dp_shard" in want else [])
    for name in ("tp", "cp", "dp_shard", "zero 0", "zero 2", "zero 3", "recompute full"):
        assert seen[name], name
    for name in ("cp_exchange ring", "cp_exchange all_gather", "offload_weights True"):
        assert seen[name], name
    for name in ("quantization fp8_tensor", "dtype bf16", "dtype fp16", "dtype fp32"):
        assert seen[name], name


def test_files_of_a_plan() -> None:
    """YAML with remarks, a script, and with tensor parallelism a plan in Python between them."""
    split = 0
    for plan in legal_plans(LAUNCHER, drawn(40), pipelines=False):
        config, *plans, script = launch_files(LAUNCHER, plan)
        assert yaml.safe_load(config.text)["num_processes"] == plan.strategy.gpus
        assert "# a comment\n" in config.text
        assert "# a comment\n" in script.text
        assert script.executable
        assert f"--per_device_train_batch_size {plan.strategy.micro_batch_size}" in script.text
        assert len(plans) == (plan.strategy.tp > 1)
        for one in plans:
            split += 1
            names = [node.name for node in ast.parse(one.text).body if hasattr(node, "name")]
            scatters = plan.strategy.tp_exchange == "rs_ag"
            assert names == ["parallelize"] if scatters else ["Replicated", "parallelize"]
            assert scatters == ("output_layouts=Shard(1)" in one.text)
    assert split


def test_the_second_ending() -> None:
    plan = next(legal_plans(LAUNCHER, 1))
    config, *_, script = launch_files(LAUNCHER, plan, ending=".yml")
    assert config.ending == ".yml"
    assert ".yml}" in script.text

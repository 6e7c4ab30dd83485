"""Stacks of the catalog: which software a run has, the prior, and what each says of itself."""

import json
from collections import Counter
from typing import Any

import numpy as np

from catalog_fit.fit import load_groups
from rows import each_row
from shardwise import Stack, System, catalog, estimate

NEWEST = load_groups()["newest stacks"]
NEW = (
    "deepspeed-2024",
    "gaudi-2025",
    "gpt-neox-2023",
    "huggingface-2024",
    "llama-factory-2024",
    "megatron-deepspeed-2024",
    "megatron-lm-2024",
    "megatron-lm-2026",
    "mindspeed-2024",
    "oneflow-2021",
    "megatron-bridge-2026",
    "megatron-bridge-nvl72",
    "primus-2026",
    "torchtune-2024",
    "unknown",
)
ROW: dict[str, Any] = {"gpus": 8, "tp": 2, "gbs": 8, "any_software": True}


def test_the_prior_has_median_figures() -> None:
    """Of the newest stack of each framework; of words and switches the most frequent."""
    prior = Stack.load("unknown").to_dict()
    stacks = [Stack.load(name).to_dict() for name in NEWEST]
    for name, value in prior.items():
        if name in ("name", "description", "sources", "release", "flex_permute_traffic_factor"):
            continue
        values = [stack[name] for stack in stacks]
        if isinstance(value, str | bool):
            assert value == Counter(values).most_common(1)[0][0], name
        elif isinstance(value, int | float):
            assert np.isclose(value, np.median(values), rtol=1e-3), name


@each_row("name", NEW)
def test_new_stacks_have_a_source_for_every_figure(name: str) -> None:
    """And a description; an estimate with each of them is finite."""
    stack = Stack.load(name)
    assert stack.description
    for field in set(Stack.model_fields) - {"name", "description", "sources"}:
        assert stack.source_of(field) is not None, field
    assert 0 < estimate("llama3-8b", "a100-80gb-sxm", {**ROW, "stack": name}).step_time_s < 100


@each_row(
    ("system", "stack"),
    [
        ("a100-80gb-sxm", "megatron-bridge-2026"),
        ("h100-sxm", "megatron-bridge-2026"),
        ("gb300-nvl72", "megatron-bridge-nvl72"),
        ("mi355x", "primus-2026"),
        ("tpu-v5p", "maxtext-2024"),
        ("trainium1", "neuronx-2024"),
        ("gaudi2", "gaudi-2025"),
        ("v100-sxm-32gb", "megatron-lm-2022"),
        ("calculon-a100-80g", "megatron-core-2025"),
        ("nersc-a100", "megatron-core-2025"),
    ],
)
def test_accelerators_name_the_software_of_today(system: str, stack: str) -> None:
    """Systems of predecessors stay as they were."""
    assert System.load(system).stack == stack


def test_every_system_names_a_stack_of_the_catalog() -> None:
    """An estimate of a plain strategy runs on each of them, full recompute too."""
    for name in catalog.names("systems"):
        system = System.load(name)
        assert system.stack in catalog.names("stacks"), name
        dtype = "bf16" if "bf16" in system.accelerator.matrix else "fp16"
        row = {"gpus": 8, "gbs": 16, "mbs": 1, "recompute": "full", "dtype": dtype}
        assert estimate("llama3-8b", system, row).step_time_s > 0, name


def test_stacks_are_listed_with_their_runs_and_accelerators(shardwise: Any) -> None:
    """As a table and as JSON: counts of runs, or that there are none."""
    _, out, _ = shardwise("stacks", "--json")
    listed = json.loads(out)
    assert listed["huggingface-2024"]["measured_runs"] == 92
    assert listed["llama-factory-2024"]["measured_runs"] == 0
    assert listed["gaudi-2025"]["default_of"] == ["gaudi2", "gaudi3"]
    assert listed["unknown"]["default_of"] == []
    assert listed["megatron-bridge-2026"]["framework_measured"] is True
    assert listed["gpipe-2019"]["framework_measured"] is False
    assert listed["huggingface-2024"]["measured_sources"] == 1
    assert sum(one["measured_sources"] == 1 for one in listed.values()) >= 10
    code, out, _ = shardwise("stacks")
    assert code == 0
    assert "none: no run at all" in out
    assert "92, 1 source" in out


def test_recipes_in_8_bits_fuse_the_products_of_experts() -> None:
    """With mxfp8 the stack of NVL72 machines has the figures of the fused one; in 16 bits not."""
    row = {"gpus": 8, "ep": 8, "gbs": 64, "dispatcher": "hybridep", "cuda_graphs": "none"}

    def time_s(stack: str | dict[str, object], quantization: str) -> float:
        fields = {**row, "stack": stack, "quantization": quantization}
        return estimate("qwen3-30b-a3b", "b200-sxm", fields).time_s["forward"]

    fused = Stack.load("megatron-bridge-fused")
    unfused = {
        "base": "megatron-bridge-2026",
        "grouped_products": "fused",
        "grouped_time_factor": fused.grouped_time_factor,
        "grouped_half_flops": 0,
        "flex_permute_traffic_factor": fused.flex_permute_traffic_factor,
    }
    assert time_s("megatron-bridge-nvl72", "mxfp8") == time_s(unfused, "mxfp8")
    assert time_s("megatron-bridge-nvl72", "none") > time_s(unfused, "none")

"""Stacks of the catalog: which software a run has, the prior, and what each says of itself."""

import json
from collections import Counter
from typing import Any

import numpy as np

from measured_samples import run_of
from rows import each_row
from shardwise import Stack, System, catalog, estimate
from shardwise.validate.measured.fit import load_groups
from shardwise.validate.measured.software import stack_of

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
    ("framework", "stack"),
    [
        ("HF Trainer/TRL + accelerate FSDP + fms-acceleration", "huggingface-2024"),
        ("Hugging Face Trainer", "huggingface-2024"),
        ("TRL", "huggingface-2024"),
        ("HF Transformers + PEFT + DeepSpeed", "deepspeed-2024"),
        ("LLaMA-Factory", "llama-factory-2024"),
        ("torchtune", "torchtune-2024"),
        ("GPT-NeoX (DeepSpeed)", "gpt-neox-2023"),
        ("Primus (Megatron)", "primus-2026"),
        ("Megatron-DeepSpeed (Intel Gaudi fork)", "gaudi-2025"),
        ("DeepSpeed ZeRO-3", "deepspeed-2021"),
        ("Megatron-LM", "megatron-lm-2024"),
        ("Pai-Megatron-Patch", "megatron-lm-2024"),
        ("FlagScale (Megatron-LM)", "megatron-lm-2024"),
        ("ModelLink (Megatron-LM + MindSpeed)", "mindspeed-2024"),
        ("Megatron-DeepSpeed (ALCF)", "megatron-deepspeed-2024"),
        ("Megatron-DeepSpeed", "megatron-deepspeed-2022"),
        ("OneFlow", "oneflow-2021"),
        ("LiBai (OneFlow)", "oneflow-2021"),
        ("Something else", "unknown"),
        (None, "unknown"),
    ],
)
def test_software_of_a_run_by_the_name_of_its_framework(framework: str | None, stack: str) -> None:
    """No name, or one that no stack is of, is the prior, and is said to be assumed."""
    assumed: list[str] = []
    run = run_of("one", step=1.0, software={"framework": framework}, micro_batch=1)
    assert stack_of(run, assumed).name == stack
    assert assumed == (["software"] if stack == "unknown" else [])


def test_options_of_megatron_lm_are_off_where_a_run_publishes_its_own() -> None:
    """What overlaps, and the fused loss, is what it lists; without any, those of tuned runs."""

    def run(micro_batch: int | None = 1, **features: object) -> tuple[Stack, list[str]]:
        said: list[str] = []
        software = {"framework": "Megatron-LM"}
        one = run_of("one", software=software, micro_batch=micro_batch, features=features)
        return stack_of(one, said), said

    tuned, plain = Stack.load("megatron-core-2025"), Stack.load("megatron-lm-2024")
    assert run() == (plain, [])
    assert plain.tp_hidden == 0
    assert run(tp_comm_overlap=True)[0].tp_hidden == tuned.tp_hidden
    assert run(cross_entropy_fusion=True)[0].loss_forward_bytes == tuned.loss_forward_bytes
    assert run(micro_batch=None) == (tuned, ["communication overlaps"])


def test_products_of_cann_have_their_communication_in_them_if_a_run_says_so() -> None:
    """As with user buffers on GPUs; MindSpeed's communication waits else."""
    software = {"framework": "ModelLink (Megatron-LM + MindSpeed)"}
    tuned = Stack.load("megatron-core-2025")
    for value, hidden in ((True, tuned.tp_hidden), (False, 0.0)):
        run = run_of("one", software=software, features={"use_mc2": value})
        assert stack_of(run, []).tp_hidden == hidden


def test_fused_kernels_that_a_run_adds_to_plain_pytorch() -> None:
    """Norms with fms-acceleration's or Liger's kernels, the loss where the row has it."""
    plain = Stack.load("huggingface-2024")
    fused = Stack.load("megatron-core-2025").loss_forward_bytes
    for features, norm, loss in (
        ({}, False, plain.loss_forward_bytes),
        ({"framework": "foak-fast-kernels"}, True, plain.loss_forward_bytes),
        ({"liger": True, "fused_cross_entropy": True}, True, fused),
        ({"fused_cross_entropy": True}, False, fused),
    ):
        software = {"framework": "HF Trainer/TRL + accelerate FSDP"}
        run = run_of("one", step=1.0, software=software, features=features)
        stack = stack_of(run, [])
        assert (stack.fused_norm, stack.loss_forward_bytes) == (norm, loss)


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
    assert listed["gaudi-2025"]["default_of"] == ["gaudi2"]
    assert listed["unknown"]["default_of"] == []
    assert listed["megatron-bridge-2026"]["framework_measured"] is True
    assert listed["llama-factory-2024"]["framework_measured"] is False
    code, out, _ = shardwise("stacks")
    assert code == 0
    assert "prior: no run at all" in out


def test_recipes_in_8_bits_fuse_the_products_of_experts() -> None:
    """With mxfp8 the stack of NVL72 machines has the figures of the fused one; in 16 bits not."""
    row = {"gpus": 8, "ep": 8, "gbs": 64, "dispatcher": "hybridep"}

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

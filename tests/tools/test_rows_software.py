"""What rows say of their software: a stack, its release, what it changes, its dispatcher."""

from typing import Any

import pytest
from published_samples import row_of

from published_rows.hardware import system_of
from published_rows.releases import released
from published_rows.row import Run
from published_rows.software import dispatcher_of, stack_of
from rows import each_row
from shardwise import Stack


@each_row(
    ("framework", "stack"),
    [
        ("HF Trainer/TRL + accelerate FSDP + fms-acceleration", "huggingface-2024"),
        ("Hugging Face Trainer", "huggingface-2024"),
        ("TRL", "huggingface-2024"),
        ("HF Transformers + PEFT + DeepSpeed", "deepspeed-2024"),
        ("torchtune", "torchtune-2024"),
        ("GPT-NeoX (DeepSpeed)", "gpt-neox-2023"),
        ("Megatron-LM", "megatron-lm-2024"),
        ("Pai-Megatron-Patch", "megatron-lm-2024"),
        ("FlagScale (Megatron-LM)", "megatron-lm-2024"),
        ("OneFlow", "oneflow-2021"),
        ("LiBai (OneFlow)", "oneflow-2021"),
        ("Something else", "unknown"),
        (None, "unknown"),
    ],
)
def test_software_of_a_run_by_the_name_of_its_framework(framework: str | None, stack: str) -> None:
    """No name, or one that no stack is of, is the prior, and is said to be assumed."""
    assumed: list[str] = []
    run = row_of("one", step=1.0, software={"framework": framework}, micro_batch=1)
    assert stack_of(run, assumed).name == stack
    assert assumed == (["software"] if stack == "unknown" else [])


def test_options_of_megatron_lm_are_off_where_a_run_publishes_its_own() -> None:
    """What overlaps, and the fused loss, is what it lists; without any, those of tuned runs."""

    def run(micro_batch: int | None = 1, **features: object) -> tuple[Stack, list[str]]:
        said: list[str] = []
        software = {"framework": "Megatron-LM"}
        one = row_of("one", software=software, micro_batch=micro_batch, features=features)
        return stack_of(one, said), said

    tuned, plain = Stack.load("megatron-core-2025"), Stack.load("megatron-lm-2024")
    assert run() == (plain, [])
    assert plain.tp_hidden == 0
    assert run(tp_comm_overlap=True)[0].tp_hidden == tuned.tp_hidden
    assert run(cross_entropy_fusion=True)[0].loss_forward_bytes == tuned.loss_forward_bytes
    assert run(micro_batch=None) == (tuned, ["communication overlaps"])


def test_products_of_cann_have_their_communication_in_them_if_a_run_says_so() -> None:
    """As with user buffers on GPUs; MindSpeed's communication waits else."""
    fields = {
        "software": {"framework": "ModelLink (Megatron-LM + MindSpeed)"},
        "hardware": {"accelerator": "Ascend 910B", "count": 8},
    }
    tuned = Stack.load("megatron-core-2025")
    for value, hidden in ((True, tuned.tp_hidden), (False, 0.0)):
        run = row_of("one", **fields, features={"use_mc2": value})
        assert stack_of(run, [], system_of(run, [])).tp_hidden == hidden


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
        run = row_of("one", step=1.0, software=software, features=features)
        stack = stack_of(run, [])
        assert (stack.fused_norm, stack.loss_forward_bytes) == (norm, loss)


@each_row(
    ("software", "title", "month"),
    [
        ({"container": "nvcr.io/nvidia/nemo:25.09"}, None, "2025-09"),
        ({"container": "nemo:25.04.01 (NeMo 7a8f1cc7)"}, None, "2025-04"),
        ({"container": "NeMo launcher-2024-07"}, None, "2024-07"),
        ({"version": "24.07"}, None, "2024-07"),
        ({"framework": "NVIDIA NeMo Framework Release 25.01"}, "MLPerf Training v5.0", "2025-01"),
        ({"framework": "PyTorch NVIDIA Release 23.09"}, "MLPerf Training v5.1 gpt3", "2025-09"),
        ({"version": "0.12.1"}, None, "2026-07"),
        ({"container": "nemo:25.13"}, None, "2026-07"),
    ],
)
def test_a_row_names_the_month_of_its_release(
    software: dict[str, str], title: str | None, month: str
) -> None:
    """By its image, version or framework; else by its round of MLPerf, else by its year."""
    run = row_of("one", step=1.0, year=2026, software=software, source=title or "paper")
    assert released(run) == month
    assert released(run.model_copy(update={"year": None})) == (month if month < "2026" else "")


FEATURES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "backend": ({"moe_flex_dispatcher_backend": '"hybridep"'}, 8, "nemo-2025", "hybridep"),
    "flex": ({"flex_dispatcher": "deepep"}, 8, "megatron-bridge-2025", "deepep"),
    "kernels": ({"kernels": "DeepEP, TE"}, 8, "automodel-2025", "deepep"),
    "switch": ({"deepep": True}, 8, "megatron-core-2025", "deepep"),
    "off": ({"deepep": "false"}, 8, "megatron-core-2025", "all_to_all"),
    "many": ({}, 256, "megatron-bridge-2025", "hybridep"),
    "many elsewhere": ({}, 256, "nemo-2025", "all_to_all"),
    "stack": ({}, 8, "megatron-bridge-fused", "hybridep"),
    "none": ({"moe_dispatcher": "alltoall"}, 8, "nemo-2025", "all_to_all"),
}


@each_row(("features", "experts", "stack", "word"), FEATURES.values())
def test_dispatchers_of_measured_runs(
    features: dict[str, Any], experts: int, stack: str, word: str
) -> None:
    """What a row names, else what its software uses."""
    row = {"id": "x", "model": {"name": "m", "experts": experts}, "features": features}
    row |= {"hardware": {"accelerator": "H100-SXM-80GB"}}
    assert dispatcher_of(Run.validated(row), Stack.load(stack)) == word


@each_row(("accelerator", "month"), [("H100", "2025-04"), ("MI300X", "")])
def test_only_runs_on_nvidia_follow_the_trend_of_its_recipes(accelerator: str, month: str) -> None:
    """Submissions on AMD's GPUs have the products of ROCm."""
    fields: dict[str, Any] = {"framework": "NeMo Framework Release 25.04"}
    machine = {"accelerator": accelerator, "count": 8}
    run = row_of("one", step=1.0, software=fields, group="MLPerf logs", hardware=machine)
    stack = stack_of(run, [])
    assert (stack.name, stack.released) == ("mlperf-2024", month)
    rocm = Stack.load("primus-2026").matmul_time_factor
    assert (stack.matmul_time_factor == rocm) is not bool(month)


@pytest.mark.parametrize(
    ("features", "notes", "graphs"),
    [
        ({"cuda_graph_scope": ["moe_router", "moe_preprocess"]}, None, "partial"),
        ({"cuda_graph_scope": "attn+moe_router"}, None, "partial"),
        ({"cuda_graph_scope": []}, None, "none"),
        ({"cuda_graph_scope": ["attn"], "cuda_graph_impl": "none"}, None, "none"),
        ({}, "Transformer Engine CUDA graph capture completes for all 48 layers", "partial"),
    ],
)
def test_a_scope_alone_says_that_graphs_capture_layers(
    features: dict[str, object], notes: str | None, graphs: str
) -> None:
    """A list of modules without an implementation is of graphs of layers, unless it is empty."""
    software = {"framework": "Megatron-Bridge", "version": "2026-07-25"}
    sizes = {"name": "Qwen3-30B-A3B", "experts": 128, "topk": 8, "moe_ffn": 768}
    run = row_of(
        "one",
        step=1.0,
        software=software,
        micro_batch=1,
        features=features,
        notes=notes,
        model=sizes,
    )
    assert stack_of(run, []).cuda_graphs == graphs

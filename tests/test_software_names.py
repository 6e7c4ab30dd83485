"""What people write for the software that trains: which trainer, engine and kernels it means."""

from pathlib import Path

import pytest
import yaml

from shardwise import Model, Stack, Strategy, System, estimate, estimate_many
from shardwise.config.enums import ExpertKernel
from shardwise.config.software.resolve import Match, is_description, resolve
from shardwise.config.software.words import software_of
from shardwise.errors import InputError

NAMES = yaml.safe_load((Path(__file__).parent / "data" / "software_names.yaml").read_text("utf-8"))


def _match(text: str, system: str, date: str = "", model: str = "llama3-8b") -> Match:
    software = software_of(text)
    if date:
        software = software.model_copy(update={"date": date})
    return resolve(software, System.load(system), Model.load(model))


def _words(match: Match, field: str) -> list[str]:
    """Words that the candidates of a match have for a field, the most probable first."""
    if field == "stack":
        return [one.stack.name for one in match.candidates]
    if field in ("trainer", "backend", "engine"):
        return [str(getattr(one, field)) for one in match.candidates]
    return [str(one.options.get(field)) for one in match.candidates]


@pytest.mark.parametrize("row", NAMES, ids=[f"{row['text']} on {row['on']}" for row in NAMES])
def test_names_of_software_resolve(row):
    """A description means these words; several candidates differ in what they are described by.

    Candidates whose figures are equal are one, whatever else they may differ in.
    """
    match = _match(row["text"], row["on"], row.get("date", ""), row.get("model", "llama3-8b"))
    assert match.how != "unknown"
    assert sum(one.weight for one in match.candidates) == pytest.approx(1)
    described = [one.described for one in match.candidates]
    assert len(set(described)) == len(described)
    for field, expected in row["words"].items():
        words = expected if isinstance(expected, list) else [expected]
        seen = _words(match, field)
        figures = field == "stack" or field in Stack.model_fields or field in Strategy.model_fields
        assert set(seen) <= set(words), field
        if figures:
            assert set(seen) == set(words), field
        else:
            assert words[0] in seen, field


def test_software_that_is_not_known_says_so():
    """A name that no trainer has gets the figures of unknown software, and a note."""
    match = _match("FooTrain", "h100-sxm", "2025-01")
    assert match.how == "unknown"
    assert {one.stack.name for one in match.candidates} == {"unknown", "unknown-eager"}
    assert match.notes


def test_unknown_software_may_be_eager():
    """`unknown` is a description: fused kernels or those of plain PyTorch, which need more."""
    match = _match("unknown", "a100-80gb-sxm")
    weights = {"unknown": 0.0, "unknown-eager": 0.0}
    for one in match.candidates:
        weights[one.stack.name] += one.weight
    assert weights["unknown-eager"] > weights["unknown"] > 0.3
    run = {"gpus": 8, "zero": 3, "mbs": 1, "gbs": 32, "seq_len": 4096}
    fused, eager = (
        estimate("llama3-8b", "a100-80gb-sxm", run, stack=Stack.load(name))
        for name in sorted(weights)
    )
    assert fused.step_time_s < eager.step_time_s
    assert fused.memory_bytes.activations < eager.memory_bytes.activations


@pytest.mark.parametrize("text", ["torchforge", "SimpleFSDP", "VeOmni", "BMTrain", "Alpa"])
def test_names_with_known_parts_are_not_mistaken_for_them(text):
    """A trainer that is not known is unknown, whatever its name contains."""
    assert _match(text, "h100-sxm", "2025-01").how == "unknown"


def test_repositories_and_containers_are_descriptions():
    """Text with a slash is software where it names a trainer and no file is meant."""
    for text in ("nvcr.io/nvidia/nemo:25.04", "torchtitan/HF Trainer"):
        assert is_description(text)
    for text in ("./torchtitan", "stacks/torchtitan.yaml", "some/folder"):
        assert not is_description(text)


def test_a_list_in_braces_says_how_to_write_several():
    """Braces have fields of a stack."""
    with pytest.raises(InputError, match="for several write 'HF Trainer or torchtitan'"):
        Strategy(stack="{HF Trainer, torchtitan}")


def test_fused_experts_have_the_figures_of_fused_kernels():
    """Figures of grouped kernels are not those of fused ones, whichever a stack runs."""
    grouped = Stack.load("megatron-bridge-fused")
    fused = grouped.model_copy(update={"expert_kernel": ExpertKernel.FUSED})
    figures = fused.with_expert_kernel(ExpertKernel.FUSED)
    assert figures == Stack.load("megatron-bridge-nvl72")
    assert grouped.with_expert_kernel(ExpertKernel.GROUPED) is grouped


@pytest.mark.parametrize(
    ("text", "on", "weights"),
    [("NeMo 25.04", "h100-sxm", True), ("MLPerf Training v5.0, NeMo", "b200-sxm", True)],
)
def test_recipes_of_nemo_keep_weights_in_fp8(text, on, weights):
    """From fp8 follows that weights are gathered in it."""
    match = resolve(text, System.load(on), Model.load("llama3-8b"), {"quantization": "fp8_tensor"})
    assert {one.options.get("quantized_weights") for one in match.candidates} == {weights}
    match = resolve(text, System.load(on), Model.load("llama3-8b"))
    assert {one.options.get("quantized_weights") for one in match.candidates} == {None}


@pytest.mark.parametrize(("on", "graphs"), [("gb200-nvl72", "none"), ("gb300-nvl72", "partial")])
def test_recipes_with_windows_send_tokens_without_hybridep(on, graphs):
    """Performance recipes of gpt-oss in bf16."""
    match = _match("Megatron-Bridge 0.5 performance recipe", on, model="gpt-oss-120b")
    options = match.candidates[0].options
    assert (options["dispatcher"], options["cuda_graphs"]) == ("all_to_all", graphs)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("text", ["HF Trainer", "LLaMA-Factory", "Megatron-LM", "ms-swift", "verl"])
def test_a_stated_stage_decides_between_engines(text, zero):
    """With a stage of ZeRO that one of its engines has, the others are not meant."""
    h100, model = System.load("h100-sxm"), Model.load("llama3-8b")
    match = resolve(text, h100, model, {"zero": zero})
    possible = {one.engine for one in resolve(text, h100, model).candidates}
    if any(zero in engine.zero_stages for engine in possible):
        assert all(zero in one.engine.zero_stages for one in match.candidates)
    assert sum(one.weight for one in match.candidates) == pytest.approx(1)
    assert all(one.options["zero"] == zero for one in match.candidates)


def test_estimates_and_tables_read_a_description_alike():
    """A description with a stage of ZeRO has the same software in a table of strategies."""
    fields = {"stack": "HF Trainer", "gpus": 8, "global_batch_size": 8}
    each = [estimate("llama3-8b", "h100-sxm", zero=zero, **fields) for zero in (0, 3)]
    table = estimate_many("llama3-8b", "h100-sxm", zero=[0, 3], **fields)
    assert list(table.step_time_s) == pytest.approx([one.step_time_s for one in each])


@pytest.mark.parametrize("text", ["Megatron-LM 0.16, DeepEP", "Megatron-Bridge 0.4, DeepEP"])
def test_what_a_trainer_refuses_is_said(text):
    """DeepEP does not run on racks of GB200: Megatron-LM stops, Megatron-Bridge falls back."""
    match = _match(text, "gb200-nvl72", model="deepseek-v3")
    assert match.conflicts == 1
    assert "no dispatcher deepep on gb200-nvl72" in match.notes[0]
    falls_back = "Bridge" in text
    assert match.candidates[0].options["dispatcher"] == ("all_to_all" if falls_back else "deepep")
    assert not _match(text, "h100-sxm", model="deepseek-v3").conflicts


def test_a_fork_has_what_its_base_had_months_before():
    """Pai-Megatron-Patch is four months behind Megatron-LM, whose DeepEP came in 2025-02."""
    text = "Pai-Megatron-Patch, deepep"
    assert _match(text, "h100-sxm", "2025-04", "deepseek-v3").conflicts == 1
    assert _match(text, "h100-sxm", "2025-07", "deepseek-v3").conflicts == 0


@pytest.mark.parametrize(
    ("text", "month"),
    [
        ("torchtitan 0.2.1", "2025-12"),
        ("nemo:24.07", "2024-07"),
        ("NeMo 25.04.rc2", "2025-04"),
        ("Megatron-LM core_v0.13", "2025-07"),
        ("HF Trainer, torch 2.6", "2025-01"),
        ("torchtitan nightly 2026-08", "2026-08"),
        ("transformers 4.47.1, torch 2.5.1", "2024-12"),
        ("Megatron-LM (2024)", "2024-07"),
    ],
)
def test_months_of_releases(text, month):
    """A release, the tag of a container, a library or a date give the month of the facts."""
    assert _match(text, "h100-sxm").month == month


@pytest.mark.parametrize(
    ("text", "conflicts"),
    [
        ("Megatron-LM core_v0.8 (2024)", 0),
        ("torchtitan 0.2.1, 2025-08", 1),
        ("torchtitan 2025-08, PyTorch 2.9.0.dev20250815", 0),
        ("torchtitan 2025-08, PyTorch 2.9", 1),
        ("MLPerf Training v5.1, NeMo 25.04", 0),
        ("torchtitan on a TPU", 0),
    ],
)
def test_releases_after_the_date_are_conflicts(text, conflicts):
    """A release is not later than the run, unless only the year is stated or it is a nightly."""
    assert _match(text, "h100-sxm").conflicts == conflicts


def test_a_kernel_that_the_accelerator_does_not_run_is_a_conflict():
    """FlashAttention 3 is of Hopper alone: on an A100 the description contradicts the machine."""
    text = "HF Trainer, flash attention 3"
    assert "runs on Hopper alone" in _match(text, "a100-80gb-sxm").notes[0]
    assert not _match(text, "h100-sxm").conflicts

"""The measured runs that come with shardwise."""

import re
from collections import Counter
from pathlib import Path

from measured_samples import run_of
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import load_runs, read_runs

PAGE = Path(__file__).parent.parent / "docs" / "accuracy" / "measured-runs.md"
# Rows of each group by grade A, B, C.
COUNTS = {
    "AMD Primus blogs/docs": (0, 0, 14),
    "AWS Trainium": (0, 4, 2),
    "Ascend ModelLink/MindSpeed-LLM README table": (0, 16, 1),
    "AuroraGPT ALCF notes (Intel Max 1550)": (5, 12, 0),
    "BigNLP / NeMo-Megatron launcher A100 tables": (0, 13, 17),
    "BigScience BLOOM topology tuning": (13, 88, 0),
    "FlagPerf (BAAI) training reference results": (11, 6, 0),
    "FlashAttention training README": (0, 4, 0),
    "Google gpu-recipes": (0, 0, 3),
    "Google tpu-recipes logs (Trillium, v5p)": (13, 7, 0),
    "IBM fms-acceleration benchmarks": (41, 51, 0),
    "IBM fms-fsdp": (0, 2, 4),
    "Intel Gaudi 2 page": (0, 0, 7),
    "InternEvo 7B tables": (40, 15, 0),
    "JAX-Toolbox MaxText": (1, 0, 0),
    "JAX-Toolbox Pax GPT": (0, 9, 0),
    "KempnerForge MFU scaling report": (6, 8, 0),
    "Korthikanti 2022 table 5, fig 1/7": (8, 4, 0),
    "Llama 3 herd table 4": (0, 3, 0),
    "MLPerf Training v4.1/v5.0/v5.1 logs": (14, 97, 50),
    "MT-NLG 530B": (0, 3, 0),
    "MaxText TPU v4/v5e/v5p tables": (31, 4, 0),
    "Megatron-Bridge model verification cards": (11, 2, 70),
    "Megatron-Bridge performance skill ablations": (6, 6, 7),
    "Megatron-Bridge performance summaries 25.09-26.08": (147, 70, 27),
    "Megatron-LM README H100 weak/strong scaling": (0, 16, 0),
    "Megatron-LM functional-test golden values (memory/speed)": (4, 2, 14),
    "MosaicML llm-foundry throughput tables": (141, 29, 0),
    "NVIDIA DGX Cloud Benchmarking recipes v24.11-v25.05": (177, 73, 10),
    "Narayanan 2021 tables 1-2": (0, 20, 0),
    "NeMo 24.07-25.07 performance docs and launcher tables": (28, 43, 0),
    "NeMo AutoModel performance summary": (4, 8, 2),
    "Nemotron-4 340B table": (0, 3, 0),
    "OneFlow DLPerf GPT (V100)": (10, 0, 0),
    "OneFlow LiBai vs Megatron tables": (0, 0, 65),
    "PaddleNLP pretraining table": (3, 3, 0),
    "Published total GPU-hours": (0, 0, 15),
    "Pythia": (6, 1, 0),
    "Qwen README fine-tuning profile": (0, 22, 17),
    "SimuMax measured runs": (30, 0, 0),
    "Single-point papers (PaLM, LLaMA-65B, DeepSeek-V3, GLM-130B, BloombergGPT, BLOOM)": (0, 2, 1),
    "chenyaofo A800 DeepSpeed gist": (0, 0, 3),
    "torchao float8/MX e2e benchmarks": (6, 5, 2),
    "torchtitan benchmarks": (21, 10, 0),
    "torchtune README tables": (1, 5, 4),
    "vTrain multi-node ground truth": (0, 88, 0),
}


def test_all_sources_are_there_by_grade():
    """1,867 runs, as many of each source and grade as were collected, each with its origin."""
    runs = load_runs()
    found = Counter((run.source, run.grade) for run in runs)
    assert {source: tuple(found[source, grade] for grade in "ABC") for source, _ in found} == COUNTS
    assert len({run.id for run in runs}) == 1867
    assert all(run.title and run.ref for run in runs)
    assert sum(run.measured_step_time_s is not None for run in runs) == 1739


def test_what_cannot_be_predicted_has_its_reason():
    """1,670 runs have a model, a system and a strategy."""
    refused = [run for run in load_runs() if run.refused]
    assert len(refused) == 1867 - 1670
    assert all(run.model is None for run in refused)


def test_runs_share_what_their_file_defines():
    """So that each model and each system is read once."""
    runs = [run for run in load_runs() if run.source == "SimuMax measured runs"]
    assert len({id(run.model) for run in runs}) < len({run.id for run in runs}) == 30
    assert len({id(run.system) for run in runs}) == 1


def test_precisions_of_all_runs():
    """Counted by hand from the sources' own words."""
    found = Counter(run.precision for run in load_runs())
    assert found == {
        "bf16": 973, "fp16": 244, "fp8": 394, "mxfp8": 153, "nvfp4": 30, "unknown": 73
    }  # fmt: skip


def test_experts_make_a_run_one_of_a_mixture():
    """Also where their number is unpublished."""
    assert Counter(run.kind for run in load_runs()) == {"dense": 1531, "moe": 336}


def test_scales_have_edges():
    """Classes of the number of accelerators."""
    counts = (1, 8, 9, 63, 64, 255, 256, 1023, 1024, 16384)
    scales = [run_of("a", count=n).scale for n in counts]
    assert scales == [s for s in ("1-8", "9-63", "64-255", "256-1023", "1024+") for _ in "ab"]
    assert run_of("a", count=None).scale == "unknown"


def test_the_page_lists_every_source_with_its_counts():
    """Rows of the table of docs/accuracy/measured-runs.md, those of most runs first."""
    row = re.compile(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", re.MULTILINE)
    found = row.findall(PAGE.read_text())
    assert {name: tuple(map(int, counts)) for name, _, *counts in found} == COUNTS
    totals = [int(total) for _, total, *_ in found]
    assert totals == sorted((sum(counts) for counts in COUNTS.values()), reverse=True)
    assert totals == [sum(COUNTS[name]) for name, *_ in found]


def test_the_example_of_the_page_is_a_run_of_the_catalog(tmp_path):
    """It is predicted as the run that it shows."""
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mine.json").write_text(example)
    (run,) = read_runs(tmp_path / "mine.json")
    known = next(one for one in load_runs() if one.id == run.id)
    shown, found = predict_runs([run, known])
    assert (run.setup, run.ref, run.accelerator) == (known.setup, known.ref, known.accelerator)
    assert (shown.step_time_s, shown.run.measured) == (found.step_time_s, known.measured)

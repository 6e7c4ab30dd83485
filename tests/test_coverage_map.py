"""The coverage map: what measured runs cover, by model, accelerator, software and feature."""

import json

import pytest

from rows import each_row
from shardwise import Model, System, estimate
from shardwise.analysis.coverage import FEATURES, coverage, coverage_of
from shardwise.analysis.measured_plans import measured_plans
from shardwise.analysis.validated_runs import validated_runs
from shardwise.cli import run


def test_every_run_is_measured_in_one_cell() -> None:
    """Runs of all systems and software add up; features of a line are at most its runs."""
    found = coverage()
    assert sum(row.measured["any"] for row in found.rows) == found.runs == len(validated_runs().ids)
    for row in found.rows:
        for feature in FEATURES:
            assert row.measured.get(feature, 0) <= row.measured["any"]


def test_a_cell_is_counted_by_hand() -> None:
    """Llama 3 8B on H100 with NeMo: the ids of its runs, their types of numbers, and words."""
    known = validated_runs()
    stacks = dict(zip(known.ids, known.features["software"], strict=True))
    size = 8.03e9
    own = [
        row
        for row in measured_plans()
        if stacks.get(row.id) == "nemo"
        and row.system == "h100-sxm"
        and abs(row.parameters / size - 1) < 0.01
    ]
    found = coverage(Model.load("llama3-8b"), System.load("h100-sxm"))
    (row,) = [row for row in found.rows if row.software == "nemo"]
    assert row.measured["any"] == len(own) > 0
    assert row.measured["fp8"] == sum(one.precision == "fp8" for one in own)
    assert row.word("fp8") == "measured"
    assert row.word("tp") == "similar"
    assert row.word("nvfp4") == "extrapolated"
    assert {one.system for one in found.rows} == {"h100-sxm"}


@each_row(
    ("model", "system", "stack", "word"),
    [
        ("llama3-8b", "h100-sxm", "nemo-2025", "measured"),
        ("llama3-8b", "h100-sxm", "megatron-bridge-2026", "similar"),
        ("llama3-8b", "gb10", "torchtitan-2025", "extrapolated"),
        ("qwen3-30b-a3b", "tpu-v5p", "maxtext-2024", "similar"),
    ],
)
def test_an_estimate_and_the_map_use_the_same_words(
    model: str, system: str, stack: str, word: str
) -> None:
    """The line of an estimate says what the cell of its model, system and software is."""
    found = estimate(model, system, gpus=8, zero=3, gbs=64, stack=stack, any_software=True)
    own, text = coverage_of(found)
    assert own == word
    assert {"measured": " measured run", "similar": " similar "}.get(word, word) in text
    software = stack.rpartition("-")[0]
    rows = coverage(Model.load(model), System.load(system)).rows
    cells = [row.word("bf16") for row in rows if row.software == software]
    assert (cells or ["extrapolated"]) == [word]


def test_answers_begin_with_their_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    """An estimate and the map on the command line."""
    assert (
        run(["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "2", "--gbs", "64"]) == 0
    )
    text = capsys.readouterr().out
    assert text.index("coverage: 100 similar") < text.index("step time")
    assert run(["coverage", "llama3-8b", "h100-sxm"]) == 0
    assert "llama3-8b on h100-sxm: coverage by" in capsys.readouterr().out
    assert run(["coverage", "llama3-8b", "gb10"]) == 0
    assert "extrapolated: no measured or similar run" in capsys.readouterr().out
    assert run(["coverage", "qwen3-30b-a3b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "qwen3-30b-a3b"

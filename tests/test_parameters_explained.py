"""`--explain` tells where every figure is from, and the schema accepts every way to give one."""

import json
from typing import Any

import pytest

from parameter_samples import Written, h100
from shardwise import System
from shardwise.cli import run


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Figures by field, as `--explain --json` tells them."""
    assert run([*words, "--explain", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    found = {figure["field"]: figure for figure in figures}
    assert len(found) == len(figures)
    return found


def test_every_figure_is_explained(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """Given, looked up, calculated or a default; with unit, formula or row, and source."""
    own = {"clock": "1.5 GHz", "cores": {"value": 100, "description": "of a die"}}
    matrix = {"bf16": "= clock * cores", "fp16": "1 PFLOP/s"}
    told = h100(parameters=own, accelerator={"matrix": matrix}, network={"1": {"domain": None}})
    power = {"lookup": "b200-sxm", "field": "board_power"}
    found = explained(capsys, "systems", written("mine.yaml", **told, board_power=power))
    leaves = _leaves(System.load("mine.yaml").to_dict())
    assert set(found) - {"parameters.clock", "parameters.cores"} == leaves
    expected = {
        "parameters.clock": ("1.5 GHz", "Hz", "given", ""),
        "parameters.cores": (100, None, "given", ""),
        "accelerator.matrix.bf16": ("150 GFLOP/s", "FLOP/s", "calculated", "clock * cores"),
        "accelerator.matrix.fp16": ("1 PFLOP/s", "FLOP/s", "given", ""),
        "accelerator.matrix.fp32": ("66.9 TFLOP/s", "FLOP/s", "looked up", "base h100-sxm"),
        "board_power": ("1 kW", "watts", "looked up", "b200-sxm board_power"),
        "node.accelerators": (8, None, "looked up", "base h100-sxm"),
        "network.1.domain": (None, None, "given", ""),
        "accelerator.speed": (1.0, None, "default", ""),
        "network.0.join_exponent": (0.6, None, "default", ""),
    }
    keys = ("written", "unit", "origin", "by")
    assert {f: tuple(found[f][key] for key in keys) for f in expected} == expected
    assert found["accelerator.matrix.bf16"]["value"] == 1.5e11
    assert found["accelerator.matrix.bf16"]["source"]["text"] == "calculated: clock * cores"
    assert found["accelerator.matrix.fp32"]["source"]["kind"] == "datasheet"
    assert found["parameters.cores"]["description"] == "of a die"
    assert found["accelerator.speed"]["source"] is None


def _leaves(value: Any, *path: str) -> set[str]:
    if isinstance(value, dict) and value:
        return {leaf for key in value for leaf in _leaves(value[key], *path, str(key))}
    if isinstance(value, list) and value:
        return {leaf for n, item in enumerate(value) for leaf in _leaves(item, *path, str(n))}
    return set() if path[0] in ("name", "description", "sources") else {".".join(path)}


def test_explain_is_a_table_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an entry of the catalog too, whose figures are given; and of one alone."""
    assert run(["systems", "h100-sxm", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    bandwidth = next(line for line in lines if "450 GB/s" in line)
    assert bandwidth.split()[:4] == ["bandwidth", "450", "GB/s", "given"]
    assert any("NVIDIA H100 data sheet (2023)" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["stacks", "torchtitan-eager", "--explain"]) == 0
    assert "torchtitan-2024" in capsys.readouterr().out
    for words in (["systems"], ["models", "."], ["models", "--largest-for", "h100-sxm"]):
        assert run([*words, "--explain"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_schema_accepts_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    """And still refuses unknown keys, and text that is no formula where a number must stand."""
    jsonschema = pytest.importorskip("jsonschema")
    assert run(["schema", "strategy"]) == 0
    accepts = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out)).is_valid
    for fields in (
        {"gpus": 8, "mbs": 2},
        {"gpus": "= nodes * 8", "parameters": {"nodes": 3}},
        {"gpus": {"lookup": "h100-sxm", "field": "node.accelerators", "times": 2}},
        {"base": "low.yaml", "mbs": 3},
    ):
        assert accepts(fields), fields
    for fields in ({"gpus": "eight"}, {"gpsu": 3}, {"gpus": {"lookup": "x"}}, {"base": 3}):
        assert not accepts(fields), fields

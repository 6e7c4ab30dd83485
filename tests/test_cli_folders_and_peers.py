"""`shardwise models FOLDER` and `shardwise peers`, as people and scripts run them."""

import gzip
import json

import pytest

from rows import each_row
from shardwise import Model, System
from written import record_of

pytestmark = pytest.mark.any_software

JOB = [
    "llama3-70b",
    "h100-sxm",
    "--gpus",
    "64",
    "--tp",
    "8",
    "--pp",
    "2",
    "--mbs",
    "1",
    "--gbs",
    "128",
]


@pytest.fixture
def folder(tmp_path):
    """Two models among other files: one of them gzipped."""
    path = tmp_path / "mine"
    (path / "old.yaml").mkdir(parents=True)
    Model.load("qwen3-8b").to_file(path / "b.json")
    Model.load("llama3-8b").to_file(path / "a.yaml.gz")
    (path / "README.md").write_text("not a model")
    (path / ".hidden.yaml").write_text("not a model")
    return path


def test_the_models_of_a_folder_are_listed(shardwise, folder):
    """One line for each model file, by file name; other files and folders are left alone."""
    code, out, err = shardwise("models", folder)
    lines = [line.split()[:2] for line in out.splitlines() if "8b" in line]
    assert (code, err) == (0, "")
    assert lines == [["a.yaml.gz", "llama3-8b"], ["b.json", "qwen3-8b"]]
    code, out, err = shardwise("models", folder, "--json")
    found = json.loads(out)
    assert (code, err, list(found)) == (0, "", ["a.yaml.gz", "b.json"])
    _, alone, _ = shardwise("models", "llama3-8b", "--json")
    assert found["a.yaml.gz"] == record_of(alone)


def test_a_folder_shows_its_models_in_spite_of_faulty_files(shardwise, folder, tmp_path):
    """Each faulty file has one error line, the others are printed, and the exit code is 2."""
    System.load("h100-sxm").to_file(folder / "aa.yaml")
    (folder / "z.toml").write_text("")
    code, out, err = shardwise("models", folder)
    assert code == 2
    assert "llama3-8b" in out
    assert "qwen3-8b" in out
    first, second = err.splitlines()
    assert first == f"error: {folder / 'aa.yaml'}: is a system file; a model is expected"
    assert second == f"error: {folder / 'z.toml'}: the file is empty"
    target = tmp_path / "out.json"
    code, out, again = shardwise("models", folder, "--json", "--output", target)
    found = json.loads(target.read_text())
    assert (code, out, again) == (2, "", err)
    assert list(found) == ["a.yaml.gz", "b.json", "refused"]
    assert [f"error: {message}" for message in found["refused"].values()] == err.splitlines()
    assert list(found["refused"]) == ["aa.yaml", "z.toml"]


def test_a_folder_without_models_is_an_error(shardwise, tmp_path):
    """No model file, or none that is right: an error, and no empty table."""
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = shardwise("models", empty)
    assert (code, out) == (2, "")
    assert "no model file in this folder; endings: .yaml, .yml, .json, .toml" in err
    (empty / "x.json").write_text("{}")
    code, out, err = shardwise("models", empty)
    assert (code, out) == (2, "")
    assert "x.json: name: is missing and has no default (and 5 more)" in err


def test_a_name_of_the_catalog_wins_over_a_folder(shardwise, folder, monkeypatch):
    """A folder of the same name is meant by `./name`."""
    monkeypatch.chdir(folder.parent)
    folder.rename("llama3-8b")
    _, out, _ = shardwise("models", "llama3-8b", "--json")
    assert json.loads(out)["name"] == "llama3-8b"
    _, out, _ = shardwise("models", "./llama3-8b", "--json")
    assert list(json.loads(out)) == ["a.yaml.gz", "b.json"]


def test_peers_lists_the_groups(shardwise, tmp_path):
    """`peers --json` has the groups of every axis and every rank; `--output` writes the same."""
    code, out, err = shardwise("peers", *JOB, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    axes = result["axes"]
    assert list(axes) == ["tp", "cp", "dp", "pp"]
    assert axes["tp"]["groups"][1] == [8, 9, 10, 11, 12, 13, 14, 15]
    assert (axes["dp"]["degree"], axes["dp"]["extents"]) == (4, [1, 4])
    assert axes["dp"]["groups"][0] == [0, 8, 16, 24]
    assert axes["pp"]["groups"][31] == [31, 63]
    assert result["ranks"][40] == {
        "rank": 40,
        "node": 5,
        "stage": 1,
        "tp": 0,
        "cp": 0,
        "dp": 1,
        "pp": 1,
        "tp_group": 5,
        "cp_group": 40,
        "dp_group": 8,
        "pp_group": 8,
        "previous_rank": 8,
        "next_rank": None,
        "embedding_peer": None,
    }
    path = tmp_path / "peers.json.gz"
    assert shardwise("peers", *JOB, "--output", path) == (0, "", "")
    assert json.loads(gzip.decompress(path.read_bytes())) == result


def test_peers_of_one_rank(shardwise):
    """`--rank` shows one: where it is, the groups it is in, its neighbours."""
    code, out, _ = shardwise("peers", *JOB, "--rank", 40, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["tp_peers"] == [41, 42, 43, 44, 45, 46, 47]
    assert (result["dp_peers"], result["previous_rank"]) == ([32, 48, 56], 8)
    code, out, _ = shardwise("peers", *JOB, "--rank", 40)
    assert code == 0
    for shown in (
        "rank 40: accelerator 0 of node 5",
        "40-47",
        "32, 40, 48, 56",
        "pipeline stage 1; previous stage: rank 8, next: none",
    ):
        assert shown in out
    _, out, _ = shardwise("peers", "gpt3-175b", *JOB[1:], "--rank", 40)
    assert "copy of the embedding shared with rank 8" in out


@each_row("flags", [("--gpus", 64), ("--dp", 4), ("--gpus", 64, "--mbs", 3, "--vpp", 2)])
def test_peers_need_no_batch(shardwise, flags):
    """Ranks do not depend on it."""
    words = ("peers", "llama3-8b", "h100-sxm", "--tp", 8, "--pp", 2, *flags)
    code, out, err = shardwise(*words)
    assert code == 0, err
    assert out == shardwise(*words, "--gbs", 384)[1]


def test_peers_for_people(shardwise):
    """A line for each axis that is split: groups, members, members in each tier, first ranks."""
    code, out, _ = shardwise("peers", *JOB)
    assert code == 0
    assert "64 GPUs = tp 8 x dp 4 x pp 2, 8 nodes of 8, placement tp-cp-dp-pp, 1f1b" in out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "tensor (tp) 8 8 8 8 0-7 | 8-15 | 16-23 | ..." in rows
    assert "data (dp) 16 4 1 4 0, 8, 16, 24 | 1, 9, 17, 25 | 2, 10, 18, 26 | ..." in rows
    assert "context" not in out
    _, out, _ = shardwise("peers", "gpt3-175b", *JOB[1:])
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "embedding copies 32 2 0, 32 | 1, 33 | 2, 34 | ..." in rows
    _, out, _ = shardwise("peers", "llama3-8b", "h100-sxm", "--gpus", 1, "--gbs", 1)
    assert "one rank, no groups" in out

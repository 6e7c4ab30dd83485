"""`shardwise trace`: files, tables and refusals."""

import gzip
import json

import pytest

import trace_format
from shardwise import trace

pytestmark = pytest.mark.any_software

NO_EFFECT = "has no effect without --output"
COUNTED = "must be a whole number of at least 1"
TOO_MANY = "are more than the 100,000 that a file may hold"
TOO_MANY_BLOCKS = "are more than the 100,000 that a memory snapshot may hold; "
TOO_MANY_BLOCKS += "a smaller batch shows the same pattern"
IN_SNAPSHOT = "has no effect on a memory snapshot, which has every pass and no kernels"
ASKED = ["trace", "llama3-8b", "h100-sxm", "--gpus", "16", "--tp", "2", "--pp", "2", "--gbs", "32"]


def test_a_trace_is_written_whole(shardwise, tmp_path):
    """As JSON and gzipped, and nothing is printed; no other file is left behind."""
    plain, packed = tmp_path / "step.json", tmp_path / "step.json.gz"
    for path in (plain, packed):
        assert shardwise(*ASKED, "-o", path) == (0, "", "")
    written = json.loads(plain.read_text())
    trace_format.check(written)
    assert gzip.decompress(packed.read_bytes()).decode() == plain.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "step.json.gz"]
    assert written["otherData"]["model"] == "llama3-8b"
    names = [e["args"]["name"] for e in written["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0: layers 0-15, embedding", "rank 1: layers 16-31, head"]


def test_a_written_file_holds_what_python_returns(shardwise, tmp_path):
    """The same events, in the same order."""
    path = tmp_path / "step.json"
    shardwise(*ASKED, "--output", path, "--micro-batches", "3", "--ops")
    strategy = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 32}
    found = trace("llama3-8b", "h100-sxm", strategy, micro_batches=3, operations=True)
    assert json.loads(path.read_text()) == found.to_chrome()


def test_the_summary_is_printed(shardwise, tmp_path):
    """As a table, or as JSON beside the file."""
    code, out, _ = shardwise(*ASKED)
    assert code == 0
    assert "layers 0-15, embedding" in out
    assert "the simulation differs by +0.00 %" in out
    code, out, _ = shardwise(*ASKED, "--json", "-o", tmp_path / "step.json")
    record = json.loads(out)
    assert code == 0
    assert [one["rank"] for one in record["ranks"]] == [0, 1]
    assert record["step_time_s"] == pytest.approx(record["estimated_step_time_s"])
    assert (tmp_path / "step.json").exists()


def test_what_does_not_fit_is_shown_whole(shardwise, tmp_path):
    """With exit code 1, as by `estimate`."""
    large = ["trace", "llama3-70b", "h100-sxm", "--gpus", "8", "--pp", "8", "--gbs", "16"]
    code, out, _ = shardwise(*large)
    assert code == 1
    assert "does not fit in memory" in out
    code, out, _ = shardwise(*large, "--json", "-o", tmp_path / "step.json")
    assert code == 1
    assert json.loads(out)["fits"] is False
    trace_format.check(json.loads((tmp_path / "step.json").read_text()))


def test_long_pipelines_show_their_ends(shardwise):
    """Eight ranks of either end."""
    many = ["--gpus", "32", "--pp", "32", "--gbs", "64"]
    _, out, _ = shardwise("trace", "llama3-8b", "h100-sxm", *many)
    rows = [line.split()[0] for line in out.splitlines() if "layer " in line or "..." in line]
    assert rows == [*map(str, range(8)), "...", *map(str, range(24, 32))]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["-o", "step.txt"],
            "step.txt: cannot be written; allowed endings: .json, .json.gz, .pickle",
        ),
        (["-o", "no/step.json"], "no/step.json: cannot be written: no such folder: no"),
        (
            ["--micro-batches", "2"],
            f"--micro-batches: '2': {NO_EFFECT}",
        ),
        (
            ["--ops"],
            f"--ops: {NO_EFFECT}",
        ),
        (
            ["--micro-batches", "two", "-o", "step.json"],
            f"--micro-batches: 'two': {COUNTED}",
        ),
        (
            ["--micro-batches", "0", "-o", "step.json"],
            f"--micro-batches: '0': {COUNTED}",
        ),
        (
            ["--gbs", "104000", "-o", "step.json"],
            f"--micro-batches: 26000: 104,000 passes on 2 ranks {TOO_MANY}; write at most 25000",
        ),
        (
            ["--gbs", "104000", "-o", "step.pickle"],
            f"--gbs: 104000: 104,000 passes {TOO_MANY_BLOCKS}",
        ),
        (
            ["--micro-batches", "2", "-o", "step.pickle"],
            f"--micro-batches: '2': {IN_SNAPSHOT}",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_line(shardwise, tmp_path, monkeypatch, words, problem):
    """Exit code 2, nothing printed, no file."""
    monkeypatch.chdir(tmp_path)
    code, out, err = shardwise(*ASKED, *words)
    assert (code, out) == (2, "")
    assert err == f"error: {problem}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_illegal_strategy_is_refused_as_by_estimate(shardwise):
    """Word for word."""
    wrong = ["llama3-8b", "h100-sxm", "--gpus", "16", "--pp", "3", "--gbs", "32"]
    assert shardwise("trace", *wrong) == shardwise("estimate", *wrong)
    assert shardwise("trace", *wrong)[0] == 2


def test_an_existing_file_stays_if_the_trace_is_refused(shardwise, tmp_path):
    """Nothing is written before all is known."""
    path = tmp_path / "step.json"
    path.write_text("before")
    code, _, _ = shardwise(*ASKED, "--gbs", "104000", "-o", path)
    assert code == 2
    assert path.read_text() == "before"

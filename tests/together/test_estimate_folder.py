"""`estimate --out DIR`: all there is to say of a run as files, each what its own flag writes."""

import csv
import json
from datetime import datetime
from importlib.util import find_spec
from shutil import which

import pytest

from shardwise import estimate
from shardwise.cli import run
from shardwise.config import files
from shardwise.report import folder

pytestmark = pytest.mark.any_software

DENSE = ["gpt3-13b", "a100-80gb-sxm", "--gpus", "16", "--tp", "8", "--pp", "2", "--gbs", "16"]
NAMES = {
    *("report.txt", "config_summary.txt", "gemms.csv", "shapes.csv", "estimate.json"),
    *("graph.json", "graph.dot", "graph.mmd"),
    *(("graph.svg",) if which("dot") else ()),
}


def _files(path):
    return {one.name.split("_", 2)[2]: one for one in path.iterdir()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "of" / "mine"  # made with its parents
    assert run(["estimate", *DENSE, "--tokens", "1B", "--also", "amped", "--out", str(path)]) == 0
    return path


def test_every_file_is_there_under_a_date(written):
    """Names begin with day and time; charts come where plotly is installed."""
    expected = NAMES | {"mat_dims.txt", "amped_config_summary.txt"}
    expected |= {"amped_training_time_breakdown.txt"}
    expected |= {"charts.html"} if find_spec("plotly") else set()
    assert set(_files(written)) == expected
    for one in written.iterdir():
        datetime.strptime(one.name[:19], "%Y-%m-%d_%H-%M-%S").astimezone()


def test_the_files_tell_of_one_estimate(written):
    """Report, products, graph and JSON have the same totals."""
    written_files = _files(written)
    record = json.loads(written_files["estimate.json"].read_text())
    flops = [
        int(row["flops"])
        for row in csv.DictReader(written_files["gemms.csv"].read_text().splitlines())
    ]
    graph = json.loads(written_files["graph.json"].read_text())
    assert sum(flops) == int(record["matrix_flops"])
    assert graph["totals"]["matrix_flops"] == record["matrix_flops"]
    assert len(written_files["mat_dims.txt"].read_text().splitlines()) == 6
    report = dict(
        line.split(" ----- ")
        for line in written_files["report.txt"].read_text().splitlines()
        if line
    )
    assert float(report["Time of a step"].split()[0]) == pytest.approx(
        record["step_time_s"], rel=1e-5
    )
    assert record["whole_run"]["steps"] == int(report["Steps"])
    assert (
        "Total time to train (s)" in written_files["amped_training_time_breakdown.txt"].read_text()
    )


def test_the_summary_tells_every_figure_with_its_origin(written):
    """Given and assumed fields of the strategy, figures of model and system with their source."""
    lines = _files(written)["config_summary.txt"].read_text().splitlines()
    lines_of = {line.split(" : ")[0].strip(): line for line in lines if " : " in line}
    assert lines_of["tp"].endswith("# given")
    assert lines_of["vpp"].endswith("# assumed")
    assert "given, datasheet [" in lines_of["accelerator.matrix.bf16"]
    assert "312 TFLOP/s" in lines_of["accelerator.matrix.bf16"]
    result = estimate("gpt3-13b", "a100-80gb-sxm", {"gpus": 16, "tp": 8, "pp": 2, "gbs": 16})
    assert set(result.strategy) <= set(lines_of)


def test_nothing_is_written_over(tmp_path, monkeypatch):
    """Two runs of one second have names of their own."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr("shardwise.cli.estimate.datetime", Stopped)
    monkeypatch.setattr(folder, "find_spec", lambda _: None)
    moe = ["mixtral-8x7b", "h100-sxm", "--gpus", "8", "--tp", "8", "--gbs", "8"]
    for _ in range(2):
        run(["estimate", *moe, "--out", str(tmp_path)])
    starts = {one.name[: len("2026-01-02_03-04-05")] for one in tmp_path.iterdir()}
    assert starts == {"2026-01-02_03-04-05"}
    assert len(list(tmp_path.iterdir())) == 2 * len(NAMES)


def test_what_cannot_be_written_is_said(tmp_path, capsys):
    """DeepFlow's six lines cannot express experts; the rest is written."""
    moe = ["mixtral-8x7b", "h100-sxm", "--gpus", "8", "--tp", "8", "--gbs", "8"]
    run(["estimate", *moe, "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert "mat_dims.txt: DeepFlow's six products cannot express a mixture" in printed.err
    assert set(_files(tmp_path)) - {"charts.html"} == NAMES
    assert "GEMMs of a step" not in printed.out  # which --gemms prints


def test_pictures_come_where_graphviz_is(tmp_path, monkeypatch, capsys):
    """The folder has the graph as text without it, and a line says what is missing."""
    monkeypatch.setenv("PATH", "")
    run(["estimate", *DENSE, "--out", str(tmp_path)])
    assert "graph.svg: graphviz draws this file and is not installed" in capsys.readouterr().err
    assert {"graph.json", "graph.dot", "graph.mmd"} <= set(_files(tmp_path))
    assert "graph.svg" not in _files(tmp_path)


def test_a_file_is_no_folder(tmp_path, capsys):
    """One line, before any work."""
    place = tmp_path / "there.txt"
    files.write_text(place, "mine\n")
    assert run(["estimate", *DENSE, "--out", str(place)]) == 2
    assert capsys.readouterr().err == f"error: {place}: is a file, not a folder\n"
    assert place.read_text() == "mine\n"
    assert run(["estimate", *DENSE, "--out", str(place / "in")]) == 2
    assert "cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "-"])
def test_nothing_and_a_dash_are_no_folders(name, tmp_path, monkeypatch, capsys):
    """A variable that is not set does not fill the folder that one stands in."""
    monkeypatch.chdir(tmp_path)
    assert run(["estimate", *DENSE, "--out", name]) == 2
    assert "must be the name of a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_made_for_a_run_that_cannot_be_estimated(tmp_path, capsys):
    """A folder has its files; an invalid name is one line."""
    place = tmp_path / "of" / "mine"
    assert run(["estimate", "no-such-model", *DENSE[1:], "--out", str(place)]) == 2
    assert list(tmp_path.iterdir()) == []
    assert "no such model" in capsys.readouterr().err
    assert run(["estimate", *DENSE, "--out", str(tmp_path / ("x" * 300))]) == 2
    assert capsys.readouterr().err.endswith("cannot be made: File name too long\n")

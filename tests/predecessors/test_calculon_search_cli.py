"""All executions of Calculon's search in a file, the best of each cell, and its heat map."""

import gzip
import json

import polars as pl
import pytest

from calculon_runs import RUNS
from shardwise.cli import run
from shardwise.predecessors.calculon.charts import heat_map

SEARCH = ("search", "calculon-turing-530b", "calculon-a100-80g", "--reference", "calculon")
SEARCH += ("--gpus", 5128, "--gbs", 2520)
SMALL = (*SEARCH[:1], "calculon-megatron-5b", *SEARCH[2:5], "--gpus", 8, "--gbs", 4)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A search that lists the best of every division."""
    path = tmp_path_factory.mktemp("search") / "r.json"
    words = [*SMALL, "--axes", "tp,pp", "--output", path]
    assert run([str(word) for word in words]) == 0
    return path


@pytest.mark.parametrize("name", ["all.csv", "all.csv.gz", "all.parquet"])
def test_all_feasible_executions_are_saved_with_all_statistics(shardwise, tmp_path, name):
    """As Calculon's llm-all-executions: 23 + 96 columns in its order, a row for each good one."""
    code, out, err = shardwise(*SEARCH, "--save", tmp_path / name, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    read = pl.read_parquet if name.endswith("parquet") else pl.read_csv
    rows = read(tmp_path / name)
    assert rows.height == found["good"] == 1_080
    assert rows.columns == [*RUNS["cases"][0]["execution"], *RUNS["stat_fields"]]
    best = rows.row(rows["sample_rate"].arg_max(), named=True)
    assert found["best"][0]["stats"]["sample_rate"] == pytest.approx(best["sample_rate"])
    assert set(rows["activation_recompute"]) <= {"full", "attn_only", "none"}
    assert not rows["total_time"].is_null().any()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_several_numbers_of_gpus_are_searched_one_by_one(shardwise):
    """Each as alone, whether in one process or two; the best of each is listed."""
    words = [*SMALL[:-4], "--gbs", 4, "--json"]
    for jobs in (1, 2):
        found = json.loads(shardwise(*words, "--gpus", "4..8", "--jobs", jobs)[1])
        alone = [json.loads(shardwise(*words, "--gpus", gpus)[1]) for gpus in (4, 8)]
        assert [one["gpus"] for one in found["searches"]] == [4, 8]
        assert found["best"] == [one["best"][0] for one in alone]
        for name in ("candidates", "good", "bad"):
            assert found[name] == sum(one[name] for one in alone)


@pytest.mark.parametrize("name", ["best.csv.gz", "best.parquet"])
def test_the_best_are_written_as_a_table_in_one_step(shardwise, tmp_path, name):
    """As convert writes them from the JSON."""
    file, record = tmp_path / name, tmp_path / "best.json"
    assert shardwise(*SMALL, "--top", 3, "-o", file)[0] == 0
    assert shardwise(*SMALL, "--top", 3, "-o", record)[0] == 0
    assert shardwise("convert", record, tmp_path / f"two-{name}")[0] == 0
    read = pl.read_parquet if name.endswith("parquet") else pl.read_csv
    assert read(file).height == 3
    assert read(file).equals(read(tmp_path / f"two-{name}"))


def test_a_file_of_no_feasible_execution_has_a_head(shardwise, tmp_path):
    """Nothing fits: exit code 1, the columns and no row."""
    words = ("search", "calculon-megatron-1t", "calculon-a100-80g", "--reference", "calculon")
    file = tmp_path / "none.csv.gz"
    code, _, _ = shardwise(*words, "--gpus", 1, "--gbs", 1, "--save", file)
    assert code == 1
    (head,) = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert head.split(",") == [*RUNS["cases"][0]["execution"], *RUNS["stat_fields"]]


def test_the_best_of_every_division_is_listed(record):
    """By shardwise's names or Calculon's; the best of all is one of them."""
    found = json.loads(record.read_text())
    assert found["axes"] == ["tensor_par", "pipeline_par"]
    divisions = [
        (c["execution"]["tensor_par"], c["execution"]["pipeline_par"]) for c in found["cells"]
    ]
    assert divisions == sorted(set(divisions))
    assert len(divisions) > 4
    rates = [cell["stats"]["sample_rate"] for cell in found["cells"]]
    assert max(rates) == found["best"][0]["stats"]["sample_rate"]


def test_the_heat_map_shows_the_rates_of_calculon(shardwise, record, tmp_path):
    """Drawn by the search or from its stored result: the same figure."""
    pytest.importorskip("plotly")
    assert shardwise(*SMALL, "--plot", tmp_path / "a.json")[0] == 0
    assert shardwise("convert", record, tmp_path / "b.json")[0] == 2  # a table or charts by ending
    found = json.loads(record.read_text())
    figure = heat_map(found)
    (drawn,) = (trace for trace in figure.data if trace.name == "samples/s of Calculon")
    rates = {
        (c["execution"]["tensor_par"], c["execution"]["pipeline_par"]): c["stats"]["sample_rate"]
        for c in found["cells"]
    }
    down, across = (sorted({place[side] for place in rates}) for side in (0, 1))
    assert [list(row) for row in drawn.z] == [[rates.get((r, c)) for c in across] for r in down]
    written = json.loads((tmp_path / "a.json").read_text())["map"]
    assert written["layout"]["xaxis"]["title"]["text"] == "pipeline par"


def test_a_stored_search_becomes_a_page_or_says_why_not(shardwise, record, tmp_path):
    """With cells a heat map; the message says what has none, and what to do."""
    pytest.importorskip("plotly")
    assert shardwise("convert", record, tmp_path / "map.html")[0] == 0
    assert (tmp_path / "map.html").stat().st_size > 0
    found = json.loads(record.read_text())
    own = {str(rank): entry for rank, entry in enumerate(found["best"])}
    plain = {key: value for key, value in found.items() if key not in ("axes", "cells")}
    for name, content, expected in (
        ("own", own, "Calculon's search with its best executions only"),
        ("plain", plain, "--axes tp,pp"),
        ("amped", plain | {"reference": "amped"}, "the result of a search by amped"),
    ):
        (tmp_path / name).with_suffix(".json").write_text(json.dumps(content))
        code, out, err = shardwise("convert", tmp_path / f"{name}.json", tmp_path / "no.html")
        assert (code, out) == (2, "")
        assert expected in err
        assert ".csv" in err
        assert not (tmp_path / "no.html").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--axes", "tp,ppp"), "axes: 'ppp': did you mean 'pp' or 'vpp'?"),
        (("--axes", "tp,tensor_par"), "axes: 'tensor_par': is listed twice"),
        (("--axes", "tp", "--plot", "a.html"), "a heat map needs two fields"),
        (("--save", "all.txt"), "allowed endings: .parquet, .csv, .csv.gz"),
        (("--save", "all.csv", "--count"), "save: 'all.csv': needs a search"),
        (("--save", "a.json", "--output", "a.json"), "is also the file of"),
        (("--save-all",), "--save-all: has no effect with --reference"),
    ],
)
def test_bad_options_are_one_line_before_any_search(
    shardwise, tmp_path, monkeypatch, words, expected
):
    """Exit code 2; nothing is written."""
    monkeypatch.chdir(tmp_path)
    code, out, err = shardwise(*SMALL, *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--save", "a.csv"), ("--axes", "tp,pp"), ("--plot", "a.html")])
def test_what_only_calculon_has_is_refused_elsewhere(shardwise, words):
    """The flag is named."""
    base = ("search", "gpt3-175b", "a100-80gb-sxm", "--reference", "amped", "--gpus", 8, "--gbs", 8)
    code, _, err = shardwise(*base, *words)
    assert code == 2
    assert f"{words[0][2:]}: '{words[1]}': AMPeD has no such option" in err

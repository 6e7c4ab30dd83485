"""Several searches of NERSC's model in one call: sweeps, its result files, charts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from nersc_runs import BATCH, RUNS, our_system
from rows import each_row
from shardwise.predecessors.nersc.results import read_results

SEARCH = ["search", "gpt3-1t", "nersc-b200", "--reference", "nersc", "--gbs", BATCH]
SWEEP = ["sweep", "gpt3-1t", "nersc-b200", "--reference", "nersc", "--gbs", BATCH]
SMALL = ["--method", "1d", "--domain", 8, "--gpus", 256]


def found(shardwise: Any, *words: Any) -> dict[str, Any]:
    code, out, err = shardwise(*words, "--json")
    assert (code, err) == (0, "")
    record: dict[str, Any] = json.loads(out)
    return record


def stored(system: str, method: str, gpus: int) -> float:
    """Highest throughput of one of its stored searches with domains of 8."""
    point = ["gpt3_1T", method, system, 8, gpus]
    number = next(n for n, known in enumerate(RUNS["points"]) if known[:5] == point)
    optimum = next(one for one in RUNS["optima"] if one["point"] == number)
    return BATCH / optimum["stats"][RUNS["stat_fields"].index("t")]


def test_lists_are_searched_one_by_one(shardwise: Any) -> None:
    """GPUs, systems, methods and domains: each as alone, the best as in its stored results."""
    words = list(SEARCH)
    words[2] = "nersc-b200,nersc-h200"
    every = ["--method", "1d,2d-seqp", "--domain", 8, "--gpus", "1024,16384", "--top", 2]
    record = found(shardwise, *words, *every)
    searches = record["searches"]
    assert [(s["system"], s["method"], s["gpus"]) for s in searches] == [
        (system, method, gpus)
        for system in ("nersc-b200", "nersc-h200")
        for method in ("1d", "2d-seqp")
        for gpus in (1024, 16384)
    ]
    for search in searches:
        best = stored(search["system"][6:].upper(), search["method"], search["gpus"])
        assert search["best"][0]["throughput"] == pytest.approx(best, rel=1e-12)
        assert len(search["best"]) == 2
    alone = found(shardwise, *SEARCH, "--method", "1d", "--domain", 8, "--gpus", 1024, "--top", 2)
    assert searches[0] == {name: alone[name] for name in searches[0]}
    assert record["candidates"] == sum(search["candidates"] for search in searches)
    assert [one["gpus"] for one in record["best"]] == [1024, 16384] * 4
    counted = found(shardwise, *words, *every[:-2], "--count")
    assert counted["candidates"] == record["candidates"]
    assert "best" not in counted
    code, out, _ = shardwise(*SEARCH, *SMALL[:-1], "64,256..512")
    assert code == 0
    assert "gpus 64: every candidate needs at least" in " ".join(out.split())
    lines = [line.split() for line in out.splitlines() if line.strip().startswith("nersc-b200 ")]
    assert [line[3] for line in lines] == ["64", "256", "512"]


def test_results_are_written_in_its_layout(shardwise: Any, tmp_path: Path) -> None:
    """As numpy reads them: GPU counts from the first feasible one on, ten best of each."""
    path = tmp_path / "exec_1d.npy"
    words = ["--method", "1d", "--domain", "4,8", "--gpus", "64,128,192,256"]
    record = found(shardwise, *SEARCH, *words, "--save", path)
    array = np.load(path, allow_pickle=True)
    assert array.shape == (2, 5)
    searches = [s for s in record["searches"] if s["domain"] == 8]
    feasible = [s for s in searches if s["best"]]
    domain, best, tenth, gpus, listed = array[1]
    assert domain == 8
    assert gpus.tolist() == [128, 192, 256]
    assert best == [s["best"][0]["throughput"] for s in feasible]
    assert tenth == [s["best"][-1]["throughput"] for s in feasible]
    assert [len(entries) for entries in listed] == [len(s["best"]) for s in searches[1:]]
    assert 0 in map(len, listed)  # 192 GPUs: no degrees divide them
    throughput, memory, config, stats = listed[0][0]
    assert (throughput, memory) == (best[0], stats["mem"])
    assert list(config) == ["dp", "tp", "pp", "mbs"]
    rows = read_results(path)
    assert [(row["nvs"], row["gpus"], row["rank"]) for row in rows] == [
        (search["domain"], search["gpus"], rank)
        for search in record["searches"]
        for rank in range(1, 1 + len(search["best"]))
    ]
    assert rows[0]["throughput"] == record["searches"][1]["best"][0]["throughput"]
    assert shardwise("convert", path, tmp_path / "a.json")[0] == 0
    written = json.loads((tmp_path / "a.json").read_text())
    feasible = [search for search in record["searches"] if search["best"]]
    assert [search["best"] for search in written["searches"]] == [s["best"] for s in feasible]
    assert shardwise("convert", tmp_path / "a.json", tmp_path / "b.csv")[0] == 0
    assert shardwise("convert", path, tmp_path / "c.csv")[0] == 0
    columns = sorted(rows[0])
    read_back = (pl.read_csv(tmp_path / name).select(columns) for name in ("b.csv", "c.csv"))
    assert next(read_back).equals(next(read_back))


def test_each_system_and_method_has_a_file_of_its_own(shardwise: Any, tmp_path: Path) -> None:
    """Its files have no name of a system."""
    words = list(SEARCH)
    words[2] = "nersc-b200,nersc-a100"
    every = ["--method", "1d,2d-seqp", "--domain", 8, "--gpus", 512, "--top", 1]
    found(shardwise, *words, *every, "--save", tmp_path / "a.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"a-nersc-{system}-{method}.npy"
        for system in ("a100", "b200")
        for method in ("1d", "2d-seqp")
    ]


def test_nothing_feasible_is_a_file_without_configurations(shardwise: Any, tmp_path: Path) -> None:
    """Exit code 1; no charts."""
    pytest.importorskip("plotly")
    page = tmp_path / "a.html"
    words = [*SEARCH, "--method", "1d", "--gpus", "4,8", "--save", tmp_path / "a.npy"]
    code, _, err = shardwise(*words, "--plot", page)
    assert code == 1
    assert read_results(tmp_path / "a.npy") == []
    assert f"not written: {page}: nothing is feasible" in err
    assert not page.exists()


def test_sweeps_vary_figures_by_its_own_formulas(shardwise: Any, tmp_path: Path) -> None:
    """Every point is a search on a system with those figures; the last varies first."""
    vary = ["--vary", "hbm_capacity=0.5x,192", "--vary", "hbm_bandwidth=4000..8000"]
    record = found(shardwise, *SWEEP, *SMALL, *vary, "--top", 3)
    assert record["axes"] == ["hbm_capacity", "hbm_bandwidth"]
    points = [(s["hbm_capacity"], s["hbm_bandwidth"]) for s in record["searches"]]
    assert points == [(96, 4000), (96, 8000), (192, 4000), (192, 8000)]
    system = our_system("B200", 8).to_dict()
    system["accelerator"]["memory"][0] |= {"bandwidth": 4e12}
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(system))
    words = ["search", "gpt3-1t", path, "--reference", "nersc", "--gbs", BATCH, *SMALL]
    slow = found(shardwise, *words, "--top", 3)
    assert record["searches"][2]["best"] == slow["best"]
    assert record["searches"][2]["candidates"] == slow["candidates"]
    assert record["searches"][0]["feasible"] < record["searches"][2]["feasible"]
    code, out, _ = shardwise(*SWEEP, *SMALL, *vary)
    assert code == 0
    assert "hbm_bandwidth" in out


def test_figures_advance_together(shardwise: Any) -> None:
    """With --zip, and several of one axis by one factor, as its sweeps of FLOP rates do."""
    both = [
        "--vary",
        "matrix_flops_fp16+vector_flops_fp16=0.5x,1x",
        "--vary",
        "hbm_capacity=160,192",
    ]
    record = found(shardwise, *SWEEP, *SMALL, *both, "--zip")
    name = "matrix_flops_fp16+vector_flops_fp16"
    points = [(s[name], s["hbm_capacity"]) for s in record["searches"]]
    assert points == [(0.5, 160), (1, 192)]
    half, full = (s["best"][0]["stats"] for s in record["searches"])
    assert half["t_comp"] > 1.5 * full["t_comp"]
    plain = found(shardwise, *SEARCH, *SMALL)
    assert record["searches"][1]["best"] == plain["best"]


@each_row(
    ("words", "told"),
    [
        (["--vary", "hbm_capacty=1x"], "vary: hbm_capacty: no such figure; allowed: matrix_flops"),
        (
            ["--vary", "hbm_capacity=-1"],
            "vary: hbm_capacity: -1.0: must be at least 0.000001",
        ),
        (["--vary", "hbm_capacity=big"], "vary: hbm_capacity: big: must be a number, a range"),
        (["--vary", "nvlink_eff=2x"], "vary: nvlink_eff: 1.4: must be at most 1"),
        (
            ["--vary", "ib_bandwidth+nvlink_bandwidth=100"],
            "vary: 100: ib_bandwidth+nvlink_bandwidth: several figures need factors, as in 2x",
        ),
        (
            ["--zip", "--vary", "ib_bandwidth=1x", "--vary", "hbm_capacity=1x,2x"],
            "--zip: 'ib_bandwidth 1, hbm_capacity 2': all figures need as many values",
        ),
        (["--tp", 8], "tp: 8: has no effect with --reference"),
        (["--fixed"], "fixed: has no effect with --reference"),
        (["--gpus", "512..64"], "gpus: 512..64: a range goes from a number to a larger one"),
        (["--reference", "calculon"], "reference: calculon: allowed: nersc"),
    ],
)
def test_what_cannot_be_swept_is_one_clear_line(
    shardwise: Any, words: list[Any], told: str
) -> None:
    """Exit code 2, nothing printed."""
    code, out, err = shardwise(*SWEEP, *SMALL, *words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert told.replace("'", "") in line.replace("'", "")


def test_options_of_its_sweeps_need_it(shardwise: Any) -> None:
    """They say nothing about shardwise's own search."""
    words = ["sweep", "llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 8, "--method", "1d"]
    code, _, err = shardwise(*words)
    assert code == 2
    assert "method: 1d: needs --reference nersc" in err.replace("'", "")
    code, _, err = shardwise(*SEARCH, *SMALL, "--save", "a.csv")
    assert code == 2
    assert "save: a.csv: NERSC's results are .npy files" in err.replace("'a.csv'", "a.csv")
    code, _, err = shardwise(*SEARCH, *SMALL, "--axes", "tp,pp")
    assert "axes: tp,pp: NERSC's model has no such option" in err.replace("'tp,pp'", "tp,pp")


def drawn(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def test_searches_and_stored_files_have_the_same_charts(shardwise: Any, tmp_path: Path) -> None:
    """Rates over the GPUs with their tenth, and what time and memory consist of."""
    pytest.importorskip("plotly")
    file, record, page = tmp_path / "a.npy", tmp_path / "a.json", tmp_path / "page.json"
    words = ["--method", "1d", "--domain", 8, "--gpus", "256,512"]
    shardwise(*SEARCH, *words, "--save", file, "--plot", page, "--output", record)
    ours = drawn(page)
    assert list(ours) == ["rates", "time", "memory"]
    searches = json.loads(record.read_text())["searches"]
    line, tenth = ours["rates"]["data"]
    assert line["x"] == tenth["x"] == [256, 512]
    assert line["y"] == [s["best"][0]["throughput"] for s in searches]
    assert tenth["y"] == [s["best"][9]["throughput"] for s in searches]
    shares = [sum(bar["x"][0] for bar in ours["time"]["data"])]
    assert shares == [pytest.approx(1)]
    memory = sum(bar["x"][1] for bar in ours["memory"]["data"])
    assert memory == pytest.approx(searches[1]["best"][0]["memory"])
    for source in (file, record):
        assert shardwise("convert", source, tmp_path / "b.txt")[0] == 2  # no table
        out = tmp_path / f"{source.suffix[1:]}.html"
        assert shardwise("convert", source, out) == (0, "", "")
        assert "rates" in out.read_text()
    cut = {"best": [{"config": {}, "stats": {}}], "candidates": 1, "reference": "nersc"}
    (tmp_path / "cut.json").write_text(json.dumps(cut))
    code, _, err = shardwise("convert", tmp_path / "cut.json", tmp_path / "cut.html")
    assert (code, "an entry is incomplete" in err) == (2, True)
    code, out, _ = shardwise("convert", record)
    assert code == 0
    table = pl.read_csv(out.encode())
    assert table.height == 20
    assert table["rank"].max() == 10


def test_two_figures_are_a_map(shardwise: Any, tmp_path: Path) -> None:
    """For each number of GPUs; one figure is a line over its values."""
    pytest.importorskip("plotly")
    page = tmp_path / "page.json"
    both = ["--vary", "hbm_capacity=20,160,192", "--vary", "hbm_bandwidth=0.5x,1x"]
    found(shardwise, *SWEEP, *SMALL, *both, "--plot", page)
    name = "map-nersc-b200-1d-8-256"
    figures = drawn(page)
    assert name in figures
    nothing, some, *_ = (cells["text"] for cells in figures[name]["data"])
    assert nothing == [["-", "-"], ["", ""], ["", ""]]  # 20 GB
    assert some[0] == ["", ""]
    assert "" not in some[1] + some[2]
    one = ["--vary", "hbm_capacity=160,192"]
    found(shardwise, *SWEEP, *SMALL, *one, "--plot", page)
    line = drawn(page)["rates"]["data"][0]
    assert line["x"] == [160, 192]


def test_several_numbers_of_gpus_are_points(shardwise: Any) -> None:
    """Of shardwise's own sweep too: lists and ranges, searched or fixed."""
    words = ["sweep", "llama3-8b", "h100-sxm", "--gbs", 64, "--json"]
    narrow = ["--tp", "2", "--pp", "1", "--mbs", "1", "--recompute", "none", "--zero", "1"]
    for gpus in ("16,64", "16..64:48"):
        code, out, _ = shardwise(*words, "--gpus", gpus, "--fixed", *narrow)
        record = json.loads(out)
        assert code == 0
        assert [point["values"]["gpus"] for point in record["points"]] == [16, 64]
    code, out, _ = shardwise(*words, "--gpus", "16,64", *narrow)
    record = json.loads(out)
    assert [point["best"][0]["strategy"]["gpus"] for point in record["points"]] == [16, 64]
    code, _, err = shardwise(*words, "--gpus", "16,64", "--vary", "gpus=8,16")
    assert code == 2
    assert "gpus is set twice" in err


def test_tokens_become_training_days(shardwise: Any, tmp_path: Path) -> None:
    """Days = tokens / sequence length / rate; its default method is 1d; a sweep saves them, too."""
    words = ["--domain", 8, "--gpus", 256, "--tokens", "1e12"]
    (best, *_) = found(shardwise, *SEARCH, *words, "--top", 1)["best"]
    assert best["days"] == pytest.approx(1e12 / 2048 / best["throughput"] / 86_400, rel=1e-12)
    assert best == found(shardwise, *SEARCH, *words, "--top", 1, "--method", "1d")["best"][0]
    path = tmp_path / "grid.npy"
    code, _, _ = shardwise(*SWEEP, *words, "--vary", "hbm_capacity=0.001x,1x,2x", "-o", path)
    assert code == 0
    grid = np.load(path)
    assert grid["hbm_capacity"].tolist() == [192, 384]  # nothing fits the first
    assert grid["days"][0] == pytest.approx(best["days"], rel=1e-12)
    assert shardwise("convert", path, tmp_path / "grid.json")[0] == 0
    searches = json.loads((tmp_path / "grid.json").read_text())["searches"]
    assert searches[0]["best"] == [best]
    assert [search["hbm_capacity"] for search in searches] == [192, 384]
    path.write_bytes(path.read_bytes()[:-9])
    assert "is cut off" in shardwise("convert", path)[2]


def test_breakdowns_are_drawn_of_any_number_of_points() -> None:
    """More than one chart holds: one for each place, with evenly spaced points."""
    pytest.importorskip("plotly")
    from shardwise.predecessors.nersc.charts import charts  # noqa: PLC0415

    row = {"rank": 1, "throughput": 1.0, "memory": 2.0, "t": 4.0, "t_comp": 3.0, "wts_mem": 2.0}
    rows = [
        {**row, "system": name, "method": "1d", "nvs": 8, "gpus": gpus}
        for name in ("a", "b")
        for gpus in range(1, 101)
    ]
    drawn = charts(rows)
    assert list(drawn) == ["rates", "time-a-1d-8", "memory-a-1d-8", "time-b-1d-8", "memory-b-1d-8"]
    labels = drawn["time-a-1d-8"].data[0].y
    assert (len(labels), labels[0], labels[-1]) == (
        48,
        "a, 1d, domains of 8, 1 GPUs",
        "a, 1d, domains of 8, 100 GPUs",
    )
    assert "48 of 100" in drawn["time-a-1d-8"].layout.title.text


@pytest.mark.parametrize(
    "words",
    [
        [*SWEEP, "--vary", "hbm_capacity=80..1000:8", "--vary", "hbm_bandwidth=500..16000:80"],
        [
            "sweep",
            "llama3-8b",
            "h100-sxm",
            "--gbs",
            64,
            "--vary",
            "nvlink.bandwidth=1x..99x:0.01x",
            "--vary",
            "domain=4,8",
        ],
    ],
)
def test_a_sweep_of_too_many_points_does_not_start(words: list[Any], shardwise: Any) -> None:
    """It has to be confirmed."""
    code, _, err = shardwise(*words, "--gpus", 256)
    assert code == 2
    assert "points; more than 10,000 need --yes" in err

"""The result of a search becomes a table: one row for each of its best plans."""

import gzip
import io
import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import InputError, Model, search
from shardwise.engine.step_time import TIME_PARTS
from shardwise.report.search_csv import table

pytestmark = pytest.mark.any_software

SPACE = {
    "gpus": [1, 16],
    "gbs": 32,
    "seq_len": 2048,
    "vpp": 1,
    "placement": "tp-cp-dp-pp",
    "tp_overlap": "stack",
    "dp_overlap": True,
    "offload_optimizer": False,
}
REFERENCE = ("calculon-megatron-22b", "calculon-a100-80g", "--reference", "calculon", "--gpus", 8)


@pytest.fixture(scope="module")
def result():
    """A search with all that it can be asked for, as `--json` prints it."""
    found = search(
        "llama3-8b", "h100-sxm", SPACE, top=12, pareto="memory", axes=("tp", "recompute")
    )
    return found.to_dict()


@pytest.fixture
def written(result, tmp_path):
    """The same in a file."""
    path = tmp_path / "result.json.gz"
    path.write_bytes(gzip.compress(json.dumps(result).encode()))
    return path


@pytest.fixture
def theirs(shardwise, tmp_path):
    """Calculon's own file of its best executions, out of order, and ours of the same."""
    path = tmp_path / "ours.json"
    code, _, _ = shardwise("search", *REFERENCE, "--gbs", 8, "--top", 11, "--output", path)
    assert code == 0
    best = json.loads(path.read_text())["best"]
    numbered = {
        str(i): {n: entry[n] for n in ("execution", "stats")} for i, entry in enumerate(best)
    }
    own = tmp_path / "theirs.json"
    own.write_text(json.dumps({key: numbered[key] for key in sorted(numbered)}))
    return path, own, best


def read(text):
    """Rows of a CSV."""
    return pl.read_csv(io.StringIO(text)).to_dicts()


def test_a_row_holds_a_plan(shardwise, written, result):
    """Strategy, times, memory and rates, exactly as in the result, in the order of the advice."""
    code, out, err = shardwise("convert", written)
    rows = read(out)
    assert (code, err) == (0, "")
    assert [row["rank"] for row in rows] == list(range(1, 13))
    for row, plan in zip(rows, result["advised"], strict=True):
        assert (row["model"], row["system"]) == ("llama3-8b", "h100-sxm")
        told = {n: " ".join(v) if isinstance(v, list) else v for n, v in plan["strategy"].items()}
        assert {name: row[name] for name in told} == told
        for name in ("step_time_s", "tokens_per_s", "mfu", "fits", "parameters", "micro_batches"):
            assert row[name] == plan[name]
        assert {part: row[f"{part}_s"] for part in TIME_PARTS} == plan["time_s"]
        assert {p: row[f"{p}_bytes"] for p in plan["memory_bytes"]} == plan["memory_bytes"]
        assert row["tp_comm_total_s"] == plan["comm_s"].get("tp", {"total": None})["total"]
        assert row["usd_per_step"] == plan["cost"]["usd_per_step"]
        assert row["required_bandwidth_dp_tail"] == plan["required_bandwidth"]["dp_tail"]


def test_lists_have_no_column(result):
    """Stages, layers, operations and sources are not figures of a row."""
    columns = table(result, source="result").columns
    assert len(columns) == len(set(columns))
    lists = {"stages", "layers", "operations", "provenance", "assumed", "strategy"}
    assert not lists & set(columns)


@pytest.mark.parametrize("part", ["pareto", "cells"])
def test_fronts_and_cells_are_rows_too(shardwise, written, result, part):
    """`--rows` names another part of the search."""
    _, out, _ = shardwise("convert", written, "--rows", part)
    rows = read(out)
    plans = [entry.get("plan", entry) for entry in result[part]]
    assert [row["step_time_s"] for row in rows] == [plan["step_time_s"] for plan in plans]
    assert [row["tp"] for row in rows] == [plan["strategy"]["tp"] for plan in plans]
    assert {row["model"] for row in rows} == {"llama3-8b"}


def test_a_scale_on_which_nothing_fits_has_an_empty_row(shardwise, written, result):
    """One row for each number of GPUs, with what was asked for and the best if there is one."""
    _, out, _ = shardwise("convert", written, "--rows", "scales")
    first, second = read(out)
    assert (first["gpus"], first["feasible"], first["step_time_s"]) == (1, 0, None)
    assert (second["gpus"], second["asked_global_batch_size"]) == (16, 32)
    assert second["step_time_s"] == result["best"][0]["step_time_s"]
    assert second["global_batch_size"] == 32


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_the_ending_decides_the_format(shardwise, written, tmp_path, name):
    """CSV, gzipped CSV and Parquet hold the same table as is printed without a file."""
    path = tmp_path / name
    code, out, _ = shardwise("convert", written, path)
    assert (code, out) == (0, "")
    _, printed, _ = shardwise("convert", written)
    if name.endswith(".parquet"):
        text = pl.read_parquet(path).write_csv()
    else:
        content = path.read_bytes()
        text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
    assert text == printed


def test_calculons_own_file_has_a_column_for_each_of_its_words(shardwise, theirs):
    """23 words of an execution and 96 statistics, no empty columns, entry 10 after entry 2."""
    _, own, best = theirs
    _, out, _ = shardwise("convert", own)
    rows = read(out)
    assert len(rows[0]) == 1 + 23 + 96
    for number, (row, entry) in enumerate(zip(rows, best, strict=True), start=1):
        assert row == {"rank": number} | entry["execution"] | entry["stats"]


def test_a_search_in_calculons_space_gives_the_same_table(shardwise, theirs):
    """`search --reference calculon` and Calculon itself say the same in other files."""
    ours, own, _ = theirs
    assert shardwise("convert", ours)[1] == shardwise("convert", own)[1]


def test_an_estimate_is_a_table_of_one_row(shardwise, tmp_path):
    """`estimate --json` becomes a row; its operations do not."""
    path = tmp_path / "estimate.json"
    job = ("llama3-8b", "h100-sxm", "--gpus", 8, "--gbs", 8, "--ops", "--output", path)
    shardwise("estimate", *job)
    _, out, _ = shardwise("convert", path)
    (row,) = read(out)
    assert row["step_time_s"] == json.loads(path.read_text())["step_time_s"]
    assert "operations" not in row


def test_a_changed_stack_is_one_column(result):
    """What differs from a stack of the catalog is kept, as JSON."""
    changed = {"base": "nemo-2025", "allocator_slack": 1.1}
    best = [dict(result["best"][0], strategy=result["best"][0]["strategy"] | {"stack": changed})]
    (row,) = table(result | {"advised": best}, source="result").to_dicts()
    assert json.loads(row["stack"]) == changed


def test_a_result_may_be_larger_than_other_files(shardwise, result, tmp_path):
    """Thousands of plans with all of their detail are more than the 8 MiB of a description."""
    path = tmp_path / "large.json"
    path.write_text(json.dumps(result) + " " * (9 * 2**20))
    code, out, _ = shardwise("convert", path)
    assert (code, len(read(out))) == (0, 12)


def test_a_second_file_is_written_for_nouns_too(shardwise, tmp_path):
    """OUT is short for --output whatever is converted."""
    path = tmp_path / "model.yaml"
    code, out, _ = shardwise("convert", "gpt3-175b", path)
    assert (code, out) == (0, "")
    assert Model.load(path) == Model.load("gpt3-175b")


def test_a_mixed_column_is_of_numbers():
    """A statistic that is whole in one row and not in the next is a number in both."""
    rows = {
        str(i): {"execution": {"a": i}, "stats": {"b": b}} for i, b in enumerate([0, 0.5, None])
    }
    frame = table(rows, source="x")
    assert dict(frame.schema) == {"rank": pl.Int64, "a": pl.Int64, "b": pl.Float64}
    assert frame.rows() == [(1, 0, 0.0), (2, 1, 0.5), (3, 2, None)]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_figures_come_back_from_csv_as_they_were(values):
    """No digit is lost on the way through the file."""
    rows = {str(i): {"execution": {}, "stats": {"b": b}} for i, b in enumerate(values)}
    assert [row["b"] for row in read(table(rows, source="x").write_csv())] == values


def test_bad_input_is_told_by_file_and_what_is_allowed(shardwise, written, result, tmp_path):
    """Other endings, other files, empty and broken results: one line each, exit code 2."""
    empty, broken = tmp_path / "empty.json", tmp_path / "broken.json"
    empty.write_text(json.dumps(result | {"best": [], "advised": [], "pareto": None}))
    broken.write_text(json.dumps(result | {"best": [1]}))
    cases = [
        ((written, "out.yaml"), "out.yaml: a search result can be written as .csv, .csv.gz, "),
        ((written, "out.html", "--rows", "cells"), "rows: 'cells': has no effect on charts"),
        ((broken, "out.html"), f"{broken}: best[0]: 1: must be a mapping"),
        ((written, "--output", "out.json"), "out.json: a search result can be written as .csv"),
        (("gpt3-175b", "out.csv"), "gpt3-175b: is a model; only the result of a search can become"),
        ((written, "out.csv", "--output", "out.csv"), "output: 'out.csv': repeats OUT"),
        ((written, "--rows", "plans"), "rows: 'plans': allowed: best, pareto, cells, scales"),
        (("gpt3-175b", "--rows", "best"), "rows: 'best': is for the result of a search"),
        ((written, "--to", "calculon"), "to: 'calculon': has no effect on the table of a result"),
        ((empty,), f"{empty}: best: is empty: it was not requested, or the search found nothing"),
        ((empty, "--rows", "pareto"), f"{empty}: pareto: is empty"),
        ((broken,), f"{broken}: best[0]: 1: must be a mapping"),
        (
            (written, tmp_path / "none" / "out.csv"),
            "out.csv: cannot be written: no such folder: none",
        ),
    ]
    for words, told in cases:
        code, out, err = shardwise("convert", *words)
        assert (code, out) == (2, ""), words
        assert told in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_text_among_numbers_is_refused():
    """A file in which a statistic is text here and a number there is not a result."""
    rows = {str(i): {"execution": {}, "stats": {"b": b}} for i, b in enumerate([1.0, "fast"])}
    with pytest.raises(InputError, match="x: does not make a table"):
        table(rows, source="x")

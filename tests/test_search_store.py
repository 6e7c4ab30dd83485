"""Saving every strategy that was looked at: which rows, and that an interruption loses none."""

import gzip
import json
import signal

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import samples
from rows import first_of
from saved_search import (
    HBM,
    HOST,
    PIECE_ROWS,
    SPACE,
    begun,
    case,
    interrupted,
    machine,
    parts_of,
    plain,
    wait_for,
)
from shardwise import InputError, estimate, estimate_many
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import Kind, names_of
from shardwise.engine.step_time import TIME_PARTS
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.planning.search import pieces, store
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.search.query import load_space

pytestmark = pytest.mark.any_software

TIMES = ["step_time_s", "tokens_per_s", "mfu", *(f"{part}_s" for part in TIME_PARTS)]
BYTES = ["weights_bytes", "activations_bytes", "total_bytes", "reserved_bytes", "offloaded_bytes"]


# For tests that do not look at what is found.
FEW = {"seq_len": 32, "gpus": 16, "pp": [1, 2], "zero": [0, 1], "recompute": "none"}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All rows of an uninterrupted search in small pieces: result, file and frame."""
    file = tmp_path_factory.mktemp("saved") / "all.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SAVED_PIECE_ROWS", PIECE_ROWS)
        result = case(save=file, save_all=True)
    return result, file, pl.read_parquet(file)


@pytest.fixture
def small(monkeypatch):
    """Cut a search in pieces as small as the interrupted program does."""
    monkeypatch.setattr(pieces, "SAVED_PIECE_ROWS", PIECE_ROWS)


@pytest.fixture
def looks(monkeypatch):
    """Numbers of first candidates of the pieces that are looked at, illegal ones too."""
    seen = []
    task = pieces.SearchTask.__call__

    def noted(self, piece):
        seen.append(piece.start)
        return task(self, piece)

    monkeypatch.setattr(pieces.SearchTask, "__call__", noted)
    return seen


def _candidates():
    return Candidates.of(samples.model(), machine(), load_space(None, SPACE))


def test_rows_are_what_estimate_says(everything):
    """Times, rates and memory of every saved strategy equal those of a table, bit for bit."""
    feasible = everything[2].filter(pl.col("rejected").is_null())
    columns = {name: feasible[name].to_numpy() for name in Strategy.model_fields}
    table = estimate_many(
        samples.model(), machine(), columns | {"stack": [samples.stack()] * len(feasible)}
    ).to_frame()
    names = [name for name in table.columns if name in feasible.columns]
    assert set(names) == {*Strategy.model_fields, *feasible.columns} - {
        "candidate",
        "rejected",
        "tokens_per_s_per_gpu",
    }
    open_ = [n for n in names if n in names_of(Kind.WHOLE, Kind.TIER, optional=True)]
    told = table.select(names).with_columns(
        pl.col(open_).fill_nan(None).cast(pl.Int64),
        pl.col("expert_capacity").fill_nan(None),
        pl.col("stage_layers", "extents", "offload_parts", "graph_scope", "lora_targets").replace(
            "", None
        ),
        pl.col("data_lengths").replace("", None),
    )
    assert_frame_equal(feasible.select(names), told, check_exact=True)


def test_a_row_is_the_estimate_of_its_candidate(everything):
    """The number of a row leads to its strategy."""
    row = everything[2].filter(pl.col("rejected").is_null()).row(100, named=True)
    strategy = _candidates().strategies(np.array([row["candidate"]])).strategy(0)
    one = estimate(samples.model(), machine(), strategy)
    words = one.strategy | {"stack": row["stack"]}
    expected = {n: " ".join(v) if isinstance(v, tuple) else v for n, v in words.items()}
    assert {name: row[name] for name in expected} == expected
    assert row["step_time_s"] == one.step_time_s
    assert row["tokens_per_s_per_gpu"] == one.tokens_per_s_per_gpu
    assert row["reserved_bytes"] == one.memory_bytes.reserved


def test_every_candidate_has_one_row_in_order(everything):
    """With the rejected ones, numbers run from 0 without a gap."""
    result, _, frame = everything
    assert frame["candidate"].to_list() == list(range(result.candidates))


def test_reasons_are_counted_as_in_the_result(everything):
    """Rows by reason add up to what the search tells."""
    result, _, frame = everything
    counts = dict(frame["rejected"].value_counts().iter_rows())
    assert counts.pop(None) == result.feasible
    assert counts == result.rejected
    assert {"memory", "second_memory", "zero", "batch", "layers", "sequence"} <= set(counts)


def test_each_rejected_row_breaks_the_rule_it_names(everything):
    """A layout the first rule of degrees that it breaks, an option the first of its own."""
    ruled = everything[2].filter(pl.col("rejected").is_in([rule.reason for rule in CONSTRAINTS]))
    table = _candidates().strategies(ruled["candidate"].to_numpy())
    for layout_only in (True, False):
        rules = [r for r in CONSTRAINTS if r.layout_only == layout_only and "tier" not in r.reason]
        mine = ruled["rejected"].is_in([rule.reason for rule in rules])
        broken = first_violation(samples.model(), machine(), table.take(mine.to_numpy()), rules)
        assert [CONSTRAINTS[rule].reason for rule in broken] == ruled.filter(mine)[
            "rejected"
        ].to_list()


def test_what_was_not_computed_is_null(everything):
    """Rejected rows have no times; those that broke a rule have no memory either."""
    frame = everything[2]
    lacking = pl.col("rejected").is_in(["memory", "second_memory"])
    no_times = pl.all_horizontal(pl.col(TIMES).is_null())
    assert frame.filter(no_times != pl.col("rejected").is_not_null()).is_empty()
    no_bytes = pl.all_horizontal(pl.col(BYTES).is_null())
    assert frame.filter(no_bytes != (pl.col("rejected").is_not_null() & ~lacking)).is_empty()


def test_the_memory_that_lacks_is_told(everything):
    """Of the first tier more is reserved than there is, or of the second more is offloaded."""
    frame = everything[2]
    first = frame.filter(pl.col("rejected") == "memory")["reserved_bytes"]
    second = frame.filter(pl.col("rejected") == "second_memory")
    assert first.min() > HBM
    assert second["reserved_bytes"].max() <= HBM
    assert second["offloaded_bytes"].min() > HOST


def test_only_feasible_rows_are_saved_unless_all_are_asked_for(everything, tmp_path):
    """They are the same rows, whatever the size of the pieces."""
    case(save=tmp_path / "some.parquet")
    feasible = everything[2].filter(pl.col("rejected").is_null())
    assert_frame_equal(pl.read_parquet(tmp_path / "some.parquet"), feasible, check_exact=True)


@pytest.mark.usefixtures("small")
def test_processes_save_the_same_file(everything, tmp_path):
    """Two of them, byte for byte, with the same result."""
    found = case(save=tmp_path / "all.parquet", save_all=True, jobs=2)
    assert plain(found) == plain(everything[0])
    assert (tmp_path / "all.parquet").read_bytes() == everything[1].read_bytes()


@pytest.mark.usefixtures("small")
def test_csv_holds_what_parquet_holds(everything, tmp_path):
    """Every figure in full, compressed or not; a file that was there is replaced."""
    plain_file, squeezed = tmp_path / "all.csv", tmp_path / "all.CSV.gz"
    plain_file.write_text("old")
    case(save=str(plain_file), save_all=True)
    case(save=str(squeezed), save_all=True)
    assert gzip.decompress(squeezed.read_bytes()) == plain_file.read_bytes()
    read = pl.read_csv(plain_file, schema=everything[2].schema)
    assert_frame_equal(read, everything[2], check_exact=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.CSV.gz", "all.csv"]


@pytest.mark.parametrize("changed", [{"max_memory": 10_000}, {"dp": 5}, {"gbs": 7, "dp": 2}])
def test_a_file_without_rows_has_its_columns(everything, tmp_path, changed):
    """Nothing fits, or there is no candidate, or none whose layout is legal."""
    found = case(save=tmp_path / "none.parquet", **(FEW | changed))
    frame = pl.read_parquet(tmp_path / "none.parquet")
    assert found.feasible == len(frame) == 0
    assert (found.candidates > 0) == ("gbs" in changed or "max_memory" in changed)
    assert frame.schema == everything[2].schema


@pytest.mark.usefixtures("small")
def test_a_killed_search_goes_on_where_it_was(everything, tmp_path, looks):
    """After SIGKILL the same search saves the same file; finished parts are not looked at again."""
    file = tmp_path / "all.parquet"
    code, _, _ = interrupted(file, signal.SIGKILL)
    assert code == -signal.SIGKILL
    kept = len(parts_of(file))
    found = case(save=file, save_all=True)
    assert plain(found) == plain(everything[0])
    assert file.read_bytes() == everything[1].read_bytes()
    assert len(looks) == len(set(looks)) == _all_pieces() - kept
    assert not file.with_name("all.parquet.parts").exists()


def _all_pieces():
    candidates = _candidates()
    boxes = (*candidates.legal, *candidates.illegal)
    return sum(1 for box in boxes for _ in box.cut(PIECE_ROWS))


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_a_search_killed_while_it_joins_goes_on(everything, tmp_path, looks):
    """All parts are there, and none is looked at again."""
    file = tmp_path / "all.parquet"
    with begun(file, seconds=0.02) as process:
        wait_for((tmp_path / "all.parquet.parts" / "whole").exists, process)
        process.kill()
    assert not file.exists()
    assert plain(case(save=file, save_all=True)) == plain(everything[0])
    assert file.read_bytes() == everything[1].read_bytes()
    assert looks == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("jobs", first_of(1, [1, 2]))
def test_an_interrupted_search_tells_what_it_has(everything, tmp_path, looks, jobs):
    """Ctrl-C ends it without a traceback, with the best so far; later it goes on."""
    file = tmp_path / "all.parquet"
    code, out, err = interrupted(file, signal.SIGINT, jobs, parts=12)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["complete"] is False
    assert len(told["best"]) > 0
    kept = len(parts_of(file))
    case(save=file, save_all=True, jobs=1)
    assert file.read_bytes() == everything[1].read_bytes()
    assert len(looks) == _all_pieces() - kept


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_workers_do_not_outlive_a_killed_search(tmp_path):
    """Nobody tells them, so they look for themselves."""
    file = tmp_path / "all.parquet"
    with begun(file, jobs=2) as process:
        wait_for(lambda: len(parts_of(file)) >= 2, process)
        process.kill()
        process.communicate(timeout=30)  # ends when the last of them has let go of the output


def _stopped(file, monkeypatch, after=2, **changed):
    """Interrupt a search in this process after some parts."""
    add = store.Store.add
    left = [after]

    def until(self, *part):
        add(self, *part)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "add", until)
        return case(save=file, **changed)


@pytest.mark.usefixtures("small")
def test_an_interrupt_while_joining_is_not_complete(tmp_path, monkeypatch):
    """All was looked at, but the file is not there yet."""

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_join", stopped)
        assert not case(save=tmp_path / "a.csv", **FEW).complete
    assert case(save=tmp_path / "a.csv", **FEW).complete


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"top": 3}, "top"),
        ({"pareto": "gpus"}, "pareto"),
        ({"axes": ("tp",)}, "axes"),
        ({"objective": "tokens_per_s_per_gpu"}, "objective"),
        ({"max_memory": 1.4e6}, "usable memory"),
        ({"save_all": True}, "space, save_all"),
        ({"tp": [1, 2]}, "space"),
        ({"stack": samples.stack(step_overhead=1)}, "space"),
    ],
)
def test_parts_of_another_search_are_refused(tmp_path, monkeypatch, looks, changed, named):
    """What differs is named, nothing is looked at, and the parts stay as they are."""
    file = tmp_path / "a.csv"
    assert not _stopped(file, monkeypatch, **FEW).complete
    kept = {path: path.read_bytes() for path in (tmp_path / "a.csv.parts").iterdir()}
    looks.clear()
    told = rf"a\.csv\.parts: holds parts of another search, which differs in {named}; "
    with pytest.raises(InputError, match=f"{told}delete it, or choose another file"):
        case(save=file, **(FEW | changed))
    assert looks == []
    assert {path: path.read_bytes() for path in (tmp_path / "a.csv.parts").iterdir()} == kept
    assert not file.exists()


@pytest.mark.usefixtures("small")
def test_a_part_cut_short_is_made_anew(everything, tmp_path, monkeypatch):
    """After a loss of power a file may have its name, but not its end."""
    file = tmp_path / "all.parquet"
    _stopped(file, monkeypatch, save_all=True)
    part = parts_of(file)[1]
    part.write_bytes(part.read_bytes()[:-1])
    found = (part.with_suffix(".json")).with_name("000000.json")
    found.write_text("{")
    assert plain(case(save=file, save_all=True)) == plain(everything[0])
    assert file.read_bytes() == everything[1].read_bytes()


def test_a_folder_of_someone_else_is_left_alone(tmp_path):
    """A folder of the name of the parts that holds something else is refused."""
    (tmp_path / "a.csv.parts").mkdir()
    (tmp_path / "a.csv.parts" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"a\.csv\.parts: holds no parts of a search; delete it"):
        case(save=tmp_path / "a.csv")
    assert (tmp_path / "a.csv.parts" / "mine.txt").read_text() == "mine"


@pytest.mark.usefixtures("small")
def test_two_searches_do_not_write_one_file(tmp_path, monkeypatch):
    """While one runs, another one is refused."""
    file = tmp_path / "a.csv"
    inner = []
    add = store.Store.add

    def meanwhile(self, *part):
        add(self, *part)
        if not inner:
            with pytest.raises(InputError) as caught:
                case(save=file, **FEW)
            inner.append(str(caught.value))

    monkeypatch.setattr(store.Store, "add", meanwhile)
    assert case(save=file, **FEW).complete
    assert "is being written by another search" in inner[0]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.xlsx", "cannot be written; allowed endings: .parquet, .csv, .csv.gz"),
        ("folder.csv", "is a directory, not a file"),
        ("none/a.csv", "cannot be written: no such folder"),
        ("file/a.csv", "cannot be written: no such folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_first(tmp_path, looks, name, problem):
    """Before anything is looked at."""
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=problem) as caught:
        case(save=tmp_path / name)
    assert name in str(caught.value)
    assert looks == []


def test_a_full_disk_is_told_and_loses_nothing(tmp_path, monkeypatch, looks):
    """The parts wait until there is room."""

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_join", full)
        with pytest.raises(InputError, match=r"a\.csv: cannot be written: No space left"):
            case(save=tmp_path / "a.csv", **FEW)
    looks.clear()
    assert case(save=tmp_path / "a.csv", **FEW).complete
    assert looks == []


def test_saving_all_needs_a_file():
    """On its own it would do nothing."""
    with pytest.raises(InputError, match="save_all: true: needs a file: set save"):
        case(save_all=True)

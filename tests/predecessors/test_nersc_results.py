"""NERSC's stored searches: rows of a table, read without running what a pickle says."""

import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from shardwise import InputError
from shardwise.predecessors.nersc.results import read_results

CONFIG = {"dp": 2, "tp": 16, "pp": 32, "mbs": 1}
STATS = {"t": 614.2, "mem": 73.4, "nv_tp": 4, "nv_dp": 1}
BEST = [(6.67, 73.4, CONFIG, STATS), (5.13, 73.4, CONFIG, STATS | {"nv_tp": 2})]
SEARCH = (8, [6.67, 15.7], [5.13, 15.7], [512, 1024], [BEST, [(15.7, 76.7, CONFIG, STATS)]])


def stored(path: Path, *searches: Any, shape: tuple[int, ...] | None = None) -> Path:
    """Save searches as NERSC's scripts do: an array of objects."""
    array = np.empty((len(searches), 5), dtype=object)
    for index, search in enumerate(searches):
        for place, value in enumerate(search):
            array[index, place] = value
    np.save(path, array if shape is None else array.reshape(shape), allow_pickle=True)
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_results(path)
    (fault,) = error.value.faults
    return str(fault).removeprefix(f"{path}: ")


def test_each_configuration_is_a_row(tmp_path: Path) -> None:
    """Best first for each number of GPUs; several sizes of the domain one after the other."""
    rows = read_results(stored(tmp_path / "a.npy", SEARCH, (64, *SEARCH[1:])))
    assert [(row["nvs"], row["gpus"], row["rank"]) for row in rows] == [
        (nvs, *place) for nvs in (8, 64) for place in ((512, 1), (512, 2), (1024, 1))
    ]
    assert rows[1] == {
        "nvs": 8,
        "gpus": 512,
        "rank": 2,
        "throughput": 5.13,
        "memory": 73.4,
        "dp": 2,
        "tp": 16,
        "pp": 32,
        "mbs": 1,
        "t": 614.2,
        "mem": 73.4,
        "nv_tp": 2,
        "nv_dp": 1,
    }
    assert read_results(stored(tmp_path / "b.npy", SEARCH, shape=(5,))) == rows[:3]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """Scalars and arrays of every kind, in either order of bytes."""
    config = {"tp": np.int64(16), "pp": np.uint8(32), "even": np.bool_(True)}
    stats = {"t": np.float64(614.2), "f": np.float32(0.5)}
    entry = (np.float64(6.67), np.float16(73.5), config, stats)
    for counts in (np.array([512]), np.array([512], dtype=">i4"), np.array([512.0])):
        search = (np.int32(8), np.array([6.67]), [], counts, [[entry]])
        (row,) = read_results(stored(tmp_path / "a.npy", search))
        assert row == {
            "nvs": 8,
            "gpus": 512,
            "rank": 1,
            "throughput": 6.67,
            "memory": 73.5,
            "tp": 16,
            "pp": 32,
            "even": True,
            "t": 614.2,
            "f": 0.5,
        }
        assert all(type(value) in (int, float, bool) for value in row.values())
    nested = np.empty((1, 1, 4), dtype=object)
    nested[0, 0] = np.array([*entry], dtype=object)
    assert len(read_results(stored(tmp_path / "a.npy", (8, [], [], [512], nested)))) == 1


def test_files_of_old_releases_are_read(tmp_path: Path) -> None:
    """Pickle protocols 2 to 5, with the names that numpy had before its release 2."""
    array = np.empty((1, 5), dtype=object)
    array[0] = np.array([*SEARCH[:3], np.array([512, 1024]), SEARCH[4]], dtype=object)
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    for protocol in (2, 3, 4):
        content = pickle.dumps(array, protocol=protocol)
        path = tmp_path / f"{protocol}.npy"
        path.write_bytes(head.getvalue() + content)
        assert len(read_results(path)) == 3
    old = pickle.dumps(array, protocol=2).replace(b"numpy._core", b"numpy.core")
    path.write_bytes(head.getvalue() + old)
    assert len(read_results(path)) == 3


class _Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_nothing_that_a_file_names_is_run(tmp_path: Path) -> None:
    """Commands, evaluation, files: refused by name, and not done."""
    trap = tmp_path / "trap"
    for function, arguments, name in (
        (os.system, (f"touch {trap}",), f"{os.system.__module__}.system"),
        (eval, (f"open({str(trap)!r}, 'w')",), "builtins.eval"),
        (os.mkdir, (str(trap),), f"{os.mkdir.__module__}.mkdir"),
        (np.save, (trap, 1), "numpy.save"),
    ):
        for search in (
            (8, [], [], [512], _Call(function, *arguments)),
            (8, [], [], [512], [[(1.0, 1.0, {"tp": _Call(function, *arguments)}, {})]]),
        ):
            told = refused(stored(tmp_path / "bad.npy", search))
            assert told == f"would call {name}, which no result needs; it was not run"
    assert not list(tmp_path.glob("trap*"))


def hand_written(path: Path, program: bytes) -> Path:
    """The head of an array of objects before a pickle program."""
    stored(path, SEARCH)
    head = path.read_bytes().index(b"\n") + 1
    path.write_bytes(path.read_bytes()[:head] + program)
    return path


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n}S'code'\nS'O8'\nsb.",  # a state for a function
        b"cnumpy\ndtype\nN}S'__init__'\nNs\x86b.",  # attributes for it
        b"cnumpy\ndtype\n(S'V8'\ntR.",  # a type of raw bytes
        b"cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntRS'12345678'\ntR.",
        b"]q\x00h\x00a.",  # a list in itself
        b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.",
        b"\x8c\x02os\x94\x8c\x06system\x94\x85\x81.",
        b"N.",
        b"K\x01.",
        b"",
        b"\x80\x04\x95",
        b"not a pickle",
        b"Pid\n.",  # a persistent name
    ],
)
def test_programs_written_by_hand_are_refused(tmp_path: Path, program: bytes) -> None:
    """With one line; and the next file is read as ever."""
    told = refused(hand_written(tmp_path / "a.npy", program))
    assert told.startswith(("is cut off or not a pickle of results", "is no result of NERSC's"))
    assert len(read_results(stored(tmp_path / "b.npy", SEARCH))) == 3


def test_a_file_cannot_change_its_reader(tmp_path: Path) -> None:
    """No attributes for what stands in for numpy's functions."""
    for name in (b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n"):
        for state in (b"}S'a'\nNs", b"N}S'a'\nNs\x86"):
            told = refused(hand_written(tmp_path / "a.npy", name + state + b"b."))
            assert told.endswith("a state for a function")


def test_lists_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    """A few bytes for ten lists of ten lists of ten lists ..."""
    bomb: list[Any] = []
    for _ in range(30):
        bomb = [bomb] * 10
    path = stored(tmp_path / "a.npy", (8, [], [], [512], bomb))
    assert path.stat().st_size < 2000
    assert refused(path).endswith("more than 200000 items")


@pytest.mark.parametrize("program", [b"]r\0\0\0\1.", b"\x80\2]r\0\0\0\1.", b"]p16777216\n."])
def test_objects_numbered_without_end_are_refused(tmp_path: Path, program: bytes) -> None:
    """Python would make room for all objects up to the number."""
    told = refused(hand_written(tmp_path / "a.npy", program))
    assert told.endswith(f"object {2**24} in {len(program)} bytes")


@examples(100)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory: Any, data: Any) -> None:
    """Cut anywhere, or with a byte changed: an `InputError` or rows, never anything else."""
    path = stored(tmp_path_factory.mktemp("cut") / "a.npy", SEARCH)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:at])
    refused(path)
    content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(InputError):
        assert isinstance(read_results(path), list)


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ((8, [], [], [512]), "a row must have nvs, best throughputs, tenth throughputs, GPU cou"),
        ((8, [], [], [512, 1024], [[]]), "2 GPU counts and 1 lists of configurations: its search"),
        ((8, [], [], 512, [[]]), "GPU counts and configurations must be lists"),
        ((8, [], [], [512], [1.0]), "of 512 GPUs there is no list of configurations"),
        ((8, [], [], [512], [[(1.0, 2.0)]]), "a configuration must have throughput, memory, conf"),
        ((8, [], [], [512], [[(1, 2, 3, {})]]), "config and stats of a configuration must be dic"),
        ((8, [], [], [512], [[(1, 2, {"tp": [1]}, {})]]), "tp of a configuration must be a numbe"),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, search: tuple[Any, ...], told: str) -> None:
    """By what is missing."""
    array = np.empty((1, len(search)), dtype=object)
    for place, value in enumerate(search):
        array[0, place] = value
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    assert refused(tmp_path / "a.npy").startswith(f"is no result of NERSC's search: {told}")


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    """Plain numbers, nothing at all, no file."""
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3.0))
    assert refused(path) == "holds numbers (<f8), not the results of NERSC's search"
    np.save(path, np.empty(0, dtype=object), allow_pickle=True)
    assert refused(path) == "is no result of NERSC's search: it is empty"
    path.write_bytes(b"")
    assert refused(path) == "is not a numpy array, or cut off within its head"
    path.unlink()
    assert refused(path) == "no such file"
    os.mkfifo(path)
    assert refused(path) == "is not a regular file"


def test_convert_makes_a_table(shardwise: Any, tmp_path: Path) -> None:
    """Printed as CSV or written by its ending; what does not go with it is refused."""
    path = stored(tmp_path / "a.npy", SEARCH)
    code, out, _ = shardwise("convert", path)
    assert code == 0
    assert out.splitlines()[:2] == [
        "nvs,gpus,rank,throughput,memory,dp,tp,pp,mbs,t,mem,nv_tp,nv_dp",
        "8,512,1,6.67,73.4,2,16,32,1,614.2,73.4,4,1",
    ]
    assert shardwise("convert", path, tmp_path / "a.parquet")[0] == 0
    assert pl.read_parquet(tmp_path / "a.parquet").height == 3
    pytest.importorskip("plotly")
    assert shardwise("convert", path, tmp_path / "a.html")[0] == 0
    assert '"rates"' in (tmp_path / "a.html").read_text()
    zero = (8, [], [], [512], [[(0.0, 73.4, CONFIG, STATS | {"t": 0.0})]])
    code, _, err = shardwise("convert", stored(tmp_path / "zero.npy", zero), tmp_path / "no.html")
    assert (code, "has not numbers above 0 as throughput" in err) == (2, True)
    instant = (8, [], [], [512], [[(1.0, 73.4, CONFIG, STATS | {"t": 0.0, "t_comp": 1.0})]])
    path_0 = stored(tmp_path / "instant.npy", instant)
    assert shardwise("convert", path_0, tmp_path / "instant.html")[0] == 0
    for words, told in (
        ([path, tmp_path / "a.txt"], "a search result can be written as .csv"),
        ([path, "--rows", "pareto"], "rows: 'pareto': has no effect on a result of NERSC's search"),
        ([path, "--to", "calculon"], "has no effect on the table of a result"),
    ):
        code, out, err = shardwise("convert", *words)
        assert (code, out) == (2, "")
        assert told in err

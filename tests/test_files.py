"""Files of every format, and every way a file can be bad."""

import gzip
import json
import os
import stat
from collections import UserDict, deque
from datetime import date
from pathlib import PurePosixPath
from types import MappingProxyType

import numpy as np
import pytest

from shardwise import InputError, Model, Strategy, System
from shardwise.config.enums import Dtype
from shardwise.config.files import read_mapping, write_mapping, write_text
from shardwise.config.parse import parse
from shardwise.config.plain import plain


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "a.yaml.gz", "a.json.gz"])
def test_what_is_written_reads_back(tmp_path, name):
    """YAML and JSON, plain and gzipped, round-trip."""
    data = {"name": "x", "sizes": [1, 2.5, None], "deep": {"flag": True}}
    write_mapping(tmp_path / name, data)
    assert read_mapping(tmp_path / name) == data


def test_toml_is_read(tmp_path):
    """TOML files load as nouns do."""
    path = tmp_path / "s.toml"
    path.write_text('tp = 8\ngbs = 128\nrecompute = "full"\n')
    strategy = Strategy.load(path)
    assert (strategy.tp, strategy.global_batch_size, strategy.recompute) == (8, 128, "full")


@pytest.mark.parametrize(("noun", "name"), [(Model, "llama3-8b"), (System, "h100-sxm")])
@pytest.mark.parametrize("ending", [".yaml", ".json", ".yaml.gz", ".json.gz"])
def test_catalog_entries_survive_a_round_trip(tmp_path, noun, name, ending):
    """A noun written with units and read again is equal, in every format."""
    entry = noun.load(name)
    path = tmp_path / f"copy{ending}"
    entry.to_file(path)
    assert noun.load(str(path)) == entry


def _bad(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.needs("launchers")
@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.yaml", "", "the file is empty"),
        ("blank.json", " \n ", "the file is empty"),
        ("list.json", "[1, 2]", "holds a list, not a mapping"),
        ("text.yaml", "just words", "holds text, not a mapping"),
        ("broken.json", '{"a": 1,}', "not JSON"),
        ("broken.yaml", "a: [1, 2", "not YAML"),
        ("tabs.yaml", "a:\n\t- 1", "not YAML"),
        ("broken.toml", "a = ", "not TOML"),
        ("twice.yaml", "tp: 1\ntp: 2\n", "key 'tp' is set twice"),
        ("twice.json", '{"tp": 1, "tp": 2}', "key 'tp' is set twice"),
        ("alias.yaml", "a: &x [1]\nb: *x\n", "aliases are not supported"),
        ("number.yaml", "1: 2\n", "key 1 is not text"),
        ("latin.yaml", b"name: \xe9\xff", "is not UTF-8 text"),
        ("binary.yaml", b"name: \0\0", "is a binary file, not text"),
        ("deep.json", "[" * 100_000, "nested too deeply"),
        ("lists.yaml", "- " * 50_000, "nested too deeply; at most 100 levels"),
        ("brackets.yaml", "[" * 100_000, "nested too deeply"),
        ("braces.yaml", "{a: " * 100_000, "nested too deeply"),
        ("keys.yaml", "? " * 100_000, "nested too deeply"),
        ("levels.yaml", "\n".join(" " * n + "a:" for n in range(200)), "nested too deeply"),
        ("brackets.toml", "a = " + "[" * 100_000, "nested too deeply"),
        ("levels.json", '{"a":' * 101 + "1" + "}" * 101, "nested too deeply"),
        ("keys.toml", ".".join("a" * 100_000) + " = 1", "a key has more than 64 parts"),
        ("large.toml", "a = 1\n#" + "x" * 2**20, "larger than 1 MiB, too large for TOML"),
        ("values.yaml", "a: [" + "1," * 100_000 + "]", "more than 65,536 values; use JSON"),
        ("long.json", '{"tp": 1' + "0" * 310 + "}", "a number has more than 308 digits"),
        ("longer.json", '{"tp": 1' + "0" * 5000 + "}", "Exceeds the limit (4300 digits)"),
        ("hex.toml", "tp = 0x" + "f" * 5000, "a number has more than 308 digits"),
        ("hex.yaml", "tp: 0x" + "f" * 5000, "a number has more than 308 digits"),
        ("sixty.yaml", "tp: 1" + ":59" * 100_000, "a number has more than 308 digits"),
        ("infinite.json", '{"expert_imbalance": 1e999999}', "must be a finite number"),
        ("half.json", '{"name": "\\ud800"}', "half of a surrogate pair"),
        ("wide.json", '{"tp": 1}'.encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        ("listed.yaml", "? [a]\n: 1\n", "line 1: a key is not text"),
        ("tag.yaml", "tp: !!map [1]\n", "a tag does not fit its value"),
        ("cut.json.gz", gzip.compress(b'{"tp": 1}', mtime=0)[:-6], "cannot be read"),
        ("plain.json.gz", '{"tp": 1}', "cannot be read"),
        ("strategy.ini", "tp=1", "cannot tell the format"),
        ("unsafe.yaml", "a: !!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_a_bad_file_is_one_fault_that_names_it(tmp_path, name, content, told):
    """Every unreadable file is an InputError of one line with the file's name."""
    path = _bad(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        Strategy.load(str(path))
    (fault,) = caught.value.faults
    assert str(fault).startswith(str(path))
    assert told in str(fault)
    assert "\n" not in str(fault)


def test_files_within_the_limits_are_read(tmp_path):
    """Depth, many keys, a byte order mark and pairs of surrogates are no faults."""
    texts = {
        "a.json": '{"a":' * 90 + "1" + "}" * 90,
        "b.json": '\ufeff{"name": "\\ud83d\\ude00"}',
        "c.yaml": "".join(f"k{n}: [1]\n" for n in range(5000)),
        "d.toml": "x = [" + "0.1, " * 1000 + "]\n" + ".".join("a" * 60) + " = 1\n",
        "e.yaml": "note: " + "1 " * 5000,
    }
    for name, text in texts.items():
        assert read_mapping(_bad(tmp_path / name, text))


def test_a_huge_file_of_zeros_is_refused_without_reading_it(tmp_path):
    """A sparse file of 100 MB of zeros is refused by its size."""
    path = tmp_path / "zeros.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)
    with pytest.raises(InputError, match="larger than 8 MiB"):
        Model.load(str(path))


def test_a_gzip_bomb_is_refused(tmp_path):
    """A small archive that unfolds into far more than the limit is refused."""
    path = _bad(tmp_path / "bomb.json.gz", gzip.compress(bytes(50 * 2**20)))
    with pytest.raises(InputError, match="larger than 8 MiB"):
        Model.load(str(path))


@pytest.mark.parametrize("noun", [Model, System, Strategy])
def test_a_directory_and_a_missing_file_are_refused(tmp_path, noun):
    """A directory and a path that does not exist are told apart."""
    with pytest.raises(InputError, match="is a directory"):
        noun.load(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        noun.load(str(tmp_path / "none.yaml"))


def test_a_failed_write_names_the_file_and_keeps_the_old_one(tmp_path):
    """Writing to a missing folder or an unknown ending is an InputError; nothing is lost."""
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "none" / "a.json", "{}")
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(InputError, match="allowed endings"):
        write_mapping(path, {"a": 1})
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_written_files_have_ordinary_permissions_and_no_nan(tmp_path):
    """Files are readable as the umask says, and NaN becomes null."""
    path = tmp_path / "a.json"
    write_mapping(path, {"a": float("nan"), "b": [float("inf"), 1.0]})
    assert json.loads(path.read_text()) == {"a": None, "b": [None, 1.0]}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_aliases_of_other_programs_are_read_within_the_limits():
    """A value may stand for one before it; what unfolds into too many values is refused."""

    def value_of(text):
        return parse(text, ".yaml", "job.yaml", most_bytes=2**20, aliases=True)

    assert value_of("a: &x [1, 2]\nb: *x\nc: &y {k: *x}\nd: *y\n")["d"] == {"k": [1, 2]}
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    for text, told in (
        ("\n".join(["a0: &a0 1", *levels]), "more than 8,192 values"),
        ("a: &x [*x]\n", "an alias of nothing before it"),
        ("a: *x\n", "an alias of nothing before it"),
    ):
        with pytest.raises(InputError, match=told):
            value_of(text)


UNPLAIN = [
    (Dtype.BF16, "bf16"),
    ({Dtype.BF16: 1, 2: True}, {"bf16": 1, "2": True}),
    (MappingProxyType({"a": (Dtype.FP32, 1)}), {"a": ["fp32", 1]}),
    (UserDict(a=deque([1])), {"a": [1]}),
    (np.float64(0.5), 0.5),
    (np.int64(2), 2),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.array([[1.0, np.nan]]), [[1.0, None]]),
    (float("-inf"), None),
    (PurePosixPath("a/b"), "a/b"),
    (date(2025, 4, 1), "2025-04-01"),
    (frozenset({"b", "a"}), ["a", "b"]),
    (range(2), [0, 1]),
]


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_values_of_every_type_are_written_as_plain_ones(tmp_path, name):
    """At any depth; a value of no such type is refused before a file is touched."""
    path = tmp_path / name
    write_mapping(path, MappingProxyType({"all": tuple(value for value, _ in UNPLAIN)}))
    assert read_mapping(path) == {"all": [value for _, value in UNPLAIN]}
    assert [type(plain(v)) for v, _ in UNPLAIN] == [type(value) for _, value in UNPLAIN]
    old = path.read_bytes()
    with pytest.raises(TypeError, match="cannot hold a object"):
        write_mapping(path, {"a": object()})
    assert path.read_bytes() == old

"""Messages are one readable line, whatever the value that they show."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rows import each_row
from shardwise import Strategy, System, errors
from shardwise.cli import run
from shardwise.config.enums import Dtype
from shardwise.errors import Fault, InputError, kind_of, shorten

pytestmark = pytest.mark.any_software

NESTED: list = []
for _ in range(10_000):
    NESTED = [NESTED]
LONG = "a b " * 1_250
RED = "\x1b[31mred\x1b[0m"
WIDTH = 80


@each_row(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (np.bool_(False), "false"),
        ([1, [None, {"a": True}]], "[1, [null, {'a': true}]]"),
        ((1, 2.5), "[1, 2.5]"),
        ({1: 2}, "{1: 2}"),
        ({}, "{}"),
        (NESTED, "[[[[[...]]]]]"),
        ([0] * 100, f"[{'0, ' * 20}...]"),
        (float("nan"), "nan"),
        (10**10_000, "a very large number"),
        (np.float64(0.5), "0.5"),
        (np.array([1, 2]), "[1, 2]"),
        (pl.DataFrame({"a": [1]}), "a DataFrame"),
        (object(), "an object"),
        (Dtype.BF16, "'bf16'"),
        (Path("a.yaml"), "'a.yaml'"),
        (RED, r"'\x1b[31mred\x1b[0m'"),
        ("one\ntwo\u202e\udcff", r"'one\ntwo\u202e\udcff'"),
    ],
)
def test_a_value_is_shown_as_files_write_it(value, shown):
    """Without words of Python, without what a terminal acts on."""
    assert shorten(value) == shown


def test_a_long_value_is_cut():
    """Also one that is only long where it is written out."""
    for value in (LONG, LONG.encode(), [LONG] * 9, {LONG: LONG}, "\x1b" * WIDTH, 10**300):
        shown = shorten(value)
        assert len(shown) == WIDTH
        assert shown.endswith("...")


@each_row(
    ("value", "kind"),
    [
        (None, "nothing"),
        (True, "true or false"),
        (1.5, "a number"),
        ("", "text"),
        ([], "a list"),
        ({}, "a mapping"),
        (Strategy(), "a Strategy"),
        (object(), "an object"),
    ],
)
def test_the_type_of_a_value_has_a_plain_name(value, kind):
    """Of what files hold; other types have their own."""
    assert kind_of(value) == kind


def test_every_part_of_a_fault_is_on_one_line():
    """Names of files and fields are input, too."""
    fault = Fault.of(f"{RED}\n{LONG}", RED, f"no such {RED}\nfile {'x' * 5000}", source=LONG)
    assert str(fault).isprintable()
    assert len(str(fault)) < 1_000


def test_many_faults_are_counted():
    """The first ones are listed."""
    lines = str(InputError([Fault(problem=f"problem {n}") for n in range(1_000)])).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "and 950 more faults"


ESTIMATE = ("estimate", "llama3-70b", "h100-sxm", "--gpus", "8", "--gbs", "8")
SWEEP = ("sweep", *ESTIMATE[1:], "--vary")


@pytest.mark.parametrize("text", [LONG, RED, "x" * 5_000], ids=["long", "escapes", "one word"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("estimate",),
        ("estimate", "llama3-70b"),
        ESTIMATE,
        (*ESTIMATE, "--tp"),
        (*ESTIMATE, "--stack"),
        (*ESTIMATE, "--extents"),
        (*ESTIMATE, "--recompute-parts"),
        (*ESTIMATE, "--plot"),
        SWEEP,
        ("models",),
        ("convert",),
        ("compare", "there.json"),
        ("schema",),
    ],
    ids=" ".join,
)
def test_an_argument_is_not_echoed_as_it_is(words, text, capsys):
    """Neither in full, nor with its escapes."""
    assert run([*words, text, *(["h100-sxm"] if words == ("estimate",) else [])]) == 2
    for line in capsys.readouterr().err.splitlines():
        assert line.isprintable()
        assert text not in line
        assert len(line) < 1_600  # names of the catalog are listed


def test_a_file_that_holds_no_mapping_is_described_plainly(tmp_path):
    """No type of Python is named."""
    for text, kind in {"null": "nothing", "[1]": "a list", "true": "true or false"}.items():
        path = tmp_path / "system.json"
        path.write_text(text)
        with pytest.raises(InputError, match=f"holds {kind}, not a mapping of fields to values"):
            System.load(path)


def test_a_formula_has_no_comment():
    """It would hide the lines after it, which are joined to one."""
    for formula in ("= 2 * 4 # nodes", "= 2 # nodes\n * 4"):
        with pytest.raises(InputError, match=r"strategy: gpus: .*a formula has no comments"):
            Strategy.load({"gpus": formula})
    assert Strategy.load({"gpus": "= 2\n * 4"}).gpus == 8


def test_a_short_list_of_allowed_words_is_shown_and_a_long_one_is_not():
    """Of a long one at most the five nearest, and the command that lists them."""
    few, many = [f"word{n}" for n in range(12)], [f"word{n}" for n in range(13)]
    assert errors.allowed_words("x", few) == f"allowed: {', '.join(few)}"
    text = errors.allowed_words("word", many, "shardwise words")
    assert text.count("'word") == 5
    assert text.endswith("? to list them: shardwise words")
    assert errors.allowed_words("x", many) == (
        "allowed: word0, word1, word2, word3, word4 and 8 more"
    )


@pytest.mark.parametrize(
    "line",
    [
        "models zzz",
        "systems zzz",
        "stacks zzz",
        "recipes zzz",
        "estimate zzz h100-sxm",
        "estimate llama3-8b zzz",
        "estimate --recipe zzz",
        "estimate llama3-8b h100-sxm --gpus 8 --gbs 8 --stack zzz",
        "search llama3-8b h100-sxm --gpus 8 --gbs 8 --fix zzz=1",
        "search llama3-8b h100-sxm --gpus 8 --gbs 8 --allow zzz",
        "search llama3-8b h100-sxm --gpus 8 --gbs 8 --axes zzz",
        "sweep llama3-8b h100-sxm --gpus 8 --gbs 8 --vary zzz=1x",
        "validate zzz",
        "schema zzz",
    ],
)
def test_an_unknown_name_is_one_short_line(line, capsys):
    """Not the list of all that are known."""
    assert run(line.split()) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert len(error) < 160

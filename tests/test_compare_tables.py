"""`shardwise compare` prints tables that fit, writes JSON and tells whether anything fits."""

import gzip
import json
import re

import pytest

from compared_samples import SYSTEM
from shardwise import compare, estimate
from shardwise.analysis.prediction_interval import distinguishable_ratio
from shardwise.report.tables.compare import print_comparison
from written import record_of


def test_the_command_prints_tables(saved, shardwise):
    """What was asked, what came out, and each part with what bears on it."""
    code, out, err = shardwise("compare", *saved)
    assert (code, err) == (0, "")
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines() if line.strip()}
    assert rows["tp"][1:3] == ["2", "4"]
    assert rows["dp"][1:3] == ["(4)", "(2)"]
    assert re.search(r"GiB.* fits ", out)
    assert re.search(r"^ *first .* (> )?99 % ", out, re.MULTILINE)
    assert "tp, recompute, micro batches" in out
    assert "first is best by step time, tokens/s, tokens/s per GPU, price of a token" in out
    found = compare(*saved)
    assert f"({100 * found.changes[0].share:+.1f} %) a step than first" in out


def test_the_command_writes_json(saved, shardwise, tmp_path):
    """All that Python gives."""
    code, out, _ = shardwise("compare", *saved, "--json")
    assert code == 0
    assert record_of(out) == compare(*saved).to_dict()
    file = tmp_path / "found.json.gz"
    assert shardwise("compare", *saved, "-o", file) == (0, "", "")
    assert json.loads(gzip.decompress(file.read_bytes())) == json.loads(out)


def test_nothing_that_fits_is_an_exit_code(tmp_path, shardwise):
    """As of an estimate."""
    file = tmp_path / "large.json"
    large = {"model": "llama3-70b", "system": SYSTEM, "strategy": {"gpus": 1, "gbs": 1}}
    file.write_text(json.dumps(large))
    code, out, _ = shardwise("compare", file, file)
    assert code == 1
    assert "none fits" in out
    assert "takes as long as" in out
    assert "the inputs are the same" in out


@pytest.mark.parametrize("number", [2, 3])
def test_tables_fit_a_narrow_terminal(saved, shardwise, monkeypatch, number):
    """Columns go, and are named."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(saved[0].parent)
    files = [saved[0].name, saved[1].name, saved[0].name][:number]
    _, out, _ = shardwise("compare", *files)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "hidden: capacity GiB" in out
    assert "…" not in out


def test_letters_stand_for_long_names_in_tables(pair, monkeypatch, capsys):
    """They are told once, above; figures in Python keep the names."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ("a scenario with a long name", "another of these")
    print_comparison(compare(*pair, names=names))
    out = capsys.readouterr().out
    assert f"A: {names[0]}\nB: {names[1]}\n" in out
    assert out.count(names[0]) == 1
    assert " a step than A" in out
    assert "A is best by step time" in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_ties_and_features_without_measurements_are_named(capsys):
    """With letters in place of long names."""
    run = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128, "any_software": True}
    both = [estimate("llama3-70b", SYSTEM, run | {"tp_overlap": one}) for one in ("stack", "ring")]
    within = f"within {100 * (distinguishable_ratio() - 1):.1f} %"
    for names in (["usual", "ring"], ["the usual overlap", "that of a ring of ranks"]):
        print_comparison(compare(*both, names=names))
        shown = " ".join(capsys.readouterr().out.split())
        first, second = names if names[0] == "usual" else "AB"
        assert f"{first} and {second} cannot be separated ({within})" in shown
        assert f"{second} relies on ring TP overlap, which no measured run has used" in shown
        assert "8 of 10 runs" in shown

"""`shardwise show`: saved results are shown as the command that wrote them shows them."""

import json
import random
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from fuzz_files import edited, places
from profiles import drawn
from rows import each_row
from shardwise.cli import run
from written import record_of

pytestmark = pytest.mark.any_software

CASE = ("megatron-126m", "h100-sxm", "--gpus", 4, "--gbs", 8)
SEARCH = (*CASE, "--fix", "pp=1,mbs=1,zero=1")
RUN = ("--tokens", "1B")
LAUNCH = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2\n"
COMMANDS = {
    "estimate": ("estimate", *CASE, "--tp", 2, "--ops", "--gemms", *RUN),
    "recipe": ("estimate", "--recipe", "llama3-405b-h100-1024-bf16"),
    "search": ("search", *SEARCH, "--pareto", "--axes", "tp", *RUN),
    "none": ("search", "llama3-405b", "h100-sxm", "--gpus", 4, "--gbs", 4, "--fix", "tp=4,mbs=1"),
    "both": ("search", *SEARCH, "--explain", "tp=2", "--top", 2),
    "explain": ("search", *SEARCH, "--explain", "tp=2"),
    "cluster": ("search", *CASE[:1], "--systems", "h100-sxm", *SEARCH[2:], *RUN),
    "sweep": ("sweep", *CASE, "--fixed", "--vary", "inner.bandwidth=0.5x,1x", "--sensitivity"),
    "compare": ("compare", "one.json", "two.json"),
    "one recipe": ("recipes", "llama3-405b-h100-1024-bf16"),
}
BAD = (None, "text", "", -1, 0, 1.5, True, [], {}, 1e308, 10**30, [1], {"a": 1}, [[]])
"""What stands in place of values of a damaged file."""


def printed(*words):
    """What a command prints."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as err,
    ):
        patch.delenv("COLUMNS", raising=False)  # which xdist sets
        assert run([str(word) for word in words]) in (0, 1), err.getvalue()
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where results are saved."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def saved(folder):
    """By kind: what the command printed, and the file of its result."""
    for name, tp in (("one.json", 1), ("two.json", 2)):
        printed("estimate", *CASE, "--tp", tp, *RUN, "-o", folder / name)
    found = {}
    for name, command in COMMANDS.items():
        words = [folder / word if str(word).endswith(".json") else word for word in command]
        file = folder / f"{name}{'.yaml.gz' if name == 'estimate' else '.json'}"
        printed(*words, "-o", file)
        found[name] = printed(*words), file
    return found


@each_row("name", COMMANDS)
def test_a_saved_result_is_shown_as_its_command_shows_it(saved, shardwise, name):
    """Every table and line; the exit code says that it could be read."""
    out, file = saved[name]
    assert shardwise("show", file) == (0, out, "")


@each_row("name", ["estimate", "both"])
def test_json_is_passed_through(saved, shardwise, tmp_path, name):
    """With what commands add to it; also into a file of another format."""
    file = saved[name][1]
    code, out, _ = shardwise("show", file, "--json")
    assert code == 0
    assert shardwise("show", file, "-o", tmp_path / "copy.yaml")[0] == 0
    assert shardwise("show", tmp_path / "copy.yaml", "--json")[1] == out
    if name == "both":
        assert json.loads(out) == json.loads(file.read_text())


def test_a_plan_of_a_search_is_shown_as_an_estimate(saved, shardwise):
    """By its number; an estimate is its own plan 1."""
    file = saved["both"][1]
    plan = json.loads(file.read_text())["best"][1]
    code, out, _ = shardwise("show", f"{file}#2", "--json")
    assert (code, record_of(out)) == (0, plan)
    shown = " ".join(shardwise("show", f"{file}#2")[1].split())
    assert f"MFU {100 * plan['mfu']:.1f} %" in shown
    one = saved["estimate"][1]
    assert shardwise("show", f"{one}#1") == shardwise("show", one)


@each_row(
    ("name", "content", "problem"),
    [
        ("none.json", None, "no such file"),
        ("model.yaml", "hidden: 8\n", "is no saved result (--json, --output) that can be shown"),
        ("list.json", "[1]", "holds a list, not a mapping"),
        ("cut.json", '{"step_time_s": 1.0, "time_s": {', "line 1"),
        (
            "short.json",
            '{"step_time_s": 1.0, "time_s": {}}',
            "model: is missing; was it written by",
        ),
        ("table.csv", "a,b\n1,2\n", "cannot tell the format; allowed endings"),
        ("train.sh", LAUNCH, "is a launch file: read it with"),
    ],
)
def test_what_is_no_saved_result_is_refused(shardwise, tmp_path, name, content, problem):
    """In a line that names the file."""
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    code, out, err = shardwise("show", file)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file}: ")
    assert problem in err.splitlines()[0]


@each_row(
    ("number", "problem"),
    [("#3", "must be a plan of the search, from 1 to 2"), ("#0", "must be FILE#N"), ("#x", "must")],
)
def test_a_plan_that_is_not_there_is_refused(saved, shardwise, number, problem):
    """The line says which there are."""
    code, _, err = shardwise("show", f"{saved['both'][1]}{number}")
    assert code == 2
    assert problem in err


@each_row("name", ["search", "explain", "sweep", "compare", "one recipe"])
def test_damaged_results_are_shown_or_refused(saved, shardwise, tmp_path, name):
    """Any value may be of another type, or missing: the answer is tables, or lines of faults."""
    draw = random.Random(name)  # noqa: S311 - no secret
    text = saved[name][1].read_text()
    paths = [path for path in places(json.loads(text)) if len(path) < 4 or draw.random() < 0.3]
    for path in draw.sample(paths, drawn(30, 15)):
        for change in ({"set": draw.choice(BAD)}, {"delete": True}):
            data = json.loads(text)
            edited(data, {"path": path, **change})
            file = tmp_path / "damaged.json"
            file.write_text(json.dumps(data))
            code, out, err = shardwise("show", file)
            assert code in (0, 2), (path, change)
            assert bool(out) == (code == 0), (path, change)
            assert code == 0 or all(line.startswith("error: ") for line in err.splitlines())


@each_row("name", ["[/bold]", "[red]x", ":smile:"])
def test_names_are_printed_as_they_are(shardwise, tmp_path, name):
    """Words in brackets and between colons are no markup."""
    file = tmp_path / "model.yaml"
    shardwise("models", CASE[0], "-o", file)
    file.write_text(file.read_text().replace(f"name: {CASE[0]}", f"name: '{name}'"))
    for words in (("models", file), ("estimate", file, *CASE[1:])):
        code, out, _ = shardwise(*words)
        assert (code, name in out) == (0, True)


LONG = f"{'a' * 5000}/b"


@each_row(
    "words",
    [
        ("models", LONG),
        ("estimate", LONG, *CASE[1:]),
        ("compare", LONG, LONG),
        ("fsdp", LONG, "--gpus", 8),
        ("show", f"{LONG}#x"),
        ("export", "megatron", f"{LONG}#x"),
        ("validate", "kernels", "--data", LONG),
        ("calibrate", "h100-sxm", "--from-table", LONG),
    ],
)
def test_names_that_no_file_can_have_are_refused(shardwise, monkeypatch, words):
    """In one line."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, _, err = shardwise(*words)
    assert code == 2
    assert err.startswith("error: ")

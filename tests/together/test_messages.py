"""Messages are one readable line, whatever the value that they show."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rows import each_row
from shardwise import Model, Strategy, System, errors, estimate, plan_fsdp
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


JOB = ("estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "128")
SPACE = ("search", *JOB[1:])
RELIABLE = ("--tokens", "1T", "--restart-time", "5min")


@each_row(
    ("words", "line"),
    [
        (JOB[:5], "--gbs is missing: sequences per step, such as --gbs 128"),
        (JOB[:3] + JOB[5:], "--gpus is missing: number of GPUs, such as --gpus 64"),
        ((*JOB, "--gpus", "0"), "--gpus: '0': must be at least 1"),
        ((*JOB, "--mbs", "0"), "--mbs: '0': must be at least 1"),
        ((*JOB, "--micro-batch-size", "0"), "--micro-batch-size: '0': must be at least 1"),
        ((*JOB, "--gpus", "eight"), "--gpus: 'eight': must be a whole number"),
        ((*JOB, "--gpus", "8.5"), "--gpus: '8.5': must be a whole number"),
        ((*JOB, "--gpus", "1,024"), "--gpus: '1,024': must be a whole number; write 1024"),
        ((*JOB, "--gbs", "1e3"), "--gbs: '1e3': must be a whole number; write 1000"),
        ((*JOB, "--gbs", "2M"), "--gbs: '2M': must be a whole number"),
        ((*JOB, "--seq-len", "8k"), "--seq-len: '8k': must be a whole number; write 8192"),
        ((*JOB, "--zero", "three"), "--zero: 'three': allowed: 0, 1, 2, 3"),
        ((*JOB, "--zero", "4"), "--zero: 4: allowed: 0, 1, 2, 3"),
        ((*JOB, "--tp", "3"), "--tp: 3: must divide gpus 8"),
        ((*JOB, "--lora-parts", "mlp"), "--lora-parts: ['mlp']: has no effect without --lora-rank"),
        ((*JOB, "--fsdp-prefetch", "2"), "--fsdp-prefetch: '2': has no effect without --zero 3"),
        ((*JOB, "--schedule", "dualpipe"), "--schedule: 'dualpipe': needs pp > 1 and training"),
        ((*JOB, "--tokens", "300"), "--tokens: 300: is less than one step (1,048,576 tokens)"),
        ((*JOB, *RELIABLE, "--mtbf", "50000"), "--mtbf: '50000': has no unit; write it, as in"),
        ((*JOB, *RELIABLE, "--accelerator-mtbf", "5x"), "--accelerator-mtbf: '5x': unit 'x' is"),
        ((*SPACE, "--fix", "tp=two"), "--fix tp: 'two': must be a whole number"),
        ((*SPACE, "--allow", "mbs=1,x"), "--allow micro_batch_size: '1,x': 'x': must be a whole"),
        ((*SPACE, "--for", "x"), "--for: 'x': allowed: "),
        ((*SPACE, "--save-all"), "--save-all: needs --save FILE"),
        ((*SPACE, "--max-memory", "60"), "--max-memory: '60': is less than 1 MiB; is its unit"),
        (
            ("fsdp", "llama3-8b", "--gpus", "8", "--memory-budget", "60"),
            "--memory-budget: '60': is",
        ),
        (("estimate", "llama3-8b"), "command line: Missing argument SYSTEM, such as h100-sxm"),
    ],
)
def test_a_fault_of_the_command_line_names_the_option_as_typed(words, line, capsys):
    """In one line; Python names the field."""
    assert run(list(words)) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {line}")


def test_what_was_not_typed_is_named_by_its_field(tmp_path, capsys):
    """In a file with the name of the file; of a default with the option that replaces it."""
    path = tmp_path / "s.yaml"
    path.write_text("tp: two\n")
    assert run([*JOB, "--strategy", str(path)]) == 2
    assert run(["estimate", "llama3-8b", "v100-sxm-32gb", *JOB[3:]]) == 2
    file, default = capsys.readouterr().err.splitlines()
    assert file.endswith("s.yaml: tp: 'two': must be a whole number")
    assert default.startswith("error: strategy: dtype: 'bf16': ")
    assert default.endswith("allowed: fp16, fp32; set --dtype")


def test_python_names_fields():
    """What is missing is written as its arguments are."""
    with pytest.raises(InputError, match=r"global_batch_size: is missing: .*, such as gbs=128"):
        estimate("llama3-8b", "h100-sxm", gpus=8)
    with pytest.raises(InputError, match="memory_budget: 60: is less than 1 KiB; is its unit"):
        plan_fsdp("llama3-8b", gpus=8, memory_budget=60)


def test_a_file_of_another_kind_is_one_line(tmp_path, capsys, monkeypatch):
    """It says what the file is, and what is expected or which command reads it."""
    monkeypatch.chdir(tmp_path)
    System.load("h100-sxm").to_file("cluster.yaml")
    Model.load("llama3-8b").to_file("model.yaml")
    Strategy(tp=2, gpus=8).to_file("strategy.yaml")
    Path("scenario.yaml").write_text("{model: llama3-8b, system: h100-sxm, strategy: {gpus: 8}}")
    Path("trace.json").write_text('{"traceEvents": [], "schemaVersion": 1}')
    Path("train.sh").write_text("torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64\n")
    compared = "is a scenario: compare it with shardwise compare"
    for words, problem in {
        "estimate cluster.yaml h100-sxm": "cluster.yaml: is a system file; a model is expected",
        "estimate llama3-8b model.yaml": "model.yaml: is a model file; a system is expected",
        "estimate llama3-8b strategy.yaml": "strategy.yaml: is a strategy file; a system is ",
        "estimate scenario.yaml": f"scenario.yaml: {compared}",
        "estimate llama3-8b scenario.yaml": f"scenario.yaml: {compared}",
        "estimate llama3-8b train.sh": "train.sh: is a launch file; a system is expected",
        "stacks model.yaml": "model.yaml: is a model file; a stack is expected",
        "fsdp trace.json --gpus 8": "trace.json: is the trace of a profiler: read it with ",
        "fsdp train.sh --gpus 8": "train.sh: is a launch file; a model is expected",
        "convert train.sh x.yaml": "train.sh: is a launch file: read it with shardwise import",
    }.items():
        assert run(words.split()) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {problem}")

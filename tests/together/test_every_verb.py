"""What holds for every verb: output in any encoding, and no traceback."""

import functools
import io
import json
import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import ANY

import pytest

from shardwise import Model, Strategy, System, cli, estimate
from shardwise.cli import VERBS, run, streams
from shardwise.config.files import write_mapping
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.registry import LAUNCHERS, read_launch
from shardwise.launchers.writing import launch_files
from written import record_of

NAME = "модель · 模型 → µ"
JOB = "own.yaml h100-sxm --gpus 8 --gbs 8"
COMMANDS = {
    "estimate": JOB,
    "compare": "scenario.yaml scenario.yaml",
    "trace": JOB,
    "peers": JOB,
    "explore": "--port модель",
    "search": f"{JOB} --fix tp=1,pp=1,cp=1,mbs=1",
    "sweep": f"{JOB} --fixed --vary inner.bandwidth=1x,2x",
    "fsdp": "own.yaml --gpus 8 --seconds 0.1",
    "export": f"graph {JOB}",
    "import": "train.sh",
    "diagnose": "train.sh h100-sxm --log run.log",
    "recipes": "recipe.yaml",
    "coverage": "own.yaml h100-sxm",
    "validate": "",
    "calibrate": "h100-sxm --from-runs модель.json",
    "measure": "own.yaml cpu-server --gpus 2 --gbs 2 --cp 2",
    "models": "own.yaml",
    "systems": "h100-sxm",
    "stacks": "nemo-2025",
    "software": "torchtitan h100-sxm",
    "convert": "own.yaml",
    "config": "",
    "schema": "recipe",
    "lengths": "--quantiles 512,2048,8192",
    "show": "saved.json",
}
CODES = {"explore": 2, "calibrate": 2, "measure": 2}
RECIPE = {
    "name": NAME,
    "model": "own.yaml",
    "system": "h100-sxm",
    "strategy": {"gpus": 8, "gbs": 8},
    "measured": {"step_time_s": 1},
    "source": {"title": NAME, "ref": NAME},
}
TRAIN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 1024 --bf16 "
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size 64 --модель 1\n"
)
LOG = (
    "[2025-04-01 00:00:00] iteration 10/ 100 | consumed samples: 640 | elapsed time per iteration "
    "(ms): 500.0 | learning rate: 1E-4 | global batch size: 64 | lm loss: 1.0 |\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the commands, with names and texts that are not ASCII."""
    folder = tmp_path_factory.mktemp("verbs")
    write_mapping(folder / "own.yaml", Model.load("megatron-126m").to_dict() | {"name": NAME})
    scenario = {name: RECIPE[name] for name in ("name", "model", "system", "strategy")}
    write_mapping(folder / "scenario.yaml", scenario)
    write_mapping(folder / "recipe.yaml", RECIPE)
    (folder / "train.sh").write_text(TRAIN, encoding="utf-8")
    (folder / "run.log").write_text(LOG)
    saved = estimate("megatron-126m", "h100-sxm", gpus=8, gbs=8).to_dict()
    write_mapping(folder / "saved.json", saved | {"model": NAME})
    return folder


@pytest.fixture
def printed(folder, monkeypatch):
    """Run a command with streams of an encoding; return exit code, standard output and error."""
    monkeypatch.chdir(folder)

    def call(words, encoding="utf-8"):
        pipes = io.BytesIO(), io.BytesIO()
        for name, pipe in zip(("stdout", "stderr"), pipes, strict=True):
            monkeypatch.setattr(sys, name, io.TextIOWrapper(pipe, encoding=encoding))
        streams.prepare()
        code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        return code, *(pipe.getvalue().decode(encoding) for pipe in pipes)

    return call


def words_of(verb):
    """Its small command."""
    return [verb, *COMMANDS[verb].split()]


@pytest.mark.parametrize("verb", VERBS)
def test_output_is_complete_in_every_encoding(printed, verb):
    """What an encoding has not is replaced on standard output and standard error alike."""
    whole = printed(words_of(verb))
    assert whole[0] == CODES.get(verb, 0)
    for encoding in ("cp1252", "ascii"):
        code, *texts = printed(words_of(verb), encoding)
        assert code == whole[0]
        lengths = [len(text.splitlines()) for text in texts]
        assert lengths == [len(text.splitlines()) for text in whole[1:]]
        assert "unexpected" not in texts[1]


WITHOUT = ("explore", "schema", "convert", "calibrate", "measure")
"""Verbs that print no result here: a page, JSON Schema, files of other tools, an error."""


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in WITHOUT])
def test_json_names_the_version_that_wrote_it(printed, verb):
    """And the number of its schema, first."""
    words = words_of(verb) if verb == "export" else [*words_of(verb), "--json"]
    assert record_of(printed(words)[1])


def test_bars_and_rules_are_ascii_as_wide_as_they_were(printed):
    """Tables have the same columns in every encoding; other letters are escaped in JSON too."""
    job = ["estimate", "megatron-126m", "h100-sxm", "--gpus", "8", "--gbs", "8"]
    text, plain = printed(job)[1], printed(job, "ascii")[1]
    assert "█" in text
    assert plain == text.replace("█", "#").replace("▏", "|").replace("─", "-").replace("·", "-")
    as_json = [printed(["models", "own.yaml", "--json"], e)[1] for e in ("utf-8", "ascii")]
    assert NAME in as_json[0]
    assert "\\u043c\\u043e\\u0434\\u0435\\u043b\\u044c \\u00b7" in as_json[1]


@pytest.mark.parametrize(
    "start", [["-m", "shardwise"], ["-c", "import shardwise.cli as c; c.main()"]]
)
def test_the_process_prints_in_the_encoding_of_a_pipe(start):
    """Started as a module or as the command; the pipe of Windows has cp1252."""
    words = ["estimate", "megatron-126m", "h100-sxm", "--gpus", "8", "--gbs", "8"]
    env = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, *start, *words], env=env, capture_output=True, check=True
    )
    assert b"####" in done.stdout
    assert done.stderr == b""


class Panic(BaseException):
    """As libraries in Rust raise it."""


ENDS = [
    (KeyError("tp"), 2, "unexpected KeyError: 'tp' ("),
    (Panic("a\nb"), 2, "unexpected Panic: a b"),
    (RecursionError("too deep"), 2, "unexpected RecursionError: too deep"),
    (MemoryError(), 2, "needs more memory than there is"),
    (PermissionError(13, "Permission denied", "x.yaml"), 2, "x.yaml: Permission denied"),
]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_what_import_writes_is_the_strategy_that_it_read(launcher, ending, tmp_path, capsys):
    """Words of enumerations, stacks and lists included; models too, where the file has one."""
    model, system = Model.load("qwen3-30b-a3b"), System.load("h100-sxm")
    fields = {"gpus": 8, "global_batch_size": 64, "dtype": "bf16", "stack": launcher.stack}
    plan = LaunchPlan(model=model, system=system, strategy=Strategy.load(fields).resolved(model))
    launch = tmp_path / f"launch{launcher.endings[0]}"
    launch.write_text(launch_files(launcher, plan)[0].text)
    output = tmp_path / f"strategy.{ending}"
    words = ["--model", "qwen3-30b-a3b", "--gpus", "8", "--output", str(output), "--json"]
    assert run(["import", str(launch), *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    read = read_launch(launch, model=model, gpus=8)
    written = Strategy.load(output)
    assert written == Strategy.load(read.strategy)
    assert written.explicit_fields({}) == printed["strategy"] | {"stack": ANY}


def raising(function, error):
    """The function of a verb, with an error in place of what it does."""

    @functools.wraps(function)
    def broken(*_, **__):
        raise error

    return broken


@pytest.mark.parametrize("verb", VERBS)
def test_an_unexpected_exception_is_one_line(verb, monkeypatch, capsys):
    """With exit code 2; where it is a fault of shardwise, the line says how to report it."""
    home = cli._HOMES.get(verb, f"cli.{verb}:command")  # noqa: SLF001 - what is replaced
    name, _, attribute = home.partition(":")
    module = import_module(f"shardwise.{name}")
    function = getattr(module, attribute)
    for error, expected, text in ENDS:
        monkeypatch.setattr(module, attribute, raising(function, error))
        assert run(words_of(verb), guarded=True) == expected
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert text in err
        assert err.count("\n") == 1
        assert ("SHARDWISE_TRACEBACK=1" in err) == ("unexpected" in text)
    monkeypatch.setattr(module, attribute, raising(function, KeyboardInterrupt()))
    assert run(words_of(verb), guarded=True) == 130


def test_the_line_names_the_field(monkeypatch, capsys):
    """Where a function that the exception passed has it: a validator, or one with `field`."""

    def broken(*_, **__):
        raise KeyError("x")

    case = ["megatron-126m", "h100-sxm", "--gpus", "4", "--gbs", "8"]
    with monkeypatch.context() as patch:
        patch.setattr("shardwise.planning.search.space._items", broken)
        assert run(["search", *case], guarded=True) == 2
    assert capsys.readouterr().err.startswith("error: gpus: unexpected KeyError: ")
    with monkeypatch.context() as patch:
        patch.setattr("shardwise.config.arguments.allowed_words", broken)
        words = ["--reference", "nersc", "--method", "x"]
        assert run(["search", "gpt3-175b", *case[1:], *words], guarded=True) == 2
    assert capsys.readouterr().err.startswith("error: method: unexpected KeyError: ")


def test_the_line_names_the_file_and_a_variable_shows_the_traceback(folder, monkeypatch, capsys):
    """The file that was read last; in the environment, so that it works with any words."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("shardwise.config.base.faults_of", None)
    write_mapping("bad.yaml", {"name": "x", "hidden": -1, "layers": []})
    assert run(["models", "bad.yaml"], guarded=True) == 2
    assert capsys.readouterr().err.startswith("error: bad.yaml: unexpected TypeError: ")
    monkeypatch.setenv("SHARDWISE_TRACEBACK", "1")
    assert run(["models", "bad.yaml"], guarded=True) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1].startswith("error: bad.yaml: unexpected TypeError: ")


def test_a_log_on_a_full_disk_changes_no_answer(tmp_path):
    """The log ends with a note; what cannot be a log is refused."""
    words = [
        "estimate",
        "megatron-126m",
        "h100-sxm",
        "--gpus",
        "8",
        "--gbs",
        "8",
        "--log",
        "run.log",
    ]
    path = tmp_path / "run.log"
    path.write_text("2025-04-01 00:00:00,000 INFO old\n" * 10)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, -1))

    done = subprocess.run(
        [sys.executable, "-B", "-m", "shardwise", *words],
        cwd=tmp_path,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "run.log: cannot be written: File too large; the log is incomplete" in done.stderr
    assert "megatron-126m" in done.stdout
    if Path("/dev/full").exists():
        assert run([*words[:-1], "/dev/full"]) == 2

"""Completion in the shell: verbs, options, names of the catalog, words, fields; fast."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from generated import check
from rows import each_row
from shardwise import catalog
from shardwise.cli import VERBS
from shardwise.cli.completion import TABLE, candidates, complete, table

pytestmark = pytest.mark.any_software

MODELS, SYSTEMS = catalog.names("models"), catalog.names("systems")
PROGRAM = f"{shlex.quote(sys.executable)} -c 'from shardwise.cli import main; main()'"


def test_the_table_is_that_of_the_verbs_and_fields():
    """`complete` reads a saved table, which takes less time than importing them."""
    check(TABLE, json.dumps(table(), indent=1) + "\n")


FIELDS = {"tp": "1|2|4", "recompute": "none|full", "recompute_parts": "mlp|moe", "gpus": ""}


@each_row(
    ("kind", "entered", "expected"),
    [
        ("none|full", "f", ["full"]),
        ("practical|full|FILE", "", ["practical", "full"]),
        ("mlp|moe,...", "mlp,m", ["mlp,mlp", "mlp,moe"]),
        ("N", "", []),
        ("FILE", "", []),
        ("MODEL", "llama3-4", ["llama3-405b"]),
        ("MODEL", "Llama-3-4", ["Llama-3-405b"]),
        (
            "MODEL",
            "llama-3",
            ["llama-33b", *(f"llama-3{n[6:]}" for n in MODELS if n[:6] == "llama3")],
        ),
        ("MODEL", "llama-3-", [f"llama-3{n[6:]}" for n in MODELS if n[:7] == "llama3-"]),
        ("MODEL", "Mix-", []),
        ("SYSTEM", "GB2", ["GB200-nvl72"]),
        ("SYSTEM", "tpu_v7", ["tpu_v7x"]),
        ("SYSTEM", "h-1", []),
        ("SYSTEM,...", "h100-sxm,h200", [f"h100-sxm,{n}" for n in SYSTEMS if n[:4] == "h200"]),
        ("SYSTEM=USD", "h200-sx", ["h200-sxm="]),
        ("FIELD,FIELD", "tp,re", ["tp,recompute", "tp,recompute_parts"]),
        ("FIELD=VALUE,...", "", ["tp=", "recompute=", "recompute_parts=", "gpus="]),
        ("FIELD=VALUE,...", "t", ["tp=1", "tp=2", "tp=4"]),
        ("FIELD=VALUE,...", "tp=2,recompute=f", ["tp=2,recompute=full"]),
        ("FIELD=VALUE,...", "gp", ["gpus="]),
        ("FIELD=VALUE,...", "gpus=6", []),
        ("FIELD=V1,V2,...", "tp=2,", ["tp=2,1", "tp=2,2", "tp=2,4"]),
        ("FIELD=VALUE,...", "nothing=", []),
    ],
)
def test_candidates_continue_what_was_entered(kind, entered, expected):
    """None for files and numbers, which the shell completes or nobody."""
    assert candidates(kind, entered, FIELDS) == expected


ENTERED = [
    ("shardwise es", ["estimate"]),
    ("shardwise peers llama3-4", ["llama3-405b"]),
    ("shardwise estimate llama3-8b h200-s", ["h200-sxm"]),
    ("shardwise --verbose estimate x y --recompute ", ["none", "selective", "full"]),
    ("shardwise search x y --for meg", ["megatron-bridge", "megatron"]),
    ("shardwise search x --fix recompute=f", ["recompute=full"]),
    ("shardwise sweep x y --vary nvl", ["nvlink.bandwidth=", "nvlink.latency="]),
    ("shardwise estimate Llama-3-4", ["Llama-3-405b"]),
    ("shardwise schema strat", ["strategy"]),
    ("shardwise fsdp --help-a", ["--help-all"]),
    ("shardwise estimate --strategy ", []),
]


@each_row(("line", "expected"), ENTERED)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_answered(monkeypatch, capsys, shell, line, expected):
    """In the environment that their scripts set; without candidates they complete files."""
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    monkeypatch.setenv("_SHARDWISE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert complete(f"complete_{shell}") == 0
    printed = capsys.readouterr().out
    if shell == "zsh":
        assert printed.strip() != "_files" or not expected
        assert all(f'"{one}"' in printed for one in expected)
    else:
        found = [one.split("\t")[0] for one in printed.split("\n") if one]
        wanted = (
            [one.rpartition("=")[2] or one for one in expected] if shell == "bash" else expected
        )
        assert found == wanted


@each_row("model", MODELS)
def test_completed_names_of_models_mean_their_entry(model):
    """With a dash before the version, or none, in any case."""
    for entered in (model[:4], model[:4].upper(), re.sub(r"^([a-z]+)(?=\d)", r"\1-", model)[:7]):
        means = [catalog.find("models", one) for one in candidates("MODEL", entered, {})]
        assert model in [path and path.stem for path in means]
        assert None not in means


def test_every_verb_completes_its_options(monkeypatch, capsys):
    """As the table has them."""
    for verb in VERBS:
        monkeypatch.setenv("COMP_WORDS", f"shardwise\n{verb}\n--")
        monkeypatch.setenv("COMP_CWORD", "2")
        monkeypatch.setenv("_SHARDWISE_COMPLETE", "complete_bash")
        complete("complete_bash")
        found = set(capsys.readouterr().out.split()) - {"--help"}
        names = " ".join(json.loads(TABLE.read_text())["verbs"][verb]["options"]).split()
        assert found == {name for name in names if name.startswith("--")}


def test_completion_loads_nothing_slow():
    """Names of the catalog, and words, come without them."""
    entered = {"COMP_WORDS": "shardwise\nestimate\nllama3-4", "COMP_CWORD": "2"}
    program = (
        "import sys; from shardwise.cli.completion import complete; complete('complete_bash');"
        "print(*{'numpy', 'polars', 'rich', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | entered | {"_SHARDWISE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["llama3-405b"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_gets_what_it_inserts(tmp_path):
    """A process of it, with the script that the command prints."""
    command = tmp_path / "shardwise"
    command.write_text(f'#!/bin/sh\nexec {PROGRAM} "$@"\n')
    command.chmod(0o755)
    lines = [
        'eval "$(_SHARDWISE_COMPLETE=source_bash shardwise)"',
        "complete -p shardwise",
        "COMP_WORDS=(shardwise search --fix recompute = f) COMP_CWORD=5",
        "_shardwise_completion shardwise",
        'echo "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],  # noqa: S607 - any bash
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "complete -o default -F _shardwise_completion shardwise",
        "full",
    ]


def test_the_script_of_a_shell_can_be_requested(shardwise):
    """By its name, whatever the current shell is; another word is refused."""
    scripts = [shardwise("--show-completion", shell)[1] for shell in ("bash", "zsh", "fish")]
    assert "#compdef shardwise" in scripts[1]
    assert scripts[2].startswith("complete --command shardwise")
    assert len(set(scripts)) == 3
    code, _, err = shardwise("--show-completion", "cmd")
    assert (code, "'cmd': allowed: bash, zsh, fish" in err) == (2, True)
    code, _, err = shardwise("--install-completion", "zsh")
    assert (code, "takes no value" in err) == (2, True)

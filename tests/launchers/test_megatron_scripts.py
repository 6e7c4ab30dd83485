"""Launch scripts of other repositories are read: model, strategy, and what is left over."""

import re
from pathlib import Path

import pytest
import yaml

from shardwise import Model, Strategy
from shardwise.errors import InputError
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.registry import read_by, recognised_launcher

SCRIPTS = yaml.safe_load((Path(__file__).parents[1] / "data" / "megatron_scripts.yaml").read_text())


SAME = ("hidden", "layers", "position", "tied_embeddings", "dropout")


def words(options):
    return [flag if value is None else f"{flag} {value}" for flag, value in options.items()]


def with_array(script, start):
    """Options in an array, started at once."""
    lines = [f"{start} pretrain_gpt.py ${{ARGS[@]}}", ""]
    return ["ARGS=(", *(f"    {one}  # an option" for one in words(script["options"])), ")", *lines]


def with_text(script, start):
    """Options in a text of several lines, started by eval."""
    options = " \\\n    ".join(words(script["options"]))
    return [
        f'options=" \\\n    {options} \\\n    "',
        f'cmd="{start} x.py ${{options}}"',
        "eval $cmd",
    ]


def with_srun(script, start):
    """Options in a text, started by a shell on every node, with its output in a file."""
    options = " \\\n    ".join(words(script["options"]))
    command = f'srun --wait=60 bash -c "{start} `pwd`/x.py $CMD" 2>&1 | tee -a $LOGS'
    return [f'export CMD=" \\\n    {options} \\\n    "', "echo $CMD", f"clear; {command}"]


def text_of(script, style):
    start = f"torchrun {' '.join(words(script['ranks']))}"
    head = [f"#SBATCH {one}" for one in script.get("directives", ())]
    constants = [f"{name}={value}" for name, value in script["constants"].items()]
    return "\n".join(["#!/bin/bash", *head, *constants, *style(script, start)]) + "\n"


def read(script, style, **changes):
    named = script.get("names_model")
    variables = {name: str(value) for name, value in script.get("open", {}).items()}
    fields = {"variables": variables, "model": Model.load(named) if named else None} | changes
    text = LaunchText(source="run.sh", text=text_of(script, style), **fields)
    launcher = recognised_launcher(text.text, text.source)
    assert launcher.name == "megatron"
    return read_by(launcher, text)


@pytest.mark.parametrize("style", [with_array, with_text, with_srun])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read(name, style):
    script = SCRIPTS[name]
    launch = read(script, style)
    expected = script["model"]
    if isinstance(expected, str):
        assert launch.model.name == expected
    else:
        own = {field: value for field, value in expected.items() if field != "like"}
        assert {field: getattr(launch.model, field) for field in own} == own
        if "like" in expected:
            like = Model.load(expected["like"])
            assert {name: getattr(launch.model, name) for name in SAME} == {
                name: getattr(like, name) for name in SAME
            }
    strategy = Strategy.validated(launch.strategy)
    read_fields = {field: getattr(strategy, field) for field in script["strategy"]}
    assert read_fields == script["strategy"]
    stack = strategy.loaded_stack()
    assert {field: getattr(stack, field) for field in script["stack"]} == script["stack"]
    assert sorted({one.option for one in launch.not_understood}) == sorted(script["left"])


@pytest.mark.parametrize("name", [name for name, one in SCRIPTS.items() if "open" in one])
def test_what_a_script_leaves_open_is_asked_for_once_by_name(name):
    script = SCRIPTS[name]
    with pytest.raises(InputError) as caught:
        read(script, with_array, variables={})
    asked = [
        re.search(r"variable (\w+) has.*--set (\w+)=VALUE", str(one)) for one in caught.value.faults
    ]
    assert sorted(found[1] for found in asked) == sorted(script["open"])
    assert [found[1] for found in asked] == [found[2] for found in asked]

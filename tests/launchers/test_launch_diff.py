"""Changes of options as diffs of launch files."""

import pytest

from shardwise import Model, Strategy, System
from shardwise.config.launch import Launch
from shardwise.launchers.diagnose.launch_diff import (
    OptionChange,
    _differences,
    launch_diff,
    option_changes,
)
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.registry import launcher_of

SCRIPT = """#!/bin/bash
# --tensor-model-parallel-size 4 was slow
TP=4
export PP=${PP:-2}
MBS="2"  # fits
torchrun --nproc-per-node 8 pretrain_gpt.py \\
    --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size ${PP} \\
    --micro-batch-size ${MBS} \\
    --sequence-parallel \\
    --recompute-granularity full \\
    --context-parallel-size=2 \\
    --seq-length 4096
"""
JSON = '{\n  "stage": 3,\n  "stage3_max_live_parameters": 1000000000,\n  "last": true\n}\n'


def _change(name, old, new):
    return OptionChange(name=name, old=old, new=new)


def _lines(diff, sign):
    return [line[1:].strip() for line in diff.splitlines()[2:] if line.startswith(sign)]


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (_change("--tensor-model-parallel-size", "4", "8"), ["TP=4"], ["TP=8"]),
        (_change("--micro-batch-size", "2", "1"), ['MBS="2"  # fits'], ['MBS="1"  # fits']),
        (
            _change("--recompute-granularity", "full", "selective"),
            ["--recompute-granularity full \\"],
            ["--recompute-granularity selective \\"],
        ),
        (
            _change("--context-parallel-size", "2", "1"),
            ["--context-parallel-size=2 \\"],
            ["--context-parallel-size=1 \\"],
        ),
        (_change("--sequence-parallel", "", None), ["--sequence-parallel \\"], []),
    ],
)
def test_an_option_is_changed_where_its_value_stands(change, before, after):
    """In the option itself, or in the variable that only it reads; comments stay."""
    diff = launch_diff("train.sh", SCRIPT, [change])

    assert diff.startswith("--- train.sh\n+++ train.sh\n")
    assert (_lines(diff, "-"), _lines(diff, "+")) == (before, after)


@pytest.mark.parametrize(
    "change",
    [
        _change("--pipeline-model-parallel-size", "2", "1"),  # a default of the environment
        _change("--tensor-model-parallel-size", "2", "1"),  # another value than read
        _change("--expert-model-parallel-size", "2", "1"),  # not there
        _change("--use-distributed-optimizer", None, ""),  # nobody knows where to add it
    ],
)
def test_what_is_not_found_gives_no_diff(change):
    """Where one option is not found as it was read, there is no diff at all."""
    good = _change("--recompute-granularity", "full", "selective")

    assert launch_diff("train.sh", SCRIPT, [good, change]) == ""


def test_a_variable_of_two_options_is_not_changed():
    """A value that another option reads too stays as it is."""
    text = SCRIPT.replace("--seq-length 4096", "--seq-length $TP")

    assert launch_diff("x", text, [_change("--tensor-model-parallel-size", "4", "8")]) == ""


def test_lines_of_json_are_set_and_removed():
    """A value changes in place; a line is removed if no comma is left over."""
    changes = [_change('"stage"', "3", "1"), _change('"stage3_max_live_parameters"', "1", None)]
    diff = launch_diff("ds.json", JSON, changes)

    assert _lines(diff, "+") == ['"stage": 1,']
    assert _lines(diff, "-") == ['"stage": 3,', '"stage3_max_live_parameters": 1000000000,']
    assert launch_diff("ds.json", JSON, [_change('"last"', "true", None)]) == ""
    absent = [_change('"none"', "3", None), changes[0]]  # what is not there need not be removed
    assert _lines(launch_diff("ds.json", JSON, absent), "+") == ['"stage": 1,']
    assert launch_diff("ds.json", JSON, [_change('"none"', "3", None)]) == ""


def test_options_that_differ_are_paired_by_name():
    """Of the same plan there is none; values of moved lines do not count."""
    old = ["a 1 \\", "--tp 4 \\", "--sp \\", "--pp 2", "# --x 1"]
    new = ["a 1 \\", "--tp 2 \\", "--pp 2 \\", "--vpp 2", "# --x 2"]

    assert list(_differences(old, old)) == []
    found = {one.name: (one.old, one.new) for one in _differences(old, new)}
    assert found == {"--tp": ("4", "2"), "--sp": ("", None), "--vpp": (None, "2")}
    assert [str(one) for one in _differences(old, new)] == [
        "--tp: 4 -> 2",
        "--sp: set -> (not set)",
        "--vpp: (not set) -> 2",
    ]


def test_options_of_other_files_of_a_launch_are_named():
    """accelerate's YAML has no batch: the script next to it has, and its diff is empty."""
    launcher, model, system = launcher_of("accelerate"), Model.load("llama3-8b"), "h100-sxm"
    fields = {"gpus": 32, "tp": 4, "gbs": 64, "zero": 3, "stack": launcher.stack}
    plans = [
        LaunchPlan(
            model=model,
            system=System.load(system),
            strategy=Strategy.validated(fields | {"mbs": mbs}).resolved(model),
        )
        for mbs in (1, 2)
    ]
    launch = Launch(
        launcher="accelerate", release=None, source="run.yaml", model=None, strategy=fields
    )
    own, others = option_changes(launcher, *plans, launch)

    assert own == []
    assert "in the .sh file: --per_device_train_batch_size: 1 -> 2" in others
    assert option_changes(launcher, plans[0], plans[0], launch) == ([], [])

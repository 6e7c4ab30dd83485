"""Megatron-LM's launch files: plans written and read back, and files of others."""

import os
import shutil
import subprocess
from functools import cache

import pytest

from megatron_plans import architecture, effective, legal_plans
from shardwise import Strategy
from shardwise.errors import InputError
from shardwise.interop import megatron
from shardwise.interop.launch import LaunchText
from shardwise.interop.ranks import parse_job

LAUNCHER = megatron.LAUNCHER


@cache
def plans():
    return tuple(legal_plans(LAUNCHER.stack, 200, 11, LAUNCHER.faults))


def text_of(plan, ending=".sh"):
    """The first file of a plan, without its comments."""
    text = LAUNCHER.write(plan, LAUNCHER.releases[0], ending)[0].text
    return "\n".join(line for line in text.splitlines() if not line.startswith("# "))


def read(text, **others):
    return LAUNCHER.read(LaunchText(source="run.sh", text=text, **others))


def check_same(plan, launch):
    model = plan.model.with_attention(plan.strategy.attention)
    assert architecture(launch.model) == architecture(model)
    strategy = Strategy.validated(launch.strategy)
    assert effective(launch.model, strategy) == effective(model, plan.strategy)
    assert launch.not_understood == ()


def test_200_scripts_are_read_as_their_plans():
    for plan in plans():
        check_same(plan, read(text_of(plan)))


def test_200_argument_files_are_read_as_their_plans():
    """All but rings, which need a file of their own."""
    for plan in plans():
        split = plan.strategy.tp > 1 and plan.strategy.tp_exchange == "rs_ag"
        if split and plan.strategy.tp_overlap == "ring":
            with pytest.raises(InputError, match="tp_overlap"):
                text_of(plan, ".txt")
            continue
        text = text_of(plan, ".txt")
        assert LAUNCHER.recognise(text, "args.txt")
        check_same(plan, read(text, gpus=plan.strategy.gpus))


def test_a_shell_runs_the_words_that_are_read(tmp_path):
    """bash passes to torchrun what the parser of scripts says, whatever it starts."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": ""}
    for number, plan in enumerate(plans()[::10]):
        script = tmp_path / f"{number}.sh"
        script.write_text(text_of(plan))
        done = subprocess.run(
            [bash, str(script)], capture_output=True, check=True, env=environment, cwd=tmp_path
        )
        words = parse_job(script.read_text(), {"NODE_RANK": "0"}).commands[-1]
        assert ["torchrun", *done.stdout.decode().splitlines()] == list(words)

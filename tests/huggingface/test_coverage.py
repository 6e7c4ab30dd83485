"""`models --coverage`: every family of transformers is read, or refused with a reason."""

import json

import pytest

from huggingface_configs import FAMILIES
from shardwise.cli import run
from shardwise.huggingface.coverage import coverage


def test_every_family_is_listed_with_its_state() -> None:
    """As the comparison with transformers found it: a reason for each that is not read."""
    found = coverage()
    assert {one.model_type for one in found.families} == set(FAMILIES)
    for one in found.families:
        row = FAMILIES[one.model_type]
        assert one.parameters == row["parameters"]
        assert bool(one.why) >= (one.read == "no")
        assert one.read == ("no" if "refused" in row else one.read)
    assert sum(found.counts().values()) == len(found.families)


def test_the_command_prints_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """In the table's last line and in JSON; a model's name has no effect with it."""
    counts = coverage().counts()
    assert run(["models", "--coverage"]) == 0
    assert f"{counts['record']} read, {counts['modules']} read with the extra torch" in (
        capsys.readouterr().out
    )
    assert run(["models", "--coverage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == counts
    assert run(["models", "llama3-8b", "--coverage"]) == 2

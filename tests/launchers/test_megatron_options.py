"""Exported options are those of the release, with values that it accepts."""

import re
from pathlib import Path

import pytest
import yaml

from megatron_plans import legal_plans
from profiles import drawn
from shardwise.launchers import megatron
from shardwise.launchers.megatron.arguments import written_options
from shardwise.launchers.megatron.options import ACTIVATIONS, FLAGS, OPTIONS, Kind
from shardwise.launchers.ranks import parse_job

LAUNCHER = megatron.LAUNCHER
DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "megatron_options.yaml").read_text())
KNOWN = DATA["options"]
NUMBER = r"\d+(\.\d*)?([eE]-?\d+)?"
PATTERNS = {
    "int": r"\d+",
    "float": NUMBER,
    "text": r".+",
    "pattern": r"\d+|\(\[[01]\]\*\d+(\+\[[01]\]\*\d+)*\)",
    "pair": r"\d+,\d+",
}


def is_legal(flag, values):
    allowed = KNOWN[flag]["values"]
    if allowed == "flag":
        return values == ()
    if isinstance(allowed, dict):
        return len(values) > 0 and set(values) <= set(allowed["words"])
    if isinstance(allowed, list):
        return len(values) == 1 and values[0] in map(str, allowed)
    return len(values) == 1 and re.fullmatch(PATTERNS[allowed], values[0]) is not None


def exported(plan):
    text = LAUNCHER.write(plan, "0.19.0", ".sh")[0].text
    words = parse_job(text, {}).commands[-1]
    at = next(at for at, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    return written_options(words[at + 1 :])


def test_the_list_is_that_of_the_release_that_is_written():
    assert LAUNCHER.releases == (DATA["release"],)
    since = [tuple(map(int, one["since"].split("."))) for one in KNOWN.values() if "since" in one]
    assert max(since) <= tuple(map(int, DATA["release"].split(".")))


@pytest.mark.parametrize("seed", [1, 2])
def test_exported_options_are_in_the_list_once_with_legal_values(seed):
    for plan in legal_plans(LAUNCHER.stack, drawn(150, 6), seed, LAUNCHER.faults):
        options = exported(plan)
        assert [flag for flag, _ in options if flag not in KNOWN] == []
        assert [one for one in options if not is_legal(*one)] == []
        flags = [flag for flag, _ in options]
        assert len(flags) == len(set(flags))


def test_every_option_of_the_table_is_in_the_list():
    """Also those that no drawn plan has; of activations the ones that are written."""
    assert set(FLAGS) <= set(KNOWN)
    assert len(FLAGS) == sum(map(len, OPTIONS.values()))
    for flag, option in FLAGS.items():
        assert (KNOWN[flag]["values"] == "flag") == (option.kind in (Kind.ON, Kind.OFF)), flag
    assert set(ACTIVATIONS) - set(KNOWN) == {"--quick-geglu", "--openai-gelu"}

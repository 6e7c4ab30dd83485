"""No input ends in a traceback, another exit code, NaN or Infinity; `scripts/fuzz.py` runs more."""

import sys
from pathlib import Path

import pytest
import yaml

import fuzz
from fuzz_runs import minimal, outcome
from profiles import drawn

DATA = Path(__file__).parents[1] / "data"
CORPUS = yaml.safe_load((DATA / "fuzz_corpus.yaml").read_text("utf-8"))
SEED = 1


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """No input may reach a network."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def failures(cases):
    """Cases at fault, as small as they can be made."""
    found = [(case, outcome(case)) for case in cases]
    assert any(done.legal for _, done in found)
    return [(done.faults, minimal(case)) for case, done in found if done.faults]


@pytest.mark.parametrize("part", range(4))
def test_no_command_does_what_none_may(part):
    """Commands with damaged words and files, 400 of them in .ci/nightly."""
    numbers = range(100 * part, 100 * part + drawn(100, 8))
    cases = [fuzz.case_of(SEED, number, kind="command", cheap=True) for number in numbers]
    assert failures(cases) == []


@pytest.mark.parametrize("part", range(2))
def test_no_call_does_what_none_may(part):
    """Calls of Python with arguments at edges and of other types, 600 of them in .ci/nightly."""
    numbers = range(300 * part, 300 * part + drawn(300, 8))
    cases = [fuzz.case_of(SEED, number, kind="call", cheap=True) for number in numbers]
    assert failures(cases) == []


def test_cases_that_were_found():
    """Each did once what no input may do."""
    told = [
        (one["found"], faults)
        for one in CORPUS
        if (faults := outcome({k: v for k, v in one.items() if k != "found"}).faults)
    ]
    assert told == []


def test_a_case_depends_on_its_seed_and_number_alone():
    """So that a case that another machine found can be made again."""

    def drawn():
        return [fuzz.case_of(7, number, kind="command", cheap=False) for number in range(20)]

    assert drawn() == drawn()
    assert len({str(case) for case in drawn()}) > 15


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["models", "llama3-8b", "--json"], "NaN in stdout"),
        (["models", "llama3-8b"], "nan in stdout"),
    ],
)
def test_what_no_input_may_do_is_noticed(words, fault, monkeypatch):
    """Else the tests above would pass with anything."""
    text = '{"a": NaN}' if "--json" in words else "hidden  nan"
    monkeypatch.setattr("fuzz_runs.run", lambda _: 0 * sys.stdout.write(text))
    assert outcome({"words": words}).faults[0].startswith(fault)


def test_a_traceback_is_noticed(monkeypatch):
    """And traced to the smallest input."""

    def failing(words):
        if "--tp" in words:
            raise ZeroDivisionError
        return 0

    monkeypatch.setattr("fuzz_runs.run", failing)
    words = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "2", "--json"]
    assert outcome({"words": words}).faults == ("raised ZeroDivisionError: ",)
    assert minimal({"words": words}) == {"words": ["estimate", "llama3-8b", "h100-sxm", "--tp"]}

"""README: each answer is one that its command prints, and each extra is named."""

import re
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from rows import each_row
from shardwise.cli import run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^# (.+\?)\nshardwise (.+)\n((?:#> .+\n)+)", TEXT, re.MULTILINE)


@each_row("question, command, answer", QUESTIONS)
def test_a_command_prints_the_answer(question, command, answer):
    """Lines after `#>` are lines of the output, whatever the spaces between their columns."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        run(command.split())
    printed = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    for line in answer.splitlines():
        assert line.removeprefix("#> ") in printed, question


def test_three_questions_are_answered():
    """So that the test above has something to run."""
    assert len(QUESTIONS) == 3


def test_each_extra_is_named_once():
    """Extras of pyproject.toml are those of the table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = TEXT.partition("## Extras")[2].partition("## ")[0]
    named = [
        name
        for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(.+?)`", cell)
    ]
    assert sorted(named) == sorted(project["optional-dependencies"])


def test_the_errors_are_those_of_the_accuracy_page():
    """The headlines of both grades: runs, median and 9 of 10; and how many runs there are."""
    page = (ROOT / "docs" / "accuracy" / "index.md").read_text(encoding="utf-8")
    said = " ".join(TEXT.split())
    for grade, start in (("own source left out**: all", "On"), ("in no fit: all", "On the")):
        row = next(line for line in page.splitlines() if grade in line)
        runs, _, median, most = [cell.strip() for cell in row.split("|")[2:6]]
        part = said.partition(f"{start} {runs} ")[2]
        assert f"are within {median}, and 9 of 10 within {most}" in part
    every = re.search(r"\[([\d,]+) published training runs\]", page)[1]
    assert f"{every} published runs measure" in said


@pytest.mark.nightly
def test_commands_of_the_first_page_run():
    """Each question of the site's first page has a command to copy."""
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\| \[.+\?\].+ \| `shardwise (.+)` \|$", page, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            assert run(command.split()) in {0, 1}, command  # 1: it does not fit

"""What people write for the software that trains: which trainer, engine and kernels it means."""

from pathlib import Path

import pytest
import yaml

from shardwise import Model, Stack, Strategy, System
from shardwise.config.software.resolve import Match, resolve
from shardwise.config.software.words import software_of

NAMES = yaml.safe_load((Path(__file__).parent / "data" / "software_names.yaml").read_text("utf-8"))


def _match(text: str, system: str, date: str = "", model: str = "llama3-8b") -> Match:
    software = software_of(text)
    if date:
        software = software.model_copy(update={"date": date})
    return resolve(software, System.load(system), Model.load(model))


def _words(match: Match, field: str) -> list[str]:
    """Words that the candidates of a match have for a field, the most probable first."""
    if field == "stack":
        return [one.stack.name for one in match.candidates]
    if field in ("trainer", "backend", "engine"):
        return [str(getattr(one, field)) for one in match.candidates]
    return [str(one.options.get(field)) for one in match.candidates]


@pytest.mark.parametrize("row", NAMES, ids=[row["text"] for row in NAMES])
def test_names_of_software_resolve(row):
    """A description means these words; several candidates differ in what they are described by.

    Candidates whose figures are equal are one, whatever else they may differ in.
    """
    match = _match(row["text"], row["on"], row.get("date", ""), row.get("model", "llama3-8b"))
    assert match.how != "unknown"
    assert sum(one.weight for one in match.candidates) == pytest.approx(1)
    described = [one.described for one in match.candidates]
    assert len(set(described)) == len(described)
    for field, expected in row["words"].items():
        words = expected if isinstance(expected, list) else [expected]
        seen = _words(match, field)
        figures = field == "stack" or field in Stack.model_fields or field in Strategy.model_fields
        assert set(seen) <= set(words), field
        if figures:
            assert set(seen) == set(words), field
        else:
            assert words[0] in seen, field


def test_software_that_is_not_known_says_so():
    """A name that no trainer has gets the figures of unknown software, and a note."""
    match = _match("FooTrain", "h100-sxm", "2025-01")
    assert match.how == "unknown"
    assert match.stack.name == "unknown"
    assert match.notes

"""What searches save between calls changes no result."""

from typing import Any

import pytest

from shardwise import distinct, search
from shardwise.analysis.measured_plans import measured_plans, nearest_measured
from shardwise.planning.search import pieces

# Spaces that differ in what the saved tables depend on, and in what they do not.
QUESTIONS: tuple[dict[str, Any], ...] = (
    {"gbs": 32},
    {"gbs": 64},
    {"gbs": 32, "recompute": "none"},
)


def answer(words: dict[str, Any]) -> dict[str, Any]:
    """The result of a search without its duration."""
    fixed = {"gpus": 8, "pp": [1, 2], "tp": 2, "cp": 1, "zero": 1}
    found = search("llama3-8b", "h100-sxm", fixed, **words)
    return found.model_copy(update={"elapsed_s": 0.0}).to_dict()


def test_earlier_searches_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, values that are not tried and schedules are saved; each search alone has none."""
    after_others = [answer(words) for words in QUESTIONS]
    monkeypatch.setattr(pieces, "_MOST_SAVED", 0)  # variants are evaluated again
    for words, found in zip(QUESTIONS, after_others, strict=True):
        monkeypatch.setattr(distinct, "_known", {})
        assert answer(words) == found


@pytest.mark.parametrize("at", [0, 100, 500])
def test_a_measured_run_is_nearest_to_itself(at: int) -> None:
    """Or one of the same model, machine and layout that has a higher MFU."""
    run = measured_plans()[at]
    found = nearest_measured(run)
    assert (found.model, found.system, found.gpus) == (run.model, run.system, run.gpus)
    assert tuple(found.layout.values()) == run.layout
    assert found.mfu >= run.mfu

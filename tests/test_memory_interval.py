"""Ranges of the measured peak memory, by hand."""

import json
from typing import Any

import numpy as np
import pytest

from shardwise import estimate
from shardwise.analysis.prediction_interval import memory_error, memory_errors
from shardwise.report.tables.estimate import print_estimate

LAYOUT = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 64}


def test_sources_have_one_vote_by_hand() -> None:
    """Of nine sources the quantile 0.8 x 10 / 9: eight of them; many runs of one count once."""
    nine = {str(n): [0.01 * n * (-1) ** n] for n in range(1, 10)}
    assert memory_error(nine) == 0.08
    assert memory_error(nine | {"9": [0.09] * 50}) == 0.08
    assert memory_error(nine | {"1": [0.2, 0.2, 0.2, 0.01]}) == 0.09


def test_few_sources_have_their_largest_error() -> None:
    """A fifth new source is beyond four others with a probability of a fifth."""
    assert memory_error({name: [0.1 * n] for n, name in enumerate("abcd", start=1)}) == 0.4
    assert memory_error({"a": [0.1, -0.3]}) == 0.3


def test_new_sources_lie_inside_as_often_as_said() -> None:
    """The tenth of 10 sources in 4,000 draws; three deviations are 0.019."""
    random = np.random.default_rng(0)
    draws = random.standard_normal((4000, 10))
    inside = [
        abs(draw[9]) <= memory_error({str(n): [error] for n, error in enumerate(draw[:9])})
        for draw in draws
    ]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.019)


def test_an_interval_lies_about_the_peak() -> None:
    """A factor either way, of tensors and of all that is reserved; none forward only."""
    result = estimate("llama3-8b", "h100-sxm", LAYOUT)
    found, memory, errors = result.memory_interval, result.memory_bytes, memory_errors()
    assert found is not None
    assert found.total_low * found.total_high == pytest.approx(memory.total**2)
    assert found.reserved_low * found.reserved_high == pytest.approx(memory.reserved**2)
    assert found.total_high / memory.total == pytest.approx(np.exp(errors["allocated"]["error"]))
    assert found.reserved_high / memory.reserved == pytest.approx(
        np.exp(errors["reserved"]["error"])
    )
    assert found.runs == errors["allocated"]["runs"] + errors["reserved"]["runs"]
    forward = estimate("llama3-8b", "h100-sxm", LAYOUT | {"training": False})
    assert forward.memory_interval is None


def test_the_report_has_both_ranges(capsys: pytest.CaptureFixture[str], shardwise: Any) -> None:
    """One line; in JSON by name."""
    print_estimate(estimate("llama3-8b", "h100-sxm", LAYOUT))
    shown = " ".join(capsys.readouterr().out.split())
    assert "allocated and" in shown
    assert "reserved in 8 of 10 runs" in shown
    code, text, _ = shardwise(
        *["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "64", "--json"]
    )
    assert code in (0, 1)
    names = {f"{kind}_{end}" for kind in ("total", "reserved") for end in ("low", "high")}
    assert set(json.loads(text)["memory_interval"]) == names | {"level", "runs"}


def test_errors_of_the_catalog_are_plausible() -> None:
    """From several sources; tensors are predicted better than the allocator."""
    found = memory_errors()
    assert set(found) == {"allocated", "reserved"}
    assert all(kind["sources"] >= 5 and 0.02 < kind["error"] < 0.5 for kind in found.values())
    assert found["allocated"]["error"] < found["reserved"]["error"]

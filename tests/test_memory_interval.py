"""Ranges of the measured peak memory, by hand."""

import json
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import Strategy, System, estimate
from shardwise.analysis.memory_interval import (
    MemoryFeatures,
    MemoryRuns,
    MemorySpread,
    left_out_memory_sizes,
    levels_of,
    memory_runs,
    memory_spread,
)
from shardwise.analysis.variation import LEVEL
from shardwise.report.tables.estimate import print_estimate

pytestmark = pytest.mark.any_software

LAYOUT = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 64}
ONE = {"reserved": False, "framework": "f", "software": "f-one", "eager": False, "adapters": False}


def runs(*rows: tuple[str, float, dict[str, Any]]) -> MemoryRuns:
    """Peaks like `ONE` but for what is said: source, error, what differs."""
    described = [ONE | other for _, _, other in rows]
    return MemoryRuns(
        sources=np.array([source for source, _, _ in rows]),
        errors=np.array([error for _, error, _ in rows]),
        features={name: np.array([row[name] for row in described]) for name in ONE},
    )


def test_levels_of_a_peak_by_hand() -> None:
    """Sources with peaks of the software leave 1 / (1 + n) of its level; its own is none."""
    known = runs(
        ("a", 0.1, {}),
        ("a", 0.1, {"reserved": True}),
        ("b", 0.1, {"eager": True, "adapters": True}),
        ("c", 0.1, {"software": "f-two"}),
        ("d", 0.1, {"software": "g", "framework": "g"}),
    )
    assert levels_of(known.features, known).tolist() == [
        [1, 0, 0, 0, 1 / 3, 0],
        [1, 1, 0, 0, 1 / 3, 0],
        [1, 0, 1, 1, 1 / 3, 0],
        [1, 0, 0, 0, 1 / 2, 0],
        [1, 0, 0, 0, 1 / 2, 0],
    ]
    own = levels_of(known.features, known, known.sources)
    assert own[:, 4].tolist() == [1 / 2, 1 / 2, 1 / 2, 1, 1]
    assert own[:, 5].tolist() == [0, 0, 0, 0, 1]


def test_sizes_by_hand() -> None:
    """Deviations of each side times the root of the sum of the levels that apply."""
    spread = MemorySpread(levels={"a": 9.0, "b": 16.0}, more=2.0, less=1.0)
    more, less = spread.sizes(np.array([[1.0, 1.0], [1.0, 0.0]]))
    assert (more.tolist(), less.tolist()) == ([10.0, 6.0], [5.0, 3.0])


def test_new_sources_lie_inside_as_often_as_said() -> None:
    """Of drawn sources with levels of 10 %, from 30 of them; also of many runs each."""
    random = np.random.default_rng(0)
    drawn = random.normal(0, 0.1, 400)
    known = runs(*((str(n), error, {}) for n, error in enumerate(drawn[:30])))
    parts = levels_of(known.features, known)[:1]
    more, less = memory_spread(known).sizes(parts)
    inside = (-more[0] <= drawn) & (drawn <= less[0])
    assert inside.mean() == pytest.approx(LEVEL, abs=0.15)
    many = runs(*((str(n), error, {}) for n, error in enumerate(drawn[:30]) for _ in range(1 + n)))
    again = memory_spread(many).sizes(parts)
    assert (again[0][0], again[1][0]) == pytest.approx((more[0], less[0]), rel=0.01)


def test_known_peaks_lie_inside_with_their_source_left_out() -> None:
    """Each source has one vote, and none is known of its own."""
    known = memory_runs()
    more, less = left_out_memory_sizes(known)
    inside = (-more <= known.errors) & (known.errors <= less)
    shares = [inside[known.sources == source].mean() for source in np.unique(known.sources)]
    assert LEVEL - 0.1 < np.mean(shares) < LEVEL + 0.1


@each_row(
    ("narrow", "wide"),
    [
        ({}, {"software": "f-new"}),
        ({"software": "f-new"}, {"software": "new", "framework": "new"}),
        ({}, {"reserved": True}),
        ({}, {"eager": True}),
        ({}, {"adapters": True}),
    ],
)
def test_who_knows_less_has_a_wider_range(narrow: Any, wide: Any) -> None:
    """Software whose memory nobody measured, the allocator's memory, and the hard kinds."""
    known = runs(*((name, 0.1, {}) for name in "abc"))
    parts = levels_of({n: np.array([(ONE | o)[n] for o in (narrow, wide)]) for n in ONE}, known)
    for size in memory_spread(memory_runs()).sizes(parts):
        assert size[0] < size[1]


def test_an_interval_lies_about_the_peak() -> None:
    """A factor each way, of tensors and of all that is reserved; none forward only."""
    result = estimate("llama3-8b", "h100-sxm", {**LAYOUT, "stack": "torchtitan-2025"})
    found, memory, known = result.memory_interval, result.memory_bytes, memory_runs()
    assert found is not None
    stack = Strategy(stack="torchtitan-2025").loaded_stack(System.load("h100-sxm"))
    for reserved, peak, low, high in (
        (False, memory.total, found.total_low, found.total_high),
        (True, memory.reserved, found.reserved_low, found.reserved_high),
    ):
        one = MemoryFeatures.of(stack, Strategy(), reserved=reserved)
        columns = {name: np.array([getattr(one, name)]) for name in ONE}
        more, less = memory_spread(known).sizes(levels_of(columns, known))
        assert (peak / low, high / peak) == pytest.approx(np.exp([less[0], more[0]]))
    assert (found.runs, found.stack_sources) == (len(known.errors), 3)
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
    assert set(json.loads(text)["memory_interval"]) == names | {"level", "runs", "stack_sources"}

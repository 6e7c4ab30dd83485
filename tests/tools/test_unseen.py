"""Runs as they are predicted where nothing of their source is known."""

from typing import Any

import numpy as np
import pytest

import samples
from catalog_fit.newer import DATES, newer_sources, source_coverage
from catalog_fit.unseen import closest, unseen_cases
from measured_samples import run_of
from rows import each_row
from shardwise import Stack
from shardwise.analysis.validated_runs import validated_runs
from shardwise.config.strategy import Strategy
from shardwise.validate.measured.runs import Case

pytestmark = pytest.mark.any_software

KNOWN = {"megatron-lm-2022": 2, "megatron-lm-2024": 3, "megatron-deepspeed-2024": 2, "unknown": 9}


@each_row(
    ("name", "found"),
    [
        ("megatron-lm-2022", "megatron-lm-2022"),
        ("megatron-lm-2026", "megatron-lm-2024"),
        ("megatron-deepspeed-2022", "megatron-deepspeed-2024"),
        ("nemo-2025", "megatron-lm-2024"),
        ("megatron-bridge-fused", "megatron-lm-2024"),
        ("composer-2023", "unknown"),
    ],
)
def test_the_closest_measured_stack_by_hand(name: str, found: str) -> None:
    """Itself, a release of its software, its framework by year and sources, or `unknown`."""
    assert closest(name, KNOWN) == found


def test_a_stack_of_one_source_is_not_known_to_that_source() -> None:
    """Its runs have the figures of another stack, but what they state of their own."""
    said = {"a": "composer-2023", "b": "torchtitan-2025", "c": "torchtitan-2025"}
    runs = [run_of(name, source=name) for name in said]
    stated = {"tp_hidden": 0.123}
    cases = {}
    for place, name in enumerate(said.values()):
        stack = Stack.load(name).model_copy(update=stated)
        strategy = Strategy.validated({"dp": 1, "gbs": 1, "stack": stack})
        cases[place] = Case(model=samples.model(), system=samples.system(), strategy=strategy)
    found = unseen_cases(cases, runs)
    assert list(found) == [0]
    stack = found[0].strategy.loaded_stack()
    assert (stack.name, stack.tp_hidden) == ("unknown", 0.123)
    assert stack.host_launch == Stack.load("unknown").host_launch
    assert list(unseen_cases(cases, runs, newer=("b", "c"))) == [0, 1, 2]


def test_newer_sources_are_some_of_the_validated_ones() -> None:
    """Fewer after the later date; neither none nor all."""
    sources = set(validated_runs().sources.tolist())
    early, late = (newer_sources(date) & sources for date in DATES)
    assert 0 < len(late) < len(early) < len(sources) / 2
    assert late <= early


def test_coverage_of_a_source_by_hand() -> None:
    """A run beyond a side lies outside; sizes are of relative errors."""
    sides: Any = np.log([1.5, 1.5, 1.5]), np.log([1.2, 1.2, 1.2])
    found = source_coverage("a", np.log([1.25, 0.7, 1.1]), *sides)
    assert found.inside == pytest.approx(2 / 3)
    assert found.error == pytest.approx((0.25 + 0.3 + 0.1) / 3)
    assert found.half_width == pytest.approx((1.5 * 1.2 - 1) / 2)

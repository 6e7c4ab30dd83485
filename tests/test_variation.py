"""Levels of variation by hand, and of errors that are drawn from known levels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise.analysis.variation import (
    LEVEL,
    NORMAL_QUANTILE,
    Evidence,
    Variation,
    quantile,
    variance_components,
    variation_of,
)
from shardwise.arrays import Floats, Ints

some = examples(60)
SOURCE_LEVELS = (
    *("source", "experts", "assumed", "stack", "software"),
    *("accelerator", "generation"),
)
PLAIN: dict[str, Any] = {
    "experts": False,
    "assumed": False,
    "framework_measured": True,
    "stack_sources": 2,
    "accelerator_sources": 3,
    "generation_sources": 4,
}


def evidence(*rows: dict[str, Any]) -> Evidence:
    """Rows like `PLAIN` but for what is said."""
    described = [PLAIN | row for row in rows]
    return Evidence(**{name: np.array([row[name] for row in described]) for name in PLAIN})


def levels(*values: float) -> Variation:
    """Three levels of runs and seven of sources."""
    return Variation(
        runs=dict(zip(("run", "experts", "assumed"), values[:3], strict=True)),
        sources=dict(zip(SOURCE_LEVELS, values[3:], strict=True)),
    )


def test_what_is_known_adds_nothing_by_hand() -> None:
    """Each level by its share: the mean of n sources leaves 1 / (1 + n) of it."""
    found = levels(1, 20, 300, 4_000, 50_000, 6e5, 7.2e6, 8e7, 9.6e8, 1e10)
    of_runs = {"experts": 21, "assumed": 301}
    base = 4_000 + 7.2e6 / 3 + 9.6e8 / 4 + 1e10 / 5
    of_sources = {"experts": base + 50_000, "assumed": base + 6e5}
    plain = evidence({})
    assert (found.of_runs(plain)[0], found.of_sources(plain)[0]) == (1, base)
    assert found.sizes(plain)[0] == pytest.approx(NORMAL_QUANTILE * (1 + base) ** 0.5)
    for name, value in of_runs.items():
        one = evidence({name: True})
        assert (found.of_runs(one)[0], found.of_sources(one)[0]) == (value, of_sources[name])
    unknown = evidence({"framework_measured": False, "stack_sources": 0})
    assert found.of_sources(unknown)[0] == base + 8e7 + 7.2e6 * 2 / 3
    elsewhere = evidence({"accelerator_sources": 0, "generation_sources": 1})
    assert found.of_sources(elsewhere)[0] == base + 9.6e8 * 3 / 4 + 1e10 * 3 / 10


@some
@given(st.lists(st.floats(0, 1), min_size=10, max_size=10), st.sampled_from(sorted(PLAIN)))
def test_who_knows_more_has_no_wider_interval(values: list[float], name: str) -> None:
    """Of every level, whatever the variances."""
    less = {"assumed": True, "framework_measured": False}.get(name, 0)
    more = {"assumed": False, "framework_measured": True}.get(name, 1)
    if name == "experts":
        return
    found = levels(*values)
    before, after = found.sizes(evidence({name: less}, {name: more}))
    assert after <= before


@each_row(
    ("squares", "parts", "expected"),
    [
        ([4.0, 4.0], [[1.0], [1.0]], [4.0]),
        ([4.0, 9.0], [[1.0, 0.0], [1.0, 1.0]], [4.0, 5.0]),
        ([2.0, 3.0], [[1.0, 0.0], [0.5, 2.0]], [2.0, 1.0]),
    ],
)
def test_components_by_hand(
    squares: list[float], parts: list[list[float]], expected: list[float]
) -> None:
    """Where every error can be met exactly; whatever the weights."""
    weights = np.arange(1.0, 1 + len(squares))
    found = variance_components(np.array(squares), np.array(parts), weights)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_known_variance_is_no_component() -> None:
    """What remains is; none where the known one exceeds the errors."""
    parts, one = np.ones((1, 1)), np.ones(1)
    assert variance_components(one * 9, parts, one, one * 4)[0] == pytest.approx(5, rel=1e-3)
    assert variance_components(one * 9, parts, one, one * 20)[0] < 0.1


def test_a_component_is_the_likeliest() -> None:
    """With Student's distribution: of 1 and 100 it is below their mean; no other is likelier."""
    squares, weights = np.array([1.0, 100.0]), np.array([3.0, 1.0])
    found = float(variance_components(squares, np.ones((2, 1)), weights)[0])

    def likelihood(variance: float) -> float:
        terms = np.log(variance) + 5 * np.log1p(squares / (4 * variance))
        return -float((weights * terms).sum())

    assert 1 < found < 20
    assert all(likelihood(found) >= likelihood(found * f) for f in (0.8, 0.99, 1.01, 1.25))


def test_the_quantile_by_hand() -> None:
    """Of equal weights four of five; of unequal ones by their sum."""
    sizes = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert quantile(sizes, np.ones(5)) == 4
    assert quantile(sizes, np.array([1.0, 1, 1, 1, 16])) == 3


# --- errors that are drawn ---

TRUE = levels(0.05**2, 0.08**2, 0.04**2, 0.06**2, 0.08**2, 0.06**2, 0.1**2, 0.2**2, 0.1**2, 0.1**2)


def drawn(
    seed: int, sources: int, runs: int = 12
) -> tuple[Floats, np.ndarray[Any, Any], Ints, Evidence]:
    """Errors of sources with the levels of `TRUE`, and what each rests on."""
    random = np.random.default_rng(seed)
    described = [
        {
            "experts": bool(random.random() < 0.3),
            "assumed": bool(random.random() < 0.4),
            "framework_measured": bool(random.random() < 0.85),
            "stack_sources": int(random.integers(0, 4)),
            "accelerator_sources": int(random.integers(0, 8)),
            "generation_sources": int(random.integers(2, 12)),
        }
        for _ in range(sources)
    ]
    of = evidence(*described)
    source_levels = random.normal(0, np.sqrt(TRUE.of_sources(of)))
    place = np.repeat(np.arange(sources), runs)
    scatter = random.normal(0, np.sqrt(TRUE.of_runs(of))[place])
    names = np.array([f"source {n}" for n in range(sources)])[place]
    rows = Evidence(**{name: getattr(of, name)[place] for name in PLAIN})
    return source_levels[place] + scatter, names, place, rows


def test_levels_that_errors_were_drawn_from_are_found() -> None:
    """Of many sources: the widths are those of the true levels, within a tenth."""
    errors, names, studies, rows = drawn(1, 4000, runs=4)
    found = variation_of(errors, names, studies, rows, np.zeros(0))
    for row in (
        {},
        {"experts": True},
        {"assumed": True, "stack_sources": 0},
        {"framework_measured": False, "stack_sources": 0},
        {"accelerator_sources": 0, "generation_sources": 2},
    ):
        one = evidence(row)
        assert found.sizes(one)[0] == pytest.approx(TRUE.sizes(one)[0], rel=0.1)


@each_row("seed", [2, 3, 4])
def test_new_sources_lie_inside_as_often_as_said(seed: int) -> None:
    """Intervals from 40 sources hold `LEVEL` of the runs of others, within the sampling error.

    40 calibrating sources are worth some 40 draws, so that three standard deviations are
    3 sqrt(0.8 x 0.2 / 40) = 0.19.
    """
    found = variation_of(*drawn(seed, 40), np.zeros(0))
    errors, _, _, rows = drawn(seed + 100, 1000, runs=3)
    inside = float((np.abs(errors) <= found.sizes(rows)).mean())
    assert inside == pytest.approx(LEVEL, abs=0.19)


def test_levels_of_software_widen_the_interval_of_unknown_software() -> None:
    """Ten frameworks far off, or hardly; others keep their width, but for the last scale."""
    errors, names, studies, rows = drawn(5, 60)
    near, far = (
        variation_of(errors, names, studies, rows, np.full(10, size)) for size in (0.05, 1.0)
    )
    assert far.sources["software"] > 2 * near.sources["software"]
    known = evidence({})
    assert far.sizes(known)[0] == pytest.approx(near.sizes(known)[0], rel=0.2)


def test_the_order_and_the_names_of_runs_do_not_count() -> None:
    """Only who shares a source and a study."""
    errors, names, studies, rows = drawn(6, 20, runs=5)
    order = np.random.default_rng(0).permutation(len(errors))
    moved = Evidence(**{name: getattr(rows, name)[order] for name in PLAIN})
    _, numbers = np.unique(-studies[order], return_inverse=True)
    one = variation_of(errors, names, studies, rows, np.zeros(0))
    other = variation_of(errors[order], np.char.add("x", names)[order], numbers, moved, np.zeros(0))
    for kind in ("runs", "sources"):
        assert getattr(one, kind) == pytest.approx(getattr(other, kind), rel=1e-6)


def test_errors_of_twice_the_size_have_intervals_of_almost_twice_the_size() -> None:
    """The priors hold them back a little."""
    errors, names, studies, rows = drawn(7, 60)
    one = variation_of(errors, names, studies, rows, np.zeros(0))
    two = variation_of(2 * errors, names, studies, rows, np.zeros(0))
    known = evidence({})
    assert 1.8 < two.sizes(known)[0] / one.sizes(known)[0] < 2.05


def test_evidence_is_by_row() -> None:
    """Columns of one length, in the order of the levels."""
    rows = evidence({}, {"experts": True}, {"framework_measured": False})
    assert rows.of_runs().shape == (3, 3)
    assert rows.of_sources()[:, :2].tolist() == [[1, 0], [1, 1], [1, 0]]
    assert rows.of_sources()[:, 4].tolist() == [0, 0, 1]
    assert replace(rows, assumed=~rows.assumed).of_runs()[:, 2].tolist() == [1, 1, 1]

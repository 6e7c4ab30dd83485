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
    side_quantiles,
    variance_components,
    variation_of,
)
from shardwise.arrays import Floats, Ints

some = examples(60)
RUN_LEVELS = ("run", "experts", "assumed", "eager", "adapters")
SOURCE_LEVELS = (
    *("source", "experts", "assumed", "eager", "adapters"),
    *("release", "stack", "software", "pair", "accelerator", "generation"),
)
PLAIN: dict[str, Any] = {
    "experts": False,
    "assumed": False,
    "eager": False,
    "adapters": False,
    "tuned": 0,
    "framework_measured": True,
    "release_sources": 1,
    "stack_sources": 2,
    "pair_sources": 5,
    "accelerator_sources": 3,
    "generation_sources": 4,
}


COUNTED = sorted({"assumed", "framework_measured", *(n for n in PLAIN if n.endswith("_sources"))})


def evidence(*rows: dict[str, Any]) -> Evidence:
    """Rows like `PLAIN` but for what is said."""
    described = [PLAIN | row for row in rows]
    return Evidence(**{name: np.array([row[name] for row in described]) for name in PLAIN})


def levels(*values: float) -> Variation:
    """Five levels of runs and eleven of sources."""
    return Variation(
        runs=dict(zip(RUN_LEVELS, values[:5], strict=True)),
        sources=dict(zip(SOURCE_LEVELS, values[5:], strict=True)),
    )


def test_what_is_known_adds_nothing_by_hand() -> None:
    """Each level by its share: the mean of n sources leaves 1 / (1 + n) of it."""
    of_runs = (1, 20, 300, 4_000, 50_000)
    found = levels(*of_runs, 6e5, 7e6, 8e7, 9e8, 1e10, 2e11, 3e12, 4e13, 6e14, 8e15, 5e16)
    base = 6e5 + 2e11 / 2 + 3e12 / 3 + 6e14 / 6 + 8e15 / 4 + 5e16 / 5
    plain = evidence({})
    assert (found.of_runs(plain)[0], found.of_sources(plain)[0]) == (1, base)
    size = NORMAL_QUANTILE * (1 + base) ** 0.5
    assert found.sizes(plain) == (pytest.approx([size]), pytest.approx([size]))
    for name, run, source in zip(RUN_LEVELS[1:], of_runs[1:], (7e6, 8e7, 9e8, 1e10), strict=True):
        one = evidence({name: True})
        assert (found.of_runs(one)[0], found.of_sources(one)[0]) == (1 + run, base + source)
    unknown = evidence({"framework_measured": False, "stack_sources": 0})
    assert found.of_sources(unknown)[0] == base + 4e13 + 3e12 * 2 / 3
    elsewhere = evidence({"accelerator_sources": 0, "generation_sources": 1, "pair_sources": 0})
    more = 8e15 * 3 / 4 + 5e16 * 3 / 10 + 6e14 * 5 / 6
    assert found.of_sources(elsewhere)[0] == pytest.approx(base + more)


@each_row(("tuned", "slower", "faster"), [(0, 1, 1), (1, 0, 1), (-1, 1, 0)])
def test_levels_of_software_lie_on_one_side_by_hand(tuned: int, slower: int, faster: int) -> None:
    """Of code tuned by hand, or hobby code, while no run of it was measured."""
    found = levels(*[0.0] * 4, 1.0, *[0.0] * 5, 4.0, 9.0, 16.0, 0.0, 0.0, 0.0)
    found = replace(found, runs=found.runs | {"run": 1.0})
    new = {"framework_measured": False, "release_sources": 0, "stack_sources": 0}
    sizes = found.sizes(evidence(new | {"tuned": tuned}))
    for size, has in zip(sizes, (slower, faster), strict=True):
        assert size[0] == pytest.approx(NORMAL_QUANTILE * (1 + 29 * has) ** 0.5)
    known = found.sizes(evidence({"tuned": tuned}))
    assert known.slower[0] == known.faster[0] == found.sizes(evidence({})).slower[0]


@some
@given(st.lists(st.floats(0, 1), min_size=16, max_size=16), st.sampled_from(COUNTED))
def test_who_knows_more_has_no_wider_interval(values: list[float], name: str) -> None:
    """Of every level, whatever the variances."""
    less = {"assumed": True, "framework_measured": False}.get(name, 0)
    more = {"assumed": False, "framework_measured": True}.get(name, 1)
    found = levels(*values)
    for before, after in found.sizes(evidence({name: less}, {name: more})):
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

TRUE = levels(
    *(0.05**2, 0.08**2, 0.04**2, 0.05**2, 0.05**2),
    *(0.06**2, 0.08**2, 0.06**2, 0.06**2, 0.06**2),
    *(0.1**2, 0.1**2, 0.2**2, 0.1**2, 0.1**2, 0.1**2),
)


def drawn(
    seed: int, sources: int, runs: int = 12
) -> tuple[Floats, np.ndarray[Any, Any], Ints, Evidence]:
    """Errors of sources with the levels of `TRUE`, and what each rests on."""
    random = np.random.default_rng(seed)
    described = [
        {
            "experts": bool(random.random() < 0.3),
            "assumed": bool(random.random() < 0.4),
            "eager": bool(random.random() < 0.3),
            "adapters": bool(random.random() < 0.3),
            "tuned": 0,
            "framework_measured": bool(random.random() < 0.85),
            "release_sources": int(random.integers(0, 3)),
            "stack_sources": int(random.integers(0, 4)),
            "pair_sources": int(random.integers(0, 4)),
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
    found = variation_of(errors, names, studies, rows)
    for row in (
        {},
        {"experts": True},
        {"assumed": True, "stack_sources": 0},
        {"framework_measured": False, "stack_sources": 0},
        {"accelerator_sources": 0, "generation_sources": 2},
    ):
        one = evidence(row)
        for size, true in zip(found.sizes(one), TRUE.sizes(one), strict=True):
            assert size[0] == pytest.approx(true[0], rel=0.1)


@each_row("seed", [2, 3, 4])
def test_new_sources_lie_inside_as_often_as_said(seed: int) -> None:
    """Intervals from 40 sources hold `LEVEL` of the runs of others, within the sampling error.

    40 calibrating sources are worth some 40 draws, so that three standard deviations are
    3 sqrt(0.8 x 0.2 / 40) = 0.19.
    """
    found = variation_of(*drawn(seed, 40))
    errors, _, _, rows = drawn(seed + 100, 1000, runs=3)
    sizes = found.sizes(rows)
    inside = float(((-sizes.slower <= errors) & (errors <= sizes.faster)).mean())
    assert inside == pytest.approx(LEVEL, abs=0.19)


def test_the_side_that_errors_are_on_is_wider_by_hand() -> None:
    """Of 10 sources, half are three times as far on the slow side; mirrored ones count half."""
    names = np.array([f"source {n}" for n in range(10)])
    deviations = np.array([-3.0] * 5 + [1.0] * 5)
    assert side_quantiles(deviations, names) == (3.0, 3.0)
    # With a level of 0.94 each side leaves 0.9 of 15 votes: one of ten mirrored ones is too few.
    few = np.array([-3.0, *[1.0] * 9])
    assert side_quantiles(few, names) == (3.0, 1.0)
    assert side_quantiles(-few, names) == (1.0, 3.0)


def test_many_runs_of_a_source_have_one_vote() -> None:
    """Of both sides."""
    names = np.array([f"source {n}" for n in range(10)])
    few = np.array([-3.0, *[1.0] * 9])
    more = np.concatenate([few, [9.0] * 50, [1.0] * 4950])
    longer = np.concatenate([names, ["source 9"] * 5000])
    assert side_quantiles(more, longer) == side_quantiles(few, names)


def test_the_order_and_the_names_of_runs_do_not_count() -> None:
    """Only who shares a source and a study."""
    errors, names, studies, rows = drawn(6, 20, runs=5)
    order = np.random.default_rng(0).permutation(len(errors))
    moved = Evidence(**{name: getattr(rows, name)[order] for name in PLAIN})
    _, numbers = np.unique(-studies[order], return_inverse=True)
    one = variation_of(errors, names, studies, rows)
    other = variation_of(errors[order], np.char.add("x", names)[order], numbers, moved)
    for kind in ("runs", "sources"):
        assert getattr(one, kind) == pytest.approx(getattr(other, kind), rel=1e-6)


def test_errors_of_twice_the_size_have_intervals_of_almost_twice_the_size() -> None:
    """The priors hold them back a little."""
    errors, names, studies, rows = drawn(7, 60)
    one = variation_of(errors, names, studies, rows)
    two = variation_of(2 * errors, names, studies, rows)
    known = evidence({})
    assert 1.8 < two.sizes(known).slower[0] / one.sizes(known).slower[0] < 2.05


def test_evidence_is_by_row() -> None:
    """Columns of one length, in the order of the levels."""
    rows = evidence({}, {"experts": True}, {"framework_measured": False})
    assert rows.of_runs().shape == (3, 5)
    assert rows.of_sources()[:, :2].tolist() == [[1, 0], [1, 1], [1, 0]]
    assert rows.of_sources()[:, 7].tolist() == [0, 0, 1]
    assert replace(rows, assumed=~rows.assumed).of_runs()[:, 2].tolist() == [1, 1, 1]

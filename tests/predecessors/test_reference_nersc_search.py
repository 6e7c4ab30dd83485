"""NERSC's searches, against its stored results and against trying everything one by one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nersc_runs import BATCH, RUNS, nersc_model, nersc_system
from profiles import examples
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.nersc.reference import (
    METHODS,
    NerscModel,
    configuration_words,
    count,
    search,
    statistics,
)
from shardwise.predecessors.nersc.reference import optimum as module
from shardwise.predecessors.nersc.reference.optimum import space_of

SMALL = NerscModel(l=512, e=1536, h=12, depth=6, f=6144)
FEASIBLE = {optimum["point"] for optimum in RUNS["optima"]}


def _found(point, **more):
    model, method, system, domain, gpus, _ = RUNS["points"][point]
    limits = {"gpus": gpus, "global_batch": BATCH, "domain": domain}
    return search(nersc_model(model), nersc_system(system), method, **limits, **more)


@each_row("top", RUNS["top"])
def test_searches_find_the_stored_ten_best_in_their_order(top):
    """Configuration by configuration with its throughput; fewer where fewer are feasible."""
    found = _found(RUNS["optima"][top["optimum"]]["point"])
    assert [one.throughput for one in found.best] == pytest.approx(top["throughput"], rel=1e-12)
    words = [
        configuration_words(one.configuration)
        | {name: value for name, value in one.statistics.items() if name.startswith("nv_")}
        for one in found.best
    ]
    assert words == top["configs"]
    assert len(words) == min(10, found.feasible)


@each_row("method", METHODS)
def test_stored_searches_without_a_feasible_configuration_find_none(method):
    """305 of them: every candidate needs more than there is."""
    seen = 0
    for point, (_, tried, system, *_, candidates) in enumerate(RUNS["points"]):
        if tried == method and point not in FEASIBLE:
            found = _found(point)
            assert (found.candidates, found.feasible, found.best) == (candidates, 0, ())
            if candidates:
                assert found.least_memory > nersc_system(system).hbm_capacity
            seen += 1
    assert seen > 50


def test_statistics_of_what_is_found_are_those_of_the_configuration():
    """In the order of those, its throughput the batch over its time."""
    found = _found(RUNS["top"][0]["optimum"], top_n=3)
    system = nersc_system(RUNS["points"][RUNS["top"][0]["optimum"]][2])
    assert len(found.best) == 3
    for one in found.best:
        alone = statistics(nersc_model("gpt3_1T"), system, one.configuration)
        assert list(one.statistics) == list(alone)
        assert one.statistics == alone
        assert one.throughput == BATCH / one.statistics["t"]


# Trying everything


def _divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


def _numbers_of_panels(model, method, m1, m2):
    if method != "2d":
        return [1]
    start = max(m1, m2)
    if model.e // start < 512:
        return [start]
    every = [start * 2**i for i in range(math.ceil(math.log2(model.e // start)))]
    return [n for n in every if model.e % n == 0 and model.e // n >= 512]


def _dimensions(model, method, gpus):
    for m1 in _divisors(gpus):
        width = 3 * model.e // m1 if method == "1d" else model.e // m1
        if model.h % m1 or model.e % m1 or width < 128:
            continue
        for m2 in [1] if method == "1d" else _divisors(gpus // m1):
            divides = method != "2d" or model.e % m2 == 0
            if divides and (method == "1d" or model.l // m2 >= 128):
                yield m1, m2


def _layouts(model, method, gpus, batch):
    for m1, m2 in _dimensions(model, method, gpus):
        parts = {"1d": m1, "2d": m2, "2d-seqp": m1 * m2}[method]
        for pp in _divisors(min(gpus // (m1 * m2), model.depth)):
            dp, rest = divmod(gpus, m1 * m2 * pp)
            if rest or model.depth % pp or batch % dp:
                continue
            micro = (b for b in _divisors(batch // dp) if b * model.l % parts == 0)
            yield from ((m1, m2, pp, dp, b) for b in micro)


def tried_one_by_one(model, method, gpus, batch, domain):
    """Every configuration in nested loops: (m1, m2, pp, dp, b, nb, t1, t2, t_dp, t_pp)."""
    return [
        (m1, m2, pp, dp, b, nb, *inside)
        for m1, m2, pp, dp, b in _layouts(model, method, gpus, batch)
        for nb in _numbers_of_panels(model, method, m1, m2)
        for inside in _filling((m1, m2, dp, pp), gpus, domain)
    ]


def _filling(groups, gpus, domain):
    if gpus <= domain:
        return [groups]
    parts = itertools.product(*map(_divisors, groups))
    return [part for part in parts if math.prod(part) == domain]


@examples(40)
@given(
    method=st.sampled_from(METHODS),
    gpus=st.sampled_from([1, 2, 4, 6, 8, 12, 16, 24, 36, 48]),
    batch=st.sampled_from([1, 6, 16, 24]),
    domain=st.sampled_from([1, 2, 4, 6, 8, 12]),
)
def test_the_space_is_what_nested_loops_try(method, gpus, batch, domain):
    """The same configurations in the same order, whatever divides what."""
    space = space_of(SMALL, method, gpus, batch, domain)
    columns = space.candidates(np.arange(len(space.layouts)))
    names = ("m1", "m2", "pp", "dp", "b", "nb", "t1", "t2", "t_dp", "t_pp")
    found = list(zip(*(getattr(columns, name).tolist() for name in names), strict=True))
    assert found == tried_one_by_one(SMALL, method, gpus, batch, domain)
    assert count(SMALL, method, gpus=gpus, global_batch=batch, domain=domain) == len(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [1, 100, 1 << 16])
def test_the_search_finds_the_best_of_all_that_fit(monkeypatch, method, chunk):
    """In any pieces: every configuration alone, those that fit by throughput, first tried first."""
    monkeypatch.setattr(module, "_CHUNK", chunk)
    # Equal networks without latency: many configurations are equally fast.
    same = {"nvlink_bandwidth": 100, "ib_bandwidth": 100, "nvlink_latency": 0, "ib_latency": 0}
    system = nersc_system("A100", 4).model_copy(update=same)
    space = space_of(SMALL, method, 8, 8, 4)
    columns = space.candidates(np.arange(len(space.layouts)))
    every = [columns.row(index, method, 8) for index in range(len(columns))]
    known = [(statistics(SMALL, system, one), one) for one in every]
    memory = sorted(stats["mem"] for stats, _ in known)
    capacity = memory[len(memory) // 2]  # fits: only more is too much
    tight = system.model_copy(update={"hbm_capacity": capacity})
    result = search(SMALL, tight, method, gpus=8, global_batch=8, domain=4, top_n=25)
    fitting = [(8 / stats["t"], one) for stats, one in known if stats["mem"] <= capacity]
    best = sorted(fitting, key=lambda pair: -pair[0])[:25]
    assert len({rate for rate, _ in best}) < len(best)
    assert [(one.throughput, one.configuration) for one in result.best] == best
    assert (result.candidates, result.feasible) == (len(every), len(fitting))
    assert len(fitting) < len(every)
    assert result.least_memory == memory[0]


def test_a_space_may_be_empty():
    """Nothing divides, or nothing fills the domains."""
    system = nersc_system("A100")
    nothing = search(SMALL, system, "1d", gpus=7, global_batch=4, domain=8)
    assert (nothing.layouts, nothing.candidates, nothing.least_memory) == (0, 0, None)
    unfilled = search(SMALL, system, "1d", gpus=12, global_batch=12, domain=8)
    assert unfilled.layouts > 0
    assert (unfilled.candidates, unfilled.feasible, unfilled.best) == (0, 0, ())


def test_progress_reaches_the_end():
    """Counted in feasible candidates."""
    seen = []
    result = _found(RUNS["top"][0]["optimum"], progress=lambda *now: seen.append(now))
    assert seen[-1] == (result.feasible, result.feasible)


def test_limits_that_are_not_allowed_are_refused():
    """All of them at once."""
    system = nersc_system("A100")
    with pytest.raises(InputError) as caught:
        search(SMALL, system, "3d", gpus=0, global_batch=-1, domain=2**40, top_n=0)
    assert str(caught.value).splitlines() == [
        "gpus: 0: must be from 1 to 2147483648",
        "global_batch: -1: must be from 1 to 2147483648",
        "domain: 1099511627776: must be from 1 to 2147483648",
        "top_n: 0: must be from 1 to 2147483648",
        "method: '3d': allowed: 1d, 2d, 2d-seqp",
    ]

"""Sweeps: every point is what a search, or an estimate, on its system gives."""

import math
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples, sampled
from rows import each_row, first_of
from shardwise import InputError, SweepResult, System, estimate, search, sweep
from shardwise.config.system_columns import figures_of, with_figures
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.search.candidates import Candidates
from shardwise.planning.sweep.axes import figure_names, influencing_figures, varied_axes
from shardwise.planning.sweep.points import Grid

pytestmark = pytest.mark.any_software

PLAIN = {"stack": samples.stack().to_dict()}
TINY = {"gpus": 16, "gbs": 64, "zero": 1, "recompute": "none", "tp_overlap": "none"} | PLAIN
TINY |= {
    "scope": "full",
    "fused_activation": False,
    "placement": "tp-cp-dp-pp",
    "tp_exchange": "rs_ag",
    "tp_regather": True,
    "dp_overlap": True,
}


def system(**fields):
    """Two tiers that start at once, a second memory, and a price."""
    memory = [
        {"name": "hbm", "capacity": 2e6, "bandwidth": 1e12},
        {"name": "host", "capacity": 4e6, "bandwidth": 1e11},
    ]
    plain = samples.system(memory=memory).to_dict() | fields
    price = {"usd_per_accelerator_hour": 2, "as_of": "2026-01-01", "source": "the tests"}
    return System.validated(plain | {"price": price})


def systems_of(model, base, vary):
    grid = Grid.of(model, [base], varied_axes(vary, [base]), together=False)
    return [point.system for point in grid.points]


def same(plan, result):
    """Whether a plan of a sweep is the estimate of a search."""
    assert plan.strategy == result.strategy
    assert plan.step_time_s == pytest.approx(result.step_time_s, rel=1e-12)
    for part in TIME_PARTS:
        close = pytest.approx(result.time_s[part], rel=1e-9, abs=1e-12 * result.step_time_s)
        assert plan.time_s[part] == close
    assert plan.fits == result.fits
    assert plan.mfu == pytest.approx(result.mfu, rel=1e-12)
    assert plan.memory_bytes["reserved"] == result.memory_bytes.reserved
    assert plan.memory_bytes["capacity"] == result.memory_bytes.capacity
    assert plan.usd_per_billion_tokens == pytest.approx(result.cost.usd_per_billion_tokens)


@pytest.mark.parametrize(
    ("vary", "more"),
    first_of(
        3,
        [
            ({"inside.bandwidth": "0.1x,1x", "hbm.capacity": "0.3x,0.5x,2x"}, {"top": 3}),
            (
                {"host.capacity": "0.01x,1x", "host.bandwidth": "0.1x,10x", "hbm.capacity": "0.4x"},
                {},
            ),
            ({"matrix": "0.2x,5x", "price": "0.5x,2x"}, {"objective": "tokens_per_dollar"}),
            ({"domain": "4,16", "between.bandwidth": "0.1x,1x"}, {}),
            ({"hbm.capacity": "0.4x,1x"}, {"recompute": "full", "recompute_layers": "fit"}),
            ({"hbm.bandwidth": "0.1x,1x"}, {"gpus": [8, 16], "objective": "tokens_per_s_per_gpu"}),
            ({"hbm.capacity": "1.5 MB, 2 MB"}, {"reserve": 2**18, "max_memory": 1.6e6}),
        ],
    ),
    ids=["room", "host", "dollars", "domain", "kept", "scales", "reserve"],
)
def test_a_point_is_the_search_on_its_system(vary, more):
    base, model = system(), samples.model()
    asked = TINY | more
    result = sweep(model, base, vary=vary, **asked)
    expected = systems_of(model, base, vary)
    assert len(result.points) == len(expected)
    somewhere = False
    for point, there in sampled(zip(result.points, expected, strict=True), 2):
        found = search(model, there, **({"top": 1, "all_variants": True} | asked))
        assert len(point.best) == len(found.best)
        for plan, full in zip(point.best, found.best, strict=True):
            same(plan, full)
        if found.best:
            somewhere = True
            assert point.problem is None
        else:
            assert point.rejected == found.rejected
            assert point.problem.startswith(f"none of {found.candidates:,} strategies is feasible")
    assert somewhere
    assert result.searched
    assert result.complete


def test_axes_that_advance_together_have_rooms_of_their_own():
    """Not every system has every room: what fits into a smaller one elsewhere still counts."""
    base, model = system(), samples.model()
    vary = {"inside.bandwidth": "0.1x,1x,3x", "hbm.capacity": "5x,0.4x,4x"}
    found = sweep(model, base, vary=vary, together=True, **TINY)
    assert [point.at for point in found.points] == [(0, 0), (1, 1), (2, 2)]
    grid = systems_of(model, base, vary)
    for point, there in zip(found.points, (grid[0], grid[4], grid[8]), strict=True):
        same(point.best[0], search(model, there, top=1, all_variants=True, **TINY).best[0])


def test_what_fills_the_memory_to_the_last_byte_fits():
    base, model = system(), samples.model()
    best = sweep(model, base, fits=None, **TINY).points[0].best[0]
    room = best.memory_reserved_bytes
    found = sweep(model, base, vary={"hbm.capacity": [room, room - 1]}, fits=None, **TINY)
    assert found.points[0].best[0].strategy == best.strategy
    assert found.points[1].best[0].memory_reserved_bytes < room


def test_points_share_their_search_only_where_systems_are_alike(monkeypatch):
    """Points that differ in figures are searched together: candidates are enumerated once."""
    seen = []
    enumerated = Candidates.of

    def counted(*arguments):
        seen.append(arguments)
        return enumerated(*arguments)

    monkeypatch.setattr(Candidates, "of", counted)
    vary = {"inside.bandwidth": "1x,2x", "hbm.capacity": "1x,2x", "domain": "4,8", "pp": "1,2"}
    result = sweep(samples.model(), system(), vary=vary, **TINY)
    assert len(result.points) == 16
    assert len(seen) == 4


def test_models_and_fields_are_varied_too():
    base, model = system(), samples.model(seq_len=None, max_positions=64)
    fields = TINY | {"gpus": 8, "top": 1, "fits": None}
    result = sweep(model, base, vary={"seq_len": "64", "depth": "2,4", "tp": "1,2"}, **fields)
    assert [axis.kind for axis in result.axes] == ["model", "model", "strategy"]
    for point in result.points:
        layers = samples.layer(count=point.values["depth"])
        smaller = samples.model(layers, max_positions=64)
        own = {"seq_len": point.values["seq_len"], "tp": point.values["tp"]}
        same(point.best[0], search(smaller, base, all_variants=True, **fields, **own).best[0])
    wide = sweep(samples.model(), base, vary={"hidden": "128"}, **fields).points[0]
    attention = samples.layer(attention={"heads": 16, "kv_heads": 16}, mlp={"ffn": 512})
    same(
        wide.best[0],
        search(samples.model(attention, hidden=128), base, all_variants=True, **fields).best[0],
    )


FIXED = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 32, "micro_batch_size": 2} | PLAIN


def test_a_strategy_held_fixed_is_the_estimate_at_every_point():
    base, model = system(), samples.model()
    vary = {
        "inside.bandwidth": "0.1x,1x",
        "domain": "4,8",
        "tp": "1,2,3",
        "hbm.capacity": "0.1x,1x",
    }
    result = sweep(model, base, strategy=FIXED, vary=vary)
    assert not result.searched
    for point in result.points:
        grid = {name: value for name, value in vary.items() if name != "tp"}
        there = systems_of(model, base, grid)[point.at[0] * 4 + point.at[1] * 2 + point.at[3]]
        strategy = FIXED | {"tp": point.values["tp"]}
        if point.values["tp"] == 3:
            with pytest.raises(InputError) as refused:
                estimate(model, there, strategy)
            assert point.problem == str(refused.value).removeprefix("strategy: ")
            assert point.best == ()
            continue
        same(point.best[0], estimate(model, there, strategy))
    assert {plan.fits for point in result.points for plan in point.best} == {True, False}


def test_data_parallel_ranks_are_what_other_degrees_leave():
    strategy = FIXED | {"dp": 4}
    found = sweep(samples.model(), system(), strategy=strategy, vary={"tp": "1,2,4"})
    assert [point.best[0].strategy["dp"] for point in found.points] == [8, 4, 2]


def test_rates_alone_make_times_that_fall_as_one_over_the_rate():
    """No overlap: t = C / P + R, so t(1) - t(2) = C / 2 is twice t(2) - t(4) = C / 4."""
    plain = samples.system(processing="no_overlap")
    for name in ("matrix", "vector", "hbm.bandwidth", "between.bandwidth"):
        result = sweep(samples.model(), plain, strategy=FIXED, vary={name: "1x,2x,4x"})
        one, two, four = (point.best[0].step_time_s for point in result.points)
        assert one > two
        assert one - two == pytest.approx(2 * (two - four), rel=1e-6)


def test_domains_beyond_the_node_bring_more_under_the_fast_links():
    """32 accelerators exchange gradients over 10 GB/s each, or 100 GB/s inside one domain.

    A ring of 32 passes 2 x 31 / 32 of the gradients; within nodes of 8 the slower tier passes as
    much in 8 parts at once: the fast links take 100 / 80 as long as the slow ones do together.
    """
    strategy = {"gpus": 32, "gbs": 32, "zero": 0, "dp_overlap": False} | PLAIN
    result = sweep(samples.model(), samples.system(), strategy=strategy, vary={"domain": "8,32,64"})
    eight, whole, more = (point.best[0].time_s["dp_comm"] for point in result.points)
    gradients = result.points[0].best[0].memory_bytes["gradients"]
    assert whole == pytest.approx(2 * 31 / 32 * gradients / 100e9, rel=1e-6)
    assert eight == pytest.approx(2 * 31 / 32 * gradients / 80e9, rel=1e-6)
    assert more == whole
    assert result.assumed == (
        "sample, domain 32: nodes of 8; the figures of the tier apply to all 32",
        "sample, domain 64: nodes of 8; the figures of the tier apply to all 64",
    )


MONOTONE = [
    *("matrix", "vector", "matmul.efficiency", "hbm.bandwidth", "hbm.capacity", "host.bandwidth"),
    *("nvlink.bandwidth", "nvlink.latency", "nvlink.efficiency", "fabric.bandwidth"),
    *("fabric.latency", "nics", "memory_bound.launch", "attention.launch"),
]


@given(
    base=st.sampled_from(["h100-sxm", "b200-sxm", "gb200-nvl72", "v100-sxm-32gb"]),
    figure=st.sampled_from(MONOTONE),
    start=st.floats(0.1, 4),
    gpus=st.sampled_from([4, 16, 72]),
    tp=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved"]),
)
@examples(10)
def test_more_of_a_figure_is_never_slower(base, figure, start, gpus, tp, schedule):
    """Twice a rate, bandwidth or capacity never lengthens the best step; nor half a latency.

    Orders that fill bubbles with gradients of weights (zb-h1, zb-v, dualpipe) are left out: there
    a quicker pass may push another out of its place. So are shares, which end at one.
    """
    the_system = System.load(base)
    less = ("latency", "launch")
    factors = "1x,0.5x,0.25x" if figure.endswith(less) else "1x,2x,4x"
    if figure.endswith("efficiency"):
        factors = "0.25x,0.5x,1x"
    if figure not in (*figure_names(the_system), "nics"):
        figure = "outer." + figure.split(".")[-1]
    if figure not in ("nics", "hbm.capacity"):
        changed = {
            path: value * start
            for path, value in _values(the_system, figure)
            if not figure.endswith("efficiency")
        }
        the_system = with_figures(the_system, changed)
    dtype = "fp16" if "v100" in base else "bf16"
    space = {"gpus": gpus, "gbs": 2 * gpus, "tp": tp, "zero": 1, "dtype": dtype} | {
        "schedule": schedule,
        "vpp": 2 if schedule == "interleaved" else 1,
        "pp": 2 if schedule == "interleaved" else [1, 2],
        "recompute": "none",
        "placement": "tp-cp-dp-pp",
    }
    found = sweep("qwen3-4b", the_system, vary={figure: factors}, **space)
    times = [p.best[0].step_time_s if p.best else math.inf for p in found.points]
    for slow, fast in pairwise(times):
        assert fast == slow or fast <= slow * (1 + 1e-9)


def _values(the_system, figure):
    known = figures_of(the_system)
    return [(path, known[path]) for path in figure_names(the_system)[figure].paths]


def test_results_are_plain_values_and_frames():
    vary = {"inside.bandwidth": "1x,2x", "hbm.capacity": "0.01x,1x"}
    result = sweep(samples.model(), system(), vary=vary, top=2, **TINY)
    assert SweepResult.model_validate(result.to_dict()) == result
    frame = result.to_frame()
    assert frame["system"].to_list() == ["sample"] * 6
    assert frame["rank"].to_list() == [None, 1, 2, None, 1, 2]
    assert frame["inside.bandwidth"].to_list() == [1e11] * 3 + [2e11] * 3
    best = result.point(1, 1).best[1]
    assert frame["step_time_s"][5] == best.step_time_s
    assert frame["strategy.tp"][5] == best.strategy["tp"]
    assert frame["weights_bytes"][5] == best.memory_bytes["weights"]
    assert frame["problem"][0] == result.point(0, 0).problem
    assert result.axes[0].to_dict() == {
        "name": "inside.bandwidth",
        "kind": "system",
        "unit": "byte/s",
        "labels": ["1x", "2x"],
    }


def test_factors_on_unlike_figures_stay_factors():
    found = sweep(samples.model(), system(), strategy=FIXED, vary={"matrix": "1x,2x"})
    assert found.axes[0].unit == "x"
    assert [point.values["matrix"] for point in found.points] == [1.0, 2.0]


def test_an_interrupted_sweep_says_so():
    def stop(done, of):
        assert of == 4
        if done > 2:
            raise KeyboardInterrupt

    vary = {"pp": "1,2", "hbm.bandwidth": "1x,2x"}
    found = sweep(samples.model(), system(), vary=vary, progress=stop, **TINY)
    assert not found.complete
    assert len(found.points) == 2


@each_row(
    ("more", "told"),
    [
        ({"tp": 2, "vary": {"tp": "1,2"}}, "vary: tp: is set twice"),
        (
            {"vary": {"hbm.bandwidth": "1x,2x", "pp": "1"}, "together": True},
            "vary: axes that advance together need equally many values, not hbm.bandwidth 2, pp 1",
        ),
        (
            {"vary": dict.fromkeys(["hbm.bandwidth", "host.bandwidth", "matrix"], "1..6x:0.1x")},
            "vary: makes 132,651 points; at most 100,000",
        ),
        (
            {"vary": {"hbm.bandwidth": [1e12 + n for n in range(2001)]}, "together": True},
            "vary: makes 2,001 points; at most 2,000",
        ),
        (
            {"strategy": FIXED, "objective": "step_time", "vary": {"hbm.bandwidth": "1x"}},
            "sweep: objective: has no effect on a fixed strategy",
        ),
        (
            {"vary": "matrix=2x"},
            "vary: 'matrix=2x': must be values by name, as in {'nvlink.bandwidth': '1x,2x'}",
        ),
        ({"top": 0}, "top: 0: must be from 1 to 1000; save writes all strategies to a file"),
    ],
)
def test_contradictions_are_refused(more, told):
    with pytest.raises(InputError) as refused:
        sweep(samples.model(), system(), **(TINY if "strategy" not in more else {}), **more)
    assert str(refused.value) == told


@each_row(
    ("systems", "told"),
    [
        (["h100-sxm", "h100-sxm"], "system: one is listed twice"),
        ([], "system: is missing: name one or more"),
    ],
)
def test_systems_are_one_or_more_each_once(systems, told):
    with pytest.raises(InputError) as refused:
        sweep("llama3-8b", systems, gpus=8, gbs=8)
    assert str(refused.value) == told


def test_elasticities_are_shares_of_the_step_where_nothing_overlaps():
    """On one accelerator t = C / P + V / v + B / b: each elasticity is minus its share, sum -1."""
    plain = samples.system(processing="no_overlap")
    one = {"gpus": 1, "gbs": 4} | PLAIN
    point = sweep(samples.model(), plain, strategy=one, sensitivity=True).points[0]
    found = {influence.figure: influence for influence in point.sensitivity}
    rates = ("matrix.bf16", "vector.fp32", "hbm.bandwidth")
    assert sum(found[name].elasticity for name in rates) == pytest.approx(-1, abs=1e-7)
    now = point.best[0].step_time_s
    for name in rates:  # a share s falls to s / 2
        assert found[name].saved == pytest.approx(-found[name].elasticity / 2, abs=1e-7)
        assert found[name].step_time_s == pytest.approx(now * (1 - found[name].saved))
        assert found[name].factor == 2
        assert found[name].lost == pytest.approx(-found[name].elasticity, abs=1e-7)  # s to 2 s
        assert found[name].worse_factor == 0.5
    kinds = [influence.kind for influence in point.sensitivity]
    assert kinds == sorted(kinds, reverse=True)  # hardware, then fitted
    for kind in ("hardware", "constant"):
        own = [i for i in point.sensitivity if i.kind == kind]
        sizes = [abs(influence.elasticity) for influence in own]
        assert sizes == sorted(sizes, reverse=True)
    assert found["hbm.capacity"].elasticity == 0
    assert found["inside.bandwidth"].elasticity == 0


@each_row("base", ["h100-sxm", "gb200-nvl72"])
def test_a_world_twice_as_fast_takes_half_the_time(base):
    """Euler: t is homogeneous of degree -1 in all rates and inverse times."""
    strategy = {"gpus": 64, "tp": 4, "pp": 2, "gbs": 64, "zero": 1} | PLAIN
    point = sweep("llama3-8b", base, strategy=strategy, sensitivity=True).points[0]
    units = {"byte/s": 1, "FLOP/s": 1, "seconds": -1}
    total = sum(
        units.get(influence.unit, 0) * influence.elasticity for influence in point.sensitivity
    )
    assert total == pytest.approx(-1, abs=1e-6)
    # At the same peak, fewer multiprocessors are filled sooner by some kernels, not by all.
    helpful = [i for i in point.sensitivity if i.figure != "multiprocessors"]
    assert all(influence.saved > -1e-9 for influence in helpful)
    assert {i.figure for i in point.sensitivity} == {
        figure.name for figure in influencing_figures(System.load(base))
    }


@cache
def influences():
    """What every figure does to the best plan and to the search."""
    return sweep(samples.model(), system(), sensitivity=True, **TINY)


def test_what_a_figure_saves_and_costs_is_what_a_sweep_of_it_finds():
    """The best plan for changed hardware is searched again; constants keep the plan."""
    base, model, found = system(), samples.model(), influences()
    assert found.reoptimised
    point = found.points[0]
    now = point.best[0].step_time_s
    for influence in point.sensitivity:
        assert (influence.best_saved is not None) == (influence.kind == "hardware")
    some = ("matrix.bf16", "hbm.capacity", "between.bandwidth", "host.bandwidth", "inside.latency")
    seen = [influence for influence in point.sensitivity if influence.figure in some]
    assert {influence.figure for influence in seen} == set(some)
    for one in sampled(seen, 3):
        for factor, same_s, best_s, share in (
            (one.factor, one.step_time_s, one.best_step_time_s, one.best_saved),
            (one.worse_factor, one.worse_step_time_s, one.best_worse_step_time_s, one.best_lost),
        ):
            vary = {one.figure: f"{factor!r}x"}
            again = sweep(model, base, vary=vary, **TINY).points[0].best
            held = sweep(model, base, strategy=point.best[0].strategy, vary=vary).points[0].best[0]
            assert same_s == pytest.approx(held.step_time_s, rel=1e-12)
            if not again:
                assert (best_s, share) == (None, None)
                continue
            assert best_s == pytest.approx(again[0].step_time_s, rel=1e-12)
            assert abs(share) == pytest.approx(abs(1 - again[0].step_time_s / now), rel=1e-9)
            assert best_s <= same_s * (1 + 1e-12) or not held.fits
            if factor == one.worse_factor:
                assert one.worse_fits == held.fits


def test_a_fixed_plan_is_not_searched_again():
    """With the same effects on the plan itself; a fixed strategy has no search."""
    base, model, again = system(), samples.model(), influences()
    same = sweep(model, base, sensitivity=True, reoptimize=False, **TINY)
    assert not same.reoptimised
    for one, other in zip(again.points[0].sensitivity, same.points[0].sensitivity, strict=True):
        assert (other.best_saved, other.best_lost) == (None, None)
        assert (one.saved, one.lost) == (other.saved, other.lost)
    strategy = same.points[0].best[0].strategy
    fixed = sweep(model, base, strategy=strategy, sensitivity=True)
    assert not fixed.reoptimised
    assert fixed.points[0].sensitivity == same.points[0].sensitivity
    with pytest.raises(InputError, match="reoptimize: needs sensitivity"):
        sweep(model, base, reoptimize=True, **TINY)
    with pytest.raises(InputError, match="reoptimise: is set twice"):
        sweep(model, base, sensitivity=True, reoptimize=True, reoptimise=True, **TINY)
    assert not sweep(model, base, sensitivity=True, reoptimise=False, **TINY).reoptimised


@each_row("share", [0.0, 0.6])
def test_half_the_memory_may_leave_nothing_that_fits(share):
    """Neither the plan nor another fits; or half of it is less than is to stay free."""
    model, described = samples.model(), system().to_dict()
    tiny = TINY | {"tp": 2, "recompute": "full", "zero": 1, "offload_weights": False}
    tiny |= {"offload_activations": False, "offload_optimizer": False, "mbs": 1, "vpp": 1}
    tiny |= {"fits": None}
    plan = sweep(model, system(), **tiny).points[0].best[0]
    size = 1.01 * plan.memory_reserved_bytes / (1 - share)
    described["accelerator"]["memory"][0]["capacity"] = size
    small = System.validated(described)
    found = sweep(model, small, sensitivity=True, reserve=share * size, **tiny)
    halved = next(i for i in found.points[0].sensitivity if i.figure == "hbm.capacity")
    assert not halved.worse_fits
    assert (halved.best_lost, halved.best_worse_step_time_s) == (None, None)
    assert halved.best_saved is not None


@each_row("name", ["h100-sxm", "tpu-v5p", "gb200-nvl72"])
def test_figures_are_hardware_or_constants(name):
    """Bandwidths, latencies, capacities, rates and links are bought; the rest are constants."""
    figures = {figure.name: figure for figure in influencing_figures(System.load(name))}
    hardware = {name for name, figure in figures.items() if figure.is_hardware}
    ends = ("bandwidth", "capacity", "latency", "links", "shared_by", "cores", "nvme_read")
    ends += ("nvme_write",)
    for figure in figures:
        bought = figure.endswith(ends) or figure.startswith(("matrix.", "vector."))
        bought &= not figure.startswith(("attention", "memory_bound", "matmul", "compute"))
        assert (figure in hardware) == bought, figure

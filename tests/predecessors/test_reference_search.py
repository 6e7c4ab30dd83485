"""Calculon's searches, against our own runs of Calculon 0.1.0 and against trying everything."""

import itertools
import json
from functools import cache

import numpy as np
import pytest

from calculon_runs import DATA, RUNS, calculon_model, calculon_system
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.calculon.files import (
    COMM_TYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonExecution,
    CalculonModel,
)
from shardwise.predecessors.calculon.reference import (
    VERDICTS,
    Columns,
    count,
    evaluate,
    rows,
    search,
)

OPTIMA = {case["id"]: case for case in json.loads((DATA / "optima.json").read_bytes())}


# The runs are rounded to 12 digits.
close = {"rel": 1e-9, "abs": 0}


def _inputs(case):
    return calculon_model(case["model"]), calculon_system(case["system"], case["overrides"])


def _limits(case):
    return {"system": _inputs(case)[1], "model": _inputs(case)[0], **case["limits"]}


@each_row("name", list(OPTIMA))
def test_searches_find_calculons_optimum(name):
    """The same space, as many good executions, and the same best one with its statistics."""
    case = OPTIMA[name]
    found = search(**_limits(case), top_n=10)
    counts = (found.candidates, found.network_feasible, found.good, found.bad)
    assert counts == tuple(case[k] for k in ("candidates", "network_feasible", "good", "bad"))
    execution, stats = found.best[0]
    assert execution.to_dict() == case["best_execution"]
    assert {k: stats[k] for k in case["best_stats"]} == pytest.approx(case["best_stats"], **close)
    rates = [stats["sample_rate"] for _, stats in found.best]
    assert rates == pytest.approx(case.get("top10_sample_rates", rates), **close)
    assert rates == sorted(rates, reverse=True)
    assert sum(found.rejected.values()) == found.bad


def test_stopping_at_the_first_micro_batch_that_does_not_fit_tries_fewer():
    """Calculon's -m: 8,112 of 10,944 executions, the same best."""
    case = OPTIMA["A"]
    found = search(**_limits(case), mbs_break=True)
    assert found.candidates == case["candidates_mbs_break"]
    assert found.best[0][0].to_dict() == case["best_execution"]
    assert found.good + found.bad == found.candidates


@each_row(
    ("model", "procs", "batch", "candidates"),
    [
        ("gpt3-175B", 4096, 3072, 9_670_848),
        ("gpt3-175B", 512, 512, 6_582_816),
        ("megatron-1T", 3072, 3072, 7_002_336),
        ("turing-530B", 2240, 1920, 4_215_872),
        ("gpt3-175B", 64, 64, 3_232_128),
        ("megatron-5B", 8, 32, 366_320),
    ],
)
def test_the_whole_space_is_counted(model, procs, batch, candidates):
    """With tier-2 memory, as counted by Calculon's own search; twice that for both GeLUs."""
    limits = {"num_procs": procs, "max_batch_size": batch, "datatype": "float16"}
    limits |= {"model": calculon_model(model), "system": calculon_system("a100_80g")}
    assert count(**limits).candidates == candidates
    assert count(**limits, fused_activation="both").candidates == 2 * candidates


TINY = {"num_procs": 4, "max_batch_size": 5, "datatype": "float16"}


# Between the executions that fit and those that do not.
TIGHT = {"mem1.GiB": 1.6, "mem2.GiB": 0.5}


def _tiny():
    model = CalculonModel.parse(RUNS["models"]["megatron-126M"] | {"num_blocks": 6})
    return {"model": model, "system": calculon_system("a100_80g", TIGHT), **TINY}


def _layouts(num_procs, blocks):
    """Degrees, chunks and batch of section 1.14, in order, written as loops."""
    for tp in (t for t in (1, 2, 4) if num_procs % t == 0):
        for pp in (p for p in range(1, blocks + 1) if num_procs // tp % p == blocks % p == 0):
            dp = num_procs // tp // pp
            chunks = blocks // pp if pp > 1 else 1
            for v in (v for v in range(1, chunks + 1) if chunks % v == 0):
                yield tp, pp, dp, v, TINY["max_batch_size"] // dp * dp


def _by_hand(num_procs, blocks):
    """The space of section 1.14 as nested loops, by runs that differ in micro-batch and network."""
    on_off, off, nets, net = (True, False), (False,), (0, 1), (0,)
    words = ("float16", True, "multihead")
    for tp, pp, dp, v, batch in _layouts(num_procs, blocks):
        for mode, shard, comm in itertools.product(
            RECOMPUTES, on_off if dp > 1 else off, COMM_TYPES
        ):
            for redo, dp_overlap, overlap, weights, activations, state in itertools.product(
                on_off if comm == "rs_ag" and mode != "full" else off,
                on_off if dp > 1 else off,
                OVERLAPS if tp > 1 else ("none",),
                on_off,
                off if mode == "full" else on_off,
                on_off,
            ):
                values = (mode, v, shard, comm, overlap, redo, dp_overlap)
                values += (weights, activations, state, True)
                yield [
                    [
                        (num_procs, tp, pp, dp, tn, pn, dn, batch, m, *words, *values)
                        for tn, pn, dn in itertools.product(
                            *(nets if degree > 1 else net for degree in (tp, pp, dp))
                        )
                    ]
                    for m in range(1, batch // dp + 1)
                    if batch // dp % m == 0
                ]


@cache
def _tiny_space():
    """Every execution by hand, its verdict and its sample rate, and its place (run, m)."""
    keys = list(RUNS["cases"][0]["execution"])
    runs = list(_by_hand(4, 6))
    placed = [
        (run, m, dict(zip(keys, values, strict=True)))
        for run, groups in enumerate(runs)
        for m, group in enumerate(groups)
        for values in group
    ]
    table = Columns.of([CalculonExecution.parse(data) for *_, data in placed])
    tiny = _tiny()
    found = evaluate(tiny["model"], tiny["system"], table)
    return placed, found.verdict, found["sample_rate"]


def test_all_executions_come_in_calculons_order():
    """`rows` yields what nested loops over the space find feasible, in their order."""
    placed, verdict, rate = _tiny_space()
    found = [
        (columns.row(index).to_dict(), figures["sample_rate"][index])
        for columns, figures in rows(**_tiny())
        for index in range(len(columns))
    ]
    good = np.flatnonzero(verdict == 0)
    assert 0 < good.size < len(placed)
    assert [execution for execution, _ in found] == [placed[index][2] for index in good]
    assert [value for _, value in found] == rate[good].tolist()


def test_a_search_finds_what_trying_everything_finds():
    """Counts, reasons, and the best in order; the first tried of equal ones comes first."""
    placed, verdict, rate = _tiny_space()
    found = search(**_tiny(), top_n=50)
    order = sorted(np.flatnonzero(verdict == 0), key=lambda index: -rate[index])[:50]
    assert found.candidates == len(placed)
    assert found.good == np.count_nonzero(verdict == 0)
    assert found.rejected == {
        reason: np.count_nonzero(verdict == code)
        for code, reason in enumerate(VERDICTS)
        if code in verdict[verdict > 0]
    }
    assert {"mem_tier1", "mem_tier2", "network_not_filled"} & set(found.rejected)
    assert [execution.to_dict() for execution, _ in found.best] == [placed[i][2] for i in order]


def test_a_search_that_stops_growing_leaves_out_the_rest_of_the_run():
    """By hand: a run ends after the first micro-batch without a good execution."""
    placed, verdict, _ = _tiny_space()
    fits = {(run, m) for (run, m, _), code in zip(placed, verdict, strict=True) if code == 0}
    tried = [
        code
        for (run, m, _), code in zip(placed, verdict, strict=True)
        if all((run, smaller) in fits for smaller in range(m))
    ]
    found = search(**_tiny(), mbs_break=True)
    assert found.candidates == len(tried) < len(placed)
    assert found.good == tried.count(0)


def test_a_search_shows_its_progress():
    """It never goes back, and ends at the whole."""
    seen = []
    found = search(**_tiny(), progress=lambda done, whole: seen.append((done, whole)))
    assert seen == sorted(seen)
    assert seen[-1] == (found.candidates, found.candidates)


def test_a_search_without_a_good_execution_says_why():
    """Nothing fits in a thousandth of the memory."""
    tiny = _tiny() | {"system": calculon_system("a100_80g", {"mem1.GiB": 0.001})}
    found = search(**tiny)
    assert (found.good, found.best) == (0, ())
    assert found.rejected["mem_tier1"] > 0


def test_a_batch_smaller_than_the_replicas_leaves_layouts_out():
    """4 replicas cannot share 3 sequences."""
    fewer = count(**_tiny() | {"max_batch_size": 3}).candidates
    assert 0 < fewer < count(**_tiny()).candidates


@each_row(
    ("change", "told"),
    [
        ({"datatype": "float8"}, "datatype: 'float8': allowed: float16; did you mean 'float16'?"),
        ({"num_procs": 0}, "num_procs: 0: must be an integer of at least 1"),
        ({"max_batch_size": True}, "max_batch_size: true: must be an integer of at least 1"),
        ({"max_batch_size": 2**53}, "max_batch_size: 9007199254740992: a block of this model has"),
        ({"fused_activation": "all"}, "fused_activation: 'all': allowed: true, false, both"),
        ({"top_n": 0}, "top_n: 0: must be at least 1"),
    ],
)
def test_impossible_limits_are_refused(change, told):
    """One line that names the limit."""
    with pytest.raises(InputError) as caught:
        search(**_tiny() | change)
    assert str(caught.value).startswith(told)


def _by_cell(axes):
    """The first best execution of each combination by hand, by the values of the axes."""
    placed, verdict, rates = _tiny_space()
    best = {}
    for (_, _, data), code, rate in zip(placed, verdict, rates, strict=True):
        cell = tuple(data[axis] for axis in axes)
        if code == 0 and rate > best.get(cell, (None, 0))[1]:
            best[cell] = data, rate
    return best


@pytest.mark.parametrize(
    "axes", [("tensor_par", "pipeline_par"), ("activation_recompute",), ("microbatch_size",)]
)
def test_the_best_of_every_cell_is_the_first_best_by_hand(axes):
    """One per combination of values, with Calculon's rate; among them is the best of all."""
    expected = _by_cell(axes)
    found = search(**_tiny(), axes=axes)
    cells = {tuple(getattr(e, axis) for axis in axes): (e, s) for e, s in found.cells}
    assert len(cells) == len(found.cells) == len(expected)
    for cell, (data, rate) in expected.items():
        execution, statistics = cells[cell]
        assert execution.to_dict() == data
        assert statistics["sample_rate"] == pytest.approx(rate, rel=1e-12)
    assert found.best[0] in found.cells


@pytest.mark.parametrize("mbs_break", [False, True])
def test_every_feasible_execution_that_a_search_tries_is_passed_on(mbs_break):
    """As many as it counts, in Calculon's order, the best among them."""
    chunks = []
    found = search(**_tiny(), mbs_break=mbs_break, every=lambda *chunk: chunks.append(chunk))
    rates = np.concatenate([values["sample_rate"] for _, values in chunks])
    assert rates.size == found.good == sum(len(columns) for columns, _ in chunks)
    assert rates.max() == pytest.approx(found.best[0][1]["sample_rate"], rel=1e-12)
    if not mbs_break:
        _, verdict, by_hand = _tiny_space()
        assert rates == pytest.approx(by_hand[verdict == 0], rel=1e-12)


def test_an_unknown_axis_is_refused():
    """Fields of an execution that a search varies are allowed; of these the nearest are named."""
    with pytest.raises(InputError, match="'tensor_pra': did you mean 'tensor_par', "):
        search(**_tiny(), axes=("tensor_pra",))

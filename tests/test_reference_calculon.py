"""Calculon's formulas, against our own runs of Calculon 0.1.0 (see data/calculon/README.md)."""

import gzip
import itertools
import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import InputError
from shardwise.formats.calculon_files import (
    COMM_TYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonExecution,
    CalculonModel,
    CalculonSystem,
)
from shardwise.reference.calculon import (
    STAT_FIELDS,
    VERDICTS,
    Columns,
    Infeasible,
    count,
    evaluate,
    layer_statistics,
    rows,
    search,
    statistics,
)

DATA = Path(__file__).parent / "data/calculon"
RUNS = json.loads(gzip.decompress((DATA / "runs.json.gz").read_bytes()))
OPTIMA = {case["id"]: case for case in json.loads((DATA / "optima.json").read_bytes())}
FEASIBLE = [case for case in RUNS["cases"] if "stats" in case]
REFUSED = [case for case in RUNS["cases"] if "error" in case]
DETAILED = [case for case in RUNS["cases"] if "layers" in case]
# The runs are rounded to 12 digits.
close = {"rel": 1e-9, "abs": 0}


def _model(name):
    return CalculonModel.parse(RUNS["models"][name])


@cache
def _system(name, overrides="{}"):
    data = json.loads(json.dumps(RUNS["systems"][name]))
    for path, value in json.loads(overrides).items():
        *parents, last = path.split(".")
        target = data
        for key in parents:
            target = target[key]
        target[last] = value
    return CalculonSystem.parse(data)


def _inputs(case):
    return _model(case["model"]), _system(case["system"], json.dumps(case["overrides"]))


def _execution(case):
    return CalculonExecution.parse(case["execution"])


def _limits(case):
    return {"system": _inputs(case)[1], "model": _inputs(case)[0], **case["limits"]}


def test_the_statistics_have_calculons_names_in_its_order():
    """96 of them."""
    assert list(STAT_FIELDS) == RUNS["stat_fields"]


@pytest.mark.parametrize("case", FEASIBLE, ids=[case["id"] for case in FEASIBLE])
def test_every_statistic_of_every_run_is_reproduced(case):
    """README example, validation runs and random executions, training and inference."""
    found = statistics(*_inputs(case), _execution(case))
    expected = dict(zip(STAT_FIELDS, case["stats"], strict=True))
    missing = {name for name, value in expected.items() if value is None}
    assert {name for name, value in found.items() if value is None} == missing
    for name in expected.keys() - missing:
        assert found[name] == pytest.approx(expected[name], **close), name


@pytest.mark.parametrize("case", REFUSED, ids=[f"{c['id']}-{c['error']}" for c in REFUSED])
def test_what_calculon_refuses_is_refused_for_its_reason(case):
    """Each run that Calculon ends with an error."""
    with pytest.raises(Infeasible) as caught:
        statistics(*_inputs(case), _execution(case))
    assert caught.value.reason == case["error"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x000", "network 0 connects 8 processors, but 40 are placed on it (tensor, pipeline and"),
        ("x006", "network 0 must be filled, but the 5 processors placed on it do not divide its 8"),
        ("x004", "pipeline_interleaving 5 is more than the blocks per processor, 3"),
        ("x054", "pipeline_interleaving 5 does not divide the blocks per processor, 8"),
        ("x043", "offloading needs at least 3 blocks per processor; there are 1"),
        ("x001", "mem1 needs 162.013 GiB and has 80 GiB"),
        ("x106", "mem2 needs 710.876 GiB and has 512 GiB"),
    ],
)
def test_a_refusal_says_what_is_needed_and_what_there_is(name, sentence):
    """One sentence with the figures, for every reason."""
    (case,) = (case for case in REFUSED if case["id"] == name)
    with pytest.raises(Infeasible) as caught:
        statistics(*_inputs(case), _execution(case))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("case", DETAILED, ids=[case["id"] for case in DETAILED])
def test_every_field_of_every_operation_is_reproduced(case):
    """48 fields of 24 operations, or of 17 with overlap, under Calculon's names."""
    found = layer_statistics(*_inputs(case), _execution(case))
    assert [layer["name"] for layer in found] == [layer["name"] for layer in case["layers"]]
    for layer, expected in zip(found, case["layers"], strict=True):
        assert list(layer) == list(expected)
        assert layer == {
            name: value if name == "name" else pytest.approx(value, **close)
            for name, value in expected.items()
        }


def test_fused_operations_under_multiquery_keep_key_and_value_apart():
    """A fused query, a fork, and plain products: 20 operations."""
    execution = _execution(DETAILED[1]).model_copy(update={"attention_type": "multiquery"})
    found = layer_statistics(*_inputs(DETAILED[1]), execution)
    names = [layer["name"] for layer in found]
    assert names[2:6] == [
        "AttnBlock_Query_AG",
        "AttnBlock_KV_Fork",
        "AttnBlock_Key",
        "AttnBlock_Value",
    ]
    assert len(names) == 20


def test_operations_add_up_to_the_block():
    """Sums over the operations are the block's statistics."""
    case = DETAILED[0]
    whole = statistics(*_inputs(case), _execution(case))
    layers = layer_statistics(*_inputs(case), _execution(case))
    for layer_field, field in (
        ("fw_flops", "block_fw_flops"),
        ("wgrad_processing_time", "block_wgrad_time"),
        ("edgeblock_recomm_time", "edgeblock_recomm_time"),
        ("weight", "block_weight_space"),
        ("optimizer", "block_optimizer_space"),
    ):
        assert sum(layer[layer_field] for layer in layers) == pytest.approx(whole[field])


def test_a_block_that_keeps_memory_busy_has_no_offload_bandwidth():
    """Where Calculon divides by zero, the statistic is missing and the others stand."""
    system = _system("a100_80g", '{"processing_mode": "roofline"}')
    model = CalculonModel.parse(RUNS["models"]["megatron-126M"] | {"seq_size": 1})
    execution = CalculonExecution.parse(
        RUNS["cases"][0]["execution"]
        | dict.fromkeys(("num_procs", "tensor_par", "pipeline_par", "data_par"), 1)
        | {"batch_size": 1, "microbatch_size": 1, "optimizer_sharding": False}
        | {"activation_recompute": "none", "training": False}
    )
    found = statistics(model, system, execution)
    assert found["weight_offload_bw_req"] is None
    assert found["total_time"] > 0


# Executions in tables


@st.composite
def executions(draw):
    """Legal executions of a model of 12 blocks and 16 heads; some are infeasible."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 3, 5, 8]))
    dp = draw(st.sampled_from([1, 2, 16]))
    micro = draw(st.sampled_from([1, 2, 4]))
    recompute = draw(st.sampled_from(RECOMPUTES))
    comm = draw(st.sampled_from(COMM_TYPES))
    flag, net = st.booleans(), st.sampled_from([0, 1])
    training = draw(flag)
    redo = comm == "rs_ag" and recompute != "full" and draw(flag)
    return CalculonExecution.parse(
        {
            "num_procs": tp * pp * dp,
            "tensor_par": tp,
            "pipeline_par": pp,
            "data_par": dp,
            "tensor_par_net": draw(net),
            "pipeline_par_net": draw(net),
            "data_par_net": draw(net),
            "batch_size": dp * micro * draw(st.integers(1, 9)),
            "microbatch_size": micro,
            "datatype": draw(st.sampled_from(["float8", "float16"])),
            "fused_activation": draw(flag),
            "attention_type": draw(st.sampled_from(["multihead", "multiquery"])),
            "activation_recompute": recompute,
            "pipeline_interleaving": draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1,
            "optimizer_sharding": dp > 1 and draw(flag),
            "tensor_par_comm_type": comm,
            "tensor_par_overlap": draw(st.sampled_from(OVERLAPS)) if tp > 1 else "none",
            "seq_par_ag_redo": redo,
            "data_par_overlap": dp > 1 and training and draw(flag),
            "weight_offload": draw(flag),
            "activations_offload": draw(flag),
            "optimizer_offload": draw(flag),
            "training": training,
        }
    )


@settings(deadline=None, max_examples=40)
@given(
    table=st.lists(executions(), min_size=2, max_size=8),
    mode=st.sampled_from(["roofline", "no_overlap"]),
)
def test_a_row_of_a_table_is_that_execution_alone(table, mode):
    """To the last bit, whatever the other rows are."""
    model = _model("megatron-126M")
    system = _system("h100_80g_nvl8", json.dumps({"processing_mode": mode}))
    together = evaluate(model, system, Columns.of(table))
    for index, execution in enumerate(table):
        alone = evaluate(model, system, Columns.of([execution]))
        assert together.verdict[index] == alone.verdict[0]
        assert together.row(index) == alone.row(0)


@settings(deadline=None, max_examples=40)
@given(execution=executions())
def test_a_step_is_the_sum_of_its_parts(execution):
    """Total time adds up; nothing takes negative time but a bubble that uneven stages shorten."""
    found = evaluate(
        _model("megatron-126M"), _system("h100_80g_nvl8"), Columns.of([execution])
    ).row(0)
    parts = ["fw_time", "bw_time", "optim_step_time", "recompute_time", "recomm_exposed_time"]
    parts += [f"{axis}_comm_exposed_time" for axis in ("tp", "pp", "dp")]
    parts += ["fw_offload_exposed_time", "bw_offload_exposed_time"]
    if found["total_time"] is None:  # refused before anything is timed
        assert set(found.values()) == {None}
        return
    assert min(found[part] for part in parts) >= 0
    whole = sum(found[part] for part in parts) + found["bubble_time"]
    assert whole == pytest.approx(found["total_time"], rel=1e-12)


@given(table=st.lists(executions(), min_size=1, max_size=4))
@settings(max_examples=20)
def test_columns_give_back_their_executions(table):
    """Words become numbers and words again."""
    columns = Columns.of(table)
    assert [columns.row(index) for index in range(len(columns))] == table


# Searches


@pytest.mark.parametrize("name", list(OPTIMA))
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


@pytest.mark.parametrize(
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
    limits |= {"model": _model(model), "system": _system("a100_80g")}
    assert count(**limits).candidates == candidates
    assert count(**limits, fused_activation="both").candidates == 2 * candidates


TINY = {"num_procs": 4, "max_batch_size": 5, "datatype": "float16"}
# Between the executions that fit and those that do not.
TIGHT = '{"mem1.GiB": 1.6, "mem2.GiB": 0.5}'


def _tiny():
    model = CalculonModel.parse(RUNS["models"]["megatron-126M"] | {"num_blocks": 6})
    return {"model": model, "system": _system("a100_80g", TIGHT), **TINY}


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
    tiny = _tiny() | {"system": _system("a100_80g", '{"mem1.GiB": 0.001}')}
    found = search(**tiny)
    assert (found.good, found.best) == (0, ())
    assert found.rejected["mem_tier1"] > 0


def test_a_batch_smaller_than_the_replicas_leaves_layouts_out():
    """4 replicas cannot share 3 sequences."""
    fewer = count(**_tiny() | {"max_batch_size": 3}).candidates
    assert 0 < fewer < count(**_tiny()).candidates


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"datatype": "float8"}, "datatype: 'float8': allowed: float16; did you mean 'float16'?"),
        ({"num_procs": 0}, "num_procs: 0: must be an integer of at least 1"),
        ({"max_batch_size": True}, "max_batch_size: True: must be an integer of at least 1"),
        ({"max_batch_size": 2**53}, "max_batch_size: 9007199254740992: a block of this model has"),
        ({"fused_activation": "all"}, "fused_activation: 'all': allowed: true, false, both"),
        ({"top_n": 0}, "top_n: 0: must be at least 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_limits_are_refused(change, told):
    """One line that names the limit."""
    with pytest.raises(InputError) as caught:
        search(**_tiny() | change)
    assert str(caught.value).startswith(told)


def test_statistics_are_plain_numbers():
    """Ready for JSON: no numpy types, no NaN."""
    for case in FEASIBLE[:: max(1, len(FEASIBLE) // 10)]:
        found = statistics(*_inputs(case), _execution(case))
        assert {type(value) for value in found.values()} <= {float, type(None)}
        assert all(value is None or math.isfinite(value) for value in found.values())

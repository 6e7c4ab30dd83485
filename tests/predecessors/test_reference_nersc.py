"""NERSC's formulas, against its stored results and runs of its code (see data/nersc/README.md)."""

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
    NerscConfiguration,
    NerscModel,
    NerscSystem,
    check_together,
    configuration_words,
    count,
    layer_statistics,
    statistics,
)
from shardwise.predecessors.nersc.reference.layers import Columns, collective_time
from shardwise.predecessors.nersc.reference.optimum import statistics_of

close = {"rel": 1e-12, "abs": 1e-18}
LAYERS = RUNS["layers"]
SMALL = NerscModel(l=1024, e=512, h=8, depth=12, f=2048)


def configured(method, numbers, parts):
    """A configuration by the published names of its degrees and of its parts in a domain."""
    tensor = ("tp1", "tp2") if method != "1d" else ("tp",)
    inside = ("nv_tp1", "nv_tp2") if method != "1d" else ("nv_tp",)
    return NerscConfiguration(
        method=method,
        global_batch=BATCH,
        b=numbers["mbs"],
        nb=numbers.get("nb", 1),
        dp=numbers["dp"],
        pp=numbers["pp"],
        t_dp=parts["nv_dp"],
        t_pp=parts["nv_pp"],
        **dict(zip(("m1", "m2"), (numbers[name] for name in tensor), strict=False)),
        **dict(zip(("t1", "t2"), (parts[name] for name in inside), strict=False)),
    )


def of_layers(case):
    """Model, system and configuration of a run of the unmodified code."""
    names = {"t_dp": "tdp", "t_pp": "tpp"}
    fields = ("b", "m1", "m2", "t1", "t2", "dp", "pp", "t_dp", "t_pp")
    numbers = {name: case["params"][names.get(name, name)] for name in fields}
    configuration = NerscConfiguration(
        method=case["strategy"],
        global_batch=BATCH,
        nb=case["params"].get("nb", 1),
        **numbers,
    )
    return nersc_model(case["model"]), nersc_system(case["system"], case["nvs"]), configuration


@each_row("case", LAYERS)
def test_every_figure_of_every_layer_is_reproduced(case):
    """Fourteen layers, and the exchanges among replicas and stages, under the published names."""
    found = layer_statistics(*of_layers(case))
    expected = [*case["mlp_layers"], *case["attention_layers"], case["dp_comm"], case["pp_comm"]]
    assert len(found) == 16
    for layer, figures in zip(found, expected, strict=True):
        assert list(layer) == list(figures)
        for name, value in figures.items():
            told = value if name == "name" or name.endswith("type") else _near(value)
            assert layer[name] == told, (layer["name"], name)


def _near(value):
    return pytest.approx(value, **close)


@each_row("case", LAYERS)
def test_totals_of_runs_of_its_code_are_reproduced(case):
    """All but where its groups sit, which these runs do not tell."""
    model, system, configuration = of_layers(case)
    found = statistics(model, system, configuration)
    assert {name: found[name] for name in case["totals"]} == pytest.approx(case["totals"], **close)
    assert configuration.gpus == case["n_gpus"]


@each_row(("model", "method"), list(itertools.product(RUNS["models"], METHODS)))
def test_statistics_of_every_stored_optimum_are_reproduced(model, method):
    """319 of them, in their published order; vit_era5 fits nowhere in 1d."""
    seen = 0
    for optimum in RUNS["optima"]:
        *case, system, domain, gpus, _ = RUNS["points"][optimum["point"]]
        if case != [model, method]:
            continue
        seen += 1
        configuration = configured(method, optimum["config"], optimum["nv"])
        found = statistics(nersc_model(model), nersc_system(system, domain), configuration)
        stats = dict(zip(RUNS["stat_fields"], optimum["stats"], strict=True)) | optimum["nv"]
        assert list(found) == list(stats)
        assert found == pytest.approx(stats, **close)
        assert configuration.gpus == gpus
        assert configuration_words(configuration) == optimum["config"]
    assert seen > 0 or (model, method) == ("vit_era5", "1d")


def test_the_number_of_candidates_of_every_stored_search_is_reproduced():
    """Of 624 searches, 305 of which find nothing feasible."""
    assert len(RUNS["points"]) == 624
    for model, method, _, domain, gpus, candidates in RUNS["points"]:
        limits = {"gpus": gpus, "global_batch": BATCH, "domain": domain}
        assert count(nersc_model(model), method, **limits) == candidates


# One formula at a time


@each_row(
    ("kind", "members", "inside", "expected"),
    [
        # 25 x 0.7 and 300 x 0.7 GB/s, 5 and 2.5 us a hop.
        ("allgather", 8, 1, 7 * 5e-6 + 7 / 8 * 2 / 17.5),
        ("allgather", 8, 8, 7 * 2.5e-6 + 7 / 8 * 2 / 210),
        ("allgather", 8, 4, 7 / 8 * 2 / 70 + 5e-6 + 6 * 2.5e-6),
        ("reducescatter", 16, 2, 15 / 16 * 2 / 35 + 7 * 5e-6 + 8 * 2.5e-6),
        ("broadcast", 8, 8, 7 * 2.5e-6 + 2 / 210),
        ("reduce", 8, 1, 7 * 5e-6 + 2 / 17.5),
        ("allreduce", 8, 8, 7 * 2.5e-6 + 7 / 8 * 2 / 210),
        ("allreduce", 8, 4, 2 * 7 / 8 * 2 / 70 + 5e-6 + 6 * 2.5e-6),
        ("allgather", 1, 1, 0.0),
    ],
)
def test_a_collective_of_2_gb_takes_what_its_case_says(kind, members, inside, expected):
    """Wholly slow, wholly fast, mixed; a ring, or the whole buffer; nothing among one."""
    system = nersc_system("A100", 64)
    found = collective_time(kind, np.array([2.0]), np.array([members]), np.array([inside]), system)
    assert found.tolist() == pytest.approx([expected], rel=1e-14)


def test_nics_count_where_a_group_has_several_in_a_domain_alone():
    """Half a NIC each: twice the time between domains, the same for one member in each (fault)."""
    halved = nersc_system("A100", 64).model_copy(update={"nic_factor": 0.5})

    def time(inside, system):
        one = np.array([8]), np.array([inside])
        return float(collective_time("allgather", np.array([2.0]), *one, system)[0])

    steps = 5e-6 + 6 * 2.5e-6
    assert time(4, halved) - steps == pytest.approx(2 * (time(4, nersc_system("A100")) - steps))
    assert time(1, halved) == time(1, nersc_system("A100"))
    wide = halved.model_copy(update={"nic_factor": 100.0})
    assert time(4, wide) - steps == pytest.approx(7 / 8 * 2 / 210)  # the fast network bounds it


def _plain(method="1d", **numbers):
    alone = {"b": 1, "m1": 1, "dp": 1, "pp": 1, "t1": 1, "t_dp": 1, "t_pp": 1}
    return NerscConfiguration(method=method, global_batch=8, **alone | numbers)


def _figures(method="1d", **numbers):
    configuration = _plain(method, **numbers)
    records = layer_statistics(SMALL, nersc_system("A100", 64), configuration)
    return {record["name"]: record for record in records}


def test_a_product_has_the_flops_of_its_matrices():
    """fc1 of 2 x 1,024 tokens, 512 -> 2,048 over 4: (2 k - 1) additions and multiplications."""
    fc1 = _figures(b=2, m1=4)["fc1"]
    tokens, e, part = 2 * 1024, 512, 512
    assert fc1["flops_fwd"] == pytest.approx(tokens * part * (2 * e - 1) * 1e-12)
    backward = tokens * e * (2 * part - 1) + e * part * (2 * tokens - 1)
    assert fc1["flops_bwd"] == pytest.approx(backward * 1e-12)
    assert fc1["t_fwd_comp"] == pytest.approx(20e-6 + fc1["flops_fwd"] / (0.8 * 312))
    moved = (tokens * e + tokens * part + e * part) * 2e-9
    assert fc1["intensity_fwd"] == pytest.approx(fc1["t_fwd_comp"] / (moved / 1555))


def test_the_norm_of_summa_has_the_wrong_width():
    """l / m1 where e / m1 is meant: twice too wide here, as its weights tell (fault)."""
    assert SMALL.l == 2 * SMALL.e
    norm = _figures("2d", m1=4, m2=2, nb=4)["ln1"]
    assert norm["weights_mem"] == pytest.approx(2 * (SMALL.l // 4) * 2e-9)
    assert norm["activation_buffer"] == pytest.approx(SMALL.l // 2 * (SMALL.l // 4) * 2e-9)


def test_messages_between_domains_cost_nothing_where_stages_share_one():
    """Of 3 links 1 is between domains: two thirds of a fast message; all of a slow one (fault)."""
    volume = 1024 * 512 * 2e-9
    batches = 8
    shared = _figures(pp=4, t_pp=2)["pp_comms"]["t_fwd"]
    assert shared == pytest.approx(batches * 2 / 3 * (2.5e-6 + volume / 210))
    apart = _figures(pp=4)["pp_comms"]["t_fwd"]
    assert apart == pytest.approx(batches * (5e-6 + volume / 17.5))
    together = _figures(pp=4, t_pp=4)["pp_comms"]["t_fwd"]
    assert together == pytest.approx(batches * (2.5e-6 + volume / 210))
    assert _figures()["pp_comms"]["t"] == 0


def test_panels_show_the_first_set_and_what_the_product_does_not_hide():
    """Of nb sets one is exposed, and the others as far as they take longer than the product."""
    many = _figures("2d", m1=4, m2=2, nb=4)["qkv"]
    tokens, e, width = 512, 512, 384
    one = sum(
        (members - 1) * 5e-6 + elements / 4 * 2e-9 / 17.5
        for members, elements in ((4, tokens * e), (2, e * width))
    )
    product = many["t_fwd_comp"] + many["t_fwd_mem"]
    assert many["t_fwd_comm"] == pytest.approx(one + max(4 * one - product, 0))


def test_memory_has_two_and_six_times_the_weights_and_the_batches_in_flight():
    """W, W, 6 W / dp; activations of min(pp, batches) micro-batches of a stage's layers."""
    model, system = SMALL, nersc_system("A100", 64)
    found = statistics(model, system, _plain(pp=4, dp=2, b=2))
    layers = layer_statistics(model, system, _plain(pp=4, dp=2, b=2))
    held = 3 * sum(layer["weights_mem"] for layer in layers)
    kept = 3 * 2 * sum(layer["activation_buffer"] for layer in layers)
    assert found["wts_mem"] == found["wts_grad_mem"] == pytest.approx(held)
    assert found["wts_optimizer_states_mem"] == pytest.approx(3 * held)
    assert found["acts_mem"] == pytest.approx(kept)
    assert found["mem"] == pytest.approx(5 * held + kept)
    context = statistics(model, system, _plain("2d-seqp", m2=2, dp=2))
    assert context["wts_optimizer_states_mem"] == pytest.approx(6 / 4 * context["wts_mem"])
    summa = statistics(model, system, _plain("2d", m2=2, dp=2))
    assert summa["wts_optimizer_states_mem"] == pytest.approx(6 / 2 * summa["wts_mem"])


# Configurations in tables


@st.composite
def configurations(draw, method):
    """Legal configurations of a small model."""
    degrees = {name: draw(st.sampled_from([1, 2, 4])) for name in ("m1", "m2", "dp", "pp")}
    if method == "1d":
        degrees["m2"] = 1
    names = {"m1": "t1", "m2": "t2", "dp": "t_dp", "pp": "t_pp"}
    parts = {
        names[name]: draw(st.sampled_from([d for d in (1, 2, 4) if degree % d == 0]))
        for name, degree in degrees.items()
    }
    panels = draw(st.sampled_from([1, 4, 8])) if method == "2d" else 1
    b = draw(st.sampled_from([1, 2]))
    return NerscConfiguration(method=method, global_batch=32, b=b, nb=panels, **degrees, **parts)


@pytest.mark.parametrize("method", METHODS)
@examples(25)
@given(data=st.data())
def test_a_row_of_a_table_is_that_configuration_alone(method, data):
    """To the last bit, whatever the other rows are."""
    table = data.draw(st.lists(configurations(method), min_size=2, max_size=6))
    system = nersc_system("H200", 256)
    columns = Columns.of(table)
    together = statistics_of(SMALL, system, method, columns, 32)
    for index, configuration in enumerate(table):
        assert columns.row(index, method, 32) == configuration
        alone = statistics(SMALL, system, configuration)
        assert {n: column[index] for n, column in together.items()}.items() <= alone.items()


@pytest.mark.parametrize("method", METHODS)
@examples(25)
@given(data=st.data())
def test_a_step_is_the_sum_of_its_parts(method, data):
    """Times add up to the step, shares to one, memory to the whole; nothing is negative."""
    configuration = data.draw(configurations(method))
    found = statistics(SMALL, nersc_system("H200", 256), configuration)
    times = [value for name, value in found.items() if name.startswith("t_")]
    shares = [value for name, value in found.items() if name.endswith("_frac")]
    memory = [value for name, value in found.items() if name.endswith("_mem") and name != "t_mem"]
    assert math.fsum(times) == pytest.approx(found["t"], rel=1e-12)
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
    assert math.fsum(memory) == pytest.approx(found["mem"], rel=1e-12)
    assert min(found.values()) >= 0


@pytest.mark.parametrize("field", ["nvlink_bandwidth", "ib_bandwidth", "hbm_bandwidth"])
@examples(15)
@given(data=st.data(), factor=st.floats(1.01, 100))
def test_more_bandwidth_is_never_slower(field, data, factor):
    """Whatever moves over it."""
    method = data.draw(st.sampled_from(METHODS))
    configuration = data.draw(configurations(method))
    system = nersc_system("A100", 256)
    faster = system.model_copy(update={field: getattr(system, field) * factor})
    before, after = (statistics(SMALL, one, configuration)["t"] for one in (system, faster))
    assert after <= before * (1 + 1e-12)


# What is refused

LEAST = "must be at least 0.000001"


@each_row(
    ("change", "told"),
    [
        (
            {"hbm_bandwidth": -1},
            "system: hbm_bandwidth: -1: must be at least 0.000001",
        ),
        ({"ib_bandwidth": 0}, "system: ib_bandwidth: 0: must be at least 0.000001"),
        ({"nvlink_bandwidth": math.nan}, "system: nvlink_bandwidth: nan: must be a finite number"),
        ({"nvlink_eff": 5.0}, "system: nvlink_eff: 5.0: must be at most 1"),
        ({"ib_latency": -1e-6}, "system: ib_latency: -1e-06: must be at least 0"),
        ({"nvlink_size": 0}, "system: nvlink_size: 0: must be at least 1"),
        (
            {"empirical": True},
            "system: empirical: true: must be false: its measured tables were never published",
        ),
        ({"hbm_capcity": 80}, "system: hbm_capcity: unknown key; did you mean 'hbm_capacity'?"),
    ],
)
def test_a_bad_system_is_refused(change, told):
    """Its own code takes most of these."""
    with pytest.raises(InputError) as caught:
        NerscSystem.validated(RUNS["systems"]["A100"] | change, source="system")
    assert str(caught.value) == told


def test_a_bad_model_is_refused():
    """Fields that are missing, and heads without a width; f is 4 e by default."""
    fields = {"l": 1024, "e": 512, "h": 1024, "depth": 2}
    with pytest.raises(InputError, match="depth: is missing and has no default"):
        NerscModel.validated({"l": 1024, "e": 512, "h": 8})
    with pytest.raises(InputError, match="h: 1024: must divide e 512"):
        NerscModel.validated(fields)
    assert NerscModel.validated(fields | {"h": 8}).ffn == 2048


@each_row(
    ("numbers", "told"),
    [
        ({"m1": 4, "t1": 3}, "t1 3 must divide m1 4"),
        ({"pp": 2, "t_pp": 4}, "t_pp 4 must divide pp 2"),
        ({"m2": 2}, "m2 2: must be 1 in 1d"),
        ({"dp": 8, "b": 2}, "b 2 x dp 8 is more than global_batch 8"),
    ],
)
def test_a_bad_configuration_is_refused(numbers, told):
    """Parts that divide nothing, a second dimension in 1d, more sequences than there are."""
    with pytest.raises(InputError) as caught:
        NerscConfiguration.validated(_plain().to_dict() | numbers)
    assert str(caught.value) == told


@each_row(
    ("numbers", "told"),
    [
        ({"m1": 3}, "configuration: m1: 3: must divide h 8"),
        ({"pp": 5}, "configuration: pp: 5: must divide depth 12"),
        (
            {"m1": 4, "t1": 4, "dp": 4, "t_dp": 4},
            "configuration: t1 x t2 x t_dp x t_pp: 16: must be at most nvlink_size 8",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(numbers, told):
    """Heads and layers that do not divide, more than a domain holds."""
    with pytest.raises(InputError) as caught:
        check_together(SMALL, nersc_system("A100", 8), _plain(**numbers))
    assert str(caught.value) == told
    with pytest.raises(InputError, match="m2: 2048: must be at most l 1024"):
        check_together(SMALL, nersc_system("A100", 8), _plain("2d", m2=2048))

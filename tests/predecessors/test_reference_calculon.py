"""Calculon's formulas, against our own runs of Calculon 0.1.0 (see data/calculon/README.md)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculon_runs import FEASIBLE, RUNS, calculon_model, calculon_system
from profiles import examples
from rows import each_row
from shardwise.predecessors.calculon.files import (
    COMM_TYPES,
    OVERLAPS,
    RECOMPUTES,
    CalculonExecution,
    CalculonModel,
)
from shardwise.predecessors.calculon.reference import (
    STAT_FIELDS,
    Columns,
    Infeasible,
    evaluate,
    layer_statistics,
    statistics,
)

REFUSED = [case for case in RUNS["cases"] if "error" in case]
DETAILED = [case for case in RUNS["cases"] if "layers" in case]
# The runs are rounded to 12 digits.
close = {"rel": 1e-9, "abs": 0}


def _inputs(case):
    return calculon_model(case["model"]), calculon_system(case["system"], case["overrides"])


def _execution(case):
    return CalculonExecution.parse(case["execution"])


def test_the_statistics_have_calculons_names_in_its_order():
    """96 of them."""
    assert list(STAT_FIELDS) == RUNS["stat_fields"]


@each_row("case", FEASIBLE)
def test_every_statistic_of_every_run_is_reproduced(case):
    """README example, validation runs and random executions, training and inference."""
    found = statistics(*_inputs(case), _execution(case))
    expected = dict(zip(STAT_FIELDS, case["stats"], strict=True))
    missing = {name for name, value in expected.items() if value is None}
    assert {name for name, value in found.items() if value is None} == missing
    for name in expected.keys() - missing:
        assert found[name] == pytest.approx(expected[name], **close), name


@each_row("case", REFUSED)
def test_what_calculon_refuses_is_refused_for_its_reason(case):
    """Each run that Calculon ends with an error."""
    with pytest.raises(Infeasible) as caught:
        statistics(*_inputs(case), _execution(case))
    assert caught.value.reason == case["error"]


@each_row(
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


@each_row("case", DETAILED)
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
    system = calculon_system("a100_80g", {"processing_mode": "roofline"})
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


@examples(40)
@given(
    table=st.lists(executions(), min_size=2, max_size=8),
    mode=st.sampled_from(["roofline", "no_overlap"]),
)
def test_a_row_of_a_table_is_that_execution_alone(table, mode):
    """To the last bit, whatever the other rows are."""
    model = calculon_model("megatron-126M")
    system = calculon_system("h100_80g_nvl8", {"processing_mode": mode})
    together = evaluate(model, system, Columns.of(table))
    for index, execution in enumerate(table):
        alone = evaluate(model, system, Columns.of([execution]))
        assert together.verdict[index] == alone.verdict[0]
        assert together.row(index) == alone.row(0)


@examples(40)
@given(execution=executions())
def test_a_step_is_the_sum_of_its_parts(execution):
    """Total time adds up; nothing takes negative time but a bubble that uneven stages shorten."""
    found = evaluate(
        calculon_model("megatron-126M"), calculon_system("h100_80g_nvl8"), Columns.of([execution])
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
@examples(20)
def test_columns_give_back_their_executions(table):
    """Words become numbers and words again."""
    columns = Columns.of(table)
    assert [columns.row(index) for index in range(len(columns))] == table


def test_statistics_are_plain_numbers():
    """Ready for JSON: no numpy types, no NaN."""
    for case in FEASIBLE[:: max(1, len(FEASIBLE) // 10)]:
        found = statistics(*_inputs(case), _execution(case))
        assert {type(value) for value in found.values()} <= {float, type(None)}
        assert all(value is None or math.isfinite(value) for value in found.values())

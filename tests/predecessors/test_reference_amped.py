"""AMPeD's formulas: each term worked out by hand, columns as rows, parts that add up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amped_runs import SMALL
from profiles import examples
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.amped.files import DERIVED
from shardwise.predecessors.amped.reference import (
    LABELS,
    MEMORY,
    TERMS,
    MicrobatchEfficiency,
    breakdown_text,
    evaluate,
)
from shardwise.predecessors.amped.translation import amped_case_of_parameters

exact = {"rel": 1e-12}

# Multiply-accumulates of a layer, whole batch: attention 2 (3 x 576 + 768) + 1152, MLP 2 x 8 x 4 x
# 6 x 10, head 8 x 5 x 6. Other operations: 8 x 4 x 3 x 2 + 2 x 8 x 16 = 448. A = 8 x 4 x 3 = 96.
_FORWARD = 0.01 * (6144 + 3840 + 240) + 0.01 * 448
_BACKWARD = 0.01 * (6144 + 3840) + 0.01 * 448
_UPDATE = 0.01 * (6144 + 3840)
_M_F = 1.25 * (13 + 48.5 + 6.125)
_M_B = 1.25 * (25 + 96.5 + 12.125)
_BUBBLE = ((_FORWARD + _BACKWARD) / (16 * 4) + _M_F + _M_B) / 4
BY_HAND = {
    "reciprocal_of_OPS": 0.01,  # 1 / (10 x 2 x 5 x 0.5 x 2)
    "C_NONLIN": 0.01,  # 1 / (10 x 2 x 5), cores left out
    "compute_time_forward_pass": _FORWARD,
    "compute_time_backward_pass": _BACKWARD,
    "weight_update_time": _UPDATE,
    # Ring of two in each of four nodes: 2 x 0.5, and 2 x 96 / 4 x 16 bit once past 64 bit/s.
    "forward_tensor_model_intra": 1 + 12,
    "backward_tensor_model_intra": 1 + 24,
    "forward_tensor_parallel_inter": 2 * 0.25 + 2 * 96 * 16 / 64,
    "backward_tensor_parallel_inter": 2 * 0.25 + 2 * 96 * 32 / 64,
    "forward_pipeline_parallelism": (0.5 + 96 * 16 / 64) / 4,
    "backward_pipeline_parallelism": (0.5 + 96 * 32 / 64) / 4,
    "MoE_overhead_per_layer_fw_pass": 0.0,
    "MoE_overhead_per_layer_bw_pass": 0.0,
    "forward_zero_DP": 0.25 * (13 + 48.5 + 6.125),
    "backward_zero_DP": 0.25 * (25 + 96.5 + 12.125),
    "communication_time_forward_pass": _M_F,
    "communication_time_backward_pass": _M_B,
    "all_reduce_gradients_for_DP_intra": 0.0,
    # 4 x 6 x 3 x 2 + 4 x 6 + 2 x 6 x 10 + 5 x 6 / 4 = 295.5 parameters over a tensor degree of 4.
    "all_reduce_gradients_for_DP_inter": 2 * 0.25 + 295.5 / 4 * 32 / 64,
    "communication_time_backwards_DP_all_reduce": 0.5 + 36.9375,
    "waiting_time_due_to_pipeline_bubbles": _BUBBLE,
}
_TOTAL = 2 * 4 * ((_FORWARD + _BACKWARD + _UPDATE) / 16 + _M_F + 37.4375 + _M_B + _BUBBLE)


def test_every_term_is_the_one_worked_out_by_hand():
    """Of one layer and batch."""
    assert set(BY_HAND) == set(TERMS)
    found = evaluate(SMALL)
    assert {name: float(found[name]) for name in TERMS} == pytest.approx(BY_HAND, **exact)


def test_the_breakdown_is_of_two_batches_of_four_layers():
    """Compute shared by 16 accelerators; 31 lines."""
    answer = amped_case_of_parameters(SMALL).answer()
    assert len(LABELS) == 31
    assert list(answer) == [*LABELS, *MEMORY, "number_of_batches"]
    assert answer["Total time to train (s)"] == pytest.approx(_TOTAL, **exact)
    assert answer["Total time to train (days)"] == pytest.approx(_TOTAL / 86400, **exact)
    assert answer["Total time to train (years)"] == pytest.approx(_TOTAL / 86400 / 365, **exact)
    assert answer["Computation time weight updates (s)"] == pytest.approx(8 * _UPDATE / 16)
    assert answer["Waiting Time due to pipeline bubbles (s)"] == pytest.approx(8 * _BUBBLE)
    macs = 8 * (3 * (6144 + 3840) + 240)
    assert answer["total MACs"] == macs
    assert answer["TFLOPS"] == pytest.approx(2 * macs / 1e12)
    rate = 2 * macs / 1e12 / _TOTAL
    assert answer["total TFLOPS/sec"] == pytest.approx(rate, **exact)
    assert answer["TFLOP/sec/GPU"] == pytest.approx(rate / 16, **exact)
    assert answer["TFLOP/sec/GPU (peak)"] == pytest.approx(2 * 200 / 1e12)
    assert answer["number_of_batches"] == 2


def test_memory_by_hand():
    """1182 parameters over 16 accelerators; activations over two replicas twice [GB]."""
    answer = amped_case_of_parameters(SMALL).answer()
    weights = (16 + 32 + 3 * 32) / 8 * 1182 / 16 / 1e9
    activations = 16 * 4 * (448 + 2 * 96) / 4 / 2 / (8 * 16) / 1e9
    least = (16 + 32 / 2) / 8 * 1182 / 16 / 1e9
    found = [answer[name] for name in MEMORY]
    total = weights + activations
    assert found == pytest.approx([weights, activations, total, least + activations], **exact)


def test_experts_by_hand():
    """Three of them: gating of two layers in each, two exchanges among four nodes."""
    found = evaluate(SMALL | {"number_of_experts": 3.0})
    gating = 4 * 5 * 8 * 3 * 2
    assert found["gating_MAC_operations"] == gating
    assert found["compute_time_forward_pass"] == pytest.approx(_FORWARD + 0.01 * gating / 2)
    assert found["compute_time_backward_pass"] == pytest.approx(_BACKWARD + 0.01 * gating / 2)
    assert found["weight_update_time"] == pytest.approx(_UPDATE + 0.01 * gating)
    forward, backward = 3 * (0.25 + 96 * 16 / 12 / 64), 3 * (0.25 + 96 * 32 / 12 / 64)
    assert found["MoE_overhead_per_layer_fw_pass"] == pytest.approx(forward)
    assert found["MoE_overhead_per_layer_bw_pass"] == pytest.approx(backward)
    assert found["communication_time_forward_pass"] == pytest.approx(_M_F + 1.25 * 2 * forward)
    assert found["total_MoE_overhead_fw_pass"] == pytest.approx(2 * 4 * 2 * forward)
    assert found["total_MoE_overhead"] == pytest.approx(16 * (forward + backward))
    overhead = found["total_MoE_gating_network_compute_overhead"]
    assert overhead == pytest.approx(2 * 4 * 0.01 * gating * 2 / 16)
    one_node = {n: 1.0 for n in SMALL if n.startswith("inter_node") and n.endswith("degree")}
    assert evaluate(SMALL | one_node | {"number_of_experts": 3.0})["total_MoE_overhead"] == 0


def test_wider_types_take_whole_passes_of_a_unit():
    """33 bits of weights take two passes of 32; gradients count backward alone."""
    found = evaluate(SMALL | {"weight_precision": 33.0, "activation_precision": 65.0})
    products = 0.01 * (6144 + 3840 + 240)
    assert found["compute_time_forward_pass"] == pytest.approx(2 * products + 3 * 4.48)
    assert found["compute_time_backward_pass"] == pytest.approx(2 * 99.84 + 2 * 4.48)
    assert found["weight_update_time"] == pytest.approx(99.84)
    wide = evaluate(SMALL | {"gradient_precision": 64.0})
    assert wide["compute_time_forward_pass"] == pytest.approx(_FORWARD)
    assert wide["compute_time_backward_pass"] == pytest.approx(2 * 99.84 + 4.48)


def test_the_longer_message_between_stages_counts():
    """Within nodes and among them both: by latency here, as the bandwidths are equal."""
    both = SMALL | {"inter_node_pipeline_parallel_degree": 2.0}
    assert evaluate(both)["forward_pipeline_parallelism"] == pytest.approx((0.5 + 24) / 4)
    far = both | {"inter_node_latency": 2.0}
    assert evaluate(far)["forward_pipeline_parallelism"] == pytest.approx((2 + 24) / 4)


def test_the_bubble_counts_compute_of_one_layer_of_a_stage():
    """The fault: of L layers of a stage, its compute part is 1 / L of what a stage takes."""
    still = SMALL | {
        "M_f_DP": 0.0,
        "inter_accelerator_bandwidth": 1e30,
        "bandwidth_per_network_card": 1e30,
        "inter_accelerator_latency": 0.0,
        "inter_node_latency": 0.0,
    }
    found = evaluate(still)
    waits = float(found["total_waiting_time_due_to_pipeline_bubbles"])
    passes = found["total_computation_time_forward_pass"]
    passes = passes + found["total_computation_time_backward_pass"]
    true = (2 - 1) * float(passes) / 4  # a stage's micro-batch, (N_PP - 1) times a batch
    assert waits == pytest.approx(true / 4, **exact)


def test_constants_may_be_given():
    """Share not hidden, weights gathered again, width of the units."""
    found = evaluate(SMALL | {"r_non_overlapping": 0.5, "M_f_DP": 0.0, "W_FU_MAC": 8.0})
    assert found["forward_zero_DP"] == 0
    assert found["communication_time_forward_pass"] == pytest.approx(_M_F / 1.25)
    assert found["communication_time_backwards_DP_all_reduce"] == pytest.approx(37.4375 / 2)
    assert found["compute_time_forward_pass"] == pytest.approx(2 * 102.24 + 4.48)


def test_what_is_given_is_not_calculated():
    """A parameter that AMPeD could calculate is taken as it is given."""
    found = evaluate(SMALL | {"activations_volume_per_layer_batch": 192.0})
    assert found["forward_tensor_model_intra"] == pytest.approx(1 + 24)
    assert found["backward_tensor_model_intra"] == pytest.approx(1 + 24)


def test_efficiency_is_a_number_or_a_curve_of_the_micro_batch():
    """0.51 unless given; linear between points, capped; micro-batches of one here."""
    plain = {name: value for name, value in SMALL.items() if name != "efficiency"}
    assert evaluate(plain)["reciprocal_of_OPS"] == pytest.approx(1 / (200 * 0.51))
    curve = MicrobatchEfficiency(points=((0.5, 0.2), (2.0, 0.8)))
    assert evaluate(plain, efficiency=curve)["efficiency"] == pytest.approx(0.4)
    high = MicrobatchEfficiency(points=((1.0, 0.95),))
    assert evaluate(plain, efficiency=high)["efficiency"] == pytest.approx(0.91)
    sizes = np.array([0.1, 0.5, 1.25, 9.0])
    assert curve.at(sizes).tolist() == pytest.approx([0.2, 0.2, 0.5, 0.8])


@each_row(
    ("words", "told"),
    [
        ({"points": ()}, "needs sizes of micro-batches in ascending order"),
        ({"points": ((2.0, 0.5), (1.0, 0.6))}, "needs sizes of micro-batches in ascending order"),
        ({"points": ((1.0, 1.5),)}, "sizes must be above 0, shares in (0, 1]"),
        ({"points": ((1.0, 0.5),), "cap": 0.0}, "must be in (0, 1]"),
    ],
)
def test_curves_without_sense_are_refused(words, told):
    """Each with what is allowed."""
    with pytest.raises(InputError) as error:
        MicrobatchEfficiency(**words)
    assert told in str(error.value)


@each_row(
    ("name", "value", "told"),
    [
        ("frequency", 0.0, "must be above 0"),
        ("inter_node_latency", -1.0, "must be 0 or more"),
        ("inter_node_tensor_parallel_degree", 0.5, "must be at least 1"),
        ("decoder_flag", 2.0, "must be 0 or 1"),
        ("efficiency", 1.5, "must be above 0 and at most 1"),
        ("context", float("nan"), "must be above 0"),
    ],
)
def test_values_without_sense_are_refused(name, value, told):
    """By name, whatever else is right."""
    with pytest.raises(InputError) as error:
        amped_case_of_parameters(SMALL | {name: value}, source="config.json")
    assert str(error.value).startswith(f"config.json: {name}: {value}")
    assert told in str(error.value)


def test_what_is_missing_is_named():
    """Also the flag of the head, whose formula as published gives no flag."""
    less = {name: v for name, v in SMALL.items() if name not in ("decoder_flag", "frequency")}
    with pytest.raises(InputError) as error:
        evaluate(less)
    missing = {fault.field for fault in error.value.faults}
    assert missing == {"decoder_flag", "frequency"}


def test_what_is_no_quantity_is_refused():
    """Not left out without a word."""
    with pytest.raises(InputError, match="total_MAC: is no quantity of AMPeD's; did you mean"):
        evaluate({}, wanted=["total_MAC"])
    with pytest.raises(InputError, match="batch_size: 'many': must be a number, or a column"):
        evaluate({"batch_size": "many"}, wanted=["batch_size"])


def test_what_an_import_assumes_is_told():
    """Widths of heads, types, degrees, one batch; nothing that is given, nothing unless asked."""
    gone = ("key_query_value_length", "activation_precision", "tokens_to_train", "decoder_flag")
    gone += ("hidden_layer_dimension_for_attention_sublayers", "number_of_experts", "OPS_per_MAC")
    gone += (
        "inter_node_data_parallel_degree",
        "gradient_precision",
        "hidden_layer_dimension_MLP_1",
    )
    less = {name: value for name, value in SMALL.items() if name not in gone}
    case = amped_case_of_parameters(less, fill=True)
    assert case.answer()["assumed"] == {
        "key_query_value_length": 3.0,
        "activation_precision": 16.0,
        "tokens_to_train": 32.0,
        "decoder_flag": 1.0,
        "hidden_layer_dimension_for_attention_sublayers": 3.0,
        "number_of_experts": 1.0,
        "OPS_per_MAC": 2.0,
        "inter_node_data_parallel_degree": 1.0,
        "gradient_precision": 32.0,
    }  # the inner width has a formula
    full = {"inter_node_data_parallel_degree": 1.0, "tokens_to_train": 32.0}
    assert case.figures() == pytest.approx(amped_case_of_parameters(SMALL | full).figures())
    assert "assumed" not in amped_case_of_parameters(SMALL, fill=True).answer()
    with pytest.raises(InputError):
        amped_case_of_parameters(less)


_counts = st.integers(min_value=1, max_value=8)


@examples(25)
@given(st.lists(st.tuples(*[_counts] * 8), min_size=1, max_size=4))
def test_a_column_is_its_rows_and_parts_add_up(rows):
    """Degrees, batch and experts vary; every line of every row."""
    degrees = sorted(name for name in SMALL if name.endswith("parallel_degree"))
    names = [*degrees, "batch_size", "number_of_experts"]
    columns = dict(zip(names, np.array(rows, dtype=np.float64).T, strict=True))
    found = evaluate(SMALL | columns)
    for index in range(len(rows)):
        row = amped_case_of_parameters(
            SMALL | {name: float(column[index]) for name, column in columns.items()}
        ).answer()
        for label, name in LABELS.items():
            column = np.broadcast_to(found[name], len(rows))
            assert column[index] == pytest.approx(row[label], rel=1e-12, abs=0)
        _adds_up(row)


def _adds_up(row):
    """Totals of the breakdown from its other lines."""
    for way, short in (("forward", "FW"), ("backward", "BW")):
        parts = [value for label, value in row.items() if label.startswith(_of(way))]
        assert len(parts) == 4
        whole = row[f"Total communication time {way} pass (s)"]
        experts = row[f"MoE {short} pass communication overhead time (s)"]
        assert whole == pytest.approx(sum(parts) + experts)
    compute = sum(v for label, v in row.items() if label.startswith("Computation time"))
    gradients = [v for label, v in row.items() if label.startswith("Communication time: all")]
    assert gradients[2] == pytest.approx(gradients[0] + gradients[1])
    passes = [row[f"Total communication time {way} pass (s)"] for way in ("forward", "backward")]
    assert row["Total communication time (s)"] == pytest.approx(sum(passes) + gradients[2])
    parts = (
        row["Total computation time (s)"],
        row["Total communication time (s)"],
        row["Waiting Time due to pipeline bubbles (s)"],
    )
    assert parts[0] == pytest.approx(compute)
    assert row["Total time to train (s)"] == pytest.approx(sum(parts), **exact)


def _of(way):
    return f"Communication time {way} pass: "


def test_its_texts_are_read_as_its_readers_do():
    """Split at five dashes, last word the value; "name : value" third word of the summary."""
    case = amped_case_of_parameters(SMALL, rows={"transformer": "tiny", "accelerator": "slow"})
    answer, lines = case.answer(), case.breakdown_text().splitlines()
    assert lines[:2] == ["TRAINING TIME BREAKDOWN", ""]
    assert len(lines) == 33
    for line, label in zip(lines[2:], LABELS, strict=True):
        assert line.startswith(label)
        assert float(line.split()[-1]) == answer[label]
    wanted = "Waiting Time due to pipeline bubbles (s)"
    (line,) = (one for one in lines if one.split("-----")[0] == wanted)
    assert len({len(one.rpartition(" ")[0]) for one in lines[2:]}) == 1
    summary = case.summary_text().splitlines()
    assert summary[0] == "Transformer: tiny | Accelerator: slow"
    assert [one for one in summary if one[:1].isdigit()] == [
        "1: NEURAL NETWORK TRAINING PARAMETERS",
        "2: MAPPING PARAMETERS",
        "3: SYSTEM ARCHITECTURE PARAMETERS",
        "4: ACCELERATOR ARCHITECTURE PARAMETERS",
    ]
    told = {one.split()[0]: one.split()[2] for one in summary if " : " in one}
    given = {name: value for name, value in SMALL.items() if name != "efficiency"}
    assert {name: float(told[name]) for name in given} == given
    assert (told["layers"], told["data_parallel_degree"]) == ("4", "2")
    assert set(told) <= {*given, *DERIVED}
    assert breakdown_text(answer) == case.breakdown_text()

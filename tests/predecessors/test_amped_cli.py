"""AMPeD's answers on the command line, and our nouns in its words."""

import json
from pathlib import Path

import pytest

from rows import each_row
from shardwise import InputError, Model, System, estimate
from shardwise.predecessors.amped.reference import LABELS
from shardwise.predecessors.amped.tables import AMPED, in_our_units
from shardwise.predecessors.amped.translation import amped_case, model_for_amped, system_for_amped

GIVEN = {"gpus": 1024, "tp": 8, "pp": 8, "gbs": 1536}
LINE = ["--gpus", 1024, "--tp", 8, "--pp", 8, "--gbs", 1536]
RUN = ["estimate", "gpt3-175b", "a100-80gb-sxm", *LINE]


def test_our_nouns_in_its_words():
    """Widths, bits, bits per second, and a peak of 156 T multiply-accumulates."""
    case = amped_case("gpt3-175b", "a100-80gb-sxm", GIVEN | {"mbs": 2})
    told = case.parameters
    expected = {
        "context": 2048,
        "dimensionality": 12288,
        "hidden_layer_dimension_for_attention_sublayers": 128,
        "hidden_layer_dimension_MLP_2": 49152,
        "number_of_experts": 1,
        "weight_precision": 16,
        "optimizer_state_precision": 32,
        "batch_size": 1536,
        "tokens_to_train": 1536 * 2048,
        "intra_node_tensor_parallel_degree": 8,
        "inter_node_tensor_parallel_degree": 1,
        "inter_node_data_parallel_degree": 16,
        "inter_node_pipeline_parallel_degree": 8,
        "number_of_microbatches_per_minibatch": 1536 / 16 / 2,
        "number_of_accelerators_per_node": 8,
        "number_of_network_cards_per_node": 8,
        "bandwidth_per_network_card": 200e9,
        "inter_accelerator_bandwidth": 2.4e12,
        "decoder_flag": 1,
    }
    assert {name: told[name] for name in expected} == expected
    figures = case.figures()
    assert figures["peak_compute_8bit_MACs"] == pytest.approx(156e12)
    assert figures["number_of_batches"] == 1
    assert figures["number_of_nodes_required"] == 128
    # 312 TFLOP/s at 0.51; attention and MLP three times, the head once a layer.
    layer = 24 * 12288**2 + 4 * 2048 * 12288
    of_products = 1536 * 2048 * (3 * layer + 2 * 50257 * 12288 / 2048)
    time = 96 * of_products / 1024 / (312e12 * 0.51)
    assert figures["total_computation_time"] == pytest.approx(time, rel=0.005)  # and C_nl


def test_a_part_of_a_node_is_a_node():
    """Four GPUs of eight: one node of four, without fractions."""
    case = amped_case("gpt3-175b", "a100-80gb-sxm", {"gpus": 4, "tp": 4, "gbs": 4})
    figures = case.figures()
    assert figures["number_of_nodes_required"] == 1
    assert case.parameters["number_of_accelerators_per_node"] == 4
    assert figures["forward_tensor_parallel_inter"] == 0


def test_reference_prints_its_own_lines(shardwise):
    """The breakdown under its labels; with --ops the terms."""
    code, out, err = shardwise(*RUN, "--reference", "amped", "--ops", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    case = amped_case("gpt3-175b", "a100-80gb-sxm", GIVEN)
    assert answer == case.answer() | {"layers": case.layers()}
    code, out, _ = shardwise(*RUN, "--reference", "amped", "--ops")
    assert code == 0
    assert [label for label in (*LABELS, "C_NONLIN") if label not in out] == []
    assert "2.72763 GB" in out


def test_also_prints_both(shardwise):
    """Its figures beside ours, with why they differ."""
    code, out, _ = shardwise(*RUN, "--also", "amped", "--json")
    assert code == 0
    theirs = json.loads(out)["also"]["amped"]
    assert theirs == amped_case("gpt3-175b", "a100-80gb-sxm", GIVEN).answer()
    code, out, _ = shardwise(*RUN, "--also", "amped")
    assert code == 0
    shown = [row.name for row in AMPED if row.name != "Total MoE communication overhead time"]
    assert [name for name in shown if name not in out] == []
    assert "products of inputs alone there" in out


def test_counterparts_are_of_one_step_in_our_units():
    """Sums of lines; two batches take as long each; GB become bytes."""
    answer = amped_case("gpt3-175b", "a100-80gb-sxm", GIVEN).answer()
    ours = estimate("gpt3-175b", "a100-80gb-sxm", GIVEN)
    theirs = in_our_units(answer)
    assert theirs["Total time to train (s)"] == answer["Total time to train (s)"]
    tensor = [v for name, v in answer.items() if "tensor parallelism" in name]
    assert theirs["Tensor parallelism, both passes (s)"] == sum(tensor)
    assert theirs["total_required_memory_per_accelerator"] == pytest.approx(2.732472e9)
    doubled = in_our_units(answer | {"number_of_batches": 2.0})
    assert doubled["Total time to train (s)"] == theirs["Total time to train (s)"] / 2
    assert doubled["TFLOP/sec/GPU"] == theirs["TFLOP/sec/GPU"]
    value = {row.name: row.value(ours) for row in AMPED}
    assert value["Total time to train (s)"] == ours.step_time_s
    assert value["Total computation time (s)"] == pytest.approx(
        theirs["Total computation time (s)"], rel=0.3
    )


def test_search_prints_the_best_permutations(shardwise):
    """Batch sizes are compared by the time of the same tokens; counts agree with --count."""
    words = ["search", "gpt3-175b", "a100-80gb-sxm", "--reference", "amped", "--gpus", 64]
    words += ["--gbs", "32,64"]
    code, out, err = shardwise(*words, "--json", "--top", 4)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["candidates"] == 2 * 462
    assert found["candidates"] > found["good"]
    assert found["elapsed_s"] > 0
    assert found["tokens_to_train"] == 64 * 2048
    assert len(found["best"]) == 4
    assert [one["time_s"] for one in found["best"]] == sorted(o["time_s"] for o in found["best"])
    for one in found["best"]:
        assert one["time_s"] == pytest.approx(one["step_time_s"] * 64 / one["batch_size"])
    code, out, _ = shardwise(*words, "--count", "--json")
    counts = json.loads(out)
    assert code == 0
    assert {name: found[name] for name in ("candidates", "good")} == {
        name: counts[name] for name in ("candidates", "good")
    }
    code, out, _ = shardwise(*words)
    assert code == 0
    assert "DP intra" in out
    assert "time: of 131,072 tokens" in out


def test_a_run_of_the_search_is_a_run_of_the_estimate(shardwise):
    """The time of a permutation that our words have too."""
    words = ["search", "gpt3-175b", "a100-80gb-sxm", "--reference", "amped", "--gpus", 64]
    _, out, _ = shardwise(*words, "--gbs", 64, "--json", "--top", 10_000)
    want = {"intra_node_tensor_parallel_degree": 8, "inter_node_pipeline_parallel_degree": 8}
    (one,) = (
        one
        for one in json.loads(out)["best"]
        if {name: n for name, n in one["degrees"].items() if n > 1} == want
    )
    # It has as many micro-batches as stages.
    given = {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "mbs": 8}
    answer = amped_case("gpt3-175b", "a100-80gb-sxm", given).answer()
    assert one["step_time_s"] == pytest.approx(answer["Total time to train (s)"], rel=1e-12)


@each_row(
    ("flags", "told"),
    [
        (["--vpp", 2], "vpp: 2: AMPeD does not know it; allowed: 1"),
        (["--cp", 2], "cp: 2: AMPeD does not know it; allowed: 1"),
        (["--recompute", "full"], "recompute: 'full': AMPeD does not know it; allowed: none"),
        (["--ep", 2], "ep: 2: AMPeD does not know it; allowed without experts: 1"),
        (["--schedule", "zb-h1"], "knows one bubble of a pipeline; allowed: 1f1b, gpipe"),
        (["--tp-exchange", "p2p_rs_ag"], "knows two all-reduces of a layer"),
        (["--tp-overlap", "ring"], "hides none; allowed: stack, none"),
    ],
)
def test_what_it_has_no_word_for_is_refused(shardwise, flags, told):
    """One line for each, exit code 2."""
    code, out, err = shardwise(*RUN, *flags, "--reference", "amped")
    assert (code, out) == (2, "")
    assert told in err


def test_models_and_systems_that_it_cannot_have_are_refused():
    """Grouped queries, gated MLPs, one tier of a network, types without a rate."""
    with pytest.raises(InputError) as error:
        model_for_amped("llama3-70b")
    assert [fault.field for fault in error.value.faults] == [
        "layers[0].mlp.activation",
        "layers[0].attention.kv_heads",
    ]
    a100 = System.load("a100-80gb-sxm")
    with pytest.raises(InputError) as error:
        system_for_amped(a100.model_copy(update={"network": a100.network[-1:]}))
    assert "knows a network in a node and one among nodes; give two tiers" in str(error.value)
    with pytest.raises(InputError) as error:
        system_for_amped("nersc-a100", dtype="fp32")
    assert "needs the rate of fp32" in str(error.value)
    with pytest.raises(InputError) as error:
        model_for_amped(Model.load("gpt3-175b").model_copy(update={"seq_len": None}))
    assert "needs the length of a sequence" in str(error.value)


def _with_experts(**words):
    """GPT-3 with eight experts in every second layer, each token sent to one."""
    model = Model.load("gpt3-175b").to_dict()
    (dense,) = model["layers"]
    moe = {"experts": 8, "top_k": 1, "ffn": dense["mlp"]["ffn"], "activation": "gelu"} | words
    layers = [dense | {"count": 48}, dense | {"count": 48, "mlp": None, "moe": moe}]
    return Model.validated(model | {"layers": layers, "interleave": (1, 1)})


def test_experts_of_every_second_layer_are_its_own():
    """Others are refused: two experts of a token, shared ones, experts in all layers."""
    told = amped_case(_with_experts(), "a100-80gb-sxm", GIVEN | {"ep": 8})
    assert (told.parameters["layers"], told.parameters["number_of_experts"]) == (96, 8)
    assert told.answer()["Total MoE communication overhead time"] > 0
    for words, problem in (
        ({"top_k": 2}, "sends a token to one expert; allowed: 1"),
        ({"shared_ffn": 128}, "knows no shared expert; allowed: 0"),
        ({"ffn": 128}, "has equal attention and inner width in all layers and experts"),
    ):
        with pytest.raises(InputError) as error:
            model_for_amped(_with_experts(**words))
        assert problem in str(error.value)
    every = _with_experts().model_copy(update={"interleave": None})
    with pytest.raises(InputError) as error:
        model_for_amped(every)
    assert "knows one kind of layer, or experts in every second layer" in str(error.value)


@each_row(
    ("words", "told"),
    [
        (["--gbs", "8"], "--gpus is missing: number of GPUs, such as --gpus 64"),
        (["--gpus", "8"], "--gbs is missing: sequences per step, such as --gbs 128"),
        (["--gpus", 2**21, "--gbs", 8], "must be at most 1,048,576"),
        (["--gpus", 8, "--gbs", "8,x"], "gbs: 'x'"),
        (["--gpus", 8, "--gbs", 8, "--layers"], "AMPeD's search lists no layers"),
        (["--gpus", 8, "--gbs", 8, "--method", "1d"], "AMPeD has no such option"),
    ],
)
def test_searches_that_it_cannot_have_are_refused(shardwise, words, told):
    """What is missing, too large or not its own."""
    code, out, err = shardwise("search", "gpt3-175b", "h100-sxm", "--reference", "amped", *words)
    assert (code, out) == (2, "")
    assert told in err


def test_a_strategy_file_is_named_by_faults(shardwise, tmp_path):
    """As with other predecessors."""
    strategy = Path(tmp_path) / "strategy.yaml"
    strategy.write_text("{gpus: 1024, tp: 8, pp: 8, gbs: 1536, vpp: 2}")
    words = ["estimate", "gpt3-175b", "a100-80gb-sxm", "--strategy", strategy]
    code, _, err = shardwise(*words, "--reference", "amped")
    assert code == 2
    assert err.startswith(f"error: {strategy}: vpp: 2: AMPeD does not know it")

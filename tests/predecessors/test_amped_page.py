"""docs/from/amped.md says what AMPeD gives: sizes of its faults, errors on measured runs."""

import re
from pathlib import Path
from statistics import mean

import pytest

from generated import check
from shardwise import Model, Strategy, estimate
from shardwise.predecessors.amped.reference import evaluate
from shardwise.predecessors.amped.translation import amped_case
from shardwise.predecessors.validate.amped import Published
from shardwise.units import readable
from shardwise.validate.measured.predict import predict_runs
from shardwise.validate.measured.runs import load_runs

PAGE = Path(__file__).parents[2] / "docs/from/amped.md"
BLOCK = re.compile(r"<!-- table: (amped-\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
GIVEN = {"gpus": 1024, "tp": 8, "pp": 8, "gbs": 1536}
KEPT = ("gpus", "tp", "pp", "dp", "micro_batch_size", "global_batch_size", "seq_len", "dtype")
TOTAL = "total_time_to_train"


@pytest.fixture(scope="module")
def case():
    """The run that sizes are told of."""
    return amped_case("gpt3-175b", "a100-80gb-sxm", GIVEN)


def test_products_are_ours(case):
    """FLOPs of a layer forward, once half of the scores is taken off; parameters but vectors."""
    ours, theirs = estimate("gpt3-175b", "a100-80gb-sxm", GIVEN), case.figures()
    products = theirs["total_attention_sublayer_MAC_operations"]
    products += theirs["total_MLP_sublayer_MAC_operations"]
    scores = 96 * theirs["self_attention_MAC_operations"]
    layer = ours.layers[0].forward.matrix_flops * 96 * 16 * 8  # micro-batches, replicas, ranks
    assert layer == 2 * (products - scores / 2)
    parameters = theirs["total_number_of_parameters_without_embedding"]
    assert ours.parameters == pytest.approx(parameters, rel=3e-4)
    assert ours.parameters > parameters


def _faults(case):
    """One row for each fault: what it is, the figure there, mended, and the step then."""
    told, given = case.figures(), dict(case.parameters)
    heads, context, layers = given["attention_heads"], given["context"], given["layers"]

    def mended(name, **words):
        found = evaluate({**given, **words})
        return told[name], float(found[name]), float(found[TOTAL])

    volumes = {
        f"{what}_volume_per_layer_batch": told[f"{what}_volume_per_layer_batch"] * heads
        for what in ("activations", "error")
    }
    passes = told["total_computation_time_forward_pass"]
    passes += told["total_computation_time_backward_pass"]
    waits = 7 * passes / given["number_of_microbatches_per_minibatch"]
    bubble = told["total_waiting_time_due_to_pipeline_bubbles"]
    mlp = "non_linear_operations_for_MLP_sublayer"
    forward, memory = "total_computation_time_forward_pass", "required_memory_per_accelerator"
    yield (
        "the bubble's compute is that of one layer of a stage: too small by L = 96",
        (bubble, bubble + waits * (1 - 1 / layers), told[TOTAL] + waits * (1 - 1 / layers)),
        "waiting",
    )
    yield (
        "activations are as wide as one head: tensor-parallel volumes too small by H = 96",
        mended("total_forward_tensor_model_intra", **volumes),
        "tensor parallelism forward",
    )
    yield (
        "the same between stages (which counts the full batch as one message)",
        mended("total_forward_pipeline_parallelism", **volumes),
        "pipeline parallelism forward",
    )
    yield (
        "non-linear operations on one core, not 108",
        mended(forward, C_NONLIN=told["C_NONLIN"] / given["number_of_cores"]),
        "compute forward",
    )
    yield (
        "those of the MLP lack the context s = 2048",
        mended(forward, **{mlp: told[mlp] * context}),
        "compute forward",
    )
    yield (
        "the head lacks s and counts in each of L layers",
        mended(forward, decoder_NMACs=told["decoder_NMACs"] * context / layers),
        "compute forward",
    )
    experts = evaluate({**given, "number_of_experts": 8.0})
    gating = "total_MoE_gating_network_compute_overhead"
    once = float(experts["gating_MAC_operations"]) / layers
    alone = evaluate({**given, "number_of_experts": 8.0, "gating_MAC_operations": once})
    yield (
        "gating of all layers is added to each (were there 8 experts)",
        (float(experts[gating]), float(alone[gating]), None),
        "gating",
    )
    kept = told[f"{memory}_activations"]
    yield (
        "memory of activations is divided by N_DP = 16 twice",
        (kept * 1e9, kept * 16e9, None),
        "memory of activations",
    )


def _table_of_faults(case):
    lines = ["| fault | figure | there | fixed | step then |", "|---|---|--:|--:|--:|"]
    for fault, (there, mended, step), figure in _faults(case):
        unit = "bytes" if figure.startswith("memory") else "seconds"
        then = "-" if step is None else f"{step:.2f} s"
        amounts = f"{readable(there, unit)} | {readable(mended, unit)}"
        lines.append(f"| {fault} | {figure} | {amounts} | {then} |")
    return lines


def _table_of_runs():
    """Narayanan 2021: signed errors of AMPeD, with a second forward pass, and ours."""
    lines = ["| run | measured | AMPeD | error | with recompute | TFLOP/s per GPU | ours |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    runs = [run for run in load_runs() if run.id.startswith("narayanan21-")]
    found = {"of Megatron-LM": [], "of ZeRO-3": []}
    for run, ours in zip(runs, predict_runs(runs), strict=True):
        said = run.case()
        kept = {name: getattr(said.strategy, name) for name in KEPT}
        told = amped_case(said.model, said.system, Strategy.validated(kept)).figures()
        measured, step = ours.measured_step_time_s, told[TOTAL]
        again = step + told["total_computation_time_forward_pass"]
        rate = told["total_TFLOPS_per_second_per_gpu"] / run.measured.tflops_per_gpu
        errors = [one / measured - 1 for one in (step, again, ours.step_time_s)]
        errors.insert(2, rate - 1)
        found["of ZeRO-3" if "zero3" in run.id else "of Megatron-LM"].append(errors)
        name = run.id.removeprefix("narayanan21-")
        lines.append(f"| {name} | {measured:.2f} s | {step:.2f} s | {_signed(errors)} |")
    for name, errors in found.items():
        columns = list(zip(*errors, strict=True))
        bias = _signed([mean(column) for column in columns])
        lines.append(f"| mean {name} ({len(errors)}) | | | {bias} |")
    return lines


def _table_of_gpipe():
    """GPipe's table 3: throughput over that of two stages, as described and with a true bubble."""
    published = Published.load("amped").gpipe
    source = {"": {"kind": "published", "text": "GPipe"}}
    model = Model.validated({**published.model, "sources": source})
    steps = {stages: _of_stages(model, published, stages) for stages in (2, 4, 8)}
    lines = ["| stages | measured | AMPeD | error | bubble fixed | error |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for stages, measured in published.throughput.items():
        ratios = [one / other for one, other in zip(steps[2], steps[stages], strict=True)]
        cells = (f"{ratio:.2f} | {100 * (ratio / measured - 1):+.1f} %" for ratio in ratios)
        lines.append(f"| {stages} | {measured:g} | {' | '.join(cells)} |")
    return lines


def _of_stages(model, published, stages):
    """Time of a step: as described, and with a bubble of all layers of a stage."""
    words = {"pp": stages, "dp": 1, "gbs": published.micro_batches, "dtype": "fp32"}
    told = amped_case(model, published.system, words).figures()
    passes = told["total_computation_time_forward_pass"]
    passes += told["total_computation_time_backward_pass"]
    waits = (stages - 1) * passes / published.micro_batches
    layers = sum(layer.count for layer in model.layers)
    return told[TOTAL], told[TOTAL] + waits * (1 - 1 / layers)


def _signed(errors):
    return " | ".join(f"{100 * error:+.1f} %" for error in errors)


def test_the_page_shows_what_its_formulas_give(case):
    """All three tables, and no other."""
    text = PAGE.read_text(encoding="utf-8")
    found = {"amped-faults": _table_of_faults(case), "amped-narayanan": _table_of_runs()}
    found["amped-gpipe"] = _table_of_gpipe()
    assert [name for name, _ in BLOCK.findall(text)] == list(found)
    expected = BLOCK.sub(
        lambda m: f"<!-- table: {m[1]} -->\n" + "\n".join(found[m[1]]) + "\n<!-- end -->", text
    )
    check(PAGE, expected)

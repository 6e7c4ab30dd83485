"""Our model beside Calculon's on the same inputs: what must be equal, and how far the rest is."""

import re
from pathlib import Path
from statistics import median

import pytest

from calculon_runs import FEASIBLE, RUNS, float8, model_of, ours, pairs, system_of
from generated import check
from profiles import sampled
from rows import each_row
from shardwise import InputError, Strategy, estimate
from shardwise.predecessors.calculon.reference import STAT_FIELDS
from shardwise.predecessors.calculon.tables import CALCULON, counterparts
from shardwise.predecessors.calculon.translation import calculon_case

pytestmark = pytest.mark.any_software

PAGE = Path(__file__).parents[2] / "docs/from/calculon.md"
PRODUCT = re.compile(
    r"_(Query|Key|Value|Multihead_Key_Query|Multihead_Attn|MLP|Mlp1|Mlp2|QKV_AG|MLP_RS|Mlp1_AG"
    r"|Mlp2_RS|Query_AG)$"
)
close = {"rel": 1e-9, "abs": 0}


def _share(case):
    execution = case["execution"]
    return execution["tensor_par"] if execution["tensor_par_comm_type"] == "rs_ag" else 1


def _legal(case):
    """Whether our model takes it; `test_most_runs_are_estimated_...` holds it to this."""
    execution = case["execution"]
    staged = execution["pipeline_par"] <= model_of(case).depth
    return staged and execution["datatype"] != "float8"


# A run of each kind of exchange, recompute and attention is enough for what depends on no more.
KINDS = {
    tuple(
        case["execution"][field]
        for field in (
            "tensor_par_comm_type",
            "tensor_par_overlap",
            "activation_recompute",
            "attention_type",
            "training",
        )
    ): case
    for case in FEASIBLE
    if _legal(case)
}


def test_every_statistic_has_a_counterpart_once():
    """The 96 names of Calculon, each with fields that an estimate has."""
    assert sorted(row.name for row in CALCULON) == sorted(STAT_FIELDS)
    _, _, result = pairs()[0]
    assert all(row.value(result) >= 0 for row in CALCULON)


def test_most_runs_are_estimated_and_the_rest_refused_by_name():
    """Only more stages than layers are not modeled."""
    taken = {id(case) for case, _, _ in pairs()}
    assert len(taken) >= 120
    for case in FEASIBLE:
        if id(case) in taken or case["execution"]["datatype"] == "float8":
            continue
        with pytest.raises(InputError) as error:
            ours(case)
        (fault,) = error.value.faults
        assert (fault.field, fault.value) == ("pp", 64)


def test_float8_runs_the_same_products_in_eight_bits():
    """FLOPs of a step and states are equal; types of the products and of the rest are as stated."""
    assert len(float8()) > 10
    for case, theirs, run in float8():
        layer = ours(case, bias="none").layers[0]
        strategy = run.strategy
        recipe = (strategy["dtype"], strategy["quantization"], strategy["quantized_weights"])
        assert recipe == ("fp16", "fp8_tensor", True)
        assert layer.optimizer_bytes == pytest.approx(theirs["block_optimizer_space"], **close)
        assert run.layers[0].forward.flops == pytest.approx(theirs["block_fw_flops"], rel=2e-3)
        orientations = 2 if case["execution"]["training"] else 1  # the other one is a copy
        stored = orientations * theirs["block_weight_space"]
        assert layer.weight_bytes == pytest.approx(stored, rel=1e-3)  # norms have 16 bits
        there = calculon_case(
            RUNS["models"][case["model"]], system_of(case), Strategy.load(case["execution"])
        )
        assert there.execution.to_dict() == case["execution"]


def test_what_means_the_same_is_equal():
    """Rows without a reason agree to 1e-9 in every run."""
    rows = [row for row in CALCULON if not row.reason]
    assert len(rows) >= 2
    for case, statistics, result in pairs():
        for row in rows:
            assert row.value(result) == pytest.approx(statistics[row.name], **close), case["id"]


def test_reasons_are_those_of_the_run():
    """What differs has a reason, and no reason needs a choice that the strategy did not make."""
    needs = {
        "attention input again": ("recompute", "selective"),
        "working set there": ("recompute", "full"),
        "edge of a stage": ("tp_exchange", "p2p_rs_ag"),
        "ring hides": ("tp_overlap", "ring"),
        "overlap windows": ("dp_overlap", True),
    }
    seen = set()
    for case, statistics, result in pairs():
        for row in counterparts(result):
            value, theirs = row.value(result), statistics[row.name] or 0
            assert row.reason or value == pytest.approx(theirs, **close), (case["id"], row.name)
            for words, (field, choice) in needs.items():
                if words in row.reason:
                    assert result.strategy[field] == choice, (case["id"], row.name)
                    seen.add(words)
    assert seen == set(needs)


@each_row("kind", sampled(KINDS, 2))
def test_products_do_the_same_flops(kind):
    """Forward, gradient of the input and of the weights: FLOPs of all products of a block."""
    case = KINDS[kind]
    layer = ours(case).layers[0]
    theirs = calculon_case(
        RUNS["models"][case["model"]], system_of(case), case["execution"]
    ).layers()
    passes = {"fw": layer.forward, "agrad": layer.input_grad, "wgrad": layer.weight_grad}
    for name, totals in passes.items():
        done = sum(row[f"{name}_flops"] for row in theirs if PRODUCT.search(row["name"]))
        expected = done if case["execution"]["training"] or name == "fw" else 0
        assert totals.matrix_flops == pytest.approx(expected, **close)


def test_weights_are_the_same_but_for_biases():
    """Without biases: weights of a block, its optimizer state, and the bytes replicas exchange."""
    for kind, case in KINDS.items():
        layer = ours(case, bias="none").layers[0]
        theirs = dict(zip(RUNS["stat_fields"], case["stats"], strict=True))
        assert layer.weight_bytes == pytest.approx(theirs["block_weight_space"], **close), kind
        state = theirs["block_optimizer_space"]
        assert layer.optimizer_bytes == pytest.approx(state, **close), kind
        if theirs["block_dp_size"]:
            exchanged = theirs["block_dp_size"]
            assert layer.gradient_bytes == pytest.approx(exchanged, **close), kind


def test_exchanges_move_the_same_bytes():
    """Within a block forward, backward and again; to the next stage; and what full recompute keeps.

    Calculon's attn_only repeats the gather of the attention's input in any case, its p2p_rs_ag
    exchanges otherwise in the last block of a chunk, and its checkpoints are whole.
    """
    for case, theirs, result in pairs():
        layer, execution = result.layers[0], case["execution"]
        kind, recompute = execution["tensor_par_comm_type"], execution["activation_recompute"]
        if recompute != "attn_only":
            again = layer.tp_again.volume_bytes
            assert again == pytest.approx(theirs["baseblock_recomm_size"], **close)
        if execution["pipeline_par"] > 1 and kind != "p2p_rs_ag":
            handed = theirs["block_fw_pp_size"]
            assert layer.boundary_bytes == pytest.approx(handed, **close)
        if recompute == "full" and execution["training"]:
            checkpoint = theirs["block_act_checkpoint_size"] / _share(case)
            assert layer.kept_bytes == pytest.approx(checkpoint, **close)


def test_transfers_between_stages_take_the_same_time():
    """Link time of all transfers in a step, where no scatter is part of them."""
    seen = 0
    for case, theirs, result in pairs():
        if case["execution"]["tensor_par_comm_type"] == "p2p_rs_ag":
            continue
        total = result.comm_s["pp"].total
        assert total == pytest.approx(theirs["pp_comm_link_time"], **close), case["id"]
        seen += total > 0
    assert seen > 40


def test_without_its_own_additions_exchanges_take_the_same_time():
    """Calculon's link time holds the additions of the reduction, as vector FLOPs and bytes."""
    for case, theirs, result in pairs():
        if case["execution"]["tensor_par_overlap"] != "none":
            continue
        layer = result.layers[0]
        assert layer.tp_forward.time_s <= theirs["baseblock_fw_tp_time"] * (1 + 1e-9)
        if case["execution"]["activation_recompute"] != "attn_only":
            again = theirs["baseblock_recomm_time"]  # Calculon leaves them out here
            assert layer.tp_again.time_s == pytest.approx(again, **close), case["id"]


def test_a_native_system_of_the_catalog_is_the_imported_one():
    """calculon-a100-80g gives what the file gives."""
    case = KINDS[next(iter(KINDS))]
    for name in ("a100_80g", "a100_80e", "h100_80g_nvl8"):
        native = f"calculon-{name.replace('_', '-')}"
        results = [
            estimate(model_of(case), system, case["execution"])
            for system in (native, RUNS["systems"][name])
        ]
        assert results[0].time_s == results[1].time_s
        assert results[0].memory_bytes == results[1].memory_bytes


def _table():
    """Return the lines of the page's table, from the runs."""
    lines = []
    for row in CALCULON:
        errors, same, count = [], 0, 0
        for _, statistics, result in pairs():
            theirs = statistics[row.name]
            if theirs is None:
                continue
            mine, count = row.value(result), count + 1
            same += abs(mine - theirs) <= 1e-9 * abs(theirs)
            if theirs:
                errors.append(mine / theirs - 1)
        middle = f"{100 * median(errors):+.1f} %" if errors else "-"
        where = row.ours.replace("layers.0", "layer").replace("stages.0", "stage")
        where = where.replace(" * ", " x ")
        lines.append(f"| `{row.name}` | {where} | {same} of {count} | {middle} |")
    return lines


def test_the_page_shows_every_counterpart_with_its_difference():
    """The page has the table as the runs give it."""
    text = PAGE.read_text(encoding="utf-8")
    head = "| statistic | in an estimate | equal in | median difference |\n|---|---|---|---|\n"
    before, _, rest = text.partition(head)
    after = rest[rest.find("\n\n") :]
    expected = before + head + "\n".join(_table()) + after
    check(PAGE, expected)

"""Peaks of the forward and of the backward pass, and the memory of dense and expert weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from drawn_strategies import legal, machines, models, rows, with_host
from profiles import examples
from rows import each_row
from samples import run
from shardwise import Model, System, estimate
from shardwise.analysis.results import Estimate, StageEstimate, WeightMemory

pytestmark = pytest.mark.any_software

DATA = Path(__file__).parent / "data" / "simumax"
SBH = 64 * 64
KINDS = ("weights", "gradients", "optimizer")


def moments(stage: StageEstimate) -> list[tuple[float, str, str]]:
    """Bytes in addition to weights, gradients, state and saved activations, and where."""
    held = stage.weights + stage.gradients + stage.optimizer + stage.activations
    return [
        (one.bytes - held, one.operation, one.phase)
        for one in (stage.forward_peak, stage.backward_peak)
        if one is not None
    ]


def test_each_pass_has_a_peak_by_hand() -> None:
    """Forward needs the result of the last residual, less the mask that is not yet saved.

    Backward needs input and output of the second product of the MLP, less the mask that is gone. On
    the last stage forward ends, and backward begins, with all that the loss saves.
    """
    stages = run(pp=4, gbs=16).stages
    end = 2 * 2 * SBH + 4 * 64 * 1000
    for stage in stages[:3]:
        assert moments(stage) == [
            (2 * SBH - SBH, "mlp.residual", "forward"),
            (64 * (256 + 64) * 2 - SBH, "mlp.down", "backward"),
        ]
    assert moments(stages[3]) == [(end, "loss", "forward"), (end, "loss", "backward")]


def test_full_recompute_saves_nothing_in_its_first_forward() -> None:
    """Forward needs input and output of the activation; backward rebuilds a layer."""
    first = run(pp=4, gbs=16, recompute="full").stages[0]
    forward, backward = moments(first)
    assert forward == (2 * 2 * 64 * 256, "mlp.activation", "forward")
    assert backward[0] > 34 * SBH
    assert first.backward_peak == first.peak


def test_the_update_is_in_neither_pass() -> None:
    """Where the update needs most, both passes need less than the stage's peak."""
    stage = run(mbs=1, gbs=1, seq_len=8, software={"update_bytes": 8}).stages[0]
    assert stage.peak.phase == "update"
    assert all(one[0] < stage.buffers for one in moments(stage))


def test_gradients_that_come_in_backward_are_not_in_forward() -> None:
    """Software that frees gradients after the update has none in its forward pass."""
    columns: dict[str, Any] = {"mbs": 1, "gbs": 1, "seq_len": 8, "zero": 0}
    plain, freed = (
        run(samples.llama(vocab=64), software={"clears_gradients": clears}, **columns).stages[0]
        for clears in (False, True)
    )
    assert plain.forward_peak is not None
    assert freed.forward_peak is not None
    assert freed.forward_peak.bytes == plain.forward_peak.bytes - plain.gradients
    assert freed.backward_peak == freed.peak
    assert freed.gradients == plain.gradients


def test_forward_only_has_one_peak() -> None:
    """Without a backward pass the peak of the stage is that of the forward pass."""
    stage = run(training=False).stages[0]
    assert stage.peak.phase == "forward"
    assert (stage.forward_peak, stage.backward_peak, stage.experts) == (None, None, None)


def theirs(name: str, strategy: dict[str, Any], **fields: Any) -> Estimate:
    """Estimate a model and a strategy of SimuMax on its A100."""
    padded = {"padded_vocab_size": True, "make_vocab_size_divisible_by": 128}
    model = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) | padded | fields
    return estimate(model, DATA / "a100_pcie.json", strategy)


@pytest.mark.needs("predecessors")
def test_simumax_has_the_same_peaks() -> None:
    """SimuMax 1.2 counts 54,436,429,824 bytes forward and 54,637,756,416 backward on stage 0.

    On the last stage 48,494,186,496 forward; what backward needs less it does not say.
    """
    runs = json.loads((DATA / "runs.json").read_text(encoding="utf-8"))
    plain = next(r["strategy"] for r in runs if r["id"] == "a100/llama3-8b_l32_tp8_mbc4")
    derived = ("global_batch_size", "dp_size", "edp_size")
    strategy = {name: value for name, value in plain.items() if name not in derived}
    strategy |= {"tp_size": 1, "pp_size": 2, "micro_batch_num": 8}
    first, last = theirs("llama3-8b", strategy, layer_num=32).stages
    assert first.forward_peak is not None
    assert first.backward_peak is not None
    assert last.forward_peak is not None
    assert first.forward_peak.bytes == pytest.approx(54436429824, rel=2e-4)
    assert first.backward_peak.bytes == pytest.approx(54637756416, rel=2e-4)
    assert last.forward_peak.bytes == pytest.approx(48494186496, rel=1e-4)


@pytest.mark.needs("predecessors")
def test_simumax_has_the_same_dense_and_expert_bytes() -> None:
    """`model_mem_detail` of 4 layers of DeepSeek-V2 with ep 4, by stage: equal to the byte."""
    file = DATA / "ep4_pp2_dp4_mbs1_selective_recompute.json"
    strategy = json.loads(file.read_text(encoding="utf-8"))
    padding = {"moe_pad_expert_input_to_capacity": True, "capacity": 1}
    stages = theirs("deepseekv2", strategy, layer_num=4, **padding).stages
    found = [
        tuple(getattr(one, name) for name in KINDS)
        for stage in stages
        for one in (stage.dense, stage.experts)
    ]
    assert found == [
        (2119024640, 4238049280, 3178536960),
        (1887436800, 3774873600, 11324620800),
        (1837557760, 3675115520, 2756336640),
        (3774873600, 7549747200, 22649241600),
    ]


@st.composite
def expert_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Strategies of a model with experts, for software of all kinds."""
    flag = st.booleans()
    ep, zero = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([0, 1, 2, 3]))
    names = ("update_in_backward", "clears_gradients", "gathers_master")
    return {
        "pp": draw(st.sampled_from([1, 2, 4])),
        "dp": 12,
        "ep": ep,
        "mbs": 1,
        "gbs": 12 * draw(st.integers(1, 6)),
        "zero": zero,
        "recompute": draw(st.sampled_from(["none", "full"])),
        "optimizer": draw(st.sampled_from(["adamw", "muon", "sgd"])),
        "offload_weights": draw(flag),
        "offload_optimizer": draw(flag),
        "stack": samples.stack(**{name: draw(flag) for name in names}),
    }


@examples(60)
@given(expert_rows())
def test_dense_and_expert_weights_add_up(columns: dict[str, Any]) -> None:
    """Both parts of each kind add up to the total exactly, and experts have a share of each."""
    host = with_host(samples.system(), 1e9)
    for stage in estimate(samples.deepseek(), host, columns).stages:
        assert stage.dense is not None
        assert stage.experts is not None
        for name in KINDS:
            dense, experts = getattr(stage.dense, name), getattr(stage.experts, name)
            assert dense + experts == getattr(stage, name)
            assert min(dense, experts) >= 0
        assert stage.dense.parameters + stage.experts.parameters == stage.parameters
        assert (stage.experts.parameters > 0) == (stage.stage > 0 or columns["pp"] < 4)


def test_expert_weights_by_hand() -> None:
    """Of 8 experts on 2 ranks: 4 of 3 x 64 x 32 weights on a layer; ZeRO-1 over 3 of 6 replicas."""
    stage = run(samples.deepseek(), dp=6, ep=2, mbs=1, gbs=6, zero=1).stages[0]
    weights = 3 * 4 * 3 * 64 * 32
    assert stage.experts == WeightMemory(
        parameters=weights, weights=2 * weights, gradients=4 * weights, optimizer=12 * weights / 3
    )


@each_row(("vocab", "experts"), [(1000, 8 * 3 * 64 * 32), (5000, 0)])
def test_gradients_of_one_component_are_those_of_its_experts(vocab: int, experts: int) -> None:
    """Updated in backward, the largest is a layer with 8 experts, or an embedding with none."""
    software = {"update_in_backward": True}
    stage = run(samples.deepseek(vocab=vocab), software=software, zero=0).stages[0]
    assert stage.experts is not None
    assert stage.experts.gradients == 4 * experts < stage.gradients


def test_without_gradients_experts_have_none() -> None:
    """Where the peak comes before gradients do, neither part has any."""
    software = {"clears_gradients": True}
    stage = run(samples.deepseek(), software=software, mbs=32, gbs=32, zero=0).stages[0]
    assert stage.dense is not None
    assert stage.experts is not None
    assert (stage.gradients, stage.dense.gradients, stage.experts.gradients) == (0, 0, 0)


@examples(60)
@given(models, machines, st.lists(rows(), min_size=1, max_size=3))
def test_the_highest_pass_is_the_peak(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Neither pass needs more than the stage; the one that has its peak needs exactly as much."""
    table = legal(model, machine, given)
    for row in range(len(table)):
        for stage in estimate(model, machine, table.strategy(row)).stages:
            passes = {one.phase: one for one in (stage.forward_peak, stage.backward_peak) if one}
            assert set(passes) == ({"forward", "backward"} if stage.in_flight else set())
            assert all(one.bytes <= stage.peak.bytes for one in passes.values())
            assert passes.get(stage.peak.phase, stage.peak) == stage.peak
            assert (stage.dense, stage.experts) == (None, None)

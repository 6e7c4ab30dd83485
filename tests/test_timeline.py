"""Timelines by hand, and against the estimate."""

import itertools
from typing import Any

import numpy as np
import pytest

import samples
import trace_format
from rows import each_row, first_of
from shardwise import InputError, Model, System, Trace, estimate, trace
from shardwise.analysis.results import Estimate
from shardwise.analysis.timeline.actions import KINDS
from shardwise.analysis.timeline.step import StepTimeline, rank_totals

pytestmark = pytest.mark.any_software

F, B = 0, 1
SBH = 64 * 64
KEPT = 34 * SBH + 4 * 64 * 8
GIB = 2**30


def both(
    architecture: Model | None = None,
    machine: System | None = None,
    software: dict[str, Any] | None = None,
    **columns: Any,
) -> tuple[Trace, Estimate]:
    """The timeline and the estimate of one strategy of the samples."""
    given = {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack(**(software or {}))} | columns
    called = architecture or samples.model(), machine or samples.system(), given
    return trace(*called), estimate(*called)


def passes(line: StepTimeline, rank: int) -> list[tuple[Any, ...]]:
    """Kind, micro-batch, chunk, start and end of every pass of a rank."""
    a = line.actions
    return [
        (KINDS[a.kind[n]], int(a.micro_batch[n]), int(a.chunk[n]), a.start_s[n], a.end_s[n])
        for n in np.flatnonzero(a.rank == rank)
    ]


def test_two_micro_batches_on_two_stages() -> None:
    """1F1B by hand: every message occupies the rank that waits for it."""
    found, result = both(pp=2, gbs=4)
    (f0, b0), (f1, b1) = ((stage.forward_s, stage.backward_s) for stage in result.stages)
    hop = 2 * SBH / 100e9
    first_back = f0 + hop + f1 + b1
    second = max(first_back, 2 * f0) + hop
    last_back = second + f1 + b1
    back = first_back + hop
    end = max(back + b0, last_back) + hop
    line = found.timeline
    assert passes(line, 0) == [
        ("F", 0, 0, 0.0, pytest.approx(f0)),
        ("F", 1, 0, pytest.approx(f0), pytest.approx(2 * f0)),
        ("B", 0, 0, pytest.approx(back), pytest.approx(back + b0)),
        ("B", 1, 0, pytest.approx(end), pytest.approx(end + b0)),
    ]
    assert passes(line, 1) == [
        ("F", 0, 0, pytest.approx(f0 + hop), pytest.approx(f0 + hop + f1)),
        ("B", 0, 0, pytest.approx(f0 + hop + f1), pytest.approx(first_back)),
        ("F", 1, 0, pytest.approx(second), pytest.approx(second + f1)),
        ("B", 1, 0, pytest.approx(second + f1), pytest.approx(last_back)),
    ]
    totals = rank_totals(line)
    assert totals.transfers_s == pytest.approx([2 * hop, 2 * hop])
    idle = line.passes_s - 2 * hop - np.array([2 * (f0 + b0), 2 * (f1 + b1)])
    assert totals.idle_s == pytest.approx(idle)
    assert line.passes_s == pytest.approx(end + b0)
    assert line.step_s == pytest.approx(result.step_time_s)
    assert line.after_s["optimizer"] == result.time_s["optimizer"] > 0
    # Rank 0 keeps both micro-batches of its two layers and looked up words, rank 1 one at a time.
    kept = 2 * KEPT + SBH
    assert line.memory_at_actions.activations[:4].tolist() == [kept, 2 * kept, 2 * kept, kept]
    assert line.memory_at_actions.after[:4].tolist() == [kept, 2 * kept, kept, 0]
    assert line.memory_at_actions.activations[4:].tolist() == [2 * KEPT] * 4
    assert line.memory_at_actions.after[4:].tolist() == [2 * KEPT, 0, 2 * KEPT, 0]
    assert line.actions.source.tolist() == [-1, -1, 5, 7, 0, 4, 1, 6]
    assert line.actions.far.tolist() == [False, False, True, True, True, False, True, False]


def test_counters_fall_when_a_pass_ends() -> None:
    """Between its two micro-batches the last rank keeps nothing, while a message comes in."""
    found, result = both(pp=2, gbs=4)
    chrome = found.to_chrome()
    held = [e for e in chrome["traceEvents"] if e["ph"] == "C" and e["pid"] == 1]
    kept = [e["args"]["activations"] * GIB for e in held]
    assert kept == pytest.approx([0, 2 * KEPT, 2 * KEPT, 0, 2 * KEPT, 2 * KEPT, 0], abs=1e5)
    back = found.timeline.actions.end_s[5] * 1e6
    assert held[3]["ts"] == pytest.approx(back, abs=1e-3)
    assert held[3]["args"]["transient"] == 0
    last = held[-1]["args"]
    static = last["weights"] + last["gradients"] + last["optimizer"]
    assert static * GIB == pytest.approx(found.timeline.static_bytes[1], abs=3e5)
    assert result.stages[1].weights == pytest.approx(last["weights"] * GIB, abs=1e5)


@each_row("schedule", ["interleaved", "zb-v", "dualpipe"])
def test_messages_slower_than_passes_are_drawn_apart(schedule: str) -> None:
    """A link that carries several at once shows them one after the other."""
    slow = samples.system(network=[samples.tier("inside", domain=8, bandwidth=1e7)])
    columns: dict[str, Any] = {"pp": 2, "gbs": 16, "schedule": schedule, **SCHEDULES[schedule]}
    found, _ = both(samples.llama(), slow, {"pp_hidden": 1}, **columns)
    line = found.timeline
    assert line.pipeline.hop_s > line.passes.of["B"].time_s.max()
    trace_format.check(found.to_chrome())


def test_messages_overlap_compute_in_part() -> None:
    """Three quarters of them do: times are those of both ways by their shares, waits a quarter."""
    columns: dict[str, Any] = {"pp": 2, "vpp": 2, "gbs": 8}
    lines = [
        both(software={"pp_hidden": share}, **columns)[0].timeline for share in (1.0, 0.0, 0.75)
    ]
    beside, blocking, partly = (line.actions for line in lines)
    assert partly.start_s == pytest.approx(0.75 * beside.start_s + 0.25 * blocking.start_s)
    assert partly.end_s == pytest.approx(0.75 * beside.end_s + 0.25 * blocking.end_s)
    hop = lines[0].pipeline.hop_s
    assert partly.waited_s[partly.far] == pytest.approx(hop / 4)
    assert not beside.waited_s.any()
    assert blocking.waited_s[blocking.far] == pytest.approx(hop)


FAST = samples.system(
    network=[
        samples.tier("inside", domain=8, bandwidth=1e13),
        samples.tier("between", bandwidth=1e13),
    ]
)
SCHEDULES = {
    "1f1b": {},
    "gpipe": {},
    "interleaved": {"vpp": 2},
    "zb-h1": {},
    "zb-v": {},
    "dualpipe": {},
}


@each_row(
    ("name", "columns"),
    [
        ("olmo2-7b", {"tp": 1, "pp": 16, "vpp": 3, "gbs": 16, "loss_as_layer": True}),
        ("llama3-8b", {"tp": 4, "pp": 16, "vpp": 3, "gbs": 32, "embedding_as_layer": True}),
        ("kimi-k2", {"tp": 4, "pp": 4, "vpp": 8, "gbs": 16}),
        ("deepseek-v2-lite", {"tp": 8, "pp": 8, "vpp": 2, "gbs": 8}),
    ],
)
def test_layers_that_leave_last_chunks_shorter(name: str, columns: dict[str, Any]) -> None:
    """The estimate is the simulated step; with the mean over a rank's chunks it was 1 to 6 % off.

    Some ranks' last chunk lacks a layer, and the first rank's first one where the embedding counts.
    """
    given = {"dp": 1, "schedule": "interleaved", "seq_len": 4096} | columns
    line = trace(Model.load(name), System.load("h100-sxm"), given).timeline
    assert line.estimated_s == pytest.approx(line.step_s, rel=2e-3)


@each_row("more", [{}, {"recompute": "full"}, {"tp": 2, "zero": 3, "dp": 2}])
@each_row("schedule", SCHEDULES)
def test_equal_stages_end_and_peak_as_the_estimate_says(schedule: str, more: Any) -> None:
    """Steps within 0.5 %, mostly exactly; peaks of every rank to rounding."""
    model = samples.llama(layers=[samples.layer(count=16)], vocab=64)
    columns: dict[str, Any] = {
        "pp": 4,
        "gbs": 64,
        "schedule": schedule,
        **SCHEDULES[schedule],
        **more,
    }
    found, result = both(model, FAST, **columns)
    line = found.timeline
    assert line.step_s == pytest.approx(result.step_time_s, rel=5e-3)
    assert line.estimated_s == result.step_time_s
    peaks = [stage.peak.bytes for stage in result.stages]
    assert rank_totals(line).peak_bytes == pytest.approx(peaks, rel=1e-9)


CATALOG: list[tuple[str, dict[str, Any]]] = [
    ("llama3-70b", {"gpus": 48, "tp": 8, "pp": 6, "gbs": 64}),  # 14 and 13 layers
    ("llama3-8b", {"gpus": 8, "gbs": 32}),
    ("mixtral-8x7b", {"gpus": 64, "tp": 2, "pp": 4, "ep": 8, "gbs": 256}),
    ("mixtral-8x7b", {"gpus": 64, "tp": 2, "pp": 4, "ep": 8, "gbs": 256, "schedule": "dualpipe"}),
    ("mixtral-8x7b", {"gpus": 64, "tp": 2, "pp": 4, "vpp": 2, "ep": 8, "gbs": 256, "zero": 2}),
    ("llama3-70b", {"gpus": 64, "tp": 4, "pp": 4, "gbs": 128, "training": False}),
]


@each_row(("name", "columns"), CATALOG)
def test_models_of_the_catalog_end_and_peak_as_estimated(name: str, columns: Any) -> None:
    """Uneven stages, one rank, experts, forward only."""
    result, found = (make(name, "h100-sxm", columns) for make in (estimate, trace))
    line = found.timeline
    assert line.step_s == pytest.approx(result.step_time_s, rel=5e-3)
    peaks = [stage.peak.bytes for stage in result.stages]
    assert rank_totals(line).peak_bytes == pytest.approx(peaks, rel=1e-9)


def test_chunks_of_unequal_layers_hold_what_they_hold() -> None:
    """Of 3 layers first and 1 later, four and one are held at the fullest moment of rank 0."""
    lists: dict[str, Any] = {"stage_layers": (3, 3, 1, 1), "schedule": "interleaved", "vpp": 2}
    model = samples.llama(layers=[samples.layer(count=8)], vocab=64)
    found, result = both(model, FAST, pp=2, gbs=32, **lists)
    line = found.timeline
    layers = line.memory_at_actions.activations / line.passes.saved_bytes[0] * 3
    assert layers[line.actions.rank == 0].max() == pytest.approx(4 * 3 + 1)
    layer = line.passes.saved_bytes[0] / 3
    assert result.stages[0].activations == pytest.approx((4 * 3 + 1) * layer)


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("recompute", first_of(1, ["selective", "none"]))
def test_unlike_chunks_keep_what_the_estimate_says(kinds: int, recompute: str) -> None:
    """Chunks without their last layer, layers of two kinds, any list of layers: to the byte."""
    rng = np.random.default_rng(3)
    for p, v, groups in itertools.product((2, 3, 5), (2, 3), (1, 2, 4)):
        listed = tuple(rng.integers(1, 4, p * v).tolist())
        for given in ({}, {"stage_layers": listed, "schedule": "interleaved"}):
            depth = sum(listed) if given else 2 * p * v - int(rng.integers(0, p))
            wide = [samples.layer(count=depth // 2, mlp={"ffn": 700})] * (kinds - 1)
            rest = samples.layer(count=depth - (depth // 2) * (kinds - 1))
            model = samples.llama(layers=[rest, *wide], vocab=64)
            columns = {"pp": p, "vpp": v, "gbs": 2 * p * groups, "recompute": recompute, **given}
            one = {"dp": 1, "mbs": 2} | columns
            line = trace(model, samples.system(), one).timeline
            ranks = line.actions.rank
            held = [line.memory_at_actions.activations[ranks == rank].max() for rank in range(p)]
            assert line.memory.activations == pytest.approx(held, rel=1e-12)


def test_recompute_of_some_layers_takes_the_first_chunks() -> None:
    """3 of a rank's 4 layers: both of its first chunk, one of its second."""
    model = samples.llama(layers=[samples.layer(count=8)], vocab=64)
    columns: dict[str, Any] = {"pp": 2, "vpp": 2, "gbs": 8, "recompute": "full"}
    some = both(model, recompute_layers=3, **columns)[0].timeline.passes.of["B"]
    every = both(model, **columns)[0].timeline.passes.of["B"]
    share = some.kernels_s["recompute"] / every.kernels_s["recompute"]
    assert share == pytest.approx([1, 1, 0.5, 0.5])


def test_offloaded_activations_leave_two_layers_here() -> None:
    """However many are in flight; the estimate says the same."""
    tiers = [
        {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12},
        {"name": "host", "capacity": 80e9, "bandwidth": 1e12},
    ]
    machine = samples.system(memory=tiers)
    columns: dict[str, Any] = {"pp": 2, "gbs": 16, "offload_activations": True}
    model = samples.llama(layers=[samples.layer(count=8)], vocab=64)
    found, result = both(model, machine, **columns)
    line = found.timeline
    assert line.memory_at_actions.activations.max() == pytest.approx(line.passes.saved_bytes[0] / 2)
    peaks = [stage.peak.bytes for stage in result.stages]
    assert rank_totals(line).peak_bytes == pytest.approx(peaks, rel=1e-9)


def test_the_transient_of_a_direction_is_its_peak() -> None:
    """Of both directions the larger one is the estimate's buffer; forward needs less here."""
    found, result = both(samples.llama(vocab=64), gbs=4)
    line = found.timeline
    ahead, back = (line.memory_at_actions.live[line.actions.kind == kind] for kind in (F, B))
    assert len(set(ahead)) == len(set(back)) == 1
    assert 0 < ahead[0] < back[0] == result.memory_bytes.buffers


def test_full_recompute_still_goes_forward_once() -> None:
    """What its first forward holds for a moment is what a step that only goes forward holds.

    Less the residual stream, which is kept here.
    """
    model = samples.llama(vocab=64)
    again, once = (
        both(model, pp=2, gbs=4, **more)[0].timeline.passes.of["F"].transient_bytes
        for more in ({"recompute": "full"}, {"training": False})
    )
    assert again[0] == pytest.approx(once[0] - 2 * SBH)
    assert again[0] > 0


def test_operations_fill_the_slices_of_one_micro_batch() -> None:
    """Layers forward and, in backward, in reverse; each kernel once in every layer."""
    strategy = {"dp": 1, "mbs": 2, "gbs": 8, "pp": 2, "recompute": "full"}
    called = samples.llama(), samples.system(), strategy | {"stack": samples.stack()}
    plain = trace(*called).to_chrome()["traceEvents"]
    chrome = trace(*called, operations=True).to_chrome()
    trace_format.check(chrome)
    inside = [e for e in chrome["traceEvents"] if e.get("cat") == "operation"]
    assert [e for e in chrome["traceEvents"] if e.get("cat") != "operation"] == plain
    first = [e for e in inside if e["pid"] == 0]
    layers = [e["name"] for e in first if e["name"].startswith("layer")]
    forward, again, back = ["layer 0", "layer 1"], ["layer 0", "layer 1"], ["layer 1", "layer 0"]
    assert layers == forward + again + back
    assert [e["name"] for e in first].count("mlp.down") == 6
    slices = [e for e in plain if e["ph"] == "X" and e["pid"] == 0 and e["tid"] == 0]
    for name in ("F 0", "R 0", "B 0"):
        (whole,) = (e for e in slices if e["name"] == name)
        parts = [
            e["dur"]
            for e in first
            if whole["ts"] - 1e-3 <= e["ts"] < whole["ts"] + whole["dur"] - 1e-3
            and (e["name"].startswith("layer") or e["name"] == "embedding")
        ]
        assert sum(parts) >= whole["dur"] - 0.002


def test_left_out_micro_batches_are_one_slice() -> None:
    """Two of eight one by one; what is between and after is told by count, memory by its peak."""
    given = {"dp": 1, "mbs": 2, "gbs": 16, "pp": 2, "stack": samples.stack()}
    found = trace(samples.model(), samples.system(), given, micro_batches=2)
    events = found.to_chrome()["traceEvents"]
    compute = [e["name"] for e in events if e["ph"] == "X" and e["pid"] == 0 and e["tid"] == 0]
    assert compute[:-1] == ["F 0", "F 1", "B 0", "1 pass left out", "B 1", "11 passes left out"]
    peaks = rank_totals(found.timeline).peak_bytes
    held = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert max(held) <= peaks[0] / GIB + 3e-4


def test_summary_names_every_rank() -> None:
    """Plain values that add up."""
    found, _ = both(pp=2, vpp=2, gbs=8)
    record = found.to_dict()
    assert [one["holds"] for one in record["ranks"]] == [
        "layer 0, embedding; layer 2",
        "layer 1; layer 3, head",
    ]
    assert record["passes"] == 2 * 2 * 2 * 4
    assert record["step_time_s"] == record["passes_s"] + sum(record["after_s"].values())
    # Rank 0 looks up a fourth micro-batch before it goes back through its second chunk again.
    assert [one["peak_in"] for one in record["ranks"]] == ["B 1 c1", "B 0 c1"]


def test_a_trace_too_large_for_a_file_is_refused() -> None:
    """The number that fits is told; what is simulated has a bound of its own."""
    given = {"dp": 1, "gbs": 13_000, "pp": 4, "stack": samples.stack()}
    found = trace(samples.model(), samples.system(), given)
    with pytest.raises(InputError) as refused:
        found.to_chrome()
    assert str(refused.value) == (
        "micro_batches: 13000: 104,000 passes on 4 ranks are more than the 100,000 that a file "
        "may hold; write at most 12500"
    )
    with pytest.raises(InputError, match=r"1,600,000 passes are more than the 1,000,000 that"):
        trace(samples.model(), samples.system(), given | {"gbs": 200_000})
    with pytest.raises(InputError, match="must be a whole number of at least 1"):
        trace(samples.model(), samples.system(), given, micro_batches=0)


def test_a_stage_without_layers_passes_messages_on() -> None:
    """Nothing is drawn of it, and nothing points at it."""
    columns: dict[str, Any] = {"pp": 3, "gbs": 8, "stage_layers": (2, 0, 2)}
    found, result = both(**columns)
    trace_format.check(found.to_chrome())
    assert found.to_dict()["ranks"][1]["holds"] == "no layers"
    assert found.timeline.step_s == pytest.approx(result.step_time_s)

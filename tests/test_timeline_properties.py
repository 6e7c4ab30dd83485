"""What holds of every timeline: nothing overlaps, sums and memory add up, files are well formed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
import trace_format
from profiles import examples
from shardwise import Model, Trace, trace
from shardwise.analysis.timeline.step import RankTotals, StepTimeline, rank_totals
from shardwise.config.enums import Schedule
from shardwise.parallel.schedule.orders import chunks_of

pytestmark = pytest.mark.any_software

fast = examples(20)
F, B, W = range(3)
GIB = 2**30


@st.composite
def strategies(draw: st.DrawFn) -> dict[str, Any]:
    """Any schedule on 1 to 4 ranks, with any recompute and share of hidden messages."""
    schedule = draw(st.sampled_from(sorted(Schedule)))
    pp = draw(st.sampled_from([2, 4]) if schedule == "dualpipe" else st.integers(2, 4))
    batches = draw(st.integers(1, 12))
    if schedule == "dualpipe":
        batches = 2 * (pp + batches // 4)
    return {
        "schedule": schedule,
        "pp": pp,
        "vpp": draw(st.sampled_from([2, 3])) if schedule == "interleaved" else 1,
        "gbs": 2 * batches,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "tp": draw(st.sampled_from([1, 2])),
        "training": schedule in ("zb-h1", "zb-v", "dualpipe") or draw(st.booleans()),
        "stack": samples.stack(pp_hidden=draw(st.sampled_from([0, 0.3, 1])), tp_hidden=0.5),
    }


@fast
@given(strategies(), st.integers(8, 17), st.integers(1, 6))
def test_every_timeline_is_a_run_of_its_own(strategy: Any, depth: int, shown: int) -> None:
    """Nothing overlaps, starts before its input or happens twice; sums and memory add up."""
    assume(-(-depth // strategy["pp"]) % strategy["vpp"] == 0)
    model = deep(depth, experts=depth % 3 == 0)
    found = trace(model, samples.system(), {"dp": 1, "mbs": 2} | strategy)
    line, a = found.timeline, found.timeline.actions
    totals = rank_totals(line)
    runs_once(line, strategy)
    follows_inputs(line)
    for rank in range(line.pipeline.ranks):
        here = np.flatnonzero(a.rank == rank)
        alone = here[~np.isin(here, np.flatnonzero(a.paired) + 1)]
        free = np.concatenate([[0.0], a.end_s[alone][:-1]])
        assert (a.start_s[alone] - a.waited_s[alone] - free >= -1e-15).all()
        assert line.memory_at_actions.after[here[-1]] == pytest.approx(0, abs=1)
        accounted = busy(totals, rank) + totals.transfers_s[rank] + totals.idle_s[rank]
        assert accounted == pytest.approx(line.passes_s)
        assert totals.idle_s[rank] >= -1e-12
    assert (line.memory_at_actions.activations >= line.memory_at_actions.after - 1).all()
    pair = np.flatnonzero(a.paired)
    both_live = [
        line.passes.of[kind].transient_bytes[a.stage[pair + n]] for n, kind in enumerate("FB")
    ]
    assert (line.memory_at_actions.live[pair] == np.maximum(*both_live)).all()
    assert (line.memory_at_actions.live[pair + 1] == line.memory_at_actions.live[pair]).all()
    assert (line.memory_at_actions.live >= 0).all()
    draws_right(found, totals)
    trace_format.check(
        trace(
            model, samples.system(), {"dp": 1, "mbs": 2} | strategy, micro_batches=shown
        ).to_chrome()
    )


def deep(depth: int, *, experts: bool) -> Model:
    """So many layers, of Llama's kind or of DeepSeek's with one dense layer first."""
    if not experts:
        return samples.llama(layers=[samples.layer(count=depth, attention={"bias": "none"})])
    dense, sparse = samples.deepseek().layers
    more = sparse.model_copy(update={"count": depth - 1})
    return samples.deepseek(mtp=1).model_copy(update={"layers": (dense, more)})


def busy(totals: RankTotals, rank: int) -> float:
    """Time of a rank in kernels and exposed exchanges."""
    every = (*totals.kernels_s.values(), *totals.exposed_s.values())
    return float(sum(column[rank] for column in every))


def runs_once(line: StepTimeline, strategy: dict[str, Any]) -> None:
    """Every micro-batch passes every virtual stage once each way; gradients come once."""
    a, p = line.actions, line.pipeline
    whole = p.stages * p.micro_batches
    for kind in (F, B) if strategy["training"] else (F,):
        places = set(zip(a.stage[a.kind == kind], a.micro_batch[a.kind == kind], strict=True))
        assert len(places) == np.count_nonzero(a.kind == kind) == whole
    split = np.count_nonzero(a.kind == W)
    assert split + np.count_nonzero(a.has_weight_grads) == (whole if strategy["training"] else 0)
    assert a.chunk.max() < chunks_of(strategy["schedule"], strategy["vpp"])


def follows_inputs(line: StepTimeline) -> None:
    """An action starts when what it waits for has ended and come, a W after its B."""
    a = line.actions
    waits = np.flatnonzero(a.source >= 0)
    arrival = a.end_s[a.source[waits]] + np.where(a.far[waits], line.pipeline.hop_s, 0.0)
    assert (a.start_s[waits] >= arrival * (1 - 1e-12)).all()
    assert (a.micro_batch[a.source[waits]] == a.micro_batch[waits]).all()


def draws_right(found: Trace, totals: RankTotals) -> None:
    """The file is well formed; its slices add up to the totals, its counters to the peaks."""
    chrome = found.to_chrome()
    trace_format.check(chrome)
    line, events = found.timeline, chrome["traceEvents"]
    count = len(line.actions)
    for rank in range(line.pipeline.ranks):
        drawn: dict[str, float] = {}
        for event in events:
            if event["pid"] == rank and event["ph"] == "X":
                drawn[event["cat"]] = drawn.get(event["cat"], 0.0) + event["dur"] / 1e6
        work = ("forward", "recompute", "backward", "weight_gradients", "pair")
        near = 1e-9 * count
        kernels = sum(column[rank] for column in totals.kernels_s.values())
        assert sum(drawn.get(name, 0) for name in work) == pytest.approx(kernels, abs=near)
        exposed = sum(column[rank] for column in totals.exposed_s.values())
        exposed += line.after_s["replicas"] + line.after_s["offload"]
        assert drawn.get("exposed", 0) == pytest.approx(exposed, abs=near)
        assert drawn.get("transfer", 0) == pytest.approx(totals.transfers_s[rank], abs=near)
        assert drawn.get("idle", 0) == pytest.approx(totals.idle_s[rank], abs=near)
        held = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == rank]
        assert max(held) == pytest.approx(totals.peak_bytes[rank] / GIB, abs=3e-4)
        assert held[-1] == pytest.approx(line.static_bytes[rank] / GIB, abs=3e-4)
    ends = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert ends == pytest.approx(line.step_s * 1e6, abs=1e-2)

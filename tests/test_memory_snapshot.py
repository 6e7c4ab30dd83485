"""Memory of a step as PyTorch's memory viewer reads it."""

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Trace, trace
from shardwise.analysis.timeline.step import rank_totals

pytestmark = pytest.mark.any_software

HOST = samples.system(
    memory=[
        {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12},
        {"name": "host", "capacity": 80e9, "bandwidth": 1e12},
    ]
)
CASES: dict[str, dict[str, Any]] = {
    "plain": {"gpus": 1, "dp": 1},
    "1f1b": {"pp": 4},
    "interleaved": {"pp": 2, "vpp": 2, "schedule": "interleaved"},
    "zb-v": {"pp": 2, "schedule": "zb-v"},
    "dualpipe": {"pp": 2, "schedule": "dualpipe"},
    "full recompute": {"pp": 2, "recompute": "full"},
    "offloaded": {"pp": 2, "offload_activations": True},
    "forward only": {"pp": 2, "training": False},
}


def step(**columns: Any) -> Trace:
    model = samples.llama(layers=[samples.layer(count=8)], vocab=64)
    plain = {"dp": 1, "mbs": 2, "gbs": 16, "stack": samples.stack()}
    return trace(model, HOST, plain | columns)


def replayed(events: list[dict[str, Any]], segment: dict[str, Any]) -> tuple[int, int]:
    """Peak and final bytes; no two live blocks overlap, and all are inside the segment."""
    live: dict[int, int] = {}
    peak = 0
    for event in events:
        begin, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            assert all(end <= at or begin >= at + size for at, size in live.items())
            live[begin] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(begin) == event["size"]
        assert segment["address"] <= begin < end <= segment["address"] + segment["total_size"]
        peak = max(peak, sum(live.values()))
    return peak, sum(live.values())


@each_row("name", CASES)
def test_blocks_add_up_to_the_memory_of_every_rank(name: str) -> None:
    """Their peak is that of the timeline; weights, gradients and optimizer state remain."""
    found = step(**CASES[name])
    snapshot, line = found.to_snapshot(), found.timeline
    assert len(snapshot["device_traces"]) == len(snapshot["segments"]) == line.pipeline.ranks
    for rank, events in enumerate(snapshot["device_traces"]):
        segment = snapshot["segments"][rank]
        peak, left = replayed(events, segment)
        assert peak == pytest.approx(rank_totals(line).peak_bytes[rank], abs=64)
        assert left == pytest.approx(line.static_bytes[rank], abs=4)
        assert left == segment["allocated_size"]
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert [e["time_us"] for e in events] == sorted(e["time_us"] for e in events)


def test_blocks_have_the_names_of_what_they_hold() -> None:
    """Static memory first, then micro-batches and passes with their layers."""
    events = step(pp=2).to_snapshot()["device_traces"][1]
    assert events[0]["action"] == "segment_alloc"
    frames = [e["frames"][0] for e in events if e["action"] == "alloc"]
    assert [frame["name"] for frame in frames[:5]] == [
        "weights",
        "gradients",
        "optimizer",
        "activations of micro-batch 0",
        "transient of F 0",
    ]
    assert frames[3]["filename"] == "layers 4-7, head"


def test_a_pickle_is_plain_data(shardwise: Any, tmp_path: Path) -> None:
    """Lists, dictionaries, numbers and text, as the viewer in a browser knows them."""
    path = tmp_path / "step.pickle"
    words = ["llama3-8b", "h100-sxm", "--gpus", "16", "--tp", "2", "--pp", "2", "--gbs", "32"]
    assert shardwise("trace", *words, "-o", path) == (0, "", "")
    content = path.read_bytes()
    known = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "EXT1"}
    assert not known & {operation.name for operation, _, _ in pickletools.genops(content)}
    strategy = {"gpus": 16, "tp": 2, "pp": 2, "gbs": 32}
    read = pickle.loads(content)  # noqa: S301 - written above
    assert read == trace("llama3-8b", "h100-sxm", strategy).to_snapshot()


def test_pytorch_reads_it() -> None:
    """Its own summary of a snapshot names the segment and every block."""
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    snapshot = step(pp=2).to_snapshot()
    text = viewer.trace(snapshot)
    assert text.count("cudaMalloc") == 2
    events = [event for device in snapshot["device_traces"] for event in device]
    assert text.count(" = a[") == sum(event["action"] == "alloc" for event in events)

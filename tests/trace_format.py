"""A checker of the Trace Event Format: what Perfetto and chrome://tracing need of a file."""

from collections import defaultdict
from typing import Any

PHASES = {"X", "M", "C", "s", "f"}
META = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
Event = dict[str, Any]
# Times are whole nanoseconds in microseconds: sums of two are off by less than one.
NEAR = 5e-4


def check(trace: dict[str, Any]) -> None:
    """Assert that every event is well formed, lanes nest, counters rise in time, all is named."""
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= PHASES
    for event in events:
        _has_keys(event)
    lanes = slices_by_lane(events)
    for lane in lanes.values():
        _nests(lane)
    _counters_rise(events)
    _all_named(events, set(lanes))
    _arrows_meet(events, lanes)


def _has_keys(event: Event) -> None:
    assert event["name"]
    assert isinstance(event["pid"], int)
    if event["ph"] == "M":
        assert event["name"] in META
        return
    assert event["ts"] >= 0
    if event["ph"] == "X":
        assert event["dur"] > 0
        assert isinstance(event["tid"], int)
    if event["ph"] == "C":
        assert all(value >= 0 for value in event["args"].values())


def slices_by_lane(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Complete events by process and thread, in the order of time, the longer one first."""
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    for lane in lanes.values():
        lane.sort(key=lambda event: (event["ts"], -event["dur"]))
    return lanes


def _nests(lane: list[Event]) -> None:
    """One slice stands after another or inside it."""
    open_until: list[float] = []
    for event in lane:
        while open_until and open_until[-1] <= event["ts"] + NEAR:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + NEAR, event
        open_until.append(end)


def _counters_rise(events: list[Event]) -> None:
    last: dict[tuple[int, str], float] = {}
    series: dict[tuple[int, str], set[str]] = {}
    for event in events:
        if event["ph"] == "C":
            track = event["pid"], event["name"]
            assert event["ts"] >= last.get(track, 0.0)
            assert series.setdefault(track, set(event["args"])) == set(event["args"])
            last[track] = event["ts"]


def _all_named(events: list[Event], lanes: set[tuple[int, int]]) -> None:
    named = [e for e in events if e["ph"] == "M"]
    processes = [e["pid"] for e in named if e["name"] == "process_name"]
    threads = [(e["pid"], e["tid"]) for e in named if e["name"] == "thread_name"]
    assert len(processes) == len(set(processes))
    assert len(threads) == len(set(threads))
    assert lanes <= set(threads)
    assert {event["pid"] for event in events} == set(processes)


def _arrows_meet(events: list[Event], lanes: dict[tuple[int, int], list[Event]]) -> None:
    """Each arrow has one start and one later end, both within a slice."""
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) + len(ends) == sum(e["ph"] in "sf" for e in events)
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        for event in (start, ends[number]):
            lane = lanes[event["pid"], event["tid"]]
            assert any(s["ts"] <= event["ts"] <= s["ts"] + s["dur"] + NEAR for s in lane)

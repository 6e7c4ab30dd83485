"""Latency and bandwidth of all-gather and reduce-scatter: the published rule, or a user's file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, overload

from pydantic import Field, model_validator

from shardwise.arrays import Floats
from shardwise.config.base import NO_FLAG, ConfigBase
from shardwise.config.files import read_mapping
from shardwise.errors import Fault, InputError
from shardwise.units import ByteRate, Duration

Generation = Literal["volta", "ampere", "hopper"]
GENERATIONS: tuple[Generation, ...] = ("volta", "ampere", "hopper")

# torch._inductor.comm_analysis and its config of 2024, after NCCL's tuning.cc: peak of the LL
# protocol on 1, 2 and more nodes, and links [GB/s]; ring latencies [us].
_LL_PEAKS: dict[Generation, tuple[float, float, float]] = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (87.7, 22.5, 19.0),
}
_INTRA_GB, _INTER_GB = 300.0, 25.0
_CHANNELS = 2
_BASE_US, _NVLINK_US, _NET_US, _OVERHEAD_US = 6.6, 0.6, 2.7, 1.0
_GB = 2.0**30
_MS_PER_S, _US_PER_MS = 1e3, 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Time of a collective as a straight line in its size."""

    latency_ms: float
    bytes_per_ms: float

    @overload
    def time_ms(self, size: float) -> float: ...
    @overload
    def time_ms(self, size: Floats) -> Floats: ...
    def time_ms(self, size: float | Floats) -> float | Floats:
        """Return latency + bytes / bandwidth [ms] (fsdp_ilp.py; section 1.3, item 5)."""
        return self.latency_ms + size / self.bytes_per_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CommTimes:
    """Times of the two collectives of FSDP."""

    all_gather: Line
    reduce_scatter: Line

    def to_dict(self) -> dict[str, Any]:
        """Return the form that `read_comm` reads."""
        return {
            name: {"latency_ms": line.latency_ms, "bandwidth_bytes_per_ms": line.bytes_per_ms}
            for name, line in (
                ("all_gather", self.all_gather),
                ("reduce_scatter", self.reduce_scatter),
            )
        }


def comm_times(
    gpus: int, gpus_per_node: int = 8, *, generation: Generation = "ampere"
) -> CommTimes:
    """Latency [ms] and bandwidth [bytes/ms] of a ring of the LL protocol.

    With N = ceil(W / gpus_per_node) nodes, bw = 300 GB/s inside a node or 25 GB/s between nodes,
    f = 1/3 or 1/4, and the peak of the protocol by generation (of Volta where N > 1) and nodes:

        bandwidth = min(peak, 2 bw f) W / (W - 1)
        latency = 6.6 + (W - N) max(0.6, 1.0 if N > 1) + (N - 1) 2.7   [us]

    GB is 2^30 bytes. Source: sanketpurandare/scyther, commit 9cd9397, comm_analysis.py and
    commtime_estimator.py (section 1.6). Fault reproduced (1.8.1): reduce-scatter has all-gather's
    figures; by this rule they would be the same, since both have W - 1 steps.
    """
    faults = [_whole("gpus", gpus, 2), _whole("gpus_per_node", gpus_per_node, 1)]
    if generation not in GENERATIONS:
        problem = f"allowed: {', '.join(GENERATIONS)}"
        faults.append(Fault.of("generation", generation, problem))
    if found := [fault for fault in faults if fault is not None]:
        raise InputError(found)
    nodes = math.ceil(gpus / gpus_per_node)
    row = generation if nodes == 1 else "volta"
    peak = _LL_PEAKS[row][min(nodes, 3) - 1]
    bus = min(peak, _CHANNELS * (_INTRA_GB / 3 if nodes == 1 else _INTER_GB / 4))
    step = _NVLINK_US if nodes == 1 else max(_NVLINK_US, _OVERHEAD_US)
    latency = _BASE_US + (gpus - nodes) * step + (nodes - 1) * _NET_US
    rate = bus * gpus / (gpus - 1) * _GB / _MS_PER_S
    line = Line(latency_ms=latency / _US_PER_MS, bytes_per_ms=rate)
    return CommTimes(all_gather=line, reduce_scatter=line)


def _whole(field: str, value: int, least: int) -> Fault | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return None
    problem = f"must be a whole number of at least {least}"
    if value == 1:
        problem = "must be at least 2: one GPU shards nothing, and has no bandwidth to divide by"
    return Fault.of(field, value, problem)


_Latency = Annotated[float, Field(ge=0, le=1e9), NO_FLAG]
_Bandwidth = Annotated[float, Field(ge=1e-3, le=1e18), NO_FLAG]


class _Collective(ConfigBase):
    """One collective, in the planner's units or in people's."""

    latency_ms: _Latency | None = None
    bandwidth_bytes_per_ms: _Bandwidth | None = None
    latency: Duration | None = None
    """[s] or text with a unit."""
    bandwidth: ByteRate | None = None
    """[byte/s] or text with a unit."""

    @model_validator(mode="after")
    def _each_is_given_once(self) -> Self:
        for plain, ours in (("latency", "latency_ms"), ("bandwidth", "bandwidth_bytes_per_ms")):
            given = [name for name in (plain, ours) if getattr(self, name) is not None]
            if len(given) != 1:
                problem = "are both set; set one" if given else "are missing; set one"
                raise ValueError(f"{plain} and {ours} {problem}")
        return self

    def line(self) -> Line:
        """Its line, in the planner's units."""
        latency, rate = self.latency_ms, self.bandwidth_bytes_per_ms
        if self.latency is not None:
            latency = self.latency * _MS_PER_S
        if self.bandwidth is not None:
            rate = self.bandwidth / _MS_PER_S
        if latency is None or rate is None:
            raise AssertionError  # seen by the validator
        return Line(latency_ms=latency, bytes_per_ms=rate)


class _Comm(ConfigBase):
    """Both collectives; reduce-scatter may differ from all-gather, unlike in the original."""

    all_gather: _Collective
    reduce_scatter: _Collective
    note: str = ""


def parse_comm(data: Mapping[str, object], *, source: str = "comm") -> CommTimes:
    """Check a mapping of all_gather and reduce_scatter, also one wrapped in `comm`.

    Each has latency_ms and bandwidth_bytes_per_ms, or latency and bandwidth with units.
    """
    inner = data.get("comm", data)
    if not isinstance(inner, Mapping):
        problem = "must be a mapping of all_gather and reduce_scatter"
        fault = Fault.of("comm", inner, problem, source)
        raise InputError(fault)
    if inner is not data and len(data) > 1:
        others = ", ".join(sorted(map(str, data.keys() - {"comm"})))
        raise InputError(Fault(source=source, problem=f"has {others} in addition to comm"))
    found = _Comm.validated(inner, source=source)
    return CommTimes(all_gather=found.all_gather.line(), reduce_scatter=found.reduce_scatter.line())


def read_comm(path: str | Path) -> CommTimes:
    """Read a JSON or YAML file of latencies and bandwidths; see `parse_comm`."""
    return parse_comm(read_mapping(path), source=str(path))

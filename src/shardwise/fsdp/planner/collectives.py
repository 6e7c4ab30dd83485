"""Times of the collectives of FSDP2 by bytes: on a system's network, or linear in the bytes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.errors import InputError
from shardwise.fsdp.plan import Setting
from shardwise.ops.operation import CollectiveKind
from shardwise.predecessors.fsdp_ilp.comm import CommTimes, comm_times, parse_comm, read_comm
from shardwise.units import readable

Comm = CommTimes | Mapping[str, Any] | str | Path
"""Latency and bandwidth of collectives: typed, as a mapping, or a file."""
_NODE = 8
_MS_PER_S = 1e3


class CollectiveTimes(Protocol):
    """Times of gathering weights and reducing gradients; 0 for no bytes."""

    def gather_s(self, buffer_bytes: Floats) -> Floats:
        """Time of an all-gather by the bytes of its output [s]."""

    def reduce_s(self, buffer_bytes: Floats) -> Floats:
        """Time of a reduce-scatter by the bytes of its input, with the replicas' all-reduce [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTime:
    """Time of one collective: latency + bytes / bandwidth; 0 for no bytes."""

    latency_s: float
    bytes_per_s: float

    def time(self, buffer_bytes: Floats) -> Floats:
        """Time by the bytes of the buffer [s]."""
        return np.where(buffer_bytes > 0, self.latency_s + buffer_bytes / self.bytes_per_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTimes:
    """Both collectives by latency and bandwidth, as set or by the rule of fsdp_ilp."""

    all_gather: LinearTime
    reduce_scatter: LinearTime

    def gather_s(self, buffer_bytes: Floats) -> Floats:
        """Time of an all-gather [s]."""
        return self.all_gather.time(buffer_bytes)

    def reduce_s(self, buffer_bytes: Floats) -> Floats:
        """Time of a reduce-scatter [s]."""
        return self.reduce_scatter.time(buffer_bytes)

    @classmethod
    def of(cls, comm: CommTimes) -> "LinearTimes":
        """Convert from ms and bytes per ms."""
        gather, scatter = (
            LinearTime(
                latency_s=line.latency_ms / _MS_PER_S, bytes_per_s=line.bytes_per_ms * _MS_PER_S
            )
            for line in (comm.all_gather, comm.reduce_scatter)
        )
        return cls(all_gather=gather, reduce_scatter=scatter)

    def __str__(self) -> str:
        gather, scatter = (
            f"{readable(one.latency_s, 'seconds')} + bytes / {readable(one.bytes_per_s, 'byte/s')}"
            for one in (self.all_gather, self.reduce_scatter)
        )
        return gather if gather == scatter else f"gather {gather}, reduce-scatter {scatter}"


@dataclass(frozen=True, eq=False, kw_only=True)
class SystemTimes:
    """A system's network.

    A shard group fills the tiers from inside out; a group of replicas has one rank in each shard
    group.
    """

    system: System
    setting: Setting

    def gather_s(self, buffer_bytes: Floats) -> Floats:
        """Time of an all-gather among the shards [s] (`cost.collective`)."""
        return self._time(CollectiveKind.ALL_GATHER, buffer_bytes, self._shards)

    def reduce_s(self, buffer_bytes: Floats) -> Floats:
        """Time of a reduce-scatter among the shards, then an all-reduce of the shard [s]."""
        scattered = self._time(CollectiveKind.REDUCE_SCATTER, buffer_bytes, self._shards)
        if self.setting.replicas == 1:
            return scattered
        shard = np.asarray(buffer_bytes) / self.setting.shards
        return scattered + self._time(CollectiveKind.ALL_REDUCE, shard, self._replicas)

    def _time(self, kind: CollectiveKind, buffer: Floats, extents: Ints) -> Floats:
        flat = np.atleast_1d(np.asarray(buffer, dtype=np.float64))
        return collective_time(self.system, kind, flat, extents).reshape(np.shape(buffer))

    @cached_property
    def _inside(self) -> Ints:
        """Ranks of the job within one domain of each tier, from inside out."""
        gpus, found = self.setting.gpus, []
        for tier in self.system.network:
            domain = gpus if tier.domain is None else tier.domain
            found.append(gpus if gpus <= domain else math.gcd(gpus, domain))
        if not found or found[-1] < gpus:
            problem = f"the system {self.system.name} connects fewer"
            raise InputError.of("gpus", gpus, problem)
        return np.array(found, dtype=np.int64)[:, None]

    @cached_property
    def _shards(self) -> Ints:
        return np.gcd(self._inside, self.setting.shards)

    @cached_property
    def _replicas(self) -> Ints:
        return self._inside // self._shards


def collective_times(
    system: System | None, setting: Setting, *, gpus_per_node: int, comm: Comm | None
) -> tuple[Callable[[Setting], CollectiveTimes], Sequence[str]]:
    """Times of collectives by setting, and a note on where they come from."""
    by_rule = comm is None and system is None
    if gpus_per_node and not by_rule:
        problem = "has no effect with a system or a file of collective times"
        raise InputError.of("gpus_per_node", gpus_per_node, problem)
    if setting.replicas > 1 and (comm is not None or by_rule):
        problem = "collectives on straight lines say nothing of the all-reduce among replicas"
        raise InputError.of("replicas", setting.replicas, f"{problem}; give a system")
    if comm is not None:
        if not isinstance(comm, CommTimes):
            comm = parse_comm(comm) if isinstance(comm, Mapping) else read_comm(comm)
        times = LinearTimes.of(comm)
        return (lambda _setting: times), [f"collectives as set: {times}"]
    if system is None:
        node = gpus_per_node or _NODE
        rule = LinearTimes.of(comm_times(setting.gpus, node))
        note = f"collectives by fsdp_ilp's rule for nodes of {node}: {rule}"
        return (lambda changed: LinearTimes.of(comm_times(changed.gpus, node))), [note]
    return (lambda changed: SystemTimes(system=system, setting=changed)), []

"""Time of the collectives of FSDP2 by their bytes: of a system's network, or on straight lines."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.errors import Fault, InputError
from shardwise.fsdp.plan import Setting
from shardwise.ops.operation import CollectiveKind

__all__ = ["CollectiveTimes", "LinearTime", "LinearTimes", "SystemTimes"]


class CollectiveTimes(Protocol):
    """What gathering weights and reducing gradients takes; nothing for no bytes."""

    def gather_s(self, buffer_bytes: Floats) -> Floats:
        """Time of an all-gather whose result is so large [s]."""

    def reduce_s(self, buffer_bytes: Floats) -> Floats:
        """Time of a reduce-scatter whose input is so large; with replicas, all-reduced too [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTime:
    """Time of a collective as a straight line: latency + bytes / bandwidth."""

    latency_s: float
    bytes_per_s: float

    def time(self, buffer_bytes: Floats) -> Floats:
        """Time of one; nothing for no bytes [s]."""
        return np.where(buffer_bytes > 0, self.latency_s + buffer_bytes / self.bytes_per_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTimes:
    """Given, or by the rule of fsdp_ilp."""

    all_gather: LinearTime
    reduce_scatter: LinearTime

    def gather_s(self, buffer_bytes: Floats) -> Floats:
        """Time of an all-gather [s]."""
        return self.all_gather.time(buffer_bytes)

    def reduce_s(self, buffer_bytes: Floats) -> Floats:
        """Time of a reduce-scatter [s]."""
        return self.reduce_scatter.time(buffer_bytes)


@dataclass(frozen=True, eq=False, kw_only=True)
class SystemTimes:
    """A system's network, ranks of a shard group side by side, replicas across.

    A shard group fills the tiers from inside out; a group of replicas has one rank in each.
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
        """Ranks of the whole job within one domain of each tier, from inside out."""
        gpus, found = self.setting.gpus, []
        for tier in self.system.network:
            domain = gpus if tier.domain is None else tier.domain
            found.append(gpus if gpus <= domain else math.gcd(gpus, domain))
        if not found or found[-1] < gpus:
            problem = f"the system {self.system.name} connects fewer"
            raise InputError(Fault(field="gpus", value=gpus, has_value=True, problem=problem))
        return np.array(found, dtype=np.int64)[:, None]

    @cached_property
    def _shards(self) -> Ints:
        return np.gcd(self._inside, self.setting.shards)

    @cached_property
    def _replicas(self) -> Ints:
        return self._inside // self._shards

"""Bytes that FSDP2 holds and sends for the weights of each module, by position in a profile."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.fsdp.plan import DTYPE_BYTES, Setting
from shardwise.fsdp.profile import Profile

__all__ = ["LastGradients", "OwnSizes", "own_sizes"]

_MOMENTS = {"adamw": 2, "sgd": 0, "none": 0}
"""Numbers that an optimizer keeps of each weight, in the type of the weight."""
_TEMPORARIES = {"adamw": 1, "sgd": 0, "none": 0}
"""Numbers that its step makes of each weight and frees again."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OwnSizes:
    """Of the weights that each module holds itself, a tied one at its first holder; shape (n,).

    A unit's figures are the sums over its modules.
    """

    gathered: Floats
    """Unsharded weights, and as much again for the all-gather's buffer [byte].

    Rows are padded to a multiple of the ranks: W ceil(d_0 / W) (numel / d_0) numbers of the compute
    type.
    """
    reduced: Floats
    """Input of the reduce-scatter: the same numbers of trainable weights in the type of the
    reduction [byte]."""
    gradients: Floats
    """Unsharded gradients in the compute type, without padding [byte]."""
    shard: Floats
    """Sharded weights on one rank [byte]."""
    shard_gradients: Floats
    """What stays of their gradients until the step ends [byte].

    The shard in the stored type; with replicas also the buffer of its all-reduce, in the type of
    the reduction, if that is another.
    """
    scattered: Floats
    """Outputs of the reduce-scatter: in the type of the reduction, and cast to the stored one if
    that is another [byte]."""
    state: Floats
    """What the optimizer keeps of them on one rank [byte]."""
    stepped: Floats
    """Sharded gradients and temporaries at the fullest moment of the optimizer's step [byte].

    AdamW in its `foreach` form makes a list of square roots as large as the weights.
    """
    trainable: Bools
    """Whether a module holds weights that are trained."""
    frozen: Bools
    """Whether a module holds weights that are not."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LastGradients:
    """The gradient that FSDP2 holds on to while it reduces a unit: that of its last parameter."""

    profile: Profile
    element_bytes: int

    @cached_property
    def _columns(self) -> tuple[Ints, Floats]:
        """First holder and bytes of each parameter that gets a gradient, in order."""
        some = [p for p in self.profile.parameters if p.trainable and p.gradient_segment >= 0]
        holders = np.array([p.holders[0] for p in some], dtype=np.int64)
        return holders, np.array([float(p.numel * self.element_bytes) for p in some])

    def of(self, owned: Bools) -> float:
        """Bytes of the last one among the modules that a unit owns, by position."""
        holders, sizes = self._columns
        found = np.flatnonzero(owned[holders])
        return float(sizes[found[-1]]) if found.size else 0.0

    def between(self, first: int, end: int) -> float:
        """The same for all modules from one position up to another."""
        holders, sizes = self._columns
        found = np.flatnonzero((holders >= first) & (holders < end))
        return float(sizes[found[-1]]) if found.size else 0.0


def own_sizes(profile: Profile, setting: Setting) -> OwnSizes:
    """Sizes for a profile in a setting.

    Padding is that of `torch.distributed.fsdp.fully_shard` (torch 2.13, `FSDPParam`), which splits
    the first dimension.
    """
    n = len(profile.modules)
    sums = {name: np.zeros(n) for name in ("padded", "trained", "plain")}
    trainable, frozen = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for parameter in profile.parameters:
        holder = parameter.holders[0]
        rows = parameter.shape[0] if parameter.shape else 1
        across = parameter.numel // max(rows, 1)
        padded = setting.shards * -(-rows // setting.shards) * across
        sums["padded"][holder] += padded
        (trainable if parameter.trainable else frozen)[holder] = True
        if parameter.trainable:
            sums["trained"][holder] += padded
            sums["plain"][holder] += parameter.numel * (parameter.gradient_segment >= 0)
    stored, computed = DTYPE_BYTES[setting.stored_dtype], DTYPE_BYTES[setting.compute_dtype]
    shard = stored / setting.shards
    reduced = DTYPE_BYTES[setting.reduce_dtype]
    buffer = reduced if setting.replicas > 1 and reduced != stored else 0
    return OwnSizes(
        gathered=sums["padded"] * computed,
        reduced=sums["trained"] * reduced,
        gradients=sums["plain"] * computed,
        shard=sums["padded"] * shard,
        shard_gradients=sums["trained"] * (stored + buffer) / setting.shards,
        scattered=sums["trained"]
        * (reduced + (stored if stored != reduced else 0))
        / setting.shards,
        state=sums["trained"] * shard * _MOMENTS[setting.optimizer],
        stepped=sums["trained"] * shard * (1 + _TEMPORARIES[setting.optimizer]),
        trainable=trainable,
        frozen=frozen,
    )

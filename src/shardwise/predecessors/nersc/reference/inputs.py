"""What the model takes: a transformer, a system and configurations, in its own words and units.

Its own code accepts any number, negative bandwidths too (section 10); these types do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from shardwise.arrays import Ints
from shardwise.config.base import ConfigBase, Count
from shardwise.errors import Fault, refuse
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem

Method = Literal["1d", "2d", "2d-seqp"]
METHODS: tuple[Method, ...] = ("1d", "2d", "2d-seqp")
"""Tensor parallelism of Megatron with sequence parallelism; SUMMA; with context parallelism."""


class NerscConfiguration(ConfigBase):
    """One way to run a model."""

    method: Method
    global_batch: Count
    """Sequences per step."""
    b: Count
    """Sequences per micro-batch."""
    m1: Count
    """Tensor-parallel dimension over heads and widths; all of it in 1d."""
    m2: Count = 1
    """Tensor-parallel dimension over the sequence."""
    nb: Count = 1
    """SUMMA panels."""
    dp: Count
    pp: Count
    t1: Count
    """Members of a group of m1 in one domain of the fast network."""
    t2: Count = 1
    t_dp: Count
    t_pp: Count

    @model_validator(mode="after")
    def _groups_hold_their_parts(self) -> Self:
        for part, group in (("t1", "m1"), ("t2", "m2"), ("t_dp", "dp"), ("t_pp", "pp")):
            inside, members = getattr(self, part), getattr(self, group)
            if members % inside:
                raise ValueError(f"{part} {inside} must divide {group} {members}")
        if self.method == "1d" and self.m2 > 1:
            raise ValueError(f"m2 {self.m2}: must be 1 in 1d")
        if self.global_batch // self.dp // self.b < 1:
            raise ValueError(
                f"b {self.b} x dp {self.dp} is more than global_batch {self.global_batch}"
            )
        return self

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.m1 * self.m2 * self.dp * self.pp


def check_together(
    model: NerscModel,
    system: NerscSystem,
    configuration: NerscConfiguration,
    source: str = "configuration",
) -> None:
    """Check a configuration against what it runs."""
    inside = configuration.t1 * configuration.t2 * configuration.t_dp * configuration.t_pp
    wrong = {
        "m1": (configuration.m1, model.h % configuration.m1 > 0, f"must divide h {model.h}"),
        "m2": (configuration.m2, configuration.m2 > model.l, f"must be at most l {model.l}"),
        "pp": (
            configuration.pp,
            model.depth % configuration.pp > 0,
            f"must divide depth {model.depth}",
        ),
        "t1 x t2 x t_dp x t_pp": (
            inside,
            inside > system.nvlink_size,
            f"must be at most nvlink_size {system.nvlink_size}",
        ),
    }
    faults = [
        Fault.of(field, value, problem, source)
        for field, (value, bad, problem) in wrong.items()
        if bad
    ]
    refuse(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The numbers of configurations of one method that have passed `NerscConfiguration`."""

    b: Ints
    m1: Ints
    m2: Ints
    nb: Ints
    dp: Ints
    pp: Ints
    t1: Ints
    t2: Ints
    t_dp: Ints
    t_pp: Ints

    def __len__(self) -> int:
        return int(self.b.size)

    @classmethod
    def of(cls, configurations: Sequence[NerscConfiguration]) -> "Columns":
        """Return configurations as columns."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.array([getattr(c, n) for c in configurations]) for n in names})

    def row(self, index: int, method: Method, global_batch: int) -> NerscConfiguration:
        """Return one row as a configuration."""
        numbers = {field.name: int(getattr(self, field.name)[index]) for field in fields(self)}
        return NerscConfiguration(method=method, global_batch=global_batch, **numbers)

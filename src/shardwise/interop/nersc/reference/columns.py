"""Configurations as columns: one row or millions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwise.arrays import Ints
from shardwise.interop.nersc.reference.inputs import Method, NerscConfiguration

__all__ = ["Columns"]


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

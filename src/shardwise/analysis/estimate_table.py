"""`EstimateTable`: what `estimate_many` returns."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.strategy_table import Table
from shardwise.engine.step_time import TIME_PARTS
from shardwise.frozen import FrozenRecord
from shardwise.parallel.constraints import CONSTRAINTS
from shardwise.shown import Charted, Framed

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class EstimateTable(FrozenRecord, Charted, Framed):
    """Estimates of a table of strategies; rows that break a rule hold NaN and the rule.

    Examples
    --------
    >>> from shardwise import estimate_many
    >>> table = estimate_many("llama3-70b", "h100-sxm", gpus=64, tp=[3, 8], pp=2, gbs=128)
    >>> table.reason(0), table.reason(1), table.fits.tolist()
    ('degrees', None, [False, True])
    >>> len(table.accepted()), table.refusals()["row"].to_list()
    (1, [0])
    """

    table: Table
    refused: Ints
    """Position in `constraints.CONSTRAINTS` of the first one that a row violates, or -1."""
    step_time_s: Floats
    tokens_per_s: Floats
    mfu: Floats
    hfu: Floats
    fits: Bools
    """Whether the predicted memory is within the capacity."""
    fits_probability: Floats
    """Probability that the measured peak is within the capacity (`Estimate.fits_probability`); NaN
    forward only."""
    interval_low_s: Floats
    interval_high_s: Floats
    """Range of the measured step time in 8 of 10 runs; NaN unless requested (`intervals`)."""
    memory_total_bytes: Floats
    memory_reserved_bytes: Floats
    memory_offloaded_bytes: Floats
    time_s: Mapping[str, Floats]
    memory_bytes: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.table)

    def reason(self, row: int) -> str | None:
        """Return the name of the rule that a row breaks, or None."""
        position = int(self.refused[row])
        return CONSTRAINTS[position].reason if position >= 0 else None

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame: strategy, times, memory, and the broken rule."""
        import polars as pl  # noqa: PLC0415 - heavy; only for frames

        columns = self.table.to_columns()
        columns["step_time_s"] = self.step_time_s
        columns["interval_low_s"] = self.interval_low_s
        columns["interval_high_s"] = self.interval_high_s
        columns["tokens_per_s"] = self.tokens_per_s
        columns["mfu"] = self.mfu
        columns["hfu"] = self.hfu
        columns["fits"] = self.fits
        columns["fits_probability"] = self.fits_probability
        columns |= {f"{part}_s": self.time_s[part] for part in TIME_PARTS}
        columns |= {f"{part}_bytes": size for part, size in self.memory_bytes.items()}
        columns["total_bytes"] = self.memory_total_bytes
        columns["reserved_bytes"] = self.memory_reserved_bytes
        columns["offloaded_bytes"] = self.memory_offloaded_bytes
        columns["refused"] = pl.Series(self._reasons(), dtype=pl.String)
        return pl.DataFrame(columns)

    def accepted(self) -> "EstimateTable":
        """Return the rows that break no rule."""
        rows = np.flatnonzero(self.refused < 0)

        def taken(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: taken(one) for name, one in value.items()}
            return value[rows] if isinstance(value, np.ndarray) else value.take(rows)

        return replace(self, **{one.name: taken(getattr(self, one.name)) for one in fields(self)})

    def refusals(self) -> "pl.DataFrame":
        """Return a data frame of the other rows: number, broken rule, columns that vary."""
        import polars as pl  # noqa: PLC0415 - heavy; only for frames

        columns = pl.DataFrame(self.table.to_columns())
        vary = [name for name in columns.columns if columns[name].n_unique() > 1]
        reasons = pl.Series("refused", self._reasons(), dtype=pl.String)
        every = columns.select(vary).with_columns(reasons).with_row_index("row")
        return every.filter(pl.col("refused").is_not_null())

    def _reasons(self) -> list[str | None]:
        """By row the rule that it breaks, or None."""
        reasons = np.array([*(rule.reason for rule in CONSTRAINTS), None], dtype=object)
        found: list[str | None] = reasons[self.refused].tolist()
        return found

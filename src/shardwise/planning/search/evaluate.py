"""Judge a box of candidates: rules first, then memory, then the time of what fits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns
from shardwise.cost.placed_costs import PlacedCosts
from shardwise.distinct import distinct_rows
from shardwise.engine.evaluate import Holding, Timing, fits, held, timed
from shardwise.engine.on_systems import OnSystems
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.planning.search.candidates import CHOICE_FIELDS, Box

__all__ = ["Evaluated", "Fitting", "Judge", "broken_options", "broken_reasons", "excess_bytes"]

# Rows, each with all its choices, that are evaluated at a time: their columns stay in the cache.
_CHUNK = 1 << 13
_OPTION_RULES = tuple(rule for rule in CONSTRAINTS if not rule.layout_only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Rows of which some choice fits, and their times."""

    table: Table
    rows: Ints
    """Positions among the rows judged."""
    feasible: Bools
    """Choices that obey the rules and fit; shape (choices, rows)."""
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Rows of a box of which some choice obeys the rules."""

    rows: Ints
    """Positions in `Box.table`."""
    first: int
    """Position of the first of them among those that obey the rules."""
    legal: Bools
    """Choices that obey the rules; shape (choices, rows)."""
    feasible: Bools
    """Those of them that fit and are not passed over."""
    passed: Ints
    """Why choices that fit are passed over: a position in `kept.PASSED`, or -1."""
    holding: Holding
    """Shape (holdings, rows): not every choice changes what is held."""
    held_as: Ints
    """The holding of each choice."""
    fitting: Fitting | None
    """None where nothing fits, or is not timed yet."""

    def too_full(self, capacity_bytes: float) -> Bools:
        """Choices that need more of the first memory tier than may be used; (choices, rows)."""
        return (self.holding.reserved_bytes > capacity_bytes)[self.held_as]


def broken_options(model: Model, system: System, box: Box, table: Table) -> Ints:
    """Position in `CONSTRAINTS` of the first one that an option violates, or -1; (choices, rows).

    Layouts are not looked at: those of the box obey the rules.
    """
    broken = first_violation(model, system, table, _OPTION_RULES)
    return np.broadcast_to(broken, (len(box.choices), len(table)))


def broken_reasons(broken: Ints) -> Counter[str]:
    """How often each rule is broken, by reason."""
    counts = np.bincount(broken[broken >= 0], minlength=len(CONSTRAINTS)).tolist()
    return +Counter({rule.reason: number for rule, number in zip(CONSTRAINTS, counts, strict=True)})


def excess_bytes(system: System, holding: Holding, capacity_bytes: float) -> Floats:
    """What each memory tier lacks, or, below 0, has left; shape (tiers, holdings, rows)."""
    excess = [holding.reserved_bytes - capacity_bytes]
    far = system.accelerator.memory[1:]
    excess += [holding.memory.offloaded - tier.capacity for tier in far]
    return np.stack(np.broadcast_arrays(*excess))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Rows that obey the rules, with all their choices, placed and costed: what judging needs."""

    _model: Model
    _system: System
    _capacity_bytes: float
    _rows: Ints
    """Positions in the table that was given."""
    _table: Table
    _legal: Bools
    """Choices that obey the rules; shape (choices, rows)."""
    _placed: PlacedCosts
    _holdings: Table
    """The rows with the choices that change what is held."""
    _held_as: Ints
    """The holding of each choice."""

    @classmethod
    def of(
        cls, model: Model, system: System, table: Table, broken: Ints, capacity_bytes: float
    ) -> "Judge":
        """Place the rows of which some choice obeys the rules.

        Parameters
        ----------
        table, broken
            Of a `Box` of legal layouts, and of `broken_options`.
        capacity_bytes
            What of the first memory tier may be used.
        """
        rows = np.flatnonzero((broken < 0).any(axis=0))
        lawful = table.take(rows)
        columns = [getattr(table, name)[:, 0] for name in CHOICE_FIELDS if name != "dp_overlap"]
        distinct, held_as = distinct_rows(columns)
        chosen = {name: getattr(table, name)[distinct, 0] for name in CHOICE_FIELDS}
        return cls(
            _model=model,
            _system=system,
            _capacity_bytes=capacity_bytes,
            _rows=rows,
            _table=lawful,
            _legal=broken[:, rows] < 0,
            _placed=PlacedCosts.of(model, system, lawful),
            _holdings=lawful.with_choices(chosen),
            _held_as=held_as,
        )

    def weighed(self) -> Iterator[Evaluated]:
        """Find what fits, chunk by chunk; nothing is timed."""
        for start in range(0, self._rows.size, _CHUNK):
            piece = slice(start, start + _CHUNK)
            some = self._holdings.take(piece)
            holding = held(some, self._placed.without_times(piece), self._placed.stages.take(piece))
            legal = self._legal[:, piece]
            fit = fits(self._system, holding, self._capacity_bytes)[self._held_as]
            yield Evaluated(
                rows=self._rows[piece],
                first=start,
                legal=legal,
                feasible=legal & fit,
                passed=np.full(legal.shape, -1),
                holding=holding,
                held_as=self._held_as,
                fitting=None,
            )

    def on_systems(self, systems: SystemColumns) -> OnSystems:
        """Return the rows on other systems of the same structure; see `Evaluated.first`."""
        return OnSystems.of(self._model, self._system, self._table, self._placed, systems)

    @property
    def distinct_blocks(self) -> int:
        """How many blocks there are to evaluate on each system."""
        return int(self._placed.components.position.max(initial=0)) + 1

    def timed(self, judged: Evaluated, passed: Ints | None = None) -> Evaluated:
        """Time what fits and is not passed over; rows without any are not timed.

        Parameters
        ----------
        passed
            What is passed over though it fits; shape (choices, rows of the table that was given),
            -1 where nothing is.
        """
        if passed is not None:
            over = passed[:, judged.rows]
            judged = replace(judged, passed=over, feasible=judged.feasible & (over < 0))
        within = np.flatnonzero(judged.feasible.any(axis=0))
        if not within.size:
            return judged
        rows, placed = judged.first + within, self._placed
        table, extents = self._table.take(rows), placed.extents.take(rows)
        blocks, runs = placed.components.take(rows), placed.stages.take(rows)
        return replace(
            judged,
            fitting=Fitting(
                table=table,
                rows=within,
                feasible=judged.feasible[:, within],
                timing=timed(self._model, self._system, table, extents, blocks, runs),
            ),
        )

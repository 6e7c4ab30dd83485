"""Judge a box of candidates: rules first, then memory, then the time of what fits."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, once_per
from shardwise.blocks import PlacedBlocks
from shardwise.evaluate import Holding, Timing, fits, held, timed
from shardwise.model import Model
from shardwise.rules import RULES, broken_rule
from shardwise.searcher.candidates import CHOICE_FIELDS, Box
from shardwise.system import System
from shardwise.table import Table

__all__ = ["Fitting", "Judged", "broken_options", "broken_reasons", "excess_bytes", "judge"]

# Rows, each with all its choices, that are evaluated at a time: their columns stay in the cache.
_CHUNK = 1 << 13
_OPTION_RULES = tuple(rule for rule in RULES if not rule.of_layout)


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
class Judged:
    """Rows of a box of which some choice obeys the rules."""

    rows: Ints
    """Positions in `Box.table`."""
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
    """None where nothing fits, or times are not asked for."""

    def too_full(self, capacity_bytes: float) -> Bools:
        """Choices that need more of the first memory tier than may be used; (choices, rows)."""
        return (self.holding.reserved_bytes > capacity_bytes)[self.held_as]


def broken_options(model: Model, system: System, box: Box, table: Table) -> Ints:
    """Position in `RULES` of the rule that an option or choice breaks, or -1; (choices, rows).

    Layouts are not looked at: those of the box obey the rules.
    """
    broken = broken_rule(model, system, table, _OPTION_RULES)
    return np.broadcast_to(broken, (len(box.choices), len(table)))


def broken_reasons(broken: Ints) -> Counter[str]:
    """How often each rule is broken, by reason."""
    counts = np.bincount(broken[broken >= 0], minlength=len(RULES)).tolist()
    return +Counter({rule.reason: number for rule, number in zip(RULES, counts, strict=True)})


def excess_bytes(system: System, holding: Holding, capacity_bytes: float) -> Floats:
    """What each memory tier lacks, or, below 0, has left; shape (tiers, holdings, rows)."""
    excess = [holding.reserved_bytes - capacity_bytes]
    far = system.accelerator.memory[1:]
    excess += [holding.memory.offloaded - tier.capacity for tier in far]
    return np.stack(np.broadcast_arrays(*excess))


def judge(
    model: Model,
    system: System,
    table: Table,
    broken: Ints,
    capacity_bytes: float,
    *,
    passed: Ints | None = None,
    times: bool = True,
) -> Iterator[Judged]:
    """Judge rows with all their choices, chunk by chunk; rows of which nothing fits are not timed.

    Parameters
    ----------
    table, broken
        Of a `Box` of legal layouts, and of `broken_options`.
    capacity_bytes
        What of the first memory tier may be used.
    passed
        What is passed over though it fits; shape (choices, rows), -1 where nothing is.
    times
        Whether what fits is timed, too.
    """
    rows = np.flatnonzero((broken < 0).any(axis=0))
    if not rows.size:
        return
    lawful, lawful_table = broken[:, rows] < 0, table.take(rows)
    over = np.full(lawful.shape, -1) if passed is None else passed[:, rows]
    columns = {name: getattr(table, name)[:, 0] for name in CHOICE_FIELDS if name != "dp_overlap"}
    distinct, held_as = once_per(list(columns.values()), lambda first: first)
    chosen = {name: getattr(table, name)[distinct, 0] for name in CHOICE_FIELDS}
    storing = lawful_table.with_choices(chosen)
    placed = PlacedBlocks.of(model, system, lawful_table)
    for start in range(0, rows.size, _CHUNK):
        piece = slice(start, start + _CHUNK)
        holding = held(storing.take(piece), placed.without_times(piece), placed.runs(piece))
        legal = lawful[:, piece]
        feasible = legal & fits(system, holding, capacity_bytes)[held_as] & (over[:, piece] < 0)
        within = np.flatnonzero(feasible.any(axis=0))
        fitting = None
        if times and within.size:
            timeable = start + within
            some, extents = lawful_table.take(timeable), placed.extents(timeable)
            fitting = Fitting(
                table=some,
                rows=within,
                feasible=feasible[:, within],
                timing=timed(
                    model, system, some, extents, placed.blocks(timeable), placed.runs(timeable)
                ),
            )
        yield Judged(
            rows=rows[piece],
            legal=legal,
            feasible=feasible,
            passed=over[:, piece],
            holding=holding,
            held_as=held_as,
            fitting=fitting,
        )

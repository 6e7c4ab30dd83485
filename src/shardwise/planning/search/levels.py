"""The best of a search by level: how many members of each axis share a domain, how many are across.

Every way to fill the domains is a candidate (`seating`), so the best of each combination of
degrees, extents, accelerators and batch is exact; what else may differ is the best for it.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.degrees import LEVELLED_AXES, levels_text
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import distinct_rows
from shardwise.errors import Fault, InputError
from shardwise.parallel.placement import Extents, place
from shardwise.planning.search.results import LevelsPlan, Plan
from shardwise.planning.search.space import Space

__all__ = ["LEVELS_AXES", "by_levels", "firsts_by_levels", "levels_space"]

LEVELS_AXES = ("gpus", "global_batch_size", "tp", "tp2", "cp", "pp", "ep", "etp", "extents")
"""Fields of which levels follow; several of their values may come to the same levels."""


def levels_space(space: Space, axes: Sequence[str]) -> Space:
    """The same space with every way to fill the domains.

    Raises
    ------
    InputError
        If that contradicts what was given.
    """
    if axes:
        problem = "contradicts levels, which has fields of its own; give one"
        raise InputError(Fault(field="axes", value=",".join(axes), has_value=True, problem=problem))
    if space.extents not in (None, "all"):
        problem = "contradicts levels, which tries all; give one"
        raise InputError(
            Fault(field="extents", value=space.extents[0], has_value=True, problem=problem)
        )
    return space.fixed({"extents": "all"}, source="search")


def firsts_by_levels(system: System, rows: Table) -> Ints:
    """Positions of the first strategy of each combination of levels, accelerators and batch."""
    extents = place(system, rows)
    seated = [column for axis in LEVELLED_AXES for column in getattr(extents, axis)]
    firsts, _ = distinct_rows([rows.gpus, rows.global_batch_size, *seated])
    return np.sort(firsts)


def by_levels(system: System, rows: Table, plans: Sequence[Plan]) -> tuple[LevelsPlan, ...]:
    """Plans with the levels of their axes; `rows` has the strategies of `plans`."""
    if not plans:
        return ()
    extents = place(system, rows)
    return tuple(
        LevelsPlan(levels={axis: _levels(extents, axis, row) for axis in LEVELLED_AXES}, plan=plan)
        for row, plan in enumerate(plans)
    )


def _levels(extents: Extents, axis: str, row: int) -> str:
    """Members that each tier adds, from the innermost out, as text: ``2x16``."""
    column: Ints = getattr(extents, axis)[:, row]
    here = column.tolist()
    return levels_text([n // before for n, before in zip(here, [1, *here[:-1]], strict=True)])

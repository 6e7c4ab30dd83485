"""How a space spreads the layers over the stages of a pipeline, each way once."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.pipeline_layout import layers_on_ranks, most_layers
from shardwise.planning.search.space import Space

__all__ = ["SPREAD_FIELDS", "LayerSplits"]

SPREAD_FIELDS = (
    "first_stage_layers",
    "last_stage_layers",
    "embedding_as_layer",
    "loss_as_layer",
)
"""Fields that spread layers unevenly, but a list of the layers of every stage."""

_RULES = tuple(
    rule
    for rule in CONSTRAINTS
    if rule.reason
    in ("layers", "half_stages", "stage_list", "stage_list_sum", "stage_list_only", "spread")
)
_EVEN = (0, 0, False, False, -1)
# Balanced stages: the first and the last one have fewer layers than an even share by up to so many.
_LESS_FIRST, _LESS_LAST = 2, 8

# Layers of the first and the last stage (0: not given), whether embedding and head count as a
# layer, and the position of a list (-1: none).
_Way = tuple[int, int, bool, bool, int]


class LayerSplits:
    """Ways to spread the layers of a model, by number."""

    def __init__(self, model: Model, system: System, space: Space) -> None:
        self._model, self._system = model, system
        self._balanced = "stage_layers" in space.kept
        listed = space.values("stage_layers", system) or (None,)
        self._lists = tuple(one for one in listed if one is not None)
        codes = [-1 if one is None else self._lists.index(one) for one in listed]
        tried = [[v or 0 for v in space.values(n, system) or ()] for n in SPREAD_FIELDS]
        self._tried: list[_Way] = [
            (first, last, bool(embedding), bool(loss), code)
            for first, last, embedding, loss, code in product(*tried, codes)
        ]
        self._ways: list[_Way] = []
        self._numbers: dict[_Way, int] = {}
        self._known: dict[tuple[int, int, int], list[int]] = {}

    def of(self, pp: int, vpp: int, schedule: int) -> list[int]:
        """Numbers of the ways to spread layers over a pipeline, none of them twice."""
        key = pp, vpp, schedule
        if key not in self._known:
            self._known[key] = [self._number(way) for way in self._distinct(pp, vpp, schedule)]
        return self._known[key]

    def take(self, numbers: Ints) -> dict[str, Any]:
        """Columns of a table, by the numbers of ways."""
        ways = np.array(self._ways or [_EVEN], dtype=np.int64)[numbers]
        columns: dict[str, Any] = dict(zip(SPREAD_FIELDS, ways.T, strict=False))
        columns |= {name: columns[name].astype(np.bool_) for name in SPREAD_FIELDS[2:]}
        return columns | {"stage_layers": ways[:, 4], "stage_lists": self._lists}

    def _number(self, way: _Way) -> int:
        if way not in self._numbers:
            self._numbers[way] = len(self._ways)
            self._ways.append(way)
        return self._numbers[way]

    def _distinct(self, pp: int, vpp: int, schedule: int) -> list[_Way]:
        """Ways of which no two give every stage the same layers; what breaks a rule is kept."""
        ways = self._tried
        if pp == 1:  # there is nothing to spread
            ways = [(0, 0, False, False, way[4]) for way in ways]
        elif self._balanced:
            places = 2 * pp if schedule == Schedule.ZB_V.code else pp
            ends = list(_ends(self._model.depth, places))
            ways = [(*end, *way[2:]) for way in ways for end in ends]
        ways = list(dict.fromkeys(ways))
        if len(ways) == 1:
            return ways
        table = self._table(ways, pp, vpp, schedule)
        broken = first_violation(self._model, self._system, table, _RULES).tolist()
        found: dict[Any, _Way] = {}
        for row, (way, rule) in enumerate(zip(ways, broken, strict=True)):
            sizes = tuple(layers_on_ranks(self._model.depth, table, row)) if rule < 0 else way
            if rule < 0 or not self._balanced:
                found.setdefault((rule < 0, sizes), way)
        return list(found.values()) or ways[:1]

    def _table(self, ways: list[_Way], pp: int, vpp: int, schedule: int) -> Table:
        rows = [[Schedule.from_code(schedule)] * len(ways)]
        one = {"pp": pp, "vpp": vpp, "schedule": rows[0], "dp": 1, "gbs": 1, "seq_len": 1}
        columns: dict[str, Any] = dict(zip(SPREAD_FIELDS, np.array(ways).T, strict=False))
        columns |= {name: columns[name].astype(np.bool_) for name in SPREAD_FIELDS[2:]}
        codes = np.array([way[4] for way in ways], dtype=np.int64)
        table = Table.of(self._model, one)
        return replace(table, **columns, stage_layers=codes, stage_lists=self._lists)


def _ends(depth: int, stages: int) -> Iterator[tuple[int, int]]:
    """Layers of the first and the last stage around an even share, which comes first.

    What the embedding and the head take is made up for by fewer layers beside them; the stages
    between share the rest evenly.
    """
    share = int(most_layers(depth, np.array(stages)))
    yield 0, 0
    if stages == 2:  # noqa: PLR2004 - the two ends are all there is
        for more in range(min(_LESS_LAST, depth - share) + 1):
            yield share + more, depth - share - more
        return
    for first in range(share, max(0, share - _LESS_FIRST) - 1, -1):
        for last in range(share, max(0, share - _LESS_LAST) - 1, -1):
            yield first, last

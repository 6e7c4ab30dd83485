"""Evaluate strategies on the systems of their points."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns, SystemRows
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.estimator import evaluated_columns
from shardwise.planning.intervals import interval_factors, interval_fields
from shardwise.planning.search.ranking import dollars_per_token
from shardwise.planning.sweep.results import PointPlan

# Rows evaluated at a time: their columns stay in the cache.
_CHUNK = 1 << 14


def times_on(
    model: Model, base: System, systems: SystemColumns, table: Table, on: Ints
) -> dict[str, Floats]:
    """Return times, rates and memory of legal strategies, each on one of the systems.

    Parameters
    ----------
    on
        Position of each row's system.
    """
    found: list[dict[str, Floats]] = []
    for start in range(0, len(table), _CHUNK):
        rows = slice(start, start + _CHUNK)
        some = replace(table.take(rows), systems=SystemRows(columns=systems, position=on[rows]))
        columns = evaluated_columns(model, base, some, "causal")
        chip = some.on(base).accelerator
        columns["capacity"] = np.broadcast_to(chip.memory[0].capacity, len(some))
        if base.price is not None:
            usd = dollars_per_token(columns["step_time_s"], some, some.on(base))
            columns["usd_per_billion_tokens"] = usd * 1e9
        found.append(columns)
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def plans_on(
    model: Model, base: System, systems: SystemColumns, table: Table, on: Ints
) -> list[PointPlan]:
    """Return legal strategies as plans, each on one of the systems."""
    if not len(table):
        return []
    columns = {
        name: column.tolist() for name, column in times_on(model, base, systems, table, on).items()
    }
    priced = columns.get("usd_per_billion_tokens", [None] * len(table))
    strategies = _distinct_strategies(table)
    factors = _factors(model, base, table, strategies)
    return [
        PointPlan(
            strategy=strategies[row],
            step_time_s=columns["step_time_s"][row],
            tokens_per_s=columns["tokens_per_s"][row],
            tokens_per_s_per_gpu=columns["tokens_per_s"][row] / int(table.gpus[row]),
            mfu=columns["mfu"][row],
            memory_reserved_bytes=columns["reserved"][row],
            usd_per_billion_tokens=priced[row],
            **interval_fields(columns["step_time_s"][row], factors[row]),
            fits=columns["fits"][row] == 1.0,
            time_s={part: columns[f"{part}_s"][row] for part in TIME_PARTS},
            memory_bytes={
                **{part: columns[f"{part}_bytes"][row] for part in MEMORY_PARTS},
                **{part: columns[part][row] for part in ("total", "reserved", "offloaded")},
                "capacity": columns["capacity"][row],
            },
        )
        for row in range(len(table))
    ]


def _factors(
    model: Model, base: System, table: Table, strategies: Sequence[dict[str, object]]
) -> list[float | None]:
    """The error range of every row; rows of one strategy share it."""
    firsts: dict[int, int] = {}
    for row, strategy in enumerate(strategies):
        firsts.setdefault(id(strategy), row)
    some = table.take(np.array(list(firsts.values())))
    known = dict(zip(firsts, interval_factors(model, base, some), strict=True))
    return [known[id(strategy)] for strategy in strategies]


def _distinct_strategies(table: Table) -> Sequence[dict[str, object]]:
    """The strategy of every row; equal rows share one."""
    columns = table.to_columns()
    keys = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    known: dict[str, dict[str, object]] = {}
    found = []
    for row, key in enumerate(map(repr, keys)):
        if key not in known:
            known[key] = table.strategy(row).to_dict()
        found.append(known[key])
    return found

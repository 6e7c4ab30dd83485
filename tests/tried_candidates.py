"""Candidates of a search over a small model, and their fields in order."""

from typing import Any

import numpy as np

import samples
from naive_search import FEW, FIELDS
from shardwise import Model, System
from shardwise.config.strategy_fields import CHOICE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.planning.search.candidates import Box, Candidates
from shardwise.planning.search.space import Space

MODEL = samples.model()


def with_host(machine: System) -> System:
    """A machine with a second memory tier."""
    told = machine.to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": 1e9}
    told["accelerator"]["memory"] = [told["accelerator"]["memory"][0], host]
    return System.validated(told)


SYSTEM = with_host(samples.system())


def candidates(system: System = SYSTEM, model: Model = MODEL, **fields: Any) -> Candidates:
    """Candidates of a space, by default of 8 accelerators and batches of 8."""
    usual = {"gpus": 8, "gbs": 8} if "global_batch_size" not in fields else {"gpus": 8}
    usual |= FEW | {"scope": "full"}
    return Candidates.of(model, system, Space.validated(usual | fields))


def table_of(found: Candidates) -> Table:
    """All candidates in order."""
    return found.strategies(np.arange(len(found)))


def keys(table: Table, names: tuple[str, ...] = FIELDS) -> list[tuple[Any, ...]]:
    """Fields of each row."""
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def rows_of(boxes: tuple[Box, ...]) -> Table:
    """Candidates of boxes as they are evaluated: rows with all their choices, one by one."""
    tables = []
    for box in boxes:
        rows = box.table()
        row, choice = (i.ravel() for i in np.indices((len(rows), len(box.choices))))
        chosen = {name: getattr(rows, name)[choice, 0] for name in CHOICE_FIELDS}
        plain = rows.replaced(box.choices.take(np.zeros(len(rows), np.int64)), CHOICE_FIELDS).take(
            row
        )
        tables.append(plain.replaced(Table.of(MODEL, {"dp": 1, "gbs": 1, **chosen}), CHOICE_FIELDS))
    return Table.joined(tables)

"""Keys of layouts: what variants of one layout agree in (`LINE_FIELDS`)."""

from hashlib import blake2b
from typing import Any

import numpy as np

from shardwise.arrays import Ints
from shardwise.config.strategy_fields import LAYOUT_FIELDS, LINE_FIELDS
from shardwise.config.strategy_table import Table
from shardwise.distinct import distinct_rows
from shardwise.planning.search.candidates import Box

LAYOUT_PART, OPTION_PART = (
    tuple(name for name in LINE_FIELDS if (name in LAYOUT_FIELDS) is of_layout)
    for of_layout in (True, False)
)
"""Fields of the key that the layouts of a box have, and those that its options have."""


def as_integers(table: Table, name: str) -> Ints:
    """Return a column as integers that are equal only for equal values."""
    column: Any = getattr(table, name)
    if name == "extents":  # positions in a list that depends on the number of accelerators
        hashes = [blake2b(text.encode(), digest_size=8).digest() for text in table.extent_lists]
        codes = [int.from_bytes(digest, signed=True) for digest in hashes]
        return np.array([*codes, 0], dtype=np.int64)[column]
    return column.view(np.int64) if column.dtype == np.float64 else column.astype(np.int64)


def table_keys(table: Table, rows: Ints) -> Ints:
    """Return the key of the layout of some rows; shape (rows, `LINE_FIELDS`)."""
    columns = [as_integers(table, name)[rows] for name in LINE_FIELDS]
    return np.stack(columns, axis=1)


def layout_codes(box: Box) -> Ints:
    """Return a number for the layout of each row of `Box.table`, equal only for equal keys."""
    layout = distinct_rows([getattr(box.layouts, name) for name in LAYOUT_PART])[1]
    option = distinct_rows([getattr(box.options, name) for name in OPTION_PART])[1]
    codes = layout[:, np.newaxis] * (option.max(initial=0) + 1) + option
    return np.broadcast_to(codes, (len(box.layouts), len(box.options))).ravel()

"""Pieces of a search: looked at in order, by whoever works, and those that were saved only once."""

import hashlib
import json
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise._version import __version__
from shardwise.planning.search.candidates import CHOICE_FIELDS, OPTION_FIELDS, Box, Candidates
from shardwise.planning.search.columns import Rows, no_rows
from shardwise.planning.search.executors import Workers
from shardwise.planning.search.layouts import LAYOUT_FIELDS
from shardwise.planning.search.scan import Found, Question, look
from shardwise.planning.search.store import Store

__all__ = ["PIECE_ROWS", "SAVED_PIECE_ROWS", "Done", "Task", "Work"]

PIECE_ROWS = 1 << 16
"""Layouts x options that are one piece of work: enough to be worth handing to a process."""
SAVED_PIECE_ROWS = 1 << 14
"""The same where rows are saved: few enough that those of several pieces fit into memory."""

Saved = Literal["feasible", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a piece."""

    found: Found
    rows: bytes
    """As a Parquet file; empty if they are not saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is done with every piece; goes to other processes."""

    question: Question
    saved: Saved | None

    def __call__(self, piece: Box) -> Done:
        """Look at a piece; of layouts that break a rule only the rows are wanted."""
        if self.saved is None:
            return Done(found=look(self.question, piece), rows=b"")
        rows = Rows(self.question, piece, rejected=self.saved == "all")
        if piece.broken.max() < 0:
            return Done(found=look(self.question, piece, rows), rows=rows.parquet())
        rows.layouts()
        return Done(found=Found.nothing(len(self.question.axes)), rows=rows.parquet())


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All that is to be done for a search, who does it, and where rows are saved."""

    question: Question
    candidates: Candidates
    workers: Workers
    file: Path | None = None
    """Where rows are saved, if anywhere."""
    saved: Saved = "feasible"

    @property
    def boxes(self) -> tuple[Box, ...]:
        """What is cut in pieces; layouts that break a rule are counted without a look at them."""
        every = self.file is not None and self.saved == "all"
        return (*self.candidates.legal, *(self.candidates.illegal if every else ()))

    def pieces(self) -> Iterator[Box]:
        """Cut all boxes, the same way whoever works."""
        rows = PIECE_ROWS if self.file is None else SAVED_PIECE_ROWS
        return (piece for box in self.boxes for piece in box.cut(rows))

    def seen(self) -> Generator[tuple[Box, Found], None, None]:
        """Yield every piece with what was found in it, in order; at the end, rows are saved.

        Raises
        ------
        InputError
            If the file cannot be written, or the workers fail.
        """
        if self.file is None:
            yield from self._looked(None)
            return
        pieces = sum(1 for _ in self.pieces())
        with Store(file=self.file, fingerprint=self.fingerprint(), pieces=pieces) as store:
            yield from self._looked(store)
            store.finish(no_rows(self.question.model))

    def _looked(self, store: Store | None) -> Iterator[tuple[Box, Found]]:
        """Look at the pieces that are not in the store, and put them there."""
        task = Task(question=self.question, saved=None if store is None else self.saved)
        finished = frozenset[int]() if store is None else store.finished
        numbered = enumerate(self.pieces())
        missing = (piece for number, piece in numbered if number not in finished)
        with closing(self.workers.each(task, missing)) as results:
            for number, piece in enumerate(self.pieces()):
                if store is not None and number in finished:
                    yield piece, store.found(number)
                    continue
                done = next(results)
                if store is not None:
                    store.add(number, done.found, done.rows)
                yield piece, done.found

    def fingerprint(self) -> dict[str, Any]:
        """All that decides the rows of the file and what is found in them."""
        question = self.question
        return {
            "version": __version__,
            "model": _digest(question.model.to_dict()),
            "system": _digest(question.system.to_dict()),
            "space": _digest([_contents(box) for box in self.boxes]),
            "usable memory": question.capacity_bytes,
            "objective": question.objective,
            "top": question.top,
            "pareto": question.front,
            "axes": list(question.axes),
            "save_all": self.saved == "all",
            "piece": SAVED_PIECE_ROWS,
        }


def _digest(record: Any) -> str:
    text = json.dumps(record, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _contents(box: Box) -> list[str]:
    """Digests of the columns of a box, and of what their positions stand for."""
    parts = (box.layouts, LAYOUT_FIELDS), (box.options, OPTION_FIELDS), (box.choices, CHOICE_FIELDS)
    columns = [getattr(table, name) for table, names in parts for name in names]
    hashed = [
        hashlib.blake2b(np.ascontiguousarray(column).tobytes(), digest_size=16).hexdigest()
        for column in (*columns, box.broken)
    ]
    software = [stack.to_dict() for stack in box.options.stacks]
    lists = box.layouts.stage_lists, box.layouts.extent_lists
    return [*hashed, _digest([software, *lists, box.kept])]

"""Run a search piece by piece: in order, on any workers; pieces saved before are not repeated."""

import hashlib
import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from shardwise._version import __version__
from shardwise.arrays import Ints
from shardwise.config import files
from shardwise.config.plain import as_json
from shardwise.config.strategy_fields import CHOICE_FIELDS, LAYOUT_FIELDS
from shardwise.planning.search.bounded import (
    MOST_LAYOUTS,
    MOST_PAIRS,
    BoundedScan,
    LayoutBounds,
    LegalBoxes,
    Limits,
    legality_of_each,
    scan_bounded,
)
from shardwise.planning.search.candidates import (
    OPTION_FIELDS,
    Box,
    Boxes,
    Candidates,
    Scale,
    alike,
    cut_together,
)
from shardwise.planning.search.pairs import Legality
from shardwise.planning.search.query import SearchQuery
from shardwise.planning.search.scan import (
    Evaluated,
    Findings,
    broken_reasons,
    counted_in,
    least_excess,
    memory_of_each,
    merged,
    scan,
)
from shardwise.planning.search.store import Rows, Store, no_rows
from shardwise.planning.search.workers import Workers
from shardwise.records import dataclass, field, replace

PIECE_ROWS = 1 << 16
"""Layouts x options in a piece of work: enough to be worth sending to a process."""
SAVED_PIECE_ROWS = 1 << 14
"""The same where rows are saved: few enough that several pieces fit into memory."""
FEW_CANDIDATES = 1 << 17
"""So many candidates or fewer are all evaluated: bounds would not save time."""
# Candidates of a space of which all that is evaluated is saved, in some 20 MB.
_MOST_SAVED = 1 << 13
# Layouts of the first piece that is scanned by memory, and how the next ones grow.
_FIRST_LAYOUTS, _GROWTH = 1 << 5, 8
# Times smaller a piece of layouts with bounds is where several processes share the work.
_SHARES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """Scans a piece, on any worker."""

    query: SearchQuery
    save: bool
    save_rejected: bool

    def __call__(self, piece: Box | Boxes) -> tuple[Findings, bytes]:
        """Return the findings of a piece, and its rows as a Parquet file if they are saved."""
        if isinstance(piece, Boxes) or not self.save:
            return scan(self.query, piece), b""
        rows = Rows(self.query, piece, rejected=self.save_rejected)
        if piece.broken.max() < 0:
            return scan(self.query, piece, rows), rows.parquet()
        rows.illegal_layouts()
        return Findings.empty(len(self.query.axes)), rows.parquet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Saves what a scan evaluates (a `scan.Observer`)."""

    each: list[Evaluated]

    def options(self, broken: Ints) -> None:
        """Ignore candidates that break a rule."""

    def evaluated(self, chunk: Evaluated) -> None:
        """Save a chunk."""
        self.each.append(chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedTask:
    """Scans a piece for what is better than all that is known, on any worker."""

    query: SearchQuery

    def __call__(self, item: tuple[Boxes, BoundedScan]) -> Findings:
        """Return the findings of a piece."""
        return scan_bounded(self.query, *item)


@dataclass(slots=True, kw_only=True)
class Scanned:
    """What a search found so far."""

    query: SearchQuery
    total: Findings
    by_scale: dict[Scale, Findings]

    @classmethod
    def nothing(cls, query: SearchQuery, scales: Sequence[Scale]) -> "Scanned":
        """Before the first piece."""
        none = Findings.empty(len(query.axes))
        return cls(query=query, total=none, by_scale=dict.fromkeys(scales, none))

    def add(self, scale: Scale, findings: Findings) -> None:
        """Add the findings of some candidates of a scale."""
        self.by_scale[scale] = merged([self.by_scale[scale], findings], self.query)
        self.total = merged([self.total, findings], self.query)

    def start(self, scale: Scale, *legality: Legality, counts: bool) -> BoundedScan:
        """Return what a bounded scan of a piece of a scale starts from."""
        score = None
        if len(self.by_scale) > 1:
            best = self.by_scale[scale].best
            score = float(best.score[0]) if len(best) else math.inf
        return BoundedScan(legality=legality, known=self.total, scale_score=score, counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All pieces of a search, the workers, and the file that rows are saved to."""

    query: SearchQuery
    candidates: Candidates
    workers: Workers
    file: Path | None = None
    """None: rows are not saved."""
    save_rejected: bool = False
    bounds: bool = True
    """Whether to leave out candidates that are too slow by their bounds, where no rows are saved
    and no field has one value selected."""
    counts: bool = False
    """Whether to count every candidate by outcome nevertheless."""
    scanned: list[tuple[Box | Boxes, list[Evaluated]]] = field(default_factory=list)
    """Pieces of a small space with all that was evaluated of them."""

    @property
    def is_small(self) -> bool:
        """Whether the space has so few candidates that what is evaluated of them is saved."""
        return sum(map(len, self.candidates.legal)) <= _MOST_SAVED

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes to scan; illegal layouts only if their rows are saved."""
        every = self.file is not None and self.save_rejected
        return (*self.candidates.legal, *(self.candidates.illegal if every else ()))

    def scan(self, scanned: Scanned) -> Generator[None, None, None]:
        """Scan every candidate; yield whenever there is more in `scanned`."""
        bounded = self.bounds and self.file is None
        bounded &= sum(map(len, self.candidates.legal)) > FEW_CANDIDATES
        left = self.boxes
        if self.file is None:
            left = yield from self._rejected(scanned)
        plain = [box for box in left if box.selected or not bounded]
        with closing(self.results(plain)) as results:
            for piece, findings in results:
                scanned.add(piece.scale, findings)
                yield
        if not bounded:
            return
        for scale in scanned.by_scale:
            boxes = [box for box in left if box.scale == scale and not box.selected]
            if boxes:
                yield from self._scan_bounded(scanned, scale, boxes)

    def _rejected(self, scanned: Scanned) -> Generator[None, None, tuple[Box, ...]]:
        """Scan small boxes by memory, several at a time, where most likely nothing fits.

        Returns the boxes that are left, from the first one on of which something fits.
        """
        query, rejected = self.query, set[int]()
        small = [
            box
            for box in self.boxes
            if query.is_too_large(box.scale.gpus)
            and len(box.layouts) * len(box.options) <= PIECE_ROWS
        ]
        for boxes in cut_together(small, PIECE_ROWS):
            each = memory_of_each(
                *(query.model, query.system, boxes, query.capacity_bytes), query.fit
            )
            if any(some is not None and some.feasible.any() for _, some in each):
                break
            for box, (broken, some) in zip(boxes, each, strict=True):
                found = Findings.empty(len(query.axes))
                if some is not None:
                    nearest = least_excess(query, box, some)
                    found = replace(counted_in(query, some), nearest=nearest)
                reasons = found.rejected + broken_reasons(broken)
                scanned.add(box.scale, replace(found, candidates=len(box), rejected=reasons))
                rejected.add(box.start)
            yield
        return tuple(box for box in self.boxes if box.start not in rejected)

    def _scan_bounded(self, scanned: Scanned, scale: Scale, boxes: Sequence[Box]) -> Iterator[None]:
        """Scan boxes of one scale: by memory until something fits, then those of least bound."""
        sizes: deque[int] = deque()
        none = Findings.empty(len(self.query.axes))

        def items() -> Iterator[tuple[Boxes, BoundedScan]]:
            left: list[tuple[Box, Legality]] = []
            for box, legality in self._by_memory(scanned, scale, boxes, left):
                legal, rejected = legality.counts()
                scanned.add(scale, replace(none, evaluated=legal, rejected=rejected))
                sizes.append(len(box))
                yield Boxes(each=(box,)), scanned.start(scale, legality, counts=True)
            for piece, legalities in self._by_bound(scanned, scale, left):
                sizes.append(len(piece))
                yield piece, scanned.start(scale, *legalities, counts=self.counts)

        task = BoundedTask(query=self.query)
        with closing(self.workers.each(task, items(), in_flight=1)) as results:
            for findings in results:
                scanned.add(scale, replace(findings, candidates=sizes.popleft()))
                yield
        everything = sum(len(box) for box in self.boxes if box.scale == scale)
        left = everything - scanned.by_scale[scale].candidates
        scanned.add(scale, replace(none, candidates=left))
        yield

    def _by_bound(
        self, scanned: Scanned, scale: Scale, boxes: Sequence[tuple[Box, Legality]]
    ) -> Iterator[LegalBoxes]:
        """Yield pieces that can be among the results, those of least bound first.

        Boxes with the same choices are scanned as one: few rows take as long as many.
        """
        none = Findings.empty(len(self.query.axes))

        def limits() -> Limits | None:
            start = scanned.start(scale, counts=self.counts)
            return None if self.counts else start.limits(self.query, none)

        for some in alike([box for box, _ in boxes]):
            each, legality = zip(*(boxes[at] for at in some), strict=True)
            bounds = LayoutBounds.of(self.query, Boxes(each=each), legality)
            scanned.add(scale, bounds.findings)
            shares = 1 if self.workers.alone else _SHARES
            yield from bounds.pieces(self.query, limits, MOST_LAYOUTS // shares)

    def _by_memory(
        self,
        scanned: Scanned,
        scale: Scale,
        boxes: Sequence[Box],
        left: list[tuple[Box, Legality]],
    ) -> Iterator[tuple[Box, Legality]]:
        """Yield pieces until something fits, those of small boxes first; add the rest to `left`.

        Before something fits, nothing is too slow: bounds would leave out no candidate.
        """
        size, boxes = _FIRST_LAYOUTS, sorted(boxes, key=len)
        for box, legality in zip(boxes, legality_of_each(self.query, boxes), strict=True):
            start, count, most = 0, len(box.layouts), max(1, MOST_PAIRS // box.width)
            while start < count and not scanned.by_scale[scale].feasible:
                some = np.arange(start, min(start + min(size, most), count))
                yield box.select(some), legality.take(some)
                start, size = start + some.size, size * _GROWTH
            if start < count:
                rest = np.arange(start, count)
                left.append((box.select(rest), legality.take(rest)) if start else (box, legality))

    def pieces(self, boxes: Sequence[Box]) -> Iterator[Box | Boxes]:
        """Cut boxes, in the same way on any workers; small ones are together, unless saved."""
        if self.file is not None:
            yield from (piece for box in boxes for piece in box.cut(SAVED_PIECE_ROWS))
            return
        for some in cut_together(boxes, PIECE_ROWS):
            for together in alike(some):
                each = tuple(some[at] for at in together)
                yield each[0] if len(each) == 1 else Boxes(each=each)

    def results(self, boxes: Sequence[Box]) -> Generator[tuple[Box | Boxes, Findings], None, None]:
        """Yield every piece of boxes with its findings, in order; at the end, write the file.

        Raises
        ------
        InputError
            If the file cannot be written, or the workers fail.
        """
        if self.file is None:
            yield from self._scanned(boxes, None)
            return
        pieces = sum(1 for _ in self.pieces(boxes))
        file = files.target_of(self.file)
        with Store(file=file, fingerprint=self.fingerprint(), pieces=pieces) as store:
            yield from self._scanned(boxes, store)
            store.finish(no_rows(self.query.model))

    def _scanned(
        self, boxes: Sequence[Box], store: Store | None
    ) -> Iterator[tuple[Box | Boxes, Findings]]:
        """Scan the pieces that the store lacks, and add them to it."""
        task = SearchTask(
            query=self.query, save=store is not None, save_rejected=self.save_rejected
        )
        if store is None and self.workers.alone and self.is_small:
            for piece in self.pieces(boxes):
                chunks = Chunks(each=[])
                self.scanned.append((piece, chunks.each))
                yield piece, scan(self.query, piece, chunks)
            return
        finished = frozenset[int]() if store is None else store.finished
        numbered = enumerate(self.pieces(boxes))
        missing = (piece for number, piece in numbered if number not in finished)
        with closing(self.workers.each(task, missing)) as results:
            for number, piece in enumerate(self.pieces(boxes)):
                if store is not None and number in finished:
                    yield piece, store.findings(number)
                    continue
                findings, rows = next(results)
                if store is not None:
                    store.add(number, findings, rows)
                yield piece, findings

    def fingerprint(self) -> dict[str, Any]:
        """All that determines the rows of the file and the findings."""
        query = self.query
        return {
            "version": __version__,
            "model": _digest(query.model.to_dict()),
            "system": _digest(query.system.to_dict()),
            "space": _digest([_digests(box) for box in self.boxes]),
            "usable memory": query.capacity_bytes,
            "fits": [query.fit.probability, query.fit.states_load],
            "objective": query.objective,
            "advises": query.robust is not None,
            "top": query.top,
            "all_variants": not query.lines,
            "pareto": query.front,
            "axes": list(query.axes),
            "save_all": self.save_rejected,
            "piece": SAVED_PIECE_ROWS,
        }


def _digest(record: object) -> str:
    text = as_json(record, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digests(box: Box) -> list[str]:
    """Digests of the columns of a box, and of the lists that they index."""
    parts = (box.layouts, LAYOUT_FIELDS), (box.options, OPTION_FIELDS), (box.choices, CHOICE_FIELDS)
    columns = [getattr(table, name) for table, names in parts for name in names]
    hashed = [
        hashlib.blake2b(np.ascontiguousarray(column).tobytes(), digest_size=16).hexdigest()
        for column in (*columns, box.broken)
    ]
    stacks = [stack.to_dict() for stack in box.options.stacks]
    lists = box.layouts.stage_lists, box.layouts.extent_lists, box.options.length_lists
    return [*hashed, _digest([stacks, *lists, box.selected])]

"""Bytes held by tensors while a step runs: storages counted from their making to their end.

A storage counts once, however many tensors look at it, from the operator that returns it until its
last tensor is gone. What stood there before the step (weights, buffers, inputs) does not count.
"""

# ruff: noqa: SLF001 - a storage has no other name

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ledger"]


@dataclass(slots=True)
class Ledger:
    """What is held now, and the fullest moment and the end of each segment so far."""

    held: list[int] = field(default_factory=list)
    """Most bytes in each closed segment."""
    left: list[int] = field(default_factory=list)
    """Bytes at the end of each."""
    now: int = 0
    most: int = 0
    begun: bool = False
    _known: dict[int, Any] = field(default_factory=dict)

    @property
    def segment(self) -> int:
        """Number of the segment that is open."""
        return len(self.held)

    def cut(self) -> int:
        """End a segment and begin the next; its number. The first cut begins segment 0."""
        if self.begun:
            self.held.append(self.most)
            self.left.append(self.now)
        self.begun = True
        self.most = self.now
        return len(self.held)

    def leave_out(self, tensors: Iterable[Any]) -> float:
        """Never count these tensors; the bytes of their storages."""
        found: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
            self._known.setdefault(storage._cdata, storage)
        return float(sum(found.values()))

    def made(self, storage: Any) -> None:
        """Count a storage that an operator returned, unless it is known."""
        place = storage._cdata
        if place in self._known:
            return
        size = storage.nbytes()

        def gone(_: Any) -> None:
            self.now -= size
            del self._known[place]

        self._known[place] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)

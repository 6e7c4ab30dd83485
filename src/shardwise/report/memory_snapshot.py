"""The memory of a step as a snapshot of PyTorch's caching allocator, for pytorch.org/memory_viz.

The format is that of `torch.cuda.memory._snapshot()` (PyTorch 2.9, torch/cuda/_memory_viz.py): a
pickled dictionary of lists, numbers and text. Every pipeline rank is a device with one segment.
Blocks are weights, gradients, optimizer state, the activations of every micro-batch, the transient
bytes of every pass, and the copies of the update where it has the peak.
"""

import pickle
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.analysis.timeline.actions import FORWARD_CODE, KINDS, WEIGHTS_CODE
from shardwise.analysis.timeline.step import StepTimeline

_US = 1e6
# Where the segment of a rank begins: any address will do.
_BASE = 2**40
_STATIC = ("weights", "gradients", "optimizer")
_NO_POOL = (0, 0)


def memory_snapshot(timeline: StepTimeline, *, offloaded: bool) -> dict[str, object]:
    """Return the allocations of every rank in one step.

    Parameters
    ----------
    offloaded
        Whether activations are offloaded: what of them is resident is one block, not one for each
        micro-batch.
    """
    devices = [
        _Device(timeline=timeline, rank=rank, offloaded=offloaded)
        for rank in range(timeline.pipeline.ranks)
    ]
    for device in devices:
        device.run()
    return {
        "segments": [device.segment() for device in devices],
        "device_traces": [device.trace for device in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }


def as_pickle(snapshot: dict[str, object]) -> bytes:
    """Return a snapshot as the viewer reads it: the protocol that PyTorch writes."""
    return pickle.dumps(snapshot, protocol=4)


@dataclass(kw_only=True)
class _Device:
    """Blocks of one pipeline rank, placed at the first gap that is large enough."""

    timeline: StepTimeline
    rank: int
    offloaded: bool
    trace: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Address and size of each live block, ascending."""
    live: dict[object, tuple[int, int, list[dict[str, Any]]]] = field(default_factory=dict)
    """Address, size and frames by key."""
    end: int = _BASE

    def run(self) -> None:
        """Replay the step."""
        line = self.timeline
        for name in _STATIC:
            size = float(getattr(line.memory, name)[self.rank])
            self._alloc(name, size, 0.0, _frame(name, line.rank_label(self.rank)))
        for group in self._groups():
            self._pass(group)
        if line.memory.in_update[self.rank]:
            start = line.passes_s + line.after_s["replicas"] + line.after_s["offload"]
            frames = _frame("copies of the update", line.rank_label(self.rank))
            self._alloc("update", float(line.memory.buffers[self.rank]), start, frames)
            self._free("update", start + line.after_s["optimizer"])
        self.trace.insert(0, self._event("segment_alloc", _BASE, self.end - _BASE, 0.0, []))

    def segment(self) -> dict[str, object]:
        """Return the segment with the blocks that are live after the step."""
        blocks = [
            _block(address, size, "active_allocated", frames)
            for address, size, frames in sorted(self.live.values(), key=lambda block: block[0])
        ]
        used = sum(block["size"] for block in blocks)
        if free := self.end - _BASE - used:
            blocks.append(_block(_BASE + used, free, "inactive", []))
        return {
            "device": self.rank,
            "address": _BASE,
            "total_size": self.end - _BASE,
            "allocated_size": used,
            "active_size": used,
            "requested_size": used,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": _NO_POOL,
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }

    def _groups(self) -> Iterator[tuple[int, ...]]:
        """Actions of the rank in order, the two of a pair together."""
        actions = self.timeline.actions
        own = np.flatnonzero(actions.rank == self.rank).tolist()
        second = False
        for at in own:
            if not second:
                yield (at, at + 1) if actions.paired[at] else (at,)
            second = bool(actions.paired[at]) and not second

    def _pass(self, group: tuple[int, ...]) -> None:
        line, last = self.timeline, group[-1]
        actions, memory = line.actions, line.memory_at_actions
        start, end = float(actions.start_s[last]), float(actions.end_s[last])
        names = [f"{KINDS[actions.kind[at]]} {actions.micro_batch[at]}" for at in group]
        holds = line.stage_label(int(actions.stage[last]))
        if self.offloaded:
            self._resident(float(memory.activations[last]), start)
        for at in () if self.offloaded else group:
            if actions.kind[at] == FORWARD_CODE:
                self._save(at, start)
        transient = _frame(f"transient of {' + '.join(names)}", holds)
        self._alloc("transient", float(memory.live[last]), start, transient)
        self._free("transient", end)
        if self.offloaded:
            self._resident(float(memory.after[last]), end)
        for at in () if self.offloaded else group:
            if actions.kind[at] == WEIGHTS_CODE or actions.has_weight_grads[at]:
                self._free(self._key(at), end)

    def _key(self, at: int) -> tuple[int, int]:
        """Virtual stage and micro-batch of an action."""
        actions = self.timeline.actions
        return int(actions.stage[at]), int(actions.micro_batch[at])

    def _save(self, at: int, when: float) -> None:
        """Save the activations of a forward."""
        stage, micro_batch = self._key(at)
        passes = self.timeline.passes
        size = float(passes.saved_bytes[stage] + passes.embedding_bytes[stage])
        frames = _frame(
            f"activations of micro-batch {micro_batch}", self.timeline.stage_label(stage)
        )
        self._alloc((stage, micro_batch), size, when, frames)

    def _resident(self, size: float, when: float) -> None:
        """Change the activations that are resident."""
        self._free("resident", when)
        frames = _frame("resident activations", self.timeline.rank_label(self.rank))
        self._alloc("resident", size, when, frames)

    def _alloc(
        self, key: object, size: float, when: float, frames: list[dict[str, object]]
    ) -> None:
        number = round(size)
        if number <= 0:
            return
        address = self._place(number)
        insort(self.blocks, (address, number))
        self.end = max(self.end, address + number)
        self.live[key] = address, number, frames
        self.trace.append(self._event("alloc", address, number, when, frames))

    def _free(self, key: object, when: float) -> None:
        if key not in self.live:
            return
        address, size, frames = self.live.pop(key)
        self.blocks.remove((address, size))
        for action in ("free_requested", "free_completed"):
            self.trace.append(self._event(action, address, size, when, frames))

    def _place(self, size: int) -> int:
        """Address of the first gap of a size, or of the end of the last block."""
        free = _BASE
        for address, length in self.blocks:
            if address - free >= size:
                return free
            free = address + length
        return free

    def _event(
        self, action: str, address: int, size: int, when: float, frames: list[dict[str, object]]
    ) -> dict[str, object]:
        return {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": round(when * _US),
            "frames": frames,
        }


def _frame(name: str, holds: str) -> list[dict[str, object]]:
    """What a block is, as a stack frame of the viewer."""
    return [{"filename": holds, "line": 0, "name": name}]


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": state,
        "frames": frames,
    }

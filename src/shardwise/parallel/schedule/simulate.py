"""Exact event simulation of one pipeline step: when every action starts and ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.orders import (
    BACKWARD,
    FORWARD,
    Action,
    chunks_of,
    orders,
    rank_of,
    stage_of,
    virtual_stages,
)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A simulated step: values per action, rank by rank in the order of work; then per rank."""

    rank: Ints
    kind: tuple[str, ...]
    """F, B or W."""
    micro_batch: Ints
    chunk: Ints
    start_s: Floats
    """If messages block the rank, after the message that the action waits for has arrived."""
    end_s: Floats
    step_s: float
    """From the first start to the last end."""
    busy_s: Floats
    """Time in passes, by rank."""
    transfer_s: Floats
    """Time that messages occupy the rank; 0 where they overlap compute."""
    idle_s: Floats
    """The rest of the step."""
    peak_chunks: Ints
    """Most chunk activations saved at once, from the start of F to the end of W or a full B."""
    peak_at_s: Floats
    """When that peak is first reached: the start of an F."""

    @property
    def span_s(self) -> Floats:
        """From the first start to the last end of each rank.

        The time per step where no rank waits at its end for all others: the zero-bubble schedules'
        own measure (arXiv 2401.10241, section 4).
        """
        first, last = np.full(self.busy_s.shape, np.inf), np.zeros(self.busy_s.shape)
        np.minimum.at(first, self.rank, self.start_s)
        np.maximum.at(last, self.rank, self.end_s)
        return last - first


def simulate(
    schedule: str,
    *,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    forward_s: Sequence[float],
    input_grad_s: Sequence[float],
    weight_grad_s: Sequence[float],
    hop_s: float = 0.0,
    blocking: bool = False,
    pair_s: Sequence[float] | None = None,
) -> Timeline:
    """Run one step: an action starts when its rank is free and its input has arrived.

    Time and memory are linear in the number of actions.

    Parameters
    ----------
    schedule
        Name of a `Schedule`.
    ranks
        p, ranks of the pipeline.
    micro_batches
        m, micro-batches per step.
    chunks
        v, chunks per rank.
    blocking
        Whether a message occupies the rank that receives it, just before the pass that needs it,
        instead of overlapping compute.
    pair_s
        By rank, time of DualPipe's overlapped forward and full backward, of either direction [s];
        None is the sum of both.

    Raises
    ------
    InputError
        If the schedule does not support so many ranks, micro-batches or chunks.
    """
    work = orders(schedule, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    times = _Times(schedule, ranks, chunks, forward_s, input_grad_s, weight_grad_s, pair_s)
    dependencies = _Dependencies(schedule, ranks, micro_batches, chunks)
    starts, ends, transfers = _run(work, times, dependencies, hop_s, blocking=blocking)
    return _timeline(work, starts, ends, transfers)


class _Times:
    """Seconds of an action on a rank."""

    def __init__(
        self,
        schedule: str,
        ranks: int,
        chunks: int,
        forward_s: Sequence[float],
        input_grad_s: Sequence[float],
        weight_grad_s: Sequence[float],
        pair_s: Sequence[float] | None,
    ) -> None:
        count = range(chunks_of(schedule, chunks))
        stages = [
            [stage_of(schedule, rank=rank, chunk=c, ranks=ranks) for c in count]
            for rank in range(ranks)
        ]
        self._forward = [[forward_s[s] for s in row] for row in stages]
        self._input = [[input_grad_s[s] for s in row] for row in stages]
        self._weight = [[weight_grad_s[s] for s in row] for row in stages]
        self._pair = pair_s

    def of(self, rank: int, one: Action) -> float:
        if one.kind == FORWARD:
            return self._forward[rank][one.chunk]
        weight = self._weight[rank][one.chunk]
        if one.kind == BACKWARD:
            return self._input[rank][one.chunk] + (0.0 if one.split else weight)
        return weight

    def of_pair(self, rank: int, forward: Action, backward: Action) -> float:
        if self._pair is not None:
            return self._pair[rank]
        return self.of(rank, forward) + self.of(rank, backward)


class _Dependencies:
    """Numbers the passes, and finds the one that each of them waits for."""

    def __init__(self, schedule: str, ranks: int, micro_batches: int, chunks: int) -> None:
        self._m = micro_batches
        self._stages = virtual_stages(schedule, ranks=ranks, chunks=chunks)
        count = chunks_of(schedule, chunks)
        self._stage = [
            [stage_of(schedule, rank=rank, chunk=c, ranks=ranks) for c in range(count)]
            for rank in range(ranks)
        ]
        both = range(2 if schedule == "dualpipe" else 1)
        self._rank = [
            [rank_of(schedule, stage=s, ranks=ranks, direction=d)[0] for s in range(self._stages)]
            for d in both
        ]
        self.size = 2 * self._stages * micro_batches

    def number(self, rank: int, one: Action) -> int:
        stage = self._stage[rank][one.chunk]
        return ((one.kind == BACKWARD) * self._stages + stage) * self._m + one.micro_batch

    def source(self, rank: int, one: Action) -> tuple[int, bool]:
        """Number of the pass that must end before, -1 for none; whether it is on another rank."""
        stage, k = self._stage[rank][one.chunk], one.micro_batch
        at = self._rank[one.chunk if len(self._rank) > 1 else 0]
        if one.kind == FORWARD:
            return ((stage - 1) * self._m + k, at[stage - 1] != rank) if stage else (-1, False)
        if one.kind == BACKWARD and stage < self._stages - 1:
            return (self._stages + stage + 1) * self._m + k, at[stage + 1] != rank
        return stage * self._m + k, False


def _run(
    work: Sequence[Sequence[Action]],
    times: _Times,
    dependencies: _Dependencies,
    hop_s: float,
    *,
    blocking: bool,
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Let each rank work until an input is missing; wake it when that input is ready."""
    done: list[float | None] = [None] * dependencies.size
    waiting: dict[int, int] = {}
    starts: list[list[float]] = [[] for _ in work]
    ends: list[list[float]] = [[] for _ in work]
    free, occupied = [0.0] * len(work), [0.0] * len(work)
    ready = list(range(len(work)))
    while ready:
        rank = ready.pop()
        order = work[rank]
        while len(ends[rank]) < len(order):
            at = len(ends[rank])
            block = order[at : at + 1 + order[at].paired]
            start, messages = free[rank], 0
            for one in block:
                source, far = dependencies.source(rank, one)
                arrival = done[source] if source >= 0 else 0.0
                if arrival is None:
                    waiting[source] = rank
                    break
                messages += far
                start = max(start, arrival + (hop_s if far and not blocking else 0.0))
            else:
                if blocking:
                    occupied[rank] += messages * hop_s
                    start += messages * hop_s
                single = len(block) == 1
                duration = times.of(rank, block[0]) if single else times.of_pair(rank, *block)
                free[rank] = start + duration
                for one in block:
                    starts[rank].append(start)
                    ends[rank].append(free[rank])
                    if one.kind in {FORWARD, BACKWARD}:
                        number = dependencies.number(rank, one)
                        done[number] = free[rank]
                        if number in waiting:
                            ready.append(waiting.pop(number))
                continue
            break
    return starts, ends, occupied


def _timeline(
    work: Sequence[Sequence[Action]],
    starts: list[list[float]],
    ends: list[list[float]],
    transfers: list[float],
) -> Timeline:
    flat = [one for order in work for one in order]
    step = max(max(row) for row in ends)
    busy = np.array([_busy(*pair) for pair in zip(starts, ends, strict=True)])
    peaks = [_peak_chunks(*pair) for pair in zip(work, starts, strict=True)]
    return Timeline(
        rank=np.repeat(np.arange(len(work)), [len(order) for order in work]),
        kind=tuple(one.kind for one in flat),
        micro_batch=np.array([one.micro_batch for one in flat]),
        chunk=np.array([one.chunk for one in flat]),
        start_s=np.array([time for row in starts for time in row]),
        end_s=np.array([time for row in ends for time in row]),
        step_s=step,
        busy_s=busy,
        transfer_s=np.array(transfers),
        idle_s=step - busy - np.array(transfers),
        peak_chunks=np.array([most for most, _ in peaks]),
        peak_at_s=np.array([at for _, at in peaks]),
    )


def _busy(starts: list[float], ends: list[float]) -> float:
    """Time in passes; the two of a pair, which start and end together, count once."""
    start, end = np.array(starts), np.array(ends)
    durations = end - start
    durations[1:][(start[1:] == start[:-1]) & (end[1:] == end[:-1])] = 0.0
    return float(durations.sum())


def _peak_chunks(order: Sequence[Action], starts: list[float]) -> tuple[int, float]:
    """Most chunks saved at once, and when.

    The order alone decides it: the next action of a rank starts after the one before has ended.
    """
    saved = most = 0
    at = 0.0
    for one, start in zip(order, starts, strict=True):
        if one.kind == FORWARD:
            saved += 1
            if saved > most:
                most, at = saved, start
        elif one.kind != BACKWARD or not one.split:
            saved -= 1
    return most, at

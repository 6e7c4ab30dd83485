"""Exact event simulation of pipeline schedules, in plain Python: the oracle of the closed forms.

Every stage works through a fixed order of forward and backward passes of (chunk, micro-batch), as
Megatron-LM does: first the warm-up of forwards, then one forward and one backward in turn, then
the backwards that are left. A pass starts when its stage is free and its input has arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
Pass = tuple[str, int, int]


@dataclass(frozen=True)
class Run:
    """What a simulated step took."""

    time: float
    """From the first pass to the end of the last."""
    busy: list[float]
    """By stage: time spent in passes."""
    live: list[int]
    """By stage: most chunks between their forward and their backward."""
    first: int
    """On the first stage: most micro-batches between forward and backward of the first chunk."""


class DeadlockError(Exception):
    """Every stage waits for another one: the order of passes cannot be run."""


def warm_up(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Forwards of a stage before its first backward, less one (Megatron-LM's schedules.py)."""
    if chunks == 1:
        return min(stages - stage - 1, micro_batches)
    return min(2 * (stages - stage - 1) + (chunks - 1) * stages, micro_batches * chunks)


def order(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """Passes of one stage; groups of as many micro-batches as stages go through a chunk."""
    table = [
        (chunk, micro_batch)
        for start in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro_batch in range(start, min(start + stages, micro_batches))
    ]
    forwards = [(FORWARD, chunk, micro_batch) for chunk, micro_batch in table]
    backwards = [(BACKWARD, chunks - 1 - chunk, micro_batch) for chunk, micro_batch in table]
    ahead = warm_up(stage, stages, chunks, micro_batches)
    steady = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    return forwards[:ahead] + steady + backwards[len(table) - ahead :]


def needed(one: Pass, stage: int, stages: int, chunks: int) -> tuple[Pass, int] | None:
    """The pass, and its stage, whose result a pass waits for."""
    direction, chunk, micro_batch = one
    if direction == FORWARD:
        if stage > 0:
            return one, stage - 1
        return ((FORWARD, chunk - 1, micro_batch), stages - 1) if chunk > 0 else None
    if stage < stages - 1:
        return one, stage + 1
    if chunk < chunks - 1:
        return (BACKWARD, chunk + 1, micro_batch), 0
    return (FORWARD, chunk, micro_batch), stage


def simulate(
    forward: Sequence[Sequence[float]],
    backward: Sequence[Sequence[float]],
    micro_batches: int,
    *,
    hop: float = 0.0,
    blocking: bool = False,
    padded: bool = False,
) -> Run:
    """Run one step.

    Parameters
    ----------
    forward, backward
        Time of a pass by stage and chunk.
    hop
        Time of a message between stages.
    blocking
        Whether messages occupy the stage, one before every pass, instead of travelling alone.
    padded
        Whether the last group is filled up with empty micro-batches, which take and wait for
        nothing; without them an incomplete one deadlocks.
    """
    stages, chunks = len(forward), len(forward[0])
    ordered = -(-micro_batches // stages) * stages if padded else micro_batches
    orders = [order(stage, stages, chunks, ordered) for stage in range(stages)]
    position, free, busy = [0] * stages, [0.0] * stages, [0.0] * stages
    live, most = [0] * stages, [0] * stages
    first_live = first = 0
    done: dict[tuple[Pass, int], float] = {}
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        before = sum(position)
        for stage in range(stages):
            for one in orders[stage][position[stage] :]:
                source = needed(one, stage, stages, chunks)
                if source is not None and source not in done:
                    break
                if one[2] >= micro_batches:
                    done[one, stage] = 0.0
                    position[stage] += 1
                    continue
                arrival = done[source] if source is not None else 0.0
                if source is not None and source[1] != stage and not blocking:
                    arrival += hop
                duration = (forward if one[0] == FORWARD else backward)[stage][one[1]]
                busy[stage] += duration
                start = max(free[stage], arrival) + (hop if blocking else 0.0)
                free[stage] = done[one, stage] = start + duration
                live[stage] += 1 if one[0] == FORWARD else -1
                most[stage] = max(most[stage], live[stage])
                if stage == 0 and one[1] == 0:
                    first_live += 1 if one[0] == FORWARD else -1
                    first = max(first, first_live)
                position[stage] += 1
        if sum(position) == before:
            raise DeadlockError
    return Run(time=max(free), busy=busy, live=most, first=first)

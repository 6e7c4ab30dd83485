"""Orders in which the ranks of a pipeline work: passes by micro-batch and chunk, by schedule.

A chunk is one virtual stage on a rank: a micro-batch passes through the virtual stages in turn.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from shardwise.config.enums import Schedule
from shardwise.errors import Fault, InputError, nearest

FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk."""

    kind: str
    """F forward; B backward; W the weights' gradient where B left it out."""
    micro_batch: int
    chunk: int
    split: bool = False
    """Of a B: only the gradient of its input; a later W does the rest."""
    paired: bool = False
    """Of an F: runs at the same time as the B that follows."""


Order = list[Action]


def chunks_of(schedule: str, chunks: int = 1) -> int:
    """Chunks on each rank; those of DualPipe belong to two copies of the model.

    Parameters
    ----------
    schedule
        Name of a `Schedule`.
    chunks
        v, chunks per rank.
    """
    if schedule == "interleaved":
        return chunks
    return 2 if schedule in {"zb-v", "dualpipe"} else 1


def virtual_stages(schedule: str, *, ranks: int, chunks: int = 1) -> int:
    """Virtual stages of a micro-batch; the embedding is on the first, the head on the last.

    Parameters
    ----------
    schedule
        Name of a `Schedule`.
    ranks
        p, ranks of the pipeline.
    chunks
        v, chunks per rank.
    """
    return ranks if schedule == "dualpipe" else ranks * chunks_of(schedule, chunks)


def stage_of(schedule: str, *, rank: int, chunk: int, ranks: int) -> int:
    """Virtual stage of a chunk of a rank.

    Interleaved: c p + i. ZB-V goes down and up the ranks: i and 2 p - 1 - i. DualPipe's two
    directions meet: i of one, p - 1 - i of the other.

    Parameters
    ----------
    schedule
        Name of a `Schedule`.
    rank
        i, position in the pipeline.
    chunk
        c, chunk of the rank.
    ranks
        p, ranks of the pipeline.
    """
    if schedule == "zb-v" and chunk:
        return 2 * ranks - 1 - rank
    if schedule == "dualpipe" and chunk:
        return ranks - 1 - rank
    return chunk * ranks + rank


def rank_of(schedule: str, *, stage: int, ranks: int, direction: int = 0) -> tuple[int, int]:
    """Rank and chunk of a virtual stage; `direction` is 1 for DualPipe's second copy.

    Parameters
    ----------
    schedule
        Name of a `Schedule`.
    ranks
        p, ranks of the pipeline.
    direction
        1 for the second copy of DualPipe, else 0.
    """
    if schedule == "dualpipe":
        return (ranks - 1 - stage if direction else stage), direction
    if schedule == "zb-v" and stage >= ranks:
        return 2 * ranks - 1 - stage, 1
    return stage % ranks, stage // ranks


def orders(schedule: str, *, ranks: int, micro_batches: int, chunks: int = 1) -> list[Order]:
    """Actions of every rank, in order.

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

    Raises
    ------
    InputError
        If the schedule is unknown or does not support so many ranks, micro-batches or chunks.
    """
    _check(schedule, ranks, micro_batches, chunks)
    if schedule == "interleaved":
        return [list(_interleaved(i, ranks, micro_batches, chunks)) for i in range(ranks)]
    one = _ORDERS[schedule]
    return [list(one(i, ranks, micro_batches)) for i in range(ranks)]


def _check(schedule: str, ranks: int, micro_batches: int, chunks: int) -> None:
    known = tuple(Schedule)
    if schedule not in known:
        allowed = f"must be one of {', '.join(known)}{nearest(schedule, known)}"
        raise InputError(Fault(problem=allowed, field="schedule", value=schedule, has_value=True))
    faults = [
        Fault(problem="must be at least 1", field=field, value=value, has_value=True)
        for field, value in (
            ("ranks", ranks),
            ("micro_batches", micro_batches),
            ("chunks", chunks),
        )
        if value < 1
    ]
    if schedule != "interleaved" and chunks > 1:
        problem = f"must be 1 for {schedule}, which fixes the chunks itself"
        faults.append(Fault(problem=problem, field="chunks", value=chunks, has_value=True))
    if schedule == "dualpipe":
        faults += _dualpipe_faults(ranks, micro_batches)
    if faults:
        raise InputError(faults)


def _dualpipe_faults(ranks: int, micro_batches: int) -> Iterator[Fault]:
    if ranks % 2:
        problem = "must be even for dualpipe, whose ranks have two stages of opposite depth"
        yield Fault(problem=problem, field="ranks", value=ranks, has_value=True)
    if micro_batches % 2 or micro_batches < 2 * ranks:
        problem = f"must be even and at least 2 x {ranks} ranks for dualpipe"
        yield Fault(problem=problem, field="micro_batches", value=micro_batches, has_value=True)


def _gpipe(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """All forwards, then all backwards (arXiv 1811.06965); one stage waits for no other."""
    if ranks == 1:
        yield from _1f1b(rank, ranks, micro_batches)
        return
    for kind in (FORWARD, BACKWARD):
        for k in range(micro_batches):
            yield Action(kind, k, 0)


def _1f1b(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """Warm-up of p - 1 - i forwards, then forward and backward in turn (arXiv 2104.04473)."""
    warm_up = min(ranks - 1 - rank, micro_batches)
    forwards = [Action(FORWARD, k, 0) for k in range(micro_batches)]
    backwards = [Action(BACKWARD, k, 0) for k in range(micro_batches)]
    return _alternating(forwards, backwards, warm_up)


def _interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Action]:
    """Groups of p micro-batches go through a chunk, then through the next (arXiv 2104.04473).

    An incomplete last group uses the order of a complete one without the missing micro-batches.
    Megatron-LM's loops would close the gaps: then 4 ranks with 3 chunks and 5 micro-batches
    deadlock.
    """
    if chunks == 1:
        return _1f1b(rank, ranks, micro_batches)
    table = [
        (chunk, k)
        for start in range(0, micro_batches, ranks)
        for chunk in range(chunks)
        for k in range(start, start + ranks)
    ]
    warm_up = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, len(table))
    forwards = [Action(FORWARD, k, chunk) for chunk, k in table]
    backwards = [Action(BACKWARD, k, chunks - 1 - chunk) for chunk, k in table]
    return _without_padding(_alternating(forwards, backwards, warm_up), micro_batches)


def _alternating(forwards: Order, backwards: Order, warm_up: int) -> Iterator[Action]:
    yield from forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - warm_up :]


def _without_padding(order: Iterable[Action], micro_batches: int) -> Iterator[Action]:
    """Drop micro-batches that only pad the order."""
    return (one for one in order if one.micro_batch < micro_batches)


def _zb_h1(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """1F1B with delayed weight gradients: rank i lags i of them (arXiv 2401.10241, section 2.3).

    So every rank saves at most p micro-batches, and rank 0, without a lag, as many as in 1F1B.
    """
    lag = min(rank, micro_batches)
    weights = iter(range(micro_batches))
    for one in _1f1b(rank, ranks, micro_batches):
        yield one._replace(split=one.kind == BACKWARD)
        if one.kind == BACKWARD and one.micro_batch >= lag:
            yield Action(WEIGHTS, next(weights), 0)
    for k in weights:
        yield Action(WEIGHTS, k, 0)


class _NextAction:
    """Emits the next action of each kind and chunk."""

    def __init__(self, first: tuple[int, int] = (0, 0)) -> None:
        self._first = first
        self.done = {(kind, c): 0 for kind in (FORWARD, BACKWARD, WEIGHTS) for c in (0, 1)}

    def __call__(
        self, kind: str, chunk: int, *, split: bool = False, paired: bool = False
    ) -> Action:
        k = self.done[kind, chunk]
        self.done[kind, chunk] += 1
        return Action(kind, self._first[chunk] + k, chunk, split, paired)


def _zb_v(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """Two chunks in a V, weight gradients in the gaps (arXiv 2401.10241, section 6).

    The first 2 p - 1 micro-batches fill the pipeline; missing ones are padding.
    """
    return _without_padding(
        _padded_zb_v(rank, ranks, max(micro_batches, 2 * ranks - 1)), micro_batches
    )


def _padded_zb_v(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    emit = _NextAction()
    done = emit.done
    for _ in range(2 * (ranks - rank) - 1):
        yield emit(FORWARD, 0)
    for _ in range(rank):
        yield emit(FORWARD, 1)
        yield emit(FORWARD, 0)
    for _ in range(ranks - rank):
        yield emit(FORWARD, 1)
        yield emit(BACKWARD, 1, split=True)
        yield emit(WEIGHTS, 1)
    while done[FORWARD, 1] < micro_batches:
        if done[FORWARD, 0] < micro_batches:
            yield emit(FORWARD, 0)
        yield emit(BACKWARD, 0, split=True)
        yield emit(WEIGHTS, 0)
        yield emit(FORWARD, 1)
        yield emit(BACKWARD, 1, split=True)
        yield emit(WEIGHTS, 1)
    for _ in range(rank):
        yield emit(BACKWARD, 0, split=True)
        yield emit(BACKWARD, 1, split=True)
    for _ in range(ranks - rank):
        yield emit(BACKWARD, 0, split=True)
        yield emit(WEIGHTS, 0)
    for chunk in (1, 0):
        while done[WEIGHTS, chunk] < micro_batches:
            yield emit(WEIGHTS, chunk)


def _dualpipe(rank: int, ranks: int, micro_batches: int) -> Iterator[Action]:
    """Half of the micro-batches from either end, in overlapped pairs (arXiv 2412.19437, 3.2.1).

    The two halves of the ranks mirror each other, so `near` is the direction that enters closer to
    this rank. Weight gradients wait where that lets a neighbor start sooner.
    """
    depth, middle, half = min(rank, ranks - 1 - rank), ranks // 2, micro_batches // 2
    near, far = (0, 1) if rank < middle else (1, 0)
    emit = _NextAction((0, half))
    late: Order = []

    def backward(chunk: int, *, split: bool = False) -> Action:
        one = emit(BACKWARD, chunk, split=split)
        if split:
            late.append(Action(WEIGHTS, one.micro_batch, chunk))
        return one

    inner = middle - 1 - depth
    for _ in range(2 * inner):
        yield emit(FORWARD, near)
    for _ in range(depth + 1):
        yield emit(FORWARD, near)
        yield emit(FORWARD, far)
    for _ in range(inner):
        yield backward(far, split=True)
        yield late.pop(0)
        yield emit(FORWARD, far)
    for k in range(half - ranks + depth + 1):
        # The two innermost ranks would wait for each other with the first pair.
        yield emit(FORWARD, near, paired=k > 0 or inner > 0)
        yield backward(far)
        yield emit(FORWARD, far, paired=True)
        yield backward(near)
    for _ in range(inner):
        yield backward(far)
        yield emit(FORWARD, far, paired=True)
        yield backward(near)
    split = False
    for k in range(depth + 1):
        split = split or (k == (depth + 1) // 2 and depth % 2 == 1)
        yield backward(far, split=split)
        split = split or (k == (depth + 1) // 2 and depth % 2 == 0)
        yield backward(near, split=split)
    for _ in range(inner):
        yield late.pop(0)
        yield backward(near, split=True)
    yield from late


_ORDERS: dict[str, Callable[[int, int, int], Iterator[Action]]] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "zb-h1": _zb_h1,
    "zb-v": _zb_v,
    "dualpipe": _dualpipe,
}

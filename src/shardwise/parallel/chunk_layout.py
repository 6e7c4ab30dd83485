"""The split of layers over chunks of an interleaved pipeline with the shortest critical stage.

Chunk c of p v runs on stage c mod p. Layers stay in order, chunks may have none; the embedding is
in the first chunk and the head in the last.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from shardwise.records import dataclass

# Of the mean time of a stage: differences below it are none.
_TOLERANCE = 1e-9
# Share by which the time of the critical stage is raised until a split is within it; it doubles.
_FIRST_STRIDE = 1 / 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Time of one micro-batch in each component of a model, forward and backward [s]."""

    order: tuple[int, ...]
    """Kind of every layer."""
    layers: tuple[float, ...]
    """Of a layer of each kind."""
    embedding: float
    head: float
    """With the modules of multi-token prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLayout:
    """Layers of every chunk, in the order of the model."""

    sizes: tuple[int, ...]
    critical_s: float
    """Time of one micro-batch on the critical stage [s]."""
    exact: bool
    """Whether no split has a shorter critical stage; if not, none was found in reasonable time."""


def stage_times(times: LayerTimes, sizes: Sequence[int], stages: int) -> list[float]:
    """Time of one micro-batch on each stage [s]."""
    ends = [0.0, *accumulate(times.layers[kind] for kind in times.order)]
    found, start = [0.0] * stages, 0
    found[0] += times.embedding
    found[-1] += times.head
    for chunk, size in enumerate(sizes):
        found[chunk % stages] += ends[start + size] - ends[start]
        start += size
    return found


def balanced_chunks(
    times: LayerTimes,
    stages: int,
    chunks: int,
    *,
    most: Sequence[int] | None = None,
    sizes: tuple[int, int] | None = None,
    precision: float = 1e-6,
    effort: int = 20_000,
) -> ChunkLayout | None:
    """Split layers so that the critical stage takes the least time.

    Bisection on that time T. Whether a split within T exists is decided chunk by chunk, depth
    first, the most even chunks first. A branch ends where the stages have no room for what is left:
    by its time, by the number of layers of each kind, or by that of all at the time of the fastest.

    Parameters
    ----------
    stages, chunks
        p, and v of each stage.
    most
        Layers that fit on each stage; None: all.
    sizes
        Least and most layers of a chunk; the first and the last may have fewer. None: any.
    precision
        T is the least to this share of it.
    effort
        Branches to try for one T.

    Returns
    -------
    ChunkLayout
        None if the stages have no room for the layers.
    """
    search = _Search(times, stages, chunks, most, sizes)
    best, exact = None, True
    low, goal = search.bounds(precision / 4)
    high, stride = search.total_s, _FIRST_STRIDE
    while goal < inf and (best is None or high - low > precision * high):
        found, complete = search.within(goal, effort)
        if found is not None:
            best, high = found, max(stage_times(times, found, stages))
        elif goal >= high:
            return None
        else:
            exact &= complete
            low = goal
        goal = (low + high) / 2 if best is not None else min(high, low * (1 + stride))
        stride *= 2
    return None if best is None else ChunkLayout(sizes=best, critical_s=high, exact=exact)


class _Search:
    """Splits within a time of the critical stage."""

    def __init__(
        self,
        times: LayerTimes,
        stages: int,
        chunks: int,
        most: Sequence[int] | None,
        sizes: tuple[int, int] | None,
    ) -> None:
        self.stages, self.places = stages, stages * chunks
        self.layer_s = [times.layers[kind] for kind in times.order]
        self.ends = [0.0, *accumulate(self.layer_s)]
        self.depth = len(self.layer_s)
        self.least, self.largest = sizes or (0, self.depth)
        self.most = [self.depth] * stages if most is None else list(most)
        self.extra = stage_times(times, [0] * self.places, stages)
        self.embedding, self.head = times.embedding, times.head
        kinds = sorted(set(times.order), key=lambda kind: times.layers[kind])
        self.kind_s = [times.layers[kind] for kind in kinds]
        self.left = [[0] * len(kinds)]
        for one in reversed(times.order):
            self.left.append(
                [n + (one == kind) for n, kind in zip(self.left[-1], kinds, strict=True)]
            )
        self.left.reverse()
        self.total_s = self.ends[-1] + sum(self.extra)
        self.slack = _TOLERANCE * (self.total_s / stages or 1.0)

    def bounds(self, precision: float) -> tuple[float, float]:
        """A time that no critical stage is below, and one that the bounds allow; else infinite."""
        low, high = max(*self.extra, self.total_s / self.stages), self.total_s
        none = [0] * self.stages
        if not self.has_room(0, 0, self.extra, none, high):
            return inf, inf
        while high - low > precision * high:
            middle = (low + high) / 2
            if self.has_room(0, 0, self.extra, none, middle):
                high = middle
            else:
                low = middle
        return low, high

    def has_room(
        self, chunk: int, start: int, load: Sequence[float], count: Sequence[int], goal: float
    ) -> bool:
        """Whether the stages of the chunks that are left may have room for the layers left."""
        remaining = self.depth - start
        if (self.places - max(chunk, 1) - 1) * self.least > remaining:
            return False
        stages = range(max(0, self.stages - (self.places - chunk)), self.stages)
        room = [goal + self.slack - load[stage] for stage in stages]
        if sum(room) < self.ends[-1] - self.ends[start]:
            return False
        layers = [
            min(self.most[stage] - count[stage], self.largest * later)
            for stage in stages
            for later in ((self.places - chunk + stage) // self.stages,)
        ]

        left = self.left[start]
        fastest = next((one for n, one in zip(left, self.kind_s, strict=True) if n), 0.0)
        for needed, time_s in zip((*left, remaining), (*self.kind_s, fastest), strict=True):
            found = 0
            for r, most in zip(room, layers, strict=True):
                if found >= needed:
                    break
                if not time_s or r > 0:
                    found += min(int(r / time_s), most) if time_s else most
            if found < needed:
                return False
        return True

    def within(self, goal: float, effort: int) -> tuple[tuple[int, ...] | None, bool]:
        """A split within a time, and whether there is none if it was not found."""
        load, count, sizes = list(self.extra), [0] * self.stages, list[int]()
        failed = set[tuple[int, int, tuple[float, ...], tuple[int, ...]]]()
        tried = 0

        def fill(chunk: int, start: int) -> bool:
            nonlocal tried
            if chunk == self.places:
                return start == self.depth
            key = (chunk, start, tuple(round(one / self.slack) for one in load), tuple(count))
            if key in failed or tried >= effort:
                return False
            tried += 1
            stage = chunk % self.stages
            before, own = load[stage], count[stage]
            for size in self._sizes(chunk, start, goal - before, self.most[stage] - own):
                load[stage] = before + self.ends[start + size] - self.ends[start]
                count[stage] = own + size
                sizes.append(size)
                if self.has_room(chunk + 1, start + size, load, count, goal) and fill(
                    chunk + 1, start + size
                ):
                    return True
                sizes.pop()
            load[stage], count[stage] = before, own
            failed.add(key)
            return False

        found = fill(0, 0)
        return (tuple(sizes) if found else None), tried < effort

    def _sizes(self, chunk: int, start: int, room: float, layers: int) -> list[int]:
        """Layers that fit into a chunk, those first that leave as much time to each later one.

        The last chunk has all that is left.
        """
        end = self.ends[start] + room + self.slack
        largest = min(bisect_right(self.ends, end) - 1 - start, layers, self.largest)
        if chunk == self.places - 1:
            rest = self.depth - start
            return [rest] if rest <= largest else []
        own = 0.0 if chunk else self.embedding
        later = (self.places - chunk - 1) // self.stages
        head = self.head if later and chunk % self.stages == self.stages - 1 else 0.0
        share = self.ends[start] + (room + own + head) / (later + 1) - own
        allowed = range(self.least if chunk else 0, largest + 1)
        return sorted(allowed, key=lambda n: (abs(self.ends[start + n] - share), n))

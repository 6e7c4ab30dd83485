"""What longest paths of an interleaved pipeline gain in every group of micro-batches."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.parallel.schedule.interleaved_gates import Kind, Side
from shardwise.parallel.schedule.ranks import NEVER, Passes, Ranks

__all__ = ["gain_s"]


def gain_s(there: Side, back: Side, ends_s: Floats) -> Floats:
    """What the longest path gains in every group but two where it visits the ends of the model.

    A group has p v turns of a forward and a backward. The last rank's p turns in the last chunk
    carry the head. The rest may pass on rank i: on the way there and back, p - 1 - i steps each,
    a step costs a turn and gains one pass. Or the way goes round, from the last rank to the first
    one and on to rank i; or one way is that and the other direct, so that all ranks are passed in
    one direction. Likewise for the embedding, whose backwards of a group meet its forwards of the
    second group after it, so that it keeps rank 0 for about two turns more. Where the last chunk
    of other ranks differs, an end of the model may also be what a path leaves rank 0 or p - 1 for.
    """
    turns = _Turns.of(there, back)
    p, v, up, down, turn = turns.p, turns.v, turns.up, turns.down, turns.turn
    first, last = turn.at[0], turn.at[-1]
    head = p * (last + there.kind.late_s[-1] + back.kind.late_s[-1])
    embedding = (p + 1) * first + p * (there.kind.first_s + back.kind.first_s)
    rounds = [kind.round_s for kind in turns.kinds]
    if not turns.apart:
        rounds = [np.maximum(*rounds)]
    wraps_s = 2 * there.wrap_s
    left = p * v - p
    behind = turn.total - turn.through - down * turn.at
    before = turn.before - up * turn.at
    ways = [
        *(round_s + head - 2 * p * turn.at for round_s in rounds),
        *(round_s + embedding - (2 * p + 1) * turn.at + NEVER * (left <= p) for round_s in rounds),
        behind + (head - last) - (p - 1) * turn.at + NEVER * (down > left),
        behind + (embedding + first + wraps_s) - (p + 3) * turn.at + NEVER * (down > left - 4),
        before + (head + last + wraps_s) - (p + 2) * turn.at + NEVER * (up > left - 3),
        before + (embedding - first) - p * turn.at + NEVER * (up > left - 1),
    ]
    if turns.apart:
        ways = [way + late for way, late in zip(ways, _late_on_ways(turns), strict=True)]
    gain: Floats = np.maximum(np.maximum.reduce(ways) - p * ends_s, 0.0)
    if turns.apart:
        gain = np.maximum(gain, turns.ranks.first * _beside_embedding(turns))
        gain = np.maximum(gain, turns.ranks.last * _beside_head(turns))
    return gain


@dataclass(frozen=True, kw_only=True)
class _Turns:
    """A forward and a backward of every rank, and the steps from there to the ends."""

    ranks: Ranks
    p: Ints
    v: Ints
    between: Ints
    """Chunks between the first and the last one."""
    kinds: tuple[Kind, Kind]
    turn: Passes
    """In all chunks but the last."""
    up: Floats
    """Steps to rank 0 and back."""
    down: Floats
    """Steps to rank p - 1 and back."""
    wrap_s: Floats

    @classmethod
    def of(cls, there: Side, back: Side) -> "_Turns":
        kinds = there.kind, back.kind
        up = there.ranks.at * np.float64(2)
        return cls(
            ranks=there.ranks,
            p=there.p,
            v=there.v,
            between=there.between,
            kinds=kinds,
            turn=kinds[0].base + kinds[1].base,
            up=up,
            down=2.0 * (there.p - 1) - up,
            wrap_s=there.wrap_s,
        )

    @property
    def apart(self) -> bool:
        """Whether last chunks take other times on more ranks than the last."""
        return self.kinds[0].apart

    @property
    def late_s(self) -> Floats:
        """What a turn with both passes in the last chunk takes more."""
        return self.kinds[0].late_s + self.kinds[1].late_s

    @property
    def before_late(self) -> tuple[Floats, Floats]:
        """What passes of the last chunk take more on all ranks before, of either kind."""
        one, other = (kind.late.before - kind.base.before for kind in self.kinds)
        return one, other

    @property
    def first_s(self) -> Floats:
        """What rank 0 does more in a turn with both passes in the first chunk."""
        return self.kinds[0].first_s + self.kinds[1].first_s


def _late_on_ways(turns: _Turns) -> list[Floats]:
    """What last chunks add to each way of `gain_s`: passes on it, and those rank i still does.

    A way to the head, or back, may be one turn sooner or later, with passes of another chunk. With
    two chunks, those that go round pass the last one.
    """
    p, late_s, more = turns.p, turns.late_s, turns.before_late
    two = turns.between == 0
    kinds = turns.kinds
    other_turn = turns.turn.at[-1] - turns.turn.at
    direct = [np.maximum(one[-1] - one, other_turn) for one in more]
    own, ahead = late_s[0], (2 * p - turns.down)
    done = p - np.clip(ahead, 0, p)
    almost = p - np.clip(ahead - 1, 0, p)
    return [
        *(direct[at] + two * more[at] + done * kinds[1 - at].late_s for at in (0, 1)),
        *(own + kinds[at].late_s[0] + almost * kinds[1 - at].late_s for at in (0, 1)),
        direct[0] + direct[1],
        2 * own + np.zeros(late_s.shape),
        two * (more[0] + more[1]) + done * late_s,
        own + almost * late_s,
    ]


def _beside_embedding(turns: _Turns) -> Floats:
    """What a path gains on rank 0 if it spends the turns of the first chunk on rank i.

    It goes there with the last forwards of the last chunk, or round with backwards, and comes back
    with the first backwards of that chunk, or round with forwards.
    """
    p, up, down, turn, late_s = turns.p, turns.up, turns.down, turns.turn, turns.late_s
    more, own, own_late = turns.before_late, turns.turn.at[0], turns.late_s[0]
    near = NEVER * ((up > p) | (up == 0))
    far = NEVER * ((down > p) | (up == 0))
    between = turn.before + more[0] + more[1] - own - own_late
    direct = between + (p + 2 - up) * turn.at + 2 * late_s - (p + 1) * own - own_late + near
    behind = turn.total - turn.before + (p - down) * (turn.at + late_s) + 2 * turns.wrap_s
    ways = [direct, behind - (p + 2) * own - 2 * own_late + far]
    for at in (0, 1):
        kind, other = turns.kinds[at], turns.kinds[1 - at]
        stay = 2 * (turn.at + kind.late_s) + np.clip(up - p + 2, 0, 2) * other.late_s
        ways.append(kind.round_s + more[at] + stay - (p + 2) * own - 2 * own_late + near)
    return np.maximum.reduce(ways).max(axis=0) - p * turns.first_s


def _beside_head(turns: _Turns) -> Floats:
    """What a path gains on rank p - 1 if it spends the turns of the last chunk on rank i.

    It goes there with the last backward of a group, or round with the last forward before the last
    chunk, and comes back with the first forward of a group, or round with a backward.
    """
    p, down, turn, late_s = turns.p, turns.down, turns.turn, turns.late_s
    more, own = turns.before_late, turns.turn.at[-1]
    embedding = turns.ranks.first * turns.first_s
    behind = turn.before[-1] - turn.before + (p - down) * (turn.at + late_s) + embedding
    before = turn.before + more[0] + more[1] + (down - p + 2) * turn.at + late_s
    ways = [
        behind + NEVER * ((down > p) | (down == 0)),
        before + (p - 1) * embedding + 2 * turns.wrap_s - own + NEVER * (down < p - 1),
    ]
    for at in (0, 1):
        kind, other = turns.kinds[at], turns.kinds[1 - at]
        stay = turn.at + kind.late_s + np.where(down < p, other.late_s, 0.0)
        ended = turns.ranks.first * (kind.first_s + (down >= p) * other.first_s)
        ways.append(kind.round_s + more[at] + stay + ended - own + NEVER * (down == 0))
    return np.maximum.reduce(ways).max(axis=0) - p * (own + late_s[-1])

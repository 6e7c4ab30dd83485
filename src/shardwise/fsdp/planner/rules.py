"""The rules of FSDP2 as a shortest path: what each unit adds to exposed time and to memory.

Exposed time, with units 1..K in the order they run, gathers A, reduce-scatters R, compute F and B
of a unit, f and b of the modules of the root between units, and the root's own A_0 and R_0:

    A_0 + max(0, A_1 - f_0) + sum over k of max(0, A_(k+1) - F_k - f_k)              forward
    + max(0, A_K - b_K) + sum over k of max(0, A_(k-1) + R_(k+1) - B_k - b_(k-1))    backward
    + max(0, R_1 - b_0) + R_0

with f_k, b_k between units k and k+1, b_0 - and not in B_1's term - before the first, A_0 = 0 and
R_(K+1) = 0 in the sums. One unit is gathered ahead; in backward it shares the wire with the
reduce-scatter of the unit before. A unit that stays whole after forward has no gather in backward;
one whose inputs need no gradient is reduced at the end, exposed. Without weights in the root there
is no root group to gather the last unit ahead of backward.

Peak memory is that of `memory.fullest_moment`, moment by moment; each moment depends on a unit, its
neighbours, what earlier units left whole and what the root owns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.fsdp.planner.columns import NOTHING, StepCosts, UnitCosts

__all__ = ["Fsdp2Rules"]

(
    _COST, _FORWARD, _SLACK, _GATHER, _GAP, _EMPTY, _NONE, _SOME,
    _ROOT, _ROOT_GRADIENTS, _ROOT_REDUCED, _ROOT_LARGEST, _WHOLE,
    _BEFORE, _AHEAD, _BACK, _WAITING, _TAIL, _BUFFER, _NEXT, _LATE, _ENDING,
) = range(22)  # fmt: skip
"""Rows of the labels.

Time: cost; minus the forward compute that hides the next gather; minus what the last unit's
backward has left; its gather in backward; minus the root's backward compute since.

Neither: 1 while the root owns nothing, and so gathers nothing ahead; 1 without a unit; 1 with one.

Memory: weights of the root, their gradients over their shards, the input of their reduce-scatter,
the largest gradient among them; weights that stay whole. Fullest moments: before the first unit;
forward since; backward of all but the last unit; of the last unit, and of the root's modules after
it, but for the reduce-scatter that follows. The last unit's buffers: forward, and ahead of its
backward. Of late units, weights and gradients, and the most that ending one adds to them.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fsdp2Rules:
    """FSDP2's own costs of the units of a step."""

    step: StepCosts
    roots_s: dict[complex, float] = field(default_factory=dict)
    """Known times of the root's own collectives, by its bytes: gathered, and i times reduced."""

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that say nothing of memory."""
        return (_COST, _FORWARD, _SLACK, _GATHER, _GAP)

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that say nothing of time."""
        return (_ROOT_GRADIENTS, _ROOT_LARGEST, *range(_WHOLE, _ENDING + 1))

    @cached_property
    def targets(self) -> Sequence[Ints]:
        """A module goes to the root, or a unit begins."""
        return [
            np.array([place + 1, *(edge.end for edge in edges)])
            for place, edges in enumerate(self.step.edges)
        ]

    def start(self) -> Floats:
        """No unit, and nothing in the root."""
        label = np.zeros((_ENDING + 1, 1))
        label[_EMPTY] = label[_NONE] = 1.0
        label[[_BEFORE, _AHEAD, _BACK, _WAITING, _TAIL, _ENDING]] = NOTHING
        return label

    def extend(self, position: int, labels: Floats) -> Floats:
        """Leave a module to the root, or begin each of its units."""
        new = np.repeat(labels[:, None], len(self.targets[position]), axis=1)
        self._leave(position, labels, new[:, 0])
        units = self.step.units[position]
        if units is not None:
            self._take_time(units, labels, new[:, 1:])
            self._take_memory(units, labels, new[:, 1:])
            self._clip(np.array([edge.end for edge in self.step.edges[position]]), new[:, 1:])
        self._clip(position + 1, new[:, 0])
        return new

    def _leave(self, place: int, labels: Floats, new: Floats) -> None:
        forward, backward, ahead, back = self.step.skips[place]
        sizes, some = self.step.sizes, labels[_SOME] > 0
        new[_FORWARD] -= forward
        new[_GAP] -= np.where(some, backward, 0.0)
        new[_SLACK] -= np.where(some, 0.0, backward)
        new[_ROOT] += sizes.gathered[place]
        new[_EMPTY] = (new[_ROOT] == 0).astype(float)
        new[_ROOT_GRADIENTS] += sizes.gradients[place] - sizes.shard_gradients[place]
        new[_ROOT_REDUCED] += sizes.reduced[place]
        new[_ROOT_LARGEST] = np.maximum(labels[_ROOT_LARGEST], self.step.own_largest[place])
        now = labels[_WHOLE] + labels[_BUFFER] + ahead
        new[_AHEAD] = np.where(some, np.maximum(labels[_AHEAD], now), labels[_AHEAD])
        new[_BEFORE] = np.where(some, labels[_BEFORE], np.maximum(labels[_BEFORE], ahead))
        new[_TAIL] = np.maximum(labels[_TAIL], labels[_WHOLE] + back - new[_ROOT_GRADIENTS])

    def _take_time(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        new[_COST] += np.maximum(units.gather_s + labels[_FORWARD], 0.0)
        hidden = (1 - units.reduced_last) * units.reduce_s
        new[_COST] += np.maximum(hidden + labels[_SLACK], 0.0) + units.reduced_last * units.reduce_s
        new[_FORWARD] = -units.forward_s
        new[_SLACK] = labels[_GATHER] + labels[_GAP] - units.backward_s
        new[_GATHER] = units.gather_again_s
        new[_GAP] = -units.gap_s
        new[_NONE], new[_SOME] = 0.0, 1.0

    def _take_memory(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        some = labels[_SOME] > 0
        whole, prompt = labels[_WHOLE], 1 - units.reduced_last
        kept = whole + units.stays
        enters = units.enters + units.gathered
        # The old buffer is alive until the new weights are copied out.
        entering = whole + enters + units.gathered + labels[_BUFFER]
        before = np.maximum(labels[_BEFORE], enters + units.gathered)
        new[_BEFORE] = np.where(some, labels[_BEFORE], before)
        ahead = np.where(some, np.maximum(labels[_AHEAD], entering), labels[_AHEAD])
        running = whole + units.ahead + 2 * units.gathered
        after = kept + units.ahead_after + units.gathered
        new[_AHEAD] = np.maximum(np.maximum(ahead, running), after)
        waited = np.maximum(labels[_WAITING], labels[_TAIL] + labels[_NEXT])
        done = np.maximum(labels[_BACK], waited + prompt * units.reduced)
        # A late unit is whole, with its gradients, through all that runs before it forward.
        reduced_last = units.reduced_last * (units.gathered + units.gradients)
        reduces = units.reduced + units.output
        ends = whole + labels[_NEXT] + reduces + units.ends - labels[_ROOT_GRADIENTS]
        new[_BACK] = np.maximum(
            done + reduced_last, np.where(units.reduced_last > 0, NOTHING, ends)
        )
        begins = np.where(
            units.again > 0, whole + units.gathered + units.again + units.begins, NOTHING
        )
        running = whole + units.gathered + labels[_NEXT] + units.back
        new[_WAITING] = np.maximum(begins, running) - labels[_ROOT_GRADIENTS]
        new[_TAIL] = kept + units.back_before - labels[_ROOT_GRADIENTS]
        new[_WHOLE] = kept
        new[_BUFFER], new[_NEXT] = units.gathered, units.again
        new[_LATE] += reduced_last
        # Late units end one after the other; of those before, nothing is left but shards.
        ending = np.where(units.reduced_last > 0, reduces - units.gathered - labels[_LATE], NOTHING)
        new[_ENDING] = np.maximum(labels[_ENDING], ending)

    def _clip(self, place: int | Ints, new: Floats) -> None:
        """Compute beyond the longest collective to come hides no more; labels with it are alike."""
        gathers, reduces = self.step.most
        gather, reduce = np.asarray(gathers[place]), np.asarray(reduces[place])
        if gather.ndim:
            gather, reduce = gather[:, None], reduce[:, None]
        new[_FORWARD] = np.maximum(new[_FORWARD], -gather)
        new[_SLACK] = np.maximum(new[_SLACK], -reduce)
        longest = reduce + gather + new[_GATHER]
        new[_GAP] = np.maximum(new[_GAP], -longest)

    def finish(self, labels: Floats) -> Floats:
        """Exposed time of the whole step [s]."""
        cost = labels[_COST] + np.maximum(labels[_SLACK], 0.0)
        hidden = np.where(labels[_EMPTY] > 0, 0.0, labels[_GAP])
        cost = cost + np.maximum(labels[_GATHER] + hidden, 0.0)
        return np.asarray(cost + self._alone(labels))

    def remaining_cost(self, position: int, labels: Floats) -> Floats:
        """The root's own collectives, and what compute to come cannot hide of those to come [s].

        What is left is gathered once at least, in units or with the root, and reduced. Per byte
        that takes at least s_a and s_r, the slopes for large buffers. With x of the P bytes left to
        the root, whose collectives nothing hides, and windows f and b of compute forward and
        backward, it exposes at least the least over x of

            max(0, s_a (P - x) - f) + max(0, (s + s_r) (P - x) - b) + (s_a + s_r) x

        with s = s_a where all units are gathered again in backward, else 0: convex in x, so its
        least value is at an end or where a window is just filled.
        """
        gathered, forward, backward = self.step.left[:, position]
        gather, reduce = self.step.slopes
        again = gather if self.step.always else 0.0
        ahead = forward - labels[_FORWARD]
        back = backward - labels[_SLACK] - labels[_GAP] - labels[_GATHER]
        best = np.full(labels.shape[1], np.inf)
        for kept in (
            np.zeros_like(ahead),
            np.full_like(ahead, gathered),
            ahead / gather,
            back / max(again + reduce, 1e-30),
        ):
            units = np.clip(kept, 0.0, gathered)
            exposed = np.maximum(gather * units - ahead, 0.0)
            exposed += np.maximum((again + reduce) * units - back, 0.0)
            best = np.minimum(best, exposed + (gather + reduce) * (gathered - units))
        return self._alone(labels) + best

    def _alone(self, labels: Floats) -> Floats:
        """The root's own collectives [s]; few sizes occur, and each is looked up once."""
        sizes, places = np.unique(labels[_ROOT] + 1j * labels[_ROOT_REDUCED], return_inverse=True)
        new = [size for size in sizes.tolist() if size not in self.roots_s]
        if new:
            gathers = self.step.collectives.gather_s(np.real(new))
            times = gathers + self.step.collectives.reduce_s(np.imag(new))
            self.roots_s.update(zip(new, times.tolist(), strict=True))
        return np.array([self.roots_s[size] for size in sizes.tolist()])[places]

    def peak(self, position: int, labels: Floats) -> Floats:
        """Fullest moment so far, and at the end of the loss and of the step [byte]."""
        root, grads = labels[_ROOT], labels[_ROOT_GRADIENTS]
        gathered = np.where(labels[_EMPTY] > 0, 0.0, labels[_NEXT])
        waiting = np.maximum(labels[_WAITING], labels[_TAIL] + gathered)
        ahead = labels[_AHEAD]
        if position == len(self.step.edges):
            loss, back = self.step.loss
            ahead = np.maximum(ahead, labels[_WHOLE] + loss)
            waiting = np.maximum(waiting, labels[_WHOLE] + back)
        floor = self.step.floors[position]
        moments = [
            root + labels[_WHOLE] + floor,
            2 * root + labels[_BEFORE],
            root + ahead,
            root + grads + np.maximum(labels[_BACK], waiting),
        ]
        if position == len(self.step.edges):
            end = self.step.spans.left(len(self.step.profile.seconds))
            end -= self.step.spans.reduced(len(self.step.profile.seconds))
            # The root's last gradient is at most its largest; with it stays the output.
            scattered = self.step.scattered * labels[_ROOT_REDUCED]
            whole = labels[_ROOT_REDUCED] * self.step.whole
            output = np.maximum(scattered + labels[_ROOT_LARGEST] - whole, 0.0)
            moments.append(end + grads + labels[_ROOT_REDUCED] + output + labels[_LATE])
            moments.append(end + labels[_LATE] + labels[_ENDING])
            moments.append(np.full_like(root, self.step.optimizer_step))
        return np.asarray(self.step.constant + np.max(moments, axis=0))

    def clip_to_budget(self, position: int, labels: Floats, budget: float) -> None:
        """Raise moments to what fits whatever the root will own.

        It owns at most what the budget leaves beside the fullest moment to come.
        """
        if not np.isfinite(budget) or position == len(self.step.edges):
            return
        room = budget - self.step.constant
        root = max(room - self.step.floors[position], 0.0)
        grads = root * self.step.ratio
        reduce = self.step.largest
        labels[_BEFORE] = np.maximum(labels[_BEFORE], room - 2 * root)
        labels[_AHEAD] = np.maximum(labels[_AHEAD], room - root)
        room -= self.step.lates[position]
        labels[_BACK] = np.maximum(labels[_BACK], room - root - grads)
        labels[_WAITING] = np.maximum(labels[_WAITING], room - root - grads - reduce)
        least = room - root - grads - reduce - labels[_NEXT]
        labels[_TAIL] = np.maximum(labels[_TAIL], least)

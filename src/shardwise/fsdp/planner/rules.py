"""The rules of FSDP2 as a shortest path: what each unit adds to exposed time and to memory.

Exposed time, with units 1..K in the order they run, gathers A, reduce-scatters R, compute F and B
of a unit, f and b of the modules of the root between units, and the root's own A_0 and R_0:

    A_0 + max(0, A_1 - f_0) + sum over k of max(0, A_(k+1) - F_k - f_k)              forward
    + max(0, A_K - b_K) + sum over k of max(0, A_(k-1) + R_(k+1) - B_k - b_(k-1))    backward
    + max(0, R_1 - b_0) + R_0

with f_k, b_k between units k and k+1, b_0 before the first unit (and not in B_1's term), A_0 = 0
and R_(K+1) = 0 in the sums. FSDP2 prefetches one unit; in backward the prefetch shares the network
with the reduce-scatter of the unit before. A unit that stays unsharded after forward has no gather
in backward. A unit whose inputs need no gradient is reduced at the end, exposed. If the root has no
weights, there is no root group to prefetch the last unit before backward.

Peak memory is that of `memory.memory_peak`, moment by moment; each moment depends on a unit, its
neighbors, what earlier units left unsharded, and what the root owns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.fsdp.planner.step_costs import NOTHING, StepCosts, UnitCosts

_MIB = 2.0**20

(
    _COST, _FORWARD_S, _SLACK, _GATHER_S, _AGAIN_S, _ROOT_EMPTY, _NO_UNIT, _ANY_UNIT,
    _ROOT, _ROOT_GRADIENTS, _ROOT_REDUCED, _ROOT_LARGEST, _UNSHARDED,
    _FIRST_PEAK, _FORWARD_PEAK, _BACKWARD_PEAK, _UNIT_PEAK, _ROOT_PEAK, _BUFFER, _NEXT_BUFFER,
    _REDUCED_LAST, _REDUCE_PEAK,
) = range(22)  # fmt: skip
"""Rows of the labels.

Time: cost, with the root's bytes at the rate of a large collective; minus the forward compute that
hides the next gather; minus the unused rest of the last unit's backward; its gather in backward
while the root owns nothing; that gather minus the root's backward compute since.

Neither: 1 while the root owns nothing, and so prefetches nothing; 1 without a unit; 1 with one.

Memory: weights of the root, their gradients less their shards, the input of their reduce-scatter,
the largest gradient among them; weights that stay unsharded. Peaks: before the first unit; forward
since; backward of all but the last unit; of the last unit, and of the root's modules after it,
without the reduce-scatter that follows. The last unit's all-gather buffers: forward, and before its
backward. Of units reduced last: weights and gradients, and the most that their end adds to them.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fsdp2Rules:
    """Costs of the units of a step under FSDP2 (`search.Rules`)."""

    step: StepCosts
    root_s: dict[complex, float] = field(default_factory=dict)
    """Known times of the root's own collectives, by its bytes: gathered, and i times reduced."""

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that do not affect memory."""
        return (_COST, *self.paid_rows, _GATHER_S)

    @property
    def paid_rows(self) -> Sequence[int]:
        """Times that one later term of the cost takes in, and never more than once."""
        return (_FORWARD_S, _SLACK, _AGAIN_S)

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that do not affect time."""
        return (_ROOT_GRADIENTS, _ROOT_LARGEST, *range(_UNSHARDED, _REDUCE_PEAK + 1))

    @cached_property
    def targets(self) -> Sequence[Ints]:
        """A module goes to the root, or a unit begins."""
        return [
            np.array([place + 1, *(edge.end for edge in edges)])
            for place, edges in enumerate(self.step.edges)
        ]

    def start(self) -> Floats:
        """No unit, and nothing in the root."""
        label = np.zeros((_REDUCE_PEAK + 1, 1))
        label[_ROOT_EMPTY] = label[_NO_UNIT] = 1.0
        peaks = [_FIRST_PEAK, _FORWARD_PEAK, _BACKWARD_PEAK, _UNIT_PEAK, _ROOT_PEAK, _REDUCE_PEAK]
        label[peaks] = NOTHING
        return label

    def extend(self, position: int, labels: Floats) -> Floats:
        """Leave a module to the root, or begin each of its units."""
        new = np.repeat(labels[:, None], len(self.targets[position]), axis=1)
        self._leave_to_root(position, labels, new[:, 0])
        units = self.step.units[position]
        if units is not None:
            self._add_time(units, labels, new[:, 1:])
            self._add_memory(units, labels, new[:, 1:])
            self._clip(np.array([edge.end for edge in self.step.edges[position]]), new[:, 1:])
        self._clip(position + 1, new[:, 0])
        return new

    def _leave_to_root(self, place: int, labels: Floats, new: Floats) -> None:
        forward_s, backward_s, forward_peak, backward_peak = self.step.root_modules[place]
        sizes, any_unit = self.step.sizes, labels[_ANY_UNIT] > 0
        new[_FORWARD_S] -= forward_s
        new[_AGAIN_S] -= np.where(any_unit, backward_s, 0.0)
        new[_SLACK] -= np.where(any_unit, 0.0, backward_s)
        gather, reduce = self.step.root_slopes
        new[_COST] += gather * sizes.gathered[place] + reduce * sizes.reduced[place]
        new[_ROOT] += sizes.gathered[place]
        new[_ROOT_EMPTY] = (new[_ROOT] == 0).astype(float)
        new[_GATHER_S] *= new[_ROOT_EMPTY]
        new[_ROOT_GRADIENTS] += sizes.gradients[place] - sizes.shard_gradients[place]
        new[_ROOT_REDUCED] += sizes.reduced[place]
        new[_ROOT_LARGEST] = np.maximum(labels[_ROOT_LARGEST], self.step.largest_gradient[place])
        now = labels[_UNSHARDED] + labels[_BUFFER] + forward_peak
        before, since = labels[_FIRST_PEAK], labels[_FORWARD_PEAK]
        new[_FORWARD_PEAK] = np.where(any_unit, np.maximum(since, now), since)
        new[_FIRST_PEAK] = np.where(any_unit, before, np.maximum(before, forward_peak))
        new[_ROOT_PEAK] = np.maximum(
            labels[_ROOT_PEAK], labels[_UNSHARDED] + backward_peak - new[_ROOT_GRADIENTS]
        )

    def _add_time(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        new[_COST] += np.maximum(units.gather_s + labels[_FORWARD_S], 0.0)
        hidden = (1 - units.reduced_last) * units.reduce_s
        exposed = np.maximum(hidden + labels[_SLACK], 0.0)
        new[_COST] += exposed + units.reduced_last * units.reduce_s
        new[_FORWARD_S] = -units.forward_s
        new[_SLACK] = labels[_AGAIN_S] - units.backward_s
        new[_GATHER_S] = units.gather_again_s * labels[_ROOT_EMPTY]
        new[_AGAIN_S] = units.gather_again_s - units.root_backward_s
        new[_NO_UNIT], new[_ANY_UNIT] = 0.0, 1.0

    def _add_memory(self, units: UnitCosts, labels: Floats, new: Floats) -> None:
        any_unit = labels[_ANY_UNIT] > 0
        before, reduced_now = labels[_UNSHARDED], 1 - units.reduced_last
        unsharded = before + units.unsharded
        start = units.forward_start + units.gathered
        # The old buffer is alive until the new weights are copied out.
        entry = before + start + units.gathered + labels[_BUFFER]
        first = np.maximum(labels[_FIRST_PEAK], start + units.gathered)
        new[_FIRST_PEAK] = np.where(any_unit, labels[_FIRST_PEAK], first)
        since = labels[_FORWARD_PEAK]
        forward = np.where(any_unit, np.maximum(since, entry), since)
        running = before + units.forward_peak + 2 * units.gathered
        after = unsharded + units.root_forward_peak + units.gathered
        new[_FORWARD_PEAK] = np.maximum(np.maximum(forward, running), after)
        waiting = np.maximum(labels[_UNIT_PEAK], labels[_ROOT_PEAK] + labels[_NEXT_BUFFER])
        done = np.maximum(labels[_BACKWARD_PEAK], waiting + reduced_now * units.reduced)
        # A unit reduced last is unsharded, with its gradients, while all before it run backward.
        last = units.reduced_last * (units.gathered + units.gradients)
        reduces = units.reduced + units.reduce_output
        ends = (
            before + labels[_NEXT_BUFFER] + reduces + units.backward_end - labels[_ROOT_GRADIENTS]
        )
        ends = np.where(units.reduced_last > 0, NOTHING, ends)
        new[_BACKWARD_PEAK] = np.maximum(done + last, ends)
        begins = before + units.gathered + units.gathered_again + units.backward_start
        begins = np.where(units.gathered_again > 0, begins, NOTHING)
        running = before + units.gathered + labels[_NEXT_BUFFER] + units.backward_peak
        new[_UNIT_PEAK] = np.maximum(begins, running) - labels[_ROOT_GRADIENTS]
        new[_ROOT_PEAK] = unsharded + units.root_backward_peak - labels[_ROOT_GRADIENTS]
        new[_UNSHARDED] = unsharded
        new[_BUFFER], new[_NEXT_BUFFER] = units.gathered, units.gathered_again
        new[_REDUCED_LAST] += last
        # Units reduced last end one after the other; only shards of those before remain.
        ending = reduces - units.gathered - labels[_REDUCED_LAST]
        ending = np.where(units.reduced_last > 0, ending, NOTHING)
        new[_REDUCE_PEAK] = np.maximum(labels[_REDUCE_PEAK], ending)

    def _clip(self, place: int | Ints, new: Floats) -> None:
        """Clip compute to the longest collective that it may still hide, so that labels agree."""
        gathers, reduces = self.step.longest_collectives
        gather, reduce = np.asarray(gathers[place]), np.asarray(reduces[place])
        if gather.ndim:
            gather, reduce = gather[:, None], reduce[:, None]
        new[_FORWARD_S] = np.maximum(new[_FORWARD_S], -gather)
        new[_SLACK] = np.maximum(new[_SLACK], -reduce)
        new[_AGAIN_S] = np.maximum(new[_AGAIN_S], -(reduce + gather))

    def finish(self, labels: Floats) -> Floats:
        """Exposed time of the full step [s]."""
        cost = labels[_COST] + np.maximum(labels[_SLACK], 0.0)
        exposed = np.where(labels[_ROOT_EMPTY] > 0, labels[_GATHER_S], labels[_AGAIN_S])
        cost = cost + np.maximum(exposed, 0.0)
        return np.asarray(cost + self._root_rest_s(labels))

    def remaining_cost(self, position: int, labels: Floats, budget: float) -> Floats:
        """The root's own collectives, and what remaining compute cannot hide of the others [s].

        What is left is gathered once at least, in units or with the root, and reduced. Per byte
        that takes at least s_a and s_r, the slopes for large buffers. With x of the P bytes left to
        the root, whose collectives nothing hides, and windows f and b of compute forward and
        backward, it exposes at least the minimum over x of

            max(0, s_a (P - x) - f) + max(0, s_a g + s_r (P - x) - b) + (s_a + s_r) x

        where g is gathered again in backward: all that is not in the root, or at least what the
        budget does not let stay from forward to backward. This is convex in x, so its minimum is
        at an end or where a window is just filled.
        """
        step = self.step
        gathered, forward, backward = step.remaining[:, position]
        gather, reduce = step.slopes
        again = gather if step.all_gathered_again else 0.0
        again_s: Floats | float = 0.0
        if np.isfinite(budget) and not step.all_gathered_again and step.all_run_backward:
            # The last module ends forward when all that stays is there.
            room = budget - step.constant_bytes - max(step.floors[-2:])
            stay = np.maximum(room - labels[_UNSHARDED] - labels[_ROOT], 0.0)
            again_s = gather * np.maximum(gathered - stay, 0.0)
        forward_left_s = forward - labels[_FORWARD_S]
        backward_left_s = backward - labels[_SLACK] - labels[_AGAIN_S] - again_s
        best = np.full(labels.shape[1], np.inf)
        rest = self._root_rest_s(labels)
        for in_units in (
            np.zeros_like(forward_left_s),
            np.full_like(forward_left_s, gathered),
            forward_left_s / gather,
            backward_left_s / max(again + reduce, 1e-30),
        ):
            units = np.clip(in_units, 0.0, gathered)
            exposed = np.maximum(gather * units - forward_left_s, 0.0)
            exposed += np.maximum((again + reduce) * units - backward_left_s, 0.0)
            best = np.minimum(best, exposed + (gather + reduce) * (gathered - units))
        return rest + best

    def _root_rest_s(self, labels: Floats) -> Floats:
        """What the root's own collectives take in addition to the cost so far [s].

        Few sizes occur, and each is evaluated once.
        """
        sizes, places = np.unique(labels[_ROOT] + 1j * labels[_ROOT_REDUCED], return_inverse=True)
        new = [size for size in sizes.tolist() if size not in self.root_s]
        if new:
            gather, reduce = self.step.root_slopes
            gathered, reduced = np.real(new), np.imag(new)
            times = self.step.collectives.gather_s(gathered) - gather * gathered
            times += self.step.collectives.reduce_s(reduced) - reduce * reduced
            self.root_s.update(zip(new, times.tolist(), strict=True))
        return np.array([self.root_s[size] for size in sizes.tolist()])[places]

    def peak(self, position: int, labels: Floats) -> Floats:
        """Peak so far; at the last position also of the loss and of the end of the step [byte]."""
        step = self.step
        root, gradients = labels[_ROOT], labels[_ROOT_GRADIENTS]
        gathered = np.where(labels[_ROOT_EMPTY] > 0, 0.0, labels[_NEXT_BUFFER])
        waiting = np.maximum(labels[_UNIT_PEAK], labels[_ROOT_PEAK] + gathered)
        forward = labels[_FORWARD_PEAK]
        if position == len(step.edges):
            loss, backward = step.loss_peaks
            forward = np.maximum(forward, labels[_UNSHARDED] + loss)
            waiting = np.maximum(waiting, labels[_UNSHARDED] + backward)
        moments = [
            root + labels[_UNSHARDED] + step.floors[position],
            2 * root + labels[_FIRST_PEAK],
            root + forward,
            root + gradients + np.maximum(labels[_BACKWARD_PEAK], waiting),
        ]
        if position == len(step.edges):
            end = step.spans.start(len(step.profile.seconds))
            end -= step.spans.reduced_gradients(len(step.profile.seconds))
            # The root's last gradient is at most its largest; the output lives at the same time.
            scattered = step.output_ratio * labels[_ROOT_REDUCED]
            unsharded = labels[_ROOT_REDUCED] * step.gradient_ratio
            output = np.maximum(scattered + labels[_ROOT_LARGEST] - unsharded, 0.0)
            last = labels[_REDUCED_LAST]
            moments.append(end + gradients + labels[_ROOT_REDUCED] + output + last)
            moments.append(end + last + labels[_REDUCE_PEAK])
            moments.append(np.full_like(root, step.optimizer_step))
        return np.asarray(step.constant_bytes + np.max(moments, axis=0))

    def harmless(self, position: int, labels: Floats, budget: float) -> Floats:
        """Labels with peaks raised to what fits whatever the root will own.

        In addition to what is there now, the root gets at most what is left, and at most what the
        budget leaves in addition to the remaining peak.
        """
        if not np.isfinite(budget) or position == len(self.step.edges):
            return labels
        labels = labels.copy()
        room = budget - self.step.constant_bytes
        left = room - self.step.floors[position] - labels[_ROOT] - labels[_UNSHARDED]
        more = np.clip(left, 0.0, self.step.remaining[0, position])
        root = labels[_ROOT] + more
        gradients = labels[_ROOT_GRADIENTS] + more * self.step.root_gradient_ratio
        reduce = self.step.largest_reduce
        labels[_FIRST_PEAK] = np.maximum(labels[_FIRST_PEAK], room - 2 * root)
        labels[_FORWARD_PEAK] = np.maximum(labels[_FORWARD_PEAK], room - root)
        room = room - self.step.reduced_last_bytes[position] - root - gradients
        labels[_BACKWARD_PEAK] = np.maximum(labels[_BACKWARD_PEAK], room)
        labels[_UNIT_PEAK] = np.maximum(labels[_UNIT_PEAK], room - reduce)
        least = room - reduce - labels[_NEXT_BUFFER]
        labels[_ROOT_PEAK] = np.maximum(labels[_ROOT_PEAK], least)
        return labels

    @property
    def byte_s(self) -> float:
        """Time to gather and reduce a byte of weights in a large collective [s/byte]."""
        return sum(self.step.slopes)

    def sketch(self, labels: Floats) -> tuple[Floats, Floats]:
        """Labels with time and what stays unsharded, to the MiB; the latter [byte]."""
        kept = labels[_ROOT] + labels[_ROOT_GRADIENTS] + labels[_UNSHARDED]
        few = labels.copy()
        few[[_ROOT, _ROOT_REDUCED, *self.memory_rows]] = 0.0
        few[_UNSHARDED] = np.ceil(kept / _MIB)
        return few, kept

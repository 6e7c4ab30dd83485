"""The published objective and peak as a shortest path, for `fsdp.search`: exact, without a solver.

Quantities of a label, of which less is never worse: the cost so far; minus the forward compute of
the last unit; minus its backward compute not needed to hide its gather; the gather of the
last unit; parameters and gradients left in the root; the unit with the highest memory; the largest
unit. Terms and sentinels are those of the closed form (`closed_form`), in milliseconds and bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.predecessors.fsdp_ilp.comm import CommTimes
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo

_COST, _FORWARD, _SLACK, _GATHER, _PARAMETERS, _GRADIENTS, _FULLEST, _LARGEST = range(8)
_NONE, _SOME, _WHOLE = 8, 9, 10
"""1 where there is no unit yet, where there is one (they do not compare), minus the parameters
left: only where tied weights are counted twice, when more of them in the root may be better."""
_PLENTY = 1e12
"""More compute [ms] than any gather needs to hide."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IlpRules:
    """Rules of fsdp_ilp (sanketpurandare/scyther, commit 9cd9397, fsdp_ilp.py)."""

    info: ModuleInfo
    comm: CommTimes
    world_size: int
    allowed: Bools
    """Which modules may be units; the root's entry counts for nothing."""

    @property
    def memory_rows(self) -> Sequence[int]:
        """Quantities that do not depend on time."""
        return (_FULLEST, _LARGEST)

    @cached_property
    def targets(self) -> Sequence[Ints]:
        """Skip to the next module; as a unit, to the end of its subtree."""
        found = []
        for place, end in enumerate(self.info.end.tolist()):
            unit = place > 0 and self.allowed[place]
            found.append(np.array([place + 1, end] if unit else [place + 1]))
        return found

    @cached_property
    def _fullest(self) -> Floats:
        """Largest C_i = (P_0 + TG_i) / W + TA_i + AG_i of each subtree [byte]."""
        info = self.info
        own = (info.parameter_bytes[0] + info.gradient_total_bytes) / self.world_size
        own = own + info.activation_total_bytes + info.activation_gradient_bytes
        return np.array([own[i:end].max() for i, end in enumerate(info.end)])

    @cached_property
    def _times(self) -> tuple[Floats, Floats]:
        """Gather and scatter of each module as a unit [ms]."""
        return (
            self.comm.all_gather.time_ms(self.info.parameter_bytes),
            self.comm.reduce_scatter.time_ms(self.info.gradient_bytes),
        )

    @cached_property
    def _coverable(self) -> tuple[Floats, Floats]:
        """Most parameters and gradients that units from a position on can own [byte]."""
        found = []
        for sizes in (self.info.parameter_bytes, self.info.gradient_bytes):
            most = np.zeros(len(sizes) + 1)
            for place in range(len(sizes) - 1, 0, -1):
                most[place] = most[place + 1]
                if self.allowed[place]:
                    end = self.info.end[place]
                    most[place] = max(most[place], sizes[place] + most[end])
            most[0] = most[1]
            found.append(most)
        return found[0], found[1]

    @cached_property
    def _ahead(self) -> tuple[Floats, Floats]:
        """Longest gather and scatter of a unit from a position on, or of the end's sentinel [ms].

        More compute than that hides no more, so labels that have more are equal.
        """
        found = []
        for times, line in zip(
            self._times, (self.comm.all_gather, self.comm.reduce_scatter), strict=True
        ):
            units = np.append(np.where(self.allowed, times, 0.0), line.latency_ms)
            found.append(np.maximum.accumulate(units[::-1])[::-1])
        return found[0], found[1]

    @cached_property
    def _tied(self) -> bool:
        return bool(self._coverable[0][0] > self.info.parameter_bytes[0])

    @property
    def time_rows(self) -> Sequence[int]:
        """Quantities that do not depend on memory."""
        return (_COST, _FORWARD, _SLACK, _GATHER, _NONE, _SOME)

    @property
    def paid_rows(self) -> Sequence[int]:
        """Times that one later term of the cost takes in, and never more than once."""
        return (_FORWARD, _SLACK, _GATHER)

    def start(self) -> Floats:
        """Nothing chosen; the root owns all."""
        label = np.zeros((11 if self._tied else 10, 1))
        label[_PARAMETERS] = self.info.parameter_bytes[0]
        label[_GRADIENTS] = self.info.gradient_bytes[0]
        label[_FULLEST] = self._fullest[0]
        label[_NONE], label[_SOME] = 0.0, 1.0
        if len(self.info.end) == 1:  # of a root alone there are no chains
            label[_FORWARD] = label[_SLACK] = -_PLENTY
        if self._tied:
            label[_WHOLE] = -label[_PARAMETERS]
        return label

    def extend(self, position: int, labels: Floats) -> Floats:
        """Skip a module, or make it a unit."""
        edges = len(self.targets[position])
        new = np.repeat(labels[:, None], edges, axis=1)
        if edges == 1:
            return new
        gather, scatter = (times[position] for times in self._times)
        info, unit = self.info, new[:, 1]
        unit[_COST] += np.maximum(gather + labels[_FORWARD], 0.0)
        unit[_COST] += np.maximum(scatter + labels[_SLACK], 0.0)
        # The gather "before the first unit" is a sentinel: a latency, or nothing where that unit
        # ends the backward chain.
        first = 0.0 if info.post_position[position] == 0 else self.comm.all_gather.latency_ms
        hidden = np.where(labels[_SOME] == 1, first, labels[_GATHER])
        unit[_FORWARD] = -info.forward_ms[position]
        unit[_SLACK] = hidden - info.backward_ms[position]
        unit[_GATHER] = gather
        unit[_PARAMETERS] -= info.parameter_bytes[position]
        unit[_GRADIENTS] -= info.gradient_bytes[position]
        own = info.parameter_bytes[position] + info.gradient_bytes[position]
        unit[_FULLEST] = np.maximum(labels[_FULLEST], own + self._fullest[position])
        unit[_LARGEST] = np.maximum(labels[_LARGEST], info.parameter_bytes[position])
        unit[_NONE], unit[_SOME] = 1.0, 0.0
        if self._tied:
            unit[_WHOLE] = -unit[_PARAMETERS]
        if position == len(info.end) - 1:  # the last module's chains end at once, in nothing
            unit[_COST] += np.maximum(unit[_SLACK], 0.0)
            unit[_FORWARD] = unit[_SLACK] = -_PLENTY
        else:
            longest, slowest = (times[info.end[position]] for times in self._ahead)
            unit[_FORWARD] = np.maximum(unit[_FORWARD], -longest)
            unit[_SLACK] = np.maximum(unit[_SLACK], -slowest)
        return new

    def finish(self, labels: Floats) -> Floats:
        """Exposed time with the root's own collectives and the sentinels at the end [ms]."""
        gather, scatter = self.comm.all_gather, self.comm.reduce_scatter
        cost = labels[_COST] + np.maximum(gather.latency_ms + labels[_FORWARD], 0.0)
        cost = cost + np.maximum(scatter.latency_ms + labels[_SLACK], 0.0)
        cost = cost + gather.time_ms(labels[_PARAMETERS])
        return np.asarray(cost + scatter.time_ms(labels[_GRADIENTS]))

    def peak(self, position: int, labels: Floats) -> Floats:
        """Peak if all that still may be covered is [byte].

        Infinite where the root would own less than nothing, as tied weights allow.
        """
        parameters, gradients = (most[position] for most in self._coverable)
        root = np.maximum(labels[_PARAMETERS] - parameters, 0.0)
        grads = np.maximum(labels[_GRADIENTS] - gradients, 0.0)
        peak = root + grads + labels[_FULLEST] + 2 * np.maximum(root, labels[_LARGEST])
        negative = (labels[_PARAMETERS] < 0) | (labels[_GRADIENTS] < 0)
        return np.where(negative, np.inf, peak)

    def remaining_cost(self, position: int, labels: Floats, budget: float) -> Floats:  # noqa: ARG002 - of the protocol
        """The root's own collectives, if all that still may be covered is [ms]."""
        parameters, gradients = (most[position] for most in self._coverable)
        gather = self.comm.all_gather.time_ms(np.maximum(labels[_PARAMETERS] - parameters, 0.0))
        grads = np.maximum(labels[_GRADIENTS] - gradients, 0.0)
        return np.asarray(gather + self.comm.reduce_scatter.time_ms(grads))

    def harmless(self, position: int, labels: Floats, budget: float) -> Floats:  # noqa: ARG002 - of the protocol
        """Nothing is known to matter no more."""
        return labels

    @property
    def byte_s(self) -> float:
        """Labels are few enough without a sketch."""
        return 0.0

    def sketch(self, labels: Floats) -> tuple[Floats, Floats]:
        """Not used."""
        raise NotImplementedError

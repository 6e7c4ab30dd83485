"""Memory of one rank through a step of FSDP2, moment by moment, and its peak.

The rules are those of `torch.distributed.fsdp.fully_shard` in torch 2.13, read in its
`FSDPParamGroup` and `FSDPState`, in the order in which the host allocates and frees:

- entering a unit forward allocates the buffer of its all-gather, then copies its weights out, then
  frees the buffer of the unit before; leaving it frees the weights unless they stay for backward;
  the last buffer is freed when the root ends;
- before backward of a unit its weights are copied out of the gathered buffer, that is freed, and
  the next one is gathered into its own (the unit that ended forward just before this one);
- after backward of a unit its weights are freed, then the input of its reduce-scatter is allocated
  while its gradients are still alive; these are freed except the last one, and the output is
  allocated; the input is freed when the next unit ends;
- the root ends last of all except the units whose inputs need no gradient;
- the optimizer's step needs sharded gradients and temporaries in addition to sharded weights and
  state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.fsdp.plan import DTYPE_BYTES, Setting
from shardwise.fsdp.planner.units import LastGradients, ModuleSizes, PlacedUnit
from shardwise.fsdp.profile import Profile, bytes_before

CATEGORIES = (
    "sharded_weights",
    "optimizer",
    "sharded_gradients",
    "unsharded_weights",
    "gradients",
    "all_gather_buffers",
    "reduce_scatter_buffers",
    "activations",
    "fixed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The moment of a step with the most memory."""

    total_bytes: float
    phase: str
    """`forward`, `backward` or `step`."""
    module: str
    """The unit that begins, runs or ends then; empty for the root."""
    bytes: Mapping[str, float]
    """By category; they sum to the total."""


def memory_peak(
    profile: Profile, setting: Setting, sizes: ModuleSizes, units: Sequence[PlacedUnit]
) -> Moment:
    """Peak memory of one rank."""
    constant = {
        "sharded_weights": float(sizes.shard.sum()),
        "optimizer": float(sizes.state.sum()),
        "fixed": profile.fixed_bytes,
    }
    last = LastGradients(profile=profile, element_bytes=DTYPE_BYTES[setting.compute_dtype])
    sized = [_SizedUnit.of(unit, sizes, last) for unit in units]
    walk = _Walk(profile=profile, units=sized, constant=constant)
    walk.forward()
    walk.backward()
    walk.step(float(sizes.optimizer_step.sum()))
    assert walk.peak is not None  # noqa: S101 - a profile has a segment
    return walk.peak


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SizedUnit:
    """A unit and its bytes."""

    unit: PlacedUnit
    gathered: float
    reduced: float
    gradients: float
    shard_gradients: float
    reduce_output: float
    """Output of the reduce-scatter, with the last gradient, less all gradients; at least 0."""

    @classmethod
    def of(cls, unit: PlacedUnit, sizes: ModuleSizes, last: LastGradients) -> "_SizedUnit":
        own = np.zeros(len(sizes.gathered), dtype=bool)
        own[list(unit.owned)] = True
        output = float(sizes.scattered[own].sum()) + last.of(own)
        gradients = float(sizes.gradients[own].sum())
        return cls(
            unit=unit,
            gathered=float(sizes.gathered[own].sum()),
            reduced=float(sizes.reduced[own].sum()),
            gradients=gradients,
            shard_gradients=float(sizes.shard_gradients[own].sum()),
            reduce_output=max(output - gradients, 0.0),
        )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One step: what FSDP2 holds now, and the peak so far [byte]."""

    profile: Profile
    units: Sequence[_SizedUnit]
    """The root first."""
    constant: Mapping[str, float]
    weights: float = 0.0
    """Unsharded."""
    gather_buffers: float = 0.0
    reduce_buffers: float = 0.0
    sharded_gradients: float = 0.0
    reduced_gradients: float = 0.0
    """Unsharded gradients that are reduced; the profile still counts them."""
    unsharded: set[int] = field(default_factory=set)
    """Units whose weights are unsharded, by `id`."""
    prefetched: set[int] = field(default_factory=set)
    """Units that are gathered for backward but not copied out, by `id`."""
    ended: list[_SizedUnit] = field(default_factory=list)
    """Units in the order they ended forward."""
    peak: Moment | None = None

    def forward(self) -> None:
        """From the entry of the root to the loss."""
        profile = self.profile
        running = [""]
        begins, ends = self._by_segment("forward", 0), self._by_segment("forward", 1)
        for segment in range(profile.forward_segments + 1):
            for sized in reversed(ends.get(segment, ())):
                self._leave(sized)
                running.pop()
            for sized in begins.get(segment, ()):
                running.append(sized.unit.name)
                self._enter(sized, bytes_before(profile, segment))
            if segment < profile.forward_segments:
                resident = float(profile.resident_bytes[segment])
                self._record(segment, resident, "forward", running[-1])

    def _by_segment(self, phase: str, side: int) -> dict[int, list[_SizedUnit]]:
        """Units by the segment at which they begin (side 0) or end (1)."""
        found: dict[int, list[_SizedUnit]] = {}
        for sized in self.units:
            found.setdefault(getattr(sized.unit, phase)[side], []).append(sized)
        return found

    def _enter(self, sized: _SizedUnit, resident: float) -> None:
        if sized.gathered == 0:
            return
        before = self.gather_buffers
        self.gather_buffers += sized.gathered
        self.weights += sized.gathered
        self.unsharded.add(id(sized))
        self._record(-1, resident, "forward", sized.unit.name)
        self.gather_buffers -= before

    def _leave(self, sized: _SizedUnit) -> None:
        if sized.gathered > 0:
            self.ended.append(sized)
            if sized.unit.unit.reshard_after_forward:
                self.weights -= sized.gathered
                self.unsharded.discard(id(sized))
        if sized is self.units[0]:
            self.gather_buffers = 0.0

    def backward(self) -> None:
        """From the gradient of the loss to the last reduce-scatter."""
        profile = self.profile
        total = len(profile.seconds)
        running = [""]
        begins, ends = self._by_segment("backward", 0), self._by_segment("backward", 1)
        for segment in range(profile.forward_segments, total):
            before = bytes_before(profile, segment)
            for sized in reversed(ends.get(segment, ())):
                if not sized.unit.reduced_last:
                    self._reduce(sized, segment, before)
                    running.remove(sized.unit.name)
            for sized in begins.get(segment, ()):
                running.append(sized.unit.name)
                self._begin(sized, segment, before)
            resident = float(profile.resident_bytes[segment])
            self._record(segment, resident, "backward", running[-1])
        end = bytes_before(profile, total)
        for sized in reversed(self.units):
            if sized.unit.backward[1] == total and not sized.unit.reduced_last:
                self._reduce(sized, total, end)
        for sized in self.units:
            if sized.unit.reduced_last:
                self._reduce(sized, total, end)

    def step(self, optimizer_step: float) -> None:
        """The optimizer, with its gradients and temporaries [byte]."""
        self.reduce_buffers, self.gather_buffers = 0.0, 0.0
        self.sharded_gradients = optimizer_step
        total = len(self.profile.seconds)
        self._record(total - 1, bytes_before(self.profile, total), "step", "")

    def _begin(self, sized: _SizedUnit, segment: int, resident: float) -> None:
        """Unshard what backward of a unit needs, then prefetch the next."""
        if sized.gathered == 0:
            return
        if id(sized) not in self.unsharded:
            if id(sized) not in self.prefetched:
                self.gather_buffers += sized.gathered
            self.prefetched.discard(id(sized))
            self.weights += sized.gathered
            self.unsharded.add(id(sized))
            self._record(segment - 1, resident, "backward", sized.unit.name)
            self.gather_buffers -= sized.gathered
        place = self.ended.index(sized)
        target = self.ended[place - 1]
        if place > 0 and id(target) not in self.unsharded | self.prefetched:
            self.prefetched.add(id(target))
            self.gather_buffers += target.gathered

    def _reduce(self, sized: _SizedUnit, segment: int, resident: float) -> None:
        """Free the weights of a unit, then reduce its gradients."""
        if id(sized) in self.unsharded:
            self.weights -= sized.gathered
            self.unsharded.discard(id(sized))
        self.reduce_buffers = 0.0
        if sized.gradients == 0:
            return
        self.reduce_buffers = sized.reduced + sized.reduce_output
        self._record(segment - 1, resident, "backward", sized.unit.name)
        self.reduce_buffers = sized.reduced
        self.reduced_gradients += sized.gradients
        self.sharded_gradients += sized.shard_gradients
        self._record(segment - 1, resident, "backward", sized.unit.name)

    def _record(self, segment: int, resident: float, phase: str, module: str) -> None:
        """Compare the current moment with the peak; `resident` is what the profile holds."""
        buffers = self.weights + self.gather_buffers + self.reduce_buffers + self.sharded_gradients
        live = resident - self.reduced_gradients
        total = live + buffers + sum(self.constant.values())
        if self.peak is not None and total <= self.peak.total_bytes:
            return
        gradients = float(self.profile.gradient_bytes[segment]) if segment >= 0 else 0.0
        categories = {
            **self.constant,
            "sharded_gradients": self.sharded_gradients,
            "unsharded_weights": self.weights,
            "gradients": gradients - self.reduced_gradients,
            "all_gather_buffers": self.gather_buffers,
            "reduce_scatter_buffers": self.reduce_buffers,
            "activations": resident - gradients,
        }
        self.peak = Moment(
            total_bytes=total,
            phase=phase,
            module=module,
            bytes={name: categories[name] for name in CATEGORIES},
        )

"""What one rank holds through a step of FSDP2, moment by moment, and when it is fullest.

The rules are those of `torch.distributed.fsdp.fully_shard` in torch 2.13, read in its
`FSDPParamGroup` and `FSDPState`, in the order in which the host allocates and frees:

- entering a unit forward allocates the buffer of its all-gather, then copies its weights out, then
  frees the buffer of the unit before; leaving it frees the weights unless they stay for backward;
  the last buffer is freed when the root ends;
- before backward of a unit its weights are copied out of the gathered buffer, that is freed, and
  the next one is gathered into its own (the unit that ended forward just before this one);
- after backward of a unit its weights are freed, then the input of its reduce-scatter is allocated
  while its gradients still live; these are freed but for the last one, and the output is allocated;
  the input is kept until the next unit ends;
- the root ends last of all but the units whose inputs need no gradient;
- the optimizer's step holds sharded gradients and temporaries beside sharded weights and state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.fsdp.plan import DTYPE_BYTES, Setting
from shardwise.fsdp.planner.units import LastGradients, ModuleSizes, PlacedUnit
from shardwise.fsdp.profile import Profile, bytes_before

__all__ = ["CATEGORIES", "Moment", "memory_peak"]

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
    """The fullest moment of a step."""

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
    """Peak memory of one rank with units placed in a profile, the root first."""
    constant = {
        "sharded_weights": float(sizes.shard.sum()),
        "optimizer": float(sizes.state.sum()),
        "fixed": profile.fixed_bytes,
    }
    last = LastGradients(profile=profile, element_bytes=DTYPE_BYTES[setting.compute_dtype])
    sized = [_Sized.of(unit, sizes, last) for unit in units]
    walk = _Walk(profile=profile, units=sized, constant=constant)
    walk.forward()
    walk.backward()
    walk.step(float(sizes.optimizer_step.sum()))
    assert walk.fullest is not None  # noqa: S101 - a profile has a segment
    return walk.fullest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sized:
    """A unit and its bytes."""

    unit: PlacedUnit
    gathered: float
    reduced: float
    gradients: float
    shard_gradients: float
    output: float
    """What the reduce-scatter writes, with the last gradient, beyond all gradients; or nothing."""

    @classmethod
    def of(cls, unit: PlacedUnit, sizes: ModuleSizes, last: LastGradients) -> "_Sized":
        own = np.zeros(len(sizes.gathered), dtype=bool)
        own[list(unit.owned)] = True
        output = float(sizes.scattered[own].sum()) + last.of(own)
        return cls(
            unit=unit,
            gathered=float(sizes.gathered[own].sum()),
            reduced=float(sizes.reduced[own].sum()),
            gradients=float(sizes.gradients[own].sum()),
            shard_gradients=float(sizes.shard_gradients[own].sum()),
            output=max(output - float(sizes.gradients[own].sum()), 0.0),
        )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One step, with what FSDP2 holds now and the fullest moment so far."""

    profile: Profile
    units: Sequence[_Sized]
    """The root first."""
    constant: Mapping[str, float]
    weights: float = 0.0
    """Unsharded."""
    gathers: float = 0.0
    """Buffers of all-gathers."""
    reduces: float = 0.0
    """Inputs of reduce-scatters."""
    shards: float = 0.0
    """Sharded gradients."""
    gone: float = 0.0
    """Unsharded gradients that are reduced; the profile still counts them."""
    whole: set[int] = field(default_factory=set)
    """Units whose weights are unsharded, by `id`."""
    pending: set[int] = field(default_factory=set)
    """Units that are gathered for backward but not copied out, by `id`."""
    ended: list[_Sized] = field(default_factory=list)
    """Units in the order they ended forward."""
    fullest: Moment | None = None

    def forward(self) -> None:
        """From the entry of the root to the loss."""
        profile = self.profile
        running = [""]
        begins, ends = self._at("forward", 0), self._at("forward", 1)
        for segment in range(profile.forward_segments + 1):
            for sized in reversed(ends.get(segment, ())):
                self._leave(sized)
                running.pop()
            for sized in begins.get(segment, ()):
                running.append(sized.unit.name)
                self._enter(sized, bytes_before(profile, segment))
            if segment < profile.forward_segments:
                self._look(segment, float(profile.resident_bytes[segment]), "forward", running[-1])

    def _at(self, phase: str, side: int) -> dict[int, list[_Sized]]:
        """Units by the segment at which they begin (0) or end (1)."""
        found: dict[int, list[_Sized]] = {}
        for sized in self.units:
            found.setdefault(getattr(sized.unit, phase)[side], []).append(sized)
        return found

    def _enter(self, sized: _Sized, held: float) -> None:
        if sized.gathered == 0:
            return
        before = self.gathers
        self.gathers += sized.gathered
        self.weights += sized.gathered
        self.whole.add(id(sized))
        self._look(-1, held, "forward", sized.unit.name)
        self.gathers -= before

    def _leave(self, sized: _Sized) -> None:
        if sized.gathered > 0:
            self.ended.append(sized)
            if sized.unit.unit.reshard_after_forward:
                self.weights -= sized.gathered
                self.whole.discard(id(sized))
        if sized is self.units[0]:
            self.gathers = 0.0

    def backward(self) -> None:
        """From the gradient of the loss to the last reduce-scatter."""
        profile = self.profile
        total = len(profile.seconds)
        running = [""]
        begins, ends = self._at("backward", 0), self._at("backward", 1)
        for segment in range(profile.forward_segments, total):
            before = bytes_before(profile, segment)
            for sized in reversed(ends.get(segment, ())):
                if not sized.unit.reduced_last:
                    self._reduce(sized, segment, before)
                    running.remove(sized.unit.name)
            for sized in begins.get(segment, ()):
                running.append(sized.unit.name)
                self._begin(sized, segment, before)
            self._look(segment, float(profile.resident_bytes[segment]), "backward", running[-1])
        self._finish(total)

    def _finish(self, total: int) -> None:
        left = bytes_before(self.profile, total)
        for sized in reversed(self.units):
            if sized.unit.backward[1] == total and not sized.unit.reduced_last:
                self._reduce(sized, total, left)
        for sized in self.units:
            if sized.unit.reduced_last:
                self._reduce(sized, total, left)

    def step(self, optimizer_step: float) -> None:
        """The optimizer, which needs so much of gradients and temporaries."""
        self.reduces, self.gathers, self.shards = 0.0, 0.0, optimizer_step
        total = len(self.profile.seconds)
        self._look(total - 1, bytes_before(self.profile, total), "step", "")

    def _begin(self, sized: _Sized, segment: int, held: float) -> None:
        """Unshard what backward of a unit needs, then gather for the next."""
        if sized.gathered == 0:
            return
        if id(sized) not in self.whole:
            if id(sized) not in self.pending:
                self.gathers += sized.gathered
            self.pending.discard(id(sized))
            self.weights += sized.gathered
            self.whole.add(id(sized))
            self._look(segment - 1, held, "backward", sized.unit.name)
            self.gathers -= sized.gathered
        place = self.ended.index(sized)
        target = self.ended[place - 1]
        if place > 0 and id(target) not in self.whole | self.pending:
            self.pending.add(id(target))
            self.gathers += target.gathered

    def _reduce(self, sized: _Sized, segment: int, held: float) -> None:
        """Free the weights of a unit, then reduce its gradients."""
        if id(sized) in self.whole:
            self.weights -= sized.gathered
            self.whole.discard(id(sized))
        self.reduces = 0.0
        if sized.gradients == 0:
            return
        self.reduces = sized.reduced + sized.output
        self._look(segment - 1, held, "backward", sized.unit.name)
        self.reduces = sized.reduced
        self.gone += sized.gradients
        self.shards += sized.shard_gradients
        self._look(segment - 1, held, "backward", sized.unit.name)

    def _look(self, segment: int, held: float, phase: str, module: str) -> None:
        """Take note of a moment at which the profile holds so much."""
        ours = self.weights + self.gathers + self.reduces + self.shards
        live = held - self.gone
        total = live + ours + sum(self.constant.values())
        if self.fullest is not None and total <= self.fullest.total_bytes:
            return
        made = float(self.profile.gradient_bytes[segment]) if segment >= 0 else 0.0
        parts = {
            **self.constant,
            "sharded_gradients": self.shards,
            "unsharded_weights": self.weights,
            "gradients": made - self.gone,
            "all_gather_buffers": self.gathers,
            "reduce_scatter_buffers": self.reduces,
            "activations": held - made,
        }
        self.fullest = Moment(
            total_bytes=total,
            phase=phase,
            module=module,
            bytes={name: parts[name] for name in CATEGORIES},
        )

"""One unsharded training step of a module tree: what runs when, how long, and what it holds.

A profile is all that the planner knows of a model. It comes from a traced `torch.nn.Module`, from
module statistics in a file or from a model of the catalog; sharding is no part of it.

The step is cut into segments at every entry and exit of a module: first those of the forward pass
in the order they ran, then those of the backward pass. Within a segment no module begins or ends,
so what FSDP holds does not change in it, and its fullest moment is all that matters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.arrays import Floats, Ints

__all__ = ["Parameter", "Profile", "ProfiledModule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of weights, counted once however many modules hold it."""

    name: str
    """Fully qualified, as its first holder names it."""
    shape: tuple[int, ...]
    holders: tuple[int, ...]
    """Positions in `Profile.modules` of all that hold it themselves, ascending; more than one: it
    is tied, or a module that holds it runs more than once."""
    element_bytes: float
    """Size of one number in the profiled step [byte]."""
    trainable: bool = True
    gradient_segment: int = -1
    """Backward segment in which its gradient is complete; -1: it gets none."""

    @property
    def numel(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModule:
    """One run of a module in the forward pass; a module that runs twice stands there twice."""

    name: str
    """Fully qualified; empty for the root."""
    kind: str
    """Its class."""
    parent: int
    """Position of the module that called it; -1 for the root."""
    end: int
    """Position after its last descendant: it and they are `[position, end)`."""
    forward: tuple[int, int]
    """Segments from its entry to its exit: `[first, after)`."""
    backward: tuple[int, int]
    """Segments from the gradient of its output to that of its input; empty without backward.

    Where no input needs a gradient it lasts to the end of the step, as FSDP2 releases it there.
    """
    output_bytes: float = 0.0
    late: bool = False
    """Whether no input of it needs a gradient, so that FSDP2 reduces its gradients last of all."""
    run: int = 0
    """0 for its first run, 1 for its second, ..."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Profile:
    """An unsharded step on one device, modules in the order in which they run forward."""

    name: str
    """Of the model, for people."""
    source: str
    """What it was taken from: a file, a factory, a model of the catalog."""
    modules: tuple[ProfiledModule, ...]
    parameters: tuple[Parameter, ...]
    forward_segments: int
    """How many of the segments belong to the forward pass and the loss."""
    seconds: Floats
    """Compute time of each segment [s]."""
    resident_bytes: Floats
    """At the fullest moment of each segment: activations, temporaries, and in backward all
    gradients of weights so far, unsharded; no weights, buffers or inputs [byte]."""
    left_bytes: Floats
    """The same at the end of each segment [byte]."""
    fixed_bytes: float = 0.0
    """Buffers and inputs, which no plan changes [byte]."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted, for people."""
    unrun: tuple[str, ...] = ()
    """Modules that hold weights but never ran forward."""

    @cached_property
    def positions(self) -> dict[str, int]:
        """Where each module stands, by name: its first run."""
        found: dict[str, int] = {}
        for place, module in enumerate(self.modules):
            found.setdefault(module.name, place)
        return found

    @cached_property
    def ends(self) -> Ints:
        """`end` of each module."""
        return np.array([module.end for module in self.modules], dtype=np.int64)

    @cached_property
    def gradient_bytes(self) -> Floats:
        """Unsharded gradients of weights complete at the end of each segment [byte]."""
        added = np.zeros(len(self.seconds))
        for parameter in self.parameters:
            if parameter.gradient_segment >= 0:
                added[parameter.gradient_segment] += parameter.numel * parameter.element_bytes
        return np.cumsum(added)

    @cached_property
    def shared(self) -> tuple[Parameter, ...]:
        """Parameters with more than one holder."""
        return tuple(parameter for parameter in self.parameters if len(parameter.holders) > 1)

    def children(self, place: int) -> Sequence[int]:
        """Positions of the modules that one calls itself, in the order they run."""
        found = []
        at = place + 1
        while at < self.modules[place].end:
            found.append(at)
            at = self.modules[at].end
        return found

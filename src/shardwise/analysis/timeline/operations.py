"""Kernels of one pass through a virtual stage, in the order in which they run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.analysis.components import rerun_share
from shardwise.analysis.timeline.step import StepTimeline
from shardwise.cost.operations import OperationCost
from shardwise.ops.operation import Phase

__all__ = ["ComponentOfPass", "parts_of_pass"]

_PHASES = {
    "forward": (Phase.FORWARD,),
    "recompute": (Phase.FORWARD,),
    "backward": (Phase.INPUT_GRAD,),
    "weight_gradients": (Phase.WEIGHT_GRAD,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentOfPass:
    """A layer, the embedding or the head, and its kernels."""

    name: str
    kernels: tuple[tuple[str, float], ...]
    """Operation and time of what it launches, without the host's part [s]."""


def parts_of_pass(timeline: StepTimeline, stage: int, *work: str) -> list[ComponentOfPass]:
    """Kernels of one micro-batch on a virtual stage, backwards but for what goes forward.

    Parameters
    ----------
    work
        What they are for: keys of `Pass.kernels_s`, together as a whole backward does.
    """
    phases = [phase for name in work for phase in _PHASES[name]]
    again = work == ("recompute",)
    found = []
    for name, costs, reruns in _in_order(timeline, stage):
        shares = [rerun_share(c, timeline.again) * reruns if again else 1.0 for c in costs]
        times = [
            (c.operation.name, share * sum(float(c.kernel_s(p)[0]) for p in phases))
            for c, share in zip(costs, shares, strict=True)
        ]
        kernels = [one for one in times if one[1] > 0]
        if kernels:
            found.append((name, kernels))
    forward = phases[0] is Phase.FORWARD
    step = 1 if forward else -1
    return [ComponentOfPass(name=name, kernels=tuple(some[::step])) for name, some in found[::step]]


def _in_order(
    timeline: StepTimeline, stage: int
) -> Iterator[tuple[str, Sequence[OperationCost], bool]]:
    """Name, operations, and whether it recomputes, of what stands on a virtual stage."""
    of = {name: costs for name, _, costs in timeline.parts}
    layers = [costs for name, _, costs in timeline.parts if name == "layer"]
    counts = [float(count[stage]) for count in timeline.stages.resident]
    first = sum(len(kinds) for kinds in timeline.layer_kinds[:stage])
    recompute = sum(counts[: len(layers)])
    if counts[-2]:
        yield "embedding", of["embedding"], False
    for place, kind in enumerate(timeline.layer_kinds[stage]):
        yield f"layer {first + place}", layers[kind], place < recompute
    for module in range(int(counts[-3])):
        yield f"mtp {module}", of["mtp"], True
    if counts[-1]:
        yield "head", of["head"], False

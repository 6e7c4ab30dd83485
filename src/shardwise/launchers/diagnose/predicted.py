"""The components of a predicted step on one stage, as a trace shows them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.analysis.operations import Component, rerun_share, stage_components
from shardwise.arrays import Ints
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.evaluate import evaluate
from shardwise.launchers.kineto.kernels import CommAxis, KernelClass
from shardwise.ops.operation import FlashAttention, Matmul, Phase, SelectedAttention

_KINDS = {
    Matmul: KernelClass.PRODUCTS,
    FlashAttention: KernelClass.ATTENTION,
    SelectedAttention: KernelClass.ATTENTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """Disjoint times of a step on a rank of one stage [s]."""

    step_s: float
    kernels_s: Mapping[KernelClass, float]
    """Products, attention, and all other kernels with the update of the weights."""
    total_s: Mapping[CommAxis, float]
    """Communication with what compute hides."""
    exposed_s: Mapping[CommAxis, float]
    memcpy_s: float
    """Exposed transfers from and to the second memory tier."""
    bubble_s: float
    """Wait for other stages; a component of the idle time."""
    fixed_s: float
    """Fixed time of a step, and the wait for slow nodes; a component of the idle time."""
    tiers: Mapping[CommAxis, int]
    """Outermost network tier of each axis that communicates."""

    @property
    def idle_s(self) -> float:
        """What no kernel, communication or copy fills: bubble, host and fixed time."""
        busy = sum(self.kernels_s.values()) + sum(self.exposed_s.values()) + self.memcpy_s
        return max(self.step_s - busy, 0.0)

    @property
    def passes_s(self) -> float:
        """What the bubble is proportional to: kernels, and communication inside the passes."""
        inner = (CommAxis.TP, CommAxis.CP, CommAxis.EP)
        return sum(self.kernels_s.values()) + sum(self.exposed_s[axis] for axis in inner)


def predicted_step(
    model: Model, system: System, strategy: Strategy, *, stage: int | None = None
) -> PredictedStep:
    """Predict the components of a step.

    Parameters
    ----------
    stage
        Pipeline stage whose kernels count; None: the critical stage. Communication is that of the
        critical stage.
    """
    table = Table.of(model, [strategy])
    found = evaluate(model, system, table)
    kernels = dict.fromkeys((*_KINDS.values(), KernelClass.OTHER), 0.0)
    for component in stage_components(found, stage):
        for kind, seconds in _kernel_times(component, training=strategy.training).items():
            kernels[kind] += seconds
    time_s = {name: float(column[0]) for name, column in found.time_s.items()}
    kernels[KernelClass.OTHER] += time_s["optimizer"]
    axes = [axis for axis in CommAxis if axis is not CommAxis.OTHER]
    comm = {axis: found.comm_s[str(axis)] for axis in axes}
    members: Mapping[CommAxis, Ints] = {
        axis: getattr(found.step.extents, "replicas" if axis is CommAxis.DP else str(axis))
        for axis in axes
    }
    return PredictedStep(
        step_s=float(found.step_time_s[0]),
        kernels_s=kernels,
        total_s={axis: float(total[0]) for axis, (total, _) in comm.items()},
        exposed_s={axis: float(exposed[0]) for axis, (_, exposed) in comm.items()},
        memcpy_s=time_s["offload"],
        bubble_s=time_s["bubble"],
        fixed_s=time_s["other"],
        tiers={
            axis: _outermost(members[axis][:, 0].tolist())
            for axis in axes
            if float(comm[axis][0][0]) > 0
        },
    )


def _kernel_times(component: Component, *, training: bool) -> dict[KernelClass, float]:
    """Time of the kernels of a component in a step, by class [s]."""
    times: dict[KernelClass, float] = {}
    for cost in component.costs:
        share = rerun_share(cost, component.recomputed) if component.reruns else 0.0
        for timed in cost.kernels:
            kernel, once = timed.kernel, float(timed.time_s[0])
            is_forward = kernel.phase is Phase.FORWARD
            runs = component.runs if is_forward or training else 0.0
            runs += component.reruns * share if is_forward else 0.0
            kind = _KINDS.get(type(kernel), KernelClass.OTHER)
            times[kind] = times.get(kind, 0.0) + runs * once
    return times


def _outermost(members: list[int]) -> int:
    """The outermost tier at which a group has more members than inside it."""
    inside = [1, *members[:-1]]
    return max(
        (n for n, (a, b) in enumerate(zip(inside, members, strict=True)) if b > a), default=0
    )

"""Times and bytes of a list of operations: one layer, the embedding or the head, on one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, combined, gather, total
from shardwise.config.enums import RecomputePart
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, Walk, step_of, walk
from shardwise.cost.operations import CollectiveCost, Machine, OperationCost, with_host
from shardwise.cost.optimizer import TrainedWeights, state_bytes, trained_weights
from shardwise.ops.operation import Matmul, MemoryBound, Phase
from shardwise.ops.quantization import WeightSizes

COMM_AXES = ("tp", "cp", "ep")
"""Axes that exchange inside layers; exchanges of tp2 are counted with those of tp, of etp with
those of ep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAxis:
    """A time of each axis that exchanges inside layers [s]."""

    tp: Floats
    cp: Floats
    ep: Floats

    @property
    def total(self) -> Floats:
        """All axes together."""
        return self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of one rank and one micro-batch, as columns [s], and FLOPs run again."""

    forward_s: Floats
    """Kernels, exchanges not included."""
    backward_s: Floats
    weight_grad_s: Floats
    """What of `backward_s` gives gradients of weights."""
    recompute_s: Floats
    alone_forward_s: ByAxis
    """Exchanges, as if nothing hid them."""
    alone_backward_s: ByAxis
    """With those that recompute repeats."""
    exposed_forward_s: ByAxis
    exposed_backward_s: ByAxis
    offload_forward_s: Floats
    """Transfers to and from the second memory tier, alone."""
    offload_backward_s: Floats
    offload_forward_exposed_s: Floats
    offload_backward_exposed_s: Floats
    recompute_flops: Floats
    """FLOPs of the matrix products and attention that recompute runs again."""

    @property
    def offload_exposed_s(self) -> Floats:
        """Transfers to and from the second memory tier as far as they lengthen the step."""
        return self.offload_forward_exposed_s + self.offload_backward_exposed_s

    @property
    def forward_pass_s(self) -> Floats:
        """Forward with its exposed exchanges and transfers."""
        return self.forward_s + self.exposed_forward_s.total + self.offload_forward_exposed_s

    @property
    def backward_pass_s(self) -> Floats:
        """Backward with recompute, their exposed exchanges and transfers."""
        exposed = self.exposed_backward_s.total + self.offload_backward_exposed_s
        return self.backward_s + self.recompute_s + exposed

    @property
    def time_s(self) -> Floats:
        """Forward and backward."""
        return self.forward_pass_s + self.backward_pass_s


_EVERY_OTHER = RecomputePart.bits(["every_other"])
_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
_COUNTED_WITH = {"tp": "tp", "tp2": "tp", "cp": "cp", "ep": "ep", "etp": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What one rank holds, as columns: weights in numbers, the rest in bytes of a micro-batch."""

    parameters: Floats
    """Without those of routed experts."""
    expert_parameters: Floats
    quantized_parameters: Floats
    """What of `parameters` products read quantised."""
    quantized_expert_parameters: Floats
    trained: TrainedWeights
    """Those of `parameters` that have gradients."""
    expert_trained: TrainedWeights
    saved_bytes: Floats
    """Kept for backward under the row's recompute."""
    movable_bytes: Floats
    """What of it moves where activations are offloaded: all, or that of the parts named."""
    over_bytes: Floats
    """Live beyond what is kept at the fullest moment (see `cost.activation_walk`)."""
    peak: Ints
    """The operation that runs then: its position, plus their number if it runs forward."""
    gradient_buffer_bytes: Floats
    """One buffer for each distinct shape of weights, in the type of the weights."""

    @property
    def all_parameters(self) -> Floats:
        """With those of routed experts."""
        return self.parameters + self.expert_parameters

    @property
    def all_quantized_parameters(self) -> Floats:
        """With those of routed experts."""
        return self.quantized_parameters + self.quantized_expert_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Times and bytes of a run of operations."""

    times: LayerTimes
    bytes: LayerBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchanged:
    """Exchanges of one direction [s]."""

    alone: ByAxis
    exposed: ByAxis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Operations that the same parts of recompute run again."""

    forward_s: Floats
    exchanged: _Exchanged
    flops: Floats
    in_part: "_Segment | None" = None
    """What of them every_other runs again: no exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What a run of operations adds up to, whatever is recomputed."""

    forward_s: Floats
    """Kernels, exchanges not included, as in backward."""
    backward_s: Floats
    weight_grad_s: Floats
    ahead: _Exchanged
    """Exchanges of the forward pass."""
    back: _Exchanged
    parameters: Floats
    expert_parameters: Floats
    quantized_parameters: Floats
    quantized_expert_parameters: Floats
    trained: TrainedWeights
    expert_trained: TrainedWeights
    steps: tuple[Step, ...]
    """What each operation holds."""
    gradient_buffer_bytes: Floats
    forward_flops: Floats
    """Of matrix products and attention."""
    segments: tuple[_Segment, ...]
    reruns: tuple[int, ...]
    """For each segment, the bits of the parts that run it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedRows:
    """What each row runs again, in training."""

    full: Bools
    """All of it."""
    parts: Ints
    """Bits of `RecomputePart`; 0 for none."""
    checkpoint_bytes: Floats
    """What is kept where all is run again [byte]."""


def layer_work(costs: Sequence[OperationCost], machine: Machine) -> LayerWork:
    """Add up operations.

    Time of a direction: kernels joined with the host's launches and waits (`with_host`); gradients
    of weights take their kernels' share of the backward one.
    """
    zero = np.zeros_like(machine.host_launch_s)

    def busy(phases: Sequence[Phase]) -> Floats:
        return total([c.kernel_s(phase) for c in costs for phase in phases], zero)

    def kernels(phases: Sequence[Phase]) -> Floats:
        host_s = total([machine.launching_s(c, phase) for c in costs for phase in phases], zero)
        results = [c.operation.host_waits for c in costs]
        waits = total([result for result in results if result is not None], zero)
        return with_host(busy(phases), host_s, waits * machine.expert_wait_s)

    def held(*, expert: bool) -> Floats:
        own = [c.operation.parameters for c in costs if c.operation.expert is expert]
        return total(own, zero)

    def quantized(*, expert: bool) -> Floats:
        own = [c.operation.read_quantized for c in costs if c.operation.expert is expert]
        return total(own, zero)

    def trained(*, expert: bool) -> TrainedWeights:
        return trained_weights([c.operation for c in costs if c.operation.expert is expert], zero)

    exchanges = [e for c in costs for e in c.exchanges]
    backward, back_busy = kernels(_BACKWARD), busy(_BACKWARD)
    weight_share = busy(_BACKWARD[1:]) / np.where(back_busy > 0, back_busy, 1.0)
    reruns = tuple(sorted({RecomputePart.bits(c.operation.reruns_with) for c in costs} - {0}))
    return LayerWork(
        forward_s=kernels((Phase.FORWARD,)),
        backward_s=backward,
        weight_grad_s=backward * weight_share,
        ahead=_exchanged([e for e in exchanges if e.collective.phase is Phase.FORWARD], zero),
        back=_exchanged([e for e in exchanges if e.collective.phase is not Phase.FORWARD], zero),
        parameters=held(expert=False),
        expert_parameters=held(expert=True),
        quantized_parameters=quantized(expert=False),
        quantized_expert_parameters=quantized(expert=True),
        trained=trained(expert=False),
        expert_trained=trained(expert=True),
        steps=tuple(step_of(c.operation) for c in costs),
        gradient_buffer_bytes=_gradient_buffers(costs, zero),
        forward_flops=total([_forward_flops(c) for c in costs], zero),
        segments=tuple(_segment(costs, parts, zero) for parts in reruns),
        reruns=reruns,
    )


def _exchanged(exchanges: Sequence[CollectiveCost], zero: Floats) -> _Exchanged:
    def by_axis(name: str) -> ByAxis:
        sums: Mapping[str, Floats] = {
            axis: total(
                [getattr(e, name) for e in exchanges if _COUNTED_WITH[e.collective.axis] == axis],
                zero,
            )
            for axis in COMM_AXES
        }
        return ByAxis(**sums)

    return _Exchanged(alone=by_axis("time_s"), exposed=by_axis("exposed_s"))


def _segment(costs: Sequence[OperationCost], parts: int, zero: Floats) -> _Segment:
    """Add up the operations that exactly these parts of recompute run again."""
    group = [c for c in costs if RecomputePart.bits(c.operation.reruns_with) == parts]
    ahead = [e for c in group for e in c.exchanges if e.collective.phase is Phase.FORWARD]
    in_part = None
    if parts & _EVERY_OTHER:
        shares = [(c.operation.rerun_share, c) for c in group]
        in_part = _Segment(
            forward_s=total([share * c.kernel_s(Phase.FORWARD) for share, c in shares], zero),
            exchanged=_exchanged([], zero),
            flops=total([share * _forward_flops(c) for share, c in shares], zero),
        )
    return _Segment(
        in_part=in_part,
        forward_s=total([c.kernel_s(Phase.FORWARD) for c in group], zero),
        exchanged=_exchanged(ahead, zero),
        flops=total([_forward_flops(c) for c in group], zero),
    )


def layer_cost(
    work: LayerWork,
    *,
    training: Bools,
    recompute: RecomputedRows | None = None,
    movable: Ints | None = None,
) -> LayerCost:
    """What a run of operations costs under each row's recompute.

    Where nothing is trained, only forward counts. With full recompute forward runs again,
    exchanges included, and only a checkpoint is kept; else the operations of the parts named run
    again, and what these rebuild is not kept.

    Parameters
    ----------
    training
        Rows that go backward too.
    recompute
        None: nothing runs again.
    movable
        Bits of `OffloadPart` that may be offloaded, 0 for all; None: all in all rows.
    """
    zero = np.zeros_like(work.parameters)
    times = LayerTimes(
        forward_s=work.forward_s,
        backward_s=np.where(training, work.backward_s, 0.0),
        weight_grad_s=np.where(training, work.weight_grad_s, 0.0),
        recompute_s=zero,
        alone_forward_s=work.ahead.alone,
        alone_backward_s=_where(training, work.back.alone),
        exposed_forward_s=work.ahead.exposed,
        exposed_backward_s=_where(training, work.back.exposed),
        offload_forward_s=zero,
        offload_backward_s=zero,
        offload_forward_exposed_s=zero,
        offload_backward_exposed_s=zero,
        recompute_flops=zero,
    )
    again = np.zeros(training.shape, dtype=np.int64)
    checkpoint = zero
    if recompute is not None:
        again = np.where(recompute.full, FULL, recompute.parts)
        checkpoint = recompute.checkpoint_bytes
        times = _with_recompute(times, work, np.where(training, again, 0))
    walked = _walked(work, np.where(training, again, FORWARD_ONLY), checkpoint, movable)
    held = LayerBytes(
        parameters=work.parameters,
        expert_parameters=work.expert_parameters,
        quantized_parameters=work.quantized_parameters,
        quantized_expert_parameters=work.quantized_expert_parameters,
        trained=work.trained,
        expert_trained=work.expert_trained,
        saved_bytes=walked.kept,
        movable_bytes=walked.movable,
        over_bytes=walked.over,
        peak=walked.peak,
        gradient_buffer_bytes=work.gradient_buffer_bytes,
    )
    return LayerCost(times=times, bytes=held)


def _with_recompute(times: LayerTimes, work: LayerWork, again: Ints) -> LayerTimes:
    """Add what runs again: `FULL`, or the bits of parts."""
    full = again == FULL
    runs = [
        (full, _Segment(forward_s=work.forward_s, exchanged=work.ahead, flops=work.forward_flops))
    ]
    for parts, segment in zip(work.reruns, work.segments, strict=True):
        whole = ~full & (again & parts & ~_EVERY_OTHER > 0)
        runs.append((whole, segment))
        if segment.in_part is not None:
            runs.append((~full & ~whole & (again & parts > 0), segment.in_part))
    for rows, segment in runs:
        if np.any(rows):
            repeated = segment.exchanged
            times = replace(
                times,
                recompute_s=times.recompute_s + np.where(rows, segment.forward_s, 0.0),
                recompute_flops=times.recompute_flops + np.where(rows, segment.flops, 0.0),
                alone_backward_s=combined(
                    np.add, times.alone_backward_s, _where(rows, repeated.alone)
                ),
                exposed_backward_s=combined(
                    np.add, times.exposed_backward_s, _where(rows, repeated.exposed)
                ),
            )
    return times


def _walked(work: LayerWork, again: Ints, checkpoint: Floats, movable: Ints | None) -> Walk:
    """Walk through the operations, with each kind of recompute that occurs on its rows."""
    kinds = np.unique(again).tolist()
    if len(kinds) == 1:
        return walk(work.steps, kinds[0], checkpoint, movable)
    columns = [np.zeros_like(work.parameters) for _ in range(3)]
    kept, over, moves = columns
    peak = np.zeros(kept.shape, dtype=np.int64)
    whole = Walk(kept=kept, movable=moves, over=over, peak=peak)
    for kind in kinds:
        rows = np.flatnonzero(again == kind)
        moved = None if movable is None else movable[rows]
        part = walk(gather(work.steps, rows), kind, checkpoint[rows], moved)
        for column in fields(Walk):
            getattr(whole, column.name)[rows] = getattr(part, column.name)
    return whole


def _where(rows: Bools, times: ByAxis) -> ByAxis:
    return combined(lambda time: np.where(rows, time, 0.0), times)


def _gradient_buffers(costs: Sequence[OperationCost], zero: Floats) -> Floats:
    """Bytes of one buffer for each distinct shape among the products that give weight gradients.

    In the type that the forward product of the same weights gives.
    """
    products: list[tuple[Matmul, Floats]] = []
    for cost in costs:
        own = [k.kernel for k in cost.kernels if isinstance(k.kernel, Matmul)]
        products += [(k, own[0].output_bytes) for k in own if k.phase is Phase.WEIGHT_GRAD]
    buffers = []
    for index, (product, size) in enumerate(products):
        seen = np.zeros(zero.shape, dtype=np.bool_)
        for earlier, _ in products[:index]:
            seen |= (earlier.batch > 0) & (earlier.m == product.m) & (earlier.n == product.n)
        held = product.own_rows * product.n * size
        buffers.append(np.where(seen | (product.batch == 0), 0.0, held))
    return total(buffers, zero)


def _forward_flops(cost: OperationCost) -> Floats:
    """FLOPs of the forward matrix products and attention."""
    flops = [
        k.kernel.flops
        for k in cost.kernels
        if k.kernel.phase is Phase.FORWARD and not isinstance(k.kernel, MemoryBound)
    ]
    return total(flops, cost.operation.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Of the weights that a rank of a stage has, before replicas split them, as columns [byte]."""

    stored: Floats
    """As they are held, and split where weights are."""
    copies: Floats
    """Quantised, beside them."""
    frozen: Floats
    """What of the weights is not trained, in the type of the row."""
    gradients: Floats
    state: Floats
    """Of the optimizer, with its fp32 copy of weights in a smaller type."""


def weight_bytes(
    part: LayerWork | None,
    *,
    expert: bool,
    sizes: WeightSizes,
    gradient_bytes: Floats,
    optimizer: Ints,
    training: Bools,
) -> WeightBytes | None:
    """What the weights of a part take, without those of routed experts, or those.

    None without the part, or where it has no experts. Forward only there are neither gradients nor
    state.

    Parameters
    ----------
    gradient_bytes
        Of one gradient.
    optimizer
        Codes of `Optimizer`.
    """
    if part is None or (expert and not np.any(part.expert_parameters)):
        return None
    held, quantized, trained = (
        (part.expert_parameters, part.quantized_expert_parameters, part.expert_trained)
        if expert
        else (part.parameters, part.quantized_parameters, part.trained)
    )
    state = state_bytes(optimizer, sizes.plain, trained)
    return WeightBytes(
        stored=sizes.total(held, quantized, sizes.stored),
        copies=quantized * sizes.copies,
        frozen=(held - trained.weights) * sizes.plain,
        gradients=np.where(training, trained.weights * gradient_bytes, 0.0),
        state=np.where(training, state, 0.0),
    )

"""Times and bytes of a list of operations: one layer, the embedding or the head, on one rank."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, distinct_values, gather, total
from shardwise.config.enums import RecomputePart
from shardwise.config.strategy_fields import COMM_AXES, COUNTED_WITH
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, Walk, step_of, walk
from shardwise.cost.operations import CollectiveCost, Launched, Machine, OperationCost
from shardwise.cost.optimizer import TrainedWeights, state_bytes, trained_weights
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase
from shardwise.ops.quantization import WeightSizes
from shardwise.records import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAxis:
    """A time of each axis that communicates inside layers [s]."""

    tp: Floats
    cp: Floats
    ep: Floats

    @property
    def total(self) -> Floats:
        """All axes together."""
        return self.tp + self.cp + self.ep


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A time of each axis [s]; None: no operation communicates on it."""

    tp: Floats | None
    cp: Floats | None
    ep: Floats | None

    def total(self, zero: Floats, expert_share: Floats | float = 1.0) -> Floats:
        """All axes together; of ep, a share."""
        expert = None if self.ep is None else expert_share * self.ep
        return total([one for one in (self.tp, self.cp, expert) if one is not None], zero)

    def added_to(self, times: ByAxis, rows: Bools) -> ByAxis:
        """Add them to other times in some rows."""

        def added(axis: str) -> Floats:
            time: Floats = getattr(times, axis)
            own: Floats | None = getattr(self, axis)
            return time if own is None else time + np.where(rows, own, 0.0)

        return ByAxis(**{axis: added(axis) for axis in COMM_AXES})

    def where(self, rows: Bools) -> ByAxis:
        """These in some rows, zeros in the others."""

        def selected(axis: str) -> Floats:
            own: Floats | None = getattr(self, axis)
            return np.zeros(rows.shape) if own is None else np.where(rows, own, 0.0)

        return ByAxis(**{axis: selected(axis) for axis in COMM_AXES})


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Communication time of one direction, forward or backward [s]."""

    alone: Sums
    exposed: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCommunication:
    """Communication of a list of operations, independent of recompute."""

    forward: Communication
    backward: Communication
    segments: tuple[Communication, ...]
    """Forward, of each segment of `LayerWork`."""

    def with_zeros(self, zero: Floats) -> "LayerCommunication":
        """The same with zeros for axes that no operation communicates on."""

        def sums(one: Sums) -> Sums:
            times = {axis: getattr(one, axis) for axis in COMM_AXES}
            return Sums(**{axis: zero if s is None else s for axis, s in times.items()})

        def filled(one: Communication) -> Communication:
            return Communication(alone=sums(one.alone), exposed=sums(one.exposed))

        return LayerCommunication(
            forward=filled(self.forward),
            backward=filled(self.backward),
            segments=tuple(map(filled, self.segments)),
        )


def layer_communication(costs: Sequence[OperationCost]) -> LayerCommunication:
    """Add up the times of the collectives of operations.

    Parameters
    ----------
    costs
        Costs of the operations, in forward order; times of collectives of shape (n,).
    """
    collectives = [timed for c in costs for timed in c.collectives]
    return LayerCommunication(
        forward=_communication(_of_forward(collectives)),
        backward=_communication(
            [c for c in collectives if c.collective.phase is not Phase.FORWARD]
        ),
        segments=tuple(
            _communication(_of_forward([one for c in group for one in c.collectives]))
            for group in reruns_of(costs).values()
        ),
    )


def reruns_of(costs: Sequence[OperationCost]) -> dict[int, list[OperationCost]]:
    """Operations that are run again, by the bits of exactly the recompute parts that do so."""
    found: dict[int, list[OperationCost]] = {}
    for cost in costs:
        found.setdefault(RecomputePart.bits(cost.operation.reruns_with), []).append(cost)
    return {parts: found[parts] for parts in sorted(found) if parts}


def _of_forward(collectives: Sequence[CollectiveCost]) -> list[CollectiveCost]:
    return [c for c in collectives if c.collective.phase is Phase.FORWARD]


def _communication(collectives: Sequence[CollectiveCost]) -> Communication:
    """Add up times by axis."""

    def by_axis(name: str) -> Sums:
        times: dict[str, list[Floats]] = {axis: [] for axis in COMM_AXES}
        for cost in collectives:
            times[COUNTED_WITH[cost.collective.axis]].append(getattr(cost, name))
        return Sums(
            **{axis: total(some, some[0]) if some else None for axis, some in times.items()}
        )

    return Communication(alone=by_axis("time_s"), exposed=by_axis("exposed_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of one rank and one micro-batch, as columns [s], and FLOPs run again."""

    forward_s: Floats
    """Kernels, without communication."""
    backward_s: Floats
    weight_grad_s: Floats
    """Part of `backward_s` that computes gradients of weights."""
    recompute_s: Floats
    alone_forward_s: ByAxis
    """Communication alone, as if nothing hid it."""
    alone_backward_s: ByAxis
    """Including communication that recompute repeats."""
    exposed_forward_s: ByAxis
    exposed_backward_s: ByAxis
    offload_forward_s: Floats
    """Transfers to and from the second memory tier, alone."""
    offload_backward_s: Floats
    offload_forward_exposed_s: Floats
    offload_backward_exposed_s: Floats
    recompute_flops: Floats
    """FLOPs of the matrix products and attention that recompute runs again."""
    forward_host_s: Floats
    """Time of the host to launch forward, most of which kernels hide; 0 where it is in them."""
    backward_host_s: Floats

    @property
    def offload_exposed_s(self) -> Floats:
        """Exposed time of transfers to and from the second memory tier [s]."""
        return self.offload_forward_exposed_s + self.offload_backward_exposed_s

    @property
    def forward_pass_s(self) -> Floats:
        """Forward with its exposed communication and transfers [s]."""
        return self.forward_s + self.exposed_forward_s.total + self.offload_forward_exposed_s

    @property
    def backward_pass_s(self) -> Floats:
        """Backward with recompute, with their exposed communication and transfers [s]."""
        exposed = self.exposed_backward_s.total + self.offload_backward_exposed_s
        return self.backward_s + self.recompute_s + exposed

    @property
    def time_s(self) -> Floats:
        """Forward and backward [s]."""
        return self.forward_pass_s + self.backward_pass_s


_EVERY_OTHER = RecomputePart.bits(["every_other"])
_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Weights of one rank [elements], and the memory of a micro-batch [byte], as columns."""

    parameters: Floats
    """Without those of routed experts [elements]."""
    expert_parameters: Floats
    quantized_parameters: Floats
    """Those of `parameters` that products read quantized [elements]."""
    quantized_expert_parameters: Floats
    trained: TrainedWeights
    """Those of `parameters` that have gradients."""
    expert_trained: TrainedWeights
    persistent: Floats
    """Those of `parameters` that ZeRO-3 leaves gathered [elements]."""
    saved_bytes: Floats
    """Activations saved for backward under the row's recompute [byte]."""
    movable_bytes: Floats
    """The share of them that activation offload moves: all, or those of some parts [byte]."""
    over_bytes: Floats
    """Memory in addition to saved bytes at the peak (see `cost.activation_walk`) [byte]."""
    trained_over_bytes: Floats
    """The same at the peak of what is left of backward once gradients of weights are made [byte]:
    a loss runs backward before the head has any; -inf without such gradients."""
    graph_bytes: Floats
    """Saved bytes of what CUDA graphs with memory of their own capture [byte]."""
    graph_working_bytes: Floats
    """Largest transient bytes of one of these graphs [byte]."""
    peak: Ints
    """Position of the operation at the peak; in a forward pass, plus the number of operations."""
    gradient_buffer_bytes: Floats
    """One buffer for each distinct shape of weights, in the type of the weights [byte]."""
    weighted: Floats
    """Number of operations with weights, as `_weighted` counts them."""

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
    """Times and bytes of a list of operations."""

    times: LayerTimes
    bytes: LayerBytes


_NONE: Any = np.nan
_NO_AXIS = ByAxis(tp=_NONE, cp=_NONE, ep=_NONE)
NO_TIMES = LayerTimes(
    forward_s=_NONE,
    backward_s=_NONE,
    weight_grad_s=_NONE,
    recompute_s=_NONE,
    alone_forward_s=_NO_AXIS,
    alone_backward_s=_NO_AXIS,
    exposed_forward_s=_NO_AXIS,
    exposed_backward_s=_NO_AXIS,
    offload_forward_s=_NONE,
    offload_backward_s=_NONE,
    offload_forward_exposed_s=_NONE,
    offload_backward_exposed_s=_NONE,
    recompute_flops=_NONE,
    forward_host_s=_NONE,
    backward_host_s=_NONE,
)
"""Where only bytes are computed: not a number, in any row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Operations that the same recompute parts run again."""

    forward: Launched
    flops: Floats
    in_part: "_Segment | None" = None
    """The share of them that every_other runs again, without communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Totals of a list of operations, independent of recompute."""

    forward: Launched
    backward: Launched
    weight_grad_share: Floats
    """Share of the backward kernels' time that computes gradients of weights."""
    dense_forward_s: Floats
    """Kernels of the forward pass outside of routed experts [s]."""
    dense_backward_s: Floats
    nodes_s: Floats
    """Time of the host for the nodes that one direction has in an overlapped schedule [s]."""
    forward_flops: Floats
    """FLOPs of matrix products and attention in the forward pass."""
    segments: tuple[_Segment, ...]
    reruns: tuple[int, ...]
    """For each segment, bits of the recompute parts that run it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStorage:
    """Weights and activations of a list of operations, independent of recompute."""

    parameters: Floats
    expert_parameters: Floats
    quantized_parameters: Floats
    quantized_expert_parameters: Floats
    trained: TrainedWeights
    expert_trained: TrainedWeights
    small: tuple[tuple[Floats, Floats], ...]
    """Weights of norms and adapters: those of a tensor, and of all tensors of an operation."""
    steps: tuple[Step, ...]
    """Memory of each operation."""
    gradient_buffer_bytes: Floats
    weighted: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedRows:
    """Recompute of each row, in training."""

    full: Bools
    """Rows that run the full layer again."""
    parts: Ints
    """Bits of `RecomputePart`; 0 for none."""
    checkpoint_bytes: Floats
    """Checkpoint that full recompute saves [byte]."""

    @property
    def again(self) -> Ints:
        """`FULL`, or the bits of recompute parts."""
        return np.where(self.full, FULL, self.parts)


def layer_work(costs: Sequence[OperationCost], machine: Machine) -> LayerWork:
    """Add up the times of operations.

    Parameters
    ----------
    machine
        Rates of the n rows.
    """
    zero = np.zeros_like(machine.host_launch_s)

    def busy(phases: Sequence[Phase]) -> Floats:
        return total([c.kernel_s(phase) for c in costs for phase in phases], zero)

    backward_s = busy(_BACKWARD)
    reruns = reruns_of(costs)
    dense = [c for c in costs if not c.operation.routed]
    return LayerWork(
        forward=_launched(costs, machine, zero),
        backward=machine.launched(
            backward_s,
            total([c.launching_s(phase) for c in costs for phase in _BACKWARD], zero),
        ),
        weight_grad_share=busy(_BACKWARD[1:]) / np.where(backward_s > 0, backward_s, 1.0),
        dense_forward_s=total([c.kernel_s(Phase.FORWARD) for c in dense], zero),
        dense_backward_s=total([c.kernel_s(phase) for c in dense for phase in _BACKWARD], zero),
        nodes_s=machine.nodes_s,
        forward_flops=total([_forward_flops(c) for c in costs], zero),
        segments=tuple(_segment(group, parts, machine, zero) for parts, group in reruns.items()),
        reruns=tuple(reruns),
    )


def _launched(costs: Sequence[OperationCost], machine: Machine, zero: Floats) -> Launched:
    """Add up a forward pass of operations."""
    results = [c.operation.host_waits for c in costs]
    waits = total([result for result in results if result is not None], zero)
    return machine.launched(
        total([c.kernel_s(Phase.FORWARD) for c in costs], zero),
        total([c.launching_s(Phase.FORWARD) for c in costs], zero),
        waits * machine.expert_wait_s,
    )


def layer_storage(operations: Sequence[Operation]) -> LayerStorage:
    """Add up the weights of operations, and list the memory of each.

    Parameters
    ----------
    operations
        In forward order; columns of shape (n,).
    """
    zero = np.zeros(operations[0].parameters.shape)
    of_experts = [one for one in operations if one.expert]
    others = [one for one in operations if not one.expert]

    def parameters(some: Sequence[Operation]) -> Floats:
        return total([one.parameters for one in some], zero)

    def quantized(some: Sequence[Operation]) -> Floats:
        return total([one.read_quantized for one in some], zero)

    return LayerStorage(
        parameters=parameters(others),
        expert_parameters=parameters(of_experts),
        quantized_parameters=quantized(others),
        quantized_expert_parameters=quantized(of_experts),
        trained=trained_weights(others, zero),
        expert_trained=trained_weights(of_experts, zero),
        small=tuple(_small_tensors(others)),
        steps=tuple(map(step_of, operations)),
        gradient_buffer_bytes=_gradient_buffers(operations, zero),
        weighted=_weighted(operations, zero),
    )


def _weighted(operations: Sequence[Operation], zero: Floats) -> Floats:
    """Number of operations with weights; of experts that run one after another, of each."""
    return total([np.where(one.parameters > 0, one.host_calls, zero) for one in operations], zero)


def _small_tensors(operations: Iterable[Operation]) -> Iterator[tuple[Floats, Floats]]:
    """Weights of a tensor and of all tensors of norms and adapters; norms of one size are one."""
    norms: list[tuple[Floats, Floats]] = []
    for one in operations:
        if "lora_" in one.name:
            yield one.parameters / one.tensors, one.parameters
        elif one.name.endswith("norm") and np.any(one.parameters):
            same = next(
                (i for i, n in enumerate(norms) if np.array_equal(n[0], one.parameters)), None
            )
            if same is None:
                norms.append((one.parameters, one.parameters))
            else:
                norms[same] = norms[same][0], norms[same][1] + one.parameters
    yield from norms


def _segment(
    group: Sequence[OperationCost], parts: int, machine: Machine, zero: Floats
) -> _Segment:
    """Add up the operations that exactly these recompute parts run again."""
    in_part = None
    if parts & _EVERY_OTHER:
        shares = [(c.operation.rerun_share, c) for c in group]
        launching_s = [share * c.launching_s(Phase.FORWARD) for share, c in shares]
        in_part = _Segment(
            forward=machine.launched(
                total([share * c.kernel_s(Phase.FORWARD) for share, c in shares], zero),
                total(launching_s, zero),
            ),
            flops=total([share * _forward_flops(c) for share, c in shares], zero),
        )
    return _Segment(
        in_part=in_part,
        forward=_launched(group, machine, zero),
        flops=total([_forward_flops(c) for c in group], zero),
    )


def times_of_layer(
    work: LayerWork,
    communication: LayerCommunication,
    *,
    training: Bools,
    recompute: RecomputedRows | None = None,
) -> LayerTimes:
    """Times of a list of operations under each row's recompute.

    Without training only the forward pass counts. Full recompute runs forward again, communication
    included; selective recompute runs the operations of its parts again (arXiv 2205.05198,
    section 5).

    Parameters
    ----------
    work
        Totals of the operations (`layer_work`); columns of shape (n,).
    communication
        Totals of their collectives (`layer_communication`); columns of shape (n,).
    recompute
        Recompute of each row; None: none.
    """
    zero, every = np.zeros_like(work.forward.kernels_s), np.ones(training.shape, dtype=np.bool_)
    forward_s, backward_s = passes_with_host(work, communication, training=training)
    times = LayerTimes(
        forward_s=forward_s,
        backward_s=backward_s,
        weight_grad_s=backward_s * work.weight_grad_share,
        recompute_s=zero,
        alone_forward_s=communication.forward.alone.where(every),
        alone_backward_s=communication.backward.alone.where(training),
        exposed_forward_s=communication.forward.exposed.where(every),
        exposed_backward_s=communication.backward.exposed.where(training),
        offload_forward_s=zero,
        offload_backward_s=zero,
        offload_forward_exposed_s=zero,
        offload_backward_exposed_s=zero,
        recompute_flops=zero,
        forward_host_s=work.forward.host_s,
        backward_host_s=np.where(training, work.backward.host_s, 0.0),
    )
    if recompute is None:
        return times
    return _with_recompute(times, work, communication, np.where(training, recompute.again, 0))


def passes_with_host(
    work: LayerWork,
    communication: LayerCommunication,
    *,
    training: Bools,
    expert_shares: Sequence[Floats | float] = (1.0, 1.0),
    nodes_s: Floats | float = 0.0,
) -> tuple[Floats, Floats]:
    """Forward and backward without communication, during which the host runs ahead [s].

    Parameters
    ----------
    expert_shares
        Shares of the exposed communication of experts that stay exposed, each way; shape (n,).
    nodes_s
        Time of the host in addition to that of the operations, each way [s]; shape (n,).
    """
    zero = np.zeros_like(work.forward.kernels_s)
    forward_s, backward_s = (
        replace(one, host_s=one.host_s + nodes_s).compute_s(sent.exposed.total(zero, share))
        for one, sent, share in zip(
            (work.forward, work.backward),
            (communication.forward, communication.backward),
            expert_shares,
            strict=True,
        )
    )
    return forward_s, np.where(training, backward_s, 0.0)


def bytes_of_layer(
    storage: LayerStorage,
    *,
    training: Bools,
    recompute: RecomputedRows | None = None,
    movable: Ints | None = None,
    captured: Ints | None = None,
    persistence: Floats | None = None,
) -> LayerBytes:
    """Weights and memory of a list of operations under each row's recompute.

    Full recompute saves only a checkpoint; selective recompute does not save what it rebuilds
    (arXiv 2205.05198, section 5).

    Parameters
    ----------
    storage
        Totals of the operations (`layer_storage`); columns of shape (n,).
    recompute
        Recompute of each row; None: none.
    movable
        Bits of `OffloadPart` that may be offloaded, 0 for all; shape (n,). None: all in all rows.
    captured
        Bits of `GraphScope` that CUDA graphs capture; shape (n,). None: nothing in all rows.
    persistence
        Largest tensors that ZeRO-3 leaves gathered [elements]; shape (n,). None: none.
    """
    again = np.zeros(training.shape, dtype=np.int64) if recompute is None else recompute.again
    checkpoint = np.zeros(training.shape) if recompute is None else recompute.checkpoint_bytes
    kinds = np.where(training, again, FORWARD_ONLY)
    walked = _walked(storage, kinds, checkpoint, movable, captured)
    persistent = np.zeros(training.shape)
    if persistence is not None:
        for tensor, weights in storage.small:
            persistent = persistent + np.where(tensor <= persistence, weights, 0.0)
    return LayerBytes(
        persistent=persistent,
        parameters=storage.parameters,
        expert_parameters=storage.expert_parameters,
        quantized_parameters=storage.quantized_parameters,
        quantized_expert_parameters=storage.quantized_expert_parameters,
        trained=storage.trained,
        expert_trained=storage.expert_trained,
        saved_bytes=walked.saved,
        movable_bytes=walked.movable,
        over_bytes=walked.over,
        trained_over_bytes=walked.trained_over,
        graph_bytes=walked.captured,
        graph_working_bytes=walked.working,
        peak=walked.peak,
        gradient_buffer_bytes=storage.gradient_buffer_bytes,
        weighted=storage.weighted,
    )


def _with_recompute(
    times: LayerTimes, work: LayerWork, communication: LayerCommunication, again: Ints
) -> LayerTimes:
    """Add the time of recompute: `FULL`, or the bits of recompute parts."""
    full = again == FULL
    every = _Segment(forward=work.forward, flops=work.forward_flops)
    runs: list[tuple[Bools, _Segment, Communication | None]]
    runs = [(full, every, communication.forward)]
    for parts, segment, repeated in zip(
        work.reruns, work.segments, communication.segments, strict=True
    ):
        selected = ~full & (again & parts & ~_EVERY_OTHER > 0)
        runs.append((selected, segment, repeated))
        if segment.in_part is not None:
            runs.append((~full & ~selected & (again & parts > 0), segment.in_part, None))
    kernels_s = host_s = waits_s = times.recompute_s
    for rows, segment, again_sent in runs:
        if not np.any(rows):
            continue
        one = segment.forward
        kernels_s = kernels_s + np.where(rows, one.kernels_s, 0.0)
        host_s = host_s + np.where(rows, one.host_s, 0.0)
        waits_s = waits_s + np.where(rows, one.waits_s, 0.0)
        times = replace(
            times, recompute_flops=times.recompute_flops + np.where(rows, segment.flops, 0.0)
        )
        if again_sent is not None:
            times = replace(
                times,
                alone_backward_s=again_sent.alone.added_to(times.alone_backward_s, rows),
                exposed_backward_s=again_sent.exposed.added_to(times.exposed_backward_s, rows),
            )
    launched = Launched(kernels_s=kernels_s, host_s=host_s, waits_s=waits_s)
    return replace(times, recompute_s=launched.compute_s(0.0))


def _walked(
    storage: LayerStorage,
    again: Ints,
    checkpoint: Floats,
    movable: Ints | None,
    captured: Ints | None,
) -> Walk:
    """Walk through the operations, once for each kind of recompute in the rows."""
    kinds = distinct_values(again)
    if len(kinds) == 1:
        return walk(storage.steps, kinds[0], checkpoint, movable, captured)
    floats = [column.name for column in fields(Walk) if column.name != "peak"]
    columns = {name: np.zeros_like(storage.parameters) for name in floats}
    joined = Walk(**columns, peak=np.zeros(again.shape, dtype=np.int64))
    for kind in kinds:
        rows = np.flatnonzero(again == kind)
        moved, inside = (None if bits is None else bits[rows] for bits in (movable, captured))
        part = walk(gather(storage.steps, rows), kind, checkpoint[rows], moved, inside)
        for column in fields(Walk):
            getattr(joined, column.name)[rows] = getattr(part, column.name)
    return joined


def _gradient_buffers(operations: Sequence[Operation], zero: Floats) -> Floats:
    """Bytes of one buffer for each distinct shape among the products that give weight gradients.

    Each is in the type of the forward product's result.
    """
    products: list[tuple[Matmul, Floats]] = []
    for operation in operations:
        own = [kernel for kernel in operation.kernels if isinstance(kernel, Matmul)]
        products += [(k, own[0].output_bytes) for k in own if k.phase is Phase.WEIGHT_GRAD]
    buffers = []
    for index, (product, size) in enumerate(products):
        seen = np.zeros(zero.shape, dtype=np.bool_)
        for earlier, _ in products[:index]:
            seen |= (earlier.batch > 0) & (earlier.m == product.m) & (earlier.n == product.n)
        buffer = product.own_rows * product.n * size
        buffers.append(np.where(seen | (product.batch == 0), 0.0, buffer))
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
    """Memory of the weights of a stage on one rank, before sharding among replicas [byte]."""

    stored: Floats
    """Weights as they are stored, which ZeRO-3 shards."""
    copies: Floats
    """Quantized copies stored in addition."""
    frozen: Floats
    """Weights that are not trained, in the type of the row or in that of frozen ones."""
    gradients: Floats
    state: Floats
    """Optimizer state, with the fp32 copy of weights in a smaller type."""
    master: Floats
    """That copy alone."""


def weight_bytes(
    part: LayerStorage | None,
    *,
    expert: bool,
    sizes: WeightSizes,
    gradient_bytes: Floats,
    optimizer: Ints,
    training: Bools,
) -> WeightBytes | None:
    """Memory of the weights of a component: of its routed experts, or of all others.

    None without the component, or where it has no experts. Without training there are neither
    gradients nor state.

    Parameters
    ----------
    part
        Totals of the component's operations (`layer_storage`).
    expert
        Whether to count the weights of routed experts, or the others.
    sizes
        Bytes per weight [byte]; columns of shape (n,).
    optimizer
        Codes of `Optimizer`; shape (n,).
    """
    if part is None or (expert and not np.any(part.expert_parameters)):
        return None
    weights, quantized, trained = (
        (part.expert_parameters, part.quantized_expert_parameters, part.expert_trained)
        if expert
        else (part.parameters, part.quantized_parameters, part.trained)
    )
    state = state_bytes(optimizer, sizes, trained)
    return WeightBytes(
        stored=sizes.total(weights, quantized, sizes.stored),
        copies=quantized * sizes.copies,
        frozen=sizes.total(weights - trained.weights, quantized, sizes.frozen),
        gradients=np.where(training, trained.weights * gradient_bytes, 0.0),
        state=np.where(training, state, 0.0),
        master=np.where(training, sizes.master * trained.weights, 0.0),
    )

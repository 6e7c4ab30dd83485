"""`graph_of`: the compute graph of one strategy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Unpack

from shardwise.analysis.graph.edges import DrawnOperation, Tensors, base_name, tensor_edges
from shardwise.analysis.graph.records import (
    INPUT,
    OUTPUT,
    ComponentGraph,
    ComputeGraph,
    GraphCollective,
    GraphEdge,
    GraphNode,
    PhaseWork,
    StageNode,
    StepTotals,
)
from shardwise.analysis.layer_totals import update_flops
from shardwise.analysis.operations import (
    FULL_LAYER,
    Component,
    components_of,
    repeats_collectives,
    rerun_share,
    saved_activation_bytes,
)
from shardwise.config.enums import Schedule
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Layer, Model, ModelLike
from shardwise.config.strategy_input import StrategyLike, strategy_of
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.ops.layer import rank_work
from shardwise.ops.operation import PRODUCTS, CollectiveKind, Matmul, Phase
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.pipeline_layout import layers_on_ranks
from shardwise.parallel.placement import Extents

RECOMPUTE = "recompute"
_CORE = "attention.core"
_NOTHING = PhaseWork(flops=0.0, matrix_flops=0.0, bytes=0.0, time_s=0.0)
_BRING = (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST, CollectiveKind.P2P)
_ADD_UP = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE)
_BOTH_WAYS = ("zb-v", "dualpipe")


def graph_of(
    model: ModelLike,
    system: SystemLike,
    strategy: StrategyLike | None = None,
    **fields: Unpack[StrategyKeywords],
) -> ComputeGraph:
    """Return what one strategy runs: a layer of each kind, embedding, head, and the full model.

    Nodes are operations and collectives, edges the tensors between them; sums equal those of
    `estimate`.

    Parameters
    ----------
    model, system, strategy, **fields
        As for `estimate`.

    Returns
    -------
    ComputeGraph
        Nodes and edges; `help(shardwise.ComputeGraph)` lists its fields.

    Raises
    ------
    InputError
        If any argument is wrong; one fault for each problem.

    Examples
    --------
    >>> from shardwise import graph_of
    >>> graph = graph_of("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> [part.name for part in graph.parts]
    ['embedding', 'layer 0', 'head']
    """
    the_model, the_system = Model.load(model), System.load(system)
    resolved = strategy_of(strategy, fields).resolved(the_model, the_system)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    evaluation = evaluate(the_model, the_system, table)
    parts = tuple(_parts(evaluation))
    stages = tuple(_stages(the_model, table))
    boundary = evaluation.step.boundary
    return ComputeGraph(
        model=the_model.name,
        system=the_system.name,
        strategy=resolved.to_dict(),
        parts=parts,
        stages=stages,
        edges=tuple(_between(the_model, table, stages, float(boundary.sent_bytes[0]))),
        transfer_s=float(boundary.time_s[0]),
        totals=_totals(evaluation, parts),
    )


def _parts(evaluation: Evaluation) -> Iterator[ComponentGraph]:
    step = evaluation.step
    model, table, work = step.model, step.table, rank_work(step.table)
    for part in components_of(evaluation):
        yield component_graph(
            part,
            Tensors.of(model, _layer(model, part), work, int(table.dtype[0])),
            step.extents,
            training=bool(table.training[0]),
            checkpoint_bytes=float(step.costs.boundary_bytes[0]),
        )


def _layer(model: Model, part: Component) -> Layer | None:
    """The kind of layer in a component; of a prediction module, its layers in one."""
    if part.part == "mtp":
        first, *others = model.mtp_layers
        blocks = ("attention", "mixer", "mlp", "moe")
        more = {name: block for one in others for name in blocks if (block := getattr(one, name))}
        return first.model_copy(update=more)
    return model.layers[part.kind] if part.part == "layer" else None


def _stages(model: Model, table: Table) -> Iterator[StageNode]:
    """The model from first to last, divided into pipeline stages."""
    sizes = layers_on_ranks(model.depth, table, 0)
    start = 0
    for stage, size in enumerate(sizes):
        kinds = model.order[start : start + size]
        start += size
        layers = {f"layer {kind}": kinds.count(kind) for kind in dict.fromkeys(kinds)}
        ends = {"embedding": {"embedding": 1}} if stage == 0 else {}
        ends["layers"] = layers
        if stage == len(sizes) - 1:
            ends |= {"mtp": {"mtp": model.mtp}, "head": {"head": 1}}
        for name, holds in ends.items():
            if any(holds.values()):
                yield StageNode(
                    id=f"stage {stage}/{name}",
                    name=", ".join(_counted(part, number) for part, number in holds.items()),
                    stage=stage,
                    rank=_rank(table, stage, len(sizes)),
                    holds=holds,
                )


def _counted(part: str, number: int) -> str:
    return part if number == 1 else f"{number} x {part}"


def _rank(table: Table, stage: int, stages: int) -> int:
    """The pipeline rank of a stage: round-robin, or down and up again."""
    ranks = int(table.pp[0])
    returning = Schedule.from_code(int(table.schedule[0])) in _BOTH_WAYS and stage >= ranks
    return stages - 1 - stage if returning else stage % ranks


def _between(
    model: Model, table: Table, stages: Sequence[StageNode], sent_bytes: float
) -> Iterator[GraphEdge]:
    """The stream from component to component; between stages, the message of one rank."""
    tensors = Tensors.of(model, None, rank_work(table), int(table.dtype[0]))
    stream = tensors.stream()
    for one, other in pairwise(stages):
        crosses = one.stage != other.stage
        yield GraphEdge(
            source=one.id,
            target=other.id,
            kind="stage" if crosses else "data",
            tensor=stream.name,
            shape=stream.shape,
            dtype=stream.dtype,
            bytes=sent_bytes if crosses else stream.bytes,
        )


def _totals(evaluation: Evaluation, parts: Sequence[ComponentGraph]) -> StepTotals:
    """Sums over a step; matrix FLOPs without intermediate rounding."""
    exact = update_flops(evaluation)
    for part in parts:
        for name, work in ((name, w) for node in part.nodes for name, w in node.phases.items()):
            exact += Fraction(_runs(part, name)) * Fraction(work.matrix_flops)

    def phases(name: str) -> float:
        return sum(
            _runs(p, phase) * getattr(w, name) for p in parts for phase, w in p.phases.items()
        )

    def collectives(name: str) -> float:
        every = [(part, e) for part in parts for node in part.nodes for e in node.exchanges]
        return sum(_runs(part, one.phase) * getattr(one, name) for part, one in every)

    copies = {part.name: part.copies for part in components_of(evaluation)}
    return StepTotals(
        flops=phases("flops"),
        matrix_flops=round(exact),
        kernel_s=phases("time_s"),
        volume_bytes=collectives("volume_bytes"),
        exchange_s=collectives("time_s"),
        exposed_s=collectives("exposed_s"),
        parameters=sum(copies[part.name] * part.parameters for part in parts),
    )


def _runs(part: ComponentGraph, phase: str) -> float:
    return part.reruns if phase == RECOMPUTE else part.runs


def component_graph(
    part: Component,
    tensors: Tensors,
    extents: Extents,
    *,
    training: bool,
    checkpoint_bytes: float,
) -> ComponentGraph:
    """Return one component for one micro-batch."""
    operations = _operations(part, training=training)
    nodes = [
        GraphNode(
            id=INPUT,
            name="tokens" if part.name == "embedding" else "stream",
            kind="input",
            saved_bytes=checkpoint_bytes if part.recomputed == FULL_LAYER else 0.0,
        )
    ]
    for operation in operations:
        nodes += _nodes(operation, part, extents, training=training)
    nodes.append(
        GraphNode(
            id=OUTPUT,
            name="loss" if operations and base_name(operations[-1].name) == "loss" else "stream",
            kind=OUTPUT,
        )
    )
    collectives = [one for node in nodes for one in node.exchanges]
    return ComponentGraph(
        name=part.name,
        count=part.count,
        runs=part.runs,
        reruns=part.reruns,
        nodes=tuple(nodes),
        edges=tensor_edges(operations, [node.id for node in nodes], tensors),
        phases=_added(node.phases for node in nodes),
        volume_bytes=sum(one.volume_bytes for one in collectives),
        exchange_s=sum(one.time_s for one in collectives),
        exposed_s=sum(one.exposed_s for one in collectives),
        parameters=sum(node.parameters for node in nodes),
        saved_bytes=sum(node.saved_bytes for node in nodes),
    )


def _added(every: Iterable[Mapping[str, PhaseWork]]) -> dict[str, PhaseWork]:
    """Sums by phase."""
    sums: dict[str, PhaseWork] = {}
    for phases in every:
        for name, work in phases.items():
            sums[name] = _plus(sums.get(name, _NOTHING), work)
    return sums


def _plus(one: PhaseWork, other: PhaseWork) -> PhaseWork:
    names = PhaseWork.model_fields
    return PhaseWork(**{name: getattr(one, name) + getattr(other, name) for name in names})


def _operations(part: Component, *, training: bool) -> list[DrawnOperation]:
    """Operations as the graph has them.

    Unfused attention is divided around its softmax. What only saves a tensor, as the softmax of
    flash attention does, belongs to the operation before it.
    """
    operations: list[DrawnOperation] = []
    for cost in part.costs:
        saved = saved_activation_bytes(cost, part.recomputed) if training else 0.0
        operation = DrawnOperation(
            name=cost.operation.name,
            cost=cost,
            kernels=tuple(k for k in cost.kernels if k.time_s[0] > 0),
            before=tuple(e for e, first in _collectives_of(cost) if first),
            after=tuple(e for e, first in _collectives_of(cost) if not first),
            parameters=float(cost.operation.parameters[0]),
            saved_bytes=saved,
        )
        runs = operation.kernels or operation.before or operation.after or operation.parameters
        if not runs and operations:
            last = operations[-1]
            operations[-1] = replace(last, saved_bytes=last.saved_bytes + saved)
        elif runs and base_name(operation.name) == _CORE and _unfused(operation):
            operations += _divided(operation)
        elif runs:
            operations.append(operation)
    return _softmax_between(operations)


def _unfused(operation: DrawnOperation) -> bool:
    return any(isinstance(timed.kernel, Matmul) for timed in operation.kernels)


def _divided(core: DrawnOperation) -> list[DrawnOperation]:
    """Separate scores from weighted values: the last product forward, the first two backward.

    Weights, saved tensors and the collectives of keys and values belong to the scores.
    """
    forward = [k for k in core.kernels if k.kernel.phase is Phase.FORWARD]
    backward = [k for k in core.kernels if k.kernel.phase is not Phase.FORWARD]
    name = core.name.removesuffix("core")
    scores = replace(core, name=f"{name}scores", kernels=(*forward[:-1], *backward[2:]), after=())
    values = replace(
        core,
        name=f"{name}values",
        kernels=(forward[-1], *backward[:2]),
        before=(),
        parameters=0.0,
        saved_bytes=0.0,
    )
    return [scores, values]


def _softmax_between(operations: list[DrawnOperation]) -> list[DrawnOperation]:
    """Move a softmax before the values that it weighs."""
    names = [base_name(operation.name) for operation in operations]
    if "attention.values" in names and "attention.softmax" in names:
        values, softmax = names.index("attention.values"), names.index("attention.softmax")
        operations[values], operations[softmax] = operations[softmax], operations[values]
    return operations


def _collectives_of(cost: OperationCost) -> Iterator[tuple[CollectiveCost, bool]]:
    """Collectives that take time, and whether each comes before the operation."""
    name, swaps = base_name(cost.operation.name), 0
    gathered: set[str] = set()
    for timed in cost.collectives:
        collective = timed.collective
        kind, phase, axis = collective.kind, collective.phase, collective.axis
        joins = name == "projection" and f"{phase}{kind}" in gathered
        gathered.add(f"{phase}{kind}")
        if timed.time_s[0] == 0:
            continue
        if name.endswith("norm") or name in ("embedding", "moe.dispatch") or joins:
            first = False
        elif name == "moe.combine":
            first = True
        elif name == _CORE:  # heads are swapped before it and backward after it
            swaps += kind is CollectiveKind.ALL_TO_ALL
            first = kind is not CollectiveKind.ALL_TO_ALL or swaps in (1, 4)
        elif name == "projection" and axis == "tp":
            gathers_backward = phase is Phase.INPUT_GRAD and kind is CollectiveKind.ALL_GATHER
            first = not gathers_backward
        else:
            first = phase is Phase.WEIGHT_GRAD or (kind in _BRING) == (phase is Phase.FORWARD)
            first |= kind is CollectiveKind.BROADCAST
            first &= not (phase is Phase.FORWARD and kind in _ADD_UP)
        yield timed, first


def _nodes(
    operation: DrawnOperation, part: Component, extents: Extents, *, training: bool
) -> Iterator[GraphNode]:
    """An operation, and the collectives before and after it."""
    again = repeats_collectives(operation.cost, part.recomputed)
    sides = {"before": operation.before, "after": operation.after}
    collectives = {
        side: tuple(_collectives(costs, extents, training=training, again=again))
        for side, costs in sides.items()
    }
    if collectives["before"]:
        yield _collective_node(operation, "before", collectives["before"])
    yield GraphNode(
        id=operation.name,
        name=operation.name,
        kind="operation",
        phases=_phases(operation, part, training=training),
        parameters=operation.parameters,
        saved_bytes=operation.saved_bytes,
    )
    if collectives["after"]:
        yield _collective_node(operation, "after", collectives["after"])


def _collective_node(
    operation: DrawnOperation, side: str, exchanges: tuple[GraphCollective, ...]
) -> GraphNode:
    kinds = dict.fromkeys(one.kind.replace("_", "-") for one in exchanges)
    axes = dict.fromkeys(one.axis for one in exchanges)
    name = f"{', '.join(kinds)} ({', '.join(axes)})"
    return GraphNode(id=f"{operation.name}/{side}", name=name, kind="exchange", exchanges=exchanges)


def _phases(operation: DrawnOperation, part: Component, *, training: bool) -> dict[str, PhaseWork]:
    phases: dict[str, PhaseWork] = {}
    share = rerun_share(operation.cost, part.recomputed)
    for timed in operation.kernels:
        phase = timed.kernel.phase
        if phase is Phase.FORWARD or training:
            work = _work(timed, 1.0)
            phases[phase.value] = _plus(phases.get(phase.value, _NOTHING), work)
        if phase is Phase.FORWARD and share:
            repeated = _work(timed, share)
            phases[RECOMPUTE] = _plus(phases.get(RECOMPUTE, _NOTHING), repeated)
    return phases


def _work(timed: KernelCost, share: float) -> PhaseWork:
    flops = share * float(timed.kernel.flops[0])
    product = isinstance(timed.kernel, PRODUCTS)
    return PhaseWork(
        flops=flops,
        matrix_flops=flops if product else 0.0,
        bytes=share * float(timed.kernel.bytes[0]),
        time_s=share * float(timed.time_s[0]),
    )


def _collectives(
    costs: Sequence[CollectiveCost], extents: Extents, *, training: bool, again: bool
) -> Iterator[GraphCollective]:
    for cost in costs:
        collective = cost.collective
        one = GraphCollective(
            phase=collective.phase.value,
            kind=collective.kind.value,
            axis=collective.axis,
            group=int(getattr(extents, collective.axis)[-1, 0]),
            volume_bytes=float(collective.bytes[0]),
            time_s=float(cost.time_s[0]),
            exposed_s=float(cost.exposed_s[0]),
        )
        forward = collective.phase is Phase.FORWARD
        if forward or training:
            yield one
        if forward and again:
            yield one.model_copy(update={"phase": RECOMPUTE})

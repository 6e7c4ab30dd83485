"""The graph of one part of the model: its operations, their exchanges, and the tensors between."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from shardwise.analysis.components import (
    FULL_LAYER,
    Component,
    repeats_collectives,
    rerun_share,
    saved_activation_bytes,
)
from shardwise.analysis.graph.edges import Piece, piece_edges
from shardwise.analysis.graph.records import ComponentGraph, Exchange, GraphNode, PhaseWork
from shardwise.analysis.graph.tensors import Tensors
from shardwise.analysis.graph.wiring import INPUT, OUTPUT, plain
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.ops.operation import CollectiveKind, FlashAttention, Matmul, Phase
from shardwise.parallel.placement import Extents

__all__ = ["part_graph"]

RECOMPUTE = "recompute"
_CORE = "attention.core"
_NOTHING = PhaseWork(flops=0.0, matrix_flops=0.0, bytes=0.0, time_s=0.0)
_BRING = (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST, CollectiveKind.P2P)
_ADD_UP = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE)


def part_graph(
    part: Component,
    tensors: Tensors,
    extents: Extents,
    *,
    training: bool,
    checkpoint_bytes: float,
) -> ComponentGraph:
    """Draw one part of the model for one micro-batch.

    Parameters
    ----------
    checkpoint_bytes
        What is kept of a layer that is run again as a whole: its input.
    """
    pieces = _pieces(part, training=training)
    nodes = [
        GraphNode(
            id=INPUT,
            name="tokens" if part.name == "embedding" else "stream",
            kind="input",
            saved_bytes=checkpoint_bytes if part.recomputed == FULL_LAYER else 0.0,
        )
    ]
    for piece in pieces:
        nodes += _nodes(piece, part, extents, training=training)
    nodes.append(GraphNode(id=OUTPUT, name="loss" if _is_head(pieces) else "stream", kind=OUTPUT))
    exchanges = [exchange for node in nodes for exchange in node.exchanges]
    return ComponentGraph(
        name=part.name,
        count=part.count,
        runs=part.runs,
        reruns=part.reruns,
        nodes=tuple(nodes),
        edges=piece_edges(pieces, [node.id for node in nodes], tensors),
        phases=_added(node.phases for node in nodes),
        volume_bytes=sum(exchange.volume_bytes for exchange in exchanges),
        exchange_s=sum(exchange.time_s for exchange in exchanges),
        exposed_s=sum(exchange.exposed_s for exchange in exchanges),
        parameters=sum(node.parameters for node in nodes),
        saved_bytes=sum(node.saved_bytes for node in nodes),
    )


def _is_head(pieces: Sequence[Piece]) -> bool:
    return bool(pieces) and plain(pieces[-1].name) == "loss"


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


def _pieces(part: Component, *, training: bool) -> list[Piece]:
    """Operations as they are drawn.

    Unfused attention is cut in two around its softmax; what only keeps something, as the softmax of
    flash attention does, is part of the operation before it.
    """
    pieces: list[Piece] = []
    for cost in part.costs:
        kept = saved_activation_bytes(cost, part.recomputed) if training else 0.0
        piece = Piece(
            name=cost.operation.name,
            cost=cost,
            kernels=tuple(k for k in cost.kernels if k.time_s[0] > 0),
            before=tuple(e for e, first in _sided(cost) if first),
            after=tuple(e for e, first in _sided(cost) if not first),
            parameters=float(cost.operation.parameters[0]),
            saved_bytes=kept,
        )
        runs = piece.kernels or piece.before or piece.after or piece.parameters
        if not runs and pieces:
            last = pieces[-1]
            pieces[-1] = replace(last, saved_bytes=last.saved_bytes + kept)
        elif runs and plain(piece.name) == _CORE and _unfused(piece):
            pieces += _cut(piece)
        elif runs:
            pieces.append(piece)
    return _softmax_between(pieces)


def _unfused(piece: Piece) -> bool:
    return any(isinstance(timed.kernel, Matmul) for timed in piece.kernels)


def _cut(core: Piece) -> list[Piece]:
    """Scores and weighted values apart: of the products forward the last, backward the first two.

    Weights, what is kept, and exchanges of keys and values before them stand with the scores.
    """
    ahead = [k for k in core.kernels if k.kernel.phase is Phase.FORWARD]
    back = [k for k in core.kernels if k.kernel.phase is not Phase.FORWARD]
    name = core.name.removesuffix("core")
    scores = replace(core, name=f"{name}scores", kernels=(*ahead[:-1], *back[2:]), after=())
    values = replace(
        core,
        name=f"{name}values",
        kernels=(ahead[-1], *back[:2]),
        before=(),
        parameters=0.0,
        saved_bytes=0.0,
    )
    return [scores, values]


def _softmax_between(pieces: list[Piece]) -> list[Piece]:
    """Put a softmax before the values that it weighs."""
    names = [plain(piece.name) for piece in pieces]
    if "attention.values" in names and "attention.softmax" in names:
        values, softmax = names.index("attention.values"), names.index("attention.softmax")
        pieces[values], pieces[softmax] = pieces[softmax], pieces[values]
    return pieces


def _sided(cost: OperationCost) -> Iterator[tuple[CollectiveCost, bool]]:
    """Exchanges that take place, and whether each is of what the operation reads."""
    name, swaps = plain(cost.operation.name), 0
    gathered: set[str] = set()
    for exchange in cost.exchanges:
        collective = exchange.collective
        kind, phase, axis = collective.kind, collective.phase, collective.axis
        joins = name == "projection" and f"{phase}{kind}" in gathered
        gathered.add(f"{phase}{kind}")
        if exchange.time_s[0] == 0:
            continue
        if name.endswith("norm") or name in ("embedding", "moe.dispatch") or joins:
            first = False
        elif name == "moe.combine":
            first = True
        elif name == _CORE:  # heads are swapped before it and back after it
            swaps += kind is CollectiveKind.ALL_TO_ALL
            first = kind is not CollectiveKind.ALL_TO_ALL or swaps in (1, 4)
        elif name == "projection" and axis == "tp":
            gathers_back = phase is Phase.INPUT_GRAD and kind is CollectiveKind.ALL_GATHER
            first = not gathers_back
        else:
            first = phase is Phase.WEIGHT_GRAD or (kind in _BRING) == (phase is Phase.FORWARD)
            first |= kind is CollectiveKind.BROADCAST
            first &= not (phase is Phase.FORWARD and kind in _ADD_UP)
        yield exchange, first


def _nodes(
    piece: Piece, part: Component, extents: Extents, *, training: bool
) -> Iterator[GraphNode]:
    """An operation, and what is exchanged before and after it."""
    again = repeats_collectives(piece.cost, part.recomputed)
    sides = {"before": piece.before, "after": piece.after}
    told = {
        side: tuple(_exchanges(costs, extents, training=training, again=again))
        for side, costs in sides.items()
    }
    if told["before"]:
        yield _exchange_node(piece, "before", told["before"])
    yield GraphNode(
        id=piece.name,
        name=piece.name,
        kind="operation",
        phases=_phases(piece, part, training=training),
        parameters=piece.parameters,
        saved_bytes=piece.saved_bytes,
    )
    if told["after"]:
        yield _exchange_node(piece, "after", told["after"])


def _exchange_node(piece: Piece, side: str, exchanges: tuple[Exchange, ...]) -> GraphNode:
    kinds = dict.fromkeys(one.kind.replace("_", "-") for one in exchanges)
    axes = dict.fromkeys(one.axis for one in exchanges)
    name = f"{', '.join(kinds)} ({', '.join(axes)})"
    return GraphNode(id=f"{piece.name}/{side}", name=name, kind="exchange", exchanges=exchanges)


def _phases(piece: Piece, part: Component, *, training: bool) -> dict[str, PhaseWork]:
    phases: dict[str, PhaseWork] = {}
    share = rerun_share(piece.cost, part.recomputed)
    for timed in piece.kernels:
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
    product = isinstance(timed.kernel, (Matmul, FlashAttention))
    return PhaseWork(
        flops=flops,
        matrix_flops=flops if product else 0.0,
        bytes=share * float(timed.kernel.bytes[0]),
        time_s=share * float(timed.time_s[0]),
    )


def _exchanges(
    costs: Sequence[CollectiveCost], extents: Extents, *, training: bool, again: bool
) -> Iterator[Exchange]:
    for cost in costs:
        collective = cost.collective
        one = Exchange(
            phase=collective.phase.value,
            kind=collective.kind.value,
            axis=collective.axis,
            group=int(getattr(extents, collective.axis)[-1, 0]),
            volume_bytes=float(collective.bytes[0]),
            time_s=float(cost.time_s[0]),
            exposed_s=float(cost.exposed_s[0]),
        )
        ahead = collective.phase is Phase.FORWARD
        if ahead or training:
            yield one
        if ahead and again:
            yield one.model_copy(update={"phase": RECOMPUTE})

"""The tensors between the operations of a part, through the exchanges around them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.analysis.graph.records import GraphEdge
from shardwise.analysis.graph.tensors import Tensor, Tensors
from shardwise.analysis.graph.wiring import INPUT, Link, linked, plain
from shardwise.config.enums import Quantization
from shardwise.cost.operations import CollectiveCost, KernelCost, OperationCost
from shardwise.ops.operation import CollectiveKind, Phase
from shardwise.ops.quantization import RECIPES

__all__ = ["Piece", "piece_edges"]

_CORES = ("attention.core", "attention.scores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """An operation, or a part of one, with the exchanges before and after it."""

    name: str
    cost: OperationCost
    kernels: tuple[KernelCost, ...]
    before: tuple[CollectiveCost, ...]
    after: tuple[CollectiveCost, ...]
    parameters: float
    saved_bytes: float


def piece_edges(
    pieces: Sequence[Piece], nodes: Sequence[str], tensors: Tensors
) -> tuple[GraphEdge, ...]:
    """Tensors from operation to operation, through the exchanges between them.

    Parameters
    ----------
    nodes
        Ids of all nodes in the order in which they run; an exchange has that of its operation with
        `/before` or `/after`.
    """
    places = {name: place for place, name in enumerate(nodes)}
    edges = list(dict.fromkeys(_edges(pieces, places, tensors)))
    return tuple(sorted(edges, key=lambda e: (places[e.source], places[e.target])))


def _edges(
    pieces: Sequence[Piece], places: Mapping[str, int], tensors: Tensors
) -> Iterator[GraphEdge]:
    by_name = {piece.name: piece for piece in pieces}
    for name, piece in by_name.items():
        if f"{name}/after" in places:
            yield _edge(name, f"{name}/after", _written(piece, tensors))
    side_by_side = _shared_exchanges(by_name, places)
    for link in linked(list(by_name)):
        if link.source in side_by_side and plain(link.source) == "mlp.down":
            written = _written(by_name[link.source], tensors)
            yield _edge(link.source, side_by_side[link.source], written)
            continue
        if link.target in side_by_side and plain(link.target) == "mlp.up":
            read = tensors.read(by_name[link.target].cost.operation, "normed")
            yield _edge(side_by_side[link.target], link.target, read or tensors.stream())
            continue
        source = f"{link.source}/after" if f"{link.source}/after" in places else link.source
        arrived = _arriving(link, by_name, tensors, changed=source != link.source)
        before = f"{link.target}/before"
        if before not in places:
            yield _edge(source, link.target, arrived, link.kind)
        elif plain(link.target) in _CORES:
            yield from _into_core(by_name[link.target], source, arrived, tensors)
        elif plain(link.target) == "attention.rope" and not _rotated(link):
            yield _edge(source, link.target, arrived, link.kind)
        else:
            yield _edge(source, before, arrived, link.kind)
            yield _edge(before, link.target, _gathered(by_name[link.target], arrived, tensors))


def _shared_exchanges(by_name: Mapping[str, Piece], places: Mapping[str, int]) -> dict[str, str]:
    """In a parallel layer, the exchanges of attention that the feed-forward block shares."""
    names = {plain(name): name for name in by_name}
    if "norm" not in names:
        return {}
    beside = {"mlp.up": "attention.qkv/before", "mlp.down": "attention.out/after"}
    prefix = names["norm"].removesuffix("norm")
    return {
        names[own]: prefix + exchange
        for own, exchange in beside.items()
        if own in names and prefix + exchange in places
    }


def _edge(source: str, target: str, tensor: Tensor, kind: str = "data") -> GraphEdge:
    return GraphEdge(
        source=source,
        target=target,
        kind=kind,
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        bytes=tensor.bytes,
    )


def _rotated(link: Link) -> bool:
    """Whether a link carries the keys of latent attention that all heads share."""
    return plain(link.source) == "attention.kv_down" and plain(link.target) == "attention.rope"


def _written(piece: Piece, tensors: Tensors) -> Tensor:
    return tensors.written(piece.cost.operation, piece.name)


def _arriving(
    link: Link, by_name: Mapping[str, Piece], tensors: Tensors, *, changed: bool
) -> Tensor:
    """What a link carries, after the exchanges that follow its source."""
    if link.source == INPUT:
        return tensors.words() if plain(link.target) == "embedding" else tensors.stream()
    written = _written(by_name[link.source], tensors)
    base = plain(link.source)
    rotated = tensors.rotated_keys() if _rotated(link) else None
    if rotated is not None:
        return rotated
    if not changed or base.endswith("norm") or base == "loss":
        return written
    reader = by_name.get(link.target)
    read = None if reader is None else tensors.read(reader.cost.operation, written.name)
    passes = base in ("moe.dispatch", "attention.core", "attention.values")
    if (passes or base.endswith(".lora_a")) and read is not None:
        return read
    return tensors.stream(written.name)


def _into_core(core: Piece, source: str, arrived: Tensor, tensors: Tensors) -> Iterator[GraphEdge]:
    """What attention reads where ranks share a sequence.

    Either heads are swapped for tokens, or keys and values of the other ranks come beside its own.
    """
    ahead = [e.collective for e in core.before if e.collective.phase is Phase.FORWARD]
    ranks = {"cp": tensors.work.cp, "tp2": tensors.work.tp2}[ahead[0].axis]
    number = float(ranks[0])
    before = f"{core.name}/before"
    if ahead[0].kind is CollectiveKind.ALL_TO_ALL:
        rows, width = arrived.shape
        yield _edge(source, before, arrived)
        yield _edge(
            before, core.name, tensors.tensor(arrived.name, (rows * number, width / number))
        )
        return
    yield _edge(source, core.name, arrived)
    yield _edge(source, before, tensors.keys_and_values())
    yield _edge(before, core.name, tensors.keys_and_values(number))


def _gathered(piece: Piece, arrived: Tensor, tensors: Tensors) -> Tensor:
    """What an operation reads once the exchanges before it are done, quantised if they were."""
    brought = [
        float(one.collective.bytes[0])
        for one in piece.before
        if one.collective.phase is Phase.FORWARD
        and one.collective.kind is CollectiveKind.ALL_GATHER
    ]
    if plain(piece.name) == "attention.rope":
        rows, width = arrived.shape
        return tensors.tensor(arrived.name, (rows * tensors.whole_over_part(), width))
    read = tensors.read(piece.cost.operation, arrived.name)
    if read is None:
        return arrived
    if brought and brought[0] < read.bytes:
        recipe = Quantization.from_code(int(tensors.work.quantization[0]))
        return replace(read, dtype=RECIPES[recipe].matrix, bytes=brought[0])
    return read

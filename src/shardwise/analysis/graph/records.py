"""Nodes, edges and sums of a compute graph."""

from typing import Any

from pydantic import Field

from shardwise.analysis import Result

__all__ = [
    "ComponentGraph",
    "ComputeGraph",
    "Exchange",
    "GraphEdge",
    "GraphNode",
    "PhaseWork",
    "StageNode",
    "StepTotals",
]


class PhaseWork(Result):
    """Kernels of one phase, for one micro-batch on one rank."""

    flops: float
    matrix_flops: float
    """Those of matrix products and attention."""
    bytes: float
    time_s: float


class Exchange(Result):
    """One collective, for one micro-batch on one rank."""

    phase: str
    """forward, input_grad, weight_grad or recompute."""
    kind: str
    axis: str
    group: int
    """Members."""
    volume_bytes: float
    """The whole buffer."""
    time_s: float
    exposed_s: float


class GraphNode(Result):
    """An operation, the exchanges on one side of it, or where a part begins and ends."""

    id: str
    """Unique in the part."""
    name: str
    kind: str
    """operation, exchange, input or output."""
    phases: dict[str, PhaseWork] = Field(default_factory=dict)
    """Its kernels, by phase: forward, input_grad, weight_grad, recompute."""
    exchanges: tuple[Exchange, ...] = ()
    parameters: float = 0.0
    """Weights on one rank."""
    saved_bytes: float = 0.0
    """Kept for backward, of one micro-batch."""


class GraphEdge(Result):
    """A tensor on one rank, forward."""

    source: str
    target: str
    kind: str
    """data, residual (the stream past a block), adapter, or stage (between pipeline stages)."""
    tensor: str
    shape: tuple[int | float, ...]
    """Tokens (of the rank) x width; of experts and heads with their number in front."""
    dtype: str
    bytes: float


class ComponentGraph(Result):
    """One part of the model: the embedding, a layer of a kind, a module of prediction, the head."""

    name: str
    """As in `gemms`: `layer 0` ..."""
    count: int
    """How often it occurs in the model."""
    runs: float
    """Micro-batches that pass it in a step, on one rank of every stage."""
    reruns: float
    """Of them with recompute."""
    nodes: tuple[GraphNode, ...]
    """In the order of the operations, each with what is exchanged before and after it."""
    edges: tuple[GraphEdge, ...]
    phases: dict[str, PhaseWork]
    """All kernels, added up."""
    volume_bytes: float
    """Buffers of all exchanges."""
    exchange_s: float
    exposed_s: float
    parameters: float
    saved_bytes: float


class StageNode(Result):
    """What stands in a row on a pipeline stage; of a stage in chunks, on one of them."""

    id: str
    name: str
    stage: int
    """Place in the order of the model."""
    rank: int
    """The pipeline rank that runs it; in dualpipe, of the first direction."""
    holds: dict[str, int]
    """How many of each part."""


class StepTotals(Result):
    """A step, on one rank of every stage."""

    flops: float
    """Of kernels in layers, embedding and head; vector FLOPs too."""
    matrix_flops: int
    """As in the estimate, with Muon's updates."""
    kernel_s: float
    volume_bytes: float
    """Exchanges inside layers, embedding and head."""
    exchange_s: float
    exposed_s: float
    parameters: float


class ComputeGraph(Result):
    """The parts of a model as graphs of operations, and the model as a graph of parts."""

    model: str
    system: str
    strategy: dict[str, Any]
    """All fields, defaults filled in."""
    parts: tuple[ComponentGraph, ...]
    stages: tuple[StageNode, ...]
    """The model, in order."""
    edges: tuple[GraphEdge, ...]
    """Between the entries of `stages`."""
    transfer_s: float
    """One message between stages; 0 where there is one stage."""
    totals: StepTotals

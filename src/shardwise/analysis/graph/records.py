"""Nodes, edges and sums of a compute graph."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from shardwise.analysis import Result
from shardwise.shown import Charted

INPUT, OUTPUT = "input", "output"
"""Nodes where a component begins and ends."""


class PhaseWork(Result):
    """Kernels of one phase, for one micro-batch on one rank."""

    flops: float
    matrix_flops: float
    """Those of matrix products and attention."""
    bytes: float
    time_s: float


class GraphCollective(Result):
    """One collective, for one micro-batch on one rank."""

    phase: str
    """forward, input_grad, weight_grad or recompute."""
    kind: str
    axis: str
    group: int
    """Members."""
    volume_bytes: float
    """Full buffer."""
    time_s: float
    exposed_s: float


class GraphNode(Result):
    """An operation, the collectives before or after it, or the input or output of a component."""

    id: str
    """Unique in the component."""
    name: str
    kind: str
    """operation, `exchange` (a collective), input or output."""
    phases: Mapping[str, PhaseWork] = Field(default_factory=dict)
    """Its kernels, by phase: forward, input_grad, weight_grad, recompute."""
    exchanges: tuple[GraphCollective, ...] = ()
    parameters: float = 0.0
    """Weights on one rank."""
    saved_bytes: float = 0.0
    """Activations saved for backward, of one micro-batch."""


class GraphEdge(Result):
    """A tensor on one rank, forward."""

    source: str
    target: str
    kind: str
    """data, residual (the stream around a block), adapter, or stage (between pipeline stages)."""
    tensor: str
    shape: tuple[int | float, ...]
    """Tokens of the rank x width; experts and heads have their number in front."""
    dtype: str
    bytes: float


class ComponentGraph(Result):
    """One component: the embedding, a kind of layer, a multi-token prediction module, the head."""

    name: str
    """As in `gemms`: `layer 0` ..."""
    count: int
    """Occurrences in the model."""
    runs: float
    """Micro-batches that pass it in a step, on one rank of every stage."""
    reruns: float
    """Those of them with recompute."""
    nodes: tuple[GraphNode, ...]
    """In the order of the operations, each with the collectives before and after it."""
    edges: tuple[GraphEdge, ...]
    phases: Mapping[str, PhaseWork]
    """Sums over all kernels."""
    volume_bytes: float
    """Buffers of all collectives."""
    exchange_s: float
    exposed_s: float
    parameters: float
    saved_bytes: float


class StageNode(Result):
    """Consecutive components of one kind on a pipeline stage, or on one of its chunks."""

    id: str
    name: str
    stage: int
    """Place in the order of the model."""
    rank: int
    """Its pipeline rank; in dualpipe, that of the first direction."""
    holds: Mapping[str, int]
    """Number of each component."""


class StepTotals(Result):
    """A step, on one rank of every stage."""

    flops: float
    """Kernels in layers, embedding and head; vector FLOPs too."""
    matrix_flops: int
    """As in the estimate, with Muon's updates."""
    kernel_s: float
    volume_bytes: float
    """Collectives inside layers, embedding and head."""
    exchange_s: float
    exposed_s: float
    parameters: float


class ComputeGraph(Charted, Result):
    """The components of a model as graphs of operations, and the model as a graph of components.

    Examples
    --------
    >>> from shardwise import graph_of
    >>> graph = graph_of("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> [(part.name, part.count) for part in graph.parts]
    [('embedding', 1), ('layer 0', 32), ('head', 1)]
    """

    model: str
    system: str
    strategy: Mapping[str, Any]
    """All fields, defaults filled in."""
    parts: tuple[ComponentGraph, ...]
    stages: tuple[StageNode, ...]
    """The model, in order."""
    edges: tuple[GraphEdge, ...]
    """Between the entries of `stages`."""
    transfer_s: float
    """One message between stages; 0 where there is one stage."""
    totals: StepTotals

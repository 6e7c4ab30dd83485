"""Parameters and model FLOPs of an architecture, from the same operations that are timed."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.model import Model
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations
from shardwise.ops.operation import Operation, RankWork

__all__ = [
    "FLOPS_CONVENTIONS",
    "FlopsConvention",
    "Parameters",
    "count_parameters",
    "flops_per_token",
]

FlopsConvention = Literal["causal", "full-attention", "parameters"]
FLOPS_CONVENTIONS: dict[FlopsConvention, str] = {
    "causal": "6 per parameter but the embeddings, head included, plus causal attention at half",
    "full-attention": "the same, with attention counted over all pairs of positions",
    "parameters": "6 per parameter but the embeddings, head included; no attention",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a model."""

    total: int
    active: int
    """Those that one token passes through."""
    embedding: int
    """Token and position tables; with tied embeddings, the head shares the first."""
    breakdown: dict[str, int]
    """By operation, over all layers."""


def count_parameters(model: Model) -> Parameters:
    """Count the parameters that the operations of an unsplit model hold."""
    work = _unsplit_token()
    breakdown: dict[str, float] = {}

    def add(operations: list[Operation], count: int = 1) -> None:
        for operation in operations:
            held = float(operation.parameters[0]) * count
            if held:
                breakdown[operation.name] = breakdown.get(operation.name, 0.0) + held

    add(embedding_operations(model, work))
    for layer in model.layers:
        add(layer_operations(model, layer, work), layer.count)
    add(head_operations(model, work, holds_copy=np.array([not model.tied_embeddings])))
    counts = {name: round(held) for name, held in breakdown.items()}
    total = sum(counts.values())
    return Parameters(total=total, active=total, embedding=counts["embedding"], breakdown=counts)


def _unsplit_token() -> RankWork:
    """One token on a rank that holds the whole model: parameters depend on nothing else."""
    one = np.ones(1)
    return RankWork(
        sequences=one,
        seq_len=one,
        tp=one,
        sequence_parallel=np.array([False]),
        attention=np.array([0]),
        regather=np.array([True]),
        fused_activation=np.array([False]),
        element_bytes=one,
        gradient_bytes=one,
        flash=np.array([True]),
        loss_forward_bytes=one,
        loss_backward_bytes=one,
        loss_saved_bytes=one,
    )


def flops_per_token(model: Model, seq_len: int, convention: FlopsConvention = "causal") -> float:
    """Model FLOPs of one token, forward and backward.

    6 (N - embeddings + head) + 12 s a d per layer for the two products of attention (forward and
    twice backward), halved where a position sees only those before it. N counts a tied head once
    more than it is stored: the product is done all the same.

    Parameters
    ----------
    seq_len
        s, tokens per sequence.
    """
    counted = count_parameters(model)
    dense = counted.total - counted.embedding
    if model.tied_embeddings:
        dense += model.vocab * model.hidden
    flops = 6.0 * dense
    if convention == "parameters":
        return flops
    for layer in model.layers:
        attention = layer.attention
        half = 0.5 if attention.causal and convention == "causal" else 1.0
        flops += 12.0 * half * layer.count * seq_len * attention.heads * attention.head_dim
    return flops

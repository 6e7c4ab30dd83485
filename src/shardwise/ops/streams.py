"""Several residual streams (hyper-connections, arXiv 2512.24880), and embeddings of layers.

Of n streams, a block reads a mixture in learned shares, and its output is added to all, which may
be mixed with one another. The shares of a token come from a product of its n streams. Their weights
are replicated on tensor-parallel ranks, which run them for their shard of the sequence.

The part `streams` of recompute runs both again and keeps the outputs of the blocks, of which all
streams follow; those at the first layer of a stage are not counted (mhc of Megatron-LM d98e8a6,
transformer_config.py, recompute_modules).

Embeddings of layers (Gemma 3n, Gemma 4): a table has p numbers of each token for each layer; the
layer multiplies them with a projection of its output and adds the result, projected back.
"""

import numpy as np

from shardwise.config.model import Model
from shardwise.ops.linear import linear
from shardwise.ops.norm import norm
from shardwise.ops.operation import MemoryBound, Operation, Phase, RankWork, zeros
from shardwise.records import replace

_EVERY = frozenset({"every_other"})
_STREAMS = frozenset({"streams"})


def stream_mix(name: str, model: Model, work: RankWork) -> Operation:
    """The input of a block: a mixture of the streams, in shares of each token.

    Weights: n h for each of 2 n shares (and n^2, where streams are mixed), a bias of each, and a
    scale of each kind. The streams are saved. Moved, forward: the streams twice, for shares and
    mixture, and the mixture; backward: streams twice, their gradients, and that of the mixture.
    """
    n = model.streams
    shares = 2 * n + (n * n if model.streams_mixed else 0)
    return _mixed(name, model, work, shares, 3 if model.streams_mixed else 2)


def joined_streams(model: Model, work: RankWork) -> Operation:
    """One stream for the head: the streams in shares of each token, or their sum."""
    if model.streams_joined:
        return _mixed("streams", model, work, model.streams, 1)
    size = work.split_tokens * (model.streams + 1) * model.hidden * work.element_bytes
    return Operation(
        name="streams",
        kernels=tuple(
            MemoryBound(phase=phase, bytes=size, flops=work.split_tokens * model.hidden)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        ),
        parameters=zeros(work),
        saved_bytes=zeros(work),
        working_bytes=size,
    )


def _mixed(name: str, model: Model, work: RankWork, shares: int, scales: int) -> Operation:
    width = model.streams * model.hidden
    product = linear(
        name,
        work,
        tokens=work.split_tokens,
        inputs=float(width),
        outputs=float(shares),
        parameters=float(width * shares + shares + scales),
        sixteen_bits=True,
        reruns_with=_EVERY | _STREAMS,
        dropped_with=_STREAMS,
    )
    elements = work.split_tokens * width
    one = work.split_tokens * model.hidden
    size = work.element_bytes
    mixing = (
        MemoryBound(phase=Phase.FORWARD, bytes=(elements + one) * size, flops=2 * elements),
        MemoryBound(phase=Phase.INPUT_GRAD, bytes=(2 * elements + one) * size, flops=4 * elements),
    )
    return replace(product, kernels=(*product.kernels, *mixing))


def stream_residual(name: str, model: Model, work: RankWork) -> Operation:
    """Add the output of a block to all streams, and mix them with one another.

    Forward: streams and output read, streams written; backward: their gradients read and written,
    the saved output read and its gradient written.
    """
    n, one = model.streams, work.split_tokens * model.hidden
    size = work.element_bytes
    flops = 2 * one * n * (n + 1 if model.streams_mixed else 2)
    return Operation(
        name=name,
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=(2 * n + 1) * one * size, flops=flops),
            MemoryBound(phase=Phase.INPUT_GRAD, bytes=(3 * n + 2) * one * size, flops=2 * flops),
        ),
        parameters=zeros(work),
        saved_bytes=one * size,
        working_bytes=n * one * size,
        reruns_with=_STREAMS,
    )


def layer_embedding(model: Model, work: RankWork) -> list[Operation]:
    """Product of the output of a layer with its embedding: h to p, times it, p to h, norm, sum."""
    width = float(model.layer_embedding)
    tokens, size = work.split_tokens, work.element_bytes
    down = linear("mlp.layer_gate", work, tokens=tokens, inputs=model.hidden, outputs=width)
    elements = tokens * width
    scaled = tuple(
        MemoryBound(phase=phase, bytes=moved * elements * size, flops=4 * elements)
        for phase, moved in ((Phase.FORWARD, 3), (Phase.INPUT_GRAD, 5))
    )
    down = replace(
        down,
        kernels=(*down.kernels, *scaled),
        saved_bytes=down.saved_bytes + 2 * elements * size,
    )
    up = linear("mlp.layer_up", work, tokens=tokens, inputs=width, outputs=float(model.hidden))
    normed = norm(
        "mlp.layer_norm",
        model,
        work,
        tokens=tokens,
        width=model.hidden,
        parameters=float(model.norm_parameters),
    )
    return [down, up, normed]


def layer_tables(model: Model, work: RankWork, rows: np.ndarray) -> list[Operation]:
    """Look up the embeddings of all layers, and add a projection of the embedding to them, normed.

    Parameters
    ----------
    rows
        Rows of the table on this rank; shape (rows,).
    """
    width = float(model.layer_embedding * model.depth)
    moved = 2 * work.tokens * width * work.element_bytes
    gradient = 3 * work.tokens * width * work.element_bytes
    lookup = Operation(
        name="layer_embedding",
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=moved, flops=zeros(work)),
            MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=gradient, flops=work.tokens * width),
        ),
        parameters=rows * width,
        saved_bytes=zeros(work),
        working_bytes=moved,
    )
    projection = linear(
        "layer_projection",
        work,
        tokens=work.split_tokens,
        inputs=model.hidden,
        outputs=width,
        parameters=model.hidden * width + model.layer_embedding,
        sixteen_bits=True,
    )
    return [lookup, projection]

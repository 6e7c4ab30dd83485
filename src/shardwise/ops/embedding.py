"""Before the first and after the last layer: embedding, head and loss."""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import Position
from shardwise.config.model import Model
from shardwise.ops.linear import before_column_parallel, linear
from shardwise.ops.loss import chunk_tokens, loss_operation, with_chunks
from shardwise.ops.mlp import activation
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    Collective,
    CollectiveKind,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    zeros,
)
from shardwise.ops.streams import joined_streams, layer_tables
from shardwise.ops.summa import norm_statistics, swapped_columns, tp_share
from shardwise.records import replace


def vocabulary_share(model: Model, work: RankWork) -> Floats:
    """Rows of the vocabulary on one rank: ceil(V / (m tp)) m, padded to a multiple m.

    Parameters
    ----------
    model
        Model with V tokens in its vocabulary.
    """
    return np.ceil(model.vocab / (work.vocab_multiple * work.tp)) * work.vocab_multiple


def weights_alone(name: str, work: RankWork, parameters: int = 0) -> Operation:
    """Weights whose kernels take next to no time, on every rank; 2D products split them by tp.

    With none: the embedding or head of a model without a vocabulary.
    """
    none = zeros(work)
    return Operation(
        name=name,
        kernels=(),
        collectives=(),
        parameters=none + tp_share(work, parameters),
        saved_bytes=none,
        working_bytes=none,
    )


def embedding_operations(model: Model, work: RankWork) -> list[Operation]:
    """Look up tokens in a table split along the vocabulary; add learned positions.

    Each rank finds the tokens in its rows, the rest are zero; the sum over the ranks is the
    embedding. Backward: see `_table_gradient`. With 2D products the width is split, too: each rank
    looks up the tokens of all sequences, and swaps columns for tokens with an all-to-all before
    that sum. A norm may follow. Without a vocabulary there is nothing to do.
    """
    if not model.vocab:
        return [weights_alone("embedding", work)]
    rows = vocabulary_share(model, work)
    size = work.tokens * model.hidden * work.element_bytes
    mask = work.split_tokens * model.hidden
    more: int = model.token_types
    if model.position == Position.LEARNED:
        more += model.max_positions or model.seq_len or 0
    positions = np.ceil(tp_share(work, more))
    scatters = work.sequence_parallel | work.summa
    collectives = tuple(
        Collective(
            phase=Phase.FORWARD if kind is not CollectiveKind.ALL_GATHER else Phase.INPUT_GRAD,
            kind=kind,
            axis="tp",
            bytes=np.where((work.tp > 1) & (scatters == split), size, 0.0),
        )
        for kind, split in (
            (CollectiveKind.ALL_REDUCE, False),
            (CollectiveKind.REDUCE_SCATTER, True),
            (CollectiveKind.ALL_GATHER, True),
        )
    )
    table = (rows + positions) * model.hidden / work.tp2
    return [
        Operation(
            name="embedding",
            kernels=(
                MemoryBound(phase=Phase.FORWARD, bytes=2 * size, flops=zeros(work)),
                *_table_gradient(work, work.tokens * model.hidden, table),
            ),
            collectives=(*collectives, *swapped_columns(work, size)),
            parameters=table,
            saved_bytes=mask if model.dropout else np.zeros_like(mask),
            working_bytes=size,
        ),
        *(
            [weights_alone("embedding_more", work, model.more_parameters)]
            * bool(model.more_parameters)
        ),
        *([_norm(model, work, "embedding_norm")] if model.embedding_norm else []),
        *_of_layers(model, work),
    ]


def _of_layers(model: Model, work: RankWork) -> list[Operation]:
    """Embeddings that the layers add."""
    if not model.layer_embedding:
        return []
    known = model.layer_vocab or model.vocab
    rows = np.ceil(known / (work.vocab_multiple * work.tp)) * work.vocab_multiple
    return layer_tables(model, work, rows)


def _table_gradient(work: RankWork, elements: Floats, table: Floats) -> tuple[MemoryBound, ...]:
    """Kernels that add the gradients of a micro-batch's tokens to the gradient of the table.

    Dense, as in PyTorch (embedding_dense_backward) and so in Megatron-LM, whose gradient hook then
    adds it to the fp32 buffer: a new table in the compute type is set to zero, n w bytes for n
    weights of w; each of e elements of the tokens is read and added to its row, 3 e w; the new
    table is read and added to the accumulated gradient of g bytes each, n (w + 2 g).

    Otherwise tokens are added to the rows of the accumulated gradient, e (w + 2 g). The new table
    is not counted as memory: the activations of all layers are freed before it is written.
    """
    size, added = work.element_bytes, 2 * work.gradient_bytes
    dense = np.where(work.dense_table, table, 0.0)
    rows = elements * np.where(work.dense_table, 3 * size, size + added)
    scattered = MemoryBound(phase=Phase.WEIGHT_GRAD, bytes=rows, flops=elements)
    if not np.any(work.dense_table):
        return (scattered,)

    def swept(each: Floats, flops: Floats) -> MemoryBound:
        return MemoryBound(
            phase=Phase.WEIGHT_GRAD, bytes=dense * each, flops=flops, kind="dense_gradient"
        )

    return (swept(size, zeros(work)), scattered, swept(size + added, dense))


def _transform(model: Model, work: RankWork) -> list[Operation]:
    """Linear layer, GELU and norm before the head, on every rank for its share of the tokens.

    (The head of BERT, arXiv 1810.04805; tensor-parallel ranks hold copies, as in Megatron-LM core
    0.13, bert_lm_head.py.)
    """
    product = linear(
        "head.transform",
        work,
        tokens=work.split_tokens,
        inputs=model.hidden,
        outputs=model.hidden,
        bias=model.hidden,
        sixteen_bits=True,
    )
    elements = work.split_tokens * model.hidden
    gelu = activation("head.activation", work, elements, 1, block=frozenset())
    return [
        product,
        replace(gelu, reruns_with=frozenset(), dropped_with=frozenset()),
        _norm(model, work, "head.norm"),
    ]


def _norm(model: Model, work: RankWork, name: str) -> Operation:
    return norm(
        name,
        model,
        work,
        tokens=work.split_tokens,
        width=model.hidden,
        parameters=tp_share(work, model.norm_parameters),
        collectives=norm_statistics(model, work),
    )


def head_operations(model: Model, work: RankWork, *, holds_copy: Bools) -> list[Operation]:
    """Final norm, product with the vocabulary and cross entropy, split along the vocabulary.

    Without a vocabulary there is only the norm. Only a share of the tokens (`loss_tokens`) may
    reach the product. A reward model has one column in its place.

    Parameters
    ----------
    holds_copy
        Rows in which the head has its own weights: untied models, and tied ones whose embedding is
        on another stage.
    """
    columns = np.where(work.rates_answers, 1.0, vocabulary_share(model, work))
    bias = columns if model.head_bias else zeros(work)
    operations = [joined_streams(model, work)] if model.streams > 1 else []
    if model.final_norm:
        operations.append(_norm(model, work, "final_norm"))
    if not model.vocab:
        return [*operations, weights_alone("head", work)]
    if model.head_transform:
        operations += _transform(model, work)
    work = replace(work, sequences=work.sequences * work.loss_tokens)
    chunk = chunk_tokens(work, model.vocab, model.hidden)
    head = linear(
        "head",
        work,
        tokens=work.tokens,
        inputs=model.hidden,
        outputs=columns,
        bias=bias,
        saved_tokens=work.saved_tokens,
        sixteen_bits=~work.quantized_head,
        collectives=before_column_parallel(work, model.hidden),
        parameters=np.where(holds_copy, columns * model.hidden, 0.0) + bias,
    )
    loss = loss_operation(work, columns=columns, chunk=chunk, hidden=model.hidden)
    return [*operations, with_chunks(head, work, chunk), loss]

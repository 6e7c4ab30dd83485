"""Modules of multi-token prediction: each one more layer that predicts one more token ahead."""

from dataclasses import replace

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.model import Model
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import layer_operations
from shardwise.ops.linear import linear
from shardwise.ops.norm import norm
from shardwise.ops.operation import Operation, RankWork, zeros
from shardwise.ops.tp_comm import before_column_parallel, joined_columns

__all__ = ["mtp_operations"]


def mtp_operations(
    model: Model, work: RankWork, *, holds_table: Bools | None = None
) -> list[Operation]:
    """One module: embedding, two norms, projection, a layer of the last kind, norm, head, loss.

    The embedding of the next token and the state before are normed, put side by side and
    projected from 2 h to h; table and head are the model's own (arXiv 2412.19437, section 2.2).
    The projection is column-parallel and its output gathered (Megatron-LM core 0.13,
    multi_token_prediction.py).

    Parameters
    ----------
    holds_table
        Rows in which the rank needs a copy of the table: the embedding is on another one, and no
        tied head is its copy already. None: none.
    """
    copied = np.zeros(work.tp.shape, dtype=np.bool_) if holds_table is None else holds_table
    lookup = [
        replace(o, parameters=np.where(copied, o.parameters, zeros(work)))
        for o in embedding_operations(model, work)
    ]
    norms = [
        norm(
            name,
            work,
            tokens=work.split_tokens,
            width=model.hidden,
            parameters=float(model.norm_parameters),
        )
        for name in ("embedding_norm", "hidden_norm")
    ]
    projection = linear(
        "projection",
        work,
        tokens=work.tokens,
        inputs=2 * model.hidden,
        outputs=model.hidden / work.tp,
        saved_tokens=work.saved_tokens,
        sixteen_bits=True,
        collectives=(
            *before_column_parallel(work, 2 * model.hidden),
            *joined_columns(work, model.hidden),
        ),
    )
    layer = layer_operations(model, model.layers[-1], work)
    shared = np.zeros(work.tp.shape, dtype=np.bool_)
    head = head_operations(model, work, holds_copy=shared)
    operations = [*lookup, *norms, projection, *layer, *head]
    return [replace(o, name=f"mtp.{o.name}") for o in operations]

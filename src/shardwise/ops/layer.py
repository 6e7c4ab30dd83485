"""A whole layer as a list of operations, and the columns it is built from."""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.model import Layer, Model
from shardwise.ops.attention import attention_operations
from shardwise.ops.mlp import mlp_operations
from shardwise.ops.norm import norm, residual
from shardwise.ops.operation import Operation, RankWork
from shardwise.stack import Stack
from shardwise.strategy import DTYPES
from shardwise.table import Table

__all__ = ["DTYPE_BYTES", "layer_operations", "rank_work", "stack_column"]

DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
_BYTES_BY_CODE = np.array([DTYPE_BYTES[name] for name in DTYPES])


def stack_column(table: Table, field: str) -> Floats:
    """A numeric field of each row's stack."""
    return np.array([float(getattr(stack, field)) for stack in table.stacks])[table.stack]


def rank_work(table: Table) -> RankWork:
    """Turn strategies into what one rank does of one micro-batch."""
    element_bytes = _BYTES_BY_CODE[table.dtype]
    accumulates = np.array([_gradient_bytes(stack) for stack in table.stacks])[table.stack]
    return RankWork(
        sequences=table.micro_batch_size.astype(np.float64),
        seq_len=table.seq_len / table.cp,
        tp=table.tp.astype(np.float64),
        sequence_parallel=table.sequence_parallel,
        attention=table.attention,
        regather=table.tp_regather,
        fused_activation=table.fused_activation,
        element_bytes=element_bytes,
        gradient_bytes=np.where(accumulates > 0, accumulates, element_bytes),
        flash=_stack_is_flash(table) & (element_bytes < DTYPE_BYTES["fp32"]),
        loss_forward_bytes=stack_column(table, "loss_forward_bytes"),
        loss_backward_bytes=stack_column(table, "loss_backward_bytes"),
        loss_saved_bytes=stack_column(table, "loss_saved_bytes"),
    )


def _stack_is_flash(table: Table) -> Bools:
    return np.array([stack.attention == "flash" for stack in table.stacks])[table.stack]


def _gradient_bytes(stack: Stack) -> float:
    """Size of an accumulated gradient; 0 where it follows the strategy's dtype."""
    return DTYPE_BYTES[stack.gradient_dtype] if stack.gradient_dtype != "compute" else 0.0


def layer_operations(model: Model, layer: Layer, work: RankWork) -> list[Operation]:
    """Norm, attention, residual, norm, MLP, residual; or both blocks beside each other.

    In a parallel layer both blocks read one norm, share one exchange before and one after, and
    are added in one residual (arXiv 2204.02311, section 2).
    """

    def norm_here(name: str) -> Operation:
        parameters = float(model.norm_parameters)
        return norm(name, work, tokens=work.split_tokens, width=model.hidden, parameters=parameters)

    def residual_here(name: str, branches: int = 1) -> Operation:
        return residual(name, work, width=model.hidden, dropout=model.dropout, branches=branches)

    attention = attention_operations(model, layer.attention, work)
    mlp = mlp_operations(model, layer.mlp, work, exchange=not layer.parallel)
    if layer.parallel:
        return [norm_here("norm"), *attention, *mlp, residual_here("residual", branches=2)]
    return [
        norm_here("attention.norm"),
        *attention,
        residual_here("attention.residual"),
        norm_here("mlp.norm"),
        *mlp,
        residual_here("mlp.residual"),
    ]

"""A whole layer as a list of operations, and the columns it is built from."""

from collections.abc import Callable

import numpy as np

from shardwise.config.enums import AttentionImplementation, Dtype, GradientDtype
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.stack import Stack
from shardwise.config.strategy_table import Table
from shardwise.ops.attention import attention_operations
from shardwise.ops.mlp import mlp_operations
from shardwise.ops.moe import moe_operations
from shardwise.ops.norm import norm, residual
from shardwise.ops.operation import Operation, RankWork
from shardwise.ops.quantization import dispatch_bytes
from shardwise.ops.registry import operations_of_kind
from shardwise.ops.summa import norm_statistics, own_part

__all__ = ["DTYPE_BYTES", "layer_operations", "rank_work"]

DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
_NORM_PARTS = frozenset({"attention_norm", "mlp_norm", "every_other"})
_Block = Callable[[frozenset[str]], list[Operation]]
_BYTES_BY_CODE = np.array([DTYPE_BYTES[name] for name in Dtype])


def rank_work(table: Table) -> RankWork:
    """Turn strategies into what one rank does of one micro-batch."""
    element_bytes = _BYTES_BY_CODE[table.dtype]
    accumulates = table.by_stack(_gradient_bytes)
    return RankWork(
        sequences=table.micro_batch_size.astype(np.float64),
        seq_len=table.seq_len / (table.cp * table.tp2),
        document_len=np.where(table.document_len > 0, table.document_len, table.seq_len) * 1.0,
        tp=table.tp.astype(np.float64),
        tp2=table.tp2.astype(np.float64),
        summa=table.summa,
        panels=table.panels.astype(np.float64),
        cp=table.cp.astype(np.float64),
        cp_exchange=table.cp_exchange,
        ep=table.ep.astype(np.float64),
        etp=table.etp.astype(np.float64),
        capacity=table.expert_capacity,
        imbalance=table.expert_imbalance,
        vocab_multiple=table.by_stack(lambda stack: stack.vocab_multiple),
        sequence_parallel=table.sequence_parallel,
        attention=table.attention,
        regather=table.tp_regather,
        fused_activation=table.fused_activation,
        element_bytes=element_bytes,
        quantization=table.quantization,
        dispatch_bytes=dispatch_bytes(table.dispatch_dtype, element_bytes),
        training=table.training,
        gradient_bytes=np.where(accumulates > 0, accumulates, element_bytes),
        flash=table.by_stack(lambda stack: stack.attention == AttentionImplementation.FLASH)
        & (element_bytes < DTYPE_BYTES["fp32"]),
        fused_norm=table.by_stack(lambda stack: stack.fused_norm),
        fused_swiglu=table.by_stack(lambda stack: stack.fused_swiglu),
        fused_accumulation=table.by_stack(lambda stack: stack.fused_gradient_accumulation),
        loss_forward_bytes=table.by_stack(lambda stack: stack.loss_forward_bytes),
        loss_backward_bytes=table.by_stack(lambda stack: stack.loss_backward_bytes),
        loss_saved_bytes=table.by_stack(lambda stack: stack.loss_saved_bytes)
        + np.where(table.tp > 1, table.by_stack(lambda stack: stack.loss_split_bytes), 0.0),
    )


def _gradient_bytes(stack: Stack) -> float:
    """Size of an accumulated gradient; 0 where it follows the strategy's dtype."""
    return (
        0.0 if stack.gradient_dtype == GradientDtype.COMPUTE else DTYPE_BYTES[stack.gradient_dtype]
    )


def layer_operations(model: Model, layer: Layer, work: RankWork) -> list[Operation]:
    """Attention and feed-forward block, each with its norms and residual; or both side by side.

    In a parallel layer both blocks read one norm, share one exchange before and one after, and
    are added in one residual (arXiv 2204.02311, section 2). Layers of a registered kind do what
    that says.
    """
    if layer.kind != OWN_KIND:
        return operations_of_kind(layer.kind)(model, layer, work)

    def norm_here(
        name: str,
        parts: frozenset[str] = frozenset(),
        rebuilt: frozenset[str] = frozenset(),
        *,
        inner: bool = False,
    ) -> Operation:
        return norm(
            name,
            work,
            tokens=work.split_tokens,
            width=model.hidden,
            parameters=own_part(work, model.norm_parameters),
            collectives=norm_statistics(model, work),
            reruns_with=parts,
            dropped_with=rebuilt | (parts & {"every_other"}),
            input_rebuilt=inner,
        )

    def residual_here(name: str, branches: int = 1) -> Operation:
        return residual(name, work, width=model.hidden, dropout=model.dropout, branches=branches)

    if layer.parallel:
        assert layer.mlp is not None  # noqa: S101 - validated
        attention = attention_operations(model, layer.attention, work, norm_parts=_NORM_PARTS)
        mlp = mlp_operations(model, layer.mlp, work, exchange=False, norm_parts=_NORM_PARTS)
        shared = norm_here("norm", _NORM_PARTS)
        return [shared, *attention, *mlp, residual_here("residual", branches=2)]

    def with_norms(name: str, part: str, block: _Block) -> list[Operation]:
        parts = frozenset({part, "every_other"}) if layer.norms != "post" else frozenset[str]()
        inner = name == "mlp"
        rebuilt = frozenset({"attention_out"} if inner else ())
        before = (
            [norm_here(f"{name}.norm", parts, rebuilt, inner=inner)]
            if layer.norms != "post"
            else []
        )
        after = [norm_here(f"{name}.post_norm")] if layer.norms != "pre" else []
        return [*before, *block(parts), *after, residual_here(f"{name}.residual")]

    def attention_block(parts: frozenset[str]) -> list[Operation]:
        return attention_operations(model, layer.attention, work, norm_parts=parts)

    def feed_forward(parts: frozenset[str]) -> list[Operation]:
        if layer.moe is not None:
            return moe_operations(model, layer.moe, work, norm_parts=parts)
        assert layer.mlp is not None  # noqa: S101 - validated
        return mlp_operations(model, layer.mlp, work, exchange=True, norm_parts=parts)

    return [
        *with_norms("attention", "attention_norm", attention_block),
        *with_norms("mlp", "mlp_norm", feed_forward),
    ]

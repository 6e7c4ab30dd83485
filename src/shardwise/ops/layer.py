"""Operations of layers and multi-token prediction modules, and the columns they are built from."""

from collections.abc import Callable, Hashable
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import (
    ROUTED_EXPERTS,
    BaseWeights,
    Dtype,
    ExpertKernel,
    GraphScope,
    NormPlacement,
)
from shardwise.config.model import OWN_KIND, Layer, Model
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.ops.attention import attention_operations
from shardwise.ops.embedding import embedding_operations, head_operations, weights_alone
from shardwise.ops.linear import before_column_parallel, gathered_columns, linear
from shardwise.ops.mixer import is_mamba, mixer_operations
from shardwise.ops.mlp import mlp_operations
from shardwise.ops.moe import moe_operations
from shardwise.ops.norm import norm, residual
from shardwise.ops.operation import Operation, RankWork, zeros
from shardwise.ops.precision import gradient_size
from shardwise.ops.quantization import by_recipe, dispatch_bytes, frozen_bytes
from shardwise.ops.registry import operations_of_kind
from shardwise.ops.streams import layer_embedding, stream_mix, stream_residual
from shardwise.ops.summa import norm_statistics, tp_share
from shardwise.records import fields, replace

DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
_NORM_PARTS = frozenset({"attention_norm", "mlp_norm", "every_other"})
_Block = Callable[[frozenset[str]], list[Operation]]
KnownBlocks = dict[Hashable, list[Operation]]
"""Operations of blocks of layers, by what they are built from."""
_BYTES_BY_CODE = np.array([DTYPE_BYTES[name] for name in Dtype])
# Operations by `OffloadPart`. Every operation has one part, so the parts make up a layer. Of the
# modules of Megatron Core 0.19 (--offload-modules) attn_norm, qkv_linear, core_attn, attn_proj and
# mlp_norm are the first five parts, expert_fc1 is expert_up, and moe_act is activation (also of
# dense layers).
# A norm saves its input, a product its own, an activation the outputs of the products before it.
_OFFLOAD_PARTS = {
    # With the mask of the residual after the block; in a parallel layer there is one of each.
    "attention_norm": (
        "attention.mix",
        "attention.norm",
        "attention.post_norm",
        "attention.stream_norm",
        "attention.residual",
        "mamba.norm",
        "mamba.post_norm",
        "mamba.stream_norm",
        "mamba.residual",
        "norm",
        "residual",
    ),
    # All projections to queries, keys and values, and what lies between them and the core.
    "qkv": (
        "attention.qkv",
        "attention.q",
        "attention.q_down",
        "attention.q_norm",
        "attention.q_up",
        "attention.kv_down",
        "attention.kv_norm",
        "attention.kv_up",
        "attention.qk_norm",
        "attention.relative",
        "attention.gate",
        "attention.q_absorb",
        "attention.compress",
        "attention.index",
        "attention.index_q",
        "attention.rope",
        "mamba.in",
        "mamba.conv",
        "mamba.select",
        "mamba.step",
        "mixer.in",
        "mixer.gate_down",
        "mixer.gate_up",
        "mixer.conv",
    ),
    "core_attention": (
        "attention.index_scores",
        "attention.core",
        "attention.softmax",
        "attention.out_absorb",
        "attention.gated",
        "mamba.core",
        "mixer.core",
    ),
    "attention_out": (
        *("attention.out_norm", "attention.out_down", "attention.out"),
        *("mamba.gate", "mamba.out", "mixer.gate", "mixer.out"),
    ),
    "mlp_norm": (
        *("mlp.mix", "mlp.norm", "mlp.post_norm", "mlp.stream_norm", "mlp.residual"),
        *("mlp.layer_gate", "mlp.layer_up", "mlp.layer_norm"),
    ),
    "mlp": ("mlp.up", "mlp.inner_norm", "mlp.down", "moe.shared_up", "moe.shared_down"),
    # Router and shared experts read one input, which the router saves.
    "router": (
        "moe.router_norm",
        "moe.router",
        "moe.top_k",
        "moe.pre_norm",
        "moe.shared_norm",
        "moe.routed_norm",
        "moe.post_norm",
        "moe.dispatch",
        "moe.combine",
        "moe.shared_gate",
        "moe.latent_down",
        "moe.latent_up",
        "moe.add",
    ),
    "expert_up": ("moe.up",),
    "activation": ("mlp.activation", "moe.activation", "moe.shared_activation"),
    "expert_down": ("moe.down",),
}
_ATTENTION_PARTS = ("attention_norm", "qkv", "core_attention", "attention_out")
_ENDS_OF_BLOCK = ("norm", "post_norm", "stream_norm", "residual")
_ATTN, _MLP, _MOE, _MAMBA = (GraphScope.bits([one]) for one in ("attn", "mlp", "moe", "mamba"))
_ROUTER = _MOE | GraphScope.bits(["moe_router"])
_OFFLOAD_PART_OF = {name: part for part, names in _OFFLOAD_PARTS.items() for name in names}


def rank_work(table: Table, *, longest: bool = False) -> RankWork:
    """The work of one rank on one micro-batch, for the strategies of a table.

    Parameters
    ----------
    longest
        Whether it is the longest micro-batch of data of several lengths, or the usual one.
    """
    element_bytes = _BYTES_BY_CODE[table.dtype]
    quantized_bytes = table.by_stack(lambda stack: stack.quantized_activation_input) * by_recipe(
        table.quantization, lambda recipe: recipe.operand_bytes
    )
    columns: dict[str, Any] = {
        "rates_answers": table.rates_answers,
        "compares_answers": table.compares_answers,
        "runs_reference": table.runs_reference,
        "sequences": (table.micro_batch_size * table.sequences_per_sample) * 1.0
        if longest
        else table.usual_sequences,
        "seq_len": (table.longest_len if longest else table.usual_len) / (table.cp * table.tp2),
        "document_len": table.longest_document_len if longest else table.usual_document_len,
        "capacity": table.expert_capacity,
        "imbalance": table.expert_imbalance,
        "regather": table.tp_regather,
        "element_bytes": element_bytes,
        "frozen_bytes": frozen_bytes(table, element_bytes),
        "unpacks_frozen": (table.in_effect("base_weights") == BaseWeights.INT4.code)
        & table.by_stack(lambda stack: not stack.fused_int4),
        "quantized_attention": table.in_recipes(lambda stack: stack.quantized_attention),
        "quantized_head": table.in_recipes(lambda stack: stack.quantized_head),
        "dispatch_bytes": dispatch_bytes(table.dispatch_dtype, element_bytes),
        "gradient_bytes": gradient_size(table, element_bytes),
        "flash": table.fused_attention,
        "activation_input_bytes": np.where(quantized_bytes > 0, quantized_bytes, element_bytes),
        "dense_table": table.by_stack(lambda stack: stack.dense_embedding_gradient),
        "adds_expert_bias": table.runs_experts_apart,
        "loops_experts": table.expert_kernels == ExpertKernel.LOOP.code,
        "fused_norm": table.by_compile("fused_norm") > 0,
        "fused_swiglu": table.by_compile("fused_swiglu") > 0,
        "fused_accumulation": table.by_stack(lambda stack: stack.fused_gradient_accumulation),
        "loss_saved_bytes": table.by_stack(lambda stack: stack.loss_saved_bytes)
        + np.where(table.tp > 1, table.by_stack(lambda stack: stack.loss_split_bytes), 0.0),
        "loss": (loss := table.loss_in_effect),
        "own_loss": loss == table.by_stack(lambda stack: stack.loss_with_figures.code),
    }
    for one in fields(RankWork):  # the others have the same name in the table or its stacks
        if one.name in columns:
            continue
        if one.name in Stack.model_fields and one.name not in COLUMNS:
            columns[one.name] = table.by_stack(attrgetter(one.name))
        else:
            column = getattr(table, one.name)
            columns[one.name] = column.astype(np.float64) if one.type == Floats else column
    return RankWork(**columns)


def layer_operations(
    model: Model, layer: Layer, work: RankWork, known: KnownBlocks | None = None
) -> list[Operation]:
    """Operations of a layer in forward order: attention and MLP, each with norms and residual.

    In a parallel layer both blocks read one norm, share one collective before and one after, and
    are added in one residual (arXiv 2204.02311, section 2). With a second norm of the same input
    (arXiv 2204.06745, section 2.1), the input of the MLP is gathered and saved separately. Experts
    in its place send the normed input themselves. Layers of a registered kind have the operations
    that it was registered with.

    Parameters
    ----------
    known
        Blocks of the layers before, which have the same model and work: equal ones are not built
        again, so that their operations are the same objects. Those of this layer are added.
    """
    if not layer.quantized:
        work = _in_16_bits(work)
    if layer.kind != OWN_KIND:
        return operations_of_kind(layer.kind)(model, layer, work)
    operations = _blocks(model, layer, work, {} if known is None else known)
    if layer.more_parameters:
        operations = [*operations, weights_alone("more", work, layer.more_parameters)]
    return operations


def _in_16_bits(work: RankWork) -> RankWork:
    """The same work in the type of each row, without its recipe."""
    inputs = np.where(work.quantization > 0, work.element_bytes, work.activation_input_bytes)
    return replace(
        work,
        quantization=np.zeros_like(work.quantization),
        quantized_attention=np.zeros_like(work.quantized_attention),
        activation_input_bytes=inputs,
    )


def _blocks(model: Model, layer: Layer, work: RankWork, known: KnownBlocks) -> list[Operation]:
    """Operations of a layer of our kind with a field for each."""
    if layer.parallel:
        norm_here = partial(_norm, model, work)
        own = layer.second_norm
        attention = attention_operations(model, layer.own_attention, work, norm_parts=_NORM_PARTS)
        if layer.moe is not None:
            experts = moe_operations(model, layer.moe, work, norm_parts=_NORM_PARTS)
            normed, added = norm_here("norm", _NORM_PARTS), _residual(model, work, "residual", 2)
            return [normed, *attention, *experts, added]
        assert layer.mlp is not None  # noqa: S101 - validated
        mlp = mlp_operations(
            model, layer.mlp, work, gathers=own, reduces=False, norm_parts=_NORM_PARTS
        )
        first, second = norm_here("norm", _NORM_PARTS), norm_here("mlp.norm", _NORM_PARTS)
        # Both norms read one tensor, which the first one saves.
        copies = second.saved_bytes - work.split_tokens * model.hidden * work.element_bytes
        norms = [replace(second, saved_bytes=copies)] if own else []
        return [first, *attention, *norms, *mlp, _residual(model, work, "residual", branches=2)]
    operations = _sequential(model, layer, work, known)
    return operations + (layer_embedding(model, work) if model.layer_embedding else [])


def _norm(
    model: Model,
    work: RankWork,
    name: str,
    parts: frozenset[str] = frozenset(),
    rebuilt: frozenset[str] = frozenset(),
    *,
    inner: bool = False,
) -> Operation:
    return norm(
        name,
        model,
        work,
        tokens=work.split_tokens,
        width=model.hidden,
        parameters=tp_share(work, model.norm_parameters),
        collectives=norm_statistics(model, work),
        reruns_with=parts,
        dropped_with=rebuilt | (parts & {"every_other"}),
        input_rebuilt=inner,
    )


def _residual(model: Model, work: RankWork, name: str, branches: int = 1) -> Operation:
    return residual(name, work, width=model.hidden, dropout=model.dropout, branches=branches)


def _sequential(model: Model, layer: Layer, work: RankWork, blocks: KnownBlocks) -> list[Operation]:
    """Attention and then MLP; blocks that are known are not built again."""

    def once(build: Callable[[], list[Operation]], *parts: Hashable) -> list[Operation]:
        key = layer.quantized, *parts
        if key not in blocks:
            blocks[key] = build()
        return blocks[key]

    def with_norms(name: str, part: str, block: _Block, *built_from: Hashable) -> list[Operation]:
        normed_before = layer.norms in (NormPlacement.PRE, NormPlacement.BOTH)
        normed_after = layer.norms in (NormPlacement.POST, NormPlacement.BOTH)
        in_stream = layer.norms == NormPlacement.STREAM
        parts = frozenset({part, "every_other"}) if normed_before else frozenset[str]()
        inner = name == "mlp"
        branches = 2 if layer.side_by_side and not inner else 1
        several = model.streams > 1
        rebuilt = frozenset({"attention_out"} if inner else ()) | (
            {"streams"} if several else set()
        )

        def before() -> list[Operation]:
            mixture = [stream_mix(f"{name}.mix", model, work)] if several else []
            if not normed_before:
                return mixture
            return [*mixture, _norm(model, work, f"{name}.norm", parts, rebuilt, inner=inner)]

        def after() -> list[Operation]:
            first = [_norm(model, work, f"{name}.post_norm")] if normed_after else []
            last = [_norm(model, work, f"{name}.stream_norm")] if in_stream else []
            if several:
                return [*first, stream_residual(f"{name}.residual", model, work), *last]
            return [*first, _residual(model, work, f"{name}.residual", branches), *last]

        return [
            *once(before, name, "before", layer.norms),
            *once(partial(block, parts), name, parts, *built_from),
            *once(after, name, "after", layer.norms, branches),
        ]

    mixing = partial(_mixing, model, layer, work)
    feed_forward = partial(_feed_forward, model, layer, work)
    operations = []
    if name := _mixing_name(layer):
        operations += with_norms(name, "attention_norm", mixing, layer.attention, layer.mixer)
    if layer.mlp is not None or layer.moe is not None:
        operations += with_norms("mlp", "mlp_norm", feed_forward, layer.mlp, layer.moe)
    return operations


def _mixing_name(layer: Layer) -> str:
    """Name of the block that mixes tokens; empty where there is none."""
    if layer.attention is None and is_mamba(layer.mixer):
        return "mamba"
    return "" if layer.attention is None and layer.mixer is None else "attention"


def _mixing(model: Model, layer: Layer, work: RankWork, parts: frozenset[str]) -> list[Operation]:
    """Attention, a mixer, or both side by side, which share the collectives of attention."""
    operations = []
    if layer.attention is not None:
        operations += attention_operations(model, layer.attention, work, norm_parts=parts)
    if layer.mixer is not None:
        alone = layer.attention is None
        operations += mixer_operations(
            model, layer.mixer, work, norm_parts=parts, gathers=alone, reduces=alone
        )
    return operations


def _feed_forward(
    model: Model, layer: Layer, work: RankWork, parts: frozenset[str]
) -> list[Operation]:
    if layer.moe is not None:
        return moe_operations(model, layer.moe, work, norm_parts=parts)
    assert layer.mlp is not None  # noqa: S101 - validated
    return mlp_operations(model, layer.mlp, work, norm_parts=parts)


def mtp_operations(
    model: Model, work: RankWork, *, holds_table: Bools | None = None
) -> list[Operation]:
    """One module: embedding, two norms, projection, its layers, norm, head, loss.

    The embedding of the next token and the hidden state are normalized, concatenated and projected
    from 2 h to h; table and head are shared with the model (arXiv 2412.19437, section 2.2).
    The projection is column-parallel and its output gathered (Megatron-LM core 0.13,
    multi_token_prediction.py).

    Parameters
    ----------
    holds_table
        Rows in which the rank needs a copy of the table: the embedding is on another rank, and no
        tied head is a copy already. None: no row.
    """
    copied = np.zeros(work.tp.shape, dtype=np.bool_) if holds_table is None else holds_table
    lookup = [
        replace(o, parameters=np.where(copied, o.parameters, zeros(work)))
        for o in embedding_operations(model, work)
        if o.name == "embedding"
    ]
    norms = [
        norm(
            name,
            model,
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
            *gathered_columns(work, model.hidden),
        ),
    )
    layers = [o for one in model.mtp_layers for o in layer_operations(model, one, work)]
    shared = np.zeros(work.tp.shape, dtype=np.bool_)
    head = head_operations(model, work, holds_copy=shared)
    operations = [*lookup, *norms, projection, *layers, *head]
    return [replace(o, name=f"mtp.{o.name}") for o in operations]


def modules_of(operation: Operation) -> int:
    """Modules that CUDA graphs capture an operation with: bits of `GraphScope`, `ROUTED_EXPERTS`.

    0: of none.

    The norm and the sum of a block of experts go with its router, as shared experts do
    (Megatron-LM, docs/user-guide/features/cuda_graph.md).
    """
    if operation.routed:
        return _MOE | ROUTED_EXPERTS
    name = operation.name.removeprefix("mtp.")
    block, _, module = name.partition(".")
    if block == "mlp":
        return _MLP | _ROUTER if module in _ENDS_OF_BLOCK else _MLP
    if block == "moe":
        return _ROUTER
    if block == "mamba":
        return _MAMBA
    return _ATTN if part_of(name) in _ATTENTION_PARTS else 0


def part_of(operation: str) -> str:
    """Offload part of an operation by its name; adapters count with their product.

    "other" stands for what modules of multi-token prediction save in addition to their layer, what
    embedding and head save, and what layers of registered kinds save under other names.
    """
    product = operation.removeprefix("mtp.").removesuffix(".lora_a").removesuffix(".lora_b")
    return _OFFLOAD_PART_OF.get(product, "other")

"""The fourteen layers of one transformer layer, by method (section 4)."""

from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Floats, Ints, total
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reference.inputs import Columns, Method
from shardwise.predecessors.nersc.reference.layers import (
    Collective,
    Layer,
    attention,
    bias,
    column_split,
    dropout,
    gelu,
    layer_norm,
    row_split,
    summa,
)


@dataclass(frozen=True, slots=True)
class Block:
    """Layers of one transformer layer, of one micro-batch on one accelerator."""

    mlp: tuple[Layer, ...]
    attention: tuple[Layer, ...]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, in the published order."""
        return self.mlp + self.attention

    @property
    def boundary(self) -> Floats:
        """What one stage sends to the next: what the MLP's norm saves [GB]."""
        return self.mlp[-1].stored

    @property
    def stored(self) -> Floats:
        """Saved from forward to backward [GB]."""
        return total((layer.stored for layer in self.layers), self.boundary)

    @property
    def weights(self) -> Floats:
        """[GB]."""
        return total((layer.weights for layer in self.layers), self.boundary)

    @property
    def flops(self) -> Floats:
        """Forward and backward [TFLOP]."""
        passes = (layer.flops_fwd + layer.flops_bwd for layer in self.layers)
        return total(passes, self.boundary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Floor divisions of the model's dimensions, as floats."""

    b: Floats
    tokens: Floats
    """b L, L = l // m2."""
    queries: Floats
    """L."""
    heads: Floats
    ffn: Floats
    """f // m1."""
    e: Floats
    """E // m1."""
    qkv: Floats
    """3 e // m1."""


def _sizes(model: NerscModel, columns: Columns) -> _Sizes:
    length = model.l // columns.m2
    return _Sizes(
        b=_float(columns.b),
        tokens=_float(columns.b * length),
        queries=_float(length),
        heads=_float(model.h // columns.m1),
        ffn=_float(model.ffn // columns.m1),
        e=_float(model.e // columns.m1),
        qkv=_float(3 * model.e // columns.m1),
    )


def _float(column: Ints) -> Floats:
    return column.astype(np.float64)


def block_of(model: NerscModel, system: NerscSystem, method: Method, columns: Columns) -> Block:
    """Layers of one transformer layer; of the columns only b, m1, m2 and nb count."""
    sizes = _sizes(model, columns)
    if method == "2d":
        return _summa_block(model, system, columns, sizes)
    return _split_block(model, system, columns, sizes, context=method == "2d-seqp")


def _core(model: NerscModel, system: NerscSystem, sizes: _Sizes, *, gathers: bool) -> Layer:
    """Attention of the queries on one accelerator to all keys."""
    keys, width = float(model.l), float(model.e // model.h)
    return attention(sizes.b, sizes.heads, sizes.queries, keys, width, system, gathers=gathers)


def _split_block(
    model: NerscModel, system: NerscSystem, columns: Columns, sizes: _Sizes, *, context: bool
) -> Block:
    """Weights split over m1, and with `context` the sequence over m2 (1d and 2d-seqp).

    Faults: 1d adds its biases after the row split to unsplit rows; 2d-seqp adds that of the
    attention to widths of e // m1.
    """
    e, size = float(model.e), system.element_size
    width = np.full_like(sizes.e, e)
    part = _float(columns.b * (model.l // columns.m2 // columns.m1))
    gathered = (Collective("allgather", sizes.tokens * e * size),)
    scattered = (Collective("reducescatter", sizes.tokens * e * size),)
    norm = {"fwd": gathered, "bwd": scattered}
    inner = sizes.tokens * sizes.ffn
    mlp = (
        column_split("fc1", sizes.tokens, e, sizes.ffn, system),
        bias("fc1-bias", sizes.tokens, sizes.ffn, system),
        gelu("act1", inner, system),
        dropout("dpr1", inner, system),
        row_split("fc2", sizes.tokens, sizes.ffn, e, system),
        bias("fc2-bias", part if context else sizes.tokens, width, system),
        dropout("dpr2", part * e, system),
        layer_norm("ln1", part, width, system, **norm),
    )
    added = bias("vproj-bias", sizes.tokens, sizes.e if context else width, system)
    return Block(
        mlp,
        (
            column_split("qkv", sizes.tokens, e, sizes.qkv, system),
            _core(model, system, sizes, gathers=context),
            row_split("vproj", sizes.tokens, sizes.e, e, system),
            added,
            dropout("dpr_v", part * e, system),
            layer_norm("ln2", part, width, system, **norm),
        ),
    )


def _summa_block(model: NerscModel, system: NerscSystem, columns: Columns, sizes: _Sizes) -> Block:
    """Products by SUMMA, attention with context parallelism over m2 (2d).

    Fault: the norms are l // m1 wide, which should be e // m1.
    """
    e, f, size = float(model.e), float(model.ffn), system.element_size
    panels = _float(columns.nb)
    of_e = sizes.e, _float(model.e // columns.m2)
    of_f = sizes.ffn, _float(model.ffn // columns.m2)
    outer = sizes.tokens * sizes.e
    statistics = 2 * sizes.tokens
    gradients = 2 * model.e // columns.m1 + 2 * columns.b * model.l // columns.m2
    narrow = _float(model.l // columns.m1)
    norm = {
        "fwd": (Collective("allreduce", statistics * size),),
        "bwd": (Collective("allreduce", _float(gradients) * size),),
    }

    def product(name: str, k: float, width: Floats, parts: tuple[Floats, Floats]) -> Layer:
        return summa(name, sizes.tokens, k, width, parts, panels, system)

    mlp = (
        product("fc1", e, sizes.ffn, of_e),
        bias("fc1-bias", sizes.tokens, sizes.ffn, system),
        gelu("act1", sizes.tokens * sizes.ffn, system),
        dropout("dpr1", sizes.tokens * sizes.ffn, system),
        product("fc2", f, sizes.e, of_f),
        bias("fc2-bias", sizes.tokens, sizes.e, system),
        dropout("dpr2", outer, system),
        layer_norm("ln1", sizes.tokens, narrow, system, **norm),
    )
    return Block(
        mlp,
        (
            product("qkv", e, sizes.qkv, of_e),
            _core(model, system, sizes, gathers=True),
            product("vproj", e, sizes.e, of_e),
            bias("vproj-bias", sizes.tokens, sizes.e, system),
            dropout("dpr_v", outer, system),
            layer_norm("ln2", sizes.tokens, narrow, system, **norm),
        ),
    )

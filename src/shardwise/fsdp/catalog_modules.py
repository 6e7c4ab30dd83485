"""Modules that execute the operations of a model, with names and shapes as in Hugging Face.

One module executes an operation of `ops`, or several in turn: `ops` has one product for queries,
keys and values, which are three projections here. Shapes are those of `torch.nn`: (out, in).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from shardwise.config.enums import AttentionBias, Norm, NormPlacement, Position, QkNorm
from shardwise.config.model import OWN_KIND, Attention, Layer, Model, Moe
from shardwise.ops.operation import Matmul, Operation, Phase

TABLE, HEAD = "embed_tokens", "lm_head"

# T5 distance buckets per head (arXiv 1910.10683, section 2.1).
_RELATIVE_BUCKETS = 32

_ATTENTION, _MLP = ("self_attn",), ("mlp",)
# Operations that one module executes, by its path in the layer. Those with weights are norms and
# linear layers.
_PATHS = {
    "norm": ("input_layernorm",),
    "attention.norm": ("input_layernorm",),
    "attention.post_norm": ("post_attention_layernorm",),
    "mlp.post_norm": ("post_feedforward_layernorm",),
    "attention.stream_norm": ("post_attention_layernorm",),
    "mlp.stream_norm": ("post_feedforward_layernorm",),
    "attention.q": (*_ATTENTION, "q_proj"),
    "attention.q_down": (*_ATTENTION, "q_a_proj"),
    "attention.q_norm": (*_ATTENTION, "q_a_layernorm"),
    "attention.q_up": (*_ATTENTION, "q_b_proj"),
    "attention.kv_down": (*_ATTENTION, "kv_a_proj_with_mqa"),
    "attention.kv_norm": (*_ATTENTION, "kv_a_layernorm"),
    "attention.kv_up": (*_ATTENTION, "kv_b_proj"),
    "attention.relative": (*_ATTENTION, "r_net"),
    "attention.rope": _ATTENTION,
    "attention.core": _ATTENTION,
    "attention.softmax": _ATTENTION,
    "attention.out": (*_ATTENTION, "o_proj"),
    "mlp.activation": _MLP,
    "mlp.down": (*_MLP, "down_proj"),
    "moe.shared_activation": (*_MLP, "shared_experts"),
    "moe.shared_down": (*_MLP, "shared_experts", "down_proj"),
    "moe.shared_gate": (*_MLP, "shared_expert_gate"),
    "moe.top_k": _MLP,
    "moe.dispatch": _MLP,
    "moe.activation": (*_MLP, "experts"),
    "moe.combine": _MLP,
    "moe.add": _MLP,
    "attention.residual": (),
    "mlp.residual": (),
    "residual": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A tensor of weights of a module."""

    name: str
    shape: tuple[int, ...]
    graded: bool = True
    """Whether it gets a gradient."""
    tied_to: str = ""
    """Fully qualified name of the tensor that it shares; empty: its own."""
    once: bool = False
    """Whether only the first module that has it holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The share of an operation that one module executes."""

    path: tuple[str, ...]
    """Names of the module below the component; empty: the component itself."""
    kind: str = ""
    """Class of the module; empty if another piece has it."""
    weights: tuple[Weight, ...] = ()
    share: float = 1.0
    """Of the operation's time."""
    width: float = 0.0
    """Numbers of the module's output for each token; 0: as the residual stream."""
    reduced_last: bool = False
    """Whether the module's inputs have no gradient."""
    shared: bool = False
    """Whether the module belongs to the root and runs here again, by its own name."""


def embedding_pieces(model: Model, operation: Operation) -> tuple[Piece, ...]:
    """Tables of tokens and learned positions: half of the time each; and a norm after them."""
    if operation.name == "embedding_norm":
        return (_norm(model, operation, ("embedding_norm",)),)
    if operation.parameters[0] == 0:
        return (Piece(path=()),)
    names = [(TABLE, model.vocab)]
    if model.position == Position.LEARNED:
        names.append(("embed_positions", model.max_positions or model.seq_len or 0))
    if model.token_types:
        names.append(("embed_token_types", model.token_types))
    return tuple(
        Piece(
            path=(name,),
            kind="Embedding",
            weights=(Weight(name="weight", shape=(rows, model.hidden)),),
            share=1 / len(names),
            reduced_last=True,
        )
        for name, rows in names
    )


def head_pieces(model: Model, operation: Operation) -> tuple[Piece, ...]:
    """Final norm, head without padding of the vocabulary, and the loss, which the root computes."""
    norms = {"final_norm": "norm", "head.norm": "head_norm"}
    if operation.name in norms:
        return (_norm(model, operation, (norms[operation.name],)),)
    if operation.name == "head.transform":
        return (_linear(operation, ("head_transform",)),)
    is_head = operation.name == "head" and model.vocab > 0
    return (_head(model) if is_head else Piece(path=()),)


def _head(model: Model, *, shared: bool = False) -> Piece:
    tied = f"{TABLE if model.tied_embeddings else HEAD}.weight"
    weight = Weight(name="weight", shape=(model.vocab, model.hidden), tied_to=tied)
    weights = (weight, Weight(name="bias", shape=(model.vocab,)))[: 1 + model.head_bias]
    return Piece(path=(HEAD,), kind="Linear", weights=weights, width=model.vocab, shared=shared)


def mtp_pieces(model: Model, operation: Operation) -> tuple[Piece, ...]:
    """One module of multi-token prediction, by Megatron's names; table and head are the model's."""
    name = operation.name.removeprefix("mtp.")
    norms = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "final_norm": "final_layernorm"}
    if name in norms:
        return (_norm(model, operation, (norms[name],)),)
    if name == "embedding":
        weight = Weight(name="weight", shape=(model.vocab, model.hidden), tied_to=f"{TABLE}.weight")
        piece = Piece(
            path=(TABLE,), kind="Embedding", weights=(weight,), reduced_last=True, shared=True
        )
        return (piece,)
    if name == "projection":
        return (_linear(operation, ("eh_proj",)),)
    if name == "head":
        return (_head(model, shared=True),)
    if name == "loss":
        return (Piece(path=()),)
    return layer_pieces(model, model.layers[-1], operation, name=name, below=("transformer_layer",))


def layer_pieces(
    model: Model,
    layer: Layer,
    operation: Operation,
    *,
    name: str | None = None,
    below: tuple[str, ...] = (),
) -> tuple[Piece, ...]:
    """Modules of a layer that execute one of its operations.

    Layers of a registered kind have a module for each operation with weights, by its name.
    """
    name = operation.name if name is None else name
    if layer.kind != OWN_KIND:
        return (_by_its_name(operation, name, below),)
    if name == "mlp.norm":
        last = (
            "post_attention_layernorm"
            if layer.norms == NormPlacement.PRE
            else "pre_feedforward_layernorm"
        )
        return (_norm(model, operation, (*below, last)),)
    if name in _SEVERAL:
        pieces = _SEVERAL[name](model, layer, operation)
    elif name in _PATHS:
        pieces = (_single(model, layer, operation, _PATHS[name]),)
    else:
        pieces = (_by_its_name(operation, name, ()),)
    return tuple(replace(piece, path=(*below, *piece.path)) for piece in pieces)


def _by_its_name(operation: Operation, name: str, below: tuple[str, ...]) -> Piece:
    path = (*below, name.replace(".", "_")) if operation.parameters[0] > 0 else below
    return _linear(operation, path)


def _single(model: Model, layer: Layer, operation: Operation, path: tuple[str, ...]) -> Piece:
    """The module that executes an operation alone, with its weights."""
    if operation.name.endswith("core"):
        return Piece(path=path, weights=_core_weights(model, layer.attention))
    if operation.name.endswith("relative"):
        return _relative(model, layer.attention, path)
    if operation.parameters[0] == 0:
        return Piece(path=path)
    if operation.name.endswith("activation"):
        scalars = [Weight(name=f"act_fn.alpha_{sign}", shape=(1,)) for sign in "pn"]
        return Piece(path=path, weights=tuple(scalars))
    if path[-1].endswith("layernorm"):
        return _norm(model, operation, path)
    return _linear(operation, path)


def _core_weights(model: Model, attention: Attention) -> tuple[Weight, ...]:
    """Sinks of the softmax; the vectors u and v of Transformer-XL (arXiv 1901.02860, 3.3)."""
    weights = [Weight(name="sinks", shape=(attention.heads,))] if attention.sinks else []
    if model.position == Position.RELATIVE_XL:
        shape = (attention.heads, attention.head_dim)
        weights += [Weight(name=name, shape=shape) for name in ("r_w_bias", "r_r_bias")]
    return tuple(weights)


def _relative(model: Model, attention: Attention, path: tuple[str, ...]) -> Piece:
    """Projection of sinusoids (Transformer-XL), or the one table of all layers (T5)."""
    if model.position == Position.RELATIVE_XL:
        width = attention.heads * attention.head_dim
        weight = Weight(name="weight", shape=(width, model.hidden))
        return Piece(path=path, kind="Linear", weights=(weight,), width=width)
    shape = (_RELATIVE_BUCKETS, attention.heads)
    table = Weight(name="relative_attention_bias", shape=shape, once=True)
    return Piece(path=_ATTENTION, weights=(table,))


def _norm(model: Model, operation: Operation, path: tuple[str, ...]) -> Piece:
    """A norm with the weights of the operation."""
    each = model.norm_parameters // model.hidden
    width = round(float(operation.parameters[0])) // each if each else model.hidden
    return _norm_of(model, path, width, width)


def _norm_of(
    model: Model, path: tuple[str, ...], weights: int, width: float, share: float = 1.0
) -> Piece:
    names = ("weight", "bias")[: model.norm_parameters // model.hidden]
    return Piece(
        path=path,
        kind="LayerNorm" if model.norm == Norm.LAYERNORM else "RMSNorm",
        weights=tuple(Weight(name=name, shape=(weights,)) for name in names),
        share=share,
        width=width,
    )


def _linear(operation: Operation, path: tuple[str, ...]) -> Piece:
    """A layer with the weights of the forward product; further weights are its bias."""
    left = round(float(operation.parameters[0]))
    shape = _product(operation)
    weights = []
    if 0 < (numbers := math.prod(shape)) <= left:
        weights.append(Weight(name="weight", shape=shape))
        left -= numbers
    if left > 0:
        weights.append(Weight(name="bias" if weights else "weight", shape=(left,)))
    kind = "Linear" if weights and len(weights[0].shape) > 1 else "Module"
    width = float(shape[-2]) if kind == "Linear" else 0.0
    return Piece(path=path, kind=kind if weights else "", weights=tuple(weights), width=width)


def _product(operation: Operation) -> tuple[int, ...]:
    """Shape (outputs, inputs) of the forward product; several: (products, outputs, inputs)."""
    for kernel in operation.kernels:
        if isinstance(kernel, Matmul) and kernel.phase is Phase.FORWARD:
            sides = (kernel.batch, kernel.n, kernel.k)
            batch, outputs, inputs = (round(float(side[0])) for side in sides)
            return (outputs, inputs) if batch == 1 else (batch, outputs, inputs)
    return (0,)


def _projections(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    """Queries, keys and values: shares of one product by their widths."""
    attention = layer.attention
    rows = {
        "q_proj": attention.heads * attention.head_dim,
        "k_proj": attention.kv_heads * attention.head_dim,
        "v_proj": attention.kv_heads * attention.value_dim,
    }
    biased = attention.bias in (AttentionBias.QKV, AttentionBias.ALL)
    return _side_by_side(_ATTENTION, rows, model.hidden, biased=biased)


def _side_by_side(
    path: tuple[str, ...], rows: dict[str, int], inputs: int, *, biased: bool
) -> tuple[Piece, ...]:
    """Linear layers of one input that are one product in the operations."""
    total = sum(rows.values())
    return tuple(
        Piece(
            path=(*path, name),
            kind="Linear",
            weights=(
                Weight(name="weight", shape=(outputs, inputs)),
                *((Weight(name="bias", shape=(outputs,)),) if biased else ()),
            ),
            share=outputs / total,
            width=outputs,
        )
        for name, outputs in rows.items()
    )


def _qk_norms(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    """Norms of queries and of keys, per head or over the full width."""
    attention = layer.attention
    heads = {"q_norm": attention.heads, "k_norm": attention.kv_heads}
    total = sum(heads.values())
    if attention.qk_norm == QkNorm.UNWEIGHTED:
        return (Piece(path=_ATTENTION),)
    pieces = []
    for name, count in heads.items():
        width = count * attention.head_dim
        own = width if attention.qk_norm == QkNorm.WIDTH else attention.head_dim
        pieces.append(_norm_of(model, (*_ATTENTION, name), own, width, count / total))
    return tuple(pieces)


def _up(path: tuple[str, ...], ffn: int, inputs: int, *, gated: bool, biased: bool) -> "_Pieces":
    rows = {"gate_proj": ffn, "up_proj": ffn} if gated else {"up_proj": ffn}
    return _side_by_side(path, rows, inputs, biased=biased)


def _mlp_up(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    mlp = layer.mlp
    assert mlp is not None  # noqa: S101 - it has the operation
    return _up(_MLP, mlp.ffn, model.hidden, gated=mlp.gated, biased=mlp.bias)


def _shared_up(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    moe = _moe(layer)
    path = (*_MLP, "shared_experts")
    return _up(path, moe.shared_ffn, model.hidden, gated=moe.gated, biased=moe.bias)


def _router(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    moe = _moe(layer)
    weights = [Weight(name="weight", shape=(moe.experts, model.hidden))]
    if moe.router_bias:
        weights.append(Weight(name="bias", shape=(moe.experts,)))
    if moe.selection_bias:
        # A buffer in most code, a parameter in shardwise's counts: it freezes no module.
        balance = Weight(name="e_score_correction_bias", shape=(moe.experts,), graded=False)
        weights.append(balance)
    path = (*_MLP, "router")
    return (Piece(path=path, kind="Router", weights=tuple(weights), width=moe.experts),)


def _experts_up(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    """All experts in one tensor, experts first (transformers 5, torchtitan)."""
    moe = _moe(layer)
    name, outputs = ("gate_up_proj", 2 * moe.ffn) if moe.gated else ("up_proj", moe.ffn)
    return (_of_experts(moe, name, outputs, model.hidden),)


def _experts_down(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    moe = _moe(layer)
    return (_of_experts(moe, "down_proj", model.hidden, moe.ffn),)


def _of_experts(moe: Moe, name: str, outputs: int, inputs: int) -> Piece:
    weights = [Weight(name=name, shape=(moe.experts, outputs, inputs))]
    if moe.bias:
        weights.append(Weight(name=f"{name}_bias", shape=(moe.experts, outputs)))
    return Piece(path=(*_MLP, "experts"), weights=tuple(weights))


def _moe(layer: Layer) -> Moe:
    assert layer.moe is not None  # noqa: S101 - it has the operation
    return layer.moe


_Pieces = tuple[Piece, ...]
_SEVERAL: dict[str, Callable[[Model, Layer, Operation], _Pieces]] = {
    "attention.qkv": _projections,
    "attention.qk_norm": _qk_norms,
    "mlp.up": _mlp_up,
    "moe.shared_up": _shared_up,
    "moe.router": _router,
    "moe.up": _experts_up,
    "moe.down": _experts_down,
}

"""A profile from shardwise's own operations: a model of the catalog, or any `Model`, without torch.

Times are those of an estimate of one data-parallel rank. Bytes follow the rules of
`cost.activation_walk` without recompute: an operation needs its transient bytes in addition to what
earlier operations saved, then saves its own; in backward, in reverse order, it needs them in
addition to what is still saved.

The model is cut into components (embedding, layers, multi-token prediction, head). Equal layers
share one component, so that the work is done once for each kind of layer.

Modules have names and shapes as in Hugging Face. One module executes an operation of `ops`, or
several in turn: `ops` has one product for queries, keys and values, which are three projections
here. Shapes are those of `torch.nn`: (out, in).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.enums import (
    AttentionBias,
    AttentionGate,
    Norm,
    NormPlacement,
    Position,
    QkNorm,
)
from shardwise.config.model import OWN_KIND, Attention, Layer, Model, ModelLike, Moe
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.cost.activation_walk import step_of
from shardwise.cost.component_costs import ComponentOperations, operation_costs
from shardwise.cost.layer_cost import layer_work
from shardwise.cost.operations import Machine, OperationCost
from shardwise.errors import Fault, InputError
from shardwise.fsdp.plan import DTYPE_BYTES, Dtype
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule, check
from shardwise.ops.operation import Matmul, Operation, Phase
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import refuse_illegal
from shardwise.parallel.placement import place

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
    "attention.gate": (*_ATTENTION, "g_proj"),
    "attention.gated": _ATTENTION,
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
    "moe.latent_down": (*_MLP, "fc1_latent_proj"),
    "moe.latent_up": (*_MLP, "fc2_latent_proj"),
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
    if operation.name.startswith(("layer_", "embedding_more")):
        return (_by_its_name(operation, operation.name, ()),)
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
    if operation.name == "streams":
        return (_by_its_name(operation, operation.name, ()),)
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
        inside = {"attention": _ATTENTION, "moe": _MLP}.get(name.partition(".")[0], ())
        pieces = (_by_its_name(operation, name, () if name.endswith(".mix") else inside),)
    return tuple(replace(piece, path=(*below, *piece.path)) for piece in pieces)


def _by_its_name(operation: Operation, name: str, below: tuple[str, ...]) -> Piece:
    path = (*below, name.replace(".", "_")) if operation.parameters[0] > 0 else below
    return _linear(operation, path)


def _single(model: Model, layer: Layer, operation: Operation, path: tuple[str, ...]) -> Piece:
    """The module that executes an operation alone, with its weights."""
    if operation.name.endswith("core"):
        return Piece(path=path, weights=_core_weights(model, layer.own_attention))
    if operation.name.endswith("relative"):
        return _relative(model, layer.own_attention, path)
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
    attention = layer.own_attention
    gated = attention.gate == AttentionGate.FULL
    rows = {
        "q_proj": attention.heads * (attention.head_dim + gated * attention.value_dim),
        "k_proj": attention.kv_heads * attention.head_dim,
        "v_proj": attention.kv_heads * attention.value_dim,
    }
    biased = attention.bias in (AttentionBias.QKV, AttentionBias.ALL)
    missing = {"k_proj": attention.shared_keys, "v_proj": attention.shared_keys}
    missing["v_proj"] |= attention.tied_values
    rows = {name: width for name, width in rows.items() if not missing.get(name)}
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
    attention = layer.own_attention
    heads = {"q_norm": attention.heads, "k_norm": attention.kv_heads}
    if attention.shared_keys:
        del heads["k_norm"]
    total = sum(heads.values())
    if attention.qk_norm in (QkNorm.UNWEIGHTED, QkNorm.NONE):  # of compressed attention
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
    if moe.router_scale:
        weights.append(Weight(name="per_expert_scale", shape=(moe.experts,)))
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
    return (_of_experts(moe, name, outputs, moe.latent or model.hidden),)


def _experts_down(model: Model, layer: Layer, _: Operation) -> tuple[Piece, ...]:
    moe = _moe(layer)
    return (_of_experts(moe, "down_proj", moe.latent or model.hidden, moe.ffn),)


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


_SEGMENT_ROWS = 6
"""Rows of `_Component.segments`: times forward and backward [s]; peak and end of the forward
segment, peak and end of the backward segment [byte], without gradients of weights and beyond what
is resident before the component."""

_CONTAINERS = {
    "self_attn": "Attention",
    "mlp": "MLP",
    "shared_experts": "MLP",
    "experts": "Experts",
    "transformer_layer": "DecoderLayer",
}

STACK = "torchtitan-2025"
"""Default software: FSDP2 with compiled layers and loss."""
OVERRIDES = (
    "attention",
    "document_len",
    "expert_capacity",
    "expert_imbalance",
    "fused_activation",
)
"""Strategy fields that change what a data-parallel rank computes, and may be set."""

# Tokens and labels are integers of 64 bits in PyTorch.
_INPUT_BYTES = 2 * 8
_ASSUMED = (
    "kernel times and bytes are shardwise's estimate, not a trace",
    "queries, keys and values, as gate and up, share the time of one product by their widths",
    "between these, all temporary buffers of the product stay allocated",
    "an output counts in memory while it is computed and while the next operation reads it",
)
_BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComponentModule:
    """A module of a component; positions and segments count from the component's beginning."""

    path: tuple[str, ...]
    kind: str
    parent: int
    """-1: the module that contains the component."""
    width: float
    reduced_last: bool
    shared: bool
    first: int
    """Segment it begins with."""
    end: int = 0
    after: int = 0
    """Segment after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    """A kind of layer, the embedding, a multi-token prediction module, or the head."""

    modules: tuple[_ComponentModule, ...]
    weights: tuple[tuple[int, int, Weight], ...]
    """Each with its module and segment."""
    segments: Floats
    """Shape (6, segments), rows as in `_SEGMENT_ROWS`."""
    saved_bytes: float
    """Saved until backward by the full component."""


def _build_component(
    pieces: Sequence[Piece], segments: Floats, saved_bytes: float, *, is_module: bool
) -> _Component:
    """Find the modules in which pieces run one after the other.

    A module begins where its path first appears, and ends where another path continues.
    """
    modules: list[_ComponentModule] = []
    weights: list[tuple[int, int, Weight]] = []
    open_: list[int] = []

    def begin(path: tuple[str, ...], piece: Piece, segment: int) -> None:
        parent = open_[-1] if open_ else -1
        if path[-1:] == ("experts",):
            modules[parent] = replace(modules[parent], kind="MoE")
        open_.append(len(modules))
        leaf = path == piece.path
        kind = _CONTAINERS.get(path[-1], "Module") if path else ""
        modules.append(
            _ComponentModule(
                path=path,
                kind=piece.kind if leaf and piece.kind else kind,
                parent=parent,
                width=piece.width if leaf else 0.0,
                reduced_last=leaf and piece.reduced_last,
                shared=leaf and piece.shared,
                first=segment,
            )
        )

    def close(depth: int, segment: int) -> None:
        while len(open_) > depth:
            position = open_.pop()
            modules[position] = replace(modules[position], end=len(modules), after=segment)

    if is_module:
        begin((), Piece(path=()), 0)
    for segment, piece in enumerate(pieces):
        same = 0
        names = [modules[position].path[-1] for position in open_[is_module:]]
        while same < min(len(names), len(piece.path)) and names[same] == piece.path[same]:
            same += 1
        close(same + is_module, segment)
        for depth in range(same, len(piece.path)):
            begin(piece.path[: depth + 1], piece, segment)
        weights += [(open_[-1], segment, weight) for weight in piece.weights]
    close(0, len(pieces))
    return _Component(
        modules=tuple(modules),
        weights=tuple(weights),
        segments=segments,
        saved_bytes=saved_bytes,
    )


@dataclass(slots=True, kw_only=True)
class _Tensor:
    """A tensor of weights and the modules that hold it."""

    name: str
    weight: Weight
    holders: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """Of backward, in which its gradient is accumulated."""


@dataclass(slots=True, kw_only=True)
class _Assembly:
    """Builds a profile from components that run one after the other, then backward.

    Forward segment s of F runs backward as segment 2 F - 1 - s. The gradient of a tensor is
    resident from the first segment that accumulates it, and complete in the last.
    """

    components: Sequence[tuple[str, str, _Component]]
    """Name, class and contents of each; modules of one without a name belong to the root."""
    tokens: int
    """Of one rank."""
    hidden: int
    """Numbers of a module's output for each token, unless it has another width."""
    element_bytes: float
    """Of one number."""
    total: int = 0
    """F."""
    modules: list[ProfiledModule] = field(default_factory=list)
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def profile(
        self, *, name: str, source: str, fixed_bytes: float, assumed: tuple[str, ...]
    ) -> Profile:
        """Assemble all components."""
        counts = [component.segments.shape[1] for _, _, component in self.components]
        self.total = sum(counts)
        root = ProfiledModule(
            name="",
            kind="Model",
            parent=-1,
            end=1 + sum(len(component.modules) for _, _, component in self.components),
            forward=(0, self.total),
            backward=(self.total, 2 * self.total),
            reduced_last=True,
        )
        self.modules.append(root)
        starts = np.cumsum([0, *counts]).tolist()[:-1]
        for (prefix, kind, component), start in zip(self.components, starts, strict=True):
            self._add(prefix, kind, component, start)
        rows = np.concatenate([component.segments for _, _, component in self.components], axis=1)
        before = np.cumsum([0.0, *(one.saved_bytes for _, _, one in self.components)])[:-1]
        rows[2:] += np.repeat(before, counts)
        gradients = self._gradient_bytes()
        return Profile(
            name=name,
            source=source,
            modules=tuple(self.modules),
            parameters=tuple(self._parameter(tensor) for tensor in self.tensors.values()),
            forward_segments=self.total,
            seconds=np.concatenate([rows[0], rows[1, ::-1]]),
            resident_bytes=gradients + np.concatenate([rows[2], rows[4, ::-1]]),
            end_bytes=gradients + np.concatenate([rows[3], rows[5, ::-1]]),
            fixed_bytes=fixed_bytes,
            assumed=assumed,
        )

    def _add(self, prefix: str, kind: str, component: _Component, start: int) -> None:
        """Add the modules and weights of a component that begins with a segment."""
        at, last = len(self.modules), 2 * self.total
        for module in component.modules:
            path = ".".join(module.path)
            name = path if module.shared or not prefix else f"{prefix}.{path}".rstrip(".")
            run = self.runs.get(name, 0)
            self.runs[name] = run + 1
            first, after = start + module.first, start + module.after
            self.modules.append(
                ProfiledModule(
                    name=name,
                    kind=module.kind or kind,
                    parent=at + module.parent if module.parent >= 0 else 0,
                    end=at + module.end,
                    forward=(first, after),
                    backward=(last - after, last if module.reduced_last else last - first),
                    output_bytes=(module.width or self.hidden) * self.tokens * self.element_bytes,
                    reduced_last=module.reduced_last,
                    run=run,
                )
            )
        for position, segment, weight in component.weights:
            self._add_weight(at + position, weight, last - 1 - start - segment)

    def _add_weight(self, holder: int, weight: Weight, segment: int) -> None:
        """Note a module that holds a tensor, and the segment that accumulates its gradient."""
        name = weight.tied_to or f"{self.modules[holder].name}.{weight.name}".lstrip(".")
        key = weight.name if weight.once else name
        tensor = self.tensors.setdefault(key, _Tensor(name=name, weight=weight))
        tensor.segments.append(segment)
        if not (weight.once and tensor.holders):
            tensor.holders.append(holder)

    def _gradient_bytes(self) -> Floats:
        """Gradients of weights, partial or complete, at the end of each segment [byte]."""
        added = np.zeros(2 * self.total)
        for tensor in self.tensors.values():
            if tensor.weight.graded:
                size = np.prod(tensor.weight.shape) * self.element_bytes
                added[min(tensor.segments)] += size
        return np.cumsum(added)

    def _parameter(self, tensor: _Tensor) -> Parameter:
        weight = tensor.weight
        return Parameter(
            name=tensor.name,
            shape=weight.shape,
            holders=tuple(tensor.holders),
            element_bytes=self.element_bytes,
            gradient_segment=max(tensor.segments) if weight.graded else -1,
        )


def profile_of(
    model: ModelLike,
    system: SystemLike,
    *,
    batch: int,
    seq_len: int | None = None,
    dtype: Dtype = "bf16",
    stack: Stack | str = STACK,
    strategy: Mapping[str, object] | None = None,
) -> Profile:
    """Profile one unsharded step of a model: data parallelism alone, no recompute.

    `batch` and `seq_len` are those of one rank; the strategy may set some of `OVERRIDES`.
    """
    the_system = System.load(system)
    the_model = Model.load(model)
    resolved = _strategy(the_model, batch, seq_len, dtype, stack, strategy or {})
    the_model = the_model.with_attention(resolved.attention)
    table = Table.of(the_model, [resolved])
    refuse_illegal(the_model, the_system, table)
    extents = place(the_system, table)
    machine = Machine.of(the_system, table)
    costs = operation_costs(the_model, the_system, table, extents)
    tokens = batch * int(table.seq_len[0])
    assembly = _Assembly(
        components=_components(the_model, costs, machine),
        tokens=tokens,
        hidden=the_model.hidden,
        element_bytes=float(DTYPE_BYTES[resolved.dtype]),
    )
    profile = assembly.profile(
        name=the_model.name,
        source=f"{the_model.name} on {the_system.name}: {batch} x {table.seq_len[0]} tokens,"
        f" {resolved.dtype}, {table.stacks[0].name}",
        fixed_bytes=float(tokens * _INPUT_BYTES) if the_model.vocab else 0.0,
        assumed=_ASSUMED,
    )
    _refuse_miscounted(the_model, profile)
    check(profile)
    return profile


def _strategy(
    model: Model,
    batch: int,
    seq_len: int | None,
    dtype: Dtype,
    stack: Stack | str,
    overrides: Mapping[str, object],
) -> Strategy:
    problem = f"cannot change an unsharded step; allowed: {', '.join(OVERRIDES)}"
    faults = [
        Fault.of(name, value, problem, "strategy")
        for name, value in overrides.items()
        if name not in OVERRIDES
    ]
    if faults:
        raise InputError(faults)
    fields = {
        "gpus": 1,
        "micro_batch_size": batch,
        "global_batch_size": batch,
        "seq_len": seq_len,
        "dtype": dtype,
        "stack": stack,
    }
    return Strategy.load(fields | dict(overrides)).resolved(model)


def _refuse_miscounted(model: Model, profile: Profile) -> None:
    """Refuse models whose modules and operations have different numbers of weights."""
    counted = count_parameters(model)
    operations = counted.total + counted.mtp
    modules = sum(parameter.numel for parameter in profile.parameters)
    if operations != modules:
        problem = f"its operations hold {operations} weights, its modules {modules}"
        raise InputError.at(model.name, problem, "layers")


def _components(
    model: Model, costs: Sequence[ComponentOperations], machine: Machine
) -> list[tuple[str, str, _Component]]:
    """Name, class and contents of every component in the order in which they run."""
    layer_kinds = []
    layers = iter(model.layers)
    found: dict[str, _Component] = {}
    for name, _, operations in costs:
        if name == "layer":
            layer = next(layers)
            pieces = [layer_pieces(model, layer, cost.operation) for cost in operations]
            layer_kinds.append(_component(operations, pieces, machine, is_module=True))
            continue
        by = {"embedding": embedding_pieces, "mtp": mtp_pieces, "head": head_pieces}[name]
        pieces = [by(model, cost.operation) for cost in operations]
        found[name] = _component(operations, pieces, machine, is_module=name == "mtp")
    causal = [layer.attention is None or layer.attention.causal for layer in model.layers]
    classes = ["DecoderLayer" if one else "EncoderLayer" for one in causal]
    return [
        ("", "", found["embedding"]),
        *((f"layers.{i}", classes[kind], layer_kinds[kind]) for i, kind in enumerate(model.order)),
        *((f"mtp.layers.{i}", "MultiTokenPrediction", found["mtp"]) for i in range(model.mtp)),
        ("", "", found["head"]),
    ]


def _component(
    costs: Sequence[OperationCost],
    pieces: Sequence[Sequence[Piece]],
    machine: Machine,
    *,
    is_module: bool,
) -> _Component:
    """Cut a component into segments, one for each piece of an operation."""
    work = layer_work(costs, machine)
    # What the host adds to a component's kernels is divided among them by their times.
    forward_factor = _host_factor(costs, (Phase.FORWARD,), work.forward.compute_s(0.0))
    backward_factor = _host_factor(costs, _BACKWARD, work.backward.compute_s(0.0))
    columns: list[tuple[float, ...]] = []
    in_order: list[Piece] = []
    before = 0.0
    for cost, some in zip(costs, pieces, strict=True):
        # A fresh gradient of the weights, which an estimate may count as transient, is not among
        # these bytes: gradients of weights are counted separately.
        step = step_of(cost.operation)
        saved, transient = float(step.saved[0]), float(step.forward[0])
        forward = forward_factor * _kernel_s(cost, (Phase.FORWARD,))
        backward = backward_factor * _kernel_s(cost, _BACKWARD)
        if not (forward or backward or saved or transient or any(p.weights for p in some)):
            continue
        forward_peak = before + max(saved, transient)
        backward_peak = before + saved + transient
        for i, piece in enumerate(some):
            forward_end = forward_peak if i + 1 < len(some) else before + saved
            backward_end = backward_peak if i > 0 else before
            times = piece.share * forward, piece.share * backward
            columns.append((*times, forward_peak, forward_end, backward_peak, backward_end))
            in_order.append(piece)
        before += saved
    segments = np.array(columns, dtype=np.float64).reshape(-1, _SEGMENT_ROWS).T
    return _build_component(in_order, segments, before, is_module=is_module)


def _kernel_s(cost: OperationCost, phases: Sequence[Phase]) -> float:
    return sum(float(cost.kernel_s(phase)[0]) for phase in phases)


def _host_factor(costs: Sequence[OperationCost], phases: Sequence[Phase], total_s: Floats) -> float:
    """Time of one direction of a component over that of its kernels."""
    kernels_s = sum(_kernel_s(cost, phases) for cost in costs)
    return float(total_s[0]) / kernels_s if kernels_s > 0 else 0.0

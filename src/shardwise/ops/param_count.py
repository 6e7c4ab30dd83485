"""Parameters and model FLOPs of an architecture, from the same operations that are timed."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from shardwise.arrays import Bools, Column, Floats, Ints
from shardwise.config.model import Attention, Layer, Model
from shardwise.frozen import FrozenDict
from shardwise.ops.attention import keys_met
from shardwise.ops.embedding import embedding_operations, head_operations
from shardwise.ops.layer import KnownBlocks, layer_operations, mtp_operations
from shardwise.ops.lora import Subset, runs_backward, with_subset
from shardwise.ops.mixer import core_flops
from shardwise.ops.operation import Operation, RankWork
from shardwise.ops.sparse import sparse_flops
from shardwise.ops.trainer_flops import RULES, trainer_flops
from shardwise.records import dataclass, fields

FlopsConvention = Literal[
    "causal", "full-attention", "parameters", "megatron-hybrid", "nemo", "automodel"
]
FLOPS_CONVENTIONS: dict[FlopsConvention, str] = {
    "causal": "6 per active parameter but the embeddings, head included, plus attention over the"
    " pairs it sees: half when causal",
    "full-attention": "the same, with attention counted over all pairs of positions",
    "parameters": "6 per active parameter but the embeddings, head included; no attention",
    "megatron-hybrid": "as Megatron-LM prints it for hybrid models: Mamba with an inner width of"
    " twice the hidden one, no convolution, no router",
    "nemo": "as NeMo 25 prints it for hybrid models: Mamba with its own inner width",
    "automodel": "as AutoModel prints it for hybrid models: every MLP counted as gated",
}


_TABLES = ("embedding", "embedding_more", "layer_embedding")
REPLICATED = frozenset(
    {
        "norm",
        "attention.norm",
        "attention.post_norm",
        "attention.stream_norm",
        "attention.q_down",
        "attention.q_norm",
        "attention.kv_down",
        "attention.kv_norm",
        "mamba.norm",
        "mamba.post_norm",
        "mamba.stream_norm",
        "mixer.gate_down",
        "mlp.norm",
        "mlp.activation",
        "mlp.post_norm",
        "mlp.stream_norm",
        "head.transform",
        "head.norm",
        "moe.router",
        "moe.shared_gate",
        "moe.router_norm",
        "moe.pre_norm",
        "moe.shared_norm",
        "moe.routed_norm",
        "moe.post_norm",
        "attention.rope",
        "attention.index",
        "attention.index_q",
        "attention.compress",
        "attention.mix",
        "mlp.mix",
        "mlp.layer_gate",
        "mlp.layer_up",
        "mlp.layer_norm",
        "layer_projection",
        "streams",
        "more",
        "embedding_more",
        "moe.latent_down",
        "moe.latent_up",
        "embedding_norm",
        "hidden_norm",
        "final_norm",
    }
)
"""Operations whose weights are replicated on every tensor-parallel rank; with `mtp.` before them,
those of multi-token prediction. So are norms of single heads and of narrow widths, learned
positions, and biases that are added to a sum over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a model."""

    total: int
    """Without multi-token prediction, as they are published."""
    active: int
    """Those that one token passes through: of routed experts, top_k."""
    embedding: int
    """Token and position tables; with tied embeddings, the head shares the first."""
    breakdown: Mapping[str, int]
    """By operation, over all layers."""
    mtp: int = 0
    """Those of all modules of multi-token prediction, in addition to `total`."""
    mtp_active: float = 0.0
    """Those of one such module that one token passes through."""


@lru_cache(maxsize=256)
def count_parameters(model: Model) -> Parameters:
    """Count the parameters that the operations of an unsplit model hold."""
    work = _unsplit_token()
    breakdown: dict[str, float] = {}
    active = 0.0
    for operations, count, share in _components(model, work):
        for operation in operations:
            stored = float(operation.parameters[0]) * count
            if stored:
                breakdown[operation.name] = breakdown.get(operation.name, 0.0) + stored
            active += stored * (share if operation.expert else 1.0)
    counts = {name: round(stored) for name, stored in breakdown.items()}
    module, share = _module(model, work), _module_share(model)
    return Parameters(
        total=sum(counts.values()),
        active=round(active),
        embedding=sum(counts.get(name, 0) for name in _TABLES),
        breakdown=FrozenDict(counts),
        mtp=model.mtp * round(sum(float(o.parameters[0]) for o in module)),
        mtp_active=sum(float(o.parameters[0]) * (share if o.expert else 1.0) for o in module),
    )


def count_trainable(model: Model, subset: Subset, counted: Parameters) -> int:
    """Count the weights that are trained, adapters included, multi-token prediction not.

    Parameters
    ----------
    counted
        The model's parameters.
    """
    if not np.any(subset.frozen):
        return counted.total
    work = _unsplit_token()
    names = ("embedding", *("layer" for _ in model.layers), "head")
    components = zip(names, _components(model, work), strict=True)
    return round(
        sum(
            float(operation.trained[0]) * count
            for component, (operations, count, _) in components
            for operation in with_subset(model, component, operations, work, subset)
        )
    )


def _components(model: Model, work: RankWork) -> Iterator[tuple[list[Operation], int, float]]:
    """Operations of the embedding, of each kind of layer, and of the head.

    With each, how many of it there are and the share of its routed experts that a token sees.
    """
    yield embedding_operations(model, work), 1, 1.0
    known: KnownBlocks = {}
    for layer in model.layers:
        yield layer_operations(model, layer, work, known), layer.count, _expert_share(layer)
    yield head_operations(model, work, holds_copy=np.array([not model.tied_embeddings])), 1, 1.0


def _module(model: Model, work: RankWork) -> list[Operation]:
    return mtp_operations(model, work) if model.mtp else []


def _module_share(model: Model) -> float:
    """Share of the routed experts that a token sees in a module of multi-token prediction."""
    return min(map(_expert_share, model.mtp_layers))


def _expert_share(layer: Layer) -> float:
    return layer.moe.top_k / layer.moe.experts if layer.moe is not None else 1.0


def _unsplit_token() -> RankWork:
    """One token on a rank that holds the full model: parameters depend on nothing else."""
    neutral: dict[Any, Column] = {Floats: np.ones(1), Ints: np.array([0]), Bools: np.array([False])}
    columns: dict[str, Any] = {f.name: neutral[f.type] for f in fields(RankWork)}
    return RankWork(**columns | {"capacity": np.zeros(1)})


def flops_per_token(
    model: Model,
    seq_len: int,
    convention: FlopsConvention = "causal",
    subset: Subset | None = None,
    counted: Parameters | None = None,
    *,
    document_len: int | None = None,
    expert_capacity: float | None = None,
) -> float:
    """Model FLOPs of one token, forward and backward.

    6 (N - embeddings + head) + 6 a (d_qk + d_v) k per layer for the two products of attention
    (forward and twice backward) over k keys: s, halved where a position sees only those before it,
    and fewer within windows and chunks (`context.keys_met`); the full-attention convention takes s
    in all layers. Sparse attention counts the FLOPs of `sparse_flops` three times, the core of a
    mixer its forward FLOPs. N has top_k of the
    routed experts, and a tied head once more than it is stored: the product is done all the same.
    Modules of multi-token prediction are trained with the rest: the active parameters, head and
    attention of each are added. Frozen parameters have 4 instead of 6, adapters 6; where nothing
    before the head is trained, no gradients of inputs: 2 less for each parameter, and 4 for each
    product of attention. What a capacity c < 1 of an even load drops, 1 - c of the routed experts,
    is not done.

    Parameters
    ----------
    seq_len
        s, tokens per sequence.
    convention
        Name in `FLOPS_CONVENTIONS`.
    subset
        What is trained, of one row; None: everything.
    counted
        The model's parameters, if they are counted already.
    document_len
        Tokens of packed documents, which attention does not leave; None: s. (By the full-attention
        convention it does.)
    expert_capacity
        c; None: nothing is dropped.
    """
    if convention in RULES:
        return trainer_flops(model, seq_len, convention, lambda layer: _core(layer, seq_len))
    counted = counted or count_parameters(model)
    head = model.vocab * model.hidden
    dense = counted.active - counted.embedding
    if model.tied_embeddings:
        dense += head
    dense_and_modules = dense + model.mtp * (counted.mtp_active + head)
    if expert_capacity is not None and expert_capacity < 1:
        # Active parameters of routed experts, those of modules of multi-token prediction included.
        work, share = _unsplit_token(), _module_share(model)
        components = [*_components(model, work), (_module(model, work), model.mtp, share)]
        dense_and_modules -= (1 - expert_capacity) * sum(
            float(operation.parameters[0]) * count * share
            for operations, count, share in components
            for operation in operations
            if operation.expert
        )
    flops = 6.0 * dense_and_modules
    backward = 4.0
    if subset is not None and np.any(subset.frozen):
        frozen, adapters = _untrained(model, subset)
        flops += 6.0 * adapters - 2.0 * frozen
        if not runs_backward(model, subset)[0]:
            flops -= 2.0 * dense
            backward = 0.0
    if convention == "parameters":
        return flops
    seen = seq_len, document_len or seq_len
    return flops + _without_weights(model, *seen, convention, 2.0 + backward)


def _without_weights(
    model: Model, seq_len: int, document_len: int, convention: FlopsConvention, passes: float
) -> float:
    """FLOPs of a token in attention and mixers beyond their weights, in `passes` per product."""
    flops = 0.0
    every = [(layer, layer.count, passes) for layer in model.layers]
    for layer, count, each in [*every, *((one, model.mtp, 6.0) for one in model.mtp_layers)]:
        attention = layer.attention
        if attention is not None and attention.is_sparse and convention == "causal":
            length = np.array([float(min(seq_len, document_len))])
            flops += each / 2 * count * float(sparse_flops(attention, length)[0])
        elif attention is not None:
            widths = attention.heads * (attention.head_dim + attention.value_dim)
            keys = _keys_of_a_token(attention, seq_len, document_len, convention)
            flops += each * count * widths * keys
        if layer.mixer is not None:
            flops += each / 2 * count * core_flops(layer.mixer).forward
    return flops


def _core(layer: Layer, seq_len: int) -> float:
    """Forward FLOPs of a token in the attention or the mixer of a layer, without projections."""
    flops = 0.0 if layer.mixer is None else float(core_flops(layer.mixer).forward)
    attention = layer.attention
    if attention is None:
        return flops
    if attention.is_sparse:
        return flops + float(sparse_flops(attention, np.array([float(seq_len)]))[0])
    widths = attention.heads * (attention.head_dim + attention.value_dim)
    return flops + 2.0 * widths * _keys_of_a_token(attention, seq_len, seq_len, "causal")


def _untrained(model: Model, subset: Subset) -> tuple[float, float]:
    """Active parameters that are frozen, without the embeddings and with the head; adapters."""
    work = _unsplit_token()
    module = _module(model, work), model.mtp, _module_share(model)
    components = [*_components(model, work), module]
    frozen = adapters = 0.0
    for operations, count, share in components:
        for operation in with_subset(model, "mtp", operations, work, subset):
            active = count * (share if operation.expert else 1.0)
            stored, trained = float(operation.parameters[0]), float(operation.trained[0])
            if ".lora_" in operation.name:
                adapters += active * stored
            elif trained == 0 and operation.name not in ("embedding", "embedding_more"):
                frozen += active * stored
    if subset.freezes("head")[0]:  # products of tied heads and modules hold no weights of their own
        frozen += model.vocab * model.hidden * (model.mtp + model.tied_embeddings)
    return frozen, adapters


def _keys_of_a_token(
    attention: Attention, seq_len: int, document_len: int, convention: FlopsConvention
) -> float:
    """Keys that the mean token is scored against by the convention."""
    if convention == "full-attention":
        return float(seq_len)
    half = 0.5 if attention.causal else 1.0
    length, document = np.array([float(seq_len)]), np.array([float(document_len)])
    return half * float(keys_met(attention, length, document)[0])

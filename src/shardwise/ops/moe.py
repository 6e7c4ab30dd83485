"""Mixture of experts in place of the feed-forward block.

Each rank routes its own tokens, sends copies of them to the ranks of the chosen experts and
receives the results (arXiv 2401.06066, 2412.19437; Megatron-LM core 0.12, all-to-all dispatcher).
With the all-gather dispatcher each rank gathers the tokens of all ranks, and the results are
reduce-scattered. With sequence parallelism a rank's tokens are 1/tp of the sequence's, without it
each of the tp ranks routes all of them.
"""

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import ExpertNorms
from shardwise.config.model import Mlp, Model, Moe
from shardwise.ops.linear import linear
from shardwise.ops.mlp import activation, mlp_operations
from shardwise.ops.norm import norm
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    Routing,
    Tokens,
    zeros,
)
from shardwise.records import dataclass, replace

_ALL = frozenset({"moe"})
_UP = _ALL | {"mlp_up"}
_ROUTED = _ALL | {"experts"}
_SHARED = _ALL | {"shared_experts"}
_EVERY_OTHER = frozenset({"every_other"})
# Saved per token and expert: the fp32 probability and the destination row of the copy.
_ROUTING_BYTES = 8
# Gathered per token and expert with the tokens: the flag of a choice and the fp32 probability;
# back, the gradient of the probability (Megatron-LM, core/transformer/moe/token_dispatcher.py).
_GATHERED_BYTES = {Phase.FORWARD: 5, Phase.INPUT_GRAD: 4}
# Moved per element by kernels that add biases to the outputs of experts.
_BIAS_BYTES = {Phase.FORWARD: 28, Phase.INPUT_GRAD: 40}
# Vector FLOPs per logit: maximum, subtraction, exponent, sum, division, selection; and backward.
_ROUTING_FLOPS = (6.0, 4.0)
# Functions that Megatron-LM runs in Python for these operations, each about as long as a module
# (core 0.12, core/transformer/moe: router.py, moe_utils.py, token_dispatcher.py, experts.py).
# Top k: scores in fp32, selection, bias, auxiliary loss and its bookkeeping, map of tokens.
# Dispatch: counts by expert, exchanged and summed, splits, their copy to the host, permute, two
# exchanges, sort. Combine: sort, exchange, unpermute. One library call replaces most of the last
# two with DeepEP and HybridEP; with a capacity there is nothing to count or sort. Grouped
# products: inputs and weights split by expert.
_TOP_K_CALLS = 4.0
_DISPATCH_CALLS, _COMBINE_CALLS = 12.0, 6.0
_LIBRARY_DISPATCH_CALLS, _LIBRARY_COMBINE_CALLS = 5.0, 3.0
_GROUPED_CALLS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Tokens of one rank, the copies it sends, and those that its experts receive."""

    tokens: Floats
    copies: Floats
    """Rows it sends: top_k per token, or with a capacity all slots that experts have for it."""
    arriving: Floats
    """Rows that arrive from the expert-parallel ranks."""
    rows: Floats
    """Rows its experts process: those of all etp ranks together."""
    per_expert: Floats
    """Rows of each of its experts."""
    experts: Floats
    """Experts on the rank, or shards of them."""
    routing: Routing


def routed(moe: Moe, work: RankWork) -> Routed:
    """Distribute a rank's tokens over experts.

    An even load is k T / E copies from each rank for each expert; a capacity c gives it exactly
    ceil(c k T / E) slots. The most loaded rank's experts get `imbalance` times an even load, at
    most all tokens of the ep ranks, once for each of min(k, E / ep) experts.

    Parameters
    ----------
    moe
        Experts E and the number k that a token is sent to.
    """
    tokens = work.split_tokens
    even = tokens * moe.top_k / moe.experts
    limited = work.capacity > 0
    slots = np.where(limited, np.ceil(work.capacity * even), even)
    copies = moe.experts * slots
    most = np.minimum(work.imbalance, np.minimum(work.ep, moe.experts / moe.top_k))
    arriving = copies * np.where(limited, 1.0, most)
    rows = arriving * work.etp
    experts = moe.experts / work.ep
    return Routed(
        tokens=tokens,
        copies=copies,
        arriving=arriving,
        rows=rows,
        per_expert=rows / experts,
        experts=experts,
        routing=Routing(
            experts=moe.experts,
            top_k=moe.top_k,
            groups=moe.groups,
            top_groups=moe.top_groups,
        ),
    )


def moe_operations(
    model: Model, moe: Moe, work: RankWork, *, norm_parts: frozenset[str]
) -> list[Operation]:
    """Shared experts, router, dispatch, routed experts, combine on one rank.

    Router and shared experts read one input, which is saved once. Probabilities weight the experts'
    inner activation, so that combining only adds.

    Parameters
    ----------
    norm_parts
        Recompute parts that rebuild the input; none without a norm before it.
    """
    load = routed(moe, work)
    width = moe.latent or model.hidden
    return [
        *_shared_experts(model, moe, work, norm_parts),
        *_router(model, moe, work, load, norm_parts),
        *_branch_norm(model, moe, work, "moe.pre_norm"),
        *_latent(model, moe, work, norm_parts)[:1],
        _dispatch(width, work, load),
        *_experts(width, moe, work, load),
        _combine(width, work, load),
        *_latent(model, moe, work, norm_parts)[1:],
        *_branch_norm(model, moe, work, "moe.routed_norm"),
        *_added(model, moe, work),
        *_norm(model, work, "moe.post_norm", there=moe.norms == ExpertNorms.OUTPUT),
    ]


def _branch_norm(model: Model, moe: Moe, work: RankWork, name: str) -> list[Operation]:
    return _norm(model, work, name, there=moe.norms == ExpertNorms.BRANCHES)


def _norm(
    model: Model, work: RankWork, name: str, *, there: bool, weights: float | None = None
) -> list[Operation]:
    """A norm inside the block, if it is there."""
    if not there:
        return []
    parameters = float(model.norm_parameters) if weights is None else weights
    return [
        norm(
            name,
            model,
            work,
            tokens=work.split_tokens,
            width=model.hidden,
            parameters=parameters,
            reruns_with=_ALL,
            dropped_with=_ALL,
        )
    ]


def _shared_experts(
    model: Model, moe: Moe, work: RankWork, norm_parts: frozenset[str]
) -> list[Operation]:
    """One dense MLP as wide as all shared experts, tensor-parallel, and its gate if it has one."""
    if not moe.shared_ffn:
        return []
    dense = Mlp(ffn=moe.shared_ffn, activation=moe.activation, bias=moe.bias)
    operations = mlp_operations(
        model,
        dense,
        work,
        norm_parts=norm_parts,
        name="moe.shared_",
        block=_SHARED,
        saved_tokens=np.where(work.saved_tokens > work.split_tokens, work.saved_tokens, 0.0),
    )
    if moe.shared_gate:
        gate = linear(
            "moe.shared_gate",
            work,
            tokens=work.split_tokens,
            inputs=model.hidden,
            outputs=1.0,
            saved_tokens=zeros(work),
            sixteen_bits=True,
            reruns_with=_SHARED,
        )
        operations.append(gate)
    return [*operations, *_branch_norm(model, moe, work, "moe.shared_norm")]


def _router(
    model: Model, moe: Moe, work: RankWork, load: Routed, norm_parts: frozenset[str]
) -> list[Operation]:
    """Logits of all experts for each token; softmax (or sigmoid) and the top k in fp32."""
    bias = float(moe.experts) if moe.router_bias else 0.0
    balance = moe.experts if moe.selection_bias else 0
    balance += moe.experts if moe.router_scale else 0
    product = linear(
        "moe.router",
        work,
        tokens=load.tokens,
        inputs=model.hidden,
        outputs=float(moe.experts),
        bias=bias,
        parameters=model.hidden * moe.experts + bias + balance,
        sixteen_bits=True,
        reruns_with=_UP,
        dropped_with=norm_parts,
    )
    logits = load.tokens * moe.experts
    forward, backward = _ROUTING_FLOPS
    read = 1 if moe.hashed else 2  # without a selection
    chosen = Operation(
        name="moe.top_k",
        host_calls=_TOP_K_CALLS,
        kernels=(
            MemoryBound(
                phase=Phase.FORWARD, bytes=read * FP32_BYTES * logits, flops=forward * logits
            ),
            MemoryBound(
                phase=Phase.INPUT_GRAD, bytes=3 * FP32_BYTES * logits, flops=backward * logits
            ),
        ),
        parameters=zeros(work),
        saved_bytes=_ROUTING_BYTES * logits,
        working_bytes=2 * FP32_BYTES * logits,
        reruns_with=_UP,
        dropped_with=_UP,
    )
    scale = _norm(model, work, "moe.router_norm", there=moe.router_scale, weights=model.hidden)
    return [*scale, product, chosen]


def _latent(model: Model, moe: Moe, work: RankWork, norm_parts: frozenset[str]) -> list[Operation]:
    """Project tokens to the width of the experts, and the sum of their outputs back.

    Replicated on tensor-parallel ranks like the router, whose input the first one reads
    (Megatron-LM main, core/transformer/moe/moe_layer.py, fc1_latent_proj and fc2_latent_proj).
    """
    if moe.latent is None:
        return []
    bias = moe.bias
    down = linear(
        "moe.latent_down",
        work,
        tokens=work.split_tokens,
        inputs=model.hidden,
        outputs=float(moe.latent),
        bias=float(moe.latent) if bias else 0.0,
        saved_tokens=zeros(work),
        reruns_with=_UP,
        dropped_with=norm_parts,
    )
    up = linear(
        "moe.latent_up",
        work,
        tokens=work.split_tokens,
        inputs=float(moe.latent),
        outputs=model.hidden,
        bias=float(model.hidden) if bias else 0.0,
        reruns_with=_ALL,
        dropped_with=_ALL,
    )
    return [down, up]


def _dispatch(hidden: int, work: RankWork, load: Routed) -> Operation:
    """Copy tokens in the order of experts, send them, sort what arrives by local expert.

    Tokens sent in fp8 are cast before they are copied, and cast to 16 bits after they are sorted
    where no recipe reads fp8 (arXiv 2412.19437, section 3.3.2).
    """
    moved = _moved_rows(hidden, work, load, "moe.dispatch", outwards=True)
    counted = np.where(work.capacity > 0, 0.0, 1.0)
    calls = np.where(_few_calls(work), _LIBRARY_DISPATCH_CALLS, _DISPATCH_CALLS)
    moved = replace(moved, host_waits=counted, host_calls=calls)
    in_fp8 = work.dispatch_bytes < work.element_bytes
    if not np.any(in_fp8):
        return moved
    both = (work.element_bytes + work.dispatch_bytes) * hidden
    cast_again = in_fp8 & (work.quantization == 0)
    casts = tuple(
        MemoryBound(phase=Phase.FORWARD, bytes=rows * both, flops=rows * hidden)
        for rows in (np.where(in_fp8, load.tokens, 0.0), np.where(cast_again, load.rows, 0.0))
    )
    return replace(moved, kernels=(*moved.kernels, *casts))


def _combine(hidden: int, work: RankWork, load: Routed) -> Operation:
    """Restore the order of rows, return them to their ranks, add the copies of each token."""
    moved = _moved_rows(hidden, work, load, "moe.combine", outwards=False)
    calls = np.where(_few_calls(work), _LIBRARY_COMBINE_CALLS, _COMBINE_CALLS)
    return replace(moved, host_calls=calls)


def _few_calls(work: RankWork) -> Bools:
    """Rows in which one library call sends tokens, or all ranks send equally many."""
    return work.sends_once | (work.capacity > 0)


def _moved_rows(
    hidden: int, work: RankWork, load: Routed, name: str, *, outwards: bool
) -> Operation:
    """Dispatch, or combine, which is dispatch backward: each is the other's gradient.

    Kernels: read tokens and write their copies (or read copies and write their sum); read and write
    all rows once more to sort them where a rank has more than one expert. Collectives: copies go to
    the ranks of their experts (all-to-all over ep), rows are gathered by the ranks that share
    experts (over etp), and the reverse.

    With all_gather: the T tokens of each rank are gathered over ep, and these over etp, T ep etp
    tokens in all, each with its choices of the E experts; the rank reads these and the rows of its
    experts, and writes the rows sorted. Back, it adds its rows to a buffer of all tokens, which is
    reduce-scattered.
    """
    width = hidden * work.element_bytes
    forward_width = hidden * work.dispatch_bytes if outwards else width
    gathers = work.gathers_tokens
    on_ep = load.tokens * work.ep
    every = on_ep * work.etp
    rows = np.where((load.experts > 1) & ~gathers, 2 * load.rows, 0.0)
    summed = np.where(gathers, load.rows, load.copies) * hidden
    all_experts = load.experts * work.ep
    resident = np.where(gathers, every, load.copies) + load.rows

    def choices(phase: Phase) -> Floats:
        """Size of the choices of a token, which dispatch gathers [byte]."""
        return all_experts * (_GATHERED_BYTES[phase] if outwards else 0)

    def kernels(phase: Phase, *, out: bool) -> tuple[MemoryBound, ...]:
        kind = "permute" if phase is Phase.FORWARD else "permute_backward"
        size = forward_width if phase is Phase.FORWARD else width
        added = zeros(work) if out else summed
        own = (2 * load.rows if out else load.rows + every) * size + every * choices(phase)
        copied = np.where(gathers, own, (load.tokens + load.copies) * size)
        return (
            MemoryBound(phase=phase, bytes=copied, flops=added, kind=kind),
            MemoryBound(phase=phase, bytes=rows * size, flops=zeros(work), kind=kind),
        )

    def collectives(phase: Phase, *, out: bool) -> tuple[Collective, ...]:
        size = forward_width if phase is Phase.FORWARD else width
        sent = np.where((work.ep > 1) & ~gathers, load.arriving * size, 0.0)
        of_every = every * (size + choices(phase))
        gathered = np.where(work.etp > 1, np.where(gathers, of_every, load.rows * size), 0.0)
        kind = CollectiveKind.ALL_GATHER if out else CollectiveKind.REDUCE_SCATTER
        swap = Collective(
            phase=phase,
            kind=CollectiveKind.ALL_TO_ALL,
            axis="ep",
            bytes=sent,
            tokens=Tokens(routing=load.routing, row_bytes=size, combines=not out),
        )
        shared = Collective(phase=phase, kind=kind, axis="etp", bytes=gathered)
        if np.any(gathers):
            of_ep = on_ep * (size + choices(phase))
            tokens = np.where((work.ep > 1) & gathers, of_ep, 0.0)
            all_tokens = Collective(phase=phase, kind=kind, axis="ep", bytes=tokens)
            return (swap, all_tokens, shared) if out else (shared, all_tokens, swap)
        return (swap, shared) if out else (shared, swap)

    forward, backward = Phase.FORWARD, Phase.INPUT_GRAD
    return Operation(
        name=name,
        kernels=(*kernels(forward, out=outwards), *kernels(backward, out=not outwards)),
        collectives=(*collectives(forward, out=outwards), *collectives(backward, out=not outwards)),
        parameters=zeros(work),
        saved_bytes=zeros(work),
        working_bytes=resident * width,
        routed=True,
        reruns_with=_UP | _EVERY_OTHER if outwards else _ALL,
        dropped_with=_ALL,
    )


def _experts(hidden: int, moe: Moe, work: RankWork, load: Routed) -> list[Operation]:
    """Grouped products of the local experts, each 1/etp as wide.

    The part `every_other` runs both again, with the activation between them and the sorting of rows
    before: torchtitan saves what products of matrices and all-to-alls give, and grouped products
    are neither (pytorch/torchtitan b5bcd76, distributed/activation_checkpoint.py,
    _get_default_save_ops; compute_intensive_ops of torch/_functorch/partitioners.py). Rows that
    arrived from other ranks stay; those that were only sorted are rebuilt.
    """
    inner = moe.ffn / work.etp
    gates = 2 if moe.gated else 1
    up = linear(
        "moe.up",
        work,
        tokens=load.per_expert,
        inputs=hidden,
        outputs=gates * inner,
        bias=gates * inner if moe.bias else 0.0,
        batch=load.experts,
        grouped=True,
        expert=True,
        arriving_bytes=work.dispatch_bytes,
        reruns_with=_UP | _ROUTED | _EVERY_OTHER,
        dropped_with=_UP | _EVERY_OTHER,
    )
    arrived = work.ep * work.etp > 1
    up = replace(up, half_rebuilt_bytes=np.where(arrived, 0.0, up.saved_bytes))
    middle = activation("moe.activation", work, load.rows * inner, gates, block=_ROUTED)
    middle = replace(
        middle, dropped_with=middle.dropped_with | _EVERY_OTHER, half_rebuilt_bytes=None
    )
    down = linear(
        "moe.down",
        work,
        tokens=load.per_expert,
        inputs=inner,
        outputs=hidden,
        bias=hidden if moe.bias else 0.0,
        saved_tokens=np.where(work.fused_activation, 0.0, load.per_expert),
        batch=load.experts,
        grouped=True,
        expert=True,
        saved_elsewhere=work.fused_activation,
        reruns_with=_ROUTED | _EVERY_OTHER,
        dropped_with=_ROUTED | _EVERY_OTHER | {"activation"},
    )
    products = [
        replace(one, routed=True, host_calls=np.where(work.loops_experts, load.experts, calls))
        for one, calls in ((up, _GROUPED_CALLS), (middle, 1.0), (down, _GROUPED_CALLS))
    ]
    if moe.bias and np.any(work.adds_expert_bias):
        products.append(_output_bias(hidden, work, load))
    return products


def _output_bias(hidden: int, work: RankWork, load: Routed) -> Operation:
    """Add each expert's bias, weighted by the probability of a row, to the outputs.

    In fp32, as the probabilities are, by one kernel each: product with the probability (4 B
    written), sum (6 read, 4 written), concatenation of the experts (4 and 4), result in 16 bits (4
    and 2). Backward: gradient in fp32 (2 and 4), in 16 bits (4 and 2), joined (2 and 2), and the
    products and sums for the gradients of bias (8 read, 4 written) and probability (the same)
    (Megatron-LM, core/transformer/moe/experts.py, TEGroupedMLP._apply_bias).
    """
    elements = np.where(work.adds_expert_bias, load.rows * hidden, 0.0)
    return Operation(
        name="moe.output_bias",
        kernels=tuple(
            MemoryBound(phase=phase, bytes=_BIAS_BYTES[phase] * elements, flops=2 * elements)
            for phase in (Phase.FORWARD, Phase.INPUT_GRAD)
        ),
        parameters=zeros(work),
        saved_bytes=zeros(work),
        working_bytes=2 * FP32_BYTES * elements,
        routed=True,
        reruns_with=_ROUTED,
        dropped_with=_ROUTED,
    )


def _added(model: Model, moe: Moe, work: RankWork) -> list[Operation]:
    """Add the outputs of routed and shared experts.

    Backward, the gradients of their common input are added. A gate scales the shared experts'
    output, which is saved for its gradient and read again with it.
    """
    if not moe.shared_ffn:
        return []
    elements = work.split_tokens * model.hidden
    size = elements * work.element_bytes
    gated = 1 if moe.shared_gate else 0
    added = Operation(
        name="moe.add",
        kernels=(
            MemoryBound(phase=Phase.FORWARD, bytes=3 * size, flops=(1 + gated) * elements),
            MemoryBound(
                phase=Phase.INPUT_GRAD,
                bytes=(3 + 3 * gated) * size,
                flops=(1 + 2 * gated) * elements,
            ),
        ),
        parameters=zeros(work),
        saved_bytes=gated * size,
        working_bytes=size,
        reruns_with=_ALL,
        dropped_with=_SHARED,
    )
    return [added]

"""What is trained: operations with frozen weights, and low-rank adapters next to them.

Finished lists of operations are rewritten. A frozen product has no gradient of its weights, and its
input is not saved for it; its gradient of the input remains, and so does what norms, activations
and attention save for theirs. Only where nothing before the head is trained do layers, embedding
and final norm run forward only; a frozen embedding, or frozen layers below others that are trained,
change nothing else. Modules of multi-token prediction always run backward.

Adapters (arXiv 2106.09685): Y = X W + X A B with A (inputs, rank) and B (rank, outputs), one for
each product, so one for queries, keys and values together and one for up and gate, as frameworks
on Megatron have them; no dropout. Tensor-parallel ranks split them as PEFT does with Megatron's
layers (peft 0.14, lora/tp_layer.py): for a column-parallel product A is replicated and B split by
columns, for a row-parallel one A is split by rows and B replicated, for a replicated one both are
replicated. Only the rank-wide intermediate is communicated.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np

from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.enums import Adapter, FrozenPart, LoraPart, LoraTarget
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.ops.attention import swaps_heads
from shardwise.ops.linear import after_row_parallel, before_column_parallel, linear
from shardwise.ops.operation import (
    Collective,
    CollectiveKind,
    FlashAttention,
    Kernel,
    Matmul,
    MemoryBound,
    Operation,
    Phase,
    RankWork,
    Scan,
)
from shardwise.records import dataclass, replace

_COMPONENTS = ("embedding", "attention", "mlp", "experts", "router", "norms", "head")
# Bytes that unpacking an int4 weight moves in PyTorch (AutoGPTQ, nn_modules/qlinear/
# qlinear_cuda_old.py): shift to int32 (0.5 + 4), cast to int8 (4 + 1), mask (1 + 1), less the zero
# (1 + 1), times the scale (1 + 2).
_UNPACKING_BYTES = 16.5
# Components that may be trained in full next to adapters.
_ENDS = ("embedding", "head")
# How the product that has an adapter is split over tensor-parallel ranks.
_Split = Literal["columns", "rows", "expert_columns", "expert_rows", "replicated"]
_ADAPTED: dict[str, _Split] = {
    "attention.qkv": "columns",
    "attention.q": "columns",
    "attention.q_up": "columns",
    "attention.kv_up": "columns",
    "attention.q_down": "replicated",
    "attention.kv_down": "replicated",
    "attention.gate": "columns",
    "attention.out": "rows",
    "mamba.in": "columns",
    "mamba.out": "rows",
    "mixer.in": "columns",
    "mixer.out": "rows",
    "mlp.up": "columns",
    "mlp.down": "rows",
    "moe.shared_up": "columns",
    "moe.shared_down": "rows",
    "moe.up": "expert_columns",
    "moe.down": "expert_rows",
}
_MODULES_OF = {
    LoraPart.ATTENTION: (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("in_proj", "out_proj", "g_proj"),
    ),
    LoraPart.MLP: ("gate_proj", "up_proj", "down_proj"),
    LoraPart.EXPERTS: ("experts",),
    LoraPart.EMBEDDING: ("embedding",),
    LoraPart.HEAD: ("head",),
}
_QUERIES, _KEYS, _VALUES = ("q_proj",), ("k_proj",), ("v_proj",)
_UP: tuple[tuple[str, ...], ...] = (("gate_proj",), ("up_proj",))
_DOWN: tuple[tuple[str, ...], ...] = (("down_proj",),)
# Modules of the products that may have adapters; several of a product as `Operation.joined` lists
# them.
_TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention.qkv": (_QUERIES, _KEYS, _VALUES),
    **dict.fromkeys(("attention.q", "attention.q_up", "attention.q_down"), (_QUERIES,)),
    **dict.fromkeys(("attention.kv_up", "attention.kv_down"), ((*_KEYS, *_VALUES),)),
    "attention.out": (("o_proj",),),
    "attention.gate": (("g_proj",),),
    **dict.fromkeys(("mamba.in", "mixer.in"), (("in_proj",),)),
    **dict.fromkeys(("mamba.out", "mixer.out"), (("out_proj",),)),
    **dict.fromkeys(("mlp.up", "moe.shared_up"), _UP),
    **dict.fromkeys(("mlp.down", "moe.shared_down"), _DOWN),
    **dict.fromkeys(("moe.up", "moe.down"), (("experts",),)),
}
# Products whose input another product may save for both.
_SAVED_BY = {
    "attention.kv_down": ("attention.q", "attention.q_down"),
    "attention.gate": ("attention.qkv", "attention.q", "attention.q_down"),
    "mlp.up": ("attention.qkv", "attention.q", "attention.q_down"),
    "moe.shared_up": ("moe.router",),
    "moe.shared_gate": ("moe.router",),
    "moe.latent_down": ("moe.router",),
    "attention.index": ("attention.qkv", "attention.q_down"),
    "attention.index_q": ("attention.q_up",),
    "attention.compress": ("attention.q_down",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """What is trained, as columns."""

    frozen: Ints
    """Bits of `FrozenPart`; where there are adapters all, but embedding and head if trained."""
    rank: Ints
    """Rank of the adapters; 0: there are none."""
    adapted: Ints
    """Bits of `LoraPart`."""
    targets: Ints
    """Bits of `LoraTarget`, modules with adapters of their own; 0: products have one each."""
    dora: Bools
    """Whether adapters are DoRA."""

    @classmethod
    def of(cls, table: Table) -> "Subset":
        """Read it from strategies."""
        rank = table.lora_rank
        frozen = np.where(rank > 0, FrozenPart.bits(_COMPONENTS), table.frozen)
        adapted = np.where(table.lora_targets > 0, _parts_of(table.lora_targets), table.lora_parts)
        for end in _ENDS:
            copied = (rank > 0) & ((adapted & LoraPart.bits([end])) > 0)
            frozen = np.where(copied, frozen & ~FrozenPart.bits([end]), frozen)
        return cls(
            frozen=frozen,
            rank=rank,
            adapted=adapted,
            targets=table.lora_targets,
            dora=(rank > 0) & (table.adapter == Adapter.DORA.code),
        )

    def freezes(self, component: str) -> Bools:
        """Rows in which the model's own weights of a component are frozen."""
        return (self.frozen & FrozenPart.bits([component])) > 0

    def adapts(self, component: str) -> Bools:
        """Rows in which products of a component have adapters."""
        if component not in tuple(LoraPart):
            return np.zeros(self.rank.shape, dtype=np.bool_)
        return (self.rank > 0) & ((self.adapted & LoraPart.bits([component])) > 0)


def _parts_of(targets: Ints) -> Ints:
    """Parts of a model that have some of these modules, as bits of `LoraPart`."""
    found = np.zeros_like(targets)
    for part, modules in _MODULES_OF.items():
        has = (targets & LoraTarget.bits(modules)) > 0
        found = np.where(has, found | LoraPart.bits([part]), found)
    return found


def components_of_model(model: Model) -> int:
    """Components that a model has, as bits of `FrozenPart`."""
    moe = [layer.moe for layer in model.layers if layer.moe is not None]
    dense = any(layer.mlp is not None for layer in model.layers) or any(m.shared_ffn for m in moe)
    has = {"mlp": dense, "experts": bool(moe), "router": bool(moe)}
    return FrozenPart.bits([component for component in _COMPONENTS if has.get(component, True)])


def runs_backward(model: Model, subset: Subset) -> Bools:
    """Rows in which something before the head is trained."""
    before = components_of_model(model) & ~FrozenPart.bits(["head"])
    return (subset.rank > 0) | ((subset.frozen & before) != before)


def with_subset(
    model: Model, component: str, operations: Sequence[Operation], work: RankWork, subset: Subset
) -> list[Operation]:
    """Operations of a component of the model where only some weights are trained.

    Parameters
    ----------
    operations
        All of the component, in order, with every weight trained.
    """
    if not np.any(subset.frozen):
        return list(operations)
    needed = _inputs_needed(operations, work, subset)
    stays = ~runs_backward(model, subset)
    stream = work.split_tokens * model.hidden * work.element_bytes
    rewritten = []
    for operation, needs in zip(operations, needed, strict=True):
        one = _frozen(operation, work, subset, needs)
        if component in ("embedding", "layer") or (
            component == "head" and operation.name == "final_norm"
        ):
            one = _forward_only(one, stays, stream)
        elif component == "head" and operation.name == "head":
            one = _without(one, Phase.INPUT_GRAD, stays)
        rewritten += [one, *_adapters(operation, work, subset)]
    return rewritten


def _plain(name: str) -> str:
    return name.removeprefix("mtp.")


def _component(name: str) -> str:
    """The component, of `FrozenPart`, whose weights an operation has, if any.

    The projection of multi-token prediction counts with the head.
    """
    plain = _plain(name)
    if plain.endswith("norm") or plain == "more":
        return "norms"
    if plain.startswith(("mlp.", "moe.shared_")):
        return "mlp"
    if plain.startswith(("attention.", "mamba.", "mixer.")):
        return "attention"
    if plain == "moe.router":
        return "router"
    if plain.startswith("moe."):
        return "experts"
    return "embedding" if plain in ("embedding", "embedding_more") else "head"


def _product(operation: Operation) -> Matmul | None:
    """The forward product with the weights of an operation."""
    products = [k for k in operation.kernels if isinstance(k, Matmul)]
    weighted = any(k.phase is Phase.WEIGHT_GRAD for k in products)
    return products[0] if weighted else None


def _inputs_needed(operations: Sequence[Operation], work: RankWork, subset: Subset) -> list[Bools]:
    """Rows in which the input that an operation saves has a use in backward.

    The output of attention, which the next product saves, is read by the backward kernel of flash
    attention too (arXiv 2205.14135, algorithm 4), unless heads were swapped in between.
    """
    places = {_plain(operation.name): i for i, operation in enumerate(operations)}
    used = [~subset.freezes(_component(o.name)) | _is_adapted(o, subset) for o in operations]
    needed = list(used)
    for name, savers in _SAVED_BY.items():
        for saver in savers:
            if name in places and saver in places:
                relies = used[places[name]] & (operations[places[name]].saved_bytes == 0)
                needed[places[saver]] = needed[places[saver]] | relies
    if "attention.out" in places:
        core = operations[places["attention.core"]]
        heads = [k.heads for k in core.kernels if isinstance(k, FlashAttention)]
        flash = (np.max(heads, axis=0) > 0) & ~swaps_heads(work)
        needed[places["attention.out"]] = needed[places["attention.out"]] | flash
    return needed


def _split(operation: Operation) -> _Split | None:
    return _ADAPTED.get(_plain(operation.name))


def _frozen(operation: Operation, work: RankWork, subset: Subset, needs: Bools) -> Operation:
    """An operation whose weights are frozen in some rows.

    Where there are adapters, a rank saves of the input what they read, in 16 bits whatever the
    recipe.
    """
    product, frozen = _product(operation), subset.freezes(_component(operation.name))
    one = _without(operation, Phase.WEIGHT_GRAD, frozen)
    saved = one.saved_bytes
    if product is not None:
        one = _from_fewer_bits(one, product, work, frozen)
        read = _adapter_tokens(operation, product, work)[0] * product.k * product.batch
        own = np.where(subset.rank > 0, read * work.element_bytes, saved)
        saved = np.where(needs & (saved > 0), own, 0.0) + _unpacked_bytes(operation, work, frozen)
    elif _plain(operation.name) == "embedding":  # its gradient has no other use
        one = _without(one, Phase.INPUT_GRAD, frozen)
        saved = np.where(frozen, 0.0, saved)
    trained = np.where(frozen, 0.0, one.trained)
    # PEFT's wrapper of such a module stores its weights, too (peft 0.14, utils/other.py).
    copied = (subset.rank > 0) & ~frozen
    stored = np.where(copied, 2 * one.parameters, one.parameters)
    return replace(one, saved_bytes=saved, parameters=stored, trained_parameters=trained)


def _from_fewer_bits(
    operation: Operation, product: Matmul, work: RankWork, frozen: Bools
) -> Operation:
    """A product of a layer whose frozen weights are stored in another type, in some rows.

    A kernel makes a 16-bit copy of the weights before the product, forward and for the gradient of
    the input, and the copy is freed after it (bitsandbytes, autograd/_functions.py, MatMul4Bit;
    AutoGPTQ, nn_modules/qlinear). Experts are computed one after the other. The head keeps its
    type (llm_int8_skip_modules of transformers). Where several kernels make the copy, it stays for
    backward (`_unpacked_bytes`).
    """
    rows = _in_fewer_bits(operation, work, frozen)
    if not np.any(rows):
        return operation
    weights = np.where(rows, operation.parameters, 0.0)
    fused = work.frozen_bytes + work.element_bytes
    once = work.unpacks_frozen
    copy = weights / np.maximum(product.batch, 1.0) * np.where(once, 0.0, work.element_bytes)
    forward = operation.forward_working_bytes
    made = tuple(
        MemoryBound(phase=phase, bytes=weights * np.where(once, several, fused), flops=2 * weights)
        for phase, several in ((Phase.FORWARD, _UNPACKING_BYTES), (Phase.INPUT_GRAD, 0.0))
    )
    return replace(
        operation,
        kernels=(*operation.kernels, *made),
        quantized_parameters=np.where(rows, weights, operation.read_quantized),
        working_bytes=operation.working_bytes + copy,
        forward_working_bytes=None if forward is None else forward + copy,
    )


def _in_fewer_bits(operation: Operation, work: RankWork, frozen: Bools) -> Bools:
    """Rows in which the weights of a product are stored in another type than it reads."""
    return (
        frozen & (work.frozen_bytes != work.element_bytes) & (_component(operation.name) != "head")
    )


def _unpacked_bytes(operation: Operation, work: RankWork, frozen: Bools) -> Floats:
    """16-bit copies of weights that autograd saves for the gradient of the input [byte]."""
    rows = _in_fewer_bits(operation, work, frozen) & work.unpacks_frozen
    return np.where(rows, operation.parameters * work.element_bytes, 0.0)


def _without(operation: Operation, phase: Phase, rows: Bools) -> Operation:
    """An operation without its kernels and collectives of a phase, in some rows."""

    def kernel(one: Kernel) -> Kernel:
        if one.phase is not phase:
            return one
        if isinstance(one, Matmul):
            return replace(one, batch=np.where(rows, 0.0, one.batch))
        if isinstance(one, FlashAttention):
            return replace(one, heads=np.where(rows, 0.0, one.heads), kv_heads=one.kv_heads * ~rows)
        moved = np.where(rows, 0.0, one.bytes)
        if isinstance(one, Scan):
            state, chunk = (np.where(rows, 0.0, n) for n in (one.state_flops, one.chunk_flops))
            return replace(one, bytes=moved, state_flops=state, chunk_flops=chunk)
        return replace(one, bytes=moved, flops=np.where(rows, 0.0, one.flops))

    collectives = tuple(
        replace(c, bytes=np.where(rows, 0.0, c.bytes)) if c.phase is phase else c
        for c in operation.collectives
    )
    return replace(
        operation, kernels=tuple(map(kernel, operation.kernels)), collectives=collectives
    )


def _forward_only(operation: Operation, rows: Bools, stream: Floats) -> Operation:
    """An operation without backward in some rows, where only the residual stream is resident."""
    one = _without(_without(operation, Phase.WEIGHT_GRAD, rows), Phase.INPUT_GRAD, rows)
    backward, forward = one.working_bytes, one.forward_working_bytes
    forward = backward if forward is None else forward
    one = replace(
        one,
        working_bytes=np.where(rows, 0.0, backward),
        forward_working_bytes=np.where(rows, forward + stream, forward),
    )
    return replace(one, saved_bytes=np.where(rows, 0.0, one.saved_bytes))


def _adapter_tokens(operation: Operation, product: Matmul, work: RankWork) -> tuple[Floats, Floats]:
    """Tokens that A and B of a product read on one rank.

    With sequence parallelism A reads a rank's share of the sequence before a column-parallel
    product, B a rank's share of the scattered sum after a row-parallel one.
    """
    split = _split(operation)
    return (
        work.split_tokens if split == "columns" else product.m,
        work.split_tokens if split == "rows" else product.m,
    )


def _adapters(operation: Operation, work: RankWork, subset: Subset) -> list[Operation]:
    """A and B of a product, if any row has them.

    Added to the output: read both, write the sum; backward the same with the gradients of the
    input. The input is saved with the product; the intermediate is saved here. Modules with
    adapters of their own (n of the modules of a product, with outputs o) have n A of rank r each,
    and B of r x o; PEFT calls A, and B with the scaling of its result.
    """
    product, split = _product(operation), _split(operation)
    if product is None or split is None:
        return []
    rows = _is_adapted(operation, subset) & (product.batch > 0)
    if not np.any(rows):
        return []
    count, width = _modules(operation, product, subset)
    count = np.maximum(count, 1.0)
    rank = np.maximum(subset.rank, 1) * count
    batch = np.where(rows, product.batch, 0.0)
    before, after = _adapter_tokens(operation, product, work)
    gathered, summed = _collectives(split, work, product, np.where(rows, rank, 0.0))
    adapter = partial(
        linear,
        work=work,
        batch=batch,
        grouped=product.grouped,
        expert=operation.expert,
        sixteen_bits=True,
        reruns_with=operation.reruns_with,
        dropped_with=operation.reruns_with,
    )
    down = adapter(
        f"{operation.name}.lora_a",
        tokens=before,
        inputs=product.k,
        outputs=rank,
        saved_tokens=np.zeros_like(before),
        collectives=summed,
    )
    saved = work.saved_tokens if split == "columns" else after
    up = adapter(
        f"{operation.name}.lora_b",
        tokens=after,
        inputs=rank / count,
        outputs=width,
        saved_tokens=saved * count,
        collectives=gathered,
    )
    own = subset.targets > 0
    up = _scaled_columns(up, work, subset, batch * product.k * width)
    written = batch * after * width
    size = written * work.element_bytes
    return [
        replace(
            _adding(down, Phase.INPUT_GRAD, count * batch * before * product.k, work),
            host_calls=np.where(own, count, 1.0),
            tensors=count,
        ),
        replace(
            _adding(up, Phase.FORWARD, written, work),
            working_bytes=up.working_bytes + size,
            host_calls=np.where(own, 2 * count, 1.0),
            tensors=count,
        ),
    ]


def _is_adapted(operation: Operation, subset: Subset) -> Bools:
    """Rows in which a product of a layer has adapters."""
    modules = [word for group in _TARGETS.get(_plain(operation.name), ()) for word in group]
    named = (subset.targets == 0) | ((subset.targets & LoraTarget.bits(modules)) > 0)
    return subset.adapts(_component(operation.name)) & named & (_split(operation) is not None)


def _modules(operation: Operation, product: Matmul, subset: Subset) -> tuple[Floats, Floats]:
    """Number of modules of a product that have adapters of their own, and their outputs.

    One, of the full width, where `lora_parts` says what has adapters.
    """
    names = _TARGETS[_plain(operation.name)]
    widths = operation.joined if len(operation.joined) == len(names) else (product.n,)
    groups = names if len(widths) == len(names) else (tuple(chain(*names)),)
    count = width = np.zeros(product.n.shape)
    for own, modules in zip(widths, groups, strict=True):
        has = (subset.targets & LoraTarget.bits(modules)) > 0
        count = count + has
        width = width + np.where(has, own, 0.0)
    alone = subset.targets == 0
    return np.where(alone, 1.0, count), np.where(alone, product.n, width)


# Passes over a weight that DoRA adds forward: the sum of the weight and B A and its norm by column
# (PEFT 0.20, tuners/lora/dora.py: B A of an identity, in 32 bits of norms): read and written
# thrice, with two temporary tensors of its size.
_DORA_PASSES, _DORA_COPIES = 6, 2


def _scaled_columns(up: Operation, work: RankWork, subset: Subset, weights: Floats) -> Operation:
    """B of an adapter with what DoRA (arXiv 2402.09353) does in addition, in some rows.

    Y = m (X (W + B A)) / |W + B A|, norms by column without a gradient. Trained: m, one number per
    output. FLOPs of B A: 2 r k n.

    Parameters
    ----------
    weights
        Adapted weights of the product, k n; shape (n,).
    """
    if not np.any(subset.dora):
        return up
    product = next(k for k in up.kernels if isinstance(k, Matmul))
    rows = subset.dora & (weights > 0)
    size = np.where(rows, weights, 0.0) * work.element_bytes
    passes = MemoryBound(phase=Phase.FORWARD, bytes=_DORA_PASSES * size, flops=3 * weights * rows)
    sums = replace(product, m=weights / np.maximum(product.n * product.batch, 1.0))
    sums = replace(sums, batch=np.where(rows, product.batch, 0.0))
    columns = np.where(rows, product.n * product.batch, 0.0)
    forward = up.working_bytes if up.forward_working_bytes is None else up.forward_working_bytes
    return replace(
        up,
        kernels=(*up.kernels, sums, passes),
        parameters=up.parameters + columns,
        working_bytes=up.working_bytes + _DORA_COPIES * size,
        forward_working_bytes=forward + _DORA_COPIES * size,
    )


def _adding(operation: Operation, phase: Phase, elements: Floats, work: RankWork) -> Operation:
    """An operation whose result is added to another of so many elements."""
    added = MemoryBound(phase=phase, bytes=3 * elements * work.element_bytes, flops=elements)
    return replace(operation, kernels=(*operation.kernels, added))


def _collectives(
    split: _Split, work: RankWork, product: Matmul, rank: Floats
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Collectives of the rank-wide intermediate around B, and around A.

    Those of a split product of that width; among ranks that share experts, a sum.
    """
    if split == "columns":
        return before_column_parallel(work, rank), ()
    if split == "rows":
        return (), after_row_parallel(work, rank)
    if split == "replicated":
        return (), ()
    size = product.batch * product.m * rank * work.element_bytes
    phase = Phase.INPUT_GRAD if split == "expert_columns" else Phase.FORWARD
    summed = Collective(
        phase=phase,
        kind=CollectiveKind.ALL_REDUCE,
        axis="etp",
        bytes=np.where(work.etp > 1, size, 0.0),
    )
    return ((summed,), ()) if split == "expert_columns" else ((), (summed,))

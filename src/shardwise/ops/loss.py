"""The cross entropy after the head, by `Loss`: bytes it moves and holds, and what the head repeats.

A logit is an element of (tokens of the micro-batch, vocabulary of the rank). Software that splits
the head into chunks of tokens holds the logits of one chunk.
"""

from collections.abc import Mapping

import numpy as np

from shardwise.arrays import Bools, Floats
from shardwise.config.enums import Loss
from shardwise.ops.operation import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    Kernel,
    Matmul,
    MemoryBound,
    Operation,
    Panels,
    Phase,
    RankWork,
    zeros,
)
from shardwise.records import dataclass, fields, replace

# All-reduced per token, in fp32: largest logit, target's logit, sum of exponents.
_ALL_REDUCES = 3
# Vector FLOPs per logit: maximum, subtraction, exponent, sum; backward: subtraction, scale.
_FLOPS = (4.0, 2.0)
_CHUNKS = 8
"""Chunks of torchtune's losses and of torchtitan's ChunkedLossWrapper where nothing is set."""
_TRL_TOKENS = 256
"""Tokens of a chunk in TRL's chunked_nll (trl/trainer/sft_trainer.py, f2cd577)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFigures:
    """Bytes per logit of a loss, and what it needs in addition."""

    forward: float = 0.0
    """Read and written forward."""
    backward: float = 0.0
    """Read and written backward."""
    saved: float = 0.0
    """Saved from forward to backward of the loss."""
    forward_peak: float = 0.0
    """Live while the loss runs forward, what it saves included."""
    backward_peak: float = 0.0
    """Live while the loss runs backward, what it saved included."""
    chunk_forward_peak: float = 0.0
    """The same per logit of a chunk, in addition."""
    chunk_backward_peak: float = 0.0
    whole: bool = True
    """Whether the head writes the logits of all tokens, and their gradient."""
    gathers: bool = False
    """Whether each of several tensor-parallel ranks gathers the logits of the full vocabulary."""
    again: bool = False
    """Whether the head computes the logits again in backward: a third of its FLOPs more."""
    hidden_gradient: float = 0.0
    """Bytes per element of the head's input of its gradient, which is saved from forward on."""
    head_gradient: bool = False
    """Whether the gradient of the head's weights is saved from forward on, in their type."""


# Bytes moved: fitted on published runs for losses in fp32 (catalog stack megatron-lm-2022),
# Megatron's fusion (megatron-core-2025) and Transformer Engine's kernel (megatron-bridge-2026);
# the others from these by their passes over the logits.
_EAGER = LossFigures(
    forward=23.31, backward=13.99, saved=10, forward_peak=12, backward_peak=14, gathers=True
)
FIGURES: Mapping[Loss, LossFigures] = {
    # 16-bit logits (2), fp32 copy (4) and log-softmax (4) are saved; the gradient of the fp32 copy
    # (4) comes on top. transformers, loss/loss_utils.py; CCE (arXiv 2411.09009), table 1: 24,000
    # and 28,000 MiB for 8,192 x 256,000 logits.
    Loss.EAGER: _EAGER,
    # Only 16-bit logits are left, and their gradient (pytorch/torchtitan, pull request 1033). Two
    # reads forward, a read and a write backward.
    Loss.COMPILED: LossFigures(
        forward=4.545, backward=4.545, saved=2, forward_peak=2, backward_peak=4
    ),
    # The softmax in fp32, in place of the fp32 logits, next to the 16-bit logits or their gradient
    # (megatron/core/tensor_parallel/cross_entropy.py).
    Loss.VOCAB_PARALLEL: LossFigures(
        forward=23.31, backward=13.99, saved=4, forward_peak=6, backward_peak=6
    ),
    # The same, in fewer kernels (megatron/core/fusions/fused_cross_entropy.py).
    Loss.VOCAB_PARALLEL_FUSED: LossFigures(
        forward=13.59, backward=8.161, saved=4, forward_peak=6, backward_peak=6
    ),
    # Log-probabilities in fp32 of this rank's columns; several fp32 tensors of that size while it
    # runs (pytorch/torchtitan b5bcd76, components/loss.py, _LossParallelCrossEntropy).
    Loss.LOSS_PARALLEL: replace(_EAGER, saved=4, forward_peak=14, backward_peak=16, gathers=False),
    # The gradient is written over the 16-bit logits (Transformer Engine 2.2 to 2.17,
    # triton/cross_entropy.py; llm.c, train_gpt2.cu; llm-foundry's fused_crossentropy).
    Loss.IN_PLACE: LossFigures(
        forward=4.545, backward=4.545, saved=2, forward_peak=2, backward_peak=2
    ),
    # Logits and their chunks in 16 bits; backward, one chunk in fp32 with its gradient. CCE, table
    # 1 (torchtune, 8 chunks): 8,000 and 9,631 MiB for 8,192 x 256,000 logits.
    Loss.CHUNKED_LOGITS: replace(
        _EAGER, saved=4, forward_peak=4, backward_peak=4, chunk_backward_peak=6.5
    ),
    # Head, eager loss and their backward chunk by chunk, all in forward; the gradient of the hidden
    # states is assembled in fp32 (pytorch/torchtitan b5bcd76, components/loss.py,
    # ChunkedLossWrapper, since 2026-04).
    Loss.CHUNKED: LossFigures(
        forward=23.31,
        backward=13.99,
        chunk_forward_peak=14,
        whole=False,
        hidden_gradient=FP32_BYTES,
    ),
    # Chunks are checkpointed: head and eager loss run again in backward (TRL f2cd577,
    # trainer/sft_trainer.py, chunked_nll: the default since 1.7).
    Loss.CHUNKED_RECOMPUTE: LossFigures(
        forward=23.31,
        backward=13.99 + 23.31,
        chunk_forward_peak=12,
        chunk_backward_peak=14,
        whole=False,
        again=True,
    ),
    # Gradients of hidden states and of the head are made in forward, chunk by chunk, each written
    # over its logits: two reads and a write (Liger ead96b6, ops/fused_linear_cross_entropy.py).
    Loss.FUSED_LINEAR: LossFigures(
        forward=6.8,
        chunk_forward_peak=6,
        whole=False,
        hidden_gradient=2.0,
        head_gradient=True,
    ),
    # Logits stay in registers and are computed again in backward (CCE, arXiv 2411.09009).
    Loss.CUT: LossFigures(whole=False, again=True),
}
"""Standard figures of each loss; a stack has its own for one of them (`Stack.loss_figures`)."""
_ROWS = [FIGURES.get(word, LossFigures()) for word in Loss]


def is_any(loss: np.ndarray, name: str) -> Bools:
    """Rows whose loss has a property of `LossFigures`.

    Parameters
    ----------
    loss
        Codes of `Loss`; shape (n,).
    """
    rows: Bools = np.array([bool(getattr(row, name)) for row in _ROWS])[loss]
    return rows


def chunk_tokens(work: RankWork, vocab: float, hidden: float) -> Floats:
    """Tokens whose logits are live at a time; shape (n,).

    As the stack says, else: an eighth of them; 256 (TRL); or, with t tokens, the power of 2 from
    t / ceil(V / h) on (Liger), so that logits need as much as the hidden states. One chunk where no
    logits are written.

    Parameters
    ----------
    vocab, hidden
        V and h.
    """
    tokens = work.tokens
    inputs = np.ceil(tokens / np.ceil(vocab / hidden))
    by_word = {
        Loss.CHUNKED_LOGITS: np.ceil(tokens / _CHUNKS),
        Loss.CHUNKED: np.ceil(tokens / _CHUNKS),
        Loss.CHUNKED_RECOMPUTE: np.full_like(tokens, _TRL_TOKENS),
        Loss.FUSED_LINEAR: 2.0 ** np.ceil(np.log2(np.maximum(inputs, 1.0))),
    }
    chunk = tokens
    for word, usual in by_word.items():
        size = np.where(work.loss_chunk_tokens > 0, work.loss_chunk_tokens, usual)
        chunk = np.where(work.loss == word.code, np.minimum(size, tokens), chunk)
    return chunk


def with_chunks(head: Operation, work: RankWork, chunk: Floats) -> Operation:
    """The product with the vocabulary where the loss splits it into chunks, or repeats it.

    Parameters
    ----------
    head
        The product on all tokens, whose logits stay until the loss has run.
    chunk
        Tokens of a chunk; shape (n,).
    """
    apart = ~is_any(work.loss, "whole")
    if not np.any(apart):
        return head
    count = np.where(apart, np.ceil(work.tokens / chunk), 1.0)
    again = is_any(work.loss, "again")
    kernels: list[Kernel] = []
    for kernel in head.kernels:
        if not isinstance(kernel, Matmul):
            kernels.append(kernel)
            continue
        one = np.ones_like(work.tp)
        panels = kernel.panels or Panels(count=one, ranks=one)
        split = replace(kernel, panels=replace(panels, chunks=count))
        kernels.append(split)
        if kernel.phase is Phase.FORWARD and np.any(again):
            batch = np.where(again, kernel.batch, 0.0)
            kernels.append(replace(split, phase=Phase.INPUT_GRAD, batch=batch))
    product = next(k for k in head.kernels if isinstance(k, Matmul))
    early = is_any(work.loss, "head_gradient") * product.k * product.n
    return replace(
        head,
        kernels=tuple(kernels),
        saved_bytes=head.saved_bytes + early * work.element_bytes,
        working_bytes=np.where(
            apart, work.tokens * product.k * work.element_bytes, head.working_bytes
        ),
    )


_SIXTEEN_BITS = 2.0
# Of log-probabilities of answers in TRL (trl/trainer/utils.py, selective_log_softmax): 16-bit
# logits and their log-softmax, made sequence by sequence; backward the gradient in addition.
_LOG_PROBABILITIES = LossFigures(saved=4, forward_peak=4, backward_peak=6)


def _of_answers(work: RankWork) -> Bools:
    """Rows whose loss reads log-probabilities of 16-bit logits instead of the cross entropy.

    Other software makes the logits fp32 first (LLaMA-Factory, train/dpo/trainer.py), as an eager
    cross entropy does.
    """
    eager: Bools = work.loss == Loss.EAGER.code
    return eager & work.compares_answers & ~work.fp32_log_probabilities


def loss_operation(work: RankWork, *, columns: Floats, chunk: Floats, hidden: float) -> Operation:
    """Cross entropy of the logits of a rank.

    Ranks that split the vocabulary reduce three numbers per token, or gather the logits of the full
    vocabulary. A stack's own figures stand for bytes at the peak, per logit of all tokens or, where
    the head is in chunks, of one chunk.

    Parameters
    ----------
    columns
        Vocabulary on this rank; shape (n,), as all that follow.
    chunk
        Tokens of a chunk (`chunk_tokens`).
    hidden
        Width of the head's input.
    """
    by_row = {
        one.name: np.array([float(getattr(row, one.name)) for row in _ROWS])[work.loss]
        for one in fields(LossFigures)
    }
    own = work.own_loss
    whole, gathers = by_row["whole"] > 0, (by_row["gathers"] > 0) & (work.tp > 1) & ~own
    peak = {"saved": whole, "forward_peak": whole, "backward_peak": whole}
    peak |= {"chunk_forward_peak": ~whole, "chunk_backward_peak": ~whole}
    by_row |= {
        name: np.where(own, np.where(rows, work.loss_saved_bytes, 0.0), by_row[name])
        for name, rows in peak.items()
    }
    moved = [
        np.where(own, stated, by_row[name])
        for stated, name in (
            (work.loss_forward_bytes, "forward"),
            (work.loss_backward_bytes, "backward"),
        )
    ]
    compared = _of_answers(work)
    for name in ("saved", "forward_peak", "backward_peak"):
        own = own & ~compared
        by_row[name] = np.where(compared, getattr(_LOG_PROBABILITIES, name), by_row[name])
    width = columns * np.where(gathers, work.tp, 1.0)
    logits, of_chunk = work.tokens * width, chunk * width
    wide = ~compared & (by_row["saved"] > _SIXTEEN_BITS)
    reference = np.where(wide, _SIXTEEN_BITS + FP32_BYTES, _SIXTEEN_BITS) * logits
    reference = np.where(work.runs_reference & whole, reference, 0.0)
    together = np.where(reference > 0, np.minimum(by_row["saved"], _EAGER.saved) * logits, 0.0)
    extra = by_row["hidden_gradient"] * work.tokens * hidden
    saved = by_row["saved"] * logits
    forward, backward = (
        by_row[f"{name}_peak"] * logits + by_row[f"chunk_{name}_peak"] * of_chunk
        for name in ("forward", "backward")
    )
    reduced = np.where((work.tp > 1) & ~gathers, work.tokens * FP32_BYTES, 0.0)
    reduce = Collective(
        phase=Phase.FORWARD, kind=CollectiveKind.ALL_REDUCE, axis="tp", bytes=reduced
    )
    collectives = (reduce,) * _ALL_REDUCES
    if np.any(gathers):
        size = np.where(gathers, logits * work.element_bytes, 0.0)
        gather = Collective(
            phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER, axis="tp", bytes=size
        )
        collectives = (*collectives, gather)
    return Operation(
        name="loss",
        kernels=tuple(
            MemoryBound(phase=phase, bytes=logits * size, flops=flops * logits, kind="loss")
            for phase, size, flops in zip(
                (Phase.FORWARD, Phase.INPUT_GRAD), moved, _FLOPS, strict=True
            )
        ),
        collectives=collectives,
        parameters=zeros(work),
        saved_bytes=saved + extra,
        working_bytes=np.maximum(backward - saved, 0.0),
        forward_working_bytes=np.where(own & whole, together, forward + extra) + reference,
    )

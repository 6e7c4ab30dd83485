"""Constraints on the attention kernel: what accelerator, heads, type and positions allow.

FlashAttention 1 and 2 of a stack stand for the fused kernel of that time on other accelerators, so
only those that a strategy names are bound; every other kernel is bound wherever it is named.
"""

from collections.abc import Callable, Iterable

import numpy as np

from shardwise.arrays import Bools, among
from shardwise.config.enums import AttentionKernel, Dtype, Generation, Position
from shardwise.config.model import Model
from shardwise.config.software.attention import attention_facts
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints.constraint import Constraint, one, rule

_OF_THEIR_TIME = (AttentionKernel.FLASH1, AttentionKernel.FLASH2)
_NAMED = [word for word in AttentionKernel if word.is_named]


def _kernels(table: Table) -> Iterable[tuple[AttentionKernel, Bools]]:
    """Fused kernels that are named, each with the rows that run it."""
    effective = table.in_effect("attention_kernel")
    for word in _NAMED:
        column = table.attention_kernel if word in _OF_THEIR_TIME else effective
        rows = column == word.code
        if np.any(rows):
            yield word, rows


def _where(table: Table, refuses: Callable[[AttentionKernel], bool]) -> Bools:
    """Rows whose kernel is refused."""
    wrong = np.zeros(len(table), dtype=np.bool_)
    for word, rows in _kernels(table):
        if refuses(word):
            wrong = wrong | rows
    return wrong


def _kernel(table: Table) -> AttentionKernel:
    return AttentionKernel.from_code(one(table.in_effect("attention_kernel")))


def _generation(system: System, table: Table) -> Generation:
    return table.on(system).accelerator.generation


def _runs(word: AttentionKernel, generation: Generation) -> bool:
    return generation is Generation.OTHER or generation in attention_facts().kernels[word].runs_on


def _on_accelerator(_: Model, system: System, table: Table) -> str:
    name, generation = _kernel(table), _generation(system, table)
    allowed = [word for word in _NAMED if _runs(word, generation)]
    because = attention_facts().kernels[name].because
    return (
        f"{name} does not run on {system.accelerator.name} ({generation}): {because}; allowed: "
        + ", ".join(["stack", "best", "unfused", *allowed])
    )


def _too_wide(model: Model, system: System, table: Table) -> Bools:
    generation = _generation(system, table)
    widest = max(_widths(model))
    limits = attention_facts().kernels

    def refuses(word: AttentionKernel) -> bool:
        return widest > (limits[word].widest(generation) or widest)

    return _where(table, refuses)


def _widths(model: Model) -> list[int]:
    """Widths of heads of dense attention; that of selected keys has kernels of its own."""
    return [one.head_dim for one in model.attentions if not one.is_sparse] or [0]


def _fits_heads(model: Model, system: System, table: Table) -> str:
    kernel = _kernel(table)
    widest = attention_facts().kernels[kernel].widest(_generation(system, table))
    return f"{kernel} has heads of at most {widest} here, {model.name} has {max(_widths(model))}"


ATTENTION_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "attention_accelerator",
        "attention_kernel",
        lambda m, s, t: _where(t, lambda word: not _runs(word, _generation(s, t))),  # noqa: ARG005
        _on_accelerator,
    ),
    rule("attention_heads", "attention_kernel", _too_wide, _fits_heads),
    rule(
        "attention_fp32",
        "attention_kernel",
        lambda t: (
            (t.dtype == Dtype.FP32.code)
            & among(t.attention_kernel, [word.code for word in _NAMED if not word.runs_fp32])
        ),
        "computes in 16 bits and fewer; fp32 runs efficient, triton or unfused",
    ),
    rule(
        "attention_positions",
        "attention_kernel",
        lambda m, t: (
            among(t.attention_kernel, [word.code for word in _NAMED])
            & (m.position == Position.RELATIVE_XL)
        ),
        "scores no relative-xl positions; allowed: stack, best, unfused",
    ),
)

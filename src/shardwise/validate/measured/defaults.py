"""What rows leave open of batch and pipeline: what their release does by itself, or what fits."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.estimator import estimate_many
from shardwise.validate.measured.run import Run

__all__ = ["first_that_fits", "unsaid_chunks", "unsaid_sizes"]

# Recipes of these stacks interleave down to a layer in a chunk (NeMo's performance recipes).
_INTERLEAVE = ("megatron-core-2025", "nemo-2025")


def unsaid_sizes(run: Run, pp: int, sequences: int) -> tuple[int, ...]:
    """Micro-batches to try, the likeliest first, of so many sequences of a replica.

    torchtitan cuts a batch in as many as there are stages. Without a pipeline a larger one is never
    slower, so that users take the largest that fits; with one it adds to the bubble.
    """
    if pp > 1:
        whole, rest = divmod(sequences, pp)
        cut = "torchtitan" in (run.software.framework or "") and not rest
        return (max(whole, 1),) if cut else (1,)
    powers = [1 << n for n in range(sequences.bit_length()) if sequences % (1 << n) == 0]
    return tuple(reversed(powers))


def unsaid_chunks(run: Run, stack: Stack, layers: int, pp: int, micro_batches: int) -> int:
    """Chunks of layers of a stage, where a row does not say how many."""
    if "interleaved" in str(run.features.get("schedule") or "").lower():
        return 2  # torchtitan's default of stages on a rank
    even = layers % pp == 0 and micro_batches % pp == 0
    return layers // pp if even and stack.name in _INTERLEAVE else 1


def first_that_fits(
    model: Model, system: System, fields: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Fields with the first of the choices whose memory fits; with the last if none does."""
    if len(choices) == 1:
        return dict(fields) | dict(choices[0])
    tried = [Strategy.validated(dict(fields) | dict(one), source="a row") for one in choices]
    table = estimate_many(model, system, tried)
    found = next((n for n in range(len(tried)) if table.reason(n) is None and table.fits[n]), -1)
    return dict(fields) | dict(choices[found])

"""Memory of the forward and of the backward pass, each with a peak of its own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.analysis.components import FULL_LAYER, recomputed_parts
from shardwise.config.enums import RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, Walk, step_of, walk
from shardwise.cost.component_costs import ComponentCosts
from shardwise.cost.component_operations import ComponentOperations
from shardwise.cost.layer_cost import LayerCost
from shardwise.cost.operations import OperationCost


def costs_by_pass(
    table: Table,
    blocks: ComponentCosts,
    parts: Sequence[ComponentOperations],
    *,
    with_ends: bool = True,
) -> tuple[ComponentCosts, ComponentCosts]:
    """Costs with the peaks of the forward pass, and with those of the backward pass.

    `memory.stage_memory` has the peak of both together; with these costs it has that of one. The
    backward pass includes what recompute runs again. Forward only, both are the costs themselves.

    Parameters
    ----------
    with_ends
        Whether the end of forward counts, when all activations are saved.
    """
    if not table.training[0]:
        return blocks, blocks
    walks = [
        None if one is None else _walks(table, *one, with_ends=with_ends)
        for one in listed_components(blocks, parts)
    ]
    forward, backward = (
        _with_peaks(blocks, [None if both is None else both[n] for both in walks]) for n in (0, 1)
    )
    return forward, backward


def listed_components(
    blocks: ComponentCosts, parts: Sequence[ComponentOperations]
) -> list[tuple[str, LayerCost, list[OperationCost]] | None]:
    """Name, cost and operations of every component, in the order of `ComponentCosts.parts`.

    Layers that do not recompute have the name `plain`.
    """
    operations = {name: costs for name, _, costs in parts}
    kinds = [costs for name, _, costs in parts if name == "layer"]
    named = [*(("layer", costs) for costs in kinds), *(("plain", costs) for costs in kinds)]
    named += [(name, operations.get(name, [])) for name in ("mtp", "embedding", "head")]
    return [
        None if cost is None else (name, cost, costs)
        for cost, (name, costs) in zip(blocks.components, named, strict=True)
    ]


def _walks(
    table: Table,
    name: str,
    cost: LayerCost,
    operations: Sequence[OperationCost],
    *,
    with_ends: bool,
) -> tuple[Walk, Walk]:
    """Peak of a component in the forward pass and in the backward pass.

    Neither exceeds the peak of both, where full recompute does not count its first forward: the
    second forward needs at least as much.
    """
    steps = [step_of(one.operation) for one in operations]
    never = np.full_like(steps[0].saved, -np.inf)
    recomputed = recomputed_parts(table, name)
    full = recomputed == FULL_LAYER
    recompute = FULL if full else RecomputePart.bits(recomputed)

    def walked(some: Sequence[Step], how: int) -> Walk:
        found = walk(some, how, cost.bytes.saved_bytes)
        return replace(found, over=np.minimum(found.over, cost.bytes.over_bytes))

    first = FORWARD_ONLY if full else recompute
    forward = walked([replace(step, backward=never) for step in steps], first)
    if with_ends:
        last = np.where(forward.over > 0, forward.peak, 2 * len(steps) - 1)
        forward = replace(forward, over=np.maximum(forward.over, 0.0), peak=last)
    return forward, walked([replace(step, forward=never) for step in steps], recompute)


def _with_peaks(blocks: ComponentCosts, walks: Sequence[Walk | None]) -> ComponentCosts:
    """The same costs with other peaks of temporary tensors."""
    changed = [
        None if part is None or found is None else _replaced(part, found)
        for part, found in zip(blocks.components, walks, strict=True)
    ]
    count = len(blocks.kinds)
    plain = [part for part in changed[count : 2 * count] if part is not None]
    mtp, embedding, head = changed[2 * count :]
    assert embedding is not None  # noqa: S101 - every model has both
    assert head is not None  # noqa: S101
    return replace(
        blocks,
        kinds=tuple(part for part in changed[:count] if part is not None),
        plain=tuple(plain) if plain else None,
        mtp=mtp,
        embedding=embedding,
        head=head,
    )


def _replaced(part: LayerCost, found: Walk) -> LayerCost:
    return replace(part, bytes=replace(part.bytes, over_bytes=found.over, peak=found.peak))

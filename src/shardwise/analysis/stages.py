"""Memory and time of every pipeline stage of one strategy."""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from shardwise.analysis.operations import FULL_LAYER, recomputed_parts
from shardwise.analysis.results import Memory, Peak, StageEstimate, WeightMemory
from shardwise.arrays import Floats
from shardwise.config.enums import RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.activation_walk import FORWARD_ONLY, FULL, Step, Walk, step_of, walk
from shardwise.cost.component_costs import ComponentCosts, ComponentOperations, summed
from shardwise.cost.layer_cost import LayerCost
from shardwise.cost.operations import OperationCost
from shardwise.distinct import known_of
from shardwise.engine.evaluate import Evaluation
from shardwise.engine.memory import (
    MEMORY_PARTS,
    ExpertMemory,
    PassName,
    StageMemory,
    expert_memory,
    reserved_bytes,
    stage_memory,
)
from shardwise.engine.zero import Shares, stage_parameters
from shardwise.parallel.pipeline_layout import by_stage
from shardwise.parallel.schedule.in_flight import in_flight
from shardwise.records import replace

_Names = list[tuple[str, list[str]]]
"""Operations of each component, in forward order, and those of the head that train weights."""
# Rows whose costs of each pass are saved: each is some 50 KB.
_MOST_KNOWN = 256


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
        return replace(
            found,
            over=np.minimum(found.over, cost.bytes.over_bytes),
            trained_over=np.minimum(found.trained_over, cost.bytes.trained_over_bytes),
        )

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
    size = replace(
        part.bytes,
        over_bytes=found.over,
        trained_over_bytes=found.trained_over,
        peak=found.peak,
    )
    return replace(part, bytes=size)


_OF_WEIGHTS = ("weights", "gradients", "optimizer")


def memory_record(memory: StageMemory, reserved: float, system: System, row: int) -> Memory:
    """Convert one row of memory columns to a record.

    Parameters
    ----------
    memory
        Columns [byte].
    reserved
        What the accelerator must have [byte].
    """
    tiers = system.accelerator.memory
    return Memory(
        **{
            name: float(np.broadcast_to(getattr(memory, name), memory.total.shape)[row])
            for name in (*MEMORY_PARTS, "total", "offloaded")
        },
        reserved=reserved,
        capacity=tiers[0].capacity,
        limit_on=tiers[0].limit_on,
        offload_capacity=float(tiers[1].usable_bytes) if len(tiers) > 1 else 0.0,
    )


def stage_estimates(evaluation: Evaluation) -> tuple[StageEstimate, ...]:
    """Memory and time of every pipeline stage of a table of one row."""
    step, table, blocks = evaluation.step, evaluation.step.table, evaluation.step.costs
    names = known_of(partial(_names_of, evaluation), _names_of, blocks, most=_MOST_KNOWN)
    stage = np.arange(int(table.pp[0]))
    run = by_stage(step.groups)
    shares = Shares.of(table, blocks)
    memory = stage_memory(table, blocks, run, stage, shares)
    stack = table.stacks[int(table.stack[0])]
    reserved = reserved_bytes(
        memory.total,
        slack=np.array([stack.allocator_slack]),
        runtime_memory=np.array([stack.runtime_memory]),
    )
    forward = summed(blocks, run.work, lambda one: one.times.forward_pass_s)
    backward = summed(blocks, run.work, lambda one: one.times.backward_pass_s)
    dense, expert = stage_parameters(blocks, run)
    parameters = dense + expert
    flying = in_flight(
        schedule=table.schedule,
        micro_batches=table.micro_batches,
        stages=table.pp,
        chunks=table.vpp,
        stage=stage,
    ) * np.where(table.training, 1.0, 0.0)
    experts = expert_memory(table, blocks, run, memory)
    peaks = _peaks(memory, blocks, names)

    @cache
    def peaks_of(phase: PassName) -> list[Peak]:
        passes = known_of(partial(_by_pass, evaluation), _by_pass, blocks, most=_MOST_KNOWN)
        costs = passes[phase]
        return _peaks(stage_memory(table, costs, run, stage, shares, phase), costs, names)

    phases: tuple[PassName, ...] = ("forward", "backward") if table.training[0] else ()
    return tuple(
        StageEstimate.deferring(
            {
                f"{phase}_peak": partial(lambda *at: peaks_of(at[0])[at[1]], phase, i)
                for phase in phases
            },
            stage=i,
            layers=int(run.layers[i]),
            parameters=float(parameters[i]),
            in_flight=float(flying[i]),
            micro_batch_s=float(forward[i] + backward[i]),
            forward_s=float(forward[i]),
            backward_s=float(backward[i]),
            **vars(memory_record(memory, float(reserved[i]), step.system, i)),
            peak=peaks[i],
            **_dense_and_experts(memory, experts, (dense, expert), i),
        )
        for i in stage.tolist()
    )


def _by_pass(evaluation: Evaluation) -> dict[PassName, ComponentCosts]:
    """Costs of each pass: they read no more than `Step.costs`."""
    step = evaluation.step
    forward, backward = costs_by_pass(step.table, step.costs, evaluation.parts)
    return {"forward": forward, "backward": backward}


def _names_of(evaluation: Evaluation) -> _Names:
    """Names of the operations of each component, and of those of the head that train."""
    parts = evaluation.parts
    names = [(name, [one.operation.name for one in costs]) for name, _, costs in parts]
    trained = [one.operation.name for one in parts[-1][2] if step_of(one.operation).trains]
    return [*names, ("trained", trained)]


def _dense_and_experts(
    memory: StageMemory, experts: ExpertMemory | None, parameters: tuple[Floats, Floats], stage: int
) -> dict[str, WeightMemory]:
    """Memory of dense weights and of those of routed experts; nothing without experts.

    The two add up to the total exactly: of w - e and w - (w - e) the smaller has no rounding error.
    """
    if experts is None:
        return {}
    dense = {name: getattr(memory, name) - getattr(experts, name) for name in _OF_WEIGHTS}
    of_experts = {name: getattr(memory, name) - dense[name] for name in _OF_WEIGHTS}
    return {
        kind: WeightMemory(
            parameters=float(count[stage]),
            **{name: float(column[stage]) for name, column in columns.items()},
        )
        for kind, columns, count in zip(
            ("dense", "experts"), (dense, of_experts), parameters, strict=True
        )
    }


def _peaks(memory: StageMemory, costs: ComponentCosts, listed: _Names) -> list[Peak]:
    """The moment at which each stage uses the most memory."""

    def peak(size: float, *, in_update: bool, place: int) -> Peak:
        moment = ("optimizer", "update") if in_update else _peak_operation(costs, listed, place)
        return Peak(bytes=size, operation=moment[0], phase=moment[1])

    columns = np.broadcast_arrays(memory.total, memory.in_update, memory.part)
    moments = zip(*(column.tolist() for column in columns), strict=True)
    return [peak(size, in_update=update, place=place) for size, update, place in moments]


def _peak_operation(blocks: ComponentCosts, listed: _Names, place: int) -> tuple[str, str]:
    """Operation and phase at which a component uses the most memory.

    Parameters
    ----------
    place
        Position of the component in `ComponentCosts.components`, or one more (`StageMemory.part`).
    """
    kinds = len(blocks.kinds)
    parts = [name for name, _ in listed]
    places = {2 * kinds + 1: 0, 2 * kinds + 2: parts.index("head")}
    if "mtp" in parts:
        places[2 * kinds] = parts.index("mtp")
    if place == len(blocks.components):
        return listed[-1][1][-1], "backward"
    names = listed[places.get(place, 1 + place % kinds)][1]
    component = blocks.components[place]
    assert component is not None  # noqa: S101 - it has the peak
    position = int(component.bytes.peak[0])
    phase = "forward" if position >= len(names) else "backward"
    return names[position % len(names)], phase

"""A lower bound of the time of a step, from the passes of one micro-batch.

A search leaves out what cannot be among the best by this bound, so it must never exceed
`evaluate.timed`. It follows from work that no schedule avoids.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Bools, Floats, Ints, gather, total
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.cost.component_costs import ComponentCosts, Totals
from shardwise.cost.layer_cost import Communication, LayerCommunication, LayerWork
from shardwise.cost.operations import Launched
from shardwise.engine.step_time import node_doublings
from shardwise.parallel.pipeline_layout import StageGroup

# Rounding of sums of times: far more than their last digits, far less than any bound is short.
_ROUNDING = 1e-9
_RAMPED = [Schedule(name).code for name in ("1f1b", "gpipe", "interleaved")]
_INTERLEAVED = Schedule.INTERLEAVED.code

Passes = tuple[Floats | None, ...]
"""Time of a forward and backward pass by component, in the order of `ComponentCosts.components`."""


def pass_times(costs: ComponentCosts) -> Passes:
    """Time of a pass of each component, as the step counts it [s]."""
    return tuple(None if one is None else one.times.time_s for one in costs.components)


def least_pass_times(
    model: Model,
    totals: Totals,
    *,
    training: Bools,
    overlaps_experts: Bools,
    overlap_processors: Floats,
) -> Passes:
    """Least time of a pass of each component, whatever is recomputed or offloaded [s].

    Kernels of both passes, and the communication that nothing hides. Recompute and offload only
    add time. Overlap of experts hides at most all of their communication X; its processors, the
    share u, slow compute by u X at least.

    Parameters
    ----------
    totals
        Of the embedding, each kind of layer, a module of multi-token prediction where the model
        has any, and the head; of n rows of `Links`.
    overlap_processors
        u; shape (n,).
    """
    share = np.where(overlaps_experts, overlap_processors, 1.0)
    kernels = totals.position

    def one_way(launched: Launched, communication: Communication) -> Floats:
        exposed_s = communication.exposed.total(np.zeros_like(share), share)
        return gather(launched, kernels).compute_s(exposed_s) + exposed_s

    def least(work: LayerWork, communication: LayerCommunication) -> Floats:
        forward_s = one_way(work.forward, communication.forward)
        backward_s = one_way(work.backward, communication.backward)
        return forward_s + np.where(training, backward_s, 0.0)

    several = zip(totals.kernels.work, totals.communication, strict=True)
    embedding, *inner, head = (least(*one) for one in several)
    kinds = inner[: len(model.layers)]
    return (*kinds, *kinds, inner[-1] if model.mtp else None, embedding, head)


def step_bound(
    system: System,
    groups: Sequence[StageGroup],
    passes: Passes,
    *,
    stages: Ints,
    chunks: Ints,
    schedule: Ints,
    micro_batches: Ints,
    gpus: Ints,
    step_overhead_s: Floats,
    step_wait_s: Floats,
    straggler_per_doubling: Floats,
    uneven_chunks: bool = False,
) -> Floats:
    """Lower bound of the time of a step [s]; shape (n,).

    (max over stages of (m t + r)) (1 + g log2 nodes) + o + w log2 nodes, where t is the time of a
    pass of a micro-batch on the stage, and r the time of a pass of one chunk on each stage before
    it: the first micro-batch has to get to the stage, and its last gradient back to the first. r is
    0 for schedules whose backward pass ends before all gradients of weights, for chunks of unequal
    layers, and for interleaved chunks with an incomplete group of micro-batches.

    Parameters
    ----------
    passes
        Time of a pass by component, or less [s]; each of shape (n,).
    stages, chunks, schedule, micro_batches, gpus
        p, v, code of `Schedule`, m, and accelerators; shape (n,).
    step_overhead_s, step_wait_s, straggler_per_doubling
        o and w [s] and g of the stack; shape (n,).
    uneven_chunks
        Whether chunks may have unequal layers that the groups do not show.
    """
    uneven = np.any([group.uneven_chunks for group in groups], axis=0)
    uneven |= uneven_chunks & (chunks > 1)
    partial = (schedule == _INTERLEAVED) & (micro_batches % stages != 0)
    ramped = np.isin(schedule, _RAMPED) & ~uneven & ~partial
    each = np.where(ramped, 1.0 / chunks, 0.0)
    longest = before = np.zeros(np.shape(micro_batches))
    for group in groups:
        counted = zip(group.work, passes, strict=True)
        pass_s = total((n * time_s for n, time_s in counted if time_s is not None), longest)
        present = group.length > 0
        last = before + np.where(present, (group.length - 1) * pass_s, 0.0)
        longest = np.maximum(longest, np.where(present, micro_batches * pass_s + each * last, 0.0))
        before = before + np.where(present, group.length * pass_s, 0.0)
    doublings = node_doublings(system, gpus)
    fixed_s = step_overhead_s + step_wait_s * doublings
    return (longest * (1 + straggler_per_doubling * doublings) + fixed_s) * (1 - _ROUNDING)


def bound_of_rows(
    system: System, table: Table, groups: Sequence[StageGroup], passes: Passes
) -> Floats:
    """Lower bound of the time of a step of strategies; see `step_bound` [s].

    Parameters
    ----------
    passes
        Time of a pass by component, or less [s]; each of shape (n,).
    """
    return step_bound(
        system,
        groups,
        passes,
        stages=table.pp,
        chunks=table.vpp,
        schedule=table.schedule,
        micro_batches=table.micro_batches,
        gpus=table.gpus,
        step_overhead_s=table.by_stack(lambda stack: stack.step_overhead),
        step_wait_s=table.by_stack(lambda stack: stack.step_wait),
        straggler_per_doubling=table.by_stack(lambda stack: stack.straggler_per_doubling),
    )

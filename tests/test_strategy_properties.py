"""What holds for any legal strategy, whatever its fields: overlap, offload, links, forward only."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_strategies import FLAGS, SLACK, changed, fast, legal, machines, models, tables, with_host
from shardwise import Model, System
from shardwise.arrays import gather
from shardwise.config.enums import TpExchange, TpOverlap
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import Evaluation, evaluate
from shardwise.engine.memory import MEMORY_PARTS, stage_memory
from shardwise.parallel.pipeline_layout import by_stage

pytestmark = pytest.mark.any_software


def same_stage(one: Evaluation, other: Evaluation) -> np.ndarray:
    """Rows of which the same stage is the slowest in both: all parts are on it as often."""
    parts = zip(one.step.critical.work, other.step.critical.work, strict=True)
    return np.logical_and.reduce([before == after for before, after in parts])


def without_host(table: Table) -> Table:
    """The table with stacks whose kernels need no time of the host."""
    none = {"host_launch": 0.0, "host_call": 0.0, "expert_wait": 0.0}
    return replace(table, stacks=tuple(stack.model_copy(update=none) for stack in table.stacks))


@fast
@given(models, machines, tables)
def test_overlap_is_never_slower(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Of exchanges of ranks and of replicas: slowed products are inside what is exposed.

    From two micro-batches on, as what hides behind a pass may grow by what the pass shrinks; and
    where the same stage stays the slowest, as what is met once a step is that stage's. Where a
    stage waits for offload, the sum that p2p_rs_ag scatters at its edge is only saved unhidden.
    Without time of the host, which runs ahead only during what is exposed and launches each piece
    of what overlaps in pieces.
    """
    table = without_host(legal(model, machine, given))
    bare_table = changed(table, tp_overlap=TpOverlap.NONE.code)
    bare = evaluate(model, machine, bare_table)
    for overlap in ("stack", "ring", "pipe"):
        hiding = changed(table, tp_overlap=TpOverlap(overlap).code)
        result = evaluate(model, machine, hiding)
        same = same_stage(result, bare)
        same &= ~(
            (table.tp_exchange == TpExchange.P2P_RS_AG.code)
            & (table.offload_activations | table.offload_weights)
        )
        assert (result.time_s["tp_comm"] <= bare.time_s["tp_comm"] * SLACK)[same].all()
        assert (result.step_time_s <= bare.step_time_s * SLACK)[same].all()
        for part in ("forward", "backward", "recompute"):
            assert (result.time_s[part] == bare.time_s[part])[same].all()
    late, early = (evaluate(model, machine, changed(table, dp_overlap=on)) for on in (False, True))
    assert (early.step_time_s <= late.step_time_s * SLACK).all()
    assert (early.time_s["dp_comm"] <= late.comm_s["dp"][0] * SLACK).all()


@fast
@given(models, machines, tables, st.sampled_from(FLAGS))
def test_offload_never_raises_the_first_tier(
    model: Model, machine: System, given: list[dict[str, Any]], flag: str
) -> None:
    """On every stage; what leaves it is in the second tier; no exchange gets longer."""
    table = legal(model, machine, given)
    here, there = (changed(table, **{flag: on}) for on in (False, True))
    whole, less = (evaluate(model, machine, either) for either in (here, there))
    assert (less.memory.total <= whole.memory.total * SLACK).all()
    assert (less.reserved_bytes <= whole.reserved_bytes * SLACK).all()
    for row in range(len(table)):
        one = slice(row, row + 1)
        before, after = (
            stage_memory(
                side.take(one),
                gather(result.step.costs, one),
                by_stage(gather(result.step.groups, one)),
            )
            for side, result in ((here, whole), (there, less))
        )
        moved = after.offloaded - before.offloaded
        part = flag.removeprefix("offload_")
        at_once = ~(before.in_update | after.in_update)
        held, kept = getattr(before, part), getattr(after, part)
        assert (moved >= 0).all()
        assert (kept <= held * SLACK)[at_once].all()
        assert (held <= (kept + moved) * SLACK)[at_once].all()
        # Of what other layers keep, less is away at the fullest moment of one.
        unchanged = {*MEMORY_PARTS} - {part, "buffers" if part == "activations" else part}
        for other in unchanged:
            assert (getattr(before, other) == getattr(after, other))[at_once].all()
    comm = {
        axis: (whole.comm_s[axis][0], less.comm_s[axis][0]) for axis in ("tp", "cp", "pp", "dp")
    }
    same = same_stage(whole, less)
    for before_s, after_s in comm.values():
        assert (before_s == after_s)[same].all()


@fast
@given(models, machines, tables, st.floats(1, 100))
def test_a_faster_link_is_never_slower(
    model: Model, machine: System, given: list[dict[str, Any]], factor: float
) -> None:
    """From two micro-batches on, where the same stage stays the slowest; without end it is free."""
    table = legal(model, machine, given)
    rate = machine.accelerator.memory[1].bandwidth
    before, after, free = (
        evaluate(model, with_host(machine, bandwidth), table)
        for bandwidth in (rate, rate * factor, 1e30)
    )
    same = same_stage(before, after)
    assert (after.step_time_s <= before.step_time_s * SLACK)[same].all()
    assert (after.comm_s["offload"][0] <= before.comm_s["offload"][0] * SLACK)[same].all()
    assert (free.time_s["offload"] < 1e-12).all()
    assert (after.memory.total == before.memory.total).all()


@fast
@given(models, machines, tables)
def test_forward_only_is_the_forward_part_of_training(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Where the same stage is the slowest; nothing else, and never more memory."""
    table = legal(model, machine, given)
    both, once = (changed(table, training=on) for on in (True, False))
    training, forward = (evaluate(model, machine, either) for either in (both, once))
    same = same_stage(training, forward)
    assert (forward.time_s["forward"] == training.time_s["forward"])[same].all()
    for part in ("backward", "recompute", "optimizer"):
        assert (forward.time_s[part] == 0).all()
    # Split weights are gathered forward too, once instead of twice.
    assert (forward.time_s["dp_comm"] == 0)[table.zero < 3].all()
    assert (forward.comm_s["dp"][0] <= training.comm_s["dp"][0] * SLACK).all()
    for part in ("tp_comm", "cp_comm", "pp_comm", "offload"):
        assert (forward.time_s[part] <= training.time_s[part] * SLACK)[same].all()
    assert (forward.step_time_s <= training.step_time_s * SLACK).all()
    assert (forward.memory.total <= training.memory.total * SLACK).all()
    for part in ("gradients", "optimizer", "activations"):
        assert (getattr(forward.memory, part) == 0).all()
    assert (forward.recompute_flops == 0).all()

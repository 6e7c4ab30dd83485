"""Constraints on the pipeline: stages, chunks, schedules, and the split of layers."""

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import evaluate_distinct
from shardwise.parallel.constraints.constraint import Constraint, one
from shardwise.parallel.pipeline_layout import chunks_of, layers_on_ranks, most_layers

_INTERLEAVED, _ZB_V, _DUALPIPE = (
    Schedule(name).code for name in ("interleaved", "zb-v", "dualpipe")
)
_ZERO_BUBBLE = [Schedule(name).code for name in ("zb-h1", "zb-v", "dualpipe")]


def _virtual_stages(table: Table) -> Ints:
    """Virtual stages that layers are split over."""
    return table.pp * chunks_of(table)


def _uneven_fields(_: Model, __: System, table: Table) -> Bools:
    """Whether the layers are split unevenly."""
    return (
        (table.first_stage_layers > 0)
        | (table.last_stage_layers > 0)
        | table.embedding_as_layer
        | table.loss_as_layer
    )


def _stage_layers(model: Model, system: System, table: Table) -> Bools:
    uneven = _uneven_fields(model, system, table) | (table.stage_layers >= 0)
    wrong = (table.pp > model.depth) | (most_layers(model.depth, table.pp) % table.vpp != 0)
    return wrong & ~uneven


def _half_stages(model: Model, _: System, table: Table) -> Bools:
    return (table.schedule == _ZB_V) & (2 * table.pp > model.depth) & (table.stage_layers < 0)


def _listed(_: Model, __: System, table: Table) -> Bools:
    lengths = np.array([*(len(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (lengths[table.stage_layers] != _virtual_stages(table))


def _listed_layers(model: Model, _: System, table: Table) -> Bools:
    sums = np.array([*(sum(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (sums[table.stage_layers] != model.depth)


def _listed_twice(model: Model, system: System, table: Table) -> Bools:
    return (table.stage_layers >= 0) & _uneven_fields(model, system, table)


def _uneven_split(model: Model, system: System, table: Table) -> Bools:
    """Whether fixed counts leave too few layers for some rank, or do not fit its chunks."""
    uneven = np.flatnonzero(_uneven_fields(model, system, table) & (table.stage_layers < 0))
    wrong = np.zeros(len(table), dtype=np.bool_)
    if not uneven.size:
        return wrong

    def broken(some: Table) -> Bools:
        return np.array([_no_split(model, some, row) for row in range(len(some))], dtype=np.bool_)

    wrong[uneven] = evaluate_distinct(broken, table.take(uneven)).of_all()
    return wrong


def _no_split(model: Model, table: Table, row: int) -> bool:
    sizes = layers_on_ranks(model.depth, table, row)
    stages, chunks = int(table.pp[row]), int(table.vpp[row])
    on_ranks = [sum(sizes[rank::stages]) for rank in range(stages)]
    on_ranks[0] += bool(table.embedding_as_layer[row]) and not table.first_stage_layers[row]
    on_ranks[-1] += bool(table.loss_as_layer[row]) and not table.last_stage_layers[row]
    return min(sizes) < 0 or sum(sizes) != model.depth or max(on_ranks) % chunks != 0


def _no_bubbles(_: Model, __: System, table: Table) -> Bools:
    return np.isin(table.schedule, _ZERO_BUBBLE) & ((table.pp == 1) | ~table.training)


def _both_ways(_: Model, __: System, table: Table) -> Bools:
    odd = (table.pp % 2 == 1) | (table.micro_batches % 2 == 1)
    wrong = odd | (table.micro_batches < 2 * table.pp)
    return (table.schedule == _DUALPIPE) & (table.pp > 1) & wrong


PIPELINE_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        reason="layers",
        layout_only=True,
        field="pp",
        violated=_stage_layers,
        problem=lambda m, _, t: (
            f"must be at most the {m.depth} layers"
            if one(t.pp) > m.depth
            else f"gives stages of up to {one(most_layers(m.depth, t.pp))} layers, "
            f"which vpp {one(t.vpp)} must divide"
        ),
    ),
    Constraint(
        reason="half_stages",
        layout_only=True,
        field="pp",
        violated=_half_stages,
        problem=lambda m, _, __: (
            f"zb-v puts two stages on each rank: must be at most half of the {m.depth} layers"
        ),
    ),
    Constraint(
        reason="stage_list",
        layout_only=True,
        field="stage_layers",
        violated=_listed,
        problem=lambda _, __, t: (
            f"must have an entry for each of the {one(_virtual_stages(t))} stages"
        ),
    ),
    Constraint(
        reason="stage_list_sum",
        layout_only=True,
        field="stage_layers",
        violated=_listed_layers,
        problem=lambda m, _, __: f"must add up to the {m.depth} layers of {m.name}",
    ),
    Constraint(
        reason="stage_list_only",
        layout_only=True,
        field="stage_layers",
        violated=_listed_twice,
        problem=lambda *_: (
            "places every layer; leave out first_stage_layers, last_stage_layers, "
            "embedding_as_layer and loss_as_layer"
        ),
    ),
    Constraint(
        reason="spread",
        layout_only=True,
        field="first_stage_layers",
        violated=_uneven_split,
        blame=lambda _, __, t: next(
            (
                name
                for name in ("first_stage_layers", "last_stage_layers", "embedding_as_layer")
                if getattr(t, name)[0]
            ),
            "loss_as_layer",
        ),
        problem=lambda m, _, t: (
            f"leaves no way to split the {m.depth} layers over "
            + ("one stage" if one(t.pp) == 1 else f"{one(t.pp)} stages")
            + (f" of {one(t.vpp)} chunks" if one(t.vpp) > 1 else "")
        ),
    ),
    Constraint(
        reason="stages",
        layout_only=True,
        field="vpp",
        violated=lambda _, __, t: (t.vpp > 1) & (t.pp == 1),
        problem=lambda *_: "interleaving needs pp > 1; allowed: 1",
    ),
    Constraint(
        reason="schedule",
        layout_only=True,
        field="schedule",
        violated=lambda _, __, t: (t.schedule == _INTERLEAVED) != (t.vpp > 1),
        problem=lambda _, __, t: f"interleaved needs vpp > 1, 1f1b vpp = 1; vpp is {one(t.vpp)}",
    ),
    Constraint(
        reason="zero_bubble",
        field="schedule",
        violated=_no_bubbles,
        problem=lambda *_: "needs pp > 1 and training",
    ),
    Constraint(
        reason="dualpipe",
        layout_only=True,
        field="schedule",
        violated=_both_ways,
        problem=lambda _, __, t: (
            f"needs an even pp and an even number of micro-batches, at least 2 x pp; pp is "
            f"{one(t.pp)}, micro-batches are {one(t.micro_batches)}"
        ),
    ),
)

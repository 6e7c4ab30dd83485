"""Constraints on batch and pipeline: stages, chunks, schedules, and the split of layers."""

import numpy as np

from shardwise.arrays import Bools, Ints, among
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.distinct import evaluate_distinct
from shardwise.parallel.constraints.constraint import (
    Constraint,
    joined,
    nearest_multiples,
    one,
    rule,
)
from shardwise.parallel.pipeline_layout import chunks_of, layers_on_ranks, most_layers

_INTERLEAVED, _ZB_V, _DUALPIPE = (
    Schedule(name).code for name in ("interleaved", "zb-v", "dualpipe")
)
_ZERO_BUBBLE = [Schedule(name).code for name in ("zb-h1", "zb-v", "dualpipe")]
_UNEVEN = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")


def _virtual_stages(table: Table) -> Ints:
    """Virtual stages that layers are split over."""
    return table.pp * chunks_of(table)


def _uneven_fields(table: Table) -> Bools:
    """Whether the layers are split unevenly."""
    return (
        (table.first_stage_layers > 0)
        | (table.last_stage_layers > 0)
        | table.embedding_as_layer
        | table.loss_as_layer
    )


def _stage_layers(model: Model, table: Table) -> Bools:
    wrong = (table.pp > model.depth) | (most_layers(model.depth, table.pp) % table.vpp != 0)
    return wrong & ~(_uneven_fields(table) | (table.stage_layers >= 0))


def _listed(table: Table) -> Bools:
    lengths = np.array([*(len(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (lengths[table.stage_layers] != _virtual_stages(table))


def _listed_layers(model: Model, table: Table) -> Bools:
    sums = np.array([*(sum(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (sums[table.stage_layers] != model.depth)


def _uneven_split(model: Model, table: Table) -> Bools:
    """Whether fixed counts leave too few layers for some rank, or do not fit its chunks."""
    uneven = np.flatnonzero(_uneven_fields(table) & (table.stage_layers < 0))
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


def _both_ways(table: Table) -> Bools:
    odd = (table.pp % 2 == 1) | (table.micro_batches % 2 == 1)
    wrong = odd | (table.micro_batches < 2 * table.pp)
    return (table.schedule == _DUALPIPE) & (table.pp > 1) & wrong


PIPELINE_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "layers",
        "pp",
        _stage_layers,
        lambda m, t: (
            f"must be at most the {m.depth} layers"
            if one(t.pp) > m.depth
            else f"gives stages of up to {one(most_layers(m.depth, t.pp))} layers, "
            f"which vpp {one(t.vpp)} must divide"
        ),
        layout=True,
    ),
    rule(
        "batch",
        "global_batch_size",
        lambda t: t.global_batch_size % (t.dp * t.micro_batch_size) != 0,
        lambda t: (
            f"must be a multiple of dp x micro_batch_size = {one(t.dp)} x "
            f"{one(t.micro_batch_size)} = {one(t.dp * t.micro_batch_size)}; nearest: "
            + joined(nearest_multiples(one(t.global_batch_size), one(t.dp * t.micro_batch_size)))
        ),
        layout=True,
    ),
    rule(
        "half_stages",
        "pp",
        lambda m, t: (t.schedule == _ZB_V) & (2 * t.pp > m.depth) & (t.stage_layers < 0),
        "zb-v puts two stages on each rank: must be at most half of the {m.depth} layers",
        layout=True,
    ),
    rule(
        "stage_list",
        "stage_layers",
        _listed,
        lambda t: f"must have an entry for each of the {one(_virtual_stages(t))} stages",
        layout=True,
    ),
    rule(
        "stage_list_sum",
        "stage_layers",
        _listed_layers,
        "must add up to the {m.depth} layers of {m.name}",
        layout=True,
    ),
    rule(
        "stage_list_only",
        "stage_layers",
        lambda t: (t.stage_layers >= 0) & _uneven_fields(t),
        "places every layer; leave out first_stage_layers, last_stage_layers, "
        "embedding_as_layer and loss_as_layer",
        layout=True,
    ),
    rule(
        "spread",
        "first_stage_layers",
        _uneven_split,
        lambda m, t: (
            f"leaves no way to split the {m.depth} layers over "
            + ("one stage" if one(t.pp) == 1 else f"{one(t.pp)} stages")
            + (f" of {one(t.vpp)} chunks" if one(t.vpp) > 1 else "")
        ),
        layout=True,
        blame=lambda t: next((n for n in _UNEVEN if getattr(t, n)[0]), _UNEVEN[-1]),
    ),
    rule(
        "stages",
        "vpp",
        lambda t: (t.vpp > 1) & (t.pp == 1),
        "interleaving needs pp > 1; allowed: 1",
        layout=True,
    ),
    rule(
        "schedule",
        "schedule",
        lambda t: (t.schedule == _INTERLEAVED) != (t.vpp > 1),
        "interleaved needs vpp > 1, 1f1b vpp = 1; vpp is {vpp}",
        layout=True,
    ),
    rule(
        "zero_bubble",
        "schedule",
        lambda t: among(t.schedule, _ZERO_BUBBLE) & ((t.pp == 1) | ~t.training),
        "needs pp > 1 and training",
    ),
    rule(
        "dualpipe",
        "schedule",
        _both_ways,
        "needs an even pp and an even number of micro-batches, at least 2 x pp; pp is {pp}, "
        "micro-batches are {micro_batches}",
        layout=True,
    ),
)

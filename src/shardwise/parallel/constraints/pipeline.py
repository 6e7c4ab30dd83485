"""Rules of the pipeline: stages, chunks, schedules, and which layers stand where."""

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import Schedule
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.distinct import evaluate_distinct
from shardwise.parallel.constraints.constraint import Rule, one
from shardwise.parallel.pipeline_layout import chunks_of, layers_on_ranks, most_layers

__all__ = ["PIPELINE_RULES"]

_INTERLEAVED, _ZB_V, _DUALPIPE = (
    Schedule(name).code for name in ("interleaved", "zb-v", "dualpipe")
)
_ZERO_BUBBLE = [Schedule(name).code for name in ("zb-h1", "zb-v", "dualpipe")]


def _places(table: Table) -> Ints:
    """Virtual stages that layers are spread over."""
    return table.pp * chunks_of(table)


def _spread(_: Model, __: System, table: Table) -> Bools:
    """Whether the layers are spread otherwise than evenly."""
    return (
        (table.first_stage_layers > 0)
        | (table.last_stage_layers > 0)
        | table.embedding_as_layer
        | table.loss_as_layer
    )


def _stage_layers(model: Model, system: System, table: Table) -> Bools:
    uneven = _spread(model, system, table) | (table.stage_layers >= 0)
    wrong = (table.pp > model.depth) | (most_layers(model.depth, table.pp) % table.vpp != 0)
    return wrong & ~uneven


def _half_stages(model: Model, _: System, table: Table) -> Bools:
    return (table.schedule == _ZB_V) & (2 * table.pp > model.depth) & (table.stage_layers < 0)


def _listed(_: Model, __: System, table: Table) -> Bools:
    lengths = np.array([*(len(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (lengths[table.stage_layers] != _places(table))


def _listed_layers(model: Model, _: System, table: Table) -> Bools:
    sums = np.array([*(sum(listed) for listed in table.stage_lists), 0])
    return (table.stage_layers >= 0) & (sums[table.stage_layers] != model.depth)


def _listed_twice(model: Model, system: System, table: Table) -> Bools:
    return (table.stage_layers >= 0) & _spread(model, system, table)


def _uneven_spread(model: Model, system: System, table: Table) -> Bools:
    """Whether given counts leave no layer, or too few, for some rank, or do not fit its chunks."""
    spread = np.flatnonzero(_spread(model, system, table) & (table.stage_layers < 0))
    wrong = np.zeros(len(table), dtype=np.bool_)
    if not spread.size:
        return wrong

    def broken(some: Table) -> Bools:
        return np.array([_no_spread(model, some, row) for row in range(len(some))], dtype=np.bool_)

    wrong[spread] = evaluate_distinct(broken, table.take(spread)).of_all()
    return wrong


def _no_spread(model: Model, table: Table, row: int) -> bool:
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
    return (table.schedule == _DUALPIPE) & (odd | (table.micro_batches < 2 * table.pp))


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        reason="layers",
        of_layout=True,
        field="pp",
        broken=_stage_layers,
        problem=lambda m, _, t: (
            f"must be at most the {m.depth} layers"
            if one(t.pp) > m.depth
            else f"gives stages of up to {one(most_layers(m.depth, t.pp))} layers, "
            f"which vpp {one(t.vpp)} must divide"
        ),
    ),
    Rule(
        reason="half_stages",
        of_layout=True,
        field="pp",
        broken=_half_stages,
        problem=lambda m, _, __: (
            f"zb-v puts two stages on each rank: must be at most half of the {m.depth} layers"
        ),
    ),
    Rule(
        reason="stage_list",
        of_layout=True,
        field="stage_layers",
        broken=_listed,
        problem=lambda _, __, t: f"must have an entry for each of the {one(_places(t))} stages",
    ),
    Rule(
        reason="stage_list_sum",
        of_layout=True,
        field="stage_layers",
        broken=_listed_layers,
        problem=lambda m, _, __: f"must add up to the {m.depth} layers of {m.name}",
    ),
    Rule(
        reason="stage_list_only",
        of_layout=True,
        field="stage_layers",
        broken=_listed_twice,
        problem=lambda *_: (
            "says where every layer stands; leave out first_stage_layers, last_stage_layers, "
            "embedding_as_layer and loss_as_layer"
        ),
    ),
    Rule(
        reason="spread",
        of_layout=True,
        field="first_stage_layers",
        broken=_uneven_spread,
        blame=lambda _, __, t: next(
            (
                name
                for name in ("first_stage_layers", "last_stage_layers", "embedding_as_layer")
                if getattr(t, name)[0]
            ),
            "loss_as_layer",
        ),
        problem=lambda m, _, t: (
            f"leaves no way to spread the {m.depth} layers over "
            + ("one stage" if one(t.pp) == 1 else f"{one(t.pp)} stages")
            + (f" of {one(t.vpp)} chunks" if one(t.vpp) > 1 else "")
        ),
    ),
    Rule(
        reason="stages",
        of_layout=True,
        field="vpp",
        broken=lambda _, __, t: (t.vpp > 1) & (t.pp == 1),
        problem=lambda *_: "interleaving needs pp > 1; allowed: 1",
    ),
    Rule(
        reason="schedule",
        of_layout=True,
        field="schedule",
        broken=lambda _, __, t: (t.schedule == _INTERLEAVED) != (t.vpp > 1),
        problem=lambda _, __, t: (
            f"interleaved needs vpp > 1, {_others()} vpp = 1; vpp is {one(t.vpp)}"
        ),
    ),
    Rule(
        reason="zero_bubble",
        field="schedule",
        broken=_no_bubbles,
        problem=lambda *_: "needs stages (pp > 1) that go backward (training)",
    ),
    Rule(
        reason="dualpipe",
        of_layout=True,
        field="schedule",
        broken=_both_ways,
        problem=lambda _, __, t: (
            f"dualpipe needs even pp, {one(t.pp)}, and even micro-batches, at least 2 x pp; "
            f"they are {one(t.micro_batches)}"
        ),
    ),
)


def _others() -> str:
    return "1f1b"

"""A row of a table is its strategy: estimated alone, told apart, written and read, and placed."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_strategies import (
    FLAGS,
    MACHINES,
    MODELS,
    SLACK,
    changed,
    fast,
    legal,
    machines,
    models,
    tables,
)
from rows import each_row
from shardwise import Model, Strategy, System, estimate, estimate_many
from shardwise.config.enums import (
    CpExchange,
    Schedule,
)
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.parallel.constraints import first_violation
from shardwise.parallel.placement import place
from strategy_values import values_of

pytestmark = pytest.mark.any_software

AXES = ("tp", "cp", "dp", "pp")


@fast
@given(models, machines, tables)
def test_a_row_is_the_estimate_of_its_strategy(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Times, memory and utilisation of each, and the parts sum to the step."""
    table = legal(model, machine, given)
    many = estimate_many(model, machine, [table.strategy(row) for row in range(len(table))])
    for row in range(len(table)):
        one = estimate(model, machine, table.strategy(row))
        assert many.step_time_s[row] == pytest.approx(one.step_time_s, rel=1e-12)
        assert sum(one.time_s.values()) == pytest.approx(one.step_time_s, rel=1e-12)
        assert (many.mfu[row], many.hfu[row]) == pytest.approx((one.mfu, one.hfu), rel=1e-12)
        assert bool(many.fits[row]) is one.fits
        for part in TIME_PARTS:
            assert one.time_s[part] >= 0
            assert many.time_s[part][row] == pytest.approx(one.time_s[part], rel=1e-12)
        for part in MEMORY_PARTS:
            told = getattr(one.memory_bytes, part)
            assert many.memory_bytes[part][row] == pytest.approx(told, rel=1e-12)
        assert sum(stage.layers for stage in one.stages) == model.depth
        for comm in one.comm_s.values():
            assert 0 <= comm.exposed <= comm.total * SLACK


WORDS = ("attention", "training", "tp_exchange", "tp_overlap", "tp_regather", "dp_overlap")
WORDS += ("fused_activation", "optimizer", "recompute", *FLAGS)
ONE_FIELD: dict[str, list[Any]] = {
    **{name: values_of(COLUMNS[name]) for name in WORDS},
    **{f"{axis}_tier": [None, 0, 1] for axis in AXES},
    "pp": [1, 2, 3, 4],
    "global_batch_size": [4, 8, 12],
    "cp": [1, 2, 4],
    "document_len": [None, 100, 256],
    "data_lengths": [None, (30, 90, 200), (60, 200, 500)],
    "zero": [0, 1, 2, 3],
    "dp_shard": [None, 1],
    "first_stage_layers": [None, 3, 8],
    "last_stage_layers": [None, 3, 8],
    "stage_layers": [None, (1, 10), (7, 4)],
}
GIVEN: dict[str, dict[str, Any]] = {
    "cp_exchange": {"cp": 2, "values": list(CpExchange)},
    "cp_tier": {"cp": 2, "values": [None, 0, 1]},
    "recompute_layers": {"recompute": "full", "values": [None, 1, 3]},
    "recompute_parts": {
        "recompute": "selective",
        "values": [("core_attention",), ("mlp",), ("activation", "mlp_norm")],
    },
    "offload_parts": {"offload_activations": True, "values": [None, ("mlp",), ("qkv", "mlp")]},
    "batching": {
        "data_lengths": (30, 90, 200),
        "mbs": 2,
        "values": ["padded", "padding_free", "packed"],
    },
    "fsdp_reshard": {"zero": 3, "values": [True, False]},
    "fsdp_prefetch": {"zero": 3, "values": [0, 1, 2]},
    "grad_sync": {"zero": 2, "values": ["stack", "step", "micro_batch"]},
    "embedding_as_layer": {"pp": 3, "values": [False, True]},
    "loss_as_layer": {"pp": 5, "values": [False, True]},
    "placement": {"dp": 8, "gbs": 16, "values": ["tp-cp-dp-pp", "pp-dp-tp-cp"]},
    "schedule": {"gbs": 16, "values": [s for s in Schedule if s != "interleaved"]},
}


@each_row("field", [*ONE_FIELD, *GIVEN])
def test_rows_that_differ_in_one_field_are_distinguished(field: str) -> None:
    """What is evaluated once for equal rows is not shared by these."""
    given = {"tp": 2, "pp": 2, "dp": 2, "gbs": 8, "seq_len": 512, "dtype": "fp16"}
    given |= GIVEN.get(field, {})
    values = given.pop("values", ONE_FIELD.get(field))
    if field == "global_batch_size":
        del given["gbs"]
    rows = estimate_many(MODELS[0], MACHINES[1], given | {field: values})
    found = set()
    for row, value in enumerate(values):
        one = estimate(MODELS[0], MACHINES[1], given | {field: value})
        assert rows.step_time_s[row] == one.step_time_s
        assert rows.memory_total_bytes[row] == one.memory_bytes.total
        assert rows.mfu[row] == one.mfu
        found.add((one.step_time_s, one.memory_bytes.total))
    assert len(found) > 1


@fast
@given(models, machines, tables)
def test_tables_survive_columns_and_frames(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """As columns, as a data frame and as strategies they come back equal, tiers or none."""
    table = legal(model, machine, given)
    frame = estimate_many(model, machine, table.to_columns()).to_frame()
    again = [
        Table.of(model, table.to_columns()),
        Table.of(model, frame.select(list(Strategy.model_fields))),
        Table.of(model, [table.strategy(row) for row in range(len(table))]),
        Table.of(model, [table.strategy(row).to_dict() for row in range(len(table))]),
    ]
    named = {"stack", "stacks"}  # by name in columns and frames
    for other in again:
        for field in fields(Table):
            if field.name not in named:
                np.testing.assert_array_equal(
                    getattr(other, field.name), getattr(table, field.name)
                )
        for row in range(len(table)):
            assert other.strategy(row) == table.strategy(row)


@fast
@given(models, machines, tables, st.sets(st.sampled_from(AXES), min_size=1))
def test_tiers_that_the_placement_would_give_change_nothing(
    model: Model, machine: System, given: list[dict[str, Any]], axes: set[str]
) -> None:
    """Axes that lie on one tier by placement, some or all of them told to lie there."""
    table = changed(legal(model, machine, given), **{f"{axis}_tier": -1 for axis in AXES})
    extents = place(machine, table)
    told = {}
    for axis in axes:
        found, degree = getattr(extents, axis), getattr(table, axis)
        jumps = np.argmax(found == degree, axis=0)
        tiers = np.arange(len(found))[:, np.newaxis]
        one_tier = (found == np.where(tiers >= jumps, degree, 1)).all(axis=0)
        told[f"{axis}_tier"] = np.where(one_tier, jumps, -1)
    explicit = replace(table, **told)
    assert (first_violation(model, machine, explicit) < 0).all()
    for axis in AXES:
        np.testing.assert_array_equal(
            getattr(place(machine, explicit), axis), getattr(extents, axis)
        )
    one, two = (evaluate(model, machine, either) for either in (table, explicit))
    np.testing.assert_array_equal(one.step_time_s, two.step_time_s)
    for part in TIME_PARTS:
        np.testing.assert_array_equal(one.time_s[part], two.time_s[part])


def test_tiers_without_a_value_survive_in_every_form() -> None:
    """None, nulls of a data frame and NaN of a column are one thing; some, all or none of them."""
    strategies = [Strategy(dp=2, gbs=2, tp_tier=tier) for tier in (None, 0, 1)]
    table = Table.of(MODELS[0], strategies)
    assert table.tp_tier.tolist() == [-1, 0, 1]
    for tiers in ([None, 0, 1], [float("nan"), 0, 1], np.array([None, 0, 1], dtype=object)):
        assert Table.of(MODELS[0], {"dp": 2, "gbs": 2, "tp_tier": tiers}).tp_tier.tolist() == [
            -1,
            0,
            1,
        ]
    frame = estimate_many(MODELS[0], MACHINES[0], strategies[:1]).to_frame()
    assert Table.of(MODELS[0], frame.select(list(Strategy.model_fields))).tp_tier.tolist() == [-1]

"""Which strategies are legal: each rule is broken by one, and what is just legal."""

from typing import Any

import pytest

import samples
from broken_rules import BREAKING, EXPERTS, MODEL, SIXES, SYSTEM, filled, island
from rows import each_row
from shardwise import InputError, Model, System, estimate
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import CONSTRAINTS, first_violation, refuse_illegal


def faults(error: pytest.ExceptionInfo[InputError]) -> dict[str, str]:
    return {fault.field: str(fault) for fault in error.value.faults}


def test_every_rule_is_broken_below() -> None:
    """A new rule needs a strategy that breaks it."""
    reasons = {rule.reason for rule in CONSTRAINTS}
    assert reasons - {"reported"} == set(BREAKING)  # which only searches refuse


@each_row("reason", BREAKING)
def test_a_broken_rule_names_its_field_and_what_is_allowed(reason: str) -> None:
    """In a table the row has the rule's reason; alone it raises, with field, value and bound."""
    given, model, system, told = BREAKING[reason]
    columns = {"dp": 1, "gbs": 16, "any_software": True} | given
    position = [rule.reason for rule in CONSTRAINTS].index(reason)
    table = Table.of(model, columns)
    assert first_violation(model, system, table).tolist() == [position]
    with pytest.raises(InputError) as error:
        refuse_illegal(model, system, table)
    rule = CONSTRAINTS[position]
    field = rule.blame(model, system, table) if rule.blame else rule.field
    message = faults(error)[field]
    assert [word for word in told if word not in message] == []
    with pytest.raises(InputError) as error:
        estimate(model, system, columns)
    assert field in faults(error)


@each_row(
    ("columns", "field"),
    [
        ({"tp": 6}, "tp"),
        ({"tp": 6, "tp_tier": 0}, "tp_tier"),
        ({"tp": 4, "dp": 16, "tp_tier": 0, "dp_tier": 1}, "dp_tier"),
        ({"tp": 12, "dp": 2, "tp_tier": 0, "dp_tier": 1}, "tp_tier"),
    ],
)
def test_a_crowded_tier_blames_the_axis_that_crowds_it(columns: dict[str, int], field: str) -> None:
    """The largest on the first tier that is too small, or not filled, and that axis alone."""
    given = {"dp": 1, "gbs": 48, "sequence_parallel": False, "any_software": True} | columns
    with pytest.raises(InputError) as error:
        refuse_illegal(SIXES, filled(), Table.of(SIXES, given))
    assert set(faults(error)) == {field}


def test_a_job_smaller_than_a_tier_fills_it_with_others() -> None:
    """2 of 8 accelerators: three more such jobs fill the rest."""
    for columns in ({"tp": 2}, {"tp": 2, "tp_tier": 0}, {"dp": 4}):
        table = Table.of(MODEL, {"dp": 1, "gbs": 16} | columns)
        assert first_violation(MODEL, filled(), table).tolist() == [-1]


def test_bounds_are_legal() -> None:
    """A whole network, a whole batch in one pass, every head on a rank of its own; one more not."""

    def legal(system: System = SYSTEM, **columns: int) -> bool:
        return bool(first_violation(MODEL, system, Table.of(MODEL, columns))[0] < 0)

    assert legal(island(), dp=8, gbs=8)
    assert not legal(island(), dp=9, gbs=9)
    assert legal(dp=4, mbs=2, gbs=8)
    assert not legal(dp=4, mbs=2, gbs=4)
    assert not legal(dp=4, mbs=2, gbs=12)
    assert legal(dp=1, tp=8, gbs=1)
    assert legal(dp=1, gbs=1, seq_len=32)
    assert legal(dp=1, pp=4, gbs=1)
    assert legal(dp=1, pp=2, vpp=2, gbs=2)


def test_all_broken_rules_are_reported_at_once() -> None:
    """Three faults, three lines; a legal strategy passes."""
    table = Table.of(MODEL, {"tp": 16, "dp": 1, "gbs": 1, "zero": 4, "ep": 2})
    with pytest.raises(InputError) as error:
        refuse_illegal(MODEL, SYSTEM, table)
    assert list(faults(error)) == ["tp", "ep", "zero"]
    assert len(str(error.value).splitlines()) == 3
    refuse_illegal(MODEL, SYSTEM, Table.of(MODEL, {"dp": 1, "gbs": 1}))


def test_which_field_is_to_blame_depends_on_what_was_given() -> None:
    """Of loads of experts and of stages the one that was given; the last stage after the first."""
    for columns, field in (
        ({"expert_capacity": 2}, "expert_capacity"),
        ({"expert_imbalance": 2}, "expert_imbalance"),
        ({"pp": 2, "last_stage_layers": 5}, "last_stage_layers"),
        ({"pp": 2, "first_stage_layers": 3, "last_stage_layers": 3}, "first_stage_layers"),
        ({"pp": 6, "loss_as_layer": True}, "loss_as_layer"),
    ):
        with pytest.raises(InputError) as error:
            refuse_illegal(MODEL, SYSTEM, Table.of(MODEL, {"dp": 1, "gbs": 1} | columns))
        assert field in faults(error)


def test_bounds_of_axes_and_stages_are_legal() -> None:
    """As many experts as ranks, ranks of experts across tp, cp and dp; a stage without layers."""

    def reasons(model: Model, **columns: Any) -> list[str]:
        table = Table.of(model, {"dp": 1, "gbs": 16, "any_software": True} | columns)
        return [CONSTRAINTS[at].reason for at in first_violation(model, SYSTEM, table) if at >= 0]

    assert reasons(EXPERTS, tp=2, cp=2, dp=2, ep=8) == []
    assert reasons(EXPERTS, tp=2, dp=2, ep=2, etp=2) == []
    assert reasons(EXPERTS, dp=8, ep=4, dp_shard=4) == []
    assert reasons(EXPERTS, dp=8, ep=4, dp_shard=2) == ["dp_shard_experts"]
    assert reasons(EXPERTS, pp=4) == reasons(EXPERTS, pp=2, vpp=2) == []
    assert reasons(MODEL, tp=2, cp=4, cp_exchange="all_to_all") == []
    assert reasons(MODEL, cp=16) == []
    assert reasons(MODEL, pp=3, stage_layers=(0, 4, 0)) == []
    assert reasons(MODEL, pp=2, vpp=2, stage_layers=(1, 0, 2, 1)) == []
    assert reasons(MODEL, pp=2, schedule="zb-v", stage_layers=(1, 1, 1, 1)) == []
    assert reasons(MODEL, pp=2, first_stage_layers=4) == []
    assert reasons(MODEL, pp=2, first_stage_layers=1, last_stage_layers=3) == []
    assert reasons(MODEL, pp=2, first_stage_layers=1, last_stage_layers=2) == ["spread"]
    assert reasons(MODEL, first_stage_layers=4, last_stage_layers=4) == []
    assert reasons(MODEL, first_stage_layers=5) == ["spread"]
    assert reasons(MODEL, first_stage_layers=1, last_stage_layers=3) == ["spread"]
    assert reasons(MODEL, pp=6, embedding_as_layer=True, loss_as_layer=True) == []
    assert reasons(MODEL, pp=2, schedule="dualpipe", gbs=4) == []
    assert reasons(MODEL, pp=2, schedule="dualpipe", gbs=2) == ["dualpipe"]
    assert reasons(MODEL, pp=2, schedule="zb-h1", training=False) == ["zero_bubble"]
    assert reasons(MODEL, document_len=32, zero=3, fsdp_reshard=False) == []
    parts = {"recompute": "selective", "recompute_parts": ("mlp",)}
    assert reasons(MODEL, **parts, fused_activation=True) == []
    assert reasons(MODEL, recompute="selective", recompute_parts=("mlp", "moe")) == []
    norm = {"recompute": "selective", "recompute_parts": ("mlp_norm",)}
    assert reasons(MODEL, **norm, tp=2) == reasons(MODEL, **norm, tp_regather=False) == []
    assert reasons(EXPERTS, expert_overlap=True) == []


def test_unlimited_learned_positions() -> None:
    """A table larger than the training length allows longer sequences; rope allows any."""
    longer = samples.model(max_positions=128)
    columns = {"dp": 1, "gbs": 1, "seq_len": [64, 128, 256]}
    broken = first_violation(longer, SYSTEM, Table.of(longer, columns))
    assert (broken < 0).tolist() == [True, True, False]
    rotary = samples.llama()
    assert (first_violation(rotary, SYSTEM, Table.of(rotary, columns)) < 0).all()

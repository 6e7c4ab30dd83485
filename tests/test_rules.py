"""Which strategies are legal: a strategy for each rule that breaks it, and what is just legal."""

from typing import Any

import pytest

import samples
from shardwise import InputError, Model, System, estimate
from shardwise.rules import RULES, broken_rule, refuse_illegal
from shardwise.table import Table

MODEL = samples.model()


SYSTEM = samples.system()


def faults(error: pytest.ExceptionInfo[InputError]) -> dict[str, str]:
    return {fault.field: str(fault) for fault in error.value.faults}


def kinds() -> Model:
    return samples.model(samples.layer(count=2), samples.layer(count=2, mlp={"ffn": 128}))


def island() -> System:
    return samples.system(network=[samples.tier(domain=8)])


SIXES = samples.model(
    samples.layer(attention={"heads": 12, "kv_heads": 12}, mlp={"ffn": 60}), seq_len=36
)


def filled() -> System:
    """Tiers of 8 and 32 accelerators, the inner one to be filled with whole groups."""
    inner = samples.tier("inside", domain=8) | {"must_be_filled": True}
    return samples.system(network=[inner, samples.tier("rack", domain=32), samples.tier("all")])


BREAKING: dict[str, tuple[dict[str, Any], Model, System, tuple[str, ...]]] = {
    "degrees": ({"gpus": 8, "tp": 2, "pp": 2, "dp": 4}, MODEL, SYSTEM, ("8", "2 x 1 x 2 x 4 = 16")),
    "accelerators": ({"dp": 16}, MODEL, island(), ("16", "at most 8")),
    "dtype": ({"dtype": "bf16"}, MODEL, System.load("v100-sxm-32gb"), ("bf16", "fp16")),
    "heads": ({"tp": 16}, MODEL, SYSTEM, ("16", "heads of the model, 8")),
    "kv_heads": (
        {"tp": 6, "sequence_parallel": False},
        samples.model(samples.layer(attention={"heads": 12, "kv_heads": 4}, mlp={"ffn": 60})),
        SYSTEM,
        ("6", "key-value heads of the model, 4"),
    ),
    "ffn": ({"tp": 8}, samples.model(samples.layer(mlp={"ffn": 100})), SYSTEM, ("8", "100")),
    "sequence": ({"tp": 4, "seq_len": 30}, MODEL, SYSTEM, ("4", "30")),
    "layers": ({"pp": 2, "vpp": 4}, MODEL, SYSTEM, ("up to 2 layers", "vpp 4")),
    "layer_kinds": ({"pp": 2}, kinds(), SYSTEM, ("2 kinds of layers", "allowed: 1")),
    "batch": ({"dp": 2, "mbs": 3}, MODEL, SYSTEM, ("16", "2 x 3 = 6")),
    "stages": ({"vpp": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
    "schedule": ({"schedule": "interleaved"}, MODEL, SYSTEM, ("interleaved", "vpp is 1")),
    "positions": ({"seq_len": 64}, MODEL, SYSTEM, ("64", "32 learned positions")),
    "zero": ({"zero": 3}, MODEL, SYSTEM, ("3", "allowed: 0, 1")),
    **{
        flag: ({flag: True}, MODEL, SYSTEM, ("no second memory tier", "allowed: false"))
        for flag in ("offload_weights", "offload_activations", "offload_optimizer")
    },
    **{
        f"{axis}_tier": ({f"{axis}_tier": 2}, MODEL, SYSTEM, ("2 tiers", "allowed: 0 to 1"))
        for axis in ("tp", "cp", "dp", "pp")
    },
    "tier_size": (
        {"tp": 8, "dp": 2, "pp": 4, "tp_tier": 0, "dp_tier": 1, "pp_tier": 1},
        MODEL,
        filled(),
        ("tp 8 x dp 2 x pp 4", "rack", "more than its 32"),
    ),
    "tier_filled": ({"tp": 6, "tp_tier": 0}, SIXES, filled(), ("tp 6", "inside", "divide", "8")),
    "edges": (
        {"tp": 4, "pp": 2, "seq_len": 30, "tp_exchange": "p2p_rs_ag"},
        MODEL,
        SYSTEM,
        ("tp 4", "= 30", "all_reduce"),
    ),
    "cp": ({"cp": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
    "ep": ({"ep": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
    "etp": ({"etp": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
}


def test_every_rule_is_broken_below() -> None:
    """A new rule needs a strategy that breaks it."""
    assert {rule.reason for rule in RULES} == set(BREAKING)


@pytest.mark.parametrize("reason", BREAKING)
def test_a_broken_rule_names_its_field_and_what_is_allowed(reason: str) -> None:
    """In a table the row has the rule's reason; alone it raises, with field, value and bound."""
    given, model, system, told = BREAKING[reason]
    columns = {"dp": 1, "gbs": 16} | given
    position = [rule.reason for rule in RULES].index(reason)
    table = Table.of(model, columns)
    assert broken_rule(model, system, table).tolist() == [position]
    with pytest.raises(InputError) as error:
        refuse_illegal(model, system, table)
    rule = RULES[position]
    field = rule.blame(model, system, table) if rule.blame else rule.field
    message = faults(error)[field]
    assert [word for word in told if word not in message] == []
    with pytest.raises(InputError) as error:
        estimate(model, system, columns)
    assert field in faults(error)


@pytest.mark.parametrize(
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
    given = {"dp": 1, "gbs": 48, "sequence_parallel": False} | columns
    with pytest.raises(InputError) as error:
        refuse_illegal(SIXES, filled(), Table.of(SIXES, given))
    assert set(faults(error)) == {field}


def test_a_job_smaller_than_a_tier_fills_it_with_others() -> None:
    """2 of 8 accelerators: three more such jobs fill the rest."""
    for columns in ({"tp": 2}, {"tp": 2, "tp_tier": 0}, {"dp": 4}):
        table = Table.of(MODEL, {"dp": 1, "gbs": 16} | columns)
        assert broken_rule(MODEL, filled(), table).tolist() == [-1]


def test_bounds_are_legal() -> None:
    """A whole network, a whole batch in one pass, every head on a rank of its own; one more not."""

    def legal(system: System = SYSTEM, **columns: int) -> bool:
        return bool(broken_rule(MODEL, system, Table.of(MODEL, columns))[0] < 0)

    assert legal(island(), dp=8, gbs=8)
    assert not legal(island(), dp=9, gbs=9)
    assert legal(dp=4, mbs=2, gbs=8)
    assert not legal(dp=4, mbs=2, gbs=4)
    assert not legal(dp=4, mbs=2, gbs=12)
    assert legal(dp=1, tp=8, gbs=1)
    assert legal(dp=1, gbs=1, seq_len=32)
    assert legal(dp=1, pp=4, gbs=1)
    assert legal(dp=1, pp=2, vpp=2, gbs=2)


def test_all_broken_rules_are_told_at_once() -> None:
    """Three faults, three lines; a legal strategy passes."""
    table = Table.of(MODEL, {"tp": 16, "dp": 1, "gbs": 1, "zero": 2, "ep": 2})
    with pytest.raises(InputError) as error:
        refuse_illegal(MODEL, SYSTEM, table)
    assert list(faults(error)) == ["tp", "zero", "ep"]
    assert len(str(error.value).splitlines()) == 3
    refuse_illegal(MODEL, SYSTEM, Table.of(MODEL, {"dp": 1, "gbs": 1}))


def test_unlimited_learned_positions() -> None:
    """A table larger than the training length allows longer sequences; rope allows any."""
    longer = samples.model(max_positions=128)
    columns = {"dp": 1, "gbs": 1, "seq_len": [64, 128, 256]}
    broken = broken_rule(longer, SYSTEM, Table.of(longer, columns))
    assert (broken < 0).tolist() == [True, True, False]
    rotary = samples.llama()
    assert (broken_rule(rotary, SYSTEM, Table.of(rotary, columns)) < 0).all()

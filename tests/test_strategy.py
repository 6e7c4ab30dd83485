"""Strategies, tables of them, and the rules that a legal one keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import samples
from shardwise import InputError, Model, Strategy, System, estimate, estimate_many
from shardwise.rules import RULES, broken_rule, refuse_illegal
from shardwise.strategy import PLACEMENTS
from shardwise.table import Table

MODEL = samples.model()
SYSTEM = samples.system()


def faults(error: pytest.ExceptionInfo[InputError]) -> dict[str, str]:
    return {fault.field: str(fault) for fault in error.value.faults}


def test_missing_degrees_are_filled_in() -> None:
    """dp from gpus, or gpus from dp; the length from the model, the rest from the other fields."""
    from_gpus = Strategy(gpus=24, tp=2, pp=4, gbs=6).resolved(MODEL)
    assert (from_gpus.dp, from_gpus.gpus, from_gpus.seq_len) == (3, 24, 32)
    from_dp = Strategy(dp=3, tp=2, pp=4, vpp=2, gbs=6, seq_len=16).resolved(MODEL)
    assert (from_dp.dp, from_dp.gpus, from_dp.seq_len) == (3, 24, 16)
    assert (from_gpus.schedule, from_dp.schedule) == ("1f1b", "interleaved")
    assert from_gpus.sequence_parallel is True
    assert Strategy(dp=2, gbs=2).resolved(MODEL).sequence_parallel is False
    assert Strategy(dp=2, tp=2, sequence_parallel=False, gbs=2).resolved(MODEL).tp == 2
    stack = from_gpus.stack
    assert not isinstance(stack, str)
    assert stack.name == "megatron-core-2025"


def test_what_nothing_implies_is_missing() -> None:
    """All that is missing is told at once, each by its field."""
    model = samples.model(seq_len=None, position="rope")
    with pytest.raises(InputError) as error:
        Strategy(tp=2).resolved(model)
    assert set(faults(error)) == {"gpus", "seq_len", "global_batch_size"}
    for columns, field in (
        ({"gbs": 1}, "gpus"),
        ({"dp": 1, "gbs": 1}, "seq_len"),
        ({"dp": 1, "seq_len": 8}, "global_batch_size"),
    ):
        with pytest.raises(InputError, match="is missing") as error:
            Table.of(model, columns)
        assert list(faults(error)) == [field]


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"gpus": 6, "tp": 4}, "tp 4 x cp 1 x pp 1"),
        ({"gpus": 2, "tp": 4}, "tp 4 x cp 1 x pp 1"),
        ({"gpus": 8, "tp": 2, "pp": 2, "dp": 3}, "tp 2 x cp 1 x pp 2 x dp 3 = 12"),
    ],
)
def test_degrees_must_make_up_the_accelerators(degrees: dict[str, int], told: str) -> None:
    """The fault names gpus, its value and the product."""
    with pytest.raises(InputError) as error:
        Strategy(gbs=8, **degrees).resolved(MODEL)
    assert told in faults(error)["gpus"]
    assert str(degrees["gpus"]) in faults(error)["gpus"]
    assert (
        estimate_many(MODEL, SYSTEM, {"gbs": [8, 8], "dp": [1, 1], "gpus": [9, 1]}).reason(0)
        == "degrees"
    )


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


def test_aliases_of_fields_and_words() -> None:
    """mbs, gbs; PyTorch's and Calculon's words; the canonical form comes out."""
    words = {"mbs": 2, "gbs": 8, "dtype": "float16", "recompute": "attention"}
    strategy = Strategy.validated(words)
    assert (strategy.micro_batch_size, strategy.global_batch_size) == (2, 8)
    assert (strategy.dtype, strategy.recompute) == ("fp16", "selective")
    table = Table.of(MODEL, words | {"dp": 1})
    assert table.strategy(0) == strategy.model_copy(update={"dp": 1}).resolved(MODEL)
    for alias, dtype in (("bfloat16", "bf16"), ("half", "fp16"), ("float32", "fp32")):
        assert Strategy(dtype=alias).dtype == dtype
    assert Strategy(recompute="attn_only").recompute == "selective"


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("tp-dp-pp", "tp-cp-dp-pp"),
        ("PP-DP-TP", "pp-dp-tp-cp"),
        ("dp-tp-pp", "dp-tp-cp-pp"),
        ("cp-tp-dp-pp", "cp-tp-dp-pp"),
    ],
)
def test_placement_without_context_parallelism(given: str, canonical: str) -> None:
    """cp goes next to tp where it is not named."""
    assert Strategy(placement=given).placement == canonical
    table = Table.of(MODEL, {"dp": 1, "gbs": 1, "placement": [given]})
    assert PLACEMENTS[int(table.placement[0])] == canonical


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("placement", "tp-dp"),
        ("placement", "tp-tp-dp-pp"),
        ("placement", "tp/dp/pp"),
        ("placement", 3),
        ("dtype", "int8"),
        ("recompute", "some"),
        ("schedule", "gpipe"),
        ("tp", 0),
        ("tp", 1.5),
        ("zero", -1),
        ("dp_overlap", "perhaps"),
    ],
)
def test_bad_values_name_their_field(field: str, value: object) -> None:
    """One fault that names field and value."""
    with pytest.raises(InputError) as error:
        Strategy.validated({field: value})
    assert repr(value) in faults(error)[field]


def test_strategy_survives_a_file(tmp_path: Path) -> None:
    """What is written is read back equal: plain, resolved, and with a stack that differs."""
    changed = {"base": "megatron-lm-2022", "tp_hidden": 0.5}
    for strategy in (
        Strategy(gpus=8, gbs=8),
        Strategy(gpus=8, tp=2, gbs=8).resolved(MODEL),
        Strategy.validated({"gpus": 8, "gbs": 8, "stack": changed}).resolved(MODEL),
    ):
        strategy.to_file(tmp_path / "strategy.yaml")
        read = Strategy.load(tmp_path / "strategy.yaml").resolved(MODEL)
        assert read == strategy.resolved(MODEL)


def test_stack_on_a_base() -> None:
    """Fields of the mapping replace those of the base; the rest stays."""
    strategy = Strategy.validated(
        {"dp": 1, "gbs": 1, "stack": {"base": "megatron-lm-2022", "pp_hidden": 0.5}}
    )
    stack = strategy.resolved(MODEL).stack
    plain = Strategy(dp=1, gbs=1, stack="megatron-lm-2022").resolved(MODEL).stack
    assert not isinstance(stack, str)
    assert not isinstance(plain, str)
    assert stack.pp_hidden == 0.5
    assert stack == plain.model_copy(update={"pp_hidden": 0.5})
    assert strategy.to_dict()["stack"] == {"base": "megatron-lm-2022", "pp_hidden": 0.5}
    whole = Strategy.validated({"dp": 1, "gbs": 1, "stack": samples.stack().to_dict()})
    assert whole.resolved(MODEL).stack == samples.stack()
    assert Strategy.validated(whole.to_dict()) == whole


def test_a_fault_in_a_stack_is_one_fault_of_its_field() -> None:
    """stack.tp_hiden, with the nearest field, and nothing else."""
    with pytest.raises(InputError) as error:
        Strategy.validated({"stack": {"base": "megatron-lm-2022", "tp_hiden": 0.5}})
    assert list(faults(error)) == ["stack.tp_hiden"]


ROWS = [
    Strategy(gpus=8, tp=2, pp=2, mbs=2, gbs=16, dtype="fp16", recompute="full"),
    Strategy(gpus=16, tp=4, pp=2, vpp=2, gbs=8, zero=0, placement="dp-tp-pp", dp_overlap=False),
    Strategy(dp=4, gbs=4, stack="megatron-lm-2022", seq_len=16),
]


def test_table_of_columns_frame_and_strategies_agree() -> None:
    """The same rows as strategies, as lists, as arrays and as a data frame."""
    resolved = [strategy.resolved(MODEL) for strategy in ROWS]
    named = [
        strategy.model_copy(update={"stack": row.stack})
        for strategy, row in zip(resolved, ROWS, strict=True)
    ]
    columns = {
        name: [getattr(strategy, name) for strategy in named] for name in Strategy.model_fields
    }
    arrays = {name: np.array(column) for name, column in columns.items()}
    tables = [Table.of(MODEL, rows) for rows in (ROWS, columns, arrays, pl.DataFrame(columns))]
    for table in tables:
        assert len(table) == 3
        assert [table.strategy(row) for row in range(3)] == resolved
    results = [estimate_many(MODEL, SYSTEM, table) for table in (ROWS, columns, arrays)]
    for result in results[1:]:
        np.testing.assert_array_equal(result.step_time_s, results[0].step_time_s)


def test_single_values_hold_for_all_rows() -> None:
    """Lists of three beside single values, words and stacks; defaults for the rest."""
    table = Table.of(MODEL, {"dp": [1, 2, 3], "gbs": 6, "dtype": "fp32", "stack": samples.stack()})
    assert table.global_batch_size.tolist() == [6, 6, 6]
    assert table.gpus.tolist() == table.dp.tolist() == [1, 2, 3]
    assert {table.strategy(row).dtype for row in range(3)} == {"fp32"}
    assert table.stacks == (samples.stack(),)
    taken = table.take(np.array([2, 0]))
    assert taken.dp.tolist() == [3, 1]


def test_words_may_be_given_as_positions() -> None:
    """Position 2 of the types is fp32; there is no position 3."""
    assert Table.of(MODEL, {"dtype": [0, 2], "dp": 1, "gbs": 1}).strategy(1).dtype == "fp32"
    with pytest.raises(InputError, match=r"dtype.*0 to 2"):
        Table.of(MODEL, {"dtype": [3], "dp": 1, "gbs": 1})


@pytest.mark.parametrize(
    ("columns", "field", "told"),
    [
        ({"micro_batch": [1]}, "micro_batch", "micro_batch_size"),
        ({"tp": [1, 2], "pp": [1, 2, 4]}, "columns", "tp 2, pp 3"),
        ({"tp": [2.5, 1]}, "tp", "2.5"),
        ({"tp": [float("nan")]}, "tp", "integers"),
        ({"tp": [None]}, "tp", "integers"),
        ({"tp": ["2"]}, "tp", "integers"),
        ({"tp": [True]}, "tp", "integers"),
        ({"tp": [2, -4]}, "tp", "-4"),
        ({"tp": [0]}, "tp", "from 1"),
        ({"tp": [2**40]}, "tp", "to 2147483648"),
        ({"zero": [-1]}, "zero", "from 0"),
        ({"tp": [[1, 2]]}, "tp", "one dimension"),
        ({"sequence_parallel": [1]}, "sequence_parallel", "true or false"),
        ({"dtype": ["bf16", "int8"]}, "dtype", "allowed: bf16, fp16, fp32"),
        ({"placement": ["tp-dp"]}, "placement", "order of"),
    ],
)
def test_bad_columns(columns: dict[str, Any], field: str, told: str) -> None:
    """Unknown, fractional, negative, missing, of another length: an error that names the column."""
    with pytest.raises(InputError) as error:
        Table.of(MODEL, {"dp": 1, "gbs": 1} | columns)
    assert list(faults(error)) == [field]
    assert told in faults(error)[field]


def test_bad_columns_of_a_data_frame() -> None:
    """A null among integers is an error too."""
    frame = pl.DataFrame({"tp": [1, None], "dp": [1, 1], "gbs": [1, 1]})
    with pytest.raises(InputError, match="tp"):
        Table.of(MODEL, frame)


@pytest.mark.parametrize(
    ("columns", "value"),
    [({"tp": [1, 2.5]}, "2.5"), ({"tp": [1, None]}, "None"), ({"dtype": ["int8"]}, "'int8'")],
)
def test_a_bad_column_shows_the_value_that_is_wrong(columns: dict[str, Any], value: str) -> None:
    """The one that is, not the first of the column, and as Python shows it."""
    with pytest.raises(InputError) as error:
        Table.of(MODEL, {"dp": 1, "gbs": 1} | columns)
    assert f": {value}: " in str(error.value)


def test_a_column_given_twice_is_refused() -> None:
    """gbs and global_batch_size are one column."""
    with pytest.raises(InputError, match="global_batch_size"):
        Table.of(MODEL, {"dp": 1, "gbs": [1], "global_batch_size": [2]})


def test_strategies_of_one_stack_share_it() -> None:
    """A hundred strategies of the default stack have one stack, so that equal rows are shared."""
    assert len(Table.of(MODEL, [Strategy(dp=1, gbs=1)] * 100).stacks) == 1


def test_no_strategies_make_an_empty_table() -> None:
    """A list without strategies is a table without rows."""
    assert len(Table.of(MODEL, [])) == 0


def test_huge_degrees_do_not_overflow() -> None:
    """2^31 x 2^31 x 4 accelerators are refused, not counted as none."""
    columns = {"tp": 2**31, "pp": 2**31, "cp": 4, "dp": 1, "gbs": 1}
    with pytest.raises(InputError):
        Table.of(MODEL, columns)

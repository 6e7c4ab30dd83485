"""Strategies, tables of them, and the rules that a legal one keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import samples
from rows import each_row
from shardwise import InputError, Strategy, estimate_many
from shardwise.config.enums import PLACEMENTS
from shardwise.config.strategy_table import Table

pytestmark = pytest.mark.any_software

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


@each_row(
    ("degrees", "fault"),
    [
        ({"gpus": 6, "tp": 4}, "tp: 4: must divide gpus 6"),
        ({"gpus": 2, "tp": 4}, "tp: 4: must divide gpus 2"),
        (
            {"gpus": 8, "tp": 2, "pp": 2, "dp": 3},
            "gpus: 8: must equal tp 2 x cp 1 x pp 2 x dp 3 = 12",
        ),
    ],
)
def test_degrees_must_make_up_the_accelerators(degrees: dict[str, int], fault: str) -> None:
    """The fault names the degree that does not divide, or gpus, with its value and the product."""
    with pytest.raises(InputError) as error:
        Strategy(gbs=8, **degrees).resolved(MODEL)
    assert fault in str(error.value)
    assert (
        estimate_many(MODEL, SYSTEM, {"gbs": [8, 8], "dp": [1, 1], "gpus": [9, 1]}).reason(0)
        == "degrees"
    )


def test_aliases_of_fields_and_words() -> None:
    """mbs, gbs; PyTorch's words; the canonical form comes out."""
    words = {"mbs": 2, "gbs": 8, "dtype": "float16", "recompute": "Selective"}
    strategy = Strategy.validated(words)
    assert (strategy.micro_batch_size, strategy.global_batch_size) == (2, 8)
    assert (strategy.dtype, strategy.recompute) == ("fp16", "selective")
    table = Table.of(MODEL, words | {"dp": 1})
    assert table.strategy(0) == strategy.model_copy(update={"dp": 1}).resolved(MODEL)
    for alias, dtype in (("bfloat16", "bf16"), ("half", "fp16"), ("float32", "fp32")):
        assert Strategy(dtype=alias).dtype == dtype


@each_row(
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


@each_row(
    ("field", "value"),
    [
        ("placement", "tp-dp"),
        ("placement", "tp-tp-dp-pp"),
        ("placement", "tp/dp/pp"),
        ("placement", 3),
        ("dtype", "int8"),
        ("recompute", "some"),
        ("schedule", "gpip"),
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


@each_row(
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


@each_row(
    ("columns", "value"),
    [({"tp": [1, 2.5]}, "2.5"), ({"tp": [1, None]}, "null"), ({"dtype": ["int8"]}, "'int8'")],
)
def test_a_bad_column_shows_the_value_that_is_wrong(columns: dict[str, Any], value: str) -> None:
    """The one that is, not the first of the column, and as files show it."""
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


@each_row("degree", ["tp", "tp2", "cp", "pp"])
def test_the_degree_that_divides_nothing_is_blamed(degree):
    """Alone it is at fault; where several are, or only their product, the number of GPUs is."""
    with pytest.raises(InputError) as caught:
        Strategy(gpus=64, global_batch_size=64, **{degree: 3}).resolved(MODEL)
    assert [str(fault) for fault in caught.value.faults] == [
        f"strategy: {degree}: 3: must divide gpus 64"
    ]
    with pytest.raises(InputError, match=r"gpus: 8: must be a multiple of tp 4 x cp 1 x pp 4 = 16"):
        Strategy(gpus=8, global_batch_size=8, tp=4, pp=4).resolved(MODEL)

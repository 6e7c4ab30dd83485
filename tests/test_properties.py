"""What holds for every strategy: rows are independent, parts sum up, nothing is lost in splits."""

import math
from collections.abc import Mapping
from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import EstimateTable, InputError, Model, Stack, System, estimate, estimate_many
from shardwise.config.enums import PLACEMENTS, Recompute
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.engine.evaluate import evaluate
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.ops.param_count import count_parameters
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from strategy_values import values_of_every

pytestmark = pytest.mark.any_software

fast = examples(25)
small = st.sampled_from([1, 2, 4])
STACKS = ("megatron-core-2025", "megatron-lm-2022")
IMPLIED = tuple(
    name for name, field in COLUMNS.items() if field.default is None and not field.optional
)
"""Fields that follow from others."""
# Values of every other field; of these fields values that rules may refuse.
WILD = values_of_every(
    {
        "pp": [5, 8],
        "tp": [3, 32],
        "vpp": [2, 5],
        "dp": [7],
        "gpus": [1, 64],
        "schedule": ["1f1b", "interleaved"],
        "global_batch_size": [1, 1000],
        "seq_len": [1000, 4096],
        "first_stage_layers": [1, 3, 20],
        "stage_layers": [[12], [5, 7], [3, 3, 3, 3]],
        "document_len": [100, 3000],
    },
    without=IMPLIED,
)
OPEN = {name: field.default for name, field in COLUMNS.items() if name not in IMPLIED}
"""Defaults of the fields that rows below leave out."""


@st.composite
def legal_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Strategies of the models below, all of them legal."""
    pp, dp, mbs = (
        draw(st.sampled_from([1, 2, 3, 4, 6])),
        draw(st.sampled_from([1, 2, 3, 8])),
        draw(small),
    )
    chunks = [v for v in (1, 2, 3) if 12 % (pp * v) == 0]
    vpp = draw(st.sampled_from(chunks)) if pp > 1 else 1
    group = pp if vpp > 1 else 1
    return {
        "tp": draw(st.sampled_from([1, 2, 4, 8, 16])),
        "pp": pp,
        "vpp": vpp,
        "dp": dp,
        "micro_batch_size": mbs,
        "global_batch_size": dp * mbs * group * draw(st.integers(1, 12)),
        "seq_len": draw(st.sampled_from([512, 1024, 2048])),
        "dtype": draw(st.sampled_from(["fp16", "fp32"])),
        "recompute": draw(st.sampled_from(Recompute)),
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "sequence_parallel": draw(st.booleans()),
        "dp_overlap": draw(st.booleans()),
        "placement": draw(st.sampled_from(PLACEMENTS)),
        "stack": draw(st.sampled_from(STACKS)),
    }


@st.composite
def any_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Legal strategies, and some with one or two fields changed that may make them illegal."""
    row = OPEN | draw(legal_rows())
    for name in draw(st.lists(st.sampled_from(sorted(WILD)), max_size=2)):
        row[name] = draw(st.sampled_from(WILD[name]))
    row.setdefault("schedule", "interleaved" if row["vpp"] > 1 else "1f1b")
    row.setdefault("gpus", row["tp"] * row["cp"] * row["pp"] * row["dp"])
    return row


LEGAL = {
    **OPEN,
    "gpus": 8,
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "micro_batch_size": 1,
    "global_batch_size": 12,
    "seq_len": 512,
    "dtype": "fp16",
    "zero": 1,
    "schedule": "1f1b",
    "sequence_parallel": True,
    "dp_overlap": True,
    "placement": "tp-cp-dp-pp",
    "stack": STACKS[0],
}
WIDE = samples.layer(
    count=12,
    attention={"heads": 16, "kv_heads": 4, "head_dim": 64, "bias": "qkv", "qk_norm": True},
    mlp={"ffn": 4096, "activation": "swiglu"},
)
MODEL = samples.model(WIDE, hidden=1024, vocab=32_001, seq_len=2048)
LLAMA = samples.llama(layers=[WIDE], hidden=1024, vocab=32_001, seq_len=2048)
H100, V100 = System.load("h100-sxm"), System.load("v100-sxm-32gb")


def as_columns(table: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in table] for name in table[0]}


def values(result: EstimateTable) -> Mapping[str, np.ndarray]:
    """Every column of numbers."""
    names = ("step_time_s", "tokens_per_s", "mfu", "hfu", "memory_total_bytes")
    return (
        {name: getattr(result, name) for name in (*names, "memory_reserved_bytes")}
        | {f"time {part}": column for part, column in result.time_s.items()}
        | {f"memory {part}": column for part, column in result.memory_bytes.items()}
    )


@fast
@given(st.lists(any_rows(), min_size=2, max_size=6), st.sampled_from([H100, V100]), st.booleans())
def test_a_row_is_the_estimate_of_its_strategy(
    table: list[dict[str, Any]], machine: System, learned: bool
) -> None:
    """Legal rows agree in every column; illegal ones are NaN, and the same field is to blame."""
    model = MODEL if learned else LLAMA
    table = [*table, LEGAL]
    result = estimate_many(model, machine, as_columns(table))
    frame = result.to_frame()
    columns = values(result)
    for row, strategy in enumerate(table):
        numbers = {name: column[row] for name, column in columns.items()}
        reason = result.reason(row)
        assert frame["refused"][row] == reason
        if reason is not None:
            assert all(math.isnan(number) for number in numbers.values())
            assert not result.fits[row]
            with pytest.raises(InputError) as error:
                estimate(model, machine, strategy)
            rule = CONSTRAINTS[result.refused[row]]
            assert rule.reason == reason
            one_row = result.table.take(slice(row, row + 1))
            field = rule.blame(model, machine, one_row) if rule.blame else rule.field
            assert error.value.faults[0].field == field
            continue
        one = estimate(model, machine, strategy)
        expected = {
            name: getattr(one, name) for name in ("step_time_s", "tokens_per_s", "mfu", "hfu")
        }
        expected |= {f"time {part}": time for part, time in one.time_s.items()}
        held = one.memory_bytes
        expected |= {name: getattr(held, name.split()[1]) for name in columns if "memory " in name}
        expected |= {"memory_total_bytes": held.total, "memory_reserved_bytes": held.reserved}
        assert numbers == pytest.approx(expected, rel=1e-12)
        assert bool(result.fits[row]) is one.fits


@fast
@given(st.lists(legal_rows(), min_size=6, max_size=20), st.booleans())
def test_parts_sum_to_the_step(table: list[dict[str, Any]], learned: bool) -> None:
    """No part is negative, all sum to the step; no more of an exchange is exposed than there is."""
    model = MODEL if learned else LLAMA
    columns = Table.of(model, as_columns(table))
    assert (first_violation(model, H100, columns) < 0).all()
    result = evaluate(model, H100, columns)
    parts = np.stack(list(result.time_s.values()))
    assert (parts >= 0).all()
    np.testing.assert_allclose(parts.sum(axis=0), result.step_time_s, rtol=1e-12)
    for whole, exposed in result.comm_s.values():
        assert (exposed <= whole * (1 + 1e-12)).all()
        assert (exposed >= 0).all()
    held = result.memory
    parts = np.stack([getattr(held, name) for name in MEMORY_PARTS])
    assert (parts >= 0).all()
    np.testing.assert_allclose(parts.sum(axis=0), held.total, rtol=1e-14)  # shards of a third
    assert (held.gradients > 0).all()
    assert (held.optimizer > 0).all()
    # ZeRO 3 may gather them from the copy in the optimizer's state.
    assert (held.weights > 0)[columns.zero < 3].all()


@fast
@given(st.lists(any_rows(), min_size=6, max_size=15), st.randoms(use_true_random=False))
def test_rows_do_not_touch_one_another(table: list[dict[str, Any]], random: Any) -> None:
    """In another order, and each twice, every row comes out the same to the last bit."""
    table = [*table, LEGAL]
    order = list(range(len(table))) * 2
    random.shuffle(order)
    one = values(estimate_many(MODEL, H100, as_columns(table)))
    many = values(estimate_many(MODEL, H100, as_columns([table[i] for i in order])))
    for name, column in one.items():
        np.testing.assert_array_equal(column[order], many[name])


def test_a_table_may_hold_illegal_rows_only() -> None:
    """Every row is NaN with its reason; so is a table without rows."""
    result = estimate_many(
        MODEL, H100, as_columns([LEGAL | {"tp": 32, "gpus": 128}, LEGAL | {"zero": 4}])
    )
    assert [result.reason(row) for row in range(2)] == ["heads", "zero"]
    assert np.isnan(result.step_time_s).all()
    assert len(estimate_many(MODEL, H100, {"tp": [], "dp": 1, "gbs": 1})) == 0


def test_one_and_several_stages_do_not_share_their_words() -> None:
    """Tied words are held once on one stage and twice on two; both in one table."""
    columns = {"pp": [2, 1, 3, 1], "dp": 1, "gbs": 12, "seq_len": 512, "dtype": "fp16"}
    together = estimate_many(MODEL, H100, columns)
    for row, pp in enumerate(columns["pp"]):
        one = estimate(MODEL, H100, columns | {"pp": pp})
        assert together.step_time_s[row] == one.step_time_s
        assert together.memory_total_bytes[row] == one.memory_bytes.total


def copies(model: Model, tp: int, pp: int) -> float:
    """Parameters that the ranks of a replica hold more than once, counted from the model."""
    kind, layers = model.layers[0], model.depth
    attention = kind.attention
    norms = layers * 2 * model.norm_parameters + model.norm_parameters
    positions = model.hidden * (model.seq_len or 0) if model.position == "learned" else 0
    whole = (
        norms
        + positions
        + layers
        * 2
        * attention.head_dim
        * (attention.qk_norm == "head")
        * (model.norm_parameters // model.hidden)
    )
    whole += layers * model.hidden * ((attention.bias == "all") + kind.mlp.bias)
    kv_heads = 2 * attention.head_dim * (model.hidden + (attention.bias != "none"))
    repeated = layers * kv_heads * (max(tp, attention.kv_heads) - attention.kv_heads)
    padding = tp * -(-model.vocab // tp) - model.vocab
    tables = 2 if pp > 1 or not model.tied_embeddings else 1
    shared = model.vocab * model.hidden if pp > 1 and model.tied_embeddings else 0
    return (tp - 1) * whole + repeated + tables * padding * model.hidden + shared


@each_row("learned", [True, False])
@each_row("bias", [True, False])
@each_row("tied", [True, False])
def test_ranks_of_a_replica_hold_the_model_once(tied: bool, bias: bool, learned: bool) -> None:
    """All ranks together: the model, and copies of norms, some biases, kv heads and tied words."""
    layer = deepcopy(WIDE)
    layer["attention"]["bias"] = "all" if bias else "none"
    layer["mlp"]["bias"] = bias
    base = MODEL if learned else LLAMA
    model = Model.validated(base.to_dict() | {"layers": [layer], "tied_embeddings": tied})
    degrees = list(product([1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 12]))
    columns = dict(zip(("tp", "pp"), zip(*degrees, strict=True), strict=True))
    table = Table.of(model, columns | {"dp": 1, "gbs": 1, "stack": samples.stack()})
    result = evaluate(model, samples.system(), table)
    total = count_parameters(model).total
    for row, (tp, pp) in enumerate(degrees):
        weights = samples.every_stage(result, table, row).weights / 2
        assert weights.sum() * tp == pytest.approx(total + copies(model, tp, pp), rel=1e-12)
    one = estimate(model, samples.system(), {"tp": 2, "pp": 3, "dp": 3, "gbs": 3})
    assert one.parameters == total


def faster(machine: System, what: str, factor: float) -> System:
    """The same machine with one figure better by a factor."""
    fields = machine.to_dict()
    chip, network = fields["accelerator"], fields["network"]
    if what in ("matrix", "vector"):
        chip[what] = {name: peak * factor for name, peak in chip[what].items()}
    elif what == "memory":
        chip["memory"][0]["bandwidth"] *= factor
    elif what == "efficiency":
        for kernel in (*chip["matmul"].values(), chip["memory_bound"]):
            kernel["efficiency"] = min(kernel["efficiency"] * factor, 1)
    elif what == "attention":
        shares = chip["attention"]["efficiency"]
        chip["attention"]["efficiency"] = {d: min(e * factor, 1) for d, e in shares.items()}
    else:
        network[0 if what == "inside" else 1]["bandwidth"] *= factor
    return System.validated(fields)


FIGURES = ("matrix", "vector", "memory", "efficiency", "attention", "inside", "between")


@fast
@given(st.lists(legal_rows(), min_size=6, max_size=20), st.sampled_from(FIGURES), st.floats(1, 20))
def test_a_better_machine_is_never_slower(
    table: list[dict[str, Any]], what: str, factor: float
) -> None:
    """More of any rate lengthens no step; where the host sets the pace, by a trifle at most.

    There a faster product hides less of the exchange beside it, and the layer gains nothing by it:
    0.7 % is the most found, for ten times the rate at tp 4 with four sequences of 512 tokens.
    """
    at_once = Stack.load("megatron-core-2025").model_copy(update={"name": "x", "host_launch": 0.0})
    better = faster(H100, what, factor)
    for stack, trifle in ((at_once, 1e-9), ("megatron-core-2025", 1e-2)):
        rows = Table.of(LLAMA, as_columns([row | {"stack": stack} for row in table]))
        before = evaluate(LLAMA, H100, rows).step_time_s
        after = evaluate(LLAMA, better, rows).step_time_s
        assert (after <= before * (1 + trifle)).all()


def test_a_better_machine_is_not_slower_behind_a_slow_host() -> None:
    """Kernels that end sooner leave the host as it is: exchanges behind them stay hidden."""
    software = samples.stack(host_launch=50e-6, tp_backward_async=True)
    strategy = {"tp": 8, "dp": 1, "mbs": 4, "gbs": 64, "sequence_parallel": False}
    given = strategy | {"seq_len": 512, "stack": software}
    machine = samples.system()
    before = estimate(LLAMA, machine, given).step_time_s
    assert estimate(LLAMA, faster(machine, "matrix", 2), given).step_time_s <= before


@fast
@given(st.lists(legal_rows(), min_size=4, max_size=12), st.sampled_from([2, 4]))
def test_more_micro_batches_take_longer_but_less_each(
    table: list[dict[str, Any]], factor: int
) -> None:
    """The bubble and the fixed parts are shared by more of them."""
    longer = [row | {"global_batch_size": row["global_batch_size"] * factor} for row in table]
    rows = Table.of(LLAMA, as_columns(table + longer))
    few, many = np.split(evaluate(LLAMA, H100, rows).step_time_s, 2)
    assert (few < many).all()
    assert (many <= factor * few).all()

"""What must hold whatever is trained, and what is refused."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from shardwise import InputError, Strategy, estimate, estimate_many
from shardwise.config.enums import LoraPart
from shardwise.config.strategy_table import Table
from shardwise.ops.lora import runs_backward
from trained_samples import BELOW_THE_HEAD, SIZES, mixture, run, subset

pytestmark = pytest.mark.any_software

NOTHING_LEFT = "leaves nothing to train; for forward only training is false"
SUBSETS = st.sets(st.sampled_from(list(SIZES)), max_size=4)
WAYS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2]),
        "pp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([1, 2, 4]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "mbs": st.sampled_from([1, 2]),
        "optimizer": st.sampled_from(["adamw", "muon", "sgd", "adafactor"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "tp_regather": st.booleans(),
        "fused_activation": st.booleans(),
        "dp_overlap": st.booleans(),
    }
)
SPARE = {"tp_backward_async": True, "tp_hidden": 0.5, "dp_contention": 0.5}


@examples(20)
@given(way=WAYS, fewer=SUBSETS, more=SUBSETS)
def test_freezing_more_is_never_slower_nor_larger(
    way: dict[str, Any], fewer: set[str], more: set[str]
) -> None:
    """Whatever else the strategy does.

    With ZeRO 3 on several stages another stage may become the one whose exchange counts: the one
    that trains most, of whose weights all are gathered.
    """
    assume(way["zero"] < 3 or way["pp"] == 1)
    several = fewer | more
    assume(len(several) < len(SIZES))
    backward = not set(BELOW_THE_HEAD) <= several
    assume(backward or way["recompute"] == "none")
    columns = way | {"gbs": 16, "frozen": [tuple(fewer), tuple(several)]}
    columns["stack"] = samples.stack(**SPARE)
    found = estimate_many(samples.llama(), samples.system(), columns)
    assert (found.refused < 0).all()
    slower = 1 + 1e-9
    assert found.step_time_s[1] <= found.step_time_s[0] * slower
    assert found.memory_total_bytes[1] <= found.memory_total_bytes[0] * slower
    for part in ("backward", "optimizer"):
        assert found.time_s[part][1] <= found.time_s[part][0] * slower
    for part in ("gradients", "optimizer", "activations") if way["pp"] == 1 else ():
        assert found.memory_bytes[part][1] <= found.memory_bytes[part][0] * slower


@examples(6)
@given(
    way=WAYS,
    rows=st.lists(
        st.one_of(
            SUBSETS.map(lambda parts: {"frozen": tuple(parts), "lora_rank": None}),
            st.fixed_dictionaries({"frozen": st.just(()), "lora_rank": st.sampled_from([1, 8])}),
        ),
        min_size=2,
        max_size=4,
    ),
)
def test_a_row_of_a_table_is_the_single_estimate(
    way: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    """Rows with and without adapters and frozen parts side by side."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    given = way | {"gbs": 16, "stack": samples.stack(**SPARE)}
    table = estimate_many(samples.llama(), samples.system(), given | columns)
    for place, row in enumerate(rows):
        if table.refused[place] < 0:
            one = estimate(samples.llama(), samples.system(), given | row)
            assert table.step_time_s[place] == pytest.approx(one.step_time_s, rel=1e-12)
            assert table.mfu[place] == pytest.approx(one.mfu, rel=1e-12)
            total = one.memory_bytes.total
            assert table.memory_total_bytes[place] == pytest.approx(total, rel=1e-12)


def test_where_layers_go_back() -> None:
    """As soon as one part that the model has before its head is trained."""
    model = samples.llama()
    assert not runs_backward(model, subset(*BELOW_THE_HEAD))[0]
    assert runs_backward(model, subset(rank=1))[0]
    for part in BELOW_THE_HEAD:
        assert runs_backward(model, subset(*(p for p in BELOW_THE_HEAD if p != part)))[0]
    assert runs_backward(mixture(), subset(*BELOW_THE_HEAD))[0]


def test_sets_of_words() -> None:
    """As a list, a text, bits; as a column of any of them; and back."""
    model = samples.llama()
    given = {"dp": 1, "gbs": 1, "lora_parts": "mlp, attention"}
    for frozen in (("head", "mlp"), "head mlp", "mlp+head", 68):
        table = Table.of(model, given | {"frozen": frozen})
        assert table.strategy(0).frozen == ("mlp", "head")
        assert table.strategy(0).lora_parts == ("attention", "mlp")
    table = Table.of(
        model, given | {"frozen": [(), ("mlp",), "norms,head"], "lora_rank": [4, 0, 0]}
    )
    assert table.to_columns()["frozen"].tolist() == ["", "mlp", "norms head"]
    assert [table.strategy(row).lora_rank for row in range(3)] == [4, None, None]
    assert Table.of(model, table.to_columns()).frozen.tolist() == table.frozen.tolist()
    assert LoraPart.from_bits(LoraPart.bits(LoraPart)) == tuple(LoraPart)
    with pytest.raises(InputError, match=r"^columns: frozen: 128: no set$"):
        Table.of(model, given | {"frozen": 128})


@each_row(
    ("columns", "problem"),
    [
        (
            {"frozen": "head", "lora_rank": 4},
            "frozen: ['head']: lora_rank freezes all weights of the model; leave it out",
        ),
        (
            {"frozen": "router,experts"},
            "frozen: ['experts', 'router']: sample has no experts, router",
        ),
        (
            {"frozen": (*BELOW_THE_HEAD, "head")},
            f"frozen: {[*BELOW_THE_HEAD, 'head']}: {NOTHING_LEFT}",
        ),
        (
            {"frozen": "mlp", "training": False},
            "frozen: ['mlp']: has an effect in training only; leave it out",
        ),
        (
            {"lora_rank": 4, "training": False},
            "lora_rank: 4: has an effect in training only; leave it out",
        ),
        (
            {"lora_parts": "mlp"},
            "lora_parts: ['mlp']: has no effect without lora_rank; leave it out",
        ),
        (
            {"lora_rank": 4, "lora_parts": "mlp,experts"},
            "lora_parts: ['mlp', 'experts']: sample has no experts",
        ),
        (
            {"frozen": BELOW_THE_HEAD, "recompute": "full"},
            (
                "recompute: 'full': nothing before the head is trained or has a backward pass; "
                "allowed: none"
            ),
        ),
    ],
)
def test_contradictions_are_refused(columns: dict[str, Any], problem: str) -> None:
    """By name, with what to do instead."""
    with pytest.raises(InputError) as refused:
        run(**columns)
    assert str(refused.value) == f"strategy: {problem}"


def test_one_table_is_frozen_once() -> None:
    """Tied: with the embedding the head."""
    problem = "strategy: frozen: ['head']: embedding and head of sample are tied; freeze both"
    with pytest.raises(InputError, match="are tied") as refused:
        run(samples.model(), frozen="head")
    assert str(refused.value) == f"{problem} or none"


def test_unknown_parts_are_refused() -> None:
    """Layers have no weights called so; adapters need a product."""
    for columns in ({"frozen": "bias"}, {"lora_parts": "norms"}, {"lora_parts": ()}):
        with pytest.raises(InputError):
            Strategy.validated(columns)

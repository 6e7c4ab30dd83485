"""Numbers that are none, too many of something, words that may mean two things."""

import json
from pathlib import Path

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, Model, Stack, Strategy, System, estimate_many, trace
from shardwise.config.strategy_table import Table
from shardwise.errors import shorten

pytestmark = pytest.mark.any_software

SIMUMAX = Path(__file__).parent / "data" / "simumax" / "llama3-8b.json"
CALCULON = {
    "name": "deep",
    "hidden": 12_288,
    "feedforward": 49_152,
    "seq_size": 2048,
    "attn_heads": 96,
    "attn_size": 128,
    "num_blocks": 10_001,
}
LLAMA = Model.load("llama3-8b").to_dict()
EXPERTS = Model.load("deepseek-v3").to_dict()
NO_FLAG = "must be a number, not true or false"


def faults(noun, data):
    """What is wrong, line by line."""
    with pytest.raises(InputError) as caught:
        noun.load(data)
    return str(caught.value).splitlines()


def _flagged(value, path=""):
    """Copies of plain data with one number replaced by true, and where."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, (int, float)):
        yield path, True
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        inside = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".lstrip(".")
        for place, changed in _flagged(item, inside):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = changed
            yield place, copy


FULL = {
    "gpus": 8,
    "dp": 8,
    "seq_len": 1,
    "global_batch_size": 8,
    "document_len": 1,
    "recompute_layers": 1,
    "dp_shard": 1,
    "lora_rank": 1,
    "first_stage_layers": 1,
    "last_stage_layers": 1,
    "stage_layers": [1],
    "expert_capacity": 1.5,
    **dict.fromkeys(("tp_tier", "cp_tier", "dp_tier", "pp_tier"), 0),
}
NOUNS = [
    (Model, EXPERTS),
    (Model, LLAMA | {"layers": [LLAMA["layers"][0] | {"kind": "gated", "options": {"rank": 4}}]}),
    (System, System.load("h100-sxm").to_dict()),
    (Stack, Stack.load("megatron-core-2025").to_dict()),
    (Strategy, Strategy.load(FULL).to_dict()),
]


@each_row(("noun", "data"), NOUNS)
def test_true_is_no_number(noun, data):
    """In no field of any noun, though Python counts it as 1."""
    places = dict(_flagged(data))
    assert places
    for place, changed in places.items():
        message = "\n".join(faults(noun, changed))
        assert "true" in message, place
        assert place.split(".")[-1].split("[")[0] in message


@each_row(
    ("fields", "message"),
    [
        ({"zero": True}, f"zero: true: {NO_FLAG}"),
        ({"fsdp_prefetch": True}, f"fsdp_prefetch: true: {NO_FLAG}"),
        ({"tp_tier": True}, f"tp_tier: true: {NO_FLAG}"),
        ({"stage_layers": [4, True]}, f"stage_layers[1]: true: {NO_FLAG}"),
        ({"expert_capacity": True}, f"expert_capacity: true: {NO_FLAG}"),
        ({"frozen": {"a": 1}}, "frozen: {'a': 1}: must be a list"),
        ({"stage_layers": {}}, "stage_layers: {}: must be a list"),
    ],
)
def test_a_field_of_a_strategy_shows_what_it_was_given(fields, message):
    """A mapping too."""
    assert faults(Strategy, fields) == [f"strategy: {message}"]


@each_row(
    "column", [[True, 2], [None, True], np.array([True, False]), np.array([2, True], dtype=object)]
)
@each_row("field", ["tp_tier", "document_len", "zero", "expert_imbalance"])
def test_true_is_no_number_in_a_column_either(field, column):
    """Beside numbers numpy would make it one of them."""
    given = {"gpus": [8, 8], "gbs": 8, "seq_len": 128, field: column}
    with pytest.raises(InputError, match=f"{field}: "):
        estimate_many("llama3-8b", "h100-sxm", given)


@each_row(
    ("changes", "message"),
    [
        ({"layers": []}, "layers: []: must have at least 1 item"),
        ({"layers": {}}, "layers: {}: must be a list"),
        (
            {"layers": [LLAMA["layers"][0] | {"count": 200_000_000}]},
            "layers: 200000000 of them; must be at most 10000",
        ),
        (
            {"layers": [LLAMA["layers"][0] | {"count": 5001}] * 2},
            "layers: 10002 of them; must be at most 10000",
        ),
        ({"mtp": 9969}, "mtp 9969 must be at most 9968, with 32 layers"),
    ],
)
def test_a_model_has_some_layers_but_not_without_end(changes, message):
    """They are looked at one by one."""
    assert faults(Model, LLAMA | changes) == [f"model: {message}"]


def test_as_many_layers_as_may_be_are_read():
    """10,000 of them, modules of multi-token prediction included."""
    layers = [LLAMA["layers"][0] | {"count": 9_999}]
    assert len(Model.load(LLAMA | {"layers": layers, "mtp": 1}).order) == 9_999


@pytest.mark.needs("predecessors")
def test_a_simumax_model_has_no_more_layers():
    """Told under its own key."""
    data = json.loads(SIMUMAX.read_text()) | {"layer_num": 1_000_000_000}
    assert faults(Model, data) == ["model: layer_num: 1000000000: must be at most 10000"]


@pytest.mark.needs("predecessors")
def test_a_calculon_model_has_no_more_layers():
    """Told under its own key; Calculon's own formulas take any number."""
    (message,) = faults(Model, CALCULON)
    assert message.startswith(
        "model: num_blocks: 10001: must be at most 10000; --reference calculon"
    )
    assert Model.load(CALCULON | {"num_blocks": 10_000}).depth == 10_000


def test_a_token_takes_no_more_groups_than_there_can_be():
    """A group has an expert at least."""
    layer = EXPERTS["layers"][1]
    layers = [layer | {"moe": layer["moe"] | {"top_groups": 257}}]
    assert faults(Model, EXPERTS | {"layers": layers, "interleave": None}) == [
        "model: layers[0].moe: top_groups 257 is more than the groups that 256 experts can make"
    ]


def test_accelerators_that_follow_are_told_by_what_was_given(shardwise):
    """Not by a column that nobody wrote."""
    words = ("llama3-8b", "h100-sxm", "--dp", 2**31, "--tp", 8, "--gbs", 8)
    code, out, err = shardwise("estimate", *words)
    message = "with tp 8 x cp 1 x pp 1 makes 17179869184 GPUs; at most 2147483648"

    assert (code, out, err) == (2, "", f"error: --dp: 2147483648: {message}\n")


def test_accelerators_that_follow_are_told_in_columns_too():
    """The first replica count that makes too many."""
    given = {"dp": [1, 2**30], "tp": 4, "gbs": 2**30}
    with pytest.raises(InputError) as caught:
        estimate_many("llama3-8b", "h100-sxm", given)
    message = "with tp x tp2 x pp x cp makes more than 2147483648 GPUs"

    assert str(caught.value) == f"columns: dp: 1073741824: {message}"


SEARCH = ("search", "llama3-8b", "h100-sxm", "--gpus", 8)


@each_row(
    ("words", "message"),
    [
        (SEARCH, "--gbs is missing: sequences per step, such as --gbs 128"),
        (
            ("search", "llama3-8b", "h100-sxm", "--gbs", 8),
            "--gpus is missing: number of GPUs, such as --gpus 64",
        ),
        ((*SEARCH, "--gbs", 8, "--top", 0), "--top: '0': {}"),
        ((*SEARCH, "--gbs", 8, "--top", "many"), "--top: 'many': {}"),
        ((*SEARCH, "--gbs", 8, "--jobs", -1), "--jobs: '-1': {}"),
        (
            ("models", "--largest-for", "h100-sxm", "--gpus", 8, "--count", 0),
            "--count: '0': {}",
        ),
    ],
)
def test_a_flag_that_is_wrong_or_missing_is_one_line(shardwise, words, message):
    """With where it comes from."""
    line = message.format("must be a whole number of at least 1")
    assert shardwise(*words) == (2, "", f"error: {line}\n")


@each_row("number", [True, 0, 1.5, "3"])
def test_a_trace_writes_a_number_of_micro_batches(number):
    """As the flag of the command line does."""
    with pytest.raises(InputError) as caught:
        trace("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8}, micro_batches=number)
    message = "must be a whole number of at least 1"
    assert str(caught.value) == f"micro_batches: {shorten(number)}: {message}"


PARTS = ["core_attention", "mlp"]
TWO = {"gpus": 8, "gbs": 8, "recompute": "selective"}


def _table(**columns):
    return Table.of(Model.load("llama3-8b"), TWO | columns).recompute_parts.tolist()


def test_as_many_words_as_rows_are_refused():
    """They may be one set for all rows, or a word for each."""
    for words in (PARTS, tuple(PARTS)):
        with pytest.raises(InputError) as caught:
            _table(tp=[1, 2], recompute_parts=words)
        assert str(caught.value) == (
            f"columns: recompute_parts: {PARTS}: may be one set for all rows or a word for each of "
            "the 2; write 'core_attention,mlp' for the set, [['core_attention'], ['mlp']] for rows"
        )


def test_all_such_columns_are_told_at_once():
    """One line for each."""
    with pytest.raises(InputError) as caught:
        _table(stage_layers=[[16, 16], [15, 17]], frozen=["mlp", "head"], recompute_parts=PARTS)
    assert [fault.field for fault in caught.value.faults] == ["recompute_parts", "frozen"]


def test_what_the_message_says_to_write_is_read():
    """A text is a set, a list of lists has one for each row."""
    both, first, second = 0b1000001, 0b1, 0b1000000
    assert _table(tp=[1, 2], recompute_parts="core_attention,mlp") == [both, both]
    assert _table(tp=[1, 2], recompute_parts=[["core_attention"], ["mlp"]]) == [first, second]
    assert _table(tp=[1, 2], recompute_parts=np.array(PARTS)) == [first, second]


def test_words_that_can_mean_one_thing_are_read():
    """Single values beside them, more rows than words, one word, one row; defaults too."""
    assert _table(tp=1, recompute_parts=PARTS) == [0b1000001]
    assert _table(tp=[1, 2, 4], recompute_parts=PARTS) == [0b1000001] * 3
    assert _table(tp=[1], recompute_parts=["mlp"]) == [0b1000000]
    assert _table(tp=[1, 2], recompute_parts=["mlp", "mlp"]) == [0b1000000] * 2
    assert _table(tp=[1, 2], lora_rank=[8, 8]) == [0b1, 0b1]  # two parts have adapters by default

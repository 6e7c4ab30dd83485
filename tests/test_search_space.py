"""`Space`: which values are tried, in which order, and what is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
import shardwise
from naive_search import OFFLOADS, ORDERS, TIERS, USUAL
from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Stack, Strategy, System, catalog
from shardwise.config.enums import Dispatcher
from shardwise.parallel.constraints.options import is_recomputable
from shardwise.parallel.constraints.software import can_run
from shardwise.planning.search.query import load_space
from shardwise.planning.search.run import count, search
from shardwise.planning.search.space import SPACE_FIELDS, Space

pytestmark = pytest.mark.any_software

fast = examples(50)
SYSTEM = samples.system()
HOSTED = System.load("calculon-a100-80g")


def read(field: str, value: object) -> Any:
    """One field of a space."""
    return getattr(Space.validated({field: value}), field)


def faults(data: dict[str, Any]) -> list[str]:
    """What is wrong with a space, line by line."""
    with pytest.raises(InputError) as caught:
        Space.load(data)
    return [str(fault) for fault in caught.value.faults]


@each_row("scope", ["practical", "full", " Full "])
def test_a_scope_names_a_space(scope):
    """That leaves all else open."""
    space = Space.load(scope)
    assert space == Space(scope=scope.strip().lower())
    assert space.model_fields_set == {"scope"}


@each_row(
    ("given_value", "values"),
    [
        (4, (4,)),
        ("4", (4,)),
        ("4, 8", (4, 8)),
        ([8, 4], (8, 4)),
        ((2, "4..16"), (2, 4, 8, 16)),
        ("1..6", (1, 2, 4)),
        ("3..24", (3, 6, 12, 24)),
        ("8..8", (8,)),
        ("8 .. 24 : 8", (8, 16, 24)),
        ("5..14:4, 1", (5, 9, 13, 1)),
        (range(2, 5), (2, 3, 4)),
        ([4, "4", 4.0, 2], (4, 2)),
        ("ALL", "all"),
        (None, None),
    ],
)
def test_numbers_are_one_a_list_a_range_or_all(given_value, values):
    """In the order in which they are given, none of them twice."""
    assert read("tp", given_value) == values


@fast
@given(st.integers(1, 5000), st.integers(0, 500), st.integers(1, 100))
def test_ranges_step_or_double(low, beyond, step):
    """Up to the end, which is taken if it is met."""
    high = low + beyond
    assert read("gpus", f"{low}..{high}:{step}") == tuple(range(low, high + 1, step))
    doubled = read("gpus", f"{low}..{high}")
    assert doubled == tuple(low * 2**i for i in range(len(doubled)))
    assert doubled[-1] <= high < doubled[-1] * 2


@each_row(
    ("field", "given_value", "values"),
    [
        ("recompute", "Selective, FULL", ("selective", "full")),
        ("dtype", ["float16", "fp16", "bf16"], ("fp16", "bf16")),
        ("training", [True, "false"], (True, False)),
        ("placement", "tp-dp-pp, pp-tp-cp-dp", ("tp-cp-dp-pp", "pp-tp-cp-dp")),
        ("tp_tier", "none, 1", (None, 1)),
        ("pp_tier", ["placement", None, 0], (None, 0)),
        ("stack", "calculon, nemo-2025", ("calculon", "nemo-2025")),
        ("zero", "1,0", (1, 0)),
    ],
)
def test_words_are_those_of_a_strategy(field, given_value, values):
    """Aliases and any case are read; the canonical form is kept, once."""
    assert read(field, given_value) == values


def test_software_may_be_a_noun_or_changes_of_one():
    """A stack, a mapping with a base, and several of them."""
    stack = samples.stack(tp_hidden=0.5)
    changed = {"base": "calculon", "tp_hidden": 0.25}
    assert read("stack", stack) == (stack,)
    assert [one.tp_hidden for one in read("stack", [stack, changed])] == [0.5, 0.25]


def test_a_space_names_the_fields_of_a_strategy():
    """All but the short form of `tp_exchange`, the scope, and the kind of batch."""
    assert set(Space.model_fields) == {*SPACE_FIELDS, "scope", "batch"}
    assert set(SPACE_FIELDS) == set(Strategy.model_fields) - {"sequence_parallel"}
    short = Space.validated({"mbs": 2, "gbs": "8..32"})
    assert (short.micro_batch_size, short.global_batch_size) == ((2,), (8, 16, 32))
    assert short.batch == "fixed"


# All that a search could try before software bound it.
ANY = Space.validated({"scope": "full", "any_software": True})


@each_row("system", [SYSTEM, HOSTED])
def test_what_is_tried_where_nothing_is_said(system):
    """All of what changes how a run is done, nothing of what makes it another run."""
    offload = (False, True) if system is HOSTED else (False,)
    expected = {**USUAL, **dict.fromkeys(OFFLOADS, offload), "tp_overlap": USUAL["tp_overlap"]}
    expected |= {"stack": (system.stack,), "any_software": (True,), "zero": (1, 0, 2, 3)}
    expected |= {"expert_overlap": (False, True), "dispatcher": tuple(Dispatcher), "cp": None}
    for field, values in expected.items():
        assert ANY.values(field, system) == (values and tuple(values)), field
    by_layout = ("gpus", "tp", "pp", "dp", "vpp", "micro_batch_size", "global_batch_size")
    assert {*SPACE_FIELDS} - {*expected} == {*by_layout, "seq_len"}
    for field in by_layout[1:6]:
        assert ANY.values(field, system) is None


def test_all_is_every_value_there_is():
    """Usual ones first; tiers by number; degrees are left to what divides."""
    every = {
        "zero": (1, 0, 2, 3),
        "dtype": ("bf16", "fp16", "fp32"),
        "training": (True, False),
        "attention": ("model", "multihead", "multiquery"),
        "offload_weights": (False, True),
        "placement": tuple(USUAL["placement"]),
        **dict.fromkeys(TIERS, (0, 1)),
        **dict.fromkeys(("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch_size"), None),
    }
    for field, values in every.items():
        assert Space.validated({field: "all"}).values(field, SYSTEM) == values
    assert sorted(every["placement"]) == sorted(ORDERS)


def test_all_of_a_set_is_what_recipes_use():
    """Of recompute the sets of stacks and recipes as far as the model has them and the software
    can run them; of offload what releases list, with activations offloaded or not."""
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    used = {
        frozenset(one)
        for stack in catalog.names("stacks")
        for one in Stack.load(stack).recompute_sets
    }
    has = {frozenset(p for p in one if is_recomputable(model, p)) for one in used} - {frozenset()}
    space = Space(recompute_parts="all", stack="simumax").settled(model, system)
    assert has <= {frozenset(one) for one in space.values("recompute_parts", system)}
    space = Space(recompute_parts="all", offload_parts="all").settled(model, system)
    stack = Stack.load(system.stack)
    for field in ("recompute_parts", "offload_parts"):
        values = space.values(field, system)
        assert len(values) > 3
        assert all(can_run(stack, field, value) for value in values)
    assert space.values("offload_activations", system) == (False, True)


@each_row("field", SPACE_FIELDS)
def test_all_has_values_or_the_message_says_what_to_give(field):
    """A field alone after --allow works, or one line has an example; no word is quoted that the
    user did not write."""
    try:
        Space.validated({field: "all"})
    except InputError as error:
        (fault,) = error.faults
        assert field in fault.problem
        assert "all" not in fault.problem.replace("allowed", "").split()
        assert not fault.has_value


@each_row(
    ("data", "told"),
    [
        ({"tp": 0}, "tp: 0: must be at least 1"),
        ({"tp": True}, "tp: true: must be a number, not true or false"),
        ({"tp": "eight"}, "tp: 'eight': must be a whole number"),
        ({"tp": "1..2..4"}, "tp: '1..2..4': must be a whole number"),
        ({"tp": []}, "tp: []: has no value to try"),
        ({"tp": [1, None]}, "tp: [1, null]: null: has an empty value; leave the field out"),
        ({"tp": "8..4"}, "tp: '8..4': a range runs from a number of at least 1 up to a larger"),
        ({"tp": "0..4"}, "tp: '0..4': a range runs from a number of at least 1 up to a larger"),
        ({"tp": "1..4:0"}, "tp: '1..4:0': a range runs from a number of at least 1 up to a"),
        ({"gpus": "1..99999:1"}, "gpus: '1..99999:1': a range has at most 10000 values"),
        ({"gpus": "all"}, "gpus: give values, as in gpus=A,B, or a range gpus=A..B"),
        ({"stack": "ALL"}, "stack: give values, as in stack=A,B"),
        ({"zero": [0, -1]}, "zero: [0, -1]: -1: must be at least 0"),
        ({"tp_tier": "inner"}, "tp_tier: 'inner': must be a whole number"),
        ({"recompute": "ful"}, "allowed: none, selective, full; did you mean 'full'?"),
        ({"recompute": "none,ful"}, "recompute: 'none,ful': 'ful': allowed: none, selective, full"),
        ({"placement": "tp-tp"}, "placement: 'tp-tp': must be an order of tp, dp, pp"),
        ({"batch": "large"}, "batch: 'large': allowed: fixed, largest"),
        ({"sequence_parallel": True}, "sequence_parallel: unknown key"),
        ({"recomput": "full"}, "recomput: unknown key; did you mean 'recompute'?"),
        ({"mbs": 1, "micro_batch_size": 2}, "mbs: is set twice, by two names"),
        ({"stack": {"base": "calculon", "tp_hidden": 3}}, "stack: tp_hidden: must be at most"),
        ({"stack": {"base": "calculom"}}, "did you mean 'calculon'?"),
    ],
)
def test_every_bad_value_gives_one_clear_fault(data, told):
    """It names the field, the value and what is allowed."""
    (fault,) = faults(data)
    assert fault.startswith("space: ")
    assert told in fault


def test_all_faults_are_told_at_once():
    """One line for each field, with every value of it that is wrong."""
    found = faults({"tp": [0, 2, -1], "dtype": "bf61", "zerro": 1, "batch": "some"})
    assert len(found) == 4
    assert any("0: must be at least" in line and "-1: must be at least" in line for line in found)


def test_a_field_may_be_put_over_a_space():
    """By either of its names; the rest stays as it was, and a fault names where it comes from."""
    space = Space.validated({"mbs": [1, 2], "tp": 4, "batch": "largest"})
    other = space.fixed({"mbs": 8, "zero": 0}, source="--fix")
    assert other == Space.validated({"mbs": 8, "tp": 4, "zero": 0, "batch": "largest"})
    with pytest.raises(InputError, match=r"^--fix: tp: 0: must be"):
        space.fixed({"tp": 0}, source="--fix")
    assert load_space(space, {"micro_batch_size": 8, "zero": 0, "pp": None}) == other
    assert load_space(None, {}) == Space()
    even = Space.validated({"stage_layers": "none", "tp": 4})
    assert even.fixed({"tp": 8}, source="--fix").stage_layers == (None,)


VALUES = {
    "gpus": st.sampled_from([8, [8, 16], "8..64", "8,16..32:8"]),
    "tp": st.sampled_from([1, [1, 2], "all", "1..8", None]),
    "recompute": st.sampled_from(["none", ["none", "full"], "all", "none,full"]),
    "training": st.sampled_from([True, [True, False], "all"]),
    "tp_tier": st.sampled_from([0, [None, 1], "placement", "all"]),
    "zero": st.sampled_from([0, [1, 0], "all"]),
    "stage_layers": st.sampled_from(["none", [2, 2], [[2, 2], [3, 1]], "balanced"]),
    "offload_parts": st.sampled_from(["none", ["mlp"], [["mlp"], ["qkv", "mlp"]]]),
    "stack": st.sampled_from(["calculon", ["calculon", {"base": "calculon", "tp_hidden": 0.5}]]),
    "batch": st.sampled_from(["fixed", "largest"]),
    "placement": st.sampled_from(["tp-dp-pp", "all", ["tp-cp-dp-pp", "dp-tp-cp-pp"]]),
    "seq_len": st.sampled_from([1024, [1024, 2048]]),
}
DATA = st.fixed_dictionaries({}, optional=VALUES)


@fast
@given(DATA)
def test_a_space_is_read_back_as_it_was_written(data):
    """From its plain values, which are JSON."""
    space = Space.load(data)
    assert Space.load(json.loads(json.dumps(space.to_dict()))) == space


@pytest.mark.parametrize("name", ["space.yaml", "space.json", "space.yaml.gz"])
def test_a_space_is_a_file(name, tmp_path):
    """Written and read again; faults name the file."""
    space = Space.validated({"gpus": "8..32", "tp": "all", "stack": samples.stack(), "gbs": 8})
    path = tmp_path / name
    space.to_file(path)
    assert Space.load(path) == space


def test_a_file_says_it_as_people_do(tmp_path):
    """Ranges, lists and words, with a comment."""
    path = tmp_path / "mine.yaml"
    path.write_text("pp: 1..16  # doubles\ngbs: 8..16:4\nrecompute: [none, full]\nzero: all\n")
    space = Space.load(path)
    assert (space.pp, space.global_batch_size) == ((1, 2, 4, 8, 16), (8, 12, 16))
    assert (space.recompute, space.zero, space.tp) == (("none", "full"), "all", None)
    path.write_text("tp: none\n")
    with pytest.raises(InputError, match=r"mine\.yaml: tp: 'none': must be a whole number"):
        Space.load(path)


SCHEMA = Space.model_json_schema()


def accepted(schema: dict[str, Any], value: object, whole: dict[str, Any]) -> bool:
    """Whether a value is valid under the few words of JSON Schema that spaces use."""
    if "$ref" in schema:
        return accepted(whole["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, whole)
    if "anyOf" in schema and not any(accepted(one, value, whole) for one in schema["anyOf"]):
        return False
    kinds: dict[str, Any] = {
        "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
        "boolean": lambda v: isinstance(v, bool),
        "string": lambda v: isinstance(v, str),
        "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
        "array": lambda v: isinstance(v, list),
        "object": lambda v: isinstance(v, dict),
        "null": lambda v: v is None,
    }
    checks = {
        "type": lambda word: kinds[word](value),
        "enum": lambda words: value in words,
        "const": lambda word: value == word,
        "minimum": lambda least: not isinstance(value, (int, float)) or value >= least,
        "exclusiveMinimum": lambda least: not isinstance(value, (int, float)) or value > least,
        "minItems": lambda least: not isinstance(value, list) or len(value) >= least,
        "pattern": lambda text: not isinstance(value, str) or re.search(text, value) is not None,
        "required": lambda names: not isinstance(value, dict) or {*names} <= {*value},
        "items": lambda one: (
            not isinstance(value, list) or all(accepted(one, item, whole) for item in value)
        ),
    }
    return all(check(schema[word]) for word, check in checks.items() if word in schema)


@fast
@given(DATA)
def test_the_schema_accepts_what_the_loader_accepts(data):
    """Values, lists, ranges, words for all, and what a space is written as."""
    schema = SCHEMA
    for given_data in (data, Space.load(data).to_dict()):
        for field, value in given_data.items():
            assert accepted(schema["properties"][field], value, schema), (field, value)


@each_row(
    ("field", "value"),
    [
        ("tp", "eight"),
        ("tp", []),
        ("tp", True),
        ("tp", "1..2..3"),
        ("gpus", "all"),
        ("recompute", "ful"),
        ("training", 1.5),
        ("batch", "some"),
        ("tp_tier", "inner"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(field, value):
    """And says so of the same field."""
    assert not accepted(SCHEMA["properties"][field], value, SCHEMA)
    assert faults({field: value})


def test_the_schema_is_whole_json():
    """Every reference in it is defined, short names are described, other keys are refused."""
    schema = Space.model_json_schema()
    text = json.dumps(schema)
    assert {"mbs", "gbs", *SPACE_FIELDS, "scope", "batch"} == set(schema["properties"])
    assert schema["additionalProperties"] is False
    named = {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}
    assert named == {"Stack", "Software", "Source", "Capabilities", "Combination", "Reported"}
    assert named <= set(schema["$defs"])
    assert all(schema["properties"][name]["description"] for name in SPACE_FIELDS)


def test_search_is_a_function_whatever_was_imported_before():
    """The package of the same name, of which this test has modules, does not hide it."""
    assert shardwise.search is search
    assert shardwise.Space is Space


def test_a_space_counts_what_it_holds():
    """By hand, on 2 accelerators: tp 2 with 2 kinds of recompute; 2 replicas with 2 kinds, each
    with and without overlap; 2 stages with 2 kinds, in 1 or 2 chunks of their 2 layers."""
    space = {"scope": "full", "gpus": 2, "gbs": 2, "mbs": 1, "zero": 1, "cp": 1}
    space |= {"recompute": ["none", "full"]}
    space |= {"tp_exchange": "rs_ag", "tp_overlap": "none", "tp_regather": True}
    space |= {"fused_activation": False}
    assert count(samples.model(), SYSTEM, space | {"tp": 2}) == (2, {})
    assert count(samples.model(), SYSTEM, space) == (2 + 2 * 2 + 2 * 2, {})


def test_the_best_of_a_narrower_space_is_no_better():
    """Every value less is a strategy less, or the same."""
    model = Model.load("calculon-megatron-126m")
    space = {"scope": "full", "gpus": 8, "gbs": 16, "dtype": "fp16", "mbs": [1, 2]}
    space |= {"placement": "tp-dp-pp"}
    space |= {**dict.fromkeys(OFFLOADS, False), "pp": [1, 2], "tp_overlap": "none", "vpp": [1, 2]}
    wide = search(model, HOSTED, space, top=1)
    for narrower in ({"recompute": "full"}, {"tp": 8}, {"dp_overlap": False}, {"mbs": 1}):
        narrow = search(model, HOSTED, space, top=1, **narrower)
        assert narrow.candidates < wide.candidates
        assert narrow.best[0].step_time_s >= wide.best[0].step_time_s

"""Stacks told as another one and what differs: fields, origins, refusals, what is shown."""

import json
from typing import Any

import pytest

import samples
from parameter_samples import Written
from rows import each_row
from shardwise import InputError, Stack, Strategy, UnknownNameError, catalog, estimate
from shardwise.config import files

BASE = "megatron-core-2025"
UNTOLD = "set in addition to the base, without a source"
NO_SUCH = "no such stack in the catalog, and no such file"
CIRCLE = "no stack can be its own base"
THREE = "mine.yaml is based on ./other.yaml is based on mine.yaml"


def figures(stack: Stack) -> dict[str, Any]:
    """All fields but those that say whose they are."""
    told = stack.to_dict()
    return {name: told[name] for name in told if name not in ("name", "description", "sources")}


def test_absent_fields_are_those_of_the_base(written: Written) -> None:
    """With units, and without the base's name or description."""
    mine = Stack.load(written("mine.yaml", name="mine", base=BASE, host_launch="3 us", pp_hidden=0))
    assert (mine.name, mine.description) == ("mine", "")
    assert figures(mine) == figures(Stack.load(BASE)) | {"host_launch": 3e-6, "pp_hidden": 0}


def test_a_base_may_have_a_base(written: Written) -> None:
    """The nearest one that tells a field decides it."""
    written("low.json", name="low", base="calculon", pp_hidden=0.25, dp_tail=0.5)
    top = Stack.load(written("top.yaml", name="top", base="low.json", dp_tail=0.75))
    assert figures(top) == figures(Stack.load("calculon")) | {"pp_hidden": 0.25, "dp_tail": 0.75}
    assert Stack.load({"name": "as mapping", "base": "low.json"}).dp_tail == 0.5


def test_a_source_of_the_base_does_not_cover_fields_set_again(written: Written) -> None:
    """That is the stack's own for the field, its own for all, or none."""
    base = Stack.load(BASE)
    told = {"tp_hidden": 0.5, "host_launch": "9 us", "dp_tail": 0}
    own = {"kind": "measured", "text": "timed by me"}
    mine = Stack.load(written("a.yaml", name="a", base=BASE, sources={"tp_hidden": own}, **told))
    for field in told:
        assert mine.source_of(field) != base.source_of(field)
    found = {field: mine.source_of(field) for field in told}
    assert {f: s.text for f, s in found.items() if s} == {
        "tp_hidden": "timed by me",
        "host_launch": UNTOLD,
        "dp_tail": UNTOLD,
    }
    of_all = Stack.load(written("b.yaml", name="b", base=BASE, sources={"": own}, **told))
    assert {of_all.source_of(f).text for f in told} == {"timed by me"}  # type: ignore[union-attr]


def test_the_source_of_absent_fields_stays(written: Written) -> None:
    """One for all that the stack tells is not one for what its base has."""
    base = Stack.load(BASE)
    own = {"kind": "measured", "text": "timed by me"}
    mine = Stack.load(written("b.yaml", name="b", base=BASE, sources={"": own}, dp_tail=0))
    for field in set(figures(base)) - {"dp_tail"}:
        assert mine.source_of(field) == base.source_of(field)
    again = Stack.load(written("c.yaml", name="c", base=BASE, sources={"pp_hidden": own}))
    assert again.source_of("pp_hidden").text == "timed by me"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"base": "nemo-2026"},
            f"mine.yaml: base: 'nemo-2026': {NO_SUCH}; did you mean 'nemo-2025'?",
        ),
        ({"base": 7}, "mine.yaml: base: 7: must be the name or the file of a stack"),
        ({"base": None}, "mine.yaml: base: null: must be the name or the file of a stack"),
        (
            {"base": "mine.yaml"},
            f"mine.yaml: base: 'mine.yaml': {CIRCLE}: mine.yaml is based on mine.yaml",
        ),
        (
            {"base": "./other.yaml"},
            f"./other.yaml: base: 'mine.yaml': {CIRCLE}: {THREE}",
        ),
        ({"base": "nowhere.yaml"}, "nowhere.yaml: no such file"),
        ({"base": "bad.yaml"}, "bad.yaml: dp_tial: unknown key; did you mean 'dp_tail'?"),
        (
            {"base": BASE, "dp_tial": 1},
            "mine.yaml: dp_tial: unknown key; did you mean 'dp_tail'?",
        ),
        ({"base": BASE, "sources": 3}, "mine.yaml: sources: 3: must be a mapping"),
    ],
)
def test_a_base_that_cannot_be_one(written: Written, fields: dict[str, Any], message: str) -> None:
    """One line that names the file that is wrong."""
    written("other.yaml", name="other", base="mine.yaml")
    written("bad.yaml", name="bad", base=BASE, dp_tial=1)
    with pytest.raises(InputError) as error:
        Stack.load(written("mine.yaml", name="mine", **fields))
    assert str(error.value) == message
    assert isinstance(error.value, UnknownNameError) is (fields["base"] == "nemo-2026")


def test_a_stack_with_a_base_needs_a_name_of_its_own(written: Written) -> None:
    """Two stacks of one name would be told apart by nothing."""
    with pytest.raises(InputError, match=r"^mine.yaml: name: is missing and has no default$"):
        Stack.load(written("mine.yaml", base=BASE))


@each_row("name", catalog.names("stacks"))
def test_no_stack_of_the_catalog_leaves_a_source_out(name: str) -> None:
    """What it tells beside its base says where it is from."""
    assert UNTOLD not in {source.text for source in Stack.load(name).sources.values()}


def test_a_strategy_runs_on_a_stack_with_a_base(written: Written) -> None:
    """By file, or as a base of fields in the strategy: the same as told whole."""
    whole = samples.stack(name="whole", dp_tail=0.5).to_dict()
    written("whole.yaml", **whole)
    mine = written("mine.yaml", name="mine", base="whole.yaml", step_overhead="2 s")
    model, system = samples.model(), samples.system()
    ways = (mine, {"base": "whole.yaml", "step_overhead": 2}, samples.stack(step_overhead=2))
    steps = [
        estimate(model, system, {"dp": 1, "mbs": 1, "gbs": 1, "stack": way}).step_time_s
        for way in ways
    ]
    assert steps[0] == steps[1] == steps[2] > 2


def test_a_stack_with_a_base_is_shown_in_full(shardwise: Any, written: Written) -> None:
    """In the table, in JSON, and in the file that `stacks --output` writes."""
    mine = written("mine.yaml", name="mine", base=BASE, tp_hidden=0.125)
    code, shown, _ = shardwise("stacks", mine)
    assert (code, UNTOLD in shown) == (0, True)
    row = next(line for line in shown.splitlines() if line.strip().startswith("tp_hidden"))
    assert "0.125" in row
    assert "assumed" in row
    code, told, _ = shardwise("stacks", mine, "--json")
    record = json.loads(told)
    assert (code, record | Stack.load(mine).to_dict()) == (0, record)
    assert shardwise("stacks", mine, "--output", "whole.yaml")[0] == 0
    assert "base" not in files.read_mapping("whole.yaml")
    assert Stack.load("whole.yaml") == Stack.load(mine)


def test_the_schema_accepts_a_base() -> None:
    """With a name; what has no base must be whole."""
    schema = Stack.model_json_schema()
    required = {f for f, field in Stack.model_fields.items() if field.is_required()}
    assert "base" in schema["properties"]
    assert [set(way["required"]) for way in schema["anyOf"]] == [required, {"name", "base"}]
    assert "required" not in schema


def test_defaults_are_in_the_order_of_the_fields(written: Written) -> None:
    """Whatever order a file has them in, and whatever the hash seed of the process is."""
    names = [name for name in Strategy.model_fields if Strategy.model_fields[name].default == 1]
    mine = Stack.load(
        written("a.yaml", name="a", base=BASE, defaults=dict.fromkeys(names[::-1], 1))
    )
    assert len(names) > 5
    assert list(mine.defaults) == names

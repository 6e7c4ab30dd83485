"""Code emitted from a wrapping calls exactly the wrapping, in the order `fully_shard` needs."""

import sys
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitted_calls import PLAIN, ran, tree, unit, wrapping
from profiles import examples
from rows import each_row
from shardwise.errors import InputError
from shardwise.fsdp.emit import bottom_up, python_code
from shardwise.fsdp.plan import Setting
from shardwise.fsdp.verify import verify


def test_outer_units_come_after_all_that_is_inside():
    """Also where a group takes a part from each of two units."""
    units = [unit("a"), unit("b"), unit("a.x", "b.x"), unit("a.x.y")]
    assert [u.modules for u in bottom_up(units)] == [("a.x.y",), ("a.x", "b.x"), ("a",), ("b",)]


@each_row(
    ("units", "problem"),
    [
        ([unit()], "needs modules"),
        ([unit("")], "below the root"),
        ([unit("a..b")], "below the root"),
        ([unit("a"), unit("b", "a")], "more than one unit"),
        ([unit("a", "b.x"), unit("b", "a.x")], "in turn"),
    ],
)
def test_what_no_call_can_say_is_refused(units, problem):
    with pytest.raises(InputError, match=problem):
        bottom_up(units)


def test_nothing_is_checkpointed_by_the_name_of_the_root():
    with pytest.raises(InputError, match="checkpointed"):
        python_code(wrapping(checkpointed=[""]), PLAIN, model_name="m")


@each_row(
    ("stored", "compute", "reduce", "policy"),
    [
        ("bf16", "bf16", "bf16", None),
        ("fp32", "bf16", "bf16", {"param_dtype": "bfloat16"}),
        ("bf16", "bf16", "fp32", {"reduce_dtype": "float32"}),
        ("fp32", "fp16", "fp32", {"param_dtype": "float16", "reduce_dtype": "float32"}),
    ],
)
def test_only_what_is_cast_is_in_the_policy(stored, compute, reduce, policy):
    setting = Setting(shards=2, stored_dtype=stored, compute_dtype=compute, reduce_dtype=reduce)
    told = ran(python_code(wrapping(), setting, model_name="m"), tree([]))
    assert told["policy"] == (None if policy is None else (policy,))


def test_the_mesh_can_be_given():
    code = python_code(wrapping(), PLAIN, model_name="m", device="cpu")
    assert ran(code, tree([]))["mesh"] == ("cpu", (8,), ("shard",))
    assert ran(code, tree([]), mesh="mine")["mesh"] == "mine"


def test_checkpointed_names_are_noted_once():
    code = python_code(wrapping(checkpointed=["a", "a"]), PLAIN, model_name="m")
    assert code.count("recomputed.add(") == 1


@st.composite
def wrapped_trees(draw):
    """A model with lists in lists, and units on any of its modules or on neighbours, in order."""
    names, units = [], []
    keyed = set()

    def grow(path, depth):
        listed = draw(st.booleans()) and depth > 0
        count = draw(st.integers(1, 4))
        named = list(map(str, range(count))) if listed else ["x", "mlp", "b-c", "for"][:count]
        if listed and draw(st.booleans()):
            keyed.add(".".join(path))
        children = [(*path, name) for name in named]
        at = 0
        while at < len(children):
            width = draw(st.sampled_from([1, 1, 1, 2, 3]))
            group = children[at : at + width]
            at += width
            if draw(st.booleans()):
                reshard = draw(st.integers(0, 4)) > 0
                units.append(unit(*(".".join(c) for c in group), reshard=reshard))
            for child in group:
                names.append(".".join(child))
                if depth < 3 and draw(st.booleans()):
                    grow(child, depth + 1)

    grow((), 0)
    return names, keyed, units, draw(st.booleans())


@examples(120)
@given(wrapped_trees(), st.data())
def test_the_code_calls_the_units_and_nothing_else(drawn, data):
    """Each unit once, with what it keeps; inner before outer; the root last."""
    names, keyed, units, known = drawn
    recomputed = data.draw(st.lists(st.sampled_from(names), unique=True))
    code = python_code(
        wrapping(*units, checkpointed=recomputed),
        PLAIN,
        model_name="m",
        modules=names if known else (),
        keyed=keyed,
    )
    told = ran(code, tree(names, keyed))
    *calls, root = told["calls"]
    assert root == (("",), True)
    assert sorted(calls) == sorted((u.modules, u.reshard_after_forward) for u in units)
    assert told.get("checkpointed", set()) == set(recomputed)
    for place, (outer, _) in enumerate(calls):
        for inner, _ in calls[place + 1 :]:
            assert not any(i.startswith(f"{o}.") for i in inner for o in outer)


@examples(50)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["", ".mlp"]))
def test_groups_in_loops_call_what_was_planned(groups, width, part):
    units = [unit(*(f"layers.{g * width + i}{part}" for i in range(width))) for g in range(groups)]
    names = [name for u in units for name in u.modules]
    told = ran(python_code(wrapping(*units), PLAIN, model_name="m"), tree(names))
    assert [call for call, _ in told["calls"][:-1]] == [u.modules for u in units]


def test_checking_needs_torch_and_says_so():
    problem = r"pip install 'shardwise\[torch\]'"
    with patch.dict(sys.modules, {"torch": None}), pytest.raises(InputError, match=problem):
        verify(None, wrapping(), PLAIN, batch=1, seq_len=1)

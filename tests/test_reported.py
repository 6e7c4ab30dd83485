"""What runs and was reported broken, slower or never used: warned of, and avoided by searches."""

from typing import Any

from rows import each_row
from shardwise import Model, Stack, System, catalog, estimate, explain, search
from shardwise.planning.search.space import Space
from shardwise.report.tables.advice import avoided_lines

Fields = dict[str, Any]
EXPERTS = "qwen3-30b-a3b"
BRIDGE, TITAN = "megatron-bridge-2026", "torchtitan-2025"
OVERLAP: Fields = {"expert_overlap": True, "zero": 1}


@each_row(
    ("stack", "on", "fields", "changes", "said"),
    [
        (BRIDGE, "b200-sxm", {"dispatcher": "deepep", "ep": 16}, {"ep": 8}, "PR 6020, DeepEP"),
        (BRIDGE, "b300-sxm", {"dispatcher": "deepep", "ep": 16}, {"ep": 8}, "PR 6020, DeepEP"),
        (TITAN, "b200-sxm", {"dispatcher": "deepep", "ep": 16}, {"ep": 8}, "PR 6020, DeepEP"),
        (BRIDGE, "b200-sxm", {"dispatcher": "all_to_all", "ep": 16}, {"ep": 8}, "PR 6020, 6043"),
        (BRIDGE, "gb200-nvl72", {"ep": 128}, {"ep": 64}, "PR 6043, DeepEP issue 590"),
        (BRIDGE, "b300-sxm", {"ep": 16}, {"dispatcher": "all_to_all"}, "DeepEP issue 590"),
        (BRIDGE, "h100-sxm", {"zero": 2}, {"zero": 1}, "optim_grads"),
        (BRIDGE, "h100-sxm", {"zero": 2}, {"zero": 3}, "optim_grads"),
        (BRIDGE, "h100-sxm", OVERLAP | {"tp": 2}, {"tp": 1}, "arguments.py:1466"),
        (BRIDGE, "h100-sxm", OVERLAP | {"cp": 2}, {"cp": 1}, "arguments.py:1466"),
        (BRIDGE, "b200-sxm", OVERLAP, {"cuda_graphs": "partial"}, "PR 1760"),
        (BRIDGE, "b200-sxm", OVERLAP, {"expert_overlap": False}, "PR 1760"),
        (BRIDGE, "h100-sxm", {"zero": 3, "cuda_graphs": "partial"}, {"zero": 1}, "PR 4232"),
        (BRIDGE, "h100-sxm", {"zero": 3, "cuda_graphs": "full"}, {"zero": 1}, "PR 7075"),
    ],
)
def test_an_estimate_warns_of_what_was_reported(
    stack: str, on: str, fields: Fields, changes: Fields, said: str
) -> None:
    """It names source and date; a change of one field is not reported."""
    fields = {"gpus": 128, "gbs": 512, "ep": 8, "stack": stack} | fields
    dispatcher = {} if stack == TITAN or "dispatcher" in fields else {"dispatcher": "hybridep"}
    software, other = (
        estimate(EXPERTS, on, dispatcher | some).software for some in (fields, fields | changes)
    )
    assert [one for one in software.reported if said in one and ", 202" in one]
    assert not software.checked
    assert not [one for one in other.reported if said in one]
    assert other.checked == (not other.reported)


def test_wide_groups_are_allowed_on_hopper_and_in_racks() -> None:
    """Groups of 64 ranks were measured on both."""
    fields: Fields = {"gpus": 128, "gbs": 512, "ep": 64, "zero": 1}
    for on, dispatcher in (("h100-sxm", "deepep"), ("gb200-nvl72", "hybridep")):
        assert estimate(EXPERTS, on, fields | {"dispatcher": dispatcher}).software.checked
    assert not estimate(EXPERTS, "b200-sxm", fields).software.checked


def test_graphs_of_the_stack_count() -> None:
    """Overlapped experts are fine on B200 where the stack captures layers by itself."""
    captures: Fields = {"base": BRIDGE, "cuda_graphs": "partial"}
    fields: Fields = OVERLAP | {"gpus": 8, "gbs": 64, "ep": 8}
    assert not estimate(EXPERTS, "b200-sxm", fields | {"stack": captures}).software.reported
    assert estimate(EXPERTS, "b200-sxm", fields).software.reported


@each_row(
    ("on", "named", "allowed"),
    [
        ("b200-sxm", {}, {"ep": {1, 2, 4, 8}, "expert_overlap": {False, True}, "zero": {1, 3}}),
        ("b200-sxm", {"ep": [8, 16]}, {"ep": {8, 16}, "dispatcher": {"all_to_all"}}),
        ("b200-sxm", {"ep": 16, "dispatcher": "deepep"}, {"ep": {16}, "dispatcher": {"deepep"}}),
        ("b200-sxm", {"expert_overlap": "all"}, {"expert_overlap": {False, True}}),
        ("b200-sxm", {"zero": [1, 2]}, {"zero": {1, 2}}),
        ("b200-sxm", {"scope": "full", "zero": [1, 2]}, {"ep": {1, 2, 4, 8, 16}}),
        ("h100-sxm", {"ep": "all"}, {"ep": {1, 2, 4, 8, 16}, "zero": {1, 3}}),
    ],
)
def test_a_search_avoids_what_was_reported_unless_it_is_named(
    on: str, named: Fields, allowed: dict[str, set[object]]
) -> None:
    """It tries the rest; a number or a word that the space names is tried."""
    space: Fields = {"gpus": 16, "gbs": 32, "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1}
    space |= {"recompute": "none", "seq_len": 512} | named
    fields = tuple(allowed)
    found = search(EXPERTS, on, space, axes=fields, top=1, counts=True)
    tried = {field: {cell.values[field] for cell in found.cells} for field in fields}
    rows = {field: tried[field] for field in fields if field != "dispatcher"}
    assert rows == {field: some for field, some in allowed.items() if field != "dispatcher"}
    if "dispatcher" in allowed:
        wide = [c.values["dispatcher"] for c in found.cells if c.values["ep"] == max(tried["ep"])]
        assert set(wide) == allowed["dispatcher"]
    reported = found.rejected.get("reported", 0)
    assert (reported > 0) == bool(found.avoided) == ("scope" not in named)
    assert ("avoided" in repr(found)) == bool(found.avoided)
    assert ("avoided" in "".join(avoided_lines(found, "how"))) == bool(found.avoided)


def test_what_a_search_avoids_has_reasons_that_name_source_and_date() -> None:
    """Dense models have no experts, so nothing of theirs is avoided."""
    model, system = Model.load(EXPERTS), System.load("b200-sxm")
    avoided = {one.named: one for one in Space().avoided(model, system)}
    fields = {("dispatcher",), ("ep",), ("zero",), ("expert_overlap",), ("zero", "cuda_graphs")}
    assert avoided.keys() == fields
    assert ("ep",) not in {one.named for one in Space(ep=16).avoided(model, system)}
    assert not Space().avoided(Model.load("llama3-8b"), system)
    for wide in (Space(scope="full"), Space(any_software=True)):
        assert wide.named is None
        assert not wide.avoided(model, system)


def test_an_explanation_says_that_the_space_avoids_a_strategy() -> None:
    """It is legal, and no plan of the space."""
    mine: Fields = {"dispatcher": "deepep", "ep": 16, "zero": 1, "recompute": "none"}
    space: Fields = {"tp": 1, "pp": 1, "cp": 1, "mbs": 1, "zero": 1, "recompute": "none"}
    own: Fields = {"gpus": 16, "gbs": 32, "seq_len": 512}
    found = explain(EXPERTS, "b200-sxm", space, mine, **own)
    assert found.legal
    assert not found.in_space
    assert found.rank is None
    assert [one for one in found.avoided if "DeepEP issue 622" in one]
    named = explain(EXPERTS, "b200-sxm", space | {"ep": 16, "dispatcher": "deepep"}, mine, **own)
    assert named.in_space
    assert not named.avoided


@each_row("stack", catalog.names("stacks"))
def test_reports_are_short_and_dated(stack: str) -> None:
    """A reason fits in a line, and no date is before the first library of dispatchers."""
    bound = Stack.load(stack).capabilities
    for one in bound.reported.values() if bound is not None else ():
        if one is not None:
            assert len(str(one)) <= 160
            assert "2025-02" <= one.date <= "2026-12"

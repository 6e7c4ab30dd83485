"""Moved predictions are found and listed, in two files of answers and in the stored predictions."""

import math
import sys
from pathlib import Path

import pytest

import prediction_gate
from drawn_questions import Drawing, pairs
from moved import Case, report
from shardwise import catalog
from shardwise.config.strategy_fields import COLUMNS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import golden

PARTS = prediction_gate.stored()


def cases(old, new, **settings):
    """Two questions with one pair of answers."""
    return [Case(name=f"case {n}", settings=settings | {"n": n}, old=old, new=new) for n in "ab"]


def test_a_moved_figure_is_listed_with_its_change():
    """In a list inside a record, bit for bit; nothing if nothing moved."""
    old = {"code": 0, "out": {"step_time_s": 2.0, "stages": [{"busy_s": 1.0}, {"busy_s": 1.0}]}}
    new = {"code": 0, "out": {"step_time_s": 2.5, "stages": [{"busy_s": 1.0}, {"busy_s": 1.5}]}}
    assert report(cases(old, new, tp=2)) == [
        "2 moved in stages, step_time_s; all have tp=2",
        "  case a: tp=2 n=a",
        "  case b: tp=2 n=b",
        "    out.step_time_s in 2: 2.0 -> 2.5  +25 %  (case a)",
        "    out.stages[].busy_s in 2: 1.0 -> 1.5  +50 %  (case a)",
    ]
    assert report(cases(old, old)) == []
    last = {"code": 0, "out": {"step_time_s": math.nextafter(2.0, 3)}}
    first = {"code": 0, "out": {"step_time_s": 2.0}}
    assert len(report(cases(first, last))) == 4
    assert report(cases(first, last), rtol=1e-9) == []


def test_what_turned_from_answered_to_refused_is_listed_first_and_with_its_reason():
    """Then what is answered now; a refusal that stays is compared as text."""
    answered, refused = {"code": 0, "out": {}, "err": ""}, {"code": 2, "out": "", "err": "tp: no"}
    both = cases(answered, refused) + cases(refused, answered)
    lines = [line for line in report(both) if not line.startswith(" ")]
    assert lines == ["2 refused now: tp: no", "2 answered now: tp: no"]
    assert report(cases(refused, refused | {"err": "tp: never"}))[-1].endswith(
        "tp: no -> tp: never  (case a)"
    )


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("a\nb", "a\nc", "out in 2: b -> c"),
        ("a", "a\nb", "out in 2: (missing) -> b"),
        ([1], [1, 2], "out.length in 2: 1 -> 2  +100 %"),
        ({"k": None}, {"k": 0.0}, "out.k in 2: None -> 0.0"),
        ({}, {"k": 1}, "out.k in 2: (missing) -> 1"),
        ({"k": True}, {"k": 1}, "out.k in 2: True -> 1"),
    ],
)
def test_whatever_differs_is_listed(old, new, line):
    """Of a text the first line, of lists their lengths; types, too."""
    found = report(cases({"code": 0, "out": old}, {"code": 0, "out": new}))
    assert found[-1].strip() == f"{line}  (case a)"


def test_predictions_are_those_stored():
    """Of some models and systems; `.ci/run` compares all."""
    lines = prediction_gate.moved(PARTS[::22])
    assert not lines, "\n".join(lines)


def test_the_gate_sees_what_moved():
    """A step time by more than 1e-9 of it, and what is refused now or was refused."""
    rows = [{"gpus": 8, "gbs": 8}, {"gpus": 8, "gbs": 8, "tp": 8}, {"gpus": 8, "tp": 3, "gbs": 8}]
    pair = {"model": "llama3.2-1b", "system": "h100-sxm"}
    answers = prediction_gate.predicted(**pair, rows=rows)
    assert [one["code"] for one in answers] == [0, 0, 2]
    first, other = ([one["step_time_s"], one["memory_bytes"]] for one in answers[:2])
    part, now = pair | {"rows": rows}, [first, other, None]
    assert prediction_gate.moved([part | {"figures": now}]) == []
    close = [first[0] * (1 + 1e-10), first[1]]
    assert prediction_gate.moved([part | {"figures": [close, other, None]}]) == []
    far = [first[0] * 1.01, first[1]]
    lines = prediction_gate.moved([part | {"figures": [far, None, other]}])
    assert [line for line in lines if not line.startswith(" ")] == [
        "1 refused now: strategy: gpus: 8: must be a multiple of tp 3 x cp 1 x pp 1 = 3",
        "1 answered now: ",
        "1 moved in step_time_s",
        prediction_gate.ACCEPT,
    ]
    assert "-0.99 %" in lines[-2]
    gone = part | {"system": "h99", "figures": now, "rows": [*rows[:2], {"width": 1}]}
    assert prediction_gate.moved([gone])[0].startswith("2 refused now: system: 'h99'")


def test_every_field_stack_model_and_system_is_drawn():
    """More than half of the stored predictions are answers."""
    found = pairs(2)
    assert {model for model, _ in found} == {*catalog.names("models")}
    assert {system for _, system in found} == {*catalog.names("systems")}
    some = [
        row
        for model, system in found[:40]
        for row, _ in zip(Drawing(model=model, system=system).rows(), range(100), strict=False)
    ]
    assert {name for row in some for name in row} | {"gpus"} == {*COLUMNS}
    assert {row["stack"] for row in some if row.get("stack")} == {*catalog.names("stacks")}
    figures = [one for part in PARTS for one in part["figures"]]
    assert len(figures) > 20_000
    assert len(figures) / 2 < sum(one is not None for one in figures) < len(figures)


def test_files_of_answers_are_compared(tmp_path):
    """Each command in a folder of its own, with its files; times and versions left out."""
    row = {"gpus": 8, "tp": 2, "gbs": 16}
    start = "estimate llama3.2-1b h100-sxm --strategy s.json --json"
    entries = [
        golden.question("one", start, {"s.json": row}, **row),
        golden.question("two", start, {"s.json": row | {"tp": 3}}),
        golden.question("three", "export gemms llama3.2-1b h100-sxm --gpus 1 --gbs 8 -o a.csv", {}),
    ]
    old, new = tmp_path / "old.gz", tmp_path / "new.gz"
    golden.write(old, golden.store(old, entries))
    golden.write(new, old)
    assert golden.compare(old, new) == []
    answers = [one["answer"] for one in golden.read(new)]
    assert [one["code"] for one in answers] == [0, 2, 0]
    assert "tp" in answers[1]["err"]
    assert answers[2]["files"]["a.csv"].startswith("part,operation")
    moved = golden.read(new)
    moved[0]["answer"]["out"]["time_s"]["forward"] *= 1 + 2**-52
    moved[1]["answer"]["code"] = 0
    golden.store(new, moved[:2])
    lines = golden.compare(old, new)
    assert lines[0].startswith("1 answered now: error: --strategy: gpus: 8: must")
    assert "1 moved in time_s" in lines
    assert lines[-1].startswith("1 questions are in one file only")

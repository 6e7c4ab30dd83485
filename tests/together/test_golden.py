"""Moved predictions are found and listed, in two files of answers and in the stored predictions."""

import math
import sys
from itertools import islice
from pathlib import Path

import pytest

import prediction_gate
from drawn_questions import drawn_rows, pairs
from moved import Case, report
from rows import each_row
from shardwise import catalog
from shardwise.config.strategy_fields import COLUMNS

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import golden

PARTS = prediction_gate.stored()


def cases(old, new, **settings):
    """Two questions with one pair of answers."""
    return [Case(name=f"case {n}", settings=settings | {"n": n}, old=old, new=new) for n in "ab"]


def headings(lines):
    """Lines that start a group."""
    return [line for line in lines if not line.startswith(" ")]


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
    first, last = ({"code": 0, "out": one} for one in (2.0, math.nextafter(2.0, 3)))
    assert headings(report(cases(first, last))) == ["2 moved in out"]
    assert report(cases(first, last), rtol=1e-9) == []


def test_what_turned_from_answered_to_refused_is_listed_first():
    """With its reason; then what is answered now."""
    answered, refused = {"code": 0, "err": ""}, {"code": 2, "err": "tp: no\npp: no"}
    both = cases(refused, answered) + cases(answered, refused)
    assert headings(report(both)) == ["2 refused now: tp: no", "2 answered now: tp: no"]


@each_row(
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
    lines = prediction_gate.moved(PARTS[::44])
    assert not lines, "\n".join(lines)


def test_the_gate_sees_what_moved():
    """A step time by more than 1e-9 of it, and what is refused now or was refused."""
    rows = [{"gpus": 8, "gbs": 8}, {"gpus": 8, "gbs": 8, "tp": 8}, {"gpus": 8, "tp": 3, "gbs": 8}]
    part = {"model": "llama3.2-1b", "system": "h100-sxm", "rows": rows}
    answers = prediction_gate.predicted(**part)
    assert [one["code"] for one in answers] == [0, 0, 2]
    (step, memory), other = ([one["step_time_s"], one["memory_bytes"]] for one in answers[:2])

    def moved(*figures, **changed):
        return headings(prediction_gate.moved([part | {"figures": figures} | changed]))

    assert moved([step * (1 + 1e-10), memory], other, None) == []
    why = "refused now: strategy: tp: 3: must divide gpus 8"
    found = moved([step * 1.01, memory], None, other)
    assert found == [
        f"1 {why}",
        "1 answered now: ",
        "1 moved in step_time_s",
        prediction_gate.ACCEPT,
    ]
    unknown = moved([step, memory], other, None, system="h99")
    assert unknown[0].startswith("2 refused now: system: 'h99'")


def test_every_field_stack_model_and_system_is_drawn():
    """More than half of the stored predictions are answers."""
    found = pairs(2)
    assert {model for model, _ in found} == {*catalog.names("models")}
    assert {system for _, system in found} == {*catalog.names("systems")}
    some = [row for pair in found[:20] for row in islice(drawn_rows(*pair), 100)]
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
        golden.question(
            "three", "export gemms megatron-126m h100-sxm --gpus 1 --gbs 8 -o a.csv", {}
        ),
    ]
    old, new = tmp_path / "old.gz", tmp_path / "new.gz"
    golden.write(old, golden.store(old, entries))
    golden.write(new, old)
    assert golden.compare(old, new) == []
    moved = golden.read(new)
    assert [one["answer"]["code"] for one in moved] == [0, 2, 0]
    assert moved[2]["answer"]["files"]["a.csv"].startswith("part,operation")
    moved[0]["answer"]["out"]["time_s"]["forward"] *= 1 + 2**-52
    moved[1]["answer"]["code"] = 0
    first, second = headings(golden.compare(old, golden.store(new, moved)))
    assert first.startswith("1 answered now: error: --strategy: tp: 3: must")
    assert second == "1 moved in time_s"
    with pytest.raises(SystemExit, match="--like"):
        golden.compare(old, golden.store(new, moved[:2]))

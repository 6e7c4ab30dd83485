"""Errors on the shipped runs get no worse, source by source; and no figure is keyed by one of them.

`data/measured_gate.yaml` has the errors by grade and source as they were when it was written last,
and why it was written each time. Predictions of all runs take half a minute: .ci/run compares them,
too. To update the file, with the reason:

    SHARDWISE_UPDATE_GATE="reason" pytest -m "" tests/test_measured_gate.py
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest
import yaml

from measured_samples import predicted, refused
from rows import each_row
from shardwise import catalog
from shardwise.config import files
from shardwise.validate.measured.runs import load_runs
from shardwise.validate.measured.scoreboard import scoreboard
from shardwise.validate.measured.statistics import summary

GATE = Path(__file__).parent / "data" / "measured_gate.yaml"
GRADES = ("A", "B")
LEAST_RUNS = 3
# Points that the mean size of a source's errors may grow by.
SLACK = 0.3
HOW = (
    'If this is meant, write it down with its reason: SHARDWISE_UPDATE_GATE="reason" '
    'pytest -m "" tests/test_measured_gate.py'
)
FOLDERS = ("systems", "stacks")


def figures_of(board) -> dict[str, dict[str, dict[str, float]]]:
    """By grade and source: runs with an error, mean size and mean of their errors in percent."""
    found = {}
    for grade in GRADES:
        rows = [row for row in board.rows if row.grade == grade and row.error is not None]
        counts = Counter(row.source for row in rows)
        found[grade] = {
            source: _figures([row.error for row in rows if row.source == source])
            for source in sorted(counts)
            if counts[source] >= LEAST_RUNS
        }
    return found


def _figures(errors) -> dict[str, float]:
    score = summary(np.array(errors))
    return {"n": score.n, "mape": round(100 * score.mape, 2), "bias": round(100 * score.bias, 2)}


def worse(gate, found) -> list[str]:
    """What is worse than the gate says, a sentence each."""
    told = []
    for grade, sources in gate.items():
        for source, was in sources.items():
            now = found[grade].get(source, {"n": 0, "mape": 0.0})
            if now["n"] < was["n"]:
                told.append(f"{source}, grade {grade}: {now['n']} predicted, {was['n']} before")
            if now["mape"] > was["mape"] + SLACK:
                told.append(
                    f"{source}, grade {grade}: mean error {now['mape']} %, {was['mape']} before"
                )
    return told


def missing(gate, found) -> list[str]:
    """Sources that the gate does not have yet."""
    return [
        f"{source}, grade {grade}: not in the gate"
        for grade, sources in found.items()
        for source in sources
        if source not in gate.get(grade, {})
    ]


def text_of(gate) -> str:
    """The file: each change and each source on a line."""
    changes = yaml.safe_dump({"changes": gate["changes"]}, width=1000)
    lines = []
    for path in PATHS:
        lines.append(f"{path}:\n")
        for grade, sources in gate[path].items():
            inside = yaml.safe_dump(sources, sort_keys=False, default_flow_style=None, width=1000)
            lines += [f"  {grade}:\n", indent(inside, "    ")]
    return changes + "".join(lines)


PATHS = ("percent", "as_typed")
"""Errors with the stacks of the runs, and with the software as the source of each run names it."""


@pytest.mark.nightly
def test_no_source_got_worse(predictions, typed_predictions):
    """Neither its mean error nor the number of its runs that are predicted, on both paths."""
    boards = map(scoreboard, (predictions, typed_predictions))
    found = dict(zip(PATHS, map(figures_of, boards), strict=True))
    kept = yaml.safe_load(GATE.read_text(encoding="utf-8"))
    reason = os.environ.get("SHARDWISE_UPDATE_GATE", "").strip()
    if reason:
        kept = {"changes": [*kept["changes"], reason], **found}
        GATE.write_text(text_of(kept), encoding="utf-8")
    faults = [
        f"{path}: {fault}"
        for path in PATHS
        for fault in worse(kept[path], found[path]) + missing(kept[path], found[path])
    ]
    assert not faults, "\n".join([*faults, HOW])


def test_the_gate_sees_what_is_worse():
    """By hand: 10 % and 20 % of grade A, one run too few of grade B; refused runs do not count."""
    rows = [predicted(name, 1.0, told) for name, told in (("a", 1.1), ("b", 0.8), ("c", 1.3))]
    rows += [predicted(name, 1.0, 1.1, grade="B") for name in "de"]
    rows += [refused("f", "why"), predicted("g", None, 9.0), predicted("h", 1.0, 9.0, grade="C")]
    now = figures_of(scoreboard(rows))
    assert now == {"A": {"paper": {"n": 3, "mape": 20.0, "bias": 6.67}}, "B": {}}

    def gate(**was):
        return {"A": {"paper": {"n": 3, "mape": 20.0, "bias": 0.0} | was}, "B": {}}

    assert worse(gate(), now) == worse(gate(mape=19.7, n=2), now) == []
    assert worse(gate(mape=19.6), now) == ["paper, grade A: mean error 20.0 %, 19.6 before"]
    assert worse(gate(n=4), now) == ["paper, grade A: 3 predicted, 4 before"]
    gone = {"A": {}, "B": {"logs": {"n": 3, "mape": 1.0, "bias": 1.0}}}
    assert worse(gone, now) == ["logs, grade B: 0 predicted, 3 before"]
    assert missing(gone, now) == ["paper, grade A: not in the gate"]


def test_the_file_is_written_a_line_for_each_change_and_source():
    """And read as it was."""
    figures = {"n": 3, "mape": 1.0, "bias": -1.0}
    paths = {"percent": {"A": {"logs (x)": figures}, "B": {}}, "as_typed": {"A": {}, "B": {}}}
    gate = {"changes": ["a new fit: of B200"], **paths}
    assert yaml.safe_load(text_of(gate)) == gate
    assert text_of(gate).splitlines()[2:5] == [
        "percent:", "  A:", "    logs (x): {n: 3, mape: 1.0, bias: -1.0}",
    ]  # fmt: skip


def test_every_change_of_the_gate_has_a_reason():
    """None of them a date or a bare number."""
    changes = yaml.safe_load(GATE.read_text(encoding="utf-8"))["changes"]
    assert changes
    assert all(len(reason.split()) > 2 for reason in changes)
    assert not any(re.search(r"\b20\d\d-\d\d", reason) for reason in changes)


def _records(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in catalog.names(folder):
        path = catalog.find(folder, name)
        assert path is not None
        yield f"{folder}/{name}", dict(files.read_mapping(path))


def _keys_and_texts(value: object) -> Iterator[tuple[str, bool]]:
    """Keys, and with False the texts of values, of all that a record has but names and prose."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield str(key), True
            if key == "sources":
                yield from ((str(field), True) for field in inside)
            elif key not in ("name", "description"):
                yield from _keys_and_texts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _keys_and_texts(inside)
    elif isinstance(value, str):
        yield value, False


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def _families() -> set[str]:
    """What models are called before the first digit or dash, of the catalog and of all rows."""
    names = [*catalog.names("models"), *(run.model.name for run in load_runs() if run.model)]
    first = {found[0].lower() for name in names if (found := re.match(r"[A-Za-z]{3,}", name))}
    return first - {"step"}  # of Step 3.7, and of a training step


def keyed(record: Mapping[str, Any]) -> list[str]:
    """Keys that name a model, and keys or values that name a row or a study."""
    families = _families()
    whole = {run.id.lower() for run in load_runs()} | {run.source.lower() for run in load_runs()}
    return [
        text
        for text, is_key in _keys_and_texts(record)
        if (is_key and families & _words(text)) or text.lower() in whole
    ]


@each_row("folder", FOLDERS)
def test_no_figure_is_keyed_by_a_model_a_row_or_a_study(folder):
    """The texts of sources may cite them."""
    found = {name: keyed(record) for name, record in _records(folder)}
    assert len(found) > 10
    assert not {name: texts for name, texts in found.items() if texts}


def test_keys_by_models_rows_and_studies_are_seen():
    """In keys at any depth and in the fields of sources, not in their texts or in prose."""
    run = load_runs()[0]
    assert {"gpt", "llama", "deepseek", "mixtral"} <= _families()
    assert keyed({"a": [{"llama3_70b": 1.0}], "name": "deepseek-2024"}) == ["llama3_70b"]
    assert keyed({"a": run.id, "b": {run.source: 1}}) == [run.id, run.source]
    assert keyed({"sources": {"gpt.speed": {"text": "x"}}}) == ["gpt.speed"]
    assert keyed({"sources": {"a": {"text": run.id}}, "description": run.id}) == []

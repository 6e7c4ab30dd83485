"""Saved results are validated when they are read: a damaged one is a line for each fault."""

import json
import math

import pytest

from rows import each_row
from shardwise import Estimate, InputError, SearchResult, SweepResult, estimate, search, sweep
from shardwise.predecessors.calculon.charts import check
from shardwise.report.search_csv import read_result

pytestmark = pytest.mark.any_software

MODEL, SYSTEM = "llama3-8b", "h100-sxm"
SPACE = {
    "gpus": [16, 32],
    "gbs": 32,
    "seq_len": 2048,
    "tp": [2, 4],
    "pp": [1, 2],
    "vpp": 1,
    "zero": 1,
    "placement": "tp-cp-dp-pp",
    "tp_overlap": "stack",
    "dp_overlap": True,
    "offload_optimizer": False,
}
BAD = (None, "text", -1, 1.5, True, [], {}, math.inf, 10**30, [1], {"a": 1})
"""What stands in place of a value of a damaged file; in addition it may be missing."""


@pytest.fixture(scope="module")
def results():
    """One of each kind, as `--json` prints it."""
    vary = {"inner.bandwidth": ["0.5x", "1x"]}
    found = search(MODEL, SYSTEM, SPACE, top=2, pareto="memory", axes=("tp", "pp"))
    return {
        "estimate": estimate(MODEL, SYSTEM, {"gpus": 16, "tp": 4, "gbs": 32}).to_dict(),
        "search": found.to_dict(),
        "sweep": sweep(MODEL, SYSTEM, SPACE, vary=vary, top=1, sensitivity=True).to_dict(),
    }


def places(value, at=()):
    """Paths of all values of a result; of lists, of the first item."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    if isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(data, path, *value):
    """A copy of a result with another value, or none, at a place."""
    copy = json.loads(json.dumps(data))
    node = copy
    for key in path[:-1]:
        node = node[key]
    if value:
        node[path[-1]] = value[0]
    else:
        del node[path[-1]]
    return copy


def test_what_was_written_is_read_back(results):
    """Equal, with types of its own."""
    for name, kind in (("estimate", Estimate), ("search", SearchResult), ("sweep", SweepResult)):
        found = read_result(results[name], "file")
        assert isinstance(found, kind)
        assert found.to_dict() == results[name]


@each_row(
    ("name", "path", "value", "problem"),
    [
        (
            "search",
            "best 0 strategy ep",
            ["x"],
            "best[0].strategy.ep: 'x': must be a whole number",
        ),
        (
            "search",
            "best 0 strategy ep",
            [True],
            "best[0].strategy.ep: true: must be a number",
        ),
        ("search", "best 0 strategy dp", [None], "best[0].strategy.dp: is missing; was it written"),
        ("search", "best 0 mfu", [True], "best[0].mfu: true: must be a number"),
        ("search", "best 0 mfu", ["0.5"], "best[0].mfu: '0.5': must be a number"),
        ("search", "best 0 mfu", [math.nan], "best[0].mfu: nan: must be a finite number"),
        ("search", "best 0", [3], "best[0]: 3: must be a mapping"),
        (
            "search",
            "pareto 0 step_time_s",
            [0.0],
            "pareto[0].step_time_s: 0.0: must be a time",
        ),
        ("search", "feasible", [], "feasible: is missing; was it written by another version?"),
        (
            "sweep",
            "points 0 best 0 strategy dp",
            [],
            "points[0].best[0].strategy.dp: is missing",
        ),
        (
            "sweep",
            "points 0 best 0 time_s bubble",
            [],
            "points[0].best[0].time_s.bubble: is",
        ),
        ("sweep", "points 0 at", [[7]], "points[0].at: [7]: must be a position on each axis"),
        ("sweep", "points 0 at", [[]], "points[0].at: []: must be a position on each axis"),
        ("sweep", "points 0 system", ["b200"], "points[0].system: 'b200': allowed: h100-sxm"),
        ("sweep", "points 0 values", [{}], "points[0].values: {}: must have a value for each axis"),
        ("estimate", "strategy tp", [0], "strategy.tp: 0: must be at least 1"),
        ("estimate", "stages", [[]], "stages: []: must have at least 1 item"),
        ("estimate", "karma", [1], "karma: unknown field; was it written by another version?"),
    ],
)
def test_a_damaged_result_is_one_line(results, name, path, value, problem):
    """That names the file, the field, the value and what it must be."""
    at = tuple(int(key) if key.isdecimal() else key for key in path.split())
    with pytest.raises(InputError) as error:
        read_result(changed(results[name], at, *value), "file")
    assert str(error.value).splitlines()[0].startswith(f"file: {problem}")


def test_fields_that_are_newer_than_a_result_have_their_defaults(results):
    """A version that did not have them did as they say."""
    (found,) = read_result(
        changed(results["search"], ("best", 0, "strategy", "lora_rank")), "x"
    ).best[:1]
    assert found.strategy["lora_rank"] is None


@pytest.mark.parametrize("name", ["estimate", "search", "sweep"])
def test_no_damage_ends_in_a_traceback(results, name, shardwise, tmp_path):
    """Each place in turn with another value each time: a table, or a line for each fault."""
    file = tmp_path / "result.json"
    paths = [path for path in places(results[name]) if path[0] != "provenance"]
    refused = 0
    for index, path in enumerate(paths[:: max(1, len(paths) // 60)]):
        value = (*BAD, ...)[index % (len(BAD) + 1)]
        damaged = changed(results[name], path, *(() if value is ... else (value,)))
        file.write_text(json.dumps(damaged))
        code, _, err = shardwise("convert", file)
        assert code in (0, 2), path
        assert all(line.startswith("error: ") for line in err.splitlines()), path
        refused += code
    assert refused


@pytest.mark.nightly
@pytest.mark.parametrize("ending", ["csv", "html"])
@pytest.mark.parametrize("name", ["search", "sweep"])
def test_no_damage_ends_in_a_traceback_at_any_place(results, name, ending, shardwise, tmp_path):
    """Tables and charts, every place."""
    file = tmp_path / "result.json"
    for index, path in enumerate(places(results[name])):
        value = BAD[index % len(BAD)]
        file.write_text(json.dumps(changed(results[name], path, value)))
        assert shardwise("convert", file, tmp_path / f"out.{ending}")[0] in (0, 2), path


@each_row(
    ("entry", "problem"),
    [
        (1, "best[0]: is a number, not a mapping"),
        ({"stats": {}}, "best[0]: must have execution or config, a mapping"),
        ({"execution": {}, "stats": []}, "best[0]: must have stats, a mapping"),
    ],
)
def test_a_damaged_search_of_another_tool_is_refused(entry, problem):
    """Its entries need an execution and statistics."""
    with pytest.raises(InputError, match=r"^file: ") as error:
        read_result({"candidates": 1, "reference": "calculon", "best": [entry]}, "file")
    assert str(error.value) == f"file: {problem}"


@each_row(
    ("path", "value", "problem"),
    [
        ("axes", [1], "axes: must be a list of text"),
        ("cells", {}, "cells: must be a list"),
        ("cells 1 stats sample_rate", "fast", "cells[1].stats.sample_rate: must be a number"),
        ("cells 1 execution tensor_par", None, "cells[1].execution.tensor_par: must be a number"),
        ("cells 1", 7, "cells[1].execution.tensor_par: must be a number"),
        ("good", None, "good: must be a number"),
    ],
)
def test_a_damaged_heat_map_of_another_tool_is_refused(path, value, problem):
    """Its cells need the fields of the axes and the figures that are shown."""
    stats = {"sample_rate": 1.0, "total_time": 1.0, "proc_mem_tier1_cap_req": 1.0}
    cell = {"execution": {"tensor_par": 1, "pipeline_par": 1}, "stats": stats}
    record = {"axes": ["tensor_par", "pipeline_par"], "cells": [cell] * 3, "good": 3}
    record = json.loads(json.dumps(record | {"candidates": 3, "best": [], "reference": "calculon"}))
    check(record, "file")
    at = tuple(int(key) if key.isdecimal() else key for key in path.split())
    with pytest.raises(InputError) as error:
        check(changed(record, at, value), "file")
    assert str(error.value).splitlines()[0] == f"file: {problem}"

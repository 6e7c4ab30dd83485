"""Numbers that no field can have, in every reader: thousands of digits, 1e400, infinities, NaN."""

import ast
import inspect
import json
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import shardwise
import written_logs
from shardwise import InputError, Model, Space, Strategy, System, estimate_many, sweep, units
from shardwise.launchers.kineto.steps import read_trace
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.logs import read_log
from shardwise.launchers.registry import LAUNCHERS, read_launch
from shardwise.launchers.writing import launch_files
from shardwise.planning.sweep.axes import parse_values

pytestmark = pytest.mark.any_software

HOSTILE = ["9" * 5000, "9" * 400, "9" * 25, "1e400", "-1e400", "nan", "Infinity", "1.2.3", "²", "٣"]
QUANTITIES = [
    units.read_quantity,
    units.parse_memory,
    units.parse_time_span,
    units.parse_money,
    *(lambda text, unit=unit: units.parse_quantity(text, unit) for unit in units.UNITS),
    *(lambda text, unit=unit: parse_values("x", text, unit) for unit in (None, *units.UNITS)),
]


def result_of(call, *arguments):
    """What a call returns, or the error that it may raise."""
    try:
        return call(*arguments)
    except (ValueError, InputError) as error:
        return str(error)


@pytest.mark.parametrize("text", [*HOSTILE, "1e999999999999", "1e-999999999999"])
def test_text_is_a_finite_number_or_none(text):
    """With or without a unit; what is none raises a `ValueError` without words of Python."""
    whole, real = units.read_whole(text), units.read_number(text)
    assert whole is None
    assert real is None or math.isfinite(real)
    for read in QUANTITIES:
        for entered in (text, f"{text} GB", f"{text} GB/s", f"{text}d", f"{text}x"):
            found = result_of(read, entered)
            python = r"int_max_str_digits" if isinstance(found, str) else r"\b(inf|nan)\b"
            assert not re.search(python, repr(found))


def spots(text, most):
    """Places of at most so many numbers in a text, spread over it."""
    found = [match.span() for match in re.finditer(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)]
    return found[:: -(-len(found) // most)]


def damaged(text, most=12):
    """A text with hostile numbers in place of its numbers, one at a time."""
    for place, (start, end) in enumerate(spots(text, most)):
        for number in (HOSTILE[place % 3], HOSTILE[3 + place % 7]):
            yield f"{text[:start]}{number}{text[end:]}"


TRAINERS = [
    function
    for name, function in inspect.getmembers(written_logs, inspect.isgeneratorfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize("write", TRAINERS, ids=lambda write: write.__name__)
def test_logs_are_read_without_damaged_lines(write, tmp_path):
    """Each number of each kind of line in turn: figures stay finite, or the log is refused."""
    path = tmp_path / "run.log"
    for text in damaged("\n".join(write(written_logs.Run(seconds=(1.0, 1.25)))) + "\n", most=60):
        path.write_text(text, encoding="utf-8")
        try:
            log = read_log(path)
        except InputError:
            continue
        columns = (log.seconds, log.tokens_per_s_per_gpu, log.samples_per_s, log.global_batch)
        assert not any(np.isinf(column).any() for column in columns)
        assert all(map(math.isfinite, (*log.memory.values(), *log.totals.values())))


DEGREES = dict.fromkeys(("tp", "cp", "ep", "pp"), 1) | {"dp": 8}


def test_traces_are_read_without_hostile_numbers(tmp_path):
    """In every place of an event; such an event is left out, or the trace refused."""
    path = tmp_path / "trace.json"
    steps = [
        {"ph": "X", "cat": cat, "name": f"ProfilerStep#{n}", "ts": 1000 * n, "dur": 900, "pid": 1}
        for n in (1, 2, 3)
        for cat in ("user_annotation", "gpu_user_annotation")
    ]
    args = {"device": 0, "stream": 7, "Group size": 8, "In msg nelems": 4096}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather", "args": args}
    events = [*steps, *(kernel | {"ts": 1000 * n + 50, "dur": 100, "pid": 0} for n in (1, 2, 3))]
    about = {"rank": 0, "world_size": 8}
    text = json.dumps({"distributedInfo": about, "traceEvents": events})
    assert read_trace(path_with(path, text), DEGREES).steps == 2
    for changed in damaged(text, most=60):
        try:
            found = read_trace(path_with(path, changed), DEGREES)
        except InputError:
            continue
        assert math.isfinite(found.step_s)


def path_with(path, text):
    """A file with a text."""
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_launch_files_are_read_or_refused(launcher, tmp_path):
    """Every format that a launcher writes, with hostile numbers in it."""
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    fields = {"gpus": 16, "global_batch_size": 32, "stack": launcher.stack}
    plan = LaunchPlan(model=model, system=system, strategy=Strategy.load(fields).resolved(model))

    def write(release, ending):
        make = partial(launch_files, launcher, plan, release=release, ending=ending)
        return result_of(make)

    written = [
        (ending, file[0].text)
        for ending in launcher.endings
        for release in launcher.releases
        if isinstance(file := write(release, ending), tuple)
    ]
    assert {ending for ending, _ in written} == set(launcher.endings)
    for ending, whole in written:
        for text in damaged(whole):
            path = path_with(tmp_path / f"launch{ending}", text)
            try:
                found = read_launch(path, model=model, gpus=16)
                Strategy.validated(found.strategy)
            except InputError:
                continue


VALUES = [10**5000, [10**5000, 1], 10**400, math.nan, math.inf, True, [True, True], object()]
VALUES += [pl.DataFrame({"a": [1, 2]}), pl.Series(["x", None]), np.float16(3), np.array(8), b"x"]


@pytest.mark.parametrize("name", sorted(Strategy.model_fields))
def test_columns_are_values_of_their_field_or_refused(name):
    """In Python, as a column, as a field and as values of a space; a message is one line."""
    calls = [
        lambda value: estimate_many(
            "megatron-126m", "h100-sxm", {"gpus": [8, 8], "gbs": 8, name: value}
        ),
        lambda value: Strategy.load({name: value}),
        lambda value: Space.load({name: value}) if name in Space.model_fields else None,
    ]
    for value in VALUES:
        for call in calls:
            try:
                call(value)
            except InputError as error:
                message = str(error)
                for line in message.splitlines():
                    assert line.isprintable()


def test_values_of_an_axis_are_numbers_or_refused():
    """Those of `sweep`, in Python."""
    for value in (10**5000, math.nan, math.inf, [10**400], object()):
        with pytest.raises(InputError, match=r"inner\.bandwidth"):
            sweep(
                "megatron-126m",
                "h100-sxm",
                vary={"inner.bandwidth": value},
                strategy={"gpus": 8, "gbs": 8},
            )


def test_what_patterns_find_in_files_is_read_within_limits():
    """No module of launchers, logs and traces calls `int` or `float` on what a pattern found."""
    folder = Path(shardwise.__file__).parent / "launchers"
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("int", "float")
        and node.args
        and isinstance(node.args[0], ast.Subscript)
        and ast.unparse(node.args[0].value) in ("match", "found", "rate", "overall", "memory")
    ]
    assert found == []

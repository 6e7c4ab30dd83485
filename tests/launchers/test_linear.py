"""Work grows with the size of the input: counted, because times depend on the machine."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import samples
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import ShapeTable
from shardwise.cost import component_costs
from shardwise.errors import InputError
from shardwise.launchers import shell
from shardwise.launchers.kineto.steps import read_trace
from shardwise.launchers.logs import read_log
from shardwise.launchers.shell import parse_script
from shardwise.ops import layer
from shardwise.parallel.pipeline_layout import Contents
from shardwise.parallel.placement import place
from shardwise.validate.measured.runs import read_runs
from written_logs import Run, megatron
from written_traces import Step, write_trace

MORE = 4
"""How many times the input grows; quadratic work would grow by its square."""


def calls_of(function: Callable[[], object]) -> int:
    """How many functions run, of Python and of C."""
    found = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def layers(number: int, **first: Any) -> list[dict[str, Any]]:
    """Layers that all differ."""
    return [samples.layer(count=1, mlp={"ffn": 64 + place} | first) for place in range(number)]


def test_costs_of_operations_are_compared_with_likely_equals(monkeypatch):
    """Layers that differ are not compared with all others before them."""
    compared = 0

    def equal(one: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return same(one, other)

    same = component_costs.equal
    monkeypatch.setattr(component_costs, "equal", equal)
    counts = []
    for number in (10, 10 * MORE):
        compared = 0
        samples.run(samples.model(*layers(number)))
        counts.append(compared)
    assert counts[1] <= (MORE + 1) * counts[0]


def test_equal_blocks_of_layers_are_built_and_timed_once(monkeypatch):
    """Layers that differ in their MLP alone share their attention, and its costs."""
    built = 0

    def operations(*arguments, **options):
        nonlocal built
        built += 1
        return attention(*arguments, **options)

    attention = layer.attention_operations
    monkeypatch.setattr(layer, "attention_operations", operations)
    model, system = samples.model(*layers(4)), samples.system()
    table = Table.of(model, [Strategy(gpus=1, gbs=1, stack=samples.stack()).resolved(model)])
    found = component_costs.operation_costs(model, system, table, place(system, table))
    kinds = [costs for name, _, costs in found if name == "layer"]
    assert built == 1
    for several in zip(*kinds, strict=True):
        varies = several[0].operation.name in {"mlp.up", "mlp.activation", "mlp.down"}
        assert len({id(one) for one in several}) == (len(kinds) if varies else 1)


def table_of_products(number: int) -> Callable[[], object]:
    """A system with a table of so many products."""
    rows = [[1, 64 * (1 + place), 64, 64, 0.5] for place in range(number)]
    sizes = ["batch", "m", "n", "k"]
    fields = {"sizes": sizes, "rows": {"any": rows}, "fallback": 0.25}
    return lambda: ShapeTable.validated(fields)


def trace_of_steps(number: int, folder: Path) -> Callable[[], object]:
    """A trace of PyTorch of so many steps."""
    step = Step(products=0.5, attention=0.1, exposed={"tp": 0.1}, hidden={"dp": 0.2})
    path = write_trace(folder / "trace.json", step, steps=number)
    return lambda: read_trace(path, {"tp": 4, "dp": 8})


def log_of_steps(number: int, folder: Path) -> Callable[[], object]:
    """A log of so many steps."""
    path = folder / "train.log"
    path.write_text("\n".join(megatron(Run(seconds=(2.0,) * number))))
    return lambda: read_log(path)


def measured_runs(number: int, folder: Path) -> Callable[[], object]:
    """So many measured runs in a file."""
    path = folder / "runs.json"
    run = {"model": "llama3-8b", "system": "h100-sxm", "gpus": 8, "tp": 8, "gbs": 8}
    path.write_text(json.dumps({"runs": [run | {"step_time_s": 4.0}] * number}))
    return lambda: read_runs(path)


@pytest.mark.parametrize(
    ("made", "number"),
    [
        (lambda number, _: table_of_products(number), 50),
        (trace_of_steps, 5),
        (log_of_steps, 50),
        (measured_runs, 10),
    ],
    ids=["system tables", "traces", "logs", "measured runs"],
)
def test_files_of_many_rows(tmp_path, made, number):
    """Each row is read once."""
    work = made(number, tmp_path)
    work()  # imports and catalog
    small = calls_of(work)
    large = calls_of(made(number * MORE, tmp_path))
    assert large <= (MORE + 1) * small


def test_contents_of_a_rank_grow_with_its_layers():
    """What follows a component is counted when needed: no table of all components by all."""
    sizes = []
    for number in (100, 100 * MORE):
        order = np.arange(number)[None]
        contents = Contents(order=order, chunks=np.ones((1, 1, number)))
        sizes.append(sum(getattr(contents, name).size for name in Contents.__slots__))
        assert contents.following(number - 1)[0].tolist() == [1] * (number - 1) + [0]
    assert sizes[1] <= MORE * sizes[0]


def test_faults_of_many_layers():
    """A fault in each layer."""

    def validate(number: int) -> None:
        with pytest.raises(InputError) as caught:
            samples.model(*layers(number, ffn=-1))
        assert len(caught.value.faults) == number

    small, large = (calls_of(lambda: validate(number)) for number in (50, 50 * MORE))  # noqa: B023
    assert large <= (MORE + 1) * small


@pytest.mark.parametrize("unit", ['echo "a b\n', "echo a\\b", 'a\\"'])
def test_letters_of_a_word_are_copied_once(monkeypatch, unit):
    """Also of a word that never ends, such as one in an open quote."""
    copied = 0

    def piece(kind: str, text: str, quoted: bool) -> shell.Piece:
        nonlocal copied
        copied += len(text)
        return made(kind, text, quoted)

    made = shell.Piece
    monkeypatch.setattr(shell, "Piece", piece)
    text = 'run "' + unit.replace('"', '\\"') * 100
    shell.Lexer(text).tokens()
    assert copied <= len(text)


@pytest.mark.parametrize(
    "unit", ["if a; then b\n", "for x in y; do\n", "${a:-", "run bash a ", " \\\n --a 1"]
)
def test_commands_of_a_script(unit):
    """Also of compound commands and default values that never close, however deep."""

    def read(count: int) -> None:
        with suppress(InputError):  # nested too deep
            parse_script("x " + unit * count)

    small, large = (calls_of(partial(read, count)) for count in (200, 200 * MORE))
    assert large <= (MORE + 1) * small


def test_a_table_of_figures_ends(shardwise, monkeypatch):
    """Of a large config it shows the first figures, and says how many there are more."""
    full = shardwise("models", "llama3-8b")[1]
    monkeypatch.setattr("shardwise.report.tables.catalog._MOST_FIGURES", 5)
    out = shardwise("models", "llama3-8b")[1]
    assert "more figures: --json lists all" in out
    assert "more figures" not in full
    assert len(out.splitlines()) < len(full.splitlines())

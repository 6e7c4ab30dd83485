"""Work grows with the size of the input: counted, because times depend on the machine."""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import samples
from shardwise.cost import component_operations
from shardwise.errors import InputError
from shardwise.interop import shell_words
from shardwise.interop.shell import parse_script
from shardwise.parallel.pipeline_layout import Contents

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

    same = component_operations.equal
    monkeypatch.setattr(component_operations, "equal", equal)
    counts = []
    for number in (10, 10 * MORE):
        compared = 0
        samples.run(samples.model(*layers(number)))
        counts.append(compared)
    assert counts[1] <= (MORE + 1) * counts[0]


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

    def piece(kind: str, text: str, quoted: bool) -> shell_words.Piece:
        nonlocal copied
        copied += len(text)
        return made(kind, text, quoted)

    made = shell_words.Piece
    monkeypatch.setattr(shell_words, "Piece", piece)
    text = 'run "' + unit.replace('"', '\\"') * 100
    shell_words.Lexer(text).tokens()
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

"""Formulas: what they come to, what they count, and what is not one."""

import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise.config.expressions.formula import evaluated, parts_of, path_text
from shardwise.config.expressions.quantity import Quantity

NAMES = {
    ("frequency",): Quantity.of_text("1.98 GHz"),
    ("cores",): Quantity(132),
    ("hidden",): Quantity(4096),
    ("heads",): Quantity(32),
    ("network", "nvlink", "bandwidth"): Quantity.of_text("450 GB/s"),
    ("network", 0, "bandwidth"): Quantity.of_text("450 GB/s"),
    ("efficiency", 2): Quantity(0.5),
}


def of(text: str) -> Quantity:
    """Work a formula out with the names above."""
    return evaluated(text, NAMES.__getitem__, lambda row, field: Quantity(len(row) + len(field)))


@each_row(
    ("text", "value", "kind"),
    [
        ("frequency * cores * 4096", 1.98e9 * 132 * 4096, "FLOP/s or Hz"),
        ("hidden / heads", 128, "a number"),
        ("2 * network.nvlink.bandwidth", 9e11, "byte/s"),
        ("network.0.bandwidth * '2 s'", 9e11, "bytes"),
        ("network[0].bandwidth", 4.5e11, "byte/s"),
        ("efficiency.2 + 1.5", 2, "a number"),
        ("'80 GiB' - '1 GB'", 80 * 2**30 - 1e9, "bytes"),
        ("'80 GB' // '3 GB'", 26, "a number"),
        ("'80 GB' % '3 GB'", 2e9, "bytes"),
        ("'700 W' * '10 s'", 7000, "s W"),
        ("'1 GB' ** 2", 1e18, "byte^2"),
        ("ceil(8 / 3 * hidden / 256) * 256", 11008, "a number"),
        ("floor(-2.5) + max(1, 7, 3) - min(4, 2)", 2, "a number"),
        ("-2 ** 2", -4, "a number"),
        ("lookup('ab', 'c') + lookup(\"a.0\", 'd.1.e')", 11, "a number"),
        ("7", 7, "a number"),
    ],
)
def test_what_a_formula_comes_to(text: str, value: float, kind: str) -> None:
    """By hand."""
    found = of(text)
    assert found.value == pytest.approx(value, rel=1e-15)
    assert found.kind == kind


def test_whole_numbers_stay_whole() -> None:
    """So that they fit counts exactly."""
    assert of("3 * 7").value == 21
    assert isinstance(of("2 ** 10 * 3 - 5").value, int)


@each_row(
    ("text", "problem"),
    [
        ("'1 GB' + '1 s'", "cannot add bytes and seconds"),
        ("'1 GB' - 1", "cannot subtract bytes and a number"),
        ("min('1 GB', '1 GB/s')", "cannot compare bytes and byte/s"),
        ("2 ** '1 s'", "a power must be a number, not seconds"),
        ("'2 s' ** 0.5", "a power of seconds must be an integer and small, not 0.5"),
        ("(-8) ** 0.5", "a negative number has no such power"),
        ("1 / 0", "divides by zero"),
        ("1 // (heads - 32)", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("9 ** 9 ** 9 ** 9", "is too large for a number"),
        ("1e308 * 10", "is too large for a number"),
        ("1e999", "is too large for a number"),
        ("ceil('3 s')", "only numbers are rounded, not seconds: divide by a unit first"),
        ("ceil(1, 2)", "ceil takes one figure"),
        ("max()", "max takes figures"),
        ("max(*3)", "max takes figures"),
        ("lookup('a')", "lookup takes a row and a field in quotes"),
        ("lookup(a, 'b')", "lookup takes a row and a field in quotes"),
        ("'8 GBps'", "unit 'GBps' is not known"),
        ("'fast'", "is not a number, with or without a unit"),
        ("True", "true is no figure"),
        ("8 +* 3", "is not a formula"),
        ("(1", "is not a formula"),
        ("", "is not a formula"),
        ("x = 3", "is not a formula"),
        ("__import__('os')", "'__import__' is not allowed in a formula"),
        ("hidden.__class__()", "'hidden.__class__' is not allowed in a formula"),
        ("[1][0]", "'[1]' is not allowed in a formula"),
        ("1 if hidden else 2", "is not allowed in a formula"),
        ("hidden < 3", "'hidden < 3' is not allowed in a formula"),
        ("~3", "'~3' is not allowed in a formula"),
        ("(" * 90 + "1" + ")" * 90 + "+" + "-" * 60 + "1", "is nested more than 40 deep"),
        ("+".join(["1"] * 501), "a formula has at most 1000 characters"),
    ],
)
def test_what_is_no_formula(text: str, problem: str) -> None:
    """Each is refused at once, and named."""
    start = time.process_time()
    with pytest.raises(ValueError, match=re.escape(problem)):
        of(text)
    assert time.process_time() - start < 1


@given(st.text(alphabet="()-+*/%.,'[]0123456789eh_ ", max_size=40))
@examples(60)
def test_any_text_is_worked_out_or_refused(text: str) -> None:
    """Never another exception, never a number that is none."""
    try:
        found = of(text)
    except (ValueError, KeyError):
        return
    assert math.isfinite(found.value)


@given(st.floats(1e-3, 1e15), st.sampled_from(["bytes", "seconds", "watts", "byte/s", "FLOP/s"]))
@examples(30)
def test_a_quantity_is_written_as_it_is_read(value: float, dimension: str) -> None:
    """What is shown gives the same figure when it is put in a file."""
    from shardwise.config.expressions.quantity import powers_of  # noqa: PLC0415

    figure = Quantity(value, powers_of(dimension))
    written = figure.written()
    again = Quantity.of_text(written).value if isinstance(written, str) else written
    assert again == value


def test_paths() -> None:
    """Positions and names of items may be written with dots or brackets."""
    assert parts_of("network.0.bandwidth") == ("network", 0, "bandwidth")
    assert parts_of("network[0].bandwidth") == parts_of("network.0.bandwidth")
    assert parts_of("network['a-b'].x") == ("network", "a-b", "x")
    assert path_text(("network", 0, "bandwidth")) == "network[0].bandwidth"
    with pytest.raises(ValueError, match="is not a field"):
        parts_of("a..b")

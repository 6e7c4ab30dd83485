"""Quantities with units, in and out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rows import each_row
from shardwise.units import UNITS, counted, format_quantity, parse_quantity, readable


@each_row(
    ("text", "dimension", "expected"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("80GB", "bytes", 80e9),
        ("1.5 TiB", "bytes", 1.5 * 2**40),
        ("512", "bytes", 512.0),
        (512, "bytes", 512.0),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("312 TFLOPS", "FLOP/s", 312e12),
        ("25 GB/s", "byte/s", 25e9),
        ("400 Gbit/s", "byte/s", 50e9),
        ("10 us", "seconds", 10e-6),
        ("10 µs", "seconds", 10e-6),
        ("1e-3 s", "seconds", 1e-3),
        ("2 min", "seconds", 120.0),
        ("0.7 kW", "watts", 700.0),
        ("5 KB", "bytes", 5000.0),
    ],
)
def test_text_is_read_in_its_unit(text, dimension, expected):
    """GB is 10^9 and GiB 2^30; prefixes, aliases and plain SI numbers are understood."""
    assert parse_quantity(text, dimension) == expected


@each_row(
    ("text", "dimension"),
    [
        ("80 GiB", "seconds"),
        ("80 Gb", "bytes"),
        ("eighty", "bytes"),
        ("", "bytes"),
        ("1.2.3 GB", "bytes"),
        ("80 gib", "bytes"),
        (True, "bytes"),
        ([80], "bytes"),
        (None, "bytes"),
    ],
)
def test_what_is_not_a_quantity_is_refused(text, dimension):
    """A wrong unit, no number, or no scalar is a ValueError, never a guess."""
    with pytest.raises(ValueError, match=r"unit|number"):
        parse_quantity(text, dimension)


@given(
    st.floats(min_value=1e-12, max_value=1e20, allow_nan=False),
    st.sampled_from(sorted(UNITS)),
)
def test_a_written_quantity_reads_back_the_same(value, dimension):
    """Writing and reading a quantity returns the identical number."""
    assert parse_quantity(format_quantity(value, dimension), dimension) == value


@each_row(
    ("value", "dimension", "expected"),
    [
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
        (80 * 2**30, "bytes", "80 GiB"),
        (50e9, "byte/s", "50 GB/s"),
        (2.9e-6, "seconds", "2.9 us"),
        (0.0, "bytes", 0.0),
    ],
)
def test_the_shortest_spelling_is_written(value, dimension, expected):
    """Quantities are written as people write them."""
    assert format_quantity(value, dimension) == expected


@each_row(
    ("value", "dimension", "expected"),
    [
        (3.35e12, "byte/s", "3.35 TB/s"),
        (2**34, "bytes", "16 GiB"),
        (0.0034, "seconds", "3.4 ms"),
        (14.596, "seconds", "14.6 s"),
        (7200.0, "seconds", "7,200 s"),
        (102.28, "seconds", "102 s"),
        (0.9996, "seconds", "1 s"),
        (1020 * 2**30, "bytes", "1,020 GiB"),
        (999.9e12, "FLOP/s", "1 PFLOP/s"),
        (math.inf, "seconds", "inf"),
        (80_000.0, "seconds", "80,000 s"),
        (175_454_278.0, "seconds", "2,031 d"),
    ],
)
def test_readable_numbers_keep_three_digits(value, dimension, expected):
    """Tables show three digits in the fitting unit; times above a day in days."""
    assert readable(value, dimension) == expected


def test_thousands_are_separated_with_any_number_of_digits():
    """As in the tables of `fsdp`, of which some show four digits."""
    assert [readable(1002 * 2**20, "bytes", digits) for digits in (3, 4)] == ["1,002 MiB"] * 2


def test_one_thing_is_singular():
    """In every count that people read."""
    assert [counted(n, "GPU") for n in (0, 1, 1024)] == ["0 GPUs", "1 GPU", "1,024 GPUs"]

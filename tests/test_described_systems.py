"""What a system of curves, scales and shares may say, and how it is refused."""

from typing import Any

import pytest

import samples
from rows import each_row
from samples import MATRIX, curve, curved
from shardwise import InputError, System


def faults(change: dict[str, Any]) -> list[str]:
    """Faults of the curved machine with some fields of the accelerator replaced."""
    with pytest.raises(InputError) as caught:
        curved(**change)
    return [str(fault) for fault in caught.value.faults]


BF16 = {"bf16": {"points": MATRIX}}


CLOSED = {"bf16": samples.system().to_dict()["accelerator"]["matmul"]["bf16"]}


FLASH = samples.system().to_dict()["accelerator"]["attention"]


@each_row(
    ("points", "told"),
    [
        ([[0, 0.1], [1e9, 0.5], [1e6, 0.8]], "points[2]: size 1e+06 must be above 1e+09"),
        ([[0, 0.1], [1e6, 0.5], [1e6, 0.8]], "points[2]: size 1e+06 must be above 1e+06"),
        ([[1e6, 0.5]], "points[0]: the first size must be 0, for what is smaller than 1e+06"),
        ([[0, 0.1], [1e6, 1.5]], ".points[1][1]: 1.5: must be at most 1"),
        ([[0, 0]], ".points[0][1]: 0: must be at least 0.0001"),
        ([[-1, 0.5]], ".points[0][0]: -1: must be at least 0"),
        ([], ".points: []: "),
    ],
)
def test_a_wrong_point_is_one_fault_that_names_it(points: Any, told: str) -> None:
    """Sizes ascend from 0; shares are above 0 and at most 1."""
    (fault,) = faults({"matmul_curve": {"bf16": {"points": points}}})
    assert fault.startswith("accelerator.matmul_curve.bf16")
    assert told in fault


def test_points_to_interpolate_between_start_above_one() -> None:
    """A point at 0 counts as at 1, so the next one lies above 1."""
    assert curve([[0, 0.1], [0.5, 0.2]])
    (fault,) = faults(
        {"vector_curve": {"fp32": {"points": [[0, 0.1], [1, 0.2]], "interpolate": True}}}
    )
    assert "points[1]: size 1 must be above 1" in fault


@each_row(
    ("change", "told"),
    [
        ({"matmul_curve": {}}, "bf16: each type of matrix must be in one of matmul, matmul"),
        ({"matmul_curve": {}}, "_curve and matmul_table, but is in none"),
        (
            {"matmul": CLOSED, "multiprocessors": 100},
            "matmul_table, but is in matmul and matmul_curve",
        ),
        (
            {"matmul_curve": BF16 | {"fp8": BF16["bf16"]}},
            "matmul_curve: matrix has no rate for fp8",
        ),
        ({"vector": {"fp16": 1e13}, "vector_curve": {}}, "vector: must name fp32, or also bf16"),
        ({"vector_curve": BF16}, "vector_curve: vector has no rate for bf16"),
        ({"attention": FLASH}, "multiprocessors: must be set, attention spreads its work"),
        (
            {"matmul": CLOSED, "matmul_curve": {}},
            "multiprocessors: must be set, matmul.bf16 spreads its work",
        ),
        ({"processing": "overlap"}, "processing: 'overlap': allowed: measured, roofline, no_over"),
    ],
)
def test_an_accelerator_that_cannot_be_timed_is_one_fault(change: Any, told: str) -> None:
    """Each type has one way to be timed, and all that this way needs."""
    (fault,) = faults(change)
    assert told in fault


@each_row("field", ["multiprocessors", "attention", "vector", "memory_bound"])
def test_what_a_machine_must_say_has_no_default(field: str) -> None:
    """Null is an answer for some fields, silence is none."""
    fields = samples.system().to_dict()
    del fields["accelerator"][field]
    with pytest.raises(InputError, match=f"accelerator.{field}: is missing and has no default"):
        System.validated(fields)


@each_row(
    ("kind", "change", "told"),
    [
        ("all_reduce", {"scale": 2}, "collectives.all_reduce: scale and offset must be set tog"),
        ("all_to_all", {"offset": 0}, "collectives.all_to_all: scale and offset must be set tog"),
        ("p2p", {"scale": 1, "offset": 0}, "collectives.p2p.offset: a message has none"),
        (
            "all_reduce",
            {"scale": 0, "offset": 0},
            "scale: 0: must be at least",
        ),
        (
            "all_reduce",
            {"scale": 1, "offset": -2},
            "offset: -2: must be at least -1",
        ),
    ],
)
def test_a_wrong_scale_or_offset_is_one_fault(kind: str, change: Any, told: str) -> None:
    """They come in pairs, except for messages."""
    fields = samples.system().to_dict()
    fields["network"][0]["collectives"][kind] |= change
    with pytest.raises(InputError) as caught:
        System.validated(fields)
    (fault,) = caught.value.faults
    assert str(fault).startswith("network[0]")
    assert told in str(fault)


@each_row(
    "change",
    [{"processor_share": 1}, {"processor_share": -0.1}, {"join_exponent": 0}, {"join_exponent": 2}],
)
def test_shares_and_exponents_have_bounds(change: dict[str, float]) -> None:
    """An exchange cannot take the whole processor, nor be faster than each of its parts."""
    (field,) = change
    with pytest.raises(InputError, match=rf"network\[0\].{field}: .* must be"):
        samples.system(network=[samples.tier() | change])

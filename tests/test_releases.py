"""Releases of software: the month that a row names, and the time of kernels by their age."""

import pytest

import samples
from shardwise import InputError, Stack, estimate

pytestmark = pytest.mark.any_software


def test_kernels_of_newer_releases_take_less_time() -> None:
    """Counted from January 2025: 18 months at 0.9 a year are 0.9^1.5; no month, no trend."""
    stack = samples.stack(yearly_time_factor=0.9, released="2026-07")
    assert stack.kernel_time_factor() == pytest.approx(0.9**1.5)
    assert samples.stack(yearly_time_factor=0.9).kernel_time_factor() == 1
    older = samples.stack(yearly_time_factor=0.9, released="2024-01")
    assert older.kernel_time_factor() == pytest.approx(1 / 0.9)
    assert stack.kernel_time_factor("2025-07") == pytest.approx(0.9**0.5)
    assert stack.kernel_time_factor("2027-07") == stack.kernel_time_factor()
    with pytest.raises(InputError, match="released"):
        samples.stack(released="2026-13")


def test_a_release_moves_products_attention_and_element_wise_kernels_alike() -> None:
    """As their three factors do."""
    row = {"gpus": 8, "tp": 8, "gbs": 8}
    base = Stack.load("megatron-bridge-2026")

    def time_s(**changes: object) -> float:
        fields = {**row, "stack": {"base": base.name, **changes}}
        return estimate("llama3-8b", "b200-sxm", fields).time_s["forward"]

    names = ("matmul_time_factor", "attention_time_factor", "memory_traffic_factor")
    by_hand = {name: getattr(base, name) * base.kernel_time_factor() for name in names}
    assert time_s() == pytest.approx(time_s(released="", **by_hand))
    assert time_s(released="2027-08") < time_s() < time_s(released="2025-08")


def test_releases_are_no_faster_where_no_run_shows_it() -> None:
    """On A100 since 2024, on Hopper since February 2025, whose newer runs are no faster."""
    row = {"gpus": 8, "tp": 8, "gbs": 8}

    def time_s(system: str, released: str) -> float:
        stack = {"base": "megatron-bridge-2026", "released": released}
        if system == "h100-sxm":  # cuDNN has a trend of its own
            stack["attention_kernel"] = "flash3"
        return estimate("llama3-8b", system, {**row, "stack": stack}).time_s["forward"]

    for system, last in (("a100-80gb-sxm", "2024-12"), ("h100-sxm", "2025-02")):
        assert time_s(system, "2026-08") == time_s(system, last)
        assert time_s(system, "2024-06") > time_s(system, last)
    assert time_s("b200-sxm", "2026-08") < time_s("b200-sxm", "2025-02")

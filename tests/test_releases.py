"""Releases of software: the month that a row names, and the time of kernels by their age."""

from typing import Any

import pytest

import samples
from measured_samples import run_of
from rows import each_row
from shardwise import InputError, Stack, estimate
from shardwise.validate.measured.releases import released
from shardwise.validate.measured.software import stack_of

pytestmark = pytest.mark.any_software


@each_row(
    ("software", "title", "month"),
    [
        ({"container": "nvcr.io/nvidia/nemo:25.09"}, None, "2025-09"),
        ({"container": "nemo:25.04.01 (NeMo 7a8f1cc7)"}, None, "2025-04"),
        ({"container": "NeMo launcher-2024-07"}, None, "2024-07"),
        ({"version": "24.07"}, None, "2024-07"),
        ({"framework": "NVIDIA NeMo Framework Release 25.01"}, "MLPerf Training v5.0", "2025-01"),
        ({"framework": "PyTorch NVIDIA Release 23.09"}, "MLPerf Training v5.1 gpt3", "2025-09"),
        ({"version": "0.12.1"}, None, "2026-07"),
        ({"container": "nemo:25.13"}, None, "2026-07"),
    ],
)
def test_a_row_names_the_month_of_its_release(
    software: dict[str, str], title: str | None, month: str
) -> None:
    """By its image, version or framework; else by its round of MLPerf, else by its year."""
    run = run_of("one", step=1.0, year=2026, software=software, source=title or "paper")
    assert released(run) == month
    assert released(run.model_copy(update={"year": None})) == (month if month < "2026" else "")


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
        return estimate("llama3-8b", "h100-sxm", fields).time_s["forward"]

    names = ("matmul_time_factor", "attention_time_factor", "memory_traffic_factor")
    by_hand = {name: getattr(base, name) * base.kernel_time_factor() for name in names}
    assert time_s() == pytest.approx(time_s(released="", **by_hand))
    assert time_s(released="2027-08") < time_s() < time_s(released="2025-08")


@each_row(("accelerator", "month"), [("H100", "2025-04"), ("MI300X", "")])
def test_only_runs_on_nvidia_follow_the_trend_of_its_recipes(accelerator: str, month: str) -> None:
    """Submissions on AMD's GPUs have the products of ROCm."""
    fields: dict[str, Any] = {"framework": "NeMo Framework Release 25.04"}
    machine = {"accelerator": accelerator, "count": 8}
    run = run_of("one", step=1.0, software=fields, group="MLPerf logs", hardware=machine)
    stack = stack_of(run, [])
    assert (stack.name, stack.released) == ("mlperf-2024", month)
    rocm = Stack.load("primus-2026").matmul_time_factor
    assert (stack.matmul_time_factor == rocm) is not bool(month)


def test_releases_are_no_faster_where_no_run_shows_it() -> None:
    """On A100, whose newest runs of NVIDIA's recipes are of 2024."""
    row = {"gpus": 8, "tp": 8, "gbs": 8}

    def time_s(system: str, released: str) -> float:
        stack = {"base": "megatron-bridge-2026", "released": released}
        return estimate("llama3-8b", system, {**row, "stack": stack}).time_s["forward"]

    for system, still in (("a100-80gb-sxm", True), ("h100-sxm", False)):
        assert (time_s(system, "2026-08") == time_s(system, "2024-12")) == still
        assert time_s(system, "2024-06") > time_s(system, "2024-12")

"""Processors that train: launches add to kernels, ranks share the memory, caches are faster."""

from typing import Any

import numpy as np
import pytest

from shardwise import InputError, Model, Strategy, System, estimate
from shardwise.config.strategy_table import Table
from shardwise.cost.kernels import KernelRates

CPU = System.load("cpu-server")
ROW: dict[str, Any] = {"gbs": 8, "seq_len": 128, "zero": 0}


def changed(**fields: Any) -> System:
    """The server with other fields of its accelerator or host."""
    record = CPU.to_dict()
    for name, value in fields.items():
        part, _, field = name.partition("__")
        record[part] = record[part] | {field: value}
    return System.validated(record, source="changed")


def forward_s(system: System, **stack: Any) -> float:
    """Time of the forward passes of a small model on one rank."""
    row = ROW | {"gpus": 1, "stack": {"base": "pytorch-cpu"} | stack}
    return estimate("megatron-126m", system, row).time_s["forward"]


def test_host_time_adds_to_kernels_where_launches_are_not_asynchronous():
    """Of three times the host time, the whole increase shows on a CPU; a GPU hides some of it."""
    costs = [forward_s(CPU, host_launch=f"{n} us", host_call=f"{2 * n} us") for n in (0, 10, 20)]
    assert costs[1] - costs[0] == pytest.approx(costs[2] - costs[1])
    assert costs[1] - costs[0] > 0.001
    hidden = changed(accelerator__asynchronous=True)
    saved = [forward_s(hidden, host_launch=f"{n} us", host_call=f"{2 * n} us") for n in (0, 10)]
    assert saved[1] - saved[0] < 0.5 * (costs[1] - costs[0])


def test_a_host_of_twice_the_speed_halves_the_time_of_launches():
    """`host.launch_speed` divides launches and calls of every stack."""
    none = forward_s(CPU, host_launch="0 us", host_call="0 us")
    one, fast = forward_s(CPU) - none, forward_s(changed(host__launch_speed=2.0)) - none
    assert fast == pytest.approx(one / 2)


def test_updates_have_a_rate_of_their_own():
    """In place they move 1.4 times the bandwidth in place of 0.7 of it: in half the time."""
    row = ROW | {"gpus": 1}
    usual, own = (
        estimate("megatron-126m", system, row).time_s["optimizer"]
        for system in (CPU, changed(accelerator__update_efficiency=1.4))
    )
    assert own == pytest.approx(usual / 2)


def rates(system: System, ranks: int) -> KernelRates:
    """Rates of kernels while so many ranks run."""
    model, row = Model.load("megatron-126m"), ROW | {"gpus": ranks, "stack": "pytorch-cpu"}
    return KernelRates.of(system, Table.of(model, [Strategy.load(row).resolved(model)]))


def memory_rate(ranks: int, **memory: Any) -> float:
    """Rate of element-wise kernels beyond caches [byte/s] while so many ranks run."""
    first = CPU.to_dict()["accelerator"]["memory"][0] | memory
    system = changed(accelerator__memory=[first, *CPU.to_dict()["accelerator"]["memory"][1:]])
    return float(rates(system, ranks).memory_rate[0])


def test_ranks_share_the_memory_of_a_server():
    """Two ranks of 0.7 x 300 GB/s each on 400 GB/s get 0.7 x 200; one has all that it can use."""
    plain = {"bandwidth": "300 GB/s", "efficiency": None, "shared_bandwidth": "400 GB/s"}
    assert memory_rate(1, **plain) == pytest.approx(0.7 * 300e9)
    assert memory_rate(2, **plain) == pytest.approx(0.7 * 200e9)
    assert memory_rate(2, **plain | {"shared_bandwidth": None}) == pytest.approx(0.7 * 300e9)


def test_caches_are_faster_and_not_shared():
    """Below the last point of the curve two ranks are as fast as one."""
    first = CPU.to_dict()["accelerator"]["memory"][0]
    first |= {"shared_bandwidth": "307.2 GB/s"}
    system = changed(accelerator__memory=[first, *CPU.to_dict()["accelerator"]["memory"][1:]])
    sizes = np.array([1e6, 1e9])
    one, two = (np.asarray(rates(system, n).memory_share(sizes)) for n in (1, 2))
    assert one.tolist() == [4.0, 1.0]
    assert two.tolist() == [4.0, 0.5]


def test_memory_behind_a_link_is_not_shared_so():
    """`shared_bandwidth` would have no effect on another tier, so it is refused there."""
    first, second = CPU.to_dict()["accelerator"]["memory"]
    with pytest.raises(InputError, match=r"memory\[1\].shared_bandwidth"):
        changed(accelerator__memory=[first, second | {"shared_bandwidth": "1 GB/s"}])


def test_a_measured_system_says_so_and_has_a_narrower_range(shardwise, tmp_path):
    """Kernels fix levels of the machine as sources of runs do; launches alone do not."""
    errors = {"products": 0.05, "attention": 0.1, "memory": 0.2}
    record = {"on": "2026-11-27", "errors": errors}
    plain, measured, other = (
        System.validated(CPU.to_dict() | {"name": "mine", "measured": one}, source="mine")
        for one in (None, record, record | {"errors": {"launches": 0.1}})
    )
    row = ROW | {"gpus": 1}
    ranges = [estimate("megatron-126m", one, row).interval for one in (plain, measured, other)]
    widths = [np.log(one.high_s / one.low_s) for one in ranges]
    assert widths[1] < 0.95 * widths[0]
    assert widths[2] == pytest.approx(widths[0])
    assert ranges[1].measured == ("products", "attention", "memory")
    assert ranges[0].measured == ()
    measured.to_file(tmp_path / "mine.yaml")
    words = ("megatron-126m", tmp_path / "mine.yaml", "--gbs", 4, "--seq-len", 128)
    line = "system measured on 2026-11-27: products, attention, memory; the range is narrower"
    for verb in (("estimate", *words, "--gpus", 2), ("search", *words, "--gpus", 1)):
        code, out, err = shardwise(*verb)
        assert code == 0, err
        assert line in " ".join(out.split())

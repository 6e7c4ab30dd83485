"""Kernels of a kind of their own: element-wise classes, and products of experts one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import samples
import test_shape_tables as tables
from rows import each_row
from samples import column
from shardwise import InputError, System
from shardwise.config.strategy_table import Table
from shardwise.cost.kernels import KernelRates
from shardwise.cost.links import CollectiveTimes, Links
from shardwise.cost.operations import Machine, operation_cost
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase
from shardwise.parallel.placement import place
from test_moe_ops import block, mixture

CLASSES = {
    "permute": {"efficiency": 0.25, "launch": 3e-6},
    "permute_backward": {"efficiency": 0.1, "launch": 4e-6},
    "loss": {"efficiency": 0.2, "launch": 5e-6},
}


def machine_with(**fields: Any) -> System:
    """1 TB/s, of which element-wise kernels get half, 2 us after their launch."""
    return samples.system(memory_bound={"efficiency": 0.5, "launch": 2e-6}, **fields)


def rates(system: System, *stacks: dict[str, Any]) -> KernelRates:
    columns = {"dp": 1, "gbs": 1, "stack": [samples.stack(**fields) for fields in stacks or ({},)]}
    return KernelRates.of(system, Table.of(samples.model(), columns))


def moved(kind: str = "default", size: float = 1e6) -> MemoryBound:
    return MemoryBound(phase=Phase.FORWARD, bytes=column(size), flops=column(0), kind=kind)


@each_row(
    ("kind", "whole"),
    [
        ("default", 4e-6),
        ("permute", 7e-6),
        ("permute_backward", 14e-6),
        ("loss", 10e-6),
    ],
)
def test_a_class_moves_its_bytes_at_its_own_share(kind: str, whole: float) -> None:
    """A megabyte at that share of 1 TB/s after its launch; without the class, as the others."""
    own = rates(machine_with(memory_bound_class=CLASSES)).times(moved(kind))
    assert own[2].tolist() == pytest.approx([whole])
    assert rates(machine_with()).times(moved(kind))[2].tolist() == pytest.approx([4e-6])


def test_a_class_moves_as_many_more_bytes_as_the_software_does() -> None:
    """At a traffic factor of 2 twice as long, less the launch."""
    own = rates(machine_with(memory_bound_class=CLASSES), {"memory_traffic_factor": 2})
    assert own.times(moved("loss"))[2].tolist() == pytest.approx([15e-6])
    assert own.times(moved("loss", 0))[2].tolist() == [0]


def test_a_misspelt_class_is_refused() -> None:
    """One that no kernel has would be without effect."""
    with pytest.raises(InputError) as caught:
        machine_with(memory_bound_class={"permut": CLASSES["loss"]})
    assert "did you mean 'permute'?" in str(caught.value)


def kinds(operation: Operation) -> set[tuple[str, str]]:
    kernels = (k for k in operation.kernels if isinstance(k, MemoryBound))
    return {(kernel.phase.value, kernel.kind) for kernel in kernels}


def test_dispatch_combine_and_loss_say_what_they_are() -> None:
    """All else is of no class."""
    operations = list(block(mixture()).values()) + list(samples.head(mixture()).values())
    found = {operation.name: kinds(operation) for operation in operations}
    both = {("forward", "permute"), ("input_grad", "permute_backward")}
    assert found.pop("moe.dispatch") == both == found.pop("moe.combine")
    assert found.pop("loss") == {("forward", "loss"), ("input_grad", "loss")}
    assert {kind for of in found.values() for _, kind in of} == {"default"}


def product(batch: float, *, grouped: bool) -> Matmul:
    """(100, 200) x (200, 300) so many times."""
    sides = {"m": 100, "n": 300, "k": 200, "input_bytes": 2, "output_bytes": 2, "batch": batch}
    columns: dict[str, Any] = {name: column(value) for name, value in sides.items()}
    return Matmul(phase=Phase.FORWARD, **columns, grouped=grouped)


IN_TURN = {"grouped_products": "loop"}


def test_experts_one_by_one_launch_a_kernel_each() -> None:
    """8 experts are 8 launches and 8 times one expert; heads of attention stay together."""
    system = samples.system(matmul={"launch": 3e-6, "fill_tiles": 0.5, "fill_depth": 20})
    both = rates(system, {}, IN_TURN)
    together, apart = both.times(product(8, grouped=True))[2]
    (one,) = rates(system).times(product(1, grouped=True))[2]
    assert apart == pytest.approx(8 * one)
    assert together < apart
    heads = both.times(product(8, grouped=False))[2]
    assert heads.tolist() == pytest.approx([together, together])
    assert np.array(both.launches(product(8, grouped=True))).tolist() == [1, 8]
    assert both.launches(product(8, grouped=False)) == 1
    assert both.launches(moved()) == 1


def test_the_host_launches_every_expert() -> None:
    """Of 6 experts on a rank, one by one; a product that does not run is not launched."""
    table = Table.of(
        samples.model(), {"dp": 1, "gbs": 1, "stack": [samples.stack(), samples.stack(**IN_TURN)]}
    )
    system = samples.system()
    machine = Machine.of(system, table)
    times = CollectiveTimes(Links.of(system, table, place(system, table)))
    kernels = (product(6, grouped=True), product(0, grouped=True), moved())
    zero = column(0)
    work: dict[str, Any] = {"parameters": zero, "saved_bytes": zero, "working_bytes": zero}
    cost = operation_cost(Operation(name="moe.up", kernels=kernels, **work), machine, times)
    assert cost.launches(Phase.FORWARD).tolist() == [2, 7]
    assert cost.launches(Phase.WEIGHT_GRAD).tolist() == [0]


def experts(count: float) -> Matmul:
    return replace(tables.matmul(500, 500, 500, batch=count), grouped=True)


def test_products_of_experts_have_a_table_of_their_own() -> None:
    """Of 8 at 0.3 of the peak, of one expert too; others, and types without a table, as before."""
    rows = [[8, 500, 500, 500, 0.3], [1, 500, 500, 500, 0.4]]
    table = {"sizes": tables.GROUPED, "rows": {"any": rows}, "fallback": 0.2}
    described = tables.machine(grouped_table={"bf16": table, "fp16": table})
    one = tables.matmul(500, 500, 500)
    assert tables.times(experts(8), described)[0] == pytest.approx(2e9 / 0.3e14)
    assert tables.times(experts(1), described)[0] == pytest.approx(2.5e8 / 0.4e14)
    assert tables.times(one, described)[0] == pytest.approx(2.5e8 / 0.5e14)
    assert tables.times(experts(64), described)[0] == pytest.approx(16e9 / 0.2e14)
    assert tables.times(experts(4))[0] == pytest.approx(1e9 / 0.5e14)
    both = tables.rates(described, "bf16", "fp16")
    assert both.missed(experts(64)).tolist() == [True, True]
    assert both.missed(one).tolist() == [False, False]
    np.testing.assert_allclose(both.times(experts(8))[0], 2e9 / 0.3e14)
    assert both.times(one)[0][1] == pytest.approx(2 * 512**2 * 500 / 1e14)


def test_several_products_without_experts_are_no_grouped_ones() -> None:
    """The products of unfused attention, one for each head, have the table of single products."""
    table = {"sizes": tables.GROUPED, "rows": {"any": [[4, 500, 500, 500, 0.3]]}, "fallback": 0.2}
    described = tables.machine(grouped_table={"bf16": table})
    heads = tables.matmul(500, 500, 500, batch=4)
    assert tables.times(heads, described)[0] == pytest.approx(1e9 / 0.5e14)
    assert not tables.rates(described, "bf16").missed(heads).any()

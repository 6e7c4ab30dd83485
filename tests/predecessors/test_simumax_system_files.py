"""SimuMax's files of systems: what becomes of their figures, and what is refused."""

import copy
import json
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, System
from test_simumax_files import read
from test_simumax_systems import AG, NCCL, exchange

B200, A100 = read("b200.json"), read("a100_pcie.json")


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value changed, or removed if the value is `...`."""
    data = copy.deepcopy(data)
    *parents, last = path.split("/")
    target = data
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return data


def file(data: dict[str, Any], **paths: Any) -> System:
    for path, value in paths.items():
        data = changed(data, path, value)
    return System.load(data)


LINK = "networks/high_intra_node"


def test_latencies_that_depend_on_the_members_are_put_on_a_line() -> None:
    """At 2, 4 and 8 members 17, 34 and 58 us: least squares with 20.2 us and 6.5 us a member."""
    changes = {
        f"{LINK}/op/all2all/latency_us": 1.0,
        f"{LINK}/op/all2all/fixed_latency_us_by_comm_num": {"2": 16.0, "4": 31.0, "8": 51.0},
    }
    rates = file(B200, **changes).network[0].collectives["all_to_all"]
    step, start = np.polyfit([0, 2, 6], [17, 34, 58], 1)
    assert rates.latency == pytest.approx(start * 1e-6)
    assert rates.latency_per_member == pytest.approx(step * 1e-6)
    falling = NCCL.network[0].collectives["all_to_all"]
    assert falling.latency == pytest.approx((58.3617 + 41.1219 + 51.1273) / 3 * 1e-6)
    assert falling.latency_per_member == 0


def test_latencies_of_a_network_hold_where_an_operation_has_none() -> None:
    """Base and fixed ones, the fixed ones by members too; efficiency likewise."""
    plain = file(B200, **{"networks/inter_node/bandwidth/fixed_latency": 5.0})
    assert plain.network[1].collectives["all_gather"].latency == pytest.approx(40e-6)
    assert plain.network[1].collectives["p2p"].latency == pytest.approx(40e-6)
    listed = {"networks/inter_node/bandwidth/fixed_latency_us_by_comm_num": {"2": 7.0}}
    assert file(B200, **listed).network[1].collectives["p2p"].latency == pytest.approx(42e-6)


def test_a_node_of_other_than_eight_has_the_steps_of_a_ring_too() -> None:
    """SimuMax switches them off there, which is a fault."""
    small = file(B200, num_per_node=4)
    assert small.node.accelerators == 4
    assert small.network[0].domain == 4
    assert small.network[0].collectives["all_reduce"].latency_per_member > 0
    assert small.network[1].collectives["all_to_all"].efficiency == {1: 1}


def test_fully_connected_devices_have_a_seventh_for_each_other_one() -> None:
    """8 members all of it, 2 one link."""
    full = file(B200, FC8=True)
    for members in (2, 5, 8):
        within = [members, members]
        taken = exchange(full, AG, within) / exchange(System.load(B200), AG, within)
        assert taken == pytest.approx(7 / (members - 1), rel=2e-1 if members == 2 else 5e-2)
    shares = full.network[0].collectives["all_gather"].efficiency
    assert shares == pytest.approx({n: 0.6735 * (n - 1) / 7 for n in range(2, 9)})
    assert full.network[0].collectives["p2p"].efficiency == pytest.approx({1: 1.4517 / 7})


OP = "accelerator/op"


def test_classes_have_peaks_of_their_own() -> None:
    """Shares are of the default one; a class that is missing is as default."""
    chip = file(B200, **{f"{OP}/matmul/tflops": 1125.0, f"{OP}/group_matmul": ...}).accelerator
    assert chip.matmul_table["bf16"].fallback == pytest.approx(0.4878077 / 2)
    assert chip.matmul_table["bf16"].rows["forward"][0][-1] == pytest.approx(0.6451614 / 2)
    assert chip.grouped_table["bf16"].fallback == pytest.approx(0.3949004)
    assert chip.grouped_table["bf16"].rows == {}


def test_what_was_not_measured_is_left_out() -> None:
    """Efficiencies of 0, and kernels that are not contiguous beside one that is."""
    key = "batch=1, seq_len=4096, head_num=64, kv_head_num=8, qk_head_dim=128, v_head_dim=128"
    table = System.load(B200).accelerator.attention_table["bf16"]
    assert table.rows["forward"][0][-1] == pytest.approx(0.8715234)
    path = f"{OP}/sdp_fwd/accurate_efficient_factor"
    only = file(B200, **{path: {f"{key}, qkv_contiguous=False": 0.7, "b=1": 0}})
    (row,) = only.accelerator.attention_table["bf16"].rows["forward"]
    assert row == (1, 4096, 64, 8, 128, 128, 0.7)
    assert table.fallback == pytest.approx(7 / (2 / 0.7059718 + 5 / 0.6943226))


def test_the_loss_is_as_fused_ones_where_they_were_measured() -> None:
    """Else as the others; classes that are missing are as default."""
    plain = file(B200, **{"accelerator/bandwidth/ce_fusion": ...}).accelerator
    assert plain.memory_bound_class["loss"].efficiency == pytest.approx(0.3246108)
    none = file(A100, **{"accelerator/bandwidth/ce": ...}).accelerator
    assert set(none.memory_bound_class) == {"permute", "permute_backward"}


SHAPES = f"{OP}/matmul/accurate_efficient_factor"
GROUPS = f"{OP}/group_matmul/accurate_efficient_factor"
AT = "accelerator.op.matmul.accurate_efficient_factor"
FAULTS: list[tuple[dict[str, Any], str, Any, str]] = [
    (B200, "num_per_node", 0, "num_per_node: 0: must be at least 1"),
    (B200, "numper", 1, "numper: unknown key; did you mean 'num_per_node'?"),
    (
        B200,
        "accelerator/mode",
        "only_compute",
        "accelerator.mode: 'only_compute': must be roofline",
    ),
    (B200, "accelerator/mem_gbs", "80", "accelerator.mem_gbs: '80': must be a number"),
    (B200, f"{OP}/default", ..., "accelerator.op: must have default"),
    (
        B200,
        f"{OP}/matmull",
        {"tflops": 1, "efficient_factor": 1},
        "accelerator.op.matmull.[key]: 'matmull': allowed: default, matmul",
    ),
    (
        B200,
        f"{OP}/matmul/efficient_factor",
        0,
        "accelerator.op.matmul.efficient_factor: 0.0: must be from 0.0001 to 2 here",
    ),
    (B200, SHAPES, {"b=1": 0.5}, f"{AT}: 'b=1': must have layout=one of TN, NN, NT"),
    (
        B200,
        SHAPES,
        {"b=1, layout=TN, out_dtype=int8": 0.5},
        f"{AT}: 'b=1, layout=TN, out_dtype=int8': must have out_dtype=",
    ),
    (
        B200,
        SHAPES,
        {"b=1, m=2, n=x, k=3, layout=TN, out_dtype=bf16": 0.5},
        f"{AT}: 'b=1, m=2, n=x, k=3, layout=TN, out_dtype=bf16': must have n=a whole number",
    ),
    (B200, SHAPES, {"b=1, layout=TN": 2.5}, f"{AT}: 'b=1, layout=TN': its efficiency must be 0 or"),
    (
        B200,
        GROUPS,
        {"ng=1": 1},
        f"{AT.replace('matmul', 'group_matmul')}: 'ng=1': must have stage=",
    ),
    (
        B200,
        "accelerator/bandwidth/permute_fwd/gbps",
        4000,
        "accelerator.bandwidth.permute_fwd.gbps: 4000.0: must be 8000 as of default",
    ),
    (
        B200,
        "accelerator/bandwidth/ce/efficient_factor",
        1.1,
        "accelerator.bandwidth.ce.efficient_factor: 1.1: must be at most 1",
    ),
    (B200, LINK, ..., "networks.high_intra_node: is needed with intra_with_pcie false"),
    (A100, "networks/intra_node_pcie_4x", ..., "networks.intra_node_pcie_4x: is needed with intra"),
    (A100, "num_per_node", 4, "networks.intra_with_pcie: true: needs num_per_node 8"),
    (B200, f"{LINK}/op/all2all", ..., "networks.high_intra_node.op: lacks all2all"),
    (B200, f"{LINK}/op/p2p/offset", -2, "networks.high_intra_node.op.p2p.offset: -2: must be at l"),
]


@each_row(("data", "path", "value", "told"), FAULTS)
def test_a_bad_system_is_one_clear_line(
    data: dict[str, Any], path: str, value: Any, told: str
) -> None:
    """Under the key of the file."""
    with pytest.raises(InputError) as caught:
        System.load(changed(data, path, value))
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"system: {told}")


def test_a_system_is_written_and_read_back(tmp_path: Any) -> None:
    """With its tables, as a file of ours."""
    path = tmp_path / "machine.json"
    NCCL.to_file(path)
    assert System.load(path) == NCCL
    assert json.loads(path.read_text())["network"][0]["bandwidth"] == "900 GiB/s"

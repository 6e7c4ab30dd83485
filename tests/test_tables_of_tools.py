"""Tables for a calibration from nccl-tests and from systems with measured shapes."""

import json

import numpy as np
import pytest

from shardwise import InputError, System
from shardwise.validate.calibrate.shapes import nccl_tests_table, tables_of_shapes

HEAD = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5
#
# Using devices
"""
RANK = (
    "#  Rank {rank:2} Group  0 Pid {pid} on {host} device  {device} [0x07] NVIDIA H100 80GB HBM3\n"
)
COLUMNS = """#                                              out-of-place           in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
"""
ROW = "{size:12} {count:12} float {redop:>6} -1 {us:7.2f} {alg:6.2f} {bus:6.2f} 0 1.0\n"


def output(rows, *, hosts=("a", "a", "b", "b"), redop="sum", factor=1.5, before=""):
    """What a program of nccl-tests prints."""
    ranks = "".join(
        RANK.format(rank=n, pid=100 + n, host=host, device=n % 2) for n, host in enumerate(hosts)
    )
    lines = "".join(
        ROW.format(size=size, count=size // 4, redop=redop, us=us, alg=size / us / 1e3,
                   bus=factor * size / us / 1e3)
        for size, us in rows
    )  # fmt: skip
    return before + HEAD + ranks + COLUMNS + lines + "# Out of bounds values : 0 OK\n"


def test_rows_have_the_times_out_of_place_and_the_servers_of_the_ranks(tmp_path):
    """Of two servers with two ranks each, by the name of the program that newer releases print."""
    path = tmp_path / "log.txt"
    text = output([(0, 0.1), (2**20, 50.0), (2**23, 400.0)],
                  before="# Collective test starting: all_gather_perf\n")  # fmt: skip
    path.write_text(text)
    table = nccl_tests_table([str(path)])
    assert table.columns["op"].tolist() == ["all_gather"] * 2
    assert table.columns["size_bytes"].tolist() == [2**20, 2**23]
    assert table.columns["latency_us"].tolist() == [50.0, 400.0]
    assert set(table.columns["nodes"].tolist()) == {2.0}
    assert set(table.columns["gpus_per_node"].tolist()) == {2.0}


@pytest.mark.parametrize(
    ("name", "redop", "factor", "op"),
    [
        ("x.txt", "sum", 1.5, "all_reduce"),
        ("x.txt", "sum", 0.75, "reduce_scatter"),
        ("alltoall_perf.log", "none", 0.75, "all_to_all"),
        ("reduce_scatter.txt", "sum", 0.75, "reduce_scatter"),
        ("sendrecv_perf.txt", "sum", 1.0, "p2p"),
    ],
)
def test_the_collective_is_that_of_the_file_or_of_its_rates(tmp_path, name, redop, factor, op):
    """Bus bandwidth over algorithm bandwidth is 2 (n - 1) / n of an all-reduce alone."""
    path = tmp_path / name
    path.write_text(output([(2**20, 50.0)], redop=redop, factor=factor))
    assert nccl_tests_table([str(path)]).columns["op"].tolist() == [op]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing\n", "has no rows of nccl-tests"),
        (output([(2**20, 50.0)], redop="none", factor=0.75), "does not say its collective"),
        (output([(2**20, 50.0)], hosts=()), "does not list its ranks"),
        (output([(2**20, 50.0)], hosts=("a", "a", "b")), "as many on each server"),
    ],
)
def test_output_without_what_is_needed_is_refused(tmp_path, text, problem):
    """In one line that names the file."""
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        nccl_tests_table([str(path)])


def test_a_calibration_fits_the_output_of_nccl_tests(tmp_path, shardwise):
    """Latency and share of the bandwidth that made the rows, within 1 %."""
    system = System.load("h100-sxm")
    tier = system.network[0]
    rates = tier.collectives["all_reduce"]
    sizes = [2**p for p in range(12, 31, 2)]
    true = {"latency": 2 * rates.latency, "share": 0.5}
    join = tier.join_exponent
    times = [
        ((true["latency"] + 6 * rates.latency_per_member) ** join
         + (1.75 * s / (true["share"] * tier.bandwidth)) ** join) ** (1 / join)
        for s in sizes
    ]  # fmt: skip
    path = tmp_path / "all_reduce_perf.txt"
    rows = [(size, us * 1e6) for size, us in zip(sizes, times, strict=True)]
    path.write_text(output(rows, hosts=["a"] * 8))
    new = tmp_path / "new.yaml"
    code, _, err = shardwise("calibrate", "h100-sxm", "--from-nccl-tests", path, "-o", new)
    assert (code, err) == (0, "")
    fitted = System.load(new).network[0].collectives["all_reduce"]
    assert fitted.efficiency[8] == pytest.approx(0.5, rel=0.01)


def test_shapes_of_a_system_become_tables(tmp_path):
    """Time is FLOPs over share and peak; attention that counts all pairs does half of them."""
    record = System.load("simumax-a100-pcie").to_dict()
    path = tmp_path / "system.json"
    path.write_text(json.dumps(record))
    chip = System.load(path).accelerator
    products, attention = tables_of_shapes(str(path))
    counted = sum(
        len(rows)
        for kind in (chip.matmul_table, chip.grouped_table)
        for name, table in kind.items()
        if name in ("bf16", "fp16", "fp32")
        for rows in table.rows.values()
    )
    assert len(products) == counted
    of = products.columns
    flops = 2 * of["groups"] * of["m"] * of["n"] * of["k"]
    shares = flops / (of["latency_us"] * 1e-6) / chip.matrix["bf16"]
    table = chip.matmul_table["bf16"]
    wanted = sorted(row[-1] for rows in table.rows.values() for row in rows)
    single = np.sort(shares[of["groups"] == 1])
    assert single[[0, -1]].tolist() == pytest.approx([wanted[0], wanted[-1]], rel=0.2)
    at = attention.columns
    pairs = at["batch"] * at["heads"] * at["seq"] ** 2 / 2
    forward = at["direction"] == "fwd"
    done = 2 * pairs * (at["head_dim"] + at["head_dim_v"]) / (at["latency_us"] * 1e-6)
    assert (done[forward] / chip.matrix["bf16"]).max() < 1


def test_a_system_without_shapes_is_refused():
    """It has nothing that was measured."""
    with pytest.raises(InputError, match="has no tables of shapes"):
        tables_of_shapes("h100-sxm")

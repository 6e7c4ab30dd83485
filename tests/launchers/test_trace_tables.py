"""Tables of kernels from a trace of PyTorch's profiler."""

import json

import pytest

from shardwise import InputError, System
from shardwise.launchers.kineto.tables import tables_of_trace

H100 = System.load("h100-sxm")


def operator(name, number, dims, kind="c10::BFloat16", strides=None, values=()):
    """An operator of PyTorch with its operands."""
    args = {"External id": number, "Input Dims": dims, "Input type": [kind] * len(dims)}
    args |= {"Input Strides": strides or [[] for _ in dims], "Concrete Inputs": list(values)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 9.0, "args": args}


def kernel(number, us, **args):
    """A kernel that an operator launched."""
    args = {"External id": number} | args
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": us, "args": args}


def nccl(us, name, elements, ranks, dtype="BFloat16"):
    """A kernel of NCCL with its message."""
    args = {"Collective name": name, "In msg nelems": elements, "Out msg nelems": elements // 2}
    args |= {"dtype": dtype, "Group size": len(ranks), "Process Group Ranks": str(ranks)}
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 1, "dur": us, "args": args}


def tables(tmp_path, *events):
    """Tables by kind."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return {table.kind: table for table in tables_of_trace(path, H100)}


def test_products_have_the_time_of_their_kernels(tmp_path):
    """The median of equal ones, in the layout that the strides of the operands say."""
    forward = [[8], [512, 256], [256, 1024]]
    strides = [[1], [256, 1], [1, 256]]
    found = tables(
        tmp_path,
        *(operator("aten::addmm", n, forward, strides=strides) for n in (1, 2, 3)),
        *(kernel(n, us) for n, us in ((1, 10.0), (2, 12.0), (3, 50.0))),
        operator("aten::mm", 4, [[256, 512], [512, 1024]], strides=[[1, 256], [1024, 1]]),
        kernel(4, 20.0),
        operator("aten::mm", 5, [[512, 1024], [1024, 256]], strides=[[1024, 1], [256, 1]]),
        kernel(5, 14.0),
        kernel(5, 1.0),
        operator("aten::mm", 6, [[4, 4], [4, 4]]),
        operator("aten::mm", 7, [[4, 4], [4, 4]], kind="long"),
    )["train_gemm"].columns
    rows = zip(*(found[n] for n in ("layout", "m", "n", "k", "latency_us")), strict=True)
    assert sorted(rows) == [
        ("NN", 512, 256, 1024, 15.0),
        ("NT", 256, 1024, 512, 20.0),
        ("TN", 512, 1024, 256, 12.0),
    ]


@pytest.mark.parametrize("causal", [True, False])
def test_attention_counts_where_it_is_causal(tmp_path, causal):
    """Forward and backward, which has the gradient of the output in front."""
    shape = [1, 8, 2048, 128]
    name = "aten::_scaled_dot_product_flash_attention"
    values = ["", "", "", "0.", str(causal)]
    more = ["", "", "", "", "", "", "", "", "", "", "0.", str(causal)]
    events = [
        operator(name, 1, [shape, [1, 2, 2048, 128], [1, 2, 2048, 128]], values=values),
        operator(f"{name}_backward", 2, [shape] * 5, values=more),
        operator("aten::mm", 3, [[64, 64], [64, 64]]),
        *(kernel(n, 30.0 * n) for n in (1, 2, 3)),
    ]
    found = tables(tmp_path, *events)
    assert ("train_attention" in found) is causal
    if causal:
        columns = found["train_attention"].columns
        assert columns["direction"].tolist() == ["fwd", "bwd"]
        assert columns["kv_heads"].tolist() == [2, 8]
        assert columns["latency_us"].tolist() == [30.0, 60.0]


def test_collectives_have_their_message_and_servers(tmp_path):
    """The full buffer, and a low quantile of the times: ranks wait for others in the rest."""
    inside, across = list(range(8)), [0, 8]
    events = [nccl(us, "allreduce", 2**20, inside) for us in (50.0, 60.0, 70.0, 80.0, 500.0, 900.0)]
    events += [nccl(40.0, "_reduce_scatter_base", 2**20, across)]
    events += [nccl(40.0, "unheard_of", 2**20, across)]
    columns = tables(tmp_path, *events)["collective"].columns
    assert columns["op"].tolist() == ["all_reduce", "reduce_scatter"]
    assert columns["size_bytes"].tolist() == [2**21, 2**21]
    assert columns["nodes"].tolist() == [1, 2]
    assert columns["gpus_per_node"].tolist() == [8, 1]
    assert columns["latency_us"].tolist() == [60.0, 40.0]


def test_a_trace_of_a_processor_has_the_time_of_its_operators(tmp_path):
    """There are no kernels of a device."""
    event = operator("aten::mm", 1, [[64, 32], [32, 16]], kind="float")
    columns = tables(tmp_path, event)["train_gemm"].columns
    assert (columns["dtype"].tolist(), columns["latency_us"].tolist()) == (["fp32"], [9.0])


def test_a_trace_without_shapes_is_refused(tmp_path):
    """It says how to record them."""
    with pytest.raises(InputError, match="record_shapes=True"):
        tables(tmp_path, kernel(1, 5.0))

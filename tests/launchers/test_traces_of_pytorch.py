"""Traces of PyTorch's profiler: where the steps went."""

import json

import numpy as np
import pytest

from shardwise.errors import InputError
from shardwise.launchers.kineto import events
from shardwise.launchers.kineto.kernels import (
    CommAxis,
    KernelClass,
    ProcessGroup,
    axis_of,
    class_of,
)
from shardwise.launchers.kineto.steps import length, read_trace, united
from written_traces import Step, write_trace

DEGREES = {"tp": 4, "cp": 1, "ep": 1, "pp": 2, "dp": 4}
STEP = Step(
    products=0.8,
    attention=0.2,
    other=0.1,
    exposed={"tp": 0.08, "dp": 0.04, "pp": 0.02},
    hidden={"tp": 0.3, "dp": 0.16},
    idle=0.05,
    between=0.03,
    loading=0.01,
    memcpy=0.005,
)


def test_times_are_those_the_trace_was_written_with(tmp_path):
    """Each component of the step, exposed and hidden communication, idle and its components."""
    found = read_trace(write_trace(tmp_path / "trace.json", STEP), DEGREES)

    assert (found.steps, found.rank, found.world_size) == (2, 0, 32)
    assert found.step_s == pytest.approx(STEP.seconds, rel=1e-5)
    names = ("products", "attention", "memcpy")
    assert [getattr(found, f"{name}_s") for name in names] == pytest.approx(
        [getattr(STEP, name) for name in names], rel=1e-4
    )
    assert found.other_kernels_s == pytest.approx(0.1, rel=1e-4)
    assert found.idle_s == pytest.approx(0.08, rel=1e-3)
    assert found.between_s == pytest.approx(0.03 + 0.05 / 8, rel=1e-3)
    assert found.loading_s == pytest.approx(0.01, rel=1e-3)
    exposed = {axis: one.exposed_s for axis, one in found.communication.items()}
    assert exposed == pytest.approx({"tp": 0.08, "dp": 0.04, "pp": 0.02}, rel=1e-3)
    total = {axis: one.total_s for axis, one in found.communication.items()}
    assert total == pytest.approx({"tp": 0.38, "dp": 0.2, "pp": 0.02}, rel=1e-3)
    # Equal collectives take longer behind compute than alone, and wait for nobody.
    assert all(one.waiting_s < 1e-6 for one in found.communication.values())


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_order_and_size_of_the_chunks_do_not_matter(tmp_path, monkeypatch, ending):
    """Shuffled events, read a few characters at a time, give the same times."""
    plain = read_trace(write_trace(tmp_path / "plain.json", STEP), DEGREES)
    order = np.random.default_rng(1)
    path = write_trace(tmp_path / f"trace.{ending}", STEP, order=order)
    monkeypatch.setattr(events, "_CHUNK", 997)
    found = read_trace(path, DEGREES)

    for name in ("step_s", "products_s", "idle_s", "between_s"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-9)
    assert found.communication.keys() == plain.communication.keys()


@pytest.mark.parametrize("size", range(1, 8))
def test_values_that_chunks_cut_are_read_completely(tmp_path, monkeypatch, size):
    """Numbers at the top level have no end of their own: more text may go on with them."""
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 12345, "traceEvents": [{"name": "k"}], "last": 67890}')
    monkeypatch.setattr(events, "_CHUNK", size)
    about = {}

    assert list(events.trace_events(path, about)) == [{"name": "k"}]
    assert about == {"schemaVersion": 12345, "last": 67890}


def test_the_parts_of_any_step_add_up(tmp_path):
    """Times are disjoint whatever overlaps: their sum is the step."""
    draw = np.random.default_rng(2)
    for number in range(5):
        values = draw.uniform(0.01, 0.2, 12).tolist()
        step = Step(
            products=1 + values[0],
            attention=values[1],
            other=values[2],
            exposed=dict(zip(("tp", "cp", "ep", "pp", "dp"), values[3:8], strict=True)),
            hidden=dict(zip(("tp", "dp", "ep"), values[8:11], strict=True)),
            idle=values[11],
        )
        found = read_trace(write_trace(tmp_path / f"{number}.json", step), DEGREES)
        own = (found.products_s, found.attention_s, found.other_kernels_s, found.memcpy_s)
        exposed = sum(one.exposed_s for one in found.communication.values())
        assert sum(own) + exposed + found.idle_s == pytest.approx(found.step_s, rel=1e-9)


def test_a_union_counts_overlap_once():
    """[0, 2] and [1, 3] and [5, 6] and [5, 6] cover 4."""
    start, end = np.array([5.0, 0.0, 1.0, 5.0]), np.array([6.0, 2.0, 3.0, 6.0])

    assert length(united(start, end)) == 4
    assert [side.tolist() for side in united(start, end)] == [[0, 5], [3, 6]]
    assert length(united(np.empty(0), np.empty(0))) == 0


def test_steps_may_be_marked_on_the_host_alone(tmp_path):
    """Without annotations on the device the steps of the host cut the time."""
    found = read_trace(write_trace(tmp_path / "trace.json", STEP, on_device=False), DEGREES)

    assert found.step_s == pytest.approx(STEP.seconds, rel=1e-5)
    assert found.between_s == 0


CLASSES = {
    KernelClass.PRODUCTS: (
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>",
        "Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1",
    ),
    KernelClass.ATTENTION: (
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128",
    ),
    KernelClass.COMMUNICATION: (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
    ),
    KernelClass.MEMCPY: ("Memcpy HtoD (Pageable -> Device)", "Memset (Device)"),
    KernelClass.OTHER: (
        "triton_poi_fused__scaled_dot_product_flash_attention_add_3",
        "triton_red_fused_mul_sum_1",
        "void at::native::vectorized_elementwise_kernel<4, ...>",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<...>",
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_names_of_kernels_tell_their_class(kind):
    """Names of cuBLAS, CUTLASS, rocBLAS, FlashAttention, cuDNN, NCCL, DeepEP and Triton."""
    assert {name: class_of(name) for name in CLASSES[kind]} == dict.fromkeys(CLASSES[kind], kind)


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "ep"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EMBEDDING_GROUP", "dp"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "other"),
        ("mesh_fsdp", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_tp", "tp"),
        ("mesh_pp", "pp"),
        ("mesh_ep", "ep"),
    ],
)
def test_descriptions_of_groups_name_their_axis(description, axis):
    """Names of Megatron-Core and of torchtitan's meshes."""
    group = ProcessGroup(description=description, size=64)

    assert axis_of(group, "allreduce", "ncclDevKernel_AllReduce", DEGREES) == axis


@pytest.mark.parametrize(
    ("ranks", "size", "collective", "axis"),
    [
        ((0, 1), 4, "_allgather_base", CommAxis.TP),
        ((0, 4), 4, "_reduce_scatter_base", CommAxis.DP),
        ((), 32, "allreduce", CommAxis.OTHER),
        ((0, 16), 2, "send", CommAxis.PP),
        ((), 4, "allreduce", CommAxis.OTHER),
    ],
)
def test_members_tell_the_axis_where_nothing_is_described(ranks, size, collective, axis):
    """Ranks one apart are tensor parallel, tp apart replicas; what fits several is no axis."""
    group = ProcessGroup(description="undefined", size=size, ranks=ranks)

    assert axis_of(group, collective, "ncclDevKernel", DEGREES) == axis


def test_replicas_reduce_among_the_ranks_of_their_context_too():
    """A group of dp x cp ranks, tp x cp apart, is one of replicas."""
    degrees = {"tp": 2, "cp": 2, "ep": 1, "pp": 1, "dp": 4}
    group = ProcessGroup(size=8)

    assert axis_of(group, "allreduce", "ncclDevKernel_AllReduce", degrees) == CommAxis.DP


def test_what_waits_for_others_is_told_from_slow_transfers(tmp_path):
    """Of equal collectives the fast ones show the transfer; the rest of the others is waiting."""
    path = write_trace(tmp_path / "trace.json", Step(products=0.8, exposed={"dp": 0.08}))
    record = json.loads(path.read_text())
    sends = [one for one in record["traceEvents"] if "AllReduce" in one["name"]]
    for one in sends[::2]:
        one["dur"] /= 2
    path.write_text(json.dumps(record))
    found = read_trace(path, DEGREES).communication[CommAxis.DP]

    assert found.total_s == pytest.approx(0.06, rel=1e-3)
    assert found.waiting_s == pytest.approx(0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"traceEvents": [{"ph": "X"', "ends in the middle|is no JSON"),
        ('{"traceEvents": []}', "no steps"),
        ('{"other": [1, 2]}', "holds no traceEvents"),
        ('{"traceEvents": 3}', "must be a list"),
        ("hello", "is no trace"),
        ("", "ends in the middle"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, text, problem):
    """A fault names the file and what it lacks."""
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=problem) as refusal:
        read_trace(path, DEGREES)

    assert [fault.source for fault in refusal.value.faults] == [str(path)]


def test_values_of_other_types_are_passed_over(tmp_path):
    """Events without times, with text for numbers or without arguments do no harm."""
    path = write_trace(tmp_path / "trace.json", STEP)
    record = json.loads(path.read_text())
    odd = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "1", "dur": 2},
        {"ph": "X", "cat": "kernel", "name": 3, "ts": 1, "dur": 2},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": True},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 2.0, "args": None},
        {"ph": "X", "cat": ["kernel"], "name": "k"},
        7,
        None,
    ]
    plain = read_trace(path, DEGREES)
    record["traceEvents"] = odd + record["traceEvents"]
    path.write_text(json.dumps(record))

    assert read_trace(path, DEGREES).products_s == pytest.approx(plain.products_s, rel=1e-6)

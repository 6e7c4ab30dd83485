"""Logs of forks and of older releases, and kernels that are named by their library."""

import json
from pathlib import Path

import numpy as np
import pytest

from shardwise.launchers.diagnose.measured import measured_steps
from shardwise.launchers.kineto.kernels import KernelClass, class_of
from shardwise.launchers.logs import RunLog, read_log


def read(tmp_path: Path, *lines: str) -> RunLog:
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    return read_log(tmp_path / "run.log")


SECONDS = (
    " iteration {:>8}/  128728 | consumed samples: 59312 | elapsed time per iteration (s): {} |"
    " lr: 1.9E-05 | global batch size:    16 | samples per second: {:.3f} | TFLOPs: 8.0 |"
)


def test_seconds(tmp_path: Path) -> None:
    """Forks print seconds; a few lines from the middle of a run have no warm-up."""
    log = read(tmp_path, SECONDS.format(3707, 15.23, 1.051), SECONDS.format(3708, 15.31, 1.045))
    assert log.seconds.tolist() == [15.23, 15.31]
    assert log.tflops_per_gpu.tolist() == [8.0, 8.0]
    steps = measured_steps(log, tokens_per_step=1, samples_per_step=16, gpus=8)
    assert steps.median_s == pytest.approx(15.27)


def test_settings_of_deepspeed_are_not_those_of_the_trainer(tmp_path: Path) -> None:
    """DeepSpeed's world_size is that of data parallelism; its peak of memory counts."""
    log = read(
        tmp_path,
        "  world_size ...................................... 64",
        "[2021-05-29] [INFO] [config.py:751:print]   world_size ................... 4",
        "[timer.py:154:stop] 0/10, SamplesPerSec=25.5, MemAllocated=1.0GB, MaxMemAllocated=2.0GB",
        SECONDS.format(10, 2.0, 8.0),
        "using world size: 64, data-parallel-size: 4, tensor-model-parallel size: 4,",
    )
    assert (log.format, log.fields["gpus"], log.fields["dp"]) == ("megatron", 64, 4)
    assert log.memory == {"allocated": 2 * 2**30}


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("[timer.py:197:stop] 0/{}, RunningAvgSamplesPerSec=9.0, CurrSamplesPerSec={},", 5.5),
        ("[timer.py:154:stop] 0/{}, SamplesPerSec={}, MemAllocated=1.0GB", 5.5),
        (
            "epoch=0/micro_step=8/global_step={}, RunningAvgSamplesPerSec=9, CurrSamplesPerSec={},",
            5.5,
        ),
    ],
)
def test_timers_of_deepspeed(tmp_path: Path, line: str, rate: float) -> None:
    """The timer prints the current rate, until 2022 the mean alone."""
    log = read(tmp_path, *(line.format(step, rate) for step in (17, 18, 19)))
    assert (log.format, log.index.tolist()) == ("deepspeed", [17, 18, 19])
    assert log.samples_per_s.tolist() == [rate] * 3


def test_shortened_numbers_of_a_bar(tmp_path: Path) -> None:
    """From 1,000 on the number of a step is shortened, and the bar counts."""
    bar = (
        "Epoch 0:  12%|#  | {}/999999 [1:02:03<9:00, 2.00s/it, reduced_train_loss=2.1,"
        " global_step={:.3g}, train_step_timing in s=2.{}]"
    )
    log = read(tmp_path, *(bar.format(n, n, n % 10) for n in range(123400, 123425)))
    assert log.index.tolist() == list(range(123400, 123425))
    assert log.seconds[3] == 2.3


@pytest.mark.parametrize("name", ["train_step_time", "train_step_timing in s"])
def test_result_files_of_mlperf(tmp_path: Path, name: str) -> None:
    """Statistics of steps are JSON after a mark."""

    def line(key: str, value: object, **about: object) -> str:
        event = {"namespace": "", "time_ms": 1, "key": key, "value": value, "metadata": about}
        return f"0: :::MLLOG {json.dumps(event)}"

    log = read(
        tmp_path,
        line("global_batch_size", 1536),
        *(line("tracked_stats", {name: 10.0 + n, "loss": 1}, step=n) for n in range(1, 4)),
        "0: :::MLLOG {not JSON",
    )
    assert (log.format, log.fields) == ("mlperf", {"global_batch_size": 1536})
    assert np.array_equal(log.seconds, [11.0, 12.0, 13.0])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void fbgemm_gpu::permute_2D_data_kernel<long>", KernelClass.OTHER),
        ("void fbgemm_gpu::quantize_fp8_per_row", KernelClass.OTHER),
        ("ampere_bf16_s16816gemm_bf16_128x256", KernelClass.PRODUCTS),
        ("void cutlass::device_kernel<fbgemm_gpu::f8f8bf16_gemm>", KernelClass.PRODUCTS),
        ("void cublasLt::splitKreduce_kernel<32, 16>", KernelClass.PRODUCTS),
        ("void flash_fwd_splitkv_kernel", KernelClass.ATTENTION),
        ("sage_fwd", KernelClass.ATTENTION),
    ],
)
def test_kernels_named_by_their_library(name: str, kind: KernelClass) -> None:
    """The name of a library says nothing of what a kernel does."""
    assert class_of(name) is kind


# Figures of the logs in github.com/bigscience-workshop/bigscience, experiments: GPUs, world_size of
# DeepSpeed's settings (data parallelism), times of steps [ms], peak of allocated memory [MB].
PUBLIC = {
    "gpt2-meg-ds-3d-old/perf_n16": (64, 1, [150471.3, 145207.0], 19976.07),
    "gpt2-meg-ds-3d/perf_n16-ds-off": (64, None, [144915.6, 125536.8, 123997.6], 17504.85),
    "gpt2-meg-ds-3d/perf_n16-ds-on": (64, 1, [159778.9, 141096.8, 137138.4], 19961.07),
    "gpt2-meg-ds-zero/perf_n16": (64, 16, [123742.4, 128917.0, 128642.7], 26118.23),
    "gpt2-meg-ds-zero/perf_n16_nbs48": (64, 16, [121899.8, 125912.4, 123907.8], 26118.23),
    "gpt2-meg/base_n4": (16, None, [2152.2, 1354.9, 1376.1], 26204.56),
    "gpt2-meg/base_n8": (32, None, [3171.3, 1572.7, 1613.7], 22113.06),
    "gpt2-meg/base_n16": (64, None, [5837.9, 2711.1, 2767.3], 24762.81),
    "gpt2-meg/base_n32": (128, None, [10462.5, 4209.4, 4237.8], 23405.07),
    "gpt2-meg/base_n64": (256, None, [19932.4, 6707.5, 6746.5], 22769.73),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_figures_of_public_logs(tmp_path: Path, name: str) -> None:
    """GPUs, times and memory are those of the trainer, whatever DeepSpeed prints between."""
    gpus, replicas, times, peak = PUBLIC[name]
    world = [] if replicas is None else [f"[INFO] [config.py:9:print]   world_size ... {replicas}"]
    lines = [
        f" iteration {n:>8}/ 1000 | elapsed time per iteration (ms): {ms} | lm loss: 1.2E+01 |"
        for n, ms in enumerate(times, 1)
    ]
    memory = f"[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: {peak} |"
    log = read(
        tmp_path, f"using world size: {gpus}, data-parallel-size: 1,", *world, *lines, memory
    )
    assert log.fields["gpus"] == gpus
    assert log.seconds == pytest.approx([ms / 1000 for ms in times])
    assert log.memory["allocated"] == pytest.approx(peak * 2**20)


TITAN = (
    "[titan] INFO - step: {:>2}  loss:  3.2  memory: {}GiB(50.00%)  tps: {:,}  tflops: 1.0  mfu: 1%"
)
MAXTEXT = "completed step: {}, seconds: {}, TFLOP/s{}: {}, loss: 2.1"
MORE_PUBLIC: dict[str, tuple[list[str], str, dict[str, list[float]], float | None]] = {
    "pytorch/torchtitan/pull/3393": (
        [TITAN.format(n, 9.46, tps) for n, tps in ((14, 7282), (15, 7334), (16, 7313), (17, 7282))],
        "torchtitan",
        {"index": [14, 15, 16, 17], "tokens_per_s_per_gpu": [7282, 7334, 7313, 7282]},
        9.46 * 2**30,
    ),
    "pytorch/torchtitan/pull/1287": (
        [TITAN.format(n, 49.66, tps) for n, tps in ((200, 5856), (210, 5593), (220, 5868))],
        "torchtitan",
        {"index": [200, 210, 220], "tokens_per_s_per_gpu": [5856, 5593, 5868]},
        49.66 * 2**30,
    ),
    "pytorch/torchtitan/pull/2389": (  # 8 ranks
        [TITAN.format(4, 66.91, tps) for tps in (10050,) * 4 + (10049, 10050, 10049, 10050)],
        "torchtitan",
        {"index": [4], "tokens_per_s_per_gpu": [10050]},
        66.91 * 2**30,
    ),
    "epfLLM/Megatron-LLM/issues/11": (
        [
            f" iteration {n:>8}/  250000 | elapsed time per iteration (ms): {ms} |"
            " global batch size:  1024 | lm loss: 2.3E+00 |"
            for n, ms in ((182, 126995.3), (183, 125553.7), (184, 127804.5))
        ],
        "megatron",
        {"index": [182, 183, 184], "seconds": [126.9953, 125.5537, 127.8045]},
        None,
    ),
    "NVIDIA-NeMo/Megatron-Bridge/pull/841": (
        [
            "Step Time : 14.26s GPU utilization: 58.2TFLOP/s/GPU",
            "iteration 20/ 50 | elapsed time per iteration (ms): 14260.3 | lm loss: 8.8E-02 |",
            "(after 20 iterations) memory (MB) | max allocated: 12712.43603515625 |",
        ],
        "megatron-bridge",
        {"index": [20], "seconds": [14.2603]},
        12712.43603515625 * 2**20,
    ),
    "NVIDIA-NeMo/Megatron-Bridge/pull/388": (
        ["Step Time : 12.78s GPU utilization: 528.1 TFLOP/s/GPU"],
        "megatron-bridge",
        {"seconds": [12.78], "tflops_per_gpu": [528.1]},
        None,
    ),
    "deepspeedai/DeepSpeed/issues/1825": (
        [
            f"[timer.py:189:stop] 0/{n}, SamplesPerSec={rate}, MemAllocated=0.26GB,"
            " MaxMemAllocated=9.02GB"
            for n, rate in ((40, 83.48609168106144), (50, 83.73838805358588))
        ],
        "deepspeed",
        {"index": [40, 50], "samples_per_s": [83.48609168106144, 83.73838805358588]},
        9.02 * 2**30,
    ),
    "deepspeedai/DeepSpeed/issues/3742": (  # gpt-neox
        [
            "epoch=0/micro_step=34/global_step=34, CurrSamplesPerSec=8.0, MaxMemAllocated=63.31GB",
            " samples/sec: 7.799 | iteration 34/10000 | elapsed time per iteration (ms): 4103.1 |",
        ],
        "megatron",
        {"index": [34], "seconds": [4.1031]},
        63.31 * 2**30,
    ),
    "AI-Hypercomputer/maxtext/issues/8": (
        [
            MAXTEXT.format(n, s, "", f)
            for n, s, f in ((15107, 2.167, 36.722), (15108, 2.164, 36.771))
        ],
        "maxtext",
        {"seconds": [2.167, 2.164], "tflops_per_gpu": [36.722, 36.771]},
        None,
    ),
    "AI-Hypercomputer/maxtext/pull/4847": (
        [
            MAXTEXT.format(n, s, "/device", f)
            for n, s, f in ((2, 10.228, 350.869), (3, 10.344, 346.932))
        ],
        "maxtext",
        {"index": [2, 3], "seconds": [10.228, 10.344], "tflops_per_gpu": [350.869, 346.932]},
        None,
    ),
    "mlcommons/training_results_v4.0/blob/6fe95437/Dell/results/XE9680x8H100-SXM-80GB/"
    "llama2_70b_lora/result_0.txt": (
        [
            f':::MLLOG {{"key": "tracked_stats", "value": {{"throughput": {rate}}},'
            f' "metadata": {{"step": {at}}}}}'
            for rate, at in ((1.9597043249334714, 1536), (1.976902323965445, 1920))
        ],
        "mlperf",
        {"index": [1536, 1920], "samples_per_s": [1.9597043249334714, 1.976902323965445]},
        None,
    ),
}
"""Figures of logs in issues and repositories of github.com."""


@pytest.mark.parametrize("source", MORE_PUBLIC)
def test_figures_of_more_public_logs(tmp_path: Path, source: str) -> None:
    """Steps, times, rates and peak memory are those that the log has."""
    lines, kind, figures, memory = MORE_PUBLIC[source]
    log = read(tmp_path, *lines)
    assert log.format == kind
    for column, values in figures.items():
        assert getattr(log, column) == pytest.approx(values)
    assert list(log.memory.values()) == ([] if memory is None else [pytest.approx(memory)])


def test_public_logs_are_many() -> None:
    """Fifteen at least."""
    assert len(PUBLIC) + len(MORE_PUBLIC) >= 15

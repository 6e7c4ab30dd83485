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

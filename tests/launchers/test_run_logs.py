"""Logs of training runs, read line by line."""

import numpy as np
import pytest

from shardwise.errors import InputError
from shardwise.launchers.logs import FORMATS, MemoryKind, read_log
from written_logs import (
    WRITERS,
    Run,
    huggingface_end,
    megatron,
    torchtitan,
    trainer_state,
    write_log,
)

GIB = 2**30
FORMAT_OF = {name: name for name in WRITERS} | {
    "primus": "megatron",
    "deepspeed pipeline": "deepspeed",
    "nemo 1": "nemo",
    "nemo 2": "nemo",
}


def _times(log, run):
    return log.step_times(
        tokens_per_step=run.tokens, samples_per_step=run.batch, gpus=run.gpus
    ).tolist()


def _drawn(seed):
    draw = np.random.default_rng(seed)
    level = draw.choice((0.31, 2.4, 31.5))
    return Run(seconds=tuple(level * draw.uniform(0.95, 1.05) for _ in range(24)))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_format_gives_the_times_it_was_written_with(tmp_path, name, seed):
    """Three logs of each format: the format, its steps, and their times within their digits."""
    run = _drawn(seed)
    log = read_log(write_log(tmp_path / "run.log", WRITERS[name], run))

    assert log.format == FORMAT_OF[name]
    assert _times(log, run) == pytest.approx(list(run.seconds), rel=0.02)
    assert np.all(np.diff(log.index) == 1)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_order_colors_ranks_and_a_cut_end_do_not_matter(tmp_path, name, seed):
    """Shuffled lines, colors, prefixes of ranks, other text and half a line give the same steps."""
    draw, run = np.random.default_rng(seed), _drawn(seed)
    lines = list(WRITERS[name](run))
    plain = read_log(write_log(tmp_path / "plain.log", lambda _: lines, run))
    noisy = [f"[rank{rank}]:{line}" for rank in range(3) for line in lines]
    noisy += ["", "NCCL INFO Channel 00/24", "| | | [ [ iteration step: tps:", "W" * 5000] * 3
    if "bridge" not in name:  # its first line has no number, but the second has
        draw.shuffle(noisy)
    noisy = [f"\x1b[1;33m{line}\x1b[0m" if draw.random() < 0.5 else line for line in noisy]
    text = "\r\n".join(noisy) + "\n" + lines[-2][: draw.integers(5, len(lines[-2]) - 1)]
    path = tmp_path / "noisy.log"
    path.write_bytes(text.encode())
    log = read_log(path)

    assert log.index.tolist() == plain.index.tolist()
    np.testing.assert_array_equal(_times(log, run), _times(plain, run))
    assert log.memory == plain.memory
    assert log.fields == plain.fields


def test_facts_of_megatron_are_read(tmp_path):
    """World size, degrees, length, batch, throughput and peak memory of its lines."""
    run = Run(seconds=(30.0, 2.0, 2.1))
    log = read_log(write_log(tmp_path / "run.log", megatron, run))

    assert log.fields == {"gpus": 32, "tp": 4, "cp": 1, "dp": 4, "pp": 2, "seq_len": 8192}
    assert log.global_batch.tolist() == [64, 64, 64]
    assert log.tflops_per_gpu.tolist() == [13.3, 200.0, 190.5]
    assert log.memory[MemoryKind.ALLOCATED] == pytest.approx(40.5 * GIB)
    assert log.memory[MemoryKind.RESERVED] == pytest.approx(1.1 * 40.5 * GIB)


def test_memory_is_the_most_of_any_rank(tmp_path):
    """torchtitan prints what the allocator reserves, rank by rank."""
    one, other = Run(seconds=(2.0,) * 3), Run(seconds=(2.2,) * 3, memory=50.25 * GIB)
    path = tmp_path / "run.log"
    lines = [*torchtitan(other, rank=1), *torchtitan(one)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    log = read_log(path)

    assert log.memory == {MemoryKind.RESERVED: 50.25 * GIB}
    assert log.index.tolist() == [1, 2, 3]
    rate = 64 * 8192 / 32 * (1 / 2.0 + 1 / 2.2) / 2
    assert log.tokens_per_s_per_gpu.tolist() == pytest.approx([rate] * 3, rel=1e-3)


@pytest.mark.parametrize("writer", [huggingface_end, trainer_state])
def test_the_end_of_a_trainer_log_has_the_mean(tmp_path, writer):
    """Without a progress bar the mean of all steps is known, and nothing of one step."""
    run = Run(seconds=(2.0, 3.0, 4.0))
    log = read_log(write_log(tmp_path / "state.json", writer, run))

    assert len(log) == 0
    assert log.mean_step_time(samples_per_step=64) == pytest.approx(3.0, rel=1e-3)


EXCERPTS = {
    "torchtitan": (
        (
            "[rank0]:[titan] 2025-01-01 00:00:00,001 - root - INFO - step:  1  loss: 12.24760  "
            "grad_norm:  3.1416  memory: 47.19GiB(49.68%)  tps: 1,234  tflops: 1,071.50  mfu: N/A\n"
        ),
        {"index": 1, "tokens_per_s_per_gpu": 1234.0, "tflops_per_gpu": 1071.5},
    ),
    "nemo": (
        (
            "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 | "
            "global_batch_size: 1 | global_step: 120 | reduced_train_loss: 1.233 | "
            "train_step_timing "
            "in s: 0.03146 | val_loss: 4.106\n"
        ),
        {"index": 120, "seconds": 0.03146, "global_batch": 1.0},
    ),
    "nemo bar": (
        (
            "Epoch 0:   1%| | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, "
            "reduced_train_loss=3.090, global_step=794.0, consumed_samples=1.63e+6]\r"
        ),
        {"index": 794, "seconds": 41.36},
    ),
    "huggingface": (" 12/100\n 12%|#1 | 12/100 [00:30<03:40,  2.50s/it]\n", {"seconds": 2.5}),
    "megatron": (
        (
            "iteration 1/50 | consumed samples: 128 | elapsed time per iteration (ms): "
            "19392.0 | memory "
            "usage/free/total: 60.00GB/1.00GB/61.00GB | throughput per GPU (TFLOP/s/GPU): 55.1 | "
            "tokens per GPU (tokens/s/GPU): 845.2 | global batch size: 128 | loss: 1.0 | "
            "mfu: 5.0% |\n"
        ),
        {"seconds": 19.392, "tokens_per_s_per_gpu": 845.2, "global_batch": 128.0},
    ),
    "deepspeed": (
        (
            "[2024-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] epoch=0/"
            "micro_step=20/global_step=10, RunningAvgSamplesPerSec=31.4, CurrSamplesPerSec=32.5, "
            "MemAllocated=1.12GB, MaxMemAllocated=22.75GB\n"
        ),
        {"index": 10, "samples_per_s": 32.5},
    ),
    "deepspeed pipeline": (
        "steps: 10 loss: 0.1234 iter time (s): 0.123 samples/sec: 1.234\n",
        {"index": 10, "seconds": 0.123},
    ),
}


@pytest.mark.parametrize("name", EXCERPTS)
def test_lines_as_their_makers_print_them(tmp_path, name):
    """Lines in the form of each trainer's source, with the figures they name."""
    text, figures = EXCERPTS[name]
    path = tmp_path / "run.log"
    path.write_bytes(text.encode())
    log = read_log(path)

    assert {key: getattr(log, key)[0] for key in figures} == figures


CUT = ("megatron", "primus", "torchtitan", "deepspeed", "deepspeed pipeline", "maxtext")


@pytest.mark.parametrize("name", [*CUT, "huggingface"])
def test_no_number_is_read_that_was_cut_off(tmp_path, name):
    """Of a line that ends anywhere, a figure is read as it is in the whole line, or not at all."""
    run = Run(seconds=(12.345,) * 3)
    line = next(line for line in reversed(list(WRITERS[name](run))) if " 3" in line or "=3" in line)
    (tmp_path / "run.log").write_text(f"{line}\n", encoding="utf-8")
    whole = read_log(tmp_path / "run.log")
    columns = ("seconds", "tokens_per_s_per_gpu", "samples_per_s", "tflops_per_gpu")
    for end in range(len(line)):
        (tmp_path / "run.log").write_text(f"{line[:end]}\n", encoding="utf-8")
        try:
            log = read_log(tmp_path / "run.log")
        except InputError:
            continue
        for column in columns:
            value = getattr(log, column)
            assert np.isnan(value).all() or value.tolist() == getattr(whole, column).tolist()


def test_bars_with_a_label_are_not_those_of_the_run(tmp_path):
    """Bars of downloads and data sets do not count, be they more than those of the run."""
    run = Run(seconds=(2.5, 2.5))
    others = [f"Loading shards: 50%|###  | {n}/9 [00:05<00:00,  1.25s/it]" for n in range(9)]
    bars = [f" 50%|###  | {n}/2 [00:05<00:00,  2.50s/it]" for n in (1, 2)]
    log = read_log(write_log(tmp_path / "run.log", lambda _: others + bars, run))

    assert log.seconds.tolist() == [2.5, 2.5]


def test_a_log_without_steps_says_what_was_looked_for(tmp_path):
    """One line names every format with what its lines show."""
    path = tmp_path / "run.log"
    path.write_text("nothing\nof interest\n", encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        read_log(path)

    (fault,) = refusal.value.faults
    assert fault.source == str(path)
    assert all(one.title in fault.problem for one in FORMATS)


def test_long_lines_and_other_bytes_are_read_within_bounds(tmp_path):
    """A line of megabytes without an end, and bytes that are no text, do no harm."""
    good = "".join(f"{line}\n" for line in megatron(Run(seconds=(2.0,) * 5))).encode()
    path = tmp_path / "run.log"
    path.write_bytes(b"\xff\xfe\x00" + b"9" * 3_000_000 + b"\n" + good + b"iteration 7/" * 300_000)

    assert read_log(path).index.tolist() == [1, 2, 3, 4, 5]

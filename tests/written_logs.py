"""Logs of training runs as trainers write them, from the times of their steps.

The lines follow the source of each trainer; nothing here reads what shardwise reads them with.
"""

from dataclasses import dataclass

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a log is written from."""

    seconds: tuple[float, ...]
    """Of each step."""
    gpus: int = 32
    batch: int = 64
    seq_len: int = 8192
    memory: float = 40.5 * _GIB
    """Peak of tensors [byte]."""
    degrees: tuple[int, int, int, int] = (4, 1, 4, 2)
    """tp, cp, dp, pp."""

    @property
    def tokens(self):
        """Of a step."""
        return self.batch * self.seq_len


def megatron(run, *, microseconds=True):
    """Lines of Megatron-LM."""
    tp, cp, dp, pp = run.degrees
    yield (
        f"using world size: {run.gpus}, data-parallel size: {dp}, context-parallel size: {cp}, "
        f"hierarchical context-parallel sizes: None, tensor-model-parallel size: {tp}, "
        f"pipeline-model-parallel size: {pp}"
    )
    yield f"  seq_length {'.' * 38} {run.seq_len}"
    yield "training ..."
    stamp = "2026-03-01 10:00:00.123456" if microseconds else "2026-03-01 10:00:00"
    for n, seconds in enumerate(run.seconds, 1):
        yield (
            f" [{stamp}] iteration {n:8d}/{len(run.seconds):8d} | consumed samples: "
            f"{n * run.batch:12d} | elapsed time per iteration (ms): {1000 * seconds:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {400 / seconds:.1f} | learning rate: 1.000000E-05 "
            f"| global batch size: {run.batch:5d} | lm loss: 2.345678E+00 | loss scale: 1.0 | "
            "grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 "
            "|"
        )
        if n == 2:
            mib = run.memory / 2**20
            yield (
                f"[Rank 0] (after 2 iterations) memory (MB) | allocated: {mib / 2:.2f} | max "
                f"allocated: {mib:.2f} | reserved: {mib:.2f} | max reserved: {1.1 * mib:.2f}"
            )


def megatron_bridge(run):
    """Lines of Megatron-Bridge: the step, then the line of Megatron-LM."""
    for line in megatron(run, microseconds=False):
        if " iteration " in line:
            seconds = float(line.split("(ms): ")[1].split()[0]) / 1000
            yield f"Step Time : {seconds:.2f}s GPU utilization: 612.3MODEL_TFLOP/s/GPU"
        yield line


def primus(run):
    """Lines of Primus over Megatron-LM: each figure with its average."""
    for line in megatron(run):
        if " iteration " not in line:
            yield line
            continue
        head, rest = line.split("(ms): ")
        time, more = rest.split(" | throughput", 1)
        gib = run.memory / _GIB
        yield (
            f"{head}(ms): {time}/{float(time) * 1.1:.1f} | hip mem usage/free/total/usage_ratio: "
            f"{gib:.2f}GB/90.00GB/191.00GB/50.00% | throughput{more}"
        )


def torchtitan(run, *, rank=0, colors=True):
    """Lines of torchtitan: tokens per second of each accelerator."""
    red, green, off = ("\x1b[31m", "\x1b[32m", "\x1b[39m") if colors else ("", "", "")
    yield f"[rank{rank}]:[titan] 2026-03-01 10:00:00,123 - root - INFO - Building llama3 8B"
    for n, seconds in enumerate(run.seconds, 1):
        rate = run.tokens / (run.gpus * seconds)
        yield (
            f"[rank{rank}]:[titan] 2026-03-01 10:00:00,123 - root - INFO - {red}step: {n:2}  "
            f"{green}loss: {7.5:8.5f}  {red}grad_norm: {1.25:7.4f}  {green}memory: "
            f"{run.memory / _GIB:5.2f}GiB(51.20%)  {red}tps: {round(rate):,}  {green}tflops: "
            f"{400 / seconds:,.2f}  {red}mfu: 40.12%{off}"
        )


def deepspeed(run):
    """Lines of DeepSpeed's throughput timer."""
    for n, seconds in enumerate(run.seconds, 1):
        yield f"[2026-03-01 10:00:00,123] [INFO] [Rank 0] step={n}, skipped=0, lr=[1e-05]"
        yield (
            "[2026-03-01 10:00:00,123] [INFO] [timer.py:265:stop] "
            f"epoch=0/micro_step={4 * n}/global_step={n}, RunningAvgSamplesPerSec="
            f"{0.9 * run.batch / seconds}, CurrSamplesPerSec={run.batch / seconds}, "
            f"MemAllocated=2.25GB, MaxMemAllocated={run.memory / _GIB:.2f}GB"
        )


def deepspeed_pipeline(run):
    """Lines of DeepSpeed's pipeline engine."""
    for n, seconds in enumerate(run.seconds, 1):
        yield (
            f"steps: {n} loss: 2.3456 iter time (s): {seconds:0.3f} samples/sec: "
            f"{run.batch / seconds:0.3f}"
        )


def huggingface(run):
    """Progress bar of the Trainer, with bars of other kinds and its last line."""
    steps = len(run.seconds)
    yield "Map: 100%|██████████| 5000/5000 [00:02<00:00, 2300.12 examples/s]"
    yield "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.25s/it]"
    for n, seconds in enumerate(run.seconds, 1):
        rate = f"{seconds:5.2f}s/it" if seconds >= 1 else f"{1 / seconds:5.2f}it/s"
        yield f" {100 * n // steps:2d}%|█▏        | {n}/{steps} [00:30<03:40, {rate}]"
        if n % 10 == 0:
            yield "{'loss': 2.345, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}"
        if n == steps // 2:
            yield "100%|██████████| 3/3 [00:00<00:00, 31.25it/s]"
    yield from huggingface_end(run)


def huggingface_end(run):
    """The line that the Trainer ends with."""
    total = sum(run.seconds)
    steps = len(run.seconds)
    yield (
        f"{{'train_runtime': {total:.4f}, 'train_samples_per_second': "
        f"{steps * run.batch / total:.3f}, 'train_steps_per_second': {steps / total:.3f}, "
        "'train_loss': 2.345, 'epoch': 1.0}"
    )


def trainer_state(run):
    """trainer_state.json of the Trainer."""
    total, steps = sum(run.seconds), len(run.seconds)
    yield from ("{", f'  "global_step": {steps},', '  "log_history": [', "    {")
    yield '      "epoch": 0.1,'
    yield '      "loss": 2.345'
    yield from ("    },", "    {", f'      "train_runtime": {total:.4f},')
    yield f'      "train_samples_per_second": {steps * run.batch / total:.3f},'
    yield f'      "train_steps_per_second": {steps / total:.3f}'
    yield from ("    }", "  ]", "}")


def nemo2(run):
    """Lines of NeMo 2 with the timing callback."""
    for n, seconds in enumerate(run.seconds):
        yield (
            f"Training epoch 0, iteration {n}/{len(run.seconds)} | lr: 3e-05 | consumed_samples: "
            f"{n * run.batch} | global_batch_size: {run.batch} | global_step: {n} | "
            f"reduced_train_loss: 1.233 | train_step_timing in s: {seconds:.5f} | val_loss: 4.106"
        )


def nemo1(run):
    """The bar of NeMo 1, with the time of the step."""
    for n, seconds in enumerate(run.seconds, 1):
        yield (
            f"Epoch 0:   1%|          | {n}/77225 [9:07:58<878:01:48, {1.1 * seconds:.2f}s/it, "
            f"loss=3.1, v_num=, reduced_train_loss=3.090, global_step={n}.0, "
            f"consumed_samples=1.63e+6, train_step_timing in s={seconds:.4f}]"
        )


def maxtext(run):
    """Lines of MaxText."""
    for n, seconds in enumerate(run.seconds):
        yield (
            f"completed step: {n}, seconds: {seconds:.3f}, TFLOP/s/device: {400 / seconds:.3f}, "
            f"Tokens/s/device: {run.tokens / run.gpus / seconds:.3f}, total_weights: {run.tokens}, "
            "loss: 2.345, lm_loss: 2.345, perplexity: 10.4"
        )


WRITERS = {
    "megatron": megatron,
    "megatron-bridge": megatron_bridge,
    "primus": primus,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
    "deepspeed pipeline": deepspeed_pipeline,
    "huggingface": huggingface,
    "nemo 2": nemo2,
    "nemo 1": nemo1,
    "maxtext": maxtext,
}
"""Writers of lines with single steps."""


def write_log(path, writer, run):
    """Write a log and return its path."""
    path.write_text("".join(f"{line}\n" for line in writer(run)), encoding="utf-8")
    return path

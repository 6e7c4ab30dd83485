"""Measured runs and predictions for them, made by hand."""

from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import Run


def run_of(name, *, step=None, source="paper", count=8, batch=8, peak=None, **fields):
    """A run of some accelerators, 4,096 tokens in a sequence."""
    row = {
        "id": name,
        "source": source,
        "title": source,
        "ref": "arXiv",
        "grade": "A",
        "accelerator": "H100",
        "precision": "bf16",
        "gpus": count,
        "seq_len": 4096,
        "global_batch_size": batch,
        "measured": {"step_time_s": step, "memory": peak},
    }
    return Run.validated(row | fields)


def predicted(name, step, step_predicted, *, flops=None, interval=None, memory=None, **fields):
    """A run with what is predicted for it; model FLOPs of a cluster of 1 FLOP/s."""
    return Prediction(
        run=run_of(name, step=step, **fields),
        step_time_s=step_predicted,
        memory_gib=memory,
        model_flops_per_step=flops,
        peak_flops=1.0 if flops else None,
        interval=interval,
    )


def refused(name, reason, **fields):
    """A run that is not predicted."""
    return Prediction(run=run_of(name, **fields), refused=reason)

"""Measured runs and predictions for them, made by hand."""

from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.run import Run


def run_of(name, *, step=None, source="paper", count=8, batch=8, **fields):
    """A run of a small model on some accelerators, 4,096 tokens in a sequence."""
    row = {
        "id": name,
        "group": source,
        "grade": "A",
        "source": {"title": source, "ref": "arXiv"},
        "model": {"name": "m", "seq_len": 4096, "layers": 2},
        "hardware": {"accelerator": "H100", "count": count},
        "precision": "bf16",
        "global_batch": batch,
        "measured": {"step_time_s": step},
    }
    return Run.validated(row | fields)


def predicted(name, step, told, *, flops=None, interval=None, memory=None, **fields):
    """A run with what is predicted for it; model FLOPs of a cluster of 1 FLOP/s."""
    return Prediction(
        run=run_of(name, step=step, **fields),
        step_time_s=told,
        memory_gib=memory,
        model_flops_per_step=flops,
        peak_flops=1.0 if flops else None,
        interval=interval,
    )


def refused(name, reason, **fields):
    """A run that is not predicted."""
    return Prediction(run=run_of(name, **fields), refused=reason)

"""Words that tables and charts of FSDP2 plans share."""

from collections.abc import Sequence

from rich.text import Text

from shardwise.fsdp.result import FsdpPlan
from shardwise.report.console import gpu_count

__all__ = ["CATEGORY_WORDS", "run_words", "summary"]

CATEGORY_WORDS = {
    "sharded_weights": "sharded weights",
    "optimizer": "optimizer state",
    "sharded_gradients": "sharded gradients",
    "unsharded_weights": "gathered weights",
    "gradients": "gradients",
    "all_gather_buffers": "all-gather buffers",
    "reduce_scatter_buffers": "reduce-scatter buffers",
    "activations": "activations",
    "fixed": "buffers and inputs",
}


def run_words(result: FsdpPlan) -> str:
    """The setting in a line."""
    setting = result.setting
    gpus = gpu_count(setting.gpus)
    if setting.replicas > 1:
        gpus += f" = {setting.replicas} replicas of {setting.shards} shards"
    told = [gpus if result.system is None else f"{gpus} of {result.system}"]
    if result.batch is not None:
        told.append(f"{result.batch} x {result.seq_len} tokens on each")
    told.append(f"weights {setting.stored_dtype}, gathered {setting.compute_dtype}")
    told.append(f"gradients reduced in {setting.reduce_dtype}")
    told.append(f"optimizer {setting.optimizer}")
    return ", ".join(told)


def summary(rows: Sequence[tuple[str, str, str]]) -> Text:
    """Lines of a name, a figure and what there is to say of it; they may wrap."""
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"{name:<{first}}   {figure:<{second}}   {told}" for name, figure, told in rows]
    return Text("\n".join(line.rstrip() for line in lines))

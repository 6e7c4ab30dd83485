"""How estimates, training runs and recipes are shown in Python."""

from collections.abc import Mapping
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.planning.recipes import RecipeEstimate
from shardwise.report.charts.estimate import charts
from shardwise.report.charts.totals import days_of_run
from shardwise.report.console import count, gpu_count, percent, seconds, show
from shardwise.report.page.shared import time_words
from shardwise.report.tables.cluster import days, dollars
from shardwise.report.tables.estimate import print_estimate, verdict
from shardwise.report.tables.recipes import print_recipe
from shardwise.report.tables.strategy_line import in_brief
from shardwise.report.views.view import Summary, View
from shardwise.units import readable

_HINT = ".explain() where time and memory go; .plot() charts; .to_dict() every figure"


def step_words(result: Estimate) -> str:
    """The step time with its interval, and what it is worth."""
    interval = result.interval
    ends = None if interval is None else (interval.low_s, interval.high_s)
    rate = f"{result.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
    return f"{time_words(result.step_time_s, ends)}; MFU {percent(result.mfu)}, {rate}"


def memory_words(result: Estimate) -> str:
    """Whether it fits, and what the peak-memory stage needs."""
    memory = result.memory_bytes
    needed, usable = (readable(size, "bytes") for size in (memory.needed, memory.capacity))
    return f"{verdict(result)} ({needed} of {usable})"


def strategy_words(strategy: Mapping[str, Any]) -> str:
    """A strategy with its batch."""
    batch = f"global batch {strategy['global_batch_size']:,} x {strategy['seq_len']:,} tokens"
    return f"{in_brief(strategy)}; {batch}"


def _estimate(result: Estimate) -> Summary:
    software = result.software
    release = f" ({software.release})" if software.release else ""
    where = f"{gpu_count(result.strategy['gpus'])} of {result.system}"
    return Summary(
        title=f"Estimate: {result.model} on {where} with {software.stack}{release}",
        rows=[
            ("strategy", strategy_words(result.strategy)),
            ("memory", memory_words(result)),
            ("step time", step_words(result)),
        ],
        hint=_HINT,
    )


def _training_time(run: TrainingTime) -> Summary:
    tokens = f"{count(run.tokens_asked)} tokens"
    goodput = "unknown" if run.goodput is None else percent(run.goodput.goodput)
    usd = run.effective_usd
    price = "price unknown" if usd is None else dollars(usd)
    return Summary(
        title=f"TrainingTime: {run.model} on {gpu_count(run.gpus)} of {run.system}, {tokens}",
        rows=[
            ("time", f"{days(run.effective_days)} days, {run.steps:,} steps, {price}"),
            ("goodput", goodput),
        ],
        hint=".explain() every figure with its range; .plot(); .to_dict()",
    )


def _recipe(one: RecipeEstimate) -> Summary:
    measured = seconds(one.measured_step_time_s)
    return Summary(
        title=f"RecipeEstimate: {one.name}",
        rows=[
            ("measured", f"{measured}, {one.measured_tokens_per_s_per_gpu:,.0f} tokens/s per GPU"),
            ("estimated", f"{step_words(one.estimate)}; {100 * one.error:+.1f} % off"),
        ],
        hint=".explain() the recipe; .estimate",
    )


VIEWS: dict[str, View[Any]] = {
    "Estimate": View(summary=_estimate, tables=print_estimate, charts=charts, folded=1),
    "RecipeEstimate": View(
        summary=_recipe, tables=print_recipe, charts=lambda one: charts(one.estimate)
    ),
    "TrainingTime": View(
        summary=_training_time,
        tables=lambda run: show(str(run)),
        charts=lambda run: {"days": days_of_run(run)},
    ),
}

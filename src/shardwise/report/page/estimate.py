"""The report of an estimate."""

from shardwise.analysis.results import Estimate
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.report.charts.common import plotly
from shardwise.report.charts.estimate import charts, detail_charts
from shardwise.report.console import gpu_count, percent
from shardwise.report.page.html import Lines
from shardwise.report.page.printed import printed_blocks
from shardwise.report.page.shared import Report, evidence, requested, source_table, time_words
from shardwise.report.tables.estimate import print_estimate, verdict


def report_of(
    result: Estimate, command: str, inputs: tuple[Model, System, Strategy] | None = None
) -> Report:
    """Return the report of an estimate; with its inputs also with pipeline and roofline."""
    drawn, missing = ({}, []) if inputs is None else detail_charts(result, inputs)
    *results, closing = printed_blocks(lambda: print_estimate(result))
    own = {name: value for name, value in result.strategy.items() if name not in result.assumed}
    question = [("model", result.model), ("system", result.system), *requested(own)]
    interval = result.interval
    ends = None if interval is None else (interval.low_s, interval.high_s)
    fits = verdict(result)
    answer = (
        f"{fits[0].upper()}{fits[1:]}. "
        f"A step takes {time_words(result.step_time_s, ends)}: {result.tokens_per_s:,.0f} tokens/s "
        f"on {gpu_count(result.strategy['gpus'])}, MFU {percent(result.mfu)}."
    )
    defaults = [f"{name} {value}" for name, value in requested(result.assumed)]
    every = Lines(items=[f"every field that was not set: {', '.join(defaults)}"])
    return Report(
        title=f"{result.model} on {result.system}: step time, memory and cost",
        answer=answer,
        question=question,
        charts=charts(result) | {name: plotly().Figure(one) for name, one in drawn.items()},
        results=results,
        assumptions=[
            *evidence(result),
            closing,
            *([every] if defaults else []),
            *([Lines(items=missing)] if missing else []),
        ],
        sources=source_table(result.provenance),
        command=command,
    )

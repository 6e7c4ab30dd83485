"""The report of a search."""

from shardwise.planning.search.results import SearchResult
from shardwise.report.charts.plans import search_words
from shardwise.report.charts.search import charts
from shardwise.report.console import percent
from shardwise.report.page.html import Lines
from shardwise.report.page.printed import joined, printed_blocks
from shardwise.report.page.shared import Report, evidence, requested, source_table, time_words
from shardwise.report.tables.advice import claim_words
from shardwise.report.tables.estimate import closing_lines
from shardwise.report.tables.search import closing, print_search
from shardwise.report.tables.strategy_line import in_brief


def report_of(result: SearchResult, command: str) -> Report:
    """Return the report of a search."""
    best = next(iter(result.rows), None)
    question = [("model", result.model), ("system", result.system), ("best by", result.objective)]
    question += requested(result.space)
    scope = f"{result.candidates:,} strategies were considered, {result.timed:,} of them timed"
    counted = "counts are exact" if result.counts_exact else "counts are lower bounds"
    lines = [f"{scope}; {counted}"]
    if not result.complete:
        lines.append("interrupted: this is what was found in a part of the space")
    assumptions = [Lines(items=lines)]
    return Report(
        title=f"The best way to run {search_words(result)}",
        answer=_answer(result),
        question=question,
        charts=charts(result),
        results=printed_blocks(lambda: print_search(result)),
        assumptions=assumptions
        if best is None
        else [*assumptions, *evidence(best), Lines(items=joined(closing_lines(best)))],
        sources=[] if best is None else source_table(best.provenance),
        command=command,
    )


def _answer(result: SearchResult) -> str:
    """The recommended plan with its interval, or why there is none."""
    best = next(iter(result.rows), None)
    if best is None:
        why = "; ".join(closing(result))
        return f"{why[0].upper()}{why[1:]}."
    interval = best.interval
    ends = None if interval is None else (interval.low_s, interval.high_s)
    claim = "" if result.recommended is None else claim_words(result.recommended)
    text = f"{claim[0].upper()}{claim[1:]}. " if claim else ""
    text += (
        f"The plan to run of {result.candidates:,} strategies is {in_brief(best.strategy)}: a step "
        f"of {time_words(best.step_time_s, ends)}, {best.tokens_per_s_per_gpu:,.0f} tokens/s per "
        f"GPU, MFU {percent(best.mfu)}"
    )
    if result.alike is not None:
        text += f"; measurements cannot separate the first {result.alike.plans} plans"
    return f"{text}."

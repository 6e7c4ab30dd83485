"""The plan that a search recommends, in a few lines."""

from collections.abc import Iterator

from shardwise.analysis.measured_plans import MeasuredPlan
from shardwise.config.strategy_fields import DEGREES
from shardwise.planning.search.results import Recommendation, RecommendedPlan, SearchResult
from shardwise.report.console import chance, gib, gpu_count, percent, seconds
from shardwise.report.tables.strategy_line import in_brief


def recommendation_lines(result: SearchResult) -> list[str]:
    """Return what a search recommends as lines; a claim that nobody has measured comes first."""
    found = result.recommendation
    items = [] if found is None else recommendation_items(found)
    return [f"{label + ':':9} {text}" for label, text in items]


def claim_words(plan: RecommendedPlan) -> str:
    """Return how far a plan is above the best measured run; empty where it is not too far."""
    best, over = plan.best_measured, plan.over_measured
    if best is None or over is None or not plan.beyond_measured:
        return ""
    of = "the model" if best.same_model else f"its nearest relative {best.model}"
    return (
        f"beyond what was measured: {plan.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{percent(plan.mfu)}, is {percent(over)} above the best run of {of} in {best.precision} "
        f"on {best.generation}: {measured_words(best)}"
    )


def measured_words(run: MeasuredPlan) -> str:
    """Return a measured run in words, with its measured time."""
    degrees = " ".join(f"{n} {size}" for n, size in run.layout.items() if n in DEGREES and size > 1)
    return (
        f"{seconds(run.step_time_s)} a step, {run.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{percent(run.mfu)} ({run.model}, {gpu_count(run.gpus)} of {run.system}, "
        f"{run.precision}, batch {run.global_batch_size:,}, {degrees}; {run.id})"
    )


def avoided_lines(result: SearchResult, how: str) -> list[str]:
    """Return what a search avoided and why, as lines; none if it avoided nothing.

    Parameters
    ----------
    how
        How to try it nevertheless.
    """
    if not result.avoided:
        return []
    lines = [f"  {o.values}: {o.because} ({o.source}, {o.date})" for o in result.avoided]
    return [f"avoided, reported broken, slower or never used ({how}):", *lines]


def recommendation_items(found: Recommendation) -> list[tuple[str, str]]:
    """Return what a search recommends, each with its label."""
    plan, safer = found.plan, found.safer
    items = [("warning", claim_words(plan)), ("run", in_brief(plan.strategy))]
    p80 = "" if plan.step_time_p80_s is None else f" (p80 {seconds(plan.step_time_p80_s)})"
    step = (
        f"{seconds(plan.step_time_s)}{p80}, {plan.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{percent(plan.mfu)}, {gib(plan.memory_bytes.reserved)} GiB"
    )
    items += [("step", step), ("sure", "; ".join(_chances(plan))), ("why", plan.why)]
    if safer is not None:
        likely = chance(safer.fits_probability)
        text = f"plan {safer.rank} fits with {likely}, {percent(safer.price)} slower"
        items.append(("safer", f"{text}: {in_brief(safer.strategy)}"))
    if found.nearest_measured is not None:
        items.append(("measured", measured_words(found.nearest_measured)))
    if plan.commands:
        items.append(("next", list(plan.commands.values())[-1]))
    items.append(("file", plan.not_written))
    return [(label, text) for label, text in items if text]


def _chances(plan: RecommendedPlan) -> Iterator[str]:
    """How sure it is that a plan fits and is the fastest, and what that rests on."""
    if plan.fits_probability is not None:
        yield f"fits with {chance(plan.fits_probability)}"
    if plan.fastest_probability is not None:
        number = plan.measured_configurations
        known = "no measured run is" if not number else f"{number:,} measured configurations are"
        yield f"the fastest of these with {chance(plan.fastest_probability)}"
        yield f"{known} of its class ({plan.measured_class})"

"""The plan that a search recommends, in a few lines."""

from collections.abc import Iterator

from shardwise.analysis.measured_plans import MeasuredPlan
from shardwise.planning.search.results import RecommendedPlan, SearchResult
from shardwise.report.console import gib, gpu_count, percent, seconds
from shardwise.report.tables.strategy_line import in_brief


def recommendation_lines(result: SearchResult) -> list[str]:
    """Return the recommendation as lines; a claim that nobody has measured comes first."""
    return list(_lines(result))


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
    degrees = " ".join(f"{name} {run.layout[name]}" for name in ("tp", "pp", "dp", "ep"))
    return (
        f"{seconds(run.step_time_s)} a step, {run.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU "
        f"{percent(run.mfu)} ({run.model}, {gpu_count(run.gpus)} of {run.system}, "
        f"{run.precision}, batch {run.global_batch_size:,}, {degrees}; {run.id})"
    )


def _lines(result: SearchResult) -> Iterator[str]:
    plan = result.recommended
    if plan is None:
        return
    if claim := claim_words(plan):
        yield claim
    yield f"run plan 1: {in_brief(plan.strategy)}"
    fits = getattr(plan, "fits_probability", None)
    chance = "" if fits is None else f"; fits with a probability of {percent(fits)}"
    yield (
        f"  {seconds(plan.step_time_s)} a step, {plan.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, "
        f"MFU {percent(plan.mfu)}, {gib(plan.memory_bytes.reserved)} GiB{chance}"
    )
    if plan.fastest_probability is not None:
        known = plan.measured_configurations
        of = "no measured configuration has" if not known else f"{known:,} measured have"
        yield (
            f"  the fastest of these with a probability of {percent(plan.fastest_probability)}; "
            f"{of} its features: {plan.measured_class}"
        )
    if plan.why:
        yield f"  why: {plan.why}"
    if (safer := result.safer) is not None:
        yield (
            f"  safer: plan {safer.rank}, fits with a probability of "
            f"{percent(safer.fits_probability)}, {percent(safer.price)} slower"
        )
    if result.nearest_measured is not None:
        yield f"  nearest measured: {measured_words(result.nearest_measured)}"
    if plan.commands:
        yield f"  next: {list(plan.commands.values())[-1]}"

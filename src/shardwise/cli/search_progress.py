"""The bar of a search, with the best plan so far."""

from shardwise.cli.output import Bar
from shardwise.config.strategy_fields import EXPERT_DEGREES, LINE_FIELDS, RANK_DEGREES
from shardwise.planning.search.progress import BestSoFar, Progress
from shardwise.units import readable

_DEGREES = tuple(name for name in LINE_FIELDS if name in (*RANK_DEGREES, *EXPERT_DEGREES))


def progress_of(bar: Bar | None) -> Progress | None:
    """Return the function that updates the bar with the best plan so far."""
    if bar is None:
        return None

    def update(done: int, total: int, best: BestSoFar | None) -> None:
        bar(done, total, "nothing fits yet" if best is None else _in_a_line(best))

    return update


def _in_a_line(best: BestSoFar) -> str:
    """The degrees, the step time and the rate of a plan."""
    degrees = " ".join(f"{axis} {getattr(best.strategy, axis)}" for axis in _DEGREES)
    time = readable(best.step_time_s, "seconds")
    return f"best so far: {degrees}, {time}, {best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"

"""The bar of a search, with the best plan so far."""

from shardwise.cli.output import Bar
from shardwise.planning.search.progress import BestSoFar, Progress
from shardwise.units import readable

_DEGREES = ("tp", "pp", "cp", "ep", "dp")


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

"""`SweepResult`: what a sweep found at every point, and what would help most there."""

from typing import TYPE_CHECKING, Any, Literal

from shardwise.analysis.results import Result
from shardwise.planning.search.results import Plan

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Axis", "Influence", "PointPlan", "SweepPoint", "SweepResult"]

AxisKind = Literal["system", "model", "strategy"]


class Axis(Result):
    """What is varied, and the values it takes."""

    name: str
    """As it was asked for, short names written out: ``nvlink.bandwidth``, ``matrix+vector``."""
    kind: AxisKind
    """Whether it is a figure of the system, of the model, or a field of the strategy."""
    unit: str | None
    """Of the values of the points: a key of `units.UNITS`, ``x`` for a factor on figures that
    differ among themselves, None for counts, shares and words."""
    labels: tuple[str, ...]
    """The values as they were asked for: ``0.5x``, ``900 GB/s``, ``64``."""


class PointPlan(Plan):
    """One strategy at one point."""

    fits: bool
    """Always true of what a search found; a strategy held fixed may not fit."""
    time_s: dict[str, float]
    """Disjoint parts of the step, in the order of `step.TIME_PARTS` [s]."""
    memory_bytes: dict[str, float]
    """Of the fullest stage: the parts of `memory.MEMORY_PARTS`, `total`, `reserved`, `offloaded`,
    `capacity`."""


class Influence(Result):
    """What one figure of the system does to the step time of the best strategy of a point."""

    figure: str
    """Its name, as --vary takes it."""
    unit: str | None
    value: float | None
    """What it is now; None where the name stands for several figures."""
    elasticity: float
    """d ln t / d ln x: per cent of step time for one per cent more of the figure."""
    factor: float
    """The change that helps: 2 for what is better more, 0.5 for what is better less."""
    step_time_s: float
    """Of the same strategy with the figure times `factor`."""
    saved: float
    """Part of the step time which that saves."""
    best_step_time_s: float | None
    """Of the strategy that is best then; None where the strategies were not searched again."""
    best_saved: float | None
    """Part of the step time which that saves."""


class SweepPoint(Result):
    """One combination of values of the axes on one system."""

    system: str
    at: tuple[int, ...]
    """Position of its value on each axis: in `Axis.labels`."""
    values: dict[str, Any]
    """Value on each axis by the axis's name, in its unit."""
    best: tuple[PointPlan, ...]
    """Best first; the strategy itself where it was held fixed; empty where there is none."""
    rejected: dict[str, int]
    """How many strategies there were beside the feasible ones, by reason; most frequent first."""
    problem: str | None
    """Why there is no strategy; None where there is one."""
    sensitivity: tuple[Influence, ...] = ()
    """By the size of the elasticity, largest first; empty unless asked for."""


class SweepResult(Result):
    """The best strategies at every point of a sweep."""

    model: str
    systems: tuple[str, ...]
    axes: tuple[Axis, ...]
    searched: bool
    """Whether the best strategy was looked for at every point; if not, one was held fixed."""
    strategy: dict[str, Any] | None
    """Fields of the strategy that was held fixed."""
    space: dict[str, Any] | None
    """The space that was searched, as it was declared."""
    objective: str
    points: tuple[SweepPoint, ...]
    """By system, then by axis, the last one changing first."""
    assumed: tuple[str, ...]
    """What was changed along with the figures that were asked for."""
    candidates: int
    """Strategies tried, over all points."""
    elapsed_s: float
    complete: bool
    """Whether every point was looked at."""

    def point(self, *at: int, system: str | None = None) -> SweepPoint:
        """Return the point at some position of each axis, on the first system or a named one."""
        named = self.systems[0] if system is None else system
        return next(p for p in self.points if p.at == at and p.system == named)

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame: a row for each point and each strategy that was kept there.

        Columns: `system`, one for each axis, `rank` (1 is the best; null where there is none),
        `problem`, `step_time_s` and the other rates, `fits`, ``{part}_s``, ``{part}_bytes``, and
        ``strategy.{field}``.
        """
        import polars as pl  # noqa: PLC0415 - heavy; only where a frame is asked for

        rows = [
            _row(point, rank) for point in self.points for rank in range(max(1, len(point.best)))
        ]
        return pl.DataFrame(rows, infer_schema_length=None)


def _row(point: SweepPoint, rank: int) -> dict[str, Any]:
    """One strategy of a point as a row; the point alone where it has none."""
    row: dict[str, Any] = {"system": point.system, **point.values}
    if rank >= len(point.best):
        return {**row, "rank": None, "problem": point.problem}
    plan = point.best[rank].to_dict()
    times, held, strategy = (plan.pop(name) for name in ("time_s", "memory_bytes", "strategy"))
    return {
        **row,
        "rank": rank + 1,
        "problem": point.problem,
        **plan,
        **{f"{part}_s": value for part, value in times.items()},
        **{f"{part}_bytes": value for part, value in held.items()},
        **{f"strategy.{field}": _plain(value) for field, value in strategy.items()},
    }


def _plain(value: Any) -> Any:
    """A field of a strategy as one cell."""
    if isinstance(value, dict):
        return value.get("name")
    return " ".join(map(str, value)) if isinstance(value, list) else value

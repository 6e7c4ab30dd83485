"""`SweepResult`: what a sweep found at every point, and which figures matter most there."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from shardwise.analysis import Result, part_faults, strategy_faults
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault, kind_of
from shardwise.planning.search.results import Plan
from shardwise.shown import Brief, Charted, Framed

if TYPE_CHECKING:
    import polars as pl


AxisKind = Literal["system", "model", "strategy"]
_MEMORY = (*MEMORY_PARTS, "total", "reserved", "offloaded", "capacity")


class Axis(Result):
    """A varied field or figure, and its values."""

    name: str
    """As requested, with short names written out: ``nvlink.bandwidth``, ``matrix+vector``."""
    kind: AxisKind
    """A figure of the system, of the model, or a field of the strategy."""
    unit: str | None
    """Unit of the values of the points: a key of `units.UNITS`, ``x`` for a factor on several
    different figures, None for counts, shares and words."""
    labels: tuple[str, ...]
    """The values as requested: ``0.5x``, ``900 GB/s``, ``64``."""


class PointPlan(Plan):
    """One strategy at one point."""

    fits: bool
    """Always true for a search; a fixed strategy may not fit."""
    time_s: Mapping[str, float]
    """Disjoint parts of the step, in the order of `step.TIME_PARTS` [s]."""
    memory_bytes: Mapping[str, float]
    """Of the peak-memory stage: the parts of `memory.MEMORY_PARTS`, `total`, `reserved`,
    `offloaded`, `capacity`."""

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved plan that does not fit the others."""
        yield from super().contradictions()
        yield from part_faults("time_s", self.time_s, TIME_PARTS)
        yield from part_faults("memory_bytes", self.memory_bytes, _MEMORY)


class Influence(Result):
    """The effect of one figure of the system on the step time of the best strategy of a point."""

    figure: str
    """Its name, as in --vary."""
    kind: Literal["hardware", "constant"]
    """A lever that a buyer can change (bandwidths, latencies, capacities, rates, links), or a
    constant of the model (efficiencies, launches, curves), most of them fitted to measurements."""
    unit: str | None
    value: float | None
    """Its current value; None where the name refers to several figures."""
    elasticity: float
    """d ln t / d ln x: per cent change of the step time per per cent change of the figure."""
    factor: float
    """The change that improves it: 2 where higher is better, 0.5 where lower is."""
    step_time_s: float
    """Of the same strategy with the figure times `factor`."""
    saved: float
    """Share of the step time that this saves."""
    best_step_time_s: float | None
    """Of the best strategy with that figure; None without a new search."""
    best_saved: float | None
    """Share of the step time that this saves; of the score, if another objective was requested."""
    worse_factor: float
    """The opposite change: 0.5 where higher is better, 2 where lower is."""
    worse_step_time_s: float
    """Of the same strategy with the figure times `worse_factor`."""
    lost: float
    """Share of the step time that this adds."""
    worse_fits: bool
    """Whether the same strategy still fits."""
    best_worse_step_time_s: float | None
    """Of the best strategy with that figure; None without a new search, and where nothing fits."""
    best_lost: float | None
    """Share of the step time that this adds, as `best_saved`."""


class SweepPoint(Brief, Result):
    """One combination of values of the axes on one system.

    Examples
    --------
    >>> from shardwise import sweep
    >>> run = {"gpus": 16, "tp": 4, "gbs": 64}
    >>> found = sweep("llama3-8b", "h100-sxm", strategy=run, vary={"fabric.bandwidth": "0.5x,1x"})
    >>> point = found.point(1)
    >>> point.values, len(point.best)
    ({'fabric.bandwidth': 50000000000.0}, 1)
    """

    system: str
    at: tuple[int, ...]
    """Position of its value in `Axis.labels`, for each axis."""
    values: Mapping[str, Any]
    """Value on each axis by name, in its unit."""
    best: tuple[PointPlan, ...]
    """Best first; the strategy itself if it was fixed; empty where there is none."""
    rejected: Mapping[str, int]
    """Number of strategies that are not feasible, by reason; most frequent first."""
    problem: str | None
    """Why there is no strategy; None where there is one."""
    sensitivity: tuple[Influence, ...] = ()
    """Hardware, then constants; each by absolute elasticity, largest first. Empty unless
    requested."""


class SweepResult(Charted, Framed, Result):
    """The best strategies at every point of a sweep.

    Examples
    --------
    >>> from shardwise import sweep
    >>> run = {"gpus": 16, "tp": 4, "gbs": 64}
    >>> found = sweep("llama3-8b", "h100-sxm", strategy=run, vary={"fabric.bandwidth": "0.5x,1x"})
    >>> found.to_frame().select("rank", "fits").rows()
    [(1, True), (1, True)]
    """

    ADDED: ClassVar[tuple[str, ...]] = ("launch",)

    model: str
    systems: tuple[str, ...]
    axes: tuple[Axis, ...]
    searched: bool
    """Whether a search ran at every point; if not, the strategy was fixed."""
    strategy: Mapping[str, Any] | None
    """Fields of the fixed strategy."""
    space: Mapping[str, Any] | None
    """The space that was searched, as declared."""
    launcher: str | None = None
    """Launcher that can run every listed plan, if one was requested."""
    left_out: int = 0
    """Plans that would be listed if that launcher could run them."""
    objective: str
    reoptimised: bool = False
    """Whether the best strategy was searched again for every change of the hardware."""
    points: tuple[SweepPoint, ...]
    """By system, then by axis, the last one changing first."""
    assumed: tuple[str, ...]
    """What else changed along with the requested figures."""
    candidates: int
    """Strategies tried at all points."""
    elapsed_s: float
    complete: bool
    """Whether every point was evaluated."""

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved sweep that does not fit the others."""
        if self.strategy is not None:
            yield from strategy_faults(self, self.strategy, resolved=False)
        names, sizes = [a.name for a in self.axes], [len(a.labels) for a in self.axes]
        for index, point in enumerate(self.points):
            place = f"points[{index}]"
            if point.system not in self.systems:
                problem = f"allowed: {', '.join(self.systems)}"
                yield Fault.of(f"{place}.system", point.system, problem)
            inside = [0 <= i < size for i, size in zip(point.at, sizes, strict=False)]
            if len(point.at) != len(sizes) or not all(inside):
                problem = f"must be a position on each axis, of {sizes} values"
                yield Fault.of(f"{place}.at", point.at, problem)
            if sorted(point.values) != sorted(names):
                problem = f"must have a value for each axis: {', '.join(names)}"
                yield Fault.of(f"{place}.values", point.values, problem)
        for name in names:
            values = [point.values[name] for point in self.points if name in point.values]
            kinds = {kind_of(value) for value in values if value is not None}
            if len(kinds) > 1 or not kinds <= {"a number", "text", "true or false"}:
                problem = f"must be all numbers or all text, not {' and '.join(sorted(kinds))}"
                yield Fault(field=f"points: values.{name}", problem=problem)

    def point(self, *at: int, system: str | None = None) -> SweepPoint:
        """Return the point at a position of each axis, on the first or a named system."""
        named = self.systems[0] if system is None else system
        return next(p for p in self.points if p.at == at and p.system == named)

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame with a row for each point and each of its best strategies.

        Columns: `system`, one for each axis, `rank` (1 is the best; null where there is none),
        `problem`, `step_time_s` and the other rates, `fits`, ``{part}_s``, ``{part}_bytes``, and
        ``strategy.{field}``.
        """
        import polars as pl  # noqa: PLC0415 - heavy; only where requested

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
    times, memory, strategy = (plan.pop(name) for name in ("time_s", "memory_bytes", "strategy"))
    return {
        **row,
        "rank": rank + 1,
        "problem": point.problem,
        **plan,
        **{f"{part}_s": value for part, value in times.items()},
        **{f"{part}_bytes": value for part, value in memory.items()},
        **{f"strategy.{field}": _plain(value) for field, value in strategy.items()},
    }


def _plain(value: Any) -> Any:
    """A field of a strategy as one cell."""
    if isinstance(value, dict):
        return value.get("name")
    return " ".join(map(str, value)) if isinstance(value, list) else value

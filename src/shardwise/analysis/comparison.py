"""`Comparison`: the results of scenarios side by side."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AllowInfNan, Field, field_serializer

from shardwise.analysis import Result, member_faults, part_faults
from shardwise.analysis.results import Interval, Memory
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault
from shardwise.shown import Charted, Framed

if TYPE_CHECKING:
    import polars as pl


BEST_BY = {
    "step_time_s": "step time",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s per GPU",
    "usd_per_billion_tokens": "price of a token",
    "effective_days": "days of the training run",
}
"""What a scenario may be best by, in words."""
_FEWEST = 2


class InputDifference(Result):
    """One input that differs."""

    field: str
    """`model`, `system`, a field of the strategy, or what follows from these: `parameters`,
    `micro_batches`, `tokens_per_step`."""
    values: tuple[Any, ...]
    """In the order of the scenarios."""
    given: tuple[bool, ...]
    """Whether a user set it; if not, it follows from others or is the default."""
    words: str
    """What it is, in a few words."""


class Outcome(Result):
    """The results of one scenario."""

    name: str
    model: str
    system: str
    gpus: int
    fits: bool
    fits_probability: float | None = None
    """As in `Estimate`."""
    step_time_s: float
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    memory_bytes: Memory
    """Of the peak-memory stage."""
    usd_per_billion_tokens: float | None
    price: str = ""
    """Price of a GPU-hour that this rests on, with provider, region, term and date."""
    kwh_per_billion_tokens: float | None
    effective_days: Annotated[float, AllowInfNan(allow_inf_nan=True)] | None
    """Of the training run, if there is one; infinite (null in JSON) if it never ends."""
    effective_usd: float | None
    time_s: Mapping[str, float]
    """Parts of the time: see `Comparison.per`."""
    interval: Interval | None = None
    """Range of the measured time of a step."""
    unmeasured_features: tuple[str, ...] = ()
    """Features that no measured run used."""

    @field_serializer("effective_days", when_used="json-unless-none")
    def _finite(self, days: float) -> float | None:
        return days if isfinite(days) else None


class PartChange(Result):
    """One part of the time, before and after."""

    part: str
    before_s: float
    after_s: float
    delta_s: float
    share: float | None
    """Relative to the part before; None if that is 0."""
    hidden_before_s: float
    """Communication that did not lengthen the step."""
    hidden_after_s: float
    inputs: tuple[str, ...]
    """Changed inputs that act on it, by the table of `causes`; not how much each contributes."""
    follows: tuple[str, ...]
    """Changed parts that it changes with."""


class Change(Result):
    """From the first scenario to another one."""

    name: str
    against: str
    before_s: float
    after_s: float
    delta_s: float
    """The sum of the deltas of the parts."""
    share: float
    """Relative to the time before."""
    parts: tuple[PartChange, ...]
    """Parts that either of the two has, in the order of the step."""


class Comparison(Charted, Framed, Result):
    """Scenarios side by side; the first is the reference of the others.

    Examples
    --------
    >>> from shardwise import estimate
    >>> one = estimate("llama3-8b", "h100-sxm", gpus=8, tp=2, gbs=64)
    >>> two = estimate("llama3-8b", "h100-sxm", gpus=8, tp=4, gbs=64)
    >>> found = one.compare(two, names=["tp 2", "tp 4"])
    >>> found.best["step_time_s"], found.changes[0].delta_s > 0
    ('tp 2', True)
    """

    per: Literal["step", "million tokens"]
    """Unit of work of the times: a step if all scenarios have equally many tokens in one."""
    asked: tuple[InputDifference, ...]
    """Inputs that differ."""
    scenarios: tuple[Outcome, ...]
    changes: tuple[Change, ...]
    """One for each scenario but the first."""
    best: Mapping[str, str | None]
    """Name of the best that fits, for each of `BEST_BY`; None where not all can be compared."""
    notes: tuple[str, ...]
    """Caveats of the figures."""
    alike: tuple[str, ...] = ()
    """Scenarios of one model on one system that fit and that measurements cannot separate from the
    fastest of them, safest first: fewest features that no measured run used, then fastest."""
    within: float | None = None
    """Least relative difference that measurements resolve, where some are alike."""
    break_even: Mapping[str, float] = Field(default_factory=dict)
    """By system, the price of a GPU-hour [USD] at which its cheapest scenario costs as much per
    token as the cheapest one on another system."""

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved comparison that does not fit the others."""
        names = [one.name for one in self.scenarios]
        if len(names) < _FEWEST or len(set(names)) < len(names):
            yield Fault.of("scenarios", names, "must be two or more with different names")
        changed = (name for one in self.changes for name in (one.name, one.against))
        for field, used in (("changes", changed), ("alike", self.alike)):
            yield from member_faults(field, used, names, "scenarios")
        yield from member_faults("best", self.best.values(), names, "scenarios")
        yield from member_faults("best", self.best, BEST_BY, "figures")
        systems = [one.system for one in self.scenarios]
        yield from member_faults("break_even", self.break_even, systems, "systems")
        for one in self.asked:
            if not len(one.values) == len(one.given) == len(names):
                problem = f"must have a value for each of the {len(names)} scenarios"
                yield Fault(field=f"asked.{one.field}", problem=problem)
        for scenario in self.scenarios:
            yield from part_faults("scenarios: time_s", scenario.time_s, TIME_PARTS)

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame with a row for each scenario."""
        import polars as pl  # noqa: PLC0415 - heavy; only where requested

        return pl.DataFrame([_row(outcome) for outcome in self.scenarios])


def _row(outcome: Outcome) -> dict[str, Any]:
    """One row; parts of time and memory have their unit in the name."""
    plain = outcome.to_dict()
    plain |= _interval_columns(plain.pop("interval"))
    plain["unmeasured_features"] = " ".join(plain["unmeasured_features"])
    times = {f"{part}_s": time_s for part, time_s in plain.pop("time_s").items()}
    memory = {f"{part}_bytes": size for part, size in plain.pop("memory_bytes").items()}
    return plain | times | memory


def _interval_columns(interval: dict[str, float] | None) -> dict[str, float | None]:
    """Bounds of the measured time of a step."""
    return {f"interval_{name}": (interval or {}).get(name) for name in ("low_s", "high_s")}

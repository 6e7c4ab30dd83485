"""`Comparison`: scenarios side by side."""

from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_serializer

from shardwise.analysis.results import Memory, Result

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Asked", "Change", "Comparison", "Outcome", "PartChange"]


class Asked(Result):
    """One input that differs."""

    field: str
    """`model`, `system`, a field of the strategy, or what follows from these: `parameters`,
    `micro_batches`, `tokens_per_step`."""
    values: tuple[Any, ...]
    """In the order of the scenarios."""
    given: tuple[bool, ...]
    """Whether somebody gave it; if not, it follows from others or is the usual."""
    words: str
    """What it is, in plain words."""


class Outcome(Result):
    """What came out of one scenario."""

    name: str
    model: str
    system: str
    gpus: int
    fits: bool
    step_time_s: float
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    memory_bytes: Memory
    """Of the fullest stage."""
    usd_per_billion_tokens: float | None
    kwh_per_billion_tokens: float | None
    effective_days: float | None
    """Of the whole run, if the scenario tells of one; infinite (null in JSON) if it never ends."""
    effective_usd: float | None
    time_s: dict[str, float]
    """Parts of what is compared: see `Comparison.per`."""

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
    """Of the part before; None if it was 0."""
    hidden_before_s: float
    """What of its exchange did not lengthen the step."""
    hidden_after_s: float
    inputs: tuple[str, ...]
    """Changed inputs that act on it, by the table of `scenarios.causes`; how much each of them did
    is not told."""
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
    """Of the time before."""
    parts: tuple[PartChange, ...]
    """Those that one of the two has, in the order of the step."""


class Comparison(Result):
    """Scenarios side by side, the first as what the others are held against."""

    per: Literal["step", "million tokens"]
    """What the times of parts and changes are of: a step if all have as many tokens in one."""
    asked: tuple[Asked, ...]
    """Inputs that differ."""
    scenarios: tuple[Outcome, ...]
    changes: tuple[Change, ...]
    """One for each scenario but the first."""
    best: dict[str, str | None]
    """Name of the best that fits by `step_time_s`, `tokens_per_s`, `tokens_per_s_per_gpu`,
    `usd_per_billion_tokens`, and `effective_days`; None where not all can be compared."""
    notes: tuple[str, ...]
    """What to mind when reading the figures."""

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame with a row for each scenario."""
        import polars as pl  # noqa: PLC0415 - heavy; only where a frame is asked for

        return pl.DataFrame([_row(outcome) for outcome in self.scenarios])


def _row(outcome: Outcome) -> dict[str, Any]:
    """One level of columns: parts of time and memory with their unit in the name."""
    plain = outcome.to_dict()
    times = {f"{part}_s": time_s for part, time_s in plain.pop("time_s").items()}
    held = {f"{part}_bytes": size for part, size in plain.pop("memory_bytes").items()}
    return plain | times | held

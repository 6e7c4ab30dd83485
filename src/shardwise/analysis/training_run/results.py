"""`TrainingTime`: how long a training run takes, what it costs, and its goodput."""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from shardwise.analysis import Result
from shardwise.shown import Charted


class Amount(Result):
    """A result of a run, with its range by the errors of similar measured steps."""

    expected: float
    low: float | None
    """None where the estimate has no interval."""
    high: float | None

    def times(self, factor: float) -> "Amount":
        """Multiply all three values by a factor."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Amount(expected=self.expected * factor, low=low, high=high)


class Goodput(Result):
    """A training run with failures and checkpoints: means over many such runs."""

    unit: Literal["accelerator", "node"]
    """What fails and is replaced."""
    units: int
    """Units of the job."""
    job_mtbf_s: float
    """Mean time between failures of the job [s]."""
    checkpoint_bytes: float
    """Weights and optimizer state, once."""
    checkpoint_time_s: float
    """Time to write a checkpoint [s]."""
    stall_s: float
    """How long a checkpoint stops the work [s]."""
    interval_s: float
    """Working time between checkpoints [s]."""
    best_interval_s: float
    """The interval that makes the run shortest [s]."""
    failures: float | None
    """Expected in the run; None if it never finishes."""
    goodput: float
    """Useful share of all time; 0 if the run never finishes."""
    share: Mapping[str, float]
    """Shares of all time, which add up to 1: useful, checkpoints, lost_work, restarts and, where
    spares and repair time are known, waiting for repairs."""
    spares_cover: float | None
    """Probability that the spares suffice without any repair; None if unknown."""
    days: Amount | None
    """With all of the above; without waiting where that is unknown. None if the run never
    finishes; hours and price likewise."""
    gpu_hours: Amount | None
    usd: Amount | None


class TrainingTime(Charted, Result):
    """Duration and cost of a training run on a number of tokens.

    Examples
    --------
    >>> from shardwise import estimate_training_time
    >>> run = estimate_training_time("llama3-8b", "h100-sxm", gpus=64, gbs=512, tokens="100B")
    >>> run.steps, run.effective_days == run.days.expected
    (23842, True)
    """

    model: str
    system: str
    gpus: int
    step_time_s: float
    tokens_asked: float
    tokens: int
    """Tokens of all steps."""
    steps: int
    level: float | None
    """Share of similar runs between low and high."""
    days: Amount
    """Of the steps alone, without interruption."""
    gpu_hours: Amount
    usd: Amount | None
    kwh: Amount | None
    """Of the computers at their power limit."""
    facility_kwh: Amount | None
    """Of the building."""
    co2_kg: Amount | None
    """CO2-equivalents of that."""
    pue: float | None
    carbon_intensity: float | None
    """[kg/kWh]."""
    sources: Mapping[str, str]
    """Sources of price, PUE and carbon intensity."""
    goodput: Goodput | None
    unknown: Mapping[str, str]
    """Results that are unknown, each with what is missing for it."""

    @property
    def effective_days(self) -> float:
        """Calendar days, with failures and checkpoints if they are known.

        Infinite if the run never finishes.
        """
        known = self.days if self.goodput is None else self.goodput.days
        return np.inf if known is None else known.expected

    @property
    def effective_usd(self) -> float | None:
        """Price of `effective_days`; None if it is unknown or the run never finishes."""
        price = self.usd if self.goodput is None else self.goodput.usd
        return None if price is None else price.expected

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and remark of each line of the report."""
        return list(_rows(self))

    def __str__(self) -> str:
        rows = self.rows()
        wide = max(len(name) for name, _, _ in rows)
        figures = max(len(figure) for _, figure, remark in rows if remark)
        plural = "" if self.gpus == 1 else "s"
        head = f"{self.model} on {self.gpus:,} GPU{plural} of {self.system}"
        lines = [
            f"  {name:<{wide}}  {figure:<{figures}}  {remark}".rstrip()
            for name, figure, remark in rows
        ]
        return "\n".join([head, *lines])


# Smaller shares are printed as "below 0.01 %".
_LEAST_SHARE = 1e-4
_PARTS = {
    "checkpoints": "checkpoints",
    "lost_work": "lost work",
    "restarts": "restarts",
    "waiting": "waiting for repairs",
}


def _rows(run: TrainingTime) -> Iterator[tuple[str, str, str]]:
    over = run.tokens - run.tokens_asked
    more = f", {over:,.0f} more than requested" if over else ""
    yield "steps", f"{run.steps:,}", f"{run.tokens:,} tokens{more}"
    yield "days", _number(run.days.expected), _range(run.days, run.level)
    yield "GPU-hours", _number(run.gpu_hours.expected), _range(run.gpu_hours)
    yield "price", *_known(run.usd, "usd", run.unknown)
    yield "maximum energy", *_known(run.kwh, "kwh", run.unknown)
    if run.pue is not None and run.facility_kwh is not None:
        yield f"with PUE {run.pue:g}", *_known(run.facility_kwh, "kwh", {})
    yield "maximum CO2", *_known(run.co2_kg, "co2_kg", run.unknown)
    if run.goodput is None:
        yield "goodput", "unknown", run.unknown["goodput"]
        return
    yield from _goodput_rows(run.goodput, run.unknown)


def _goodput_rows(found: Goodput, unknown: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    units = f"{found.units:,} {found.unit}{'s' if found.units > 1 else ''}"
    every = f"one every {_span(found.job_mtbf_s)} on {units}"
    number = "unlimited" if found.failures is None else _number(found.failures)
    yield "failures expected", number, every
    background = "" if found.stall_s == found.checkpoint_time_s else " in the background"
    takes = f"takes {_span(found.checkpoint_time_s)}{background}"
    if found.interval_s == found.best_interval_s:
        takes += "; optimal interval (Daly 2006)"
    else:
        takes += f"; optimal: every {_span(found.best_interval_s)}"
    yield "checkpoint every", _span(found.interval_s), takes
    parts = [f"{word} {_percent(found.share[n])}" for n, word in _PARTS.items() if n in found.share]
    if "waiting" in unknown:
        parts.append(f"waiting for repairs unknown: {unknown['waiting']}")
    yield "goodput", f"{100 * found.goodput:.3g} %", ", ".join(parts)
    if found.spares_cover is not None:
        remark = "probability, without any repair"
        yield "spares suffice", _percent(found.spares_cover), remark
    if found.days is None:
        yield "effective days", "never", "the run does not finish: failures undo all of its work"
        return
    yield "effective days", _number(found.days.expected), _range(found.days)
    yield "effective price", *_known(found.usd, "usd", unknown)


def _known(amount: Amount | None, kind: str, unknown: Mapping[str, str]) -> tuple[str, str]:
    if amount is None:
        return "unknown", unknown[kind]
    show = {"usd": _dollars, "kwh": _energy, "co2_kg": _mass}[kind]
    if amount.low is None or amount.high is None:
        return show(amount.expected), ""
    return show(amount.expected), f"{show(amount.low)} to {show(amount.high)}"


def _range(amount: Amount, level: float | None = None) -> str:
    if amount.low is None or amount.high is None:
        return ""
    text = f"{_number(amount.low)} to {_number(amount.high)}"
    return text if level is None else f"{text} in {round(10 * level)} of 10 runs"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"  # noqa: PLR2004


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if not 0 < share < _LEAST_SHARE else "below 0.01 %"


def _dollars(value: float) -> str:
    if value >= 1e6:  # noqa: PLR2004
        return f"${value / 1e6:,.3g} M"
    return f"${_number(value)}"


def _energy(value: float) -> str:
    for scale, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if value >= scale:
            return f"{_number(value / scale)} {unit}"
    return f"{_number(value)} kWh"


def _mass(value: float) -> str:
    return f"{_number(value / 1e3)} t" if value >= 1e3 else f"{_number(value)} kg"  # noqa: PLR2004


def _span(seconds: float) -> str:
    """Time with three digits, in s, min, h or d."""
    for scale, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * scale:
            return f"{_number(seconds / scale)} {unit}"
    return f"{_number(seconds)} s"

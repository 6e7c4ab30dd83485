"""A training run from the time of one step: steps, days, price, energy and emissions.

Every function but `training_time` takes numbers or columns. NaN stands for unknown inputs, and for
every result that needs one.
"""

from collections.abc import Mapping

import numpy as np

from shardwise.analysis.training_run.results import Amount, TrainingTime
from shardwise.arrays import Floats
from shardwise.records import dataclass

HOUR_S = 3600.0
DAY_S = 86400.0
_J_PER_KWH = 3.6e6

Figures = Floats | float
"""One number, or one for each row."""


def steps(tokens: Figures, tokens_per_step: Figures) -> Floats:
    """Optimizer steps for at least this many tokens: ceil(tokens / tokens_per_step)."""
    return np.ceil(np.divide(tokens, tokens_per_step))


def days(seconds: Figures) -> Floats:
    """Days of 86,400 s."""
    return np.divide(seconds, DAY_S)


def gpu_hours(seconds: Figures, gpus: Figures) -> Floats:
    """Hours of all accelerators together: seconds x accelerators / 3600."""
    return np.multiply(seconds, gpus) / HOUR_S


def usd(hours: Figures, usd_per_accelerator_hour: Figures) -> Floats:
    """Price [USD]: accelerator-hours x price of one hour."""
    return np.multiply(hours, usd_per_accelerator_hour)


def kwh(hours: Figures, accelerator_power: Figures) -> Floats:
    """Energy of the computers at the power limit [kWh]: hours of one accelerator x its watts.

    Parameters
    ----------
    hours
        Of all accelerators together [h].
    accelerator_power
        Of one accelerator with its share of the node [W].
    """
    return np.multiply(hours, accelerator_power) * (HOUR_S / _J_PER_KWH)


def facility_kwh(energy_kwh: Figures, pue: Figures) -> Floats:
    """Energy of the building [kWh]: that of its computers x PUE (ISO/IEC 30134-2)."""
    return np.multiply(energy_kwh, pue)


def co2_kg(building_kwh: Figures, carbon_intensity: Figures) -> Floats:
    """CO2-equivalents [kg]: energy of the building [kWh] x carbon intensity [kg/kWh].

    Operational emissions at the average intensity of the site (arXiv 2104.10350), without those of
    manufacturing.
    """
    return np.multiply(building_kwh, carbon_intensity)


def training_columns(
    tokens: Figures,
    *,
    tokens_per_step: Figures,
    step_time_s: Figures,
    gpus: Figures,
    usd_per_accelerator_hour: Figures = np.nan,
    accelerator_power: Figures = np.nan,
    pue: Figures = np.nan,
    carbon_intensity: Figures = np.nan,
) -> dict[str, Floats]:
    """Columns of training runs; NaN where an input is missing.

    Parameters
    ----------
    tokens
        To train on, at least.
    tokens_per_step
        Sequences of the global batch x their length.
    usd_per_accelerator_hour
        Price [USD/h].
    accelerator_power
        Power of one accelerator with its share of the node [W].
    pue
        Power usage effectiveness: energy of the building over that of its computers.
    carbon_intensity
        Emissions of the electricity [kg/kWh].

    Returns
    -------
    ``steps``, ``tokens``, ``seconds``, ``days``, ``gpu_hours``, ``usd``, ``kwh`` (computers, at
    most), ``facility_kwh`` and ``co2_kg``.
    """
    number = steps(tokens, tokens_per_step)
    seconds = number * step_time_s
    hours = gpu_hours(seconds, gpus)
    energy = kwh(hours, accelerator_power)
    facility = facility_kwh(energy, pue)
    return {
        "steps": number,
        "tokens": number * tokens_per_step,
        "seconds": seconds,
        "days": days(seconds),
        "gpu_hours": hours,
        "usd": usd(hours, usd_per_accelerator_hour),
        "kwh": energy,
        "facility_kwh": facility,
        "co2_kg": co2_kg(facility, carbon_intensity),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Inputs of a run's price, energy and emissions; None: unknown."""

    usd_per_accelerator_hour: float | None
    accelerator_power: float | None
    """[W]."""
    pue: float | None
    carbon_intensity: float | None
    """[kg/kWh]."""
    sources: Mapping[str, str]
    """Source of each, by name."""

    def missing(self) -> dict[str, str]:
        """Results that stay unknown, each with what is missing for it."""
        reasons = {}
        if self.usd_per_accelerator_hour is None:
            reasons["usd"] = "the system has no price"
        if self.accelerator_power is None:
            reasons["kwh"] = "the system has no power"
        inputs = {
            "carbon intensity": self.carbon_intensity,
            "PUE": self.pue,
            "power of the system": self.accelerator_power,
        }
        missing = [name for name, value in inputs.items() if value is None]
        if missing:
            reasons["co2_kg"] = f"no {' and no '.join(missing)}"
        return reasons


def training_time(
    *,
    names: tuple[str, str],
    tokens: float,
    tokens_per_step: int,
    step_time_s: tuple[float, float, float] | tuple[float],
    level: float | None,
    gpus: int,
    figures: RunFigures,
) -> TrainingTime:
    """Duration, price, energy and emissions of a training run without failures.

    Parameters
    ----------
    tokens
        To train on, at least.
    tokens_per_step
        Sequences of the global batch x their length.
    step_time_s
        Expected; with an interval also its low and high end [s].
    level
        Share of runs expected inside the interval; None without one.
    """

    def known(value: float | None) -> float:
        return np.nan if value is None else value

    columns = training_columns(
        tokens,
        tokens_per_step=tokens_per_step,
        step_time_s=np.array(step_time_s),
        gpus=gpus,
        usd_per_accelerator_hour=known(figures.usd_per_accelerator_hour),
        accelerator_power=known(figures.accelerator_power),
        pue=known(figures.pue),
        carbon_intensity=known(figures.carbon_intensity),
    )

    def amount(name: str) -> Amount | None:
        values = columns[name].tolist()
        if np.isnan(values[0]):
            return None
        low, high = values[1:] or (None, None)
        return Amount(expected=values[0], low=low, high=high)

    elapsed, hours = amount("days"), amount("gpu_hours")
    assert elapsed is not None  # noqa: S101 - needs no figure of the system
    assert hours is not None  # noqa: S101
    number = int(columns["steps"])
    return TrainingTime(
        model=names[0],
        system=names[1],
        gpus=gpus,
        step_time_s=step_time_s[0],
        tokens_asked=tokens,
        tokens=number * tokens_per_step,
        steps=number,
        level=level,
        days=elapsed,
        gpu_hours=hours,
        usd=amount("usd"),
        kwh=amount("kwh"),
        facility_kwh=amount("facility_kwh"),
        co2_kg=amount("co2_kg"),
        pue=figures.pue,
        carbon_intensity=figures.carbon_intensity,
        sources=dict(figures.sources),
        goodput=None,
        unknown=figures.missing() | {"goodput": "no failure and checkpoint data"},
    )

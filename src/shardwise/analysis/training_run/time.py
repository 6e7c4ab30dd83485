"""A whole run from the time of one step: steps, days, price, energy and what it emits.

Every function takes numbers or columns. What is not known is NaN, and so is all that needs it.
"""

import numpy as np

from shardwise.arrays import Floats

__all__ = [
    "DAY_S",
    "HOUR_S",
    "co2_kg",
    "days",
    "facility_kwh",
    "gpu_hours",
    "kwh",
    "steps",
    "training_columns",
    "usd",
]

HOUR_S = 3600.0
DAY_S = 86400.0
_J_PER_KWH = 3.6e6

Figures = Floats | float
"""One number, or one for each row."""


def steps(tokens: Figures, tokens_per_step: Figures) -> Floats:
    """Optimizer steps that see at least so many tokens: ceil(tokens / tokens_per_step)."""
    return np.ceil(np.divide(tokens, tokens_per_step))


def days(seconds: Figures) -> Floats:
    """Days of 86,400 s."""
    return np.divide(seconds, DAY_S)


def gpu_hours(seconds: Figures, gpus: Figures) -> Floats:
    """Hours of all accelerators together: seconds x accelerators / 3600."""
    return np.multiply(seconds, gpus) / HOUR_S


def usd(hours: Figures, usd_per_accelerator_hour: Figures) -> Floats:
    """Price of so many hours of one accelerator [USD]."""
    return np.multiply(hours, usd_per_accelerator_hour)


def kwh(hours: Figures, accelerator_power: Figures) -> Floats:
    """Energy of the computers at the power limit [kWh]: hours of one accelerator x its watts.

    Parameters
    ----------
    hours
        Of all accelerators together [h].
    accelerator_power
        Of one accelerator with its part of the node [W].
    """
    return np.multiply(hours, accelerator_power) * (HOUR_S / _J_PER_KWH)


def facility_kwh(energy_kwh: Figures, pue: Figures) -> Floats:
    """Energy of the building [kWh]: that of its computers x PUE (ISO/IEC 30134-2)."""
    return np.multiply(energy_kwh, pue)


def co2_kg(building_kwh: Figures, carbon_intensity: Figures) -> Floats:
    """CO2-equivalents [kg]: energy of the building [kWh] x those of its electricity [kg/kWh].

    Emissions of its use alone, by the place's average (arXiv 2104.10350); not those
    of making the machines.
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
    """Columns of whole runs; NaN where a figure is missing.

    Parameters
    ----------
    tokens
        To train on at least.
    tokens_per_step
        Sequences of the global batch x their length.
    accelerator_power
        [W].
    carbon_intensity
        [kg/kWh].

    Returns
    -------
    ``steps``, ``tokens``, ``seconds``, ``days``, ``gpu_hours``, ``usd``, ``kwh`` (computers, at
    most), ``facility_kwh`` and ``co2_kg``.
    """
    number = steps(tokens, tokens_per_step)
    seconds = number * step_time_s
    hours = gpu_hours(seconds, gpus)
    energy = kwh(hours, accelerator_power)
    whole = facility_kwh(energy, pue)
    return {
        "steps": number,
        "tokens": number * tokens_per_step,
        "seconds": seconds,
        "days": days(seconds),
        "gpu_hours": hours,
        "usd": usd(hours, usd_per_accelerator_hour),
        "kwh": energy,
        "facility_kwh": whole,
        "co2_kg": co2_kg(whole, carbon_intensity),
    }

"""From the time of one step to a `TrainingTime`, without failures and with them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.analysis.training_run.goodput import (
    best_interval,
    covered_by_spares,
    job_mtbf,
    run_time,
    waiting_share,
)
from shardwise.analysis.training_run.results import Amount, Goodput, TrainingTime
from shardwise.analysis.training_run.time import DAY_S, training_columns
from shardwise.config.reliability import Reliability

__all__ = ["RunFigures", "goodput_of", "training_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of a system that a run's price, energy and emissions need; None: unknown."""

    usd_per_accelerator_hour: float | None
    accelerator_power: float | None
    """[W]."""
    pue: float | None
    carbon_intensity: float | None
    """[kg/kWh]."""
    sources: Mapping[str, str]
    """Who says so, by the names of these."""

    def missing(self) -> dict[str, str]:
        """What cannot be said, and what is missing for it."""
        lacks = {}
        if self.usd_per_accelerator_hour is None:
            lacks["usd"] = "the system has no price"
        if self.accelerator_power is None:
            lacks["kwh"] = "the system has no power"
        place = {"carbon intensity": self.carbon_intensity, "PUE": self.pue}
        parts = [name for name, value in place.items() if value is None]
        if self.accelerator_power is None or parts:
            parts += ["power of the system"] if self.accelerator_power is None else []
            lacks["co2_kg"] = f"no {' and no '.join(parts)}"
        return lacks


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
    """A run without failures.

    Parameters
    ----------
    names
        Of model and system.
    step_time_s
        Expected, and where there is an interval least and most [s].
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
    missing = figures.missing()
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
        unknown=missing | {"goodput": "no figures of failures and checkpoints"},
    )


def goodput_of(
    run: TrainingTime, reliability: Reliability, *, per_node: int, checkpoint_bytes: float
) -> TrainingTime:
    """The same run with failures and checkpoints.

    Parameters
    ----------
    per_node
        Accelerators of a node.
    checkpoint_bytes
        Weights and optimizer state, once.
    """
    units = reliability.units(run.gpus, per_node)
    mtbf = float(job_mtbf(reliability.unit_mtbf_s, units))
    written = reliability.checkpoint_time
    if reliability.storage_bandwidth is not None:
        written = checkpoint_bytes / reliability.storage_bandwidth
    assert written is not None  # noqa: S101 - validated
    beside = written if reliability.asynchronous else 0.0
    stall = reliability.checkpoint_stall if reliability.asynchronous else written
    assert stall is not None  # noqa: S101 - validated
    # One checkpoint is written at a time; without stops there is no reason to write fewer.
    best = max(float(best_interval(stall, mtbf)), beside, run.step_time_s)
    interval = reliability.checkpoint_interval or best
    useful = run.days.expected * DAY_S
    spent = run_time(
        useful,
        interval_s=interval,
        stall_s=stall,
        write_s=beside,
        restart_s=reliability.restart_time,
        mtbf_s=mtbf,
    )
    waits = _waiting(reliability, mtbf)
    working = 1.0 - (waits or 0.0)
    whole = float(spent.total_s) / working
    parts = {
        "useful": spent.useful_s,
        "checkpoints": spent.checkpoint_s,
        "lost_work": spent.lost_s,
        "restarts": spent.restart_s,
    }
    ends = np.isfinite(whole)
    share = {name: float(part) / whole for name, part in parts.items()} if ends else {}
    if ends and waits is not None:
        share["waiting"] = waits
    factor = whole / useful
    failures = float(spent.failures) if ends else None
    found = Goodput(
        unit="accelerator" if reliability.node_mtbf is None else "node",
        units=units,
        job_mtbf_s=mtbf,
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_time_s=written,
        stall_s=stall,
        interval_s=interval,
        best_interval_s=best,
        failures=failures,
        goodput=share.get("useful", 0.0),
        share=share,
        spares_cover=_covered(reliability.spares, failures),
        days=run.days.times(factor) if ends else None,
        gpu_hours=run.gpu_hours.times(factor) if ends else None,
        usd=run.usd.times(factor) if ends and run.usd is not None else None,
    )
    unknown = {name: why for name, why in run.unknown.items() if name != "goodput"}
    if waits is None:
        known = {"spares": reliability.spares, "repair time": reliability.repair_time}
        lacks = [name for name, value in known.items() if value is None]
        unknown["waiting"] = f"no {' and no '.join(lacks)}"
    return run.model_copy(update={"goodput": found, "unknown": unknown})


def _waiting(reliability: Reliability, mtbf_s: float) -> float | None:
    if reliability.spares is None or reliability.repair_time is None:
        return None
    return float(waiting_share(reliability.spares, reliability.repair_time, mtbf_s))


def _covered(spares: int | None, failures: float | None) -> float | None:
    if spares is None:
        return None
    return 0.0 if failures is None else covered_by_spares(spares, failures)

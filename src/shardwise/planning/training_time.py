"""`estimate_training_time`: a run on so many tokens, from the estimate of one step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.goodput import goodput_of
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.analysis.training_run.time import RunFigures, training_time
from shardwise.config.base import ConfigBase
from shardwise.config.enums import Optimizer
from shardwise.config.model import Model
from shardwise.config.reliability import Reliability
from shardwise.config.system import Price, Site, System
from shardwise.cost.optimizer import least_state_bytes
from shardwise.errors import Fault, InputError
from shardwise.estimator import StrategyLike, estimate
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.units import Tokens

__all__ = ["Run", "checkpoint_bytes", "estimate_training_time", "with_training"]

# More than anyone will train on; steps stay exact in the float64 of the maths.
_MOST_TOKENS = 1e18


class Run(ConfigBase):
    """A run as it is asked for."""

    tokens: Annotated[Tokens, Field(le=_MOST_TOKENS)]
    """To train on at least."""
    site: Site | None = None
    """Over the fields of the system's own."""
    reliability: Reliability | None = None
    """As a mapping or a file, too."""

    @field_validator("reliability", mode="before")
    @classmethod
    def _of_a_file(cls, value: object) -> object:
        return Reliability.load(value) if isinstance(value, (str, Path)) else value


def estimate_training_time(
    model: Model | str | Path,
    system: System | str | Path,
    strategy: StrategyLike,
    *,
    tokens: float | str,
    reliability: Reliability | Mapping[str, Any] | str | Path | None = None,
    site: Site | Mapping[str, Any] | None = None,
) -> TrainingTime:
    """Estimate how long a whole run takes, what it costs, and what failures leave of it.

    Parameters
    ----------
    model, system, strategy
        As for `estimate`.
    tokens
        To train on: a number, or text such as ``"300B"`` or ``"1.4 trillion"``.
    reliability
        How often machines fail, and what checkpoints and restarts take; unknown without it.
    site
        Carbon intensity and PUE, over those of the system.

    Raises
    ------
    InputError
        If anything given is wrong; one fault for each thing.

    Examples
    --------
    >>> from shardwise import estimate_training_time
    >>> run = estimate_training_time(
    ...     "llama3-8b", "h100-sxm", {"gpus": 64, "tp": 2, "gbs": 512}, tokens="100B"
    ... )
    >>> run.steps, run.tokens, run.co2_kg, run.goodput
    (23842, 100000595968, None, None)
    """
    run = Run.load({"tokens": tokens, "site": site, "reliability": reliability})
    the_model, the_system = Model.load(model), System.load(system)
    found = with_training(estimate(the_model, the_system, strategy), the_system, run)
    assert found.whole_run is not None  # noqa: S101 - just put there
    return found.whole_run


def with_training(found: Estimate, system: System, run: Run) -> Estimate:
    """The estimate of a step with the whole run.

    Raises
    ------
    InputError
        If it does not train, or the interval of checkpoints is shorter than writing one.
    """
    strategy = found.strategy
    if not strategy["training"]:
        problem = "has no meaning forward only: nothing is trained"
        raise InputError(Fault(field="tokens", value=run.tokens, has_value=True, problem=problem))
    step: tuple[float, float, float] | tuple[float] = (found.step_time_s,)
    if found.interval is not None:
        step = (found.step_time_s, found.interval.low_s, found.interval.high_s)
    whole = training_time(
        names=(found.model, found.system),
        tokens=run.tokens,
        tokens_per_step=found.tokens_per_step,
        step_time_s=step,
        level=None if found.interval is None else found.interval.level,
        gpus=strategy["gpus"],
        figures=_figures(system, run.site),
    )
    if run.reliability is not None:
        written = checkpoint_bytes(found)
        _check_interval(run.reliability, written)
        whole = goodput_of(
            whole,
            run.reliability,
            per_node=system.node.accelerators,
            checkpoint_bytes=written,
        )
    return found.model_copy(update={"whole_run": whole})


def checkpoint_bytes(found: Estimate) -> float:
    """Bytes of a checkpoint: every weight in its type, and the optimizer's state of trained ones.

    W w + T (m + s), with w bytes of a weight in its type, an fp32 copy m of one in a smaller type
    and moments s; each once, however ranks split or copy them, so every plan for a model with the
    same type and optimizer writes as much. For Muon all weights count as matrices of layers.
    """
    element = DTYPE_BYTES[found.strategy["dtype"]]
    optimizer = np.array([Optimizer(found.strategy["optimizer"]).code])
    state = float(least_state_bytes(optimizer, np.array([element]))[0])
    return found.parameters * element + found.trainable_parameters * state


def _check_interval(reliability: Reliability, written_bytes: float) -> None:
    """Refuse asynchronous checkpoints that begin before the one before is written."""
    interval = reliability.checkpoint_interval
    if not reliability.asynchronous or interval is None:
        return
    takes = reliability.checkpoint_time
    if reliability.storage_bandwidth is not None:
        takes = written_bytes / reliability.storage_bandwidth
    if takes is not None and interval < takes:
        problem = f"must be at least the {takes:.4g} s that one checkpoint is written for"
        raise InputError(
            Fault(
                source="reliability",
                field="checkpoint_interval",
                value=interval,
                has_value=True,
                problem=problem,
            )
        )


def _figures(system: System, site: Site | None) -> RunFigures:
    """Figures of the system and of the place it is run at, with their sources."""
    own, given, price = system.site or Site(), site or Site(), system.price
    sources = {} if price is None else {"price": _source_of_price(system, price)}
    found: dict[str, float | None] = {}
    for name, source in (("pue", "pue_source"), ("carbon_intensity", "carbon_source")):
        place = own if getattr(given, name) is None else given
        found[name] = getattr(place, name)
        if found[name] is not None:
            untold = "given" if place is given else f"system {system.name}"
            sources[name] = getattr(place, source) or untold
    return RunFigures(
        usd_per_accelerator_hour=None if price is None else price.usd_per_accelerator_hour,
        accelerator_power=system.accelerator_power,
        pue=found["pue"],
        carbon_intensity=found["carbon_intensity"],
        sources=sources,
    )


def _source_of_price(system: System, price: Price) -> str:
    """Who says the price: what it says itself, unless it was told anew and that was not."""
    told = system.sources.get("price.usd_per_accelerator_hour")
    if told is not None and "price.source" not in system.sources:
        return told.text
    return f"{price.source} (as of {price.as_of})"

"""`estimate_training_time`: a training run of a number of tokens, from the estimate of a step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import numpy as np
from pydantic import field_validator

from shardwise import catalog
from shardwise.analysis.results import Estimate
from shardwise.analysis.training_run.goodput import goodput_of
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.analysis.training_run.time import RunFigures, training_time
from shardwise.config import files, team
from shardwise.config.base import ConfigBase
from shardwise.config.enums import Optimizer, WeightDtype
from shardwise.config.inputs import read_inputs
from shardwise.config.keywords import StrategyKeywords
from shardwise.config.model import Model, ModelLike
from shardwise.config.prices import Price
from shardwise.config.reliability import Reliability
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import StrategyLike, strategy_of
from shardwise.config.system import Site, System, SystemLike
from shardwise.cost.optimizer import least_state_bytes
from shardwise.errors import InputError
from shardwise.estimator import estimate
from shardwise.ops.layer import DTYPE_BYTES
from shardwise.ops.operation import FP32_BYTES
from shardwise.ops.precision import least_sizes
from shardwise.units import Tokens

_FEW_TOKENS = 100_000
"""Fewer are billions whose unit is missing."""


class TrainingRun(ConfigBase):
    """A training run as requested."""

    tokens: Tokens
    """Least number of tokens to train on."""
    site: Site | None = None
    """Overrides fields of the system's site."""
    reliability: Reliability | None = None
    """A mapping or a file also works."""

    @field_validator("reliability", mode="before")
    @classmethod
    def _load_reliability(cls, value: object) -> object:
        default = team.in_force().reliability if value is None else None
        if default is not None:
            catalog.note(f"reliability of {default}")
            with files.from_anywhere():
                return Reliability.load(default)
        return Reliability.load(value) if isinstance(value, (str, Path)) else value


def estimate_training_time(
    model: ModelLike,
    system: SystemLike | None = None,
    strategy: StrategyLike | None = None,
    *,
    tokens: float | str | None = None,
    reliability: Reliability | Mapping[str, object] | str | Path | None = None,
    site: Site | Mapping[str, object] | None = None,
    rows: Mapping[str, str] | None = None,
    **fields: Unpack[StrategyKeywords],
) -> TrainingTime:
    """Estimate how long a training run takes, what it costs, and what it loses to failures.

    Parameters
    ----------
    model, system, strategy, rows, **fields
        As for `estimate`.
    tokens
        Tokens to train on: a number, or text such as ``"300B"`` or ``"1.4 trillion"``; by default
        those of the AMPeD configuration that `model` is.
    reliability
        Failure rates, and the times of checkpoints and restarts; unknown by default.
    site
        Carbon intensity and PUE, which override those of the system.

    Returns
    -------
    TrainingTime
        Days, price, energy and failures of the training run; `help(shardwise.TrainingTime)` lists
        its fields.

    Raises
    ------
    InputError
        If an argument is wrong; one fault for each.

    Examples
    --------
    >>> from shardwise import estimate_training_time
    >>> run = estimate_training_time(
    ...     "llama3-8b", "h100-sxm", gpus=64, tp=2, gbs=512, tokens="100B"
    ... )
    >>> run.steps, run.tokens, run.co2_kg, run.goodput
    (23842, 100000595968, None, None)
    """
    named = {} if tokens is None else {"tokens": tokens}
    inputs = read_inputs(model, system, strategy, fields, run=named, rows=rows)
    run = TrainingRun.load({**inputs.run, "site": site, "reliability": reliability})
    the_model, the_system = Model.load(inputs.model), System.load(inputs.system)
    step = estimate(the_model, the_system, strategy_of(inputs.strategy, inputs.fields))
    found = with_training(step, the_system, run)
    assert found.whole_run is not None  # noqa: S101 - set by `with_training`
    return found.whole_run


def with_training(found: Estimate, system: System, run: TrainingRun) -> Estimate:
    """Return the estimate of a step with its training run."""
    strategy = found.strategy
    if not strategy["training"]:
        problem = "has no meaning forward only: nothing is trained"
        raise InputError.of("tokens", run.tokens, problem)
    if run.tokens < found.tokens_per_step:
        hint = f"; did you mean {run.tokens:g}B?" if run.tokens < _FEW_TOKENS else ""
        problem = f"is less than one step ({found.tokens_per_step:,} tokens){hint}"
        raise InputError.of("tokens", int(run.tokens), problem)
    step: tuple[float, float, float] | tuple[float] = (found.step_time_s,)
    if found.interval is not None:
        step = (found.step_time_s, found.interval.low_s, found.interval.high_s)
    result = training_time(
        names=(found.model, found.system),
        tokens=run.tokens,
        tokens_per_step=found.tokens_per_step,
        step_time_s=step,
        level=None if found.interval is None else found.interval.level,
        gpus=strategy["gpus"],
        figures=_figures(system, run.site),
    )
    if run.reliability is not None:
        size = checkpoint_bytes(found)
        _check_interval(run.reliability, size)
        result = goodput_of(
            result,
            run.reliability,
            per_node=system.node.accelerators,
            checkpoint_bytes=size,
        )
    return found.model_copy(update={"whole_run": result})


def checkpoint_bytes(found: Estimate) -> float:
    """Bytes of a checkpoint: all weights, and the optimizer state of the trained ones.

    W w + T (m + s), for W weights of w bytes and T trained ones, each with an fp32 copy of m bytes
    (if its type is smaller) and moments of s bytes. Each counts once, however ranks split or copy
    it, so all plans with the same type and optimizer write as much. For Muon all weights count as
    matrices of layers.
    """
    element = DTYPE_BYTES[found.strategy["dtype"]]
    optimizer = Optimizer(found.strategy["optimizer"])
    names = ("weight_dtype", "master_dtype", "moment_dtype")
    words = {name: found.strategy[name] for name in ("stack", *names)}
    strategy = Strategy.validated(words, source="strategy")
    weight, master, moment = (strategy.in_effect(name) for name in names)
    sizes = least_sizes(np.array([element]), {weight}, {master}, {moment}, optimizer)
    state = float(least_state_bytes(np.array([optimizer.code]), *sizes)[0])
    if weight == WeightDtype.FP32 and element < FP32_BYTES:
        state -= element  # the fp32 weights, of which there is no other copy
    return found.parameters * element + found.trainable_parameters * state


def _check_interval(reliability: Reliability, size_bytes: float) -> None:
    """Refuse asynchronous checkpoints that start before the previous one is written."""
    interval = reliability.checkpoint_interval
    if not reliability.asynchronous or interval is None:
        return
    write_s = reliability.checkpoint_time
    if reliability.storage_bandwidth is not None:
        write_s = size_bytes / reliability.storage_bandwidth
    if write_s is not None and interval < write_s:
        problem = f"must be at least the {write_s:.4g} s that it takes to write a checkpoint"
        raise InputError.of("checkpoint_interval", interval, problem, "reliability")


def _figures(system: System, site: Site | None) -> RunFigures:
    """Price, power, PUE and carbon intensity of a run, with their sources."""
    own, override, price = system.site or Site(), site or Site(), system.price
    sources = {} if price is None else {"price": _price_source(system, price)}
    found: dict[str, float | None] = {}
    for name, source in (("pue", "pue_source"), ("carbon_intensity", "carbon_source")):
        place = own if getattr(override, name) is None else override
        found[name] = getattr(place, name)
        if found[name] is not None:
            default = "given" if place is override else f"system {system.name}"
            sources[name] = getattr(place, source) or default
    return RunFigures(
        usd_per_accelerator_hour=None if price is None else price.usd_per_accelerator_hour,
        accelerator_power=system.accelerator_power,
        pue=found["pue"],
        carbon_intensity=found["carbon_intensity"],
        sources=sources,
    )


def _price_source(system: System, price: Price) -> str:
    """Source of the price; an override without a source of its own names the override."""
    override = system.sources.get("price.usd_per_accelerator_hour")
    if override is not None and "price.source" not in system.sources:
        return override.text
    return f"{price.source} (as of {price.as_of})"

"""Where the figures of an estimate come from, and what follows from the sources: its cost."""

import numpy as np

from shardwise.analysis.results import Cost
from shardwise.config.base import Source, Sourced
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.quantization import RECIPES

_JOULE_PER_KWH = 3.6e6


def cost_of(result: Evaluation, row: int) -> Cost:
    """Price and energy of a step of a row, at most."""
    system, table = result.step.system, result.step.table
    gpus, seconds = int(table.gpus[row]), float(result.step_time_s[row])
    tokens = float((table.global_batch_size * table.sequences_per_sample * table.trained_len)[row])
    usd = kwh = None
    if system.price is not None:
        usd = system.price.usd_per_accelerator_hour * gpus * seconds / 3600
    power = system.accelerator_power
    if power is not None:
        kwh = power * gpus * seconds / _JOULE_PER_KWH
    return Cost(
        usd_per_step=usd,
        usd_per_billion_tokens=None if usd is None else usd / tokens * 1e9,
        kwh_per_step=kwh,
        price="" if system.price is None else system.price.in_words,
    )


def outermost_tiers(result: Evaluation) -> dict[str, int]:
    """Outermost network tier of each axis that communicates, of one row."""
    axes = [a for a, (total, _) in result.comm_s.items() if total[0] > 0 and a != "offload"]
    members = {axis: getattr(result.step.extents, axis)[:, 0] for axis in axes}
    return {axis: int(np.argmax(of == of[-1])) for axis, of in members.items()}


def provenance_of(
    model: Model, system: System, stack: Stack, strategy: Strategy
) -> dict[str, Source]:
    """Sources by dotted prefix, without those of unused dtypes and benchmarks."""
    used: set[str] = {strategy.dtype}
    if strategy.quantization in RECIPES:
        used.add(RECIPES[strategy.quantization].matrix)
    unused = [
        f"accelerator.{table}.{name}"
        for table in ("matrix", "matmul")
        for name in system.accelerator.matrix
        if name not in used
    ]
    unused.append("accelerator.benchmark")
    sourced: list[tuple[str, Sourced]] = [("model", model), ("system", system), ("stack", stack)]
    return {
        f"{name}.{field}".rstrip("."): source
        for name, config in sourced
        for field, source in config.sources.items()
        if not any(field.startswith(prefix) for prefix in unused)
    }


def assumed_fields(requested: Strategy, resolved: Strategy) -> dict[str, object]:
    """Fields that were not set, with the values filled in."""
    explicit = {n for n in requested.model_fields_set if getattr(requested, n) is not None}
    return {name: value for name, value in resolved.to_dict().items() if name not in explicit}

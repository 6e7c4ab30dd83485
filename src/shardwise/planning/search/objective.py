"""What a search makes least: a score for every candidate, lower is better."""

from collections.abc import Callable

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, nearest

__all__ = [
    "FRONTS",
    "OBJECTIVES",
    "Score",
    "against",
    "check_name",
    "dollars_per_token",
    "seconds_per_token",
]

_HOUR_S = 3600.0

Score = Callable[[Floats, Table, System], Floats]
"""From times of a step, the rows and the system to a score."""


def step_time(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of a step [s]."""
    del table, system
    return step_time_s


def seconds_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of a step over its tokens [s]."""
    del system
    return step_time_s / (table.global_batch_size * table.seq_len)


def gpu_seconds_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Time of all accelerators over the tokens of a step [s]: 1 / (tokens/s/GPU)."""
    return seconds_per_token(step_time_s, table, system) * table.gpus


def dollars_per_token(step_time_s: Floats, table: Table, system: System) -> Floats:
    """Price of all accelerators over the tokens of a step [USD]."""
    assert system.price is not None  # noqa: S101 - `check_name` sees to it
    rate = system.price.usd_per_accelerator_hour / _HOUR_S
    return gpu_seconds_per_token(step_time_s, table, system) * rate


OBJECTIVES: dict[str, Score] = {
    "step_time": step_time,
    "tokens_per_s_per_gpu": gpu_seconds_per_token,
    "tokens_per_dollar": dollars_per_token,
}
FRONTS = ("memory", "gpus", "cost")
"""What may stand against time on a Pareto front."""


def against(
    name: str, step_time_s: Floats, reserved_bytes: Floats, table: Table, system: System
) -> Floats:
    """The other side of a front: memory of a rank [byte], accelerators, or price of a token."""
    if name == "memory":
        return reserved_bytes
    if name == "gpus":
        return np.broadcast_to(1.0 * table.gpus, step_time_s.shape)
    return dollars_per_token(step_time_s, table, system)


def check_name(name: str, field: str, known: tuple[str, ...], system: System) -> None:
    """Raise an `InputError` if a name is not known, or needs a price that the system lacks."""
    if name not in known:
        problem = f"allowed: {', '.join(known)}{nearest(str(name), known)}"
        raise InputError(Fault(field=field, value=name, has_value=True, problem=problem))
    if name in ("tokens_per_dollar", "cost") and system.price is None:
        problem = f"system {system.name} has no price; give it one: price.usd_per_accelerator_hour"
        raise InputError(Fault(field=field, value=name, has_value=True, problem=problem))

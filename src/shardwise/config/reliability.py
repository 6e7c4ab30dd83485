"""`Reliability`: how often machines fail, and how long checkpoints, restarts and repairs take."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from shardwise.config.base import NO_FLAG, ConfigBase
from shardwise.units import ByteRate, Duration

_MOST_SECONDS = 1e15
"""Thirty million years: what lasts longer never happens."""
_MOST_SPARES = 100_000


class Reliability(ConfigBase):
    """Failures and repairs of a cluster, which decide how much of a run's time is useful.

    Examples
    --------
    >>> from shardwise import Reliability, estimate_training_time
    >>> failures = Reliability.load(
    ...     {"accelerator_mtbf": "50000 h", "checkpoint_time": "2 min", "restart_time": "10 min"}
    ... )
    >>> run = estimate_training_time(
    ...     "llama3-8b", "h100-sxm", gpus=64, gbs=512, tokens="1T", reliability=failures
    ... )
    >>> run.goodput is not None and 0.9 < run.goodput.goodput < 1
    True
    """

    accelerator_mtbf: Duration | None = None
    """Mean time between failures per accelerator [s], any cause: accelerator-hours over
    interruptions, such as 50000h. Set this or `node_mtbf`."""
    node_mtbf: Duration | None = None
    """Mean time between failures per node [s]."""
    restart_time: Duration
    """Time from a failure to the next step [s]: detection, node replacement, startup, checkpoint
    load."""
    checkpoint_time: Duration | None = None
    """Time to write a checkpoint [s]. Set this or `storage_bandwidth`."""
    storage_bandwidth: ByteRate | None = None
    """Aggregate bandwidth to checkpoint storage [byte/s], which gives the time to write weights and
    optimizer state."""
    checkpoint_interval: Duration | None = None
    """Working time between two checkpoints [s]; None: the one that makes the run shortest."""
    asynchronous: bool = False
    """Whether a checkpoint is written while the job works, after a short stop."""
    checkpoint_stall: Duration | None = None
    """How long an asynchronous checkpoint stops the work: copying to host memory [s]."""
    spares: Annotated[int, Field(ge=0, le=_MOST_SPARES), NO_FLAG] | None = None
    """Spare accelerators or nodes; each failure uses one. None: unknown."""
    repair_time: Duration | None = None
    """Mean time until a broken accelerator or node is repaired [s]; None: unknown."""
    source: str = ""
    """Where the figures come from."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for one, other in (
            ("accelerator_mtbf", "node_mtbf"),
            ("checkpoint_time", "storage_bandwidth"),
        ):
            known = [name for name in (one, other) if getattr(self, name) is not None]
            if len(known) != 1:
                found = "both are set" if known else "neither is set"
                raise ValueError(f"{one} or {other} must be set, and only one: {found}")
        return self

    @model_validator(mode="after")
    def _times_are_of_use(self) -> Self:
        for name in ("accelerator_mtbf", "node_mtbf", "checkpoint_interval"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= _MOST_SECONDS:
                raise ValueError(f"{name}: {value:g} s must be from 1 s to {_MOST_SECONDS:g} s")
        return self

    @model_validator(mode="after")
    def _only_asynchronous_checkpoints_stall(self) -> Self:
        if self.asynchronous and self.checkpoint_stall is None:
            raise ValueError("checkpoint_stall: must be set for asynchronous checkpoints")
        if not self.asynchronous and self.checkpoint_stall is not None:
            raise ValueError("checkpoint_stall: has no effect unless asynchronous is true")
        return self

    def units(self, accelerators: int, per_node: int) -> int:
        """Number of accelerators in a job, or of nodes where `node_mtbf` is set."""
        return accelerators if self.node_mtbf is None else -(-accelerators // per_node)

    @property
    def unit_mtbf_s(self) -> float:
        """Mean time between failures of one unit [s]."""
        known = self.accelerator_mtbf if self.node_mtbf is None else self.node_mtbf
        assert known is not None  # noqa: S101 - validated
        return known

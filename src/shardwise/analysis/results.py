"""`Estimate` and `EstimateTable`: what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.analysis.communication_record import Breakdown
from shardwise.analysis.gemm_record import Gemm
from shardwise.analysis.record import Result
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.base import Source
from shardwise.config.strategy_table import Table
from shardwise.engine.step_time import TIME_PARTS
from shardwise.parallel.constraints import RULES

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "CommTime",
    "CommunicationTotals",
    "Cost",
    "Efficiency",
    "Estimate",
    "EstimateTable",
    "Gemm",
    "LayerTotals",
    "Memory",
    "OperationEstimate",
    "Peak",
    "PhaseTotals",
    "RequiredBandwidth",
    "Result",
    "StageEstimate",
]


class Peak(Result):
    """The moment a stage holds most."""

    bytes: float
    operation: str
    phase: str


class Memory(Result):
    """Bytes on one rank of a stage at its fullest."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Kept between forward and backward."""
    buffers: float
    """Live for a moment."""
    total: float
    """Sum of the above: what tensors hold (torch.cuda.max_memory_allocated)."""
    reserved: float
    """What the accelerator must have (nvidia-smi): the total with the allocator's slack, and what
    the runtime holds beside it."""
    capacity: float
    """What the accelerator has."""
    offloaded: float
    """In the second memory tier; beside the fullest stage of all, on the stage with most there."""
    offload_capacity: float
    """What that tier has; 0 if there is none."""


class StageEstimate(Memory):
    """One pipeline stage: what a rank of it holds, and for how long it works."""

    stage: int
    layers: int
    parameters: float
    """On one rank."""
    in_flight: float
    """Micro-batches whose activations it holds at its fullest."""
    micro_batch_s: float
    """Forward, backward, recompute and exposed exchanges of one micro-batch [s]."""
    forward_s: float
    """Its forward pass with exposed exchanges [s]."""
    backward_s: float
    """Its backward pass, recompute included [s]."""
    peak: Peak


class CommTime(Result):
    """Exchanges of one axis in a step."""

    total: float
    """As if nothing hid them [s]."""
    exposed: float
    """As far as they lengthen the step [s]."""


class Cost(Result):
    """What a step costs; null where the system has no price or power."""

    usd_per_step: float | None
    usd_per_billion_tokens: float | None
    kwh_per_step: float | None
    """At the power limit of node or board."""


class OperationEstimate(Result):
    """One kernel or exchange: of one rank and one micro-batch, or (part `step`) of a whole step."""

    part: str
    """Embedding, layer, head or step."""
    operation: str
    phase: str
    """forward, input_grad, weight_grad, recompute or step."""
    count: int
    """How often the part occurs in the model."""
    kind: str
    """matmul, attention, memory, the kind of exchange, or link (to the second memory tier)."""
    flops: float = 0.0
    bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    time_s: float
    exposed_s: float
    """What of it lengthens the step [s]."""
    bound: str
    """What its time goes to: compute, memory, launch or network."""
    missed: bool = False
    """Whether the system has a table of measured shapes, but none near this one."""
    axis: str = ""
    """Axis whose ranks exchange; empty of a kernel."""
    volume_bytes: float = 0.0
    """Buffer exchanged."""
    group: int = 1
    """Members of the exchange."""
    extents: tuple[int, ...] = ()
    """Members within one domain of each network tier, inside out."""
    weight_bytes: float = 0.0
    """Weights held, on the operation's first row."""
    saved_bytes: float = 0.0
    """Activations kept for backward, on the operation's first row."""


class PhaseTotals(Result):
    """Kernels of one pass through a layer."""

    flops: float
    matrix_flops: float
    """Those of matrix products and attention."""
    bytes: float
    compute_s: float
    memory_s: float
    time_s: float


class CommunicationTotals(Result):
    """Exchanges of some axis in passes through a layer."""

    volume_bytes: float
    """Buffers, whole."""
    time_s: float
    exposed_s: float


class LayerTotals(Result):
    """One layer of a kind on one rank: of one micro-batch, the optimizer's part of one step."""

    count: int
    """Layers of this kind."""
    forward: PhaseTotals
    recompute: PhaseTotals
    input_grad: PhaseTotals
    weight_grad: PhaseTotals
    optimizer: PhaseTotals
    tp_forward: CommunicationTotals
    tp_backward: CommunicationTotals
    tp_again: CommunicationTotals
    """What recompute repeats, or gathers again because only a part was kept."""
    cp: CommunicationTotals
    """Exchanges of context parallelism, in all passes."""
    ep: CommunicationTotals
    """Those among experts."""
    parameters: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    """Activations from forward to backward."""
    working_bytes: float
    """Largest working set of an operation."""
    boundary_bytes: float
    """What a rank hands to the next stage; 0 where there is none."""


class RequiredBandwidth(Result):
    """Least rates that would hide transfers behind compute [byte/s].

    0 where nothing moves, null where there is nothing to hide behind.
    """

    tp_overlap: float | None
    dp_chunks: float | None
    """For the gradients of all chunks but the last."""
    dp_tail: float | None
    """For those of the last chunk."""
    offload_weights: float | None
    """For this part alone, whether or not it is offloaded."""
    offload_activations: float | None
    offload_optimizer: float | None
    offload: float | None
    """For all that is offloaded together."""


class Interval(Result):
    """What the measured time of the step may be, by how far off similar measured runs were."""

    low_s: float
    high_s: float
    level: float
    """Part of such runs that it is to hold."""
    runs: int
    """Measured runs that it rests on."""
    nearest: str
    """The one most like this one: an id of the collection that `validate runs` predicts."""
    distance: float
    """How unlike that is: 0 equal in all that counts, above 2 another machine and framework."""


class Efficiency(Result):
    """Shares of the step."""

    compute: float
    """Model FLOPs over those the accelerator could do while forward, backward and update run."""
    system: float
    """Forward, backward and update over the step."""
    total: float
    """Both together: the MFU."""


class Estimate(Result):
    """Times, memory and detail of one strategy."""

    model: str
    system: str
    strategy: dict[str, Any]
    """All fields, defaults filled in."""
    parameters: int
    active_parameters: int
    trainable_parameters: int
    """Weights that are trained, with those of adapters."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    model_tflops_per_gpu: float
    mfu: float
    """Model FLOPs over the dense peak of the compute dtype."""
    hfu: float
    """The same with what recompute runs again."""
    flops_convention: str
    mfu_by_convention: dict[str, float]
    """The utilisation as every convention counts it."""
    fits: bool
    micro_batches: int
    """Of one replica, per step."""
    tokens_per_step: int
    time_s: dict[str, float]
    """Disjoint parts of the step, on the slowest stage [s]."""
    comm_s: dict[str, CommTime]
    extents: dict[str, tuple[int, ...]]
    """Members of each axis within one domain of each network tier, inside out."""
    memory_bytes: Memory
    """Of the fullest stage."""
    stages: tuple[StageEstimate, ...]
    layers: tuple[LayerTotals, ...]
    """By kind of layer."""
    matrix_flops: int
    """Of all matrix products and attention in a step, recompute and Muon's updates included, on one
    rank of every stage together [FLOP]; of the whole step, times gpus / pp. Where experts' loads
    are uneven it is the fullest rank, and the whole step has less."""
    breakdown: Breakdown
    """Exchanges by direction and level, and what experts add."""
    efficiency: Efficiency
    required_bandwidth: RequiredBandwidth
    cost: Cost
    interval: Interval | None
    """None forward only, for which no runs were measured."""
    rests_on: dict[str, str]
    """Where the rates come from that operations and exchanges are timed with: measured, fitted,
    published, assumed or of a data sheet."""
    assumed: dict[str, Any]
    """Strategy fields nobody gave, with the value taken."""
    provenance: dict[str, Source]
    """Where the figures of system and stack come from, by dotted prefix."""
    missed_operations: tuple[str, ...] = ()
    """Operations of which a kernel has no shape near in the system's tables of measured ones."""
    operations: tuple[OperationEstimate, ...] | None = None
    """Every kernel and exchange, if asked for."""
    gemms: tuple[Gemm, ...] | None = None
    """Every matrix product, if asked for; their FLOPs add up to `matrix_flops`."""
    whole_run: TrainingTime | None = None
    """The whole run, if it was told how many tokens it trains on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTable:
    """Estimates of a table of strategies; rows that break a rule hold NaN and the rule."""

    table: Table
    refused: Ints
    """Position in `rules.RULES` of the first rule a row breaks, or -1."""
    step_time_s: Floats
    tokens_per_s: Floats
    mfu: Floats
    hfu: Floats
    fits: Bools
    memory_total_bytes: Floats
    memory_reserved_bytes: Floats
    memory_offloaded_bytes: Floats
    time_s: Mapping[str, Floats]
    memory_bytes: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.table)

    def reason(self, row: int) -> str | None:
        """Return why a row was refused, in a word, or None."""
        position = int(self.refused[row])
        return RULES[position].reason if position >= 0 else None

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame: strategy, times, memory and the reason of a refusal."""
        import polars as pl  # noqa: PLC0415 - heavy; only where a frame is asked for

        columns = self.table.to_columns()
        columns["step_time_s"] = self.step_time_s
        columns["tokens_per_s"] = self.tokens_per_s
        columns["mfu"] = self.mfu
        columns["hfu"] = self.hfu
        columns["fits"] = self.fits
        columns |= {f"{part}_s": self.time_s[part] for part in TIME_PARTS}
        columns |= {f"{part}_bytes": held for part, held in self.memory_bytes.items()}
        columns["total_bytes"] = self.memory_total_bytes
        columns["reserved_bytes"] = self.memory_reserved_bytes
        columns["offloaded_bytes"] = self.memory_offloaded_bytes
        reasons = np.array([*(rule.reason for rule in RULES), None], dtype=object)
        columns["refused"] = pl.Series(reasons[self.refused].tolist(), dtype=pl.String)
        return pl.DataFrame(columns)

"""Predict measured runs: each as a strategy, through the same formulas as any other.

Sources count peak memory in three ways: allocated by tensors (torch.cuda.max_memory_allocated),
reserved by the allocator (max_memory_reserved), or used on the device (nvidia-smi).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.analysis.assumed_host import assumed_host
from shardwise.analysis.estimate_table import EstimateTable
from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.mixture import mixture_interval
from shardwise.analysis.prediction_interval import joined, uncertainty_of, widened
from shardwise.analysis.validated_runs import run_features, validated_runs
from shardwise.errors import InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.ops.param_count import Parameters, count_parameters, flops_per_token
from shardwise.validate.measured.runs import Case, NotModeledError, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted step time and memory of a run, or the reason why there is none."""

    run: Run
    step_time_s: float | None = None
    converted_step_time_s: float | None = None
    """Measured time of a step, of runs that have FLOP/s alone."""
    memory_gib: float | None = None
    """Peak memory by the metric and in the unit of the run."""
    model_flops_per_step: float | None = None
    peak_flops: float | None = None
    """Dense peak of all accelerators in the run's precision, FLOP/s."""
    interval: tuple[float, float] | None = None
    """Bounds of the expected step time [s]."""
    refused: str | None = None
    """Why there is no prediction."""

    @property
    def measured_step_time_s(self) -> float | None:
        """Measured time of a step, or converted from FLOP/s [s]."""
        return self.run.measured_step_time_s or self.converted_step_time_s

    @property
    def measured_mfu(self) -> float | None:
        """Model FLOPs over the peak FLOPs of the accelerators in the measured time of a step."""
        time = self.measured_step_time_s
        if time is None or self.model_flops_per_step is None or self.peak_flops is None:
            return None
        return self.model_flops_per_step / (time * self.peak_flops)


def predict_runs(runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Predict step time and memory of runs, in their order; intervals are from other sources.

    Runs of one model on one system are one table of strategies.
    """
    found: dict[int, Prediction] = {}
    cases: dict[int, Case] = {}
    for position, run in enumerate(runs):
        try:
            cases[position] = run.case()
        except NotModeledError as reason:
            found[position] = Prediction(run=run, refused=str(reason))
    for rows in tables_of(cases):
        # Runs of one model on one system.
        model, system, _ = rows[0][1]
        table = estimate_many(model, system, [case.strategy for _, case in rows])
        counted = count_parameters(model)
        found |= {
            position: Prediction(run=runs[position], refused=_reason(case))
            if table.reason(row) is not None
            else _prediction(runs[position], case, table, row, counted)
            for row, (position, case) in enumerate(rows)
        }
    return tuple(found[position] for position in range(len(runs)))


def predict_as_typed(runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Predict runs with the software as their sources name it, in their order.

    The time is that of the most probable software; the interval is that of all that may be meant.
    """
    candidates = [run.as_typed() for run in runs]
    every = [run for some in candidates for _, run in some]
    predicted = iter(predict_runs(every))
    found = []
    for run, some in zip(runs, candidates, strict=True):
        each = [(weight, next(predicted)) for weight, _ in some]
        parts = [
            (weight, one.interval[0], one.step_time_s, one.interval[1])
            for weight, one in each
            if one.interval is not None and one.step_time_s is not None
        ]
        first = next((one for _, one in each if one.refused is None), each[0][1])
        interval = mixture_interval(parts) if parts else None
        found.append(replace(first, run=run, interval=interval))
    return tuple(found)


def tables_of(cases: Mapping[int, Case]) -> list[list[tuple[int, Case]]]:
    """Group runs of one model on one system, which are evaluated as one table."""
    tables: dict[tuple[str, str], list[tuple[int, Case]]] = defaultdict(list)
    for position, case in cases.items():
        key = case.model.model_dump_json(exclude={"name"}), case.system.model_dump_json()
        tables[key].append((position, case))
    return list(tables.values())


def _reason(case: Case) -> str:
    """Why an estimate refuses a strategy."""
    try:
        estimate(*case)
    except InputError as error:
        return "; ".join(str(fault) for fault in error.faults)
    raise AssertionError("a table refused what an estimate takes")


def _prediction(
    run: Run, case: Case, table: EstimateTable, row: int, counted: Parameters
) -> Prediction:
    step_s = float(table.step_time_s[row])
    flops = float(table.mfu[row]) * step_s
    tokens = float(table.tokens_per_s[row]) * step_s
    seq_len = int(table.table.seq_len[row])
    per_step = tokens * flops_per_token(case.model, seq_len, counted=counted)
    described = run_features(*case, assumed=run.uncertain, counted=counted)
    spread = uncertainty_of(described, validated_runs(), without=run.source)
    own = table.table.take(np.array([row]))
    features = unmeasured_features(case.model, own)
    slower, faster = (widened(one, len(features)) for one in (spread.slower, spread.faster))
    if (host := assumed_host(case.model, case.system, own)) is not None:
        slower = joined(slower, host.slower_step_s / step_s)
        faster = joined(faster, step_s / host.faster_step_s)
    return Prediction(
        run=run,
        step_time_s=step_s,
        interval=(step_s / faster, step_s * slower),
        converted_step_time_s=_converted_step_time_s(run, case, tokens, counted),
        memory_gib=_memory_gib(run, case, table, row),
        model_flops_per_step=per_step,
        peak_flops=per_step / flops,
    )


def _memory_gib(run: Run, case: Case, table: EstimateTable, row: int) -> float | None:
    """Peak memory by the metric of the run and in its unit; None: it has no measured memory."""
    measured = run.measured
    if measured.memory is None:
        return None
    allocated = float(table.memory_total_bytes[row])
    device = float(table.memory_reserved_bytes[row])
    if measured.memory_rank == "last" and table.table.pp[row] > 1:
        last = estimate(*case).stages[-1]
        allocated, device = last.total, last.reserved
    runtime = case.strategy.loaded_stack(case.system).runtime_memory
    found = {"allocated": allocated, "reserved": device - runtime, "device": device}
    return found[measured.memory_metric] / measured.memory_unit_bytes


def _converted_step_time_s(
    run: Run, case: Case, tokens: float, counted: Parameters
) -> float | None:
    """Measured time of a step where only a rate of FLOPs is known, as the source counts them."""
    rate, convention = run.measured.tflops_per_gpu, run.measured.flops_convention
    if run.measured_step_time_s is not None or convention == "hardware":
        return None
    if rate is None or run.gpus is None or run.seq_len is None:
        return None
    flops = tokens * flops_per_token(case.model, run.seq_len, convention, counted=counted)
    return flops / (rate * 1e12 * run.gpus)

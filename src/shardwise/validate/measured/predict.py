"""Predict measured runs: each as a strategy, through the same formulas as any other.

Sources count peak memory in three ways: allocated by tensors (torch.cuda.max_memory_allocated),
reserved by the allocator (max_memory_reserved), or used on the device (nvidia-smi).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardwise.analysis.estimate_table import EstimateTable
from shardwise.analysis.features import unmeasured_features
from shardwise.analysis.prediction_interval import uncertainty_of, widened
from shardwise.analysis.validated_runs import RunFeatures, run_features, validated_runs
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.estimator import estimate, estimate_many
from shardwise.ops.param_count import FlopsConvention, Parameters, count_parameters, flops_per_token
from shardwise.validate.measured.architecture import model_of
from shardwise.validate.measured.hardware import system_of
from shardwise.validate.measured.recompute import ignored_recompute
from shardwise.validate.measured.run import NotModeledError, OwnRun, Run, RunFault
from shardwise.validate.measured.software import ignored_software, stack_of, unknown_stack
from shardwise.validate.measured.strategy import strategy_of
from shardwise.validate.measured.words import ignored_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted step time and memory of a run, or the reason why there is none."""

    run: Run
    step_time_s: float | None = None
    converted_step_time_s: float | None = None
    """Measured time of a step, of rows that print FLOP/s alone."""
    memory_gib: float | None = None
    """Peak memory by the metric of the row."""
    model_flops_per_step: float | None = None
    peak_flops: float | None = None
    """Dense peak of all accelerators in the run's precision, FLOP/s."""
    interval: tuple[float, float] | None = None
    """Bounds of the expected step time [s]."""
    assumed: tuple[str, ...] = ()
    """Assumptions where the row is silent, a phrase each."""
    ignored: tuple[str, ...] = ()
    """What the row says and the prediction does not use, a phrase each."""
    refused: str | None = None
    """Why there is no prediction."""

    @property
    def measured_step_time_s(self) -> float | None:
        """Measured time of the row, or converted from FLOP/s [s]."""
        return self.run.measured_step_time_s or self.converted_step_time_s

    @property
    def measured_mfu(self) -> float | None:
        """Model FLOPs over the peak FLOPs of the accelerators in the measured time of a step."""
        time = self.measured_step_time_s
        if time is None or self.model_flops_per_step is None or self.peak_flops is None:
            return None
        return self.model_flops_per_step / (time * self.peak_flops)


Metric = Literal["allocated", "reserved", "device"]
_GIB = 2**30


def metric_of(run: Run) -> Metric:
    """What the memory of a row counts; an unknown tool counts all of the accelerator's memory."""
    text = (run.measured.mem_metric or "").lower()
    if run.measured.peak_mem_gib is None:
        return "reserved"
    if "allocated" in text or "memory active" in text:  # blocks in use, as allocated ones
        return "allocated"
    # torchtune logs peak_memory_active, Megatron-Bridge mem-max-allocated-gigabytes.
    logs = any(name in (run.software.framework or "") for name in ("torchtune", "Megatron-Bridge"))
    if logs and "reserved" not in text:
        return "allocated"
    return "reserved" if "reserved" in text else "device"


def _unit(run: Run) -> float:
    """Bytes of the unit of a row's memory (Megatron-Bridge, train_utils.py: bytes / 1e9)."""
    text = run.measured.mem_metric or ""
    logged = "Megatron-Bridge" in (run.software.framework or "") and "GB" in text
    return 1e9 if logged and "GiB" not in text else _GIB


def on_last_rank(run: Run) -> bool:
    """Whether the row is of the rank that logs, which in Megatron-LM is the last one."""
    return "logging rank" in (run.measured.mem_metric or "")


def memory_gib(
    run: Run, *, allocated_bytes: float, device_bytes: float, runtime_bytes: float
) -> float | None:
    """Predicted memory by the metric of a row and in its unit; None: it has no measured memory.

    The unit is GiB, but for what Megatron-Bridge logs, which rows print as they are: GB.

    Parameters
    ----------
    run
        The measured run.
    allocated_bytes
        Allocated by tensors [byte].
    device_bytes
        In addition with the allocator's cache and the runtime [byte].
    runtime_bytes
        The share of the runtime [byte].
    """
    if run.measured_memory_gib is None:
        return None
    found = {
        "allocated": allocated_bytes,
        "reserved": device_bytes - runtime_bytes,
        "device": device_bytes,
    }
    return found[metric_of(run)] / _unit(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A measured run as arguments of an estimate."""

    model: Model
    system: System
    strategy: Strategy
    assumed: tuple[str, ...] = ()
    """Assumptions where the row is silent."""
    ignored: tuple[str, ...] = ()
    """What the row says and the translation does not use."""


def translate(run: Run, *, unknown_software: bool = False) -> Translation:
    """Translate a run to a model, a system and a strategy.

    Parameters
    ----------
    run
        Measured run.
    unknown_software
        Whether to ignore which software it is of.

    Raises
    ------
    NotModeledError
        If that is impossible.
    """
    if isinstance(run, RunFault):
        raise NotModeledError(run.fault)
    if isinstance(run, OwnRun):
        if run.own_system is None:
            raise NotModeledError("system is missing")
        return Translation(model=run.own_model, system=run.own_system, strategy=run.own_strategy)
    if run.task == "pretrain-total":
        raise NotModeledError("the total of a project, with its restarts, is not a step")
    assumed: list[str] = []
    try:
        model = model_of(run, assumed)
        system = system_of(run, assumed)
        stack = stack_of(run, assumed)
        stack = unknown_stack(run) if unknown_software else stack
        strategy = strategy_of(run, model, system, stack, assumed)
    except InputError as error:
        raise NotModeledError("; ".join(str(fault) for fault in error.faults)) from None
    ignored = (*ignored_software(run), *ignored_recompute(run), *ignored_words(run))
    return Translation(
        model=model, system=system, strategy=strategy, assumed=tuple(assumed), ignored=ignored
    )


def describe_translation(
    translation: Translation, counted: Parameters | None = None
) -> RunFeatures:
    """The features of a run that measure its similarity to others.

    Parameters
    ----------
    translation
        The run.
    counted
        The model's parameters, if already counted.
    """
    return run_features(
        translation.model,
        translation.system,
        translation.strategy,
        assumed=bool(translation.assumed or translation.ignored),
        counted=counted,
    )


def predict_runs(
    runs: Sequence[Run], *, leave_out: bool = True, unknown_software: bool = False
) -> tuple[Prediction, ...]:
    """Predict step time and memory of runs, in their order.

    Runs of one model on one system are one table of strategies.

    Parameters
    ----------
    runs
        Measured runs.
    leave_out
        Whether intervals use only runs of other sources.
    unknown_software
        Whether to ignore which software they are of.
    """
    found: dict[int, Prediction] = {}
    translated: dict[int, Translation] = {}
    for position, run in enumerate(runs):
        try:
            translated[position] = translate(run, unknown_software=unknown_software)
        except NotModeledError as reason:
            found[position] = Prediction(run=run, refused=str(reason))
    for rows in tables_of(translated):
        found |= _predicted(runs, rows, leave_out=leave_out)
    return tuple(found[position] for position in range(len(runs)))


def tables_of(translated: Mapping[int, Translation]) -> list[list[tuple[int, Translation]]]:
    """Group runs of one model on one system, which are evaluated as one table."""
    tables: dict[tuple[str, str], list[tuple[int, Translation]]] = defaultdict(list)
    for position, translation in translated.items():
        key = (
            translation.model.model_dump_json(exclude={"name"}),
            translation.system.model_dump_json(),
        )
        tables[key].append((position, translation))
    return list(tables.values())


def _predicted(
    runs: Sequence[Run], rows: Sequence[tuple[int, Translation]], *, leave_out: bool
) -> dict[int, Prediction]:
    """Runs of one model on one system."""
    model, system = rows[0][1].model, rows[0][1].system
    strategies = [translation.strategy for _, translation in rows]
    table = estimate_many(model, system, strategies)
    counted = count_parameters(model)
    found = {}
    for row, (position, translation) in enumerate(rows):
        run = runs[position]
        if table.reason(row) is not None:
            found[position] = Prediction(run=run, refused=_reason(translation))
            continue
        found[position] = _prediction(run, translation, table, row, counted, leave_out=leave_out)
    return found


def _reason(translation: Translation) -> str:
    """Why an estimate refuses a strategy."""
    try:
        estimate(translation.model, translation.system, translation.strategy)
    except InputError as error:
        return "; ".join(str(fault) for fault in error.faults)
    raise AssertionError("a table refused what an estimate takes")


def _prediction(
    run: Run,
    translation: Translation,
    table: EstimateTable,
    row: int,
    counted: Parameters,
    *,
    leave_out: bool,
) -> Prediction:
    step_s = float(table.step_time_s[row])
    flops = float(table.mfu[row]) * step_s
    tokens = float(table.tokens_per_s[row]) * step_s
    seq_len = int(table.table.seq_len[row])
    per_step = tokens * flops_per_token(translation.model, seq_len, counted=counted)
    described = describe_translation(translation, counted)
    without = run.study if leave_out else None
    spread = uncertainty_of(described, validated_runs(), without=without)
    features = unmeasured_features(translation.model, table.table.take(np.array([row])))
    factor = widened(spread.factor, len(features))
    return Prediction(
        run=run,
        step_time_s=step_s,
        interval=(step_s / factor, step_s * factor),
        converted_step_time_s=_converted_step_time_s(run, translation, tokens, counted),
        memory_gib=_memory_gib(run, translation, table, row),
        model_flops_per_step=per_step,
        peak_flops=per_step / flops,
        assumed=translation.assumed,
        ignored=translation.ignored,
    )


def _memory_gib(run: Run, translation: Translation, table: EstimateTable, row: int) -> float | None:
    allocated = float(table.memory_total_bytes[row])
    device = float(table.memory_reserved_bytes[row])
    if on_last_rank(run) and table.table.pp[row] > 1:
        last = estimate(translation.model, translation.system, translation.strategy).stages[-1]
        allocated, device = last.total, last.reserved
    runtime = translation.strategy.loaded_stack(translation.system.stack).runtime_memory
    return memory_gib(run, allocated_bytes=allocated, device_bytes=device, runtime_bytes=runtime)


def _converted_step_time_s(
    run: Run, translation: Translation, tokens: float, counted: Parameters
) -> float | None:
    """Measured time of a step where only a rate of FLOPs is printed, as the source counts them."""
    rate = run.measured.tflops_per_gpu
    if run.measured_step_time_s is not None or rate is None or run.hardware.count is None:
        return None
    text = run.measured.flops_type or ""
    full = "non-causal" in text or "not discounted" in text or "full attention" in text
    convention: FlopsConvention = "full-attention" if full else "causal"
    seq_len = run.model.seq_len or translation.model.seq_len
    if seq_len is None or text.startswith("hardware"):
        return None
    flops = tokens * flops_per_token(translation.model, seq_len, convention, counted=counted)
    return flops / (rate * 1e12 * run.hardware.count)

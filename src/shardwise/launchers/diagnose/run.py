"""`diagnose`: a measured run against its prediction: what is slow, and what would be faster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.launch import Launch
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import DEGREES, REPLICA_DEGREES, SHORT_NAMES
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, check_path, refuse
from shardwise.estimator import estimate
from shardwise.launchers.diagnose import cross_checks
from shardwise.launchers.diagnose.changes import Change, best_changes, changed_fields, resolvable
from shardwise.launchers.diagnose.components import Compared
from shardwise.launchers.diagnose.findings import logged_findings, traced_findings
from shardwise.launchers.diagnose.launch_diff import launch_diff, option_changes
from shardwise.launchers.diagnose.measured import MeasuredSteps, measured_steps
from shardwise.launchers.diagnose.predicted import predicted_step
from shardwise.launchers.diagnose.rebase import possible_causes, with_findings
from shardwise.launchers.diagnose.results import (
    Cause,
    ChangedField,
    Diagnosis,
    Finding,
    MeasuredRun,
    PredictedRun,
    ProposedChange,
)
from shardwise.launchers.kineto.steps import read_trace
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.logs import MemoryKind, RunLog, read_log
from shardwise.launchers.registry import LAUNCHERS, read_launch
from shardwise.launchers.software import of_run

CHANGES = 5
"""Changes that are proposed by default."""
_LOGGED = ("gpus", *(name for name in DEGREES if name != "dp"), "seq_len", "micro_batch_size")
"""Fields of which a log that says otherwise is the log of another run."""
_USER = "strategy"
_PROFILED = 1.1
_FEW_STEPS = 5


def diagnose(
    launch: Launch | str | Path,
    system: SystemLike,
    *,
    log: RunLog | str | Path,
    trace: str | Path | None = None,
    model: ModelLike | None = None,
    strategy: Mapping[str, object] | None = None,
    changes: int = CHANGES,
) -> Diagnosis:
    r"""Compare the log of a run with its prediction; find what is slow and what to change.

    Parameters
    ----------
    launch
        Launch file of Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed or accelerate, or what
        `read_launch` returned.
    system
        Config object, catalog name or file.
    log
        Log of the run: Megatron-LM, Megatron-Bridge, torchtitan, DeepSpeed, MaxText, NeMo, MLPerf
        or the Hugging Face Trainer; also .gz; or a `RunLog`.
    trace
        Trace of PyTorch's profiler (.json, .json.gz) with steps, which separates components.
    model
        For launch files that do not hold it.
    strategy
        Fields of the run that the launch file does not hold, such as gpus and recompute in a file
        of DeepSpeed; they override those of the file.
    changes
        How many changes to propose at most.

    Returns
    -------
    Diagnosis
        Findings and proposed changes; `help(shardwise.Diagnosis)` lists its fields.

    Raises
    ------
    InputError
        If an input is wrong, or the log is that of another run.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from shardwise import diagnose, export
    >>> folder = Path(mkdtemp())
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=2, gbs=64)
    >>> _ = (folder / "train.sh").write_text(made.files[0].text)
    >>> line = "iteration {}/ 20 | elapsed time per iteration (ms): 9000.0 |"
    >>> _ = (folder / "train.log").write_text("\n".join(line.format(n) for n in range(1, 21)))
    >>> found = diagnose(folder / "train.sh", "h100-sxm", log=folder / "train.log")
    >>> found.measured.step_time_s, found.predicted.step_time_s < 9
    (9.0, True)
    """
    if isinstance(changes, bool) or not isinstance(changes, int) or changes < 0:
        raise InputError(Fault.of("changes", changes, "must be a whole number of at least 0"))
    if not isinstance(log, RunLog):
        check_path("log", log)
    if trace is not None:
        check_path("trace", trace)
    if not isinstance(launch, Launch):
        check_path("launch", launch)
    if strategy is not None and not isinstance(strategy, Mapping):
        raise InputError(Fault.of("strategy", strategy, "must be fields by name"))
    the_system = System.load(system)
    logged = log if isinstance(log, RunLog) else read_log(log)
    case = _Case.of(launch, the_system, logged, model=model, own=strategy or {})
    predicted = estimate(case.model, the_system, case.strategy)
    steps = measured_steps(
        logged,
        tokens_per_step=predicted.tokens_per_step,
        samples_per_step=float(case.own.global_batch_size or 1),
        gpus=int(case.own.gpus or 1),
    )
    median, kind = steps.median_s, next((k for k in MemoryKind if k in logged.memory), None)
    rate = predicted.tokens_per_step / median
    measured = MeasuredRun(
        format=logged.format,
        steps=steps.logged,
        warm_up=steps.warm_up,
        slow_steps=int(steps.slow.sum()),
        step_time_s=median,
        spread=steps.spread,
        fast_s=steps.fast_s,
        mean_s=float(steps.times_s.mean()),
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / int(case.own.gpus or 1),
        tflops_per_gpu=steps.tflops_per_gpu,
        memory_bytes=None if kind is None else logged.memory[kind],
        memory_kind=kind or "",
    )
    expected = _predicted_run(predicted, case.own, measured)
    compared = None if trace is None else case.compared(trace, expected, measured.step_time_s)
    findings, traced = _findings(case, steps, measured, expected, compared)
    proposed = _proposed(case, traced, measured, expected, most=changes) if changes else ()
    return Diagnosis(
        launch=case.launch.source,
        launcher=case.launch.launcher,
        model=case.model.name,
        system=the_system.name,
        strategy=predicted.strategy,
        measured=measured,
        predicted=expected,
        components=() if compared is None else compared.listed(),
        traced_step_s=None if compared is None else compared.traced.step_s,
        findings=findings,
        changes=proposed,
        notes=tuple(_notes(case, steps, measured, expected, compared)),
        not_understood=tuple(map(str, case.launch.not_understood)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What was launched, and where."""

    launch: Launch
    model: Model
    system: System
    strategy: Strategy
    """As the launch file sets it."""
    own: Strategy
    """With defaults filled in."""
    log: RunLog

    @classmethod
    def of(
        cls,
        launch: Launch | str | Path,
        system: System,
        log: RunLog,
        *,
        model: ModelLike | None,
        own: Mapping[str, object],
    ) -> "_Case":
        """Read the launch file; what it lacks is that of the user, or of the log.

        Raises
        ------
        InputError
            If something is missing, or the log contradicts it.
        """
        known = None if model is None else Model.load(model)
        count = Strategy.validated(own, source=_USER).gpus or log.fields.get("gpus")
        if not isinstance(launch, Launch):
            launch = read_launch(launch, model=known, gpus=count)
        used = known or launch.model
        if used is None:
            problem = "the launch file holds none: set it"
            raise InputError(Fault(source=launch.source, field="model", problem=problem))
        releases = next((one.releases for one in LAUNCHERS if one.name == launch.launcher), ())
        printed = log.releases.get(launch.launcher)
        launch = of_run(launch, releases, named=own.get("stack"), release=printed)
        if isinstance(own.get("stack"), str):
            own = {name: value for name, value in own.items() if name != "stack"}
        fields = {SHORT_NAMES.get(name, name): value for name, value in launch.strategy.items()}
        if own.keys() & {"gpus", *REPLICA_DEGREES}:  # the replicas follow from the other degrees
            fields.pop("dp", None)
        fields |= {SHORT_NAMES.get(name, name): value for name, value in own.items()}
        if "gpus" not in fields and "dp" not in fields and count is not None:
            fields["gpus"] = count
        strategy = Strategy.validated(fields, source=launch.source)
        resolved = strategy.resolved(used, system)
        refuse(_contradictions(launch, log, resolved))
        return cls(
            launch=launch, model=used, system=system, strategy=strategy, own=resolved, log=log
        )

    @property
    def launcher(self) -> Launcher | None:
        """The launcher that reads and writes such files, if it is there; forks have no writer."""
        if self.launch.fork:
            return None
        return next((one for one in LAUNCHERS if one.name == self.launch.launcher), None)

    def compared(self, path: str | Path, expected: PredictedRun, median_s: float) -> Compared:
        """Set a trace against the prediction of the stage of its rank.

        Ranks of a stage are consecutive in the orders of the launchers, tp-cp-ep-dp-pp.
        """
        trace = read_trace(path, {axis: int(getattr(self.own, axis) or 1) for axis in DEGREES})
        gpus, stages = int(self.own.gpus or 1), self.own.pp
        problem = f"the launch file has {gpus}: the trace is of another run"
        if trace.world_size is not None and trace.world_size != gpus:
            fault = Fault.of("world_size", trace.world_size, problem, source=trace.source)
            raise InputError(fault)
        refuse(cross_checks.trace_faults(trace, self.system, median_s))
        known = trace.rank is not None and trace.rank < gpus and stages > 1
        stage = (trace.rank or 0) // (gpus // stages) if known else None
        return Compared(
            traced=trace,
            predicted=predicted_step(self.model, self.system, self.own, stage=stage),
            factor=expected.high_s / expected.step_time_s,
            median_s=median_s,
        )

    def can_write(self, strategy: Strategy) -> bool:
        """Whether the launcher can express a strategy, as far as it is known, and nodes hold it."""
        launcher = self.launcher
        if cross_checks.exceeds_node(self.launch, self.own, strategy):
            return False
        return launcher is None or not list(launcher.faults(self.model, strategy))


def _contradictions(launch: Launch, log: RunLog, own: Strategy) -> Iterator[Fault]:
    """Yield a fault for each degree that the log has and the launch file has not."""
    for name in _LOGGED:
        logged, value = log.fields.get(name), getattr(own, name)
        if logged is not None and logged != value:
            problem = f"{launch.source} has {value}: the log is of another run"
            yield Fault.of(name, logged, problem, source=log.source)


def _predicted_run(predicted: Estimate, own: Strategy, measured: MeasuredRun) -> PredictedRun:
    """The estimate, with memory of the kind that the log has."""
    interval, range_ = predicted.interval, predicted.memory_interval
    step = predicted.step_time_s
    memory = low = high = None
    if measured.memory_kind and range_ is not None:
        peak, stack = predicted.memory_bytes, own.loaded_stack()
        memory, low, high = {
            MemoryKind.ALLOCATED: (peak.total, range_.total_low, range_.total_high),
            MemoryKind.RESERVED: _allocator(predicted, stack.runtime_memory),
            MemoryKind.DEVICE: (peak.reserved, range_.reserved_low, range_.reserved_high),
        }[MemoryKind(measured.memory_kind)]
    return PredictedRun(
        step_time_s=step,
        low_s=step if interval is None else interval.low_s,
        high_s=step if interval is None else interval.high_s,
        level=0.0 if interval is None else interval.level,
        tokens_per_s=predicted.tokens_per_s,
        tokens_per_s_per_gpu=predicted.tokens_per_s_per_gpu,
        memory_bytes=memory,
        memory_low=low,
        memory_high=high,
        fits=predicted.fits,
    )


def _allocator(predicted: Estimate, runtime: float) -> tuple[float, float, float]:
    """What the allocator reserves: what the accelerator must have, without the runtime."""
    range_ = predicted.memory_interval
    assert range_ is not None  # noqa: S101 - by its caller
    sizes = (predicted.memory_bytes.reserved, range_.reserved_low, range_.reserved_high)
    peak, low, high = (max(size - runtime, 0.0) for size in sizes)
    return peak, low, high


def _findings(
    case: _Case,
    steps: MeasuredSteps,
    measured: MeasuredRun,
    expected: PredictedRun,
    compared: Compared | None,
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """All findings, the largest gain first; and those of the trace."""
    traced = () if compared is None else tuple(traced_findings(compared, case.system))
    explained = sum(one.gain_s for one in traced)
    logged = list(logged_findings(steps, measured, expected, explained_s=explained))
    for position, one in enumerate(logged):
        if one.cause is Cause.UNKNOWN and not traced:
            step = predicted_step(case.model, case.system, case.own)
            names = [case.system.network[tier].name for tier in sorted(set(step.tiers.values()))]
            possible = possible_causes(
                case.model, case.system, case.own, measured.step_time_s, names
            )
            logged[position] = one.model_copy(update={"possible": tuple(possible)})
    return tuple(sorted((*traced, *logged), key=lambda one: -one.gain_s)), traced


def _proposed(
    case: _Case,
    traced: Sequence[Finding],
    measured: MeasuredRun,
    expected: PredictedRun,
    *,
    most: int,
) -> tuple[ProposedChange, ...]:
    """The best changes of the strategy on the machine as it was measured."""
    system, stack = with_findings(case.model, case.system, case.own, traced)
    ratio = 1.0
    if measured.memory_bytes is not None and expected.memory_bytes:
        ratio = max(measured.memory_bytes / expected.memory_bytes, 1.0)
    now, found = best_changes(
        case.model,
        system,
        case.strategy,
        stack=stack,
        most=most,
        memory_factor=ratio,
        can_write=case.can_write,
    )
    return tuple(_proposal(case, one, now, measured.step_time_s) for one in found)


def _proposal(case: _Case, change: Change, now: float, measured_s: float) -> ProposedChange:
    """A change with its gain: the measured step times the ratio of the estimates."""
    own_stack = case.own.stack
    strategy = change.strategy.model_copy(update={"stack": own_stack})
    alone = estimate(case.model, case.system, strategy)
    expected = measured_s * change.step_time_s / now
    fields = changed_fields(case.own, strategy, tuple(change.fields))
    diff, options, elsewhere = _as_options(case, strategy)
    return ProposedChange(
        fields=tuple(ChangedField(field=n, current=a, value=b) for n, a, b in fields),
        step_time_s=expected,
        gain_s=measured_s - expected,
        gain_share=1 - expected / measured_s,
        predicted_step_time_s=alone.step_time_s,
        memory_bytes=change.memory_bytes,
        resolved=resolvable(measured_s, expected),
        diff=diff,
        options=options or tuple(f"{n}: {a} -> {b}" for n, a, b in fields),
        elsewhere=elsewhere,
    )


def _as_options(case: _Case, strategy: Strategy) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Diff of the launch file, its options that change, and what changes in other files.

    Empty where no launcher writes them.
    """
    launcher = case.launcher
    if launcher is None:
        return "", (), ()
    before, after = (
        LaunchPlan(model=case.model, system=case.system, strategy=one)
        for one in (case.own, strategy)
    )
    try:
        changes, others = option_changes(launcher, before, after, case.launch)
    except InputError:  # the file itself has what the launcher's writer has no option for
        return "", (), ()
    options, elsewhere = tuple(map(str, changes)), tuple(others)
    try:
        text = files.read_text(case.launch.source)
    except InputError:  # a launch that was not read from a file
        return "", options, elsewhere
    return launch_diff(case.launch.source, text, changes), options, elsewhere


def _notes(
    case: _Case,
    steps: MeasuredSteps,
    measured: MeasuredRun,
    expected: PredictedRun,
    compared: Compared | None,
) -> Iterator[str]:
    """Yield what limits the comparison."""
    yield from cross_checks.notes(case.launch, case.log, case.system, case.own)
    if steps.logged == 0:
        yield "the log has the mean of all steps alone: start and evaluation are in it"
    elif len(steps.times_s) < _FEW_STEPS:
        yield f"the log has {len(steps.times_s)} steps after the warm-up: the median is uncertain"
    if measured.step_time_s < expected.low_s:
        yield (
            "steps are faster than the interval of the prediction: is it the launch file, and the "
            "system, of this log?"
        )
    low = expected.memory_low
    if low is not None and measured.memory_bytes is not None and measured.memory_bytes < low:
        yield (
            "the peak of memory is below its interval: does the run set more than the launch file "
            "(recompute, a smaller micro-batch)? Set it as flags"
        )
    if not expected.fits:
        yield "the prediction does not fit in memory"
    if compared is None:
        yield "without a trace the cause of slow steps is not known: --trace"
    elif compared.traced.step_s > _PROFILED * measured.step_time_s:
        yield (
            f"steps of the trace take {compared.traced.step_s / measured.step_time_s:.2f} times "
            "those of the log: the difference counts as the profiler's, not as idle time"
        )
    elif measured.step_time_s > _PROFILED * compared.traced.step_s:
        yield "steps of the log are slower than those of the trace, which does not show why"
    if case.launcher is None:
        name = case.launch.fork or case.launch.launcher
        yield f"no writer for {name}: changes are fields, not a diff"

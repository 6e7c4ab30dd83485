"""What `diagnose` returns: the measured run, its components against the prediction, findings."""

from collections.abc import Mapping
from typing import Any

from shardwise.analysis import Result
from shardwise.config.enums import Word
from shardwise.shown import Charted


class Cause(Word):
    """Why a step takes longer than predicted."""

    SLOW_PRODUCTS = "slow_products"
    SLOW_ATTENTION = "slow_attention"
    SLOW_KERNELS = "slow_kernels"
    SLOW_LINK = "slow_link"
    SLOW_COLLECTIVE = "slow_collective"
    NOT_HIDDEN = "not_hidden"
    WAITS_FOR_RANKS = "waits_for_ranks"
    SLOW_COPIES = "slow_copies"
    HOST_STALLS = "host_stalls"
    DATA_LOADING = "data_loading"
    PERIODIC_STEPS = "periodic_steps"
    UNEVEN_STEPS = "uneven_steps"
    MEMORY = "memory"
    UNKNOWN = "unknown"


class MeasuredRun(Result):
    """What the log of a run says of its steps, after the warm-up."""

    format: str
    """Trainer that wrote the log."""
    steps: int
    """Steps that were logged."""
    warm_up: int
    """First of them that are left out: a tenth, from 1 to 20."""
    slow_steps: int
    """Of the others, those that are slower than 1.25 times the median and by five standard
    deviations, such as steps with a checkpoint."""
    step_time_s: float
    """Median."""
    spread: float
    """Standard deviation over the median, by the median deviation, which outliers do not change; 0
    where the log has no single steps."""
    fast_s: float
    """Time that one step in ten stays below [s]."""
    mean_s: float
    """With slow steps [s]."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float | None
    """As the log prints it; the FLOPs are counted by the trainer's convention."""
    memory_bytes: float | None
    """The most of any rank."""
    memory_kind: str
    """allocated (tensors), reserved (allocator) or device; empty without memory."""


class PredictedRun(Result):
    """What the estimate says of the same figures."""

    step_time_s: float
    low_s: float
    high_s: float
    """Interval of the measured time."""
    level: float
    """Share of runs expected inside."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    memory_bytes: float | None
    """Of the kind that the log has."""
    memory_low: float | None
    memory_high: float | None
    fits: bool


class StepComponent(Result):
    """One component of a step; the exposed times of all add up to the step."""

    name: str
    """products, attention, other_kernels, tp, cp, ep, pp, dp, other (communication), memcpy or
    idle."""
    predicted_s: float
    """Exposed [s]."""
    measured_s: float
    """Exposed [s]."""
    predicted_total_s: float | None = None
    """Of communication, with what compute hides [s]."""
    measured_total_s: float | None = None


class PossibleCause(Result):
    """One change of the machine that alone would explain the measured time."""

    cause: Cause
    what: str
    """products, communication of a network tier, or the host."""
    factor: float | None
    """Time over the predicted one."""
    added_s: float | None
    """Time added to a step [s]."""


class Finding(Result):
    """Something that is slower than it should be."""

    cause: Cause
    component: str
    """Component of the step, or empty."""
    tier: str
    """Network tier; empty where it is not about communication."""
    excess_s: float
    """Measured time over the predicted time of the component, in a step [s]."""
    ratio: float | None
    """Measured over predicted time (of communication: with what is hidden); None where the
    prediction is 0 or the cause has none."""
    gain_s: float
    """Shorter step without it [s]."""
    gain_share: float
    """The same over the measured step."""
    text: str
    """For people."""
    possible: tuple[PossibleCause, ...] = ()
    """Where the cause is unknown: what alone would explain it."""


class ChangedField(Result):
    """A field of the strategy that a change sets."""

    field: str
    current: Any
    value: Any


class ProposedChange(Result):
    """A legal change of one or two fields that makes the step faster."""

    fields: tuple[ChangedField, ...]
    step_time_s: float
    """Expected with it, from what was measured [s]."""
    gain_s: float
    gain_share: float
    predicted_step_time_s: float
    """By the estimate alone [s]."""
    memory_bytes: float
    """Predicted peak, with the slack of the allocator and the runtime."""
    resolved: bool
    """Whether measurements of such runs can tell the two apart."""
    diff: str
    """Of the launch file; empty where its options were not found there."""
    options: tuple[str, ...]
    """Options that change: `option: old -> new`."""
    elsewhere: tuple[str, ...] = ()
    """What changes in other files of the launch, such as the script next to a JSON."""


class Diagnosis(Charted, Result):
    r"""A measured run against its prediction.

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
    >>> [finding.cause.value for finding in found.findings]
    ['unknown']
    """

    launch: str
    """Launch file."""
    launcher: str
    model: str
    system: str
    strategy: Mapping[str, Any]
    """All fields, with defaults filled in."""
    measured: MeasuredRun
    predicted: PredictedRun
    components: tuple[StepComponent, ...]
    """Empty without a trace."""
    traced_step_s: float | None
    """Step of the trace; the profiler makes it longer [s]."""
    findings: tuple[Finding, ...]
    """Those with the largest gain first."""
    changes: tuple[ProposedChange, ...]
    """Those with the largest gain first."""
    notes: tuple[str, ...]
    """What limits the comparison."""
    not_understood: tuple[str, ...]
    """Options of the launch file that the prediction does not use."""

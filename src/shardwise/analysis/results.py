"""What `estimate` returns: `Estimate` and its records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from shardwise.analysis import Result, part_faults
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config.base import Source
from shardwise.config.enums import MemoryLimit
from shardwise.engine.step_time import TIME_PARTS
from shardwise.errors import Fault
from shardwise.frozen import frozen
from shardwise.shown import Charted, reports

Verdict = Literal["fits", "on the edge", "does not fit"]


class _Once:
    """A formula that is evaluated once; `functools.cache` takes ten times as long to make."""

    __slots__ = ("_formula", "_value")

    def __init__(self, formula: Callable[[], Any]) -> None:
        self._formula = formula

    def __call__(self) -> Any:
        if not hasattr(self, "_value"):
            self._value = self._formula()
        return self._value


class Deferred(Result):
    """A result that keeps formulas in place of fields that few read.

    It behaves like one that has all its values: JSON, pickles, comparison and iteration have every
    field.
    """

    _formulas: Mapping[str, Callable[[], Any]] = PrivateAttr(default_factory=dict)
    """By the fields that may still be missing; copies share them, and what they return."""

    @classmethod
    def deferring(cls, formulas: Mapping[str, Callable[[], Any]], **fields: Any) -> Self:
        """Return a result of correct values, which are not validated again.

        Parameters
        ----------
        fields
            The other fields; those with a default may be left out.
        """
        return cls._of({name: _Once(formula) for name, formula in formulas.items()}, fields)

    @classmethod
    def extending(cls, other: "Deferred", **fields: Any) -> Self:
        """Return a result of a derived type: the fields of another one, and more."""
        return cls._of(other._formulas, vars(other) | fields)  # noqa: SLF001 - of its own class

    @classmethod
    def _of(cls, formulas: Mapping[str, Callable[[], Any]], fields: Mapping[str, Any]) -> Self:
        cls.model_rebuild()  # before pydantic 2.14 a field of type Any can write no other records
        deferred = dict.fromkeys(formulas.keys() - fields.keys())  # a default takes longer to make
        one: Any = cls.model_construct({*formulas, *fields}, **deferred, **fields)
        for name in deferred:
            one.__dict__.pop(name, None)
        one._formulas = formulas  # noqa: SLF001 - of its own class
        return one

    if not TYPE_CHECKING:  # where other names are mistakes

        def __getattr__(self, name: str) -> Any:
            """Work out a field that is read for the first time."""
            formula = None if name.startswith("_") else self._formulas.get(name)
            if formula is None:
                return super().__getattr__(name)
            value = self.__dict__[name] = frozen(formula())
            return value

    def completed(self) -> Self:
        """Work out all fields, and return the result itself."""
        if self._formulas:
            fields = {name: getattr(self, name) for name in type(self).model_fields}
            object.__setattr__(self, "__dict__", fields)  # in order, and at once for other threads
            self._formulas = {}
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Deferred):
            other.completed()
        self.completed()
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in type(self).model_fields]))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        self.completed()
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        self.completed()
        return super().__getstate__()

    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        self.completed()
        return super().__iter__()

    def __repr_args__(self) -> Any:
        self.completed()
        return super().__repr_args__()

    def _with_dicts(self) -> Self:
        """Complete it before it is serialized, also inside other results."""
        return super(Deferred, self.completed())._with_dicts()


if TYPE_CHECKING:
    from shardwise.analysis.comparison import Comparison


# Parts of the time are sums of float64; they add up to the step within this share.
_ROUNDING = 1e-9


class Peak(Result):
    """The moment at which a stage uses the most memory."""

    bytes: float
    operation: str
    phase: str


class Memory(Result):
    """Peak memory of one rank of a stage [byte]."""

    weights: float
    """Trained and frozen weights that are resident between uses. Where ZeRO-3 gathers 16-bit
    weights from fp32 ones and stores no others (PyTorch FSDP), these are the weights."""
    gradients: float
    optimizer: float
    """Moments, and fp32 copies of weights that are also stored in a smaller type."""
    activations: float
    """Saved from forward to backward."""
    buffers: float
    """Temporary tensors of one operation."""
    total: float
    """Sum of the above: tensors alone (torch.cuda.max_memory_allocated)."""
    reserved: float
    """What the accelerator must have (nvidia-smi): the total with the allocator's slack, plus the
    memory of the runtime."""
    capacity: float
    """What the accelerator has."""
    offloaded: float
    """In the second memory tier; of the full estimate, on the stage that offloads most."""
    offload_capacity: float
    """Usable bytes of the second memory tier, without `reserved`; 0 if there is none."""
    limit_on: MemoryLimit = MemoryLimit.RESERVED
    """What must fit: `reserved`, or, where it is ``allocated``, `total`."""

    @property
    def needed(self) -> float:
        """What must fit into the capacity [byte]."""
        return self.reserved if self.limit_on == MemoryLimit.RESERVED else self.total


class WeightMemory(Result):
    """What the weights of one kind need on a rank, as parts of `Memory` [byte]."""

    parameters: float
    """Number of weights on the rank, before ZeRO shards them."""
    weights: float
    gradients: float
    optimizer: float


class StageEstimate(Deferred, Memory):
    """One pipeline stage: memory of one of its ranks, and time per micro-batch."""

    stage: int
    layers: int
    parameters: float
    """On one rank."""
    in_flight: float
    """Micro-batches whose activations it holds at its peak."""
    micro_batch_s: float
    """Forward, backward, recompute and exposed communication of one micro-batch [s]."""
    forward_s: float
    """Forward pass with exposed communication [s]."""
    backward_s: float
    """Backward pass with recompute and exposed communication [s]."""
    peak: Peak
    forward_peak: Peak | None = None
    backward_peak: Peak | None = None
    """Of each pass alone, without the update; None forward only."""
    dense: WeightMemory | None = None
    experts: WeightMemory | None = None
    """Routed experts, and all other weights; None for a model without experts."""


class CommTime(Result):
    """Communication of one axis in a step."""

    total: float
    """Without any overlap [s]."""
    exposed: float
    """The part that lengthens the step [s]."""


class CommunicationShare(Result):
    """Communication of one axis on the critical stage in a step, by direction and level."""

    axis: str
    """tp (with tp2), cp, ep (with etp), pp or dp."""
    what: str
    """activations, tokens (between experts), messages (between stages); for data parallelism
    gradients, weights, momenta (of Muon), mirrors (gradients of DualPipe's pairs) or embeddings."""
    direction: Literal["forward", "backward", "both"]
    """Pass that it belongs to (recompute belongs to backward); `both` where the model does not
    separate them."""
    level: Literal["intra", "inter"]
    """Intra: time of the same collective among members in one domain of the innermost network tier.
    Inter: the additional time because other members are outside it."""
    total_s: float
    """Without any overlap [s]."""
    exposed_s: float
    """The part that lengthens the step [s]; divided between levels in proportion to `total_s`."""


class MoeOverhead(Result):
    """What routing tokens to experts adds to a step on its critical stage [s]."""

    exchange_forward_s: float
    """Exposed communication between experts in the forward pass."""
    exchange_backward_s: float
    """The same in the backward pass, with what recompute repeats."""
    gating_forward_s: float
    """Router scores and top-k selection."""
    gating_backward_s: float
    """With what recompute repeats."""
    permute_forward_s: float
    """Permuting tokens into expert order and back."""
    permute_backward_s: float
    """With what recompute repeats."""
    imbalance_s: float
    """Expert GEMMs of the most loaded rank, beyond those of an even load."""
    total_s: float
    """Sum of the above."""


class Breakdown(Result):
    """The step in more detail than `time_s`."""

    exchanges: tuple[CommunicationShare, ...]
    """Communication that takes time; the exposed times of an axis add up to `comm_s`."""
    moe: MoeOverhead | None
    """None for a model without experts."""


class Cost(Result):
    """Cost of a step; null where the system has no price or power."""

    usd_per_step: float | None
    usd_per_billion_tokens: float | None
    kwh_per_step: float | None
    """At the power limit of node or board."""
    price: str = ""
    """Price of a GPU-hour that these rest on, with provider, region, term and date."""

    @property
    def price_line(self) -> str:
        """The price, or how to set one."""
        lacks = "no price: set --price, price in the file of the system, or a price book"
        return f"price: {self.price}" if self.price else lacks


class OperationEstimate(Result):
    """One kernel or collective on one rank: per micro-batch, or per step where `part` is step."""

    part: str
    """Embedding, layer, head or step."""
    operation: str
    phase: str
    """forward, input_grad, weight_grad, recompute or step."""
    count: int
    """How often the component (embedding, layer, head) occurs in the model."""
    kind: str
    """matmul, attention, memory, the kind of collective, or link (to the second memory tier)."""
    flops: float = 0.0
    bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    time_s: float
    exposed_s: float
    """The part that lengthens the step [s]."""
    bound: str
    """What limits it: compute, memory, launch or network."""
    missed: bool = False
    """Whether the system has a table of measured shapes, but none close to this one."""
    axis: str = ""
    """Axis of a collective; empty for a kernel."""
    volume_bytes: float = 0.0
    """Buffer of a collective; where `part` is step, of all of them in a step."""
    group: int = 1
    """Members of a collective."""
    extents: tuple[int, ...] = ()
    """Members within one domain of each network tier, innermost first."""
    network: str = ""
    """Outermost network tier that a collective crosses."""
    link_bandwidth: float = 0.0
    """Bandwidth of that tier for one accelerator, in one direction [byte/s]."""
    latency_s: float = 0.0
    """Time of one such collective without data [s]."""
    weight_bytes: float = 0.0
    """Weights, on the first row of an operation."""
    saved_bytes: float = 0.0
    """Activations saved for backward, on the first row of an operation."""


class PhaseTotals(Result):
    """Kernels of one pass through a layer."""

    flops: float
    matrix_flops: float
    """Those of GEMMs and attention."""
    bytes: float
    compute_s: float
    memory_s: float
    time_s: float


class CommunicationTotals(Result):
    """Communication of one axis in one or more passes through a layer."""

    volume_bytes: float
    """Sum of the buffers."""
    time_s: float
    exposed_s: float


class LayerTotals(Result):
    """One layer of a kind on one rank, per micro-batch; its optimizer update per step."""

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
    """What recompute repeats, and all-gathers of tensors of which only a shard was saved."""
    cp: CommunicationTotals
    """Context parallelism, all passes."""
    ep: CommunicationTotals
    """Expert parallelism, all passes."""
    parameters: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    """Activations saved from forward to backward."""
    working_bytes: float
    """Largest working set of an operation."""
    boundary_bytes: float
    """What a rank sends to the next stage; 0 without one."""


class RequiredBandwidth(Result):
    """Minimum bandwidths that would hide transfers behind compute [byte/s].

    0 where nothing moves, null where there is nothing to hide behind.
    """

    tp_overlap: float | None
    dp_chunks: float | None
    """For the gradients of all chunks but the last."""
    dp_tail: float | None
    """For those of the last chunk."""
    offload_weights: float | None
    """For weights alone, whether or not they are offloaded. As all rates of offload it is what one
    accelerator must get of the link in one direction while all copy."""
    offload_activations: float | None
    offload_optimizer: float | None
    offload: float | None
    """For everything that is offloaded together."""


class Interval(Result):
    """Range of the measured step time, from the errors of measured runs."""

    low_s: float
    high_s: float
    level: float
    """Share of runs expected inside."""
    runs: int
    """Measured runs that it rests on."""
    nearest: str
    """The most similar of them: an id of the collection that `validate runs` predicts."""
    distance: float
    """How different that run is: 0 equal in everything that counts, above 2 another machine and
    framework."""
    stack_measured: bool = True
    """Whether runs of the framework were measured; if not, the range has the spread of frameworks
    too."""
    release_sources: int = 0
    """Sources of measured runs of the same stack: without any, the range is wider."""
    stack_sources: int = 0
    """Sources of measured runs of the same software, in any release of the stack: without any, the
    range is wider."""
    pair_sources: int = 0
    """Sources of measured runs of the same software on the same generation of accelerators: without
    any, the range is wider."""
    accelerator_sources: int = 0
    """Sources of measured runs on the same system: without any, the range is wider."""
    measured: tuple[str, ...] = ()
    """Kinds that were measured on the machine itself (`calibrate measure`): those of kernels make
    the range narrower."""
    measured_on: str = ""
    """Date of these measurements."""


class AssumedNetwork(Result):
    """The usual network cards of such servers, in place of those of a cluster."""

    tier: str
    links_per_node: int
    link_rate: float
    """Of one link, in one direction [byte/s]."""
    spread: float
    """Factor that the rate of all links of 8 of 10 clusters lies within."""
    slower_step_s: float
    """Step time where they have the rate over the spread."""
    faster_step_s: float
    """Step time where they have the rate times the spread."""

    def over(self, step_s: float) -> "AssumedNetwork":
        """Return its times over that of a step."""
        times = {name: getattr(self, name) / step_s for name in ("slower_step_s", "faster_step_s")}
        return self.model_copy(update={n: float(time) for n, time in times.items()})


class AssumedHost(Result):
    """The host of an update on it, where its threads, kernels or rates are not known."""

    update_s: float
    """Time of the update [s]."""
    ranks: int
    """Ranks that share the host."""
    threads: int
    """Threads of each rank."""
    cpu_optimizer: str
    """How the update runs: a word of `CpuOptimizer`."""
    slower_step_s: float
    """Step time with one thread, an unfused update and a slower core; what a strategy sets
    stays."""
    faster_step_s: float
    """Step time with all cores, a fused update and a faster core."""

    def over(self, step_s: float) -> "AssumedHost":
        """Return its step times over that of a step."""
        times = {name: getattr(self, name) / step_s for name in ("slower_step_s", "faster_step_s")}
        return self.model_copy(update={n: float(time) for n, time in times.items()})


class MixerKernels(Result):
    """Kernels of a kind of mixer in a step (`analysis.mixer_kernels`)."""

    kind: str
    share: float
    """Of the step time, on the critical stage."""
    spread: float
    """Relative error of their times that is expected."""
    measured: bool
    """Whether their rates are of this generation of accelerators; if not, they are scaled."""
    source: str


class MemoryInterval(Result):
    """Ranges of the measured peak memory of the peak-memory stage [byte]."""

    total_low: float
    """Of tensors alone."""
    total_high: float
    reserved_low: float
    """Of all that the accelerator must have."""
    reserved_high: float
    level: float
    """Share of runs expected inside."""
    runs: int
    """Measured peaks that it rests on."""
    stack_sources: int = 0
    """Sources of measured peaks of the same software: without any, the range is wider."""


class Efficiency(Result):
    """Shares of the step."""

    compute: float
    """Model FLOPs over the peak FLOPs of the time that forward, backward and update take."""
    system: float
    """Forward, backward and update over the step."""
    total: float
    """Product of both: the MFU."""


class Gemm(Result):
    """A matrix product (m, k) x (k, n) and how often it runs in a step.

    Runs are counted on one rank of every pipeline stage: all layers, all micro-batches of one
    replica. The other ranks of a stage do as many, or fewer if expert loads are uneven.
    """

    part: str
    """`layer 0` (numbered as in `layers`), `head`, `mtp`."""
    operation: str
    product: str
    """Formula: Y = X W, S = Q K^T ..."""
    direction: str
    """forward, input_grad, weight_grad, recompute or optimizer."""
    batch: int | float
    """Products in one run: heads, or experts of a rank."""
    m: int | float
    """Rows of the result."""
    k: int | float
    """Length of the reduction."""
    n: int | float
    """Columns of the result."""
    share: float
    """Share of it that is computed: half where attention is causal and fused."""
    dtype: str
    """Type that the operands are multiplied in."""
    count: int | float
    """Runs in a step."""
    flops: int
    """Of all runs: 2 batch m k n share count [FLOP]."""
    run_s: float
    """One run [s]; the time of a fused kernel is divided by FLOPs."""
    time_s: float
    """All runs [s]."""
    efficiency: float
    """FLOPs over the dense peak of the type in that time."""
    bound: str
    """What limits it: compute, memory or launch."""


class Software(Result):
    """The software that an estimate is for."""

    stack: str
    """Name of the stack."""
    release: str
    """Release that is meant; empty where the stack names none."""
    checked: bool
    """Whether the strategy is known to be one that the release can run, and none that was reported
    broken or slower."""
    how: str = "stack"
    """How it was found: a `stack` by name, a description that `matched`, the `nearest release` of
    it, `several candidates`, or `unknown`."""
    trainer: str = ""
    """Trainer that is meant; empty for a stack by name."""
    engine: str | None = None
    """What replicates or shards the training state there."""
    notes: tuple[str, ...] = ()
    """What contradicts, what was assumed and what else may be meant; the most important first."""
    reported: tuple[str, ...] = ()
    """What of the strategy was reported broken, slower or never used, with source and date."""


class SoftwareCandidate(Result):
    """Software that a description may mean, and the estimate with it."""

    description: str
    """What tells it from the others."""
    trainer: str
    engine: str | None
    stack: str
    weight: float
    """Its probability."""
    step_time_s: float
    reserved_bytes: float
    margin_bytes: float | None = None
    """What it leaves of the accelerator's capacity, or, below 0, lacks [byte]; None in files of
    earlier versions."""


class Estimate(Charted, Deferred):
    """Times, memory and detail of one strategy.

    Examples
    --------
    >>> from shardwise import estimate
    >>> result = estimate("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
    >>> max(result.time_s, key=lambda part: result.time_s[part])
    'backward'
    >>> result.memory_bytes.reserved < 60 * 2**30
    True
    """

    ADDED: ClassVar[tuple[str, ...]] = (
        "also",
        "imported",
        "recipe",
        "launch",
        "change_to_fit",
    )

    model: str
    system: str
    strategy: Mapping[str, Any]
    """All fields, with defaults filled in."""
    software: Software
    software_candidates: tuple[SoftwareCandidate, ...]
    """What the description of the software may mean, if it may be several; those that can run the
    strategy."""
    parameters: int
    active_parameters: int
    trainable_parameters: int
    """Weights that are trained, including adapters."""
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    model_tflops_per_gpu: float
    mfu: float
    """Model FLOPs over the dense peak of the compute dtype."""
    hfu: float
    """The same with the FLOPs of recompute."""
    flops_convention: str
    mfu_by_convention: Mapping[str, float]
    """MFU under every convention."""
    fits: bool
    """Whether the predicted memory is within the capacity."""
    micro_batches: int
    """Per replica and step."""
    tokens_per_step: int
    time_s: Mapping[str, float]
    """Disjoint parts of the step, on the critical stage [s]."""
    comm_s: Mapping[str, CommTime]
    extents: Mapping[str, tuple[int, ...]]
    """Members of each axis within one domain of each network tier, innermost first."""
    memory_bytes: Memory
    """Of the peak-memory stage."""
    stages: tuple[StageEstimate, ...]
    layers: tuple[LayerTotals, ...]
    """By kind of layer."""
    matrix_flops: int
    """Of all GEMMs and attention in a step, with recompute and Muon's updates, on one rank of every
    stage together [FLOP]; times gpus / pp for all ranks. With uneven expert loads it counts the
    most loaded rank, and all ranks together do less."""
    breakdown: Breakdown
    """Communication by direction and level, and the overhead of experts."""
    efficiency: Efficiency
    required_bandwidth: RequiredBandwidth
    cost: Cost
    interval: Interval | None
    """None forward only, for which there are no measured runs."""
    memory_interval: MemoryInterval | None = None
    """None forward only."""
    fits_probability: float | None = None
    """Probability that the measured peak is within the capacity, from 0 to 1; None forward only."""
    fits_assumes: Mapping[str, Any] = Field(default_factory=dict)
    """Strategy fields that `fits_probability` assumes another value of: the load of experts, where
    it was not set, is that of natural routing."""
    verdict: Verdict | None = None
    """``fits`` with a probability of 90 % or more, ``does not fit`` with one of 10 % or less, else
    ``on the edge``; None in files of earlier versions."""
    assumed_network: AssumedNetwork | None = None
    """Network cards that the system assumes, and what others would change; they widen the interval.
    None where no traffic passes them, and where the system describes one cluster."""
    assumed_host: AssumedHost | None = None
    """Host that updates the weights, and what other threads and kernels would change; it widens the
    interval. None where the host updates nothing."""
    mixer_kernels: tuple[MixerKernels, ...] = ()
    """Kernels of mixers, with the spread of their times, which widens the interval."""
    unmeasured_features: tuple[str, ...] = ()
    """Features that no measured run of grade A used, such as ``tp_overlap=ring``; they widen the
    interval."""
    rests_on: Mapping[str, str]
    """Where the rates of operations and collectives come from: measured, fitted, published, assumed
    or a data sheet."""
    assumed: Mapping[str, Any]
    """Strategy fields that were not set, with their values."""
    provenance: Mapping[str, Source]
    """Sources of the values of system and stack, by dotted prefix."""
    missed_operations: tuple[str, ...] = ()
    """Operations with a kernel that is unlike all measured shapes in the system's tables."""
    operations: tuple[OperationEstimate, ...] | None = None
    """Every kernel and collective, on request."""
    gemms: tuple[Gemm, ...] | None = None
    """Every matrix product, on request; their FLOPs add up to `matrix_flops`."""
    whole_run: TrainingTime | None = None
    """The training run, if its number of tokens is known."""

    def compare(self, *others: "Estimate", names: Sequence[str] | None = None) -> "Comparison":
        """Compare it with other estimates: inputs that differ, and how they change the time.

        Parameters
        ----------
        others
            This one is the reference of them.
        names
            One for each, this one first; by default A, B, ...

        Examples
        --------
        >>> from shardwise import estimate
        >>> saved = estimate("llama3-70b", "h100-sxm", gpus=64, tp=8, pp=2, gbs=128)
        >>> again = estimate("llama3-70b", "h100-sxm", saved.strategy, recompute="full")
        >>> saved.compare(again, names=["saved", "again"]).best["step_time_s"]
        'saved'
        """
        found: Comparison = reports().compare((self, *others), names)
        return found

    def contradictions(self) -> Iterator[Fault]:
        """Yield a fault for each value of a saved estimate that does not fit the others."""
        yield from super().contradictions()
        if faults := list(part_faults("time_s", self.time_s, TIME_PARTS)):
            yield from faults
            return
        step = self.step_time_s
        if step <= 0:
            yield Fault.of("step_time_s", step, "must be a time above 0")
        elif not abs(fsum(self.time_s.values()) - step) <= _ROUNDING * step:
            problem = f"the parts do not add up to step_time_s {step:g}"
            yield Fault(field="time_s", problem=problem)
        if self.tokens_per_step < 1:
            yield Fault.of("tokens_per_step", self.tokens_per_step, "must be at least 1")
        if not self.stages:
            yield Fault.of("stages", [], "must have at least 1 item")

"""Calculon's three JSON files, typed: a model (application), a system and an execution.

Figures keep the names and units of the files (Calculon 0.1.0, commit caa4b11), so that writing one
gives back what was read. What Calculon would stop at with a traceback, or misread, is a fault.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    model_validator,
)

from shardwise.config.base import ConfigBase
from shardwise.errors import Fault, InputError, allowed_words, nearest, refuse

Datatype = Literal["float8", "float16", "bfloat16", "float32"]
Attention = Literal["multihead", "multiquery"]
Recompute = Literal["full", "attn_only", "none"]
CommType = Literal["ar", "p2p_rs_ag", "rs_ag"]
Overlap = Literal["none", "ring", "pipe"]

# In the order in which Calculon's searches try them.
DATATYPES: tuple[str, ...] = get_args(Datatype)
ATTENTIONS: tuple[str, ...] = get_args(Attention)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
COMM_TYPES: tuple[str, ...] = get_args(CommType)
OVERLAPS: tuple[str, ...] = get_args(Overlap)

# Counts up to here are exact in float64.
_MOST_ELEMENTS = 2**53


def _shortest(value: float) -> Any:
    """Write 312.0 as 312, as the files do."""
    return int(value) if value.is_integer() else value


Count = Annotated[int, Strict(), Field(ge=1, le=2**31)]
Index = Annotated[int, Strict(), Field(ge=0, le=2**31)]
Flag = Annotated[bool, Strict()]
Real = Annotated[float, Strict(), PlainSerializer(_shortest)]
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Efficiency = Annotated[Real, Field(gt=0, le=1)]


def _descending(curve: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Refuse a curve that Calculon would read wrongly or not to its end."""
    thresholds = [threshold for threshold, _ in curve]
    for row, (before, after) in enumerate(pairwise(thresholds), start=2):
        if after >= before:
            problem = f"row {row} has {after:g} after {before:g}"
            raise ValueError(f"thresholds must descend strictly, but {problem}")
    if thresholds[-1] != 0:
        raise ValueError(
            f"the last row must have threshold 0, for what is smaller than {thresholds[-1]:g}"
        )
    return curve


def _pair(names: str) -> BeforeValidator:
    """Refuse what is not a list of two."""

    def check(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(names.split(",")):
            raise ValueError(f"must be a pair [{names}]")
        return value

    return BeforeValidator(check)


def _filled(value: Any) -> Any:
    if not value:
        raise ValueError("must not be empty")
    return value


NotEmpty = AfterValidator(_filled)
# Beyond 1e30 of its unit a threshold would leave the finite numbers where it is multiplied out.
Threshold = Annotated[NonNegative, Field(le=1e30)]
Row = Annotated[tuple[Threshold, Efficiency], _pair("threshold, efficiency")]
Curve = Annotated[tuple[Row, ...], NotEmpty, AfterValidator(_descending)]


class CalculonFile(ConfigBase):
    """What the files have in common: exact types, keys as Calculon names them."""

    @classmethod
    def parse(cls, data: Mapping[str, Any], source: str = "") -> Self:
        """Validate a parsed file."""
        return cls.validated(data, source=source)


class CalculonModel(CalculonFile):
    """A model: `num_blocks` equal transformer blocks. Other keys are ignored, as Calculon does."""

    model_config = ConfigDict(extra="ignore")

    hidden: Count
    """Width h."""
    feedforward: Count
    """Inner width f of the MLP."""
    seq_size: Count
    """Tokens per sequence."""
    attn_heads: Count
    attn_size: Count
    """Width of a head; heads x width need not be the hidden width."""
    num_blocks: Count


class CalculonProcessor(ConfigBase):
    """The matrix or the vector engine for one datatype."""

    tflops: Positive
    """Peak [1e12 FLOP/s]."""
    gflops_efficiency: Curve
    """Rows of a least size of an operation [1e9 FLOP] and the share of the peak it reaches."""


class CalculonMemory(ConfigBase):
    """One tier of memory."""

    # Names as in the files.
    GiB: NonNegative
    """Capacity [2^30 bytes]; a second tier of 0 is none."""
    GBps: Positive
    """Peak bandwidth [1e9 byte/s]."""
    MB_efficiency: Curve
    """Rows of a least size of an operation [1e6 bytes] and the share of the peak it reaches."""


def _without_offset(value: tuple[float, float | None]) -> tuple[float, float | None]:
    if value[1] is not None:
        raise ValueError("the offset of p2p must be null")
    return value


Volume = Annotated[tuple[Positive, Annotated[Real, Field(ge=-1)]], _pair("scalar, offset")]


class CalculonOperations(ConfigBase):
    """Volume of each operation over its data: scalar x (1 + offset / participants)."""

    p2p: Annotated[
        tuple[Positive, Real | None], _pair("scalar, null"), AfterValidator(_without_offset)
    ]
    reduce_scatter: Volume
    all_gather: Volume
    all_reduce: Volume


class CalculonNetwork(ConfigBase):
    """One network; executions name it by its position in the list."""

    bandwidth: Positive
    """Peak per processor [1e9 byte/s]."""
    efficiency: Efficiency
    size: Count
    """Most processors that one instance connects."""
    latency: NonNegative
    """Added once per operation [s]."""
    ops: CalculonOperations
    must_be_filled: Flag
    """Whether the product of the groups placed on it must divide `size`."""
    processor_usage: Annotated[NonNegative, Field(lt=1)]
    """Share of the compute that hidden traffic of this network uses."""


class CalculonSystem(CalculonFile):
    """A cluster of equal processors."""

    matrix: Annotated[Mapping[str, CalculonProcessor], NotEmpty]
    """Matrix engine by datatype."""
    vector: Annotated[Mapping[str, CalculonProcessor], NotEmpty]
    """Vector engine by datatype."""
    mem1: CalculonMemory
    mem2: CalculonMemory
    """Second tier, to offload to."""
    processing_mode: Literal["roofline", "no_overlap"]
    """Whether compute and memory time overlap (the larger counts) or add up."""
    networks: Annotated[tuple[CalculonNetwork, ...], NotEmpty]

    @model_validator(mode="after")
    def _has_memory(self) -> Self:
        if self.mem1.GiB == 0:
            raise InputError(Fault.of("mem1.GiB", self.mem1.GiB, "must be greater than 0"))
        return self


class CalculonExecution(CalculonFile):
    """One way to run a model: the 23 keys of Calculon, all of them, no others."""

    num_procs: Count
    tensor_par: Count
    pipeline_par: Count
    data_par: Count
    tensor_par_net: Index
    pipeline_par_net: Index
    data_par_net: Index
    batch_size: Count
    """Sequences per step over all replicas."""
    microbatch_size: Count
    datatype: Datatype
    fused_activation: Flag
    attention_type: Attention
    activation_recompute: Recompute
    pipeline_interleaving: Count
    """Chunks of blocks per processor."""
    optimizer_sharding: Flag
    tensor_par_comm_type: CommType
    tensor_par_overlap: Overlap
    seq_par_ag_redo: Flag
    data_par_overlap: Flag
    weight_offload: Flag
    activations_offload: Flag
    optimizer_offload: Flag
    training: Flag

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse([*_degree_faults(self), *_option_faults(self)])
        return self


def _degree_faults(e: CalculonExecution) -> Iterator[Fault]:
    product = e.tensor_par * e.pipeline_par * e.data_par
    if product != e.num_procs:
        degrees = f"{e.tensor_par} x {e.pipeline_par} x {e.data_par}"
        problem = f"must be tensor_par x pipeline_par x data_par = {degrees} = {product}"
        yield Fault.of("num_procs", e.num_procs, problem)
    if e.batch_size % e.data_par:
        yield Fault.of("batch_size", e.batch_size, f"must be a multiple of data_par {e.data_par}")
    elif e.batch_size // e.data_par % e.microbatch_size:
        problem = f"must divide batch_size / data_par = {e.batch_size // e.data_par}"
        yield Fault.of("microbatch_size", e.microbatch_size, problem)
    if e.pipeline_par == 1 and e.pipeline_interleaving > 1:
        problem = "must be 1 where pipeline_par is 1"
        yield Fault.of("pipeline_interleaving", e.pipeline_interleaving, problem)


def _option_faults(e: CalculonExecution) -> Iterator[Fault]:
    if e.optimizer_sharding and e.data_par == 1:
        yield Fault.of("optimizer_sharding", e.optimizer_sharding, "needs data_par greater than 1")
    if e.tensor_par_overlap != "none" and e.tensor_par == 1:
        yield Fault.of(
            "tensor_par_overlap", e.tensor_par_overlap, "needs tensor_par greater than 1"
        )
    if e.seq_par_ag_redo and e.tensor_par_comm_type != "rs_ag":
        yield Fault.of("seq_par_ag_redo", e.seq_par_ag_redo, "needs tensor_par_comm_type 'rs_ag'")
    if e.seq_par_ag_redo and e.activation_recompute == "full":
        problem = "needs activation_recompute 'attn_only' or 'none'"
        yield Fault.of("seq_par_ag_redo", e.seq_par_ag_redo, problem)
    if e.data_par_overlap and not (e.training and e.data_par > 1):
        problem = "needs training, and data_par greater than 1"
        yield Fault.of("data_par_overlap", e.data_par_overlap, problem)


def check_together(
    model: CalculonModel, system: CalculonSystem, execution: CalculonExecution, *, source: str = ""
) -> None:
    """Check an execution against the model and the system it is for."""
    refuse([*_model_faults(model, execution, source), *_system_faults(system, execution, source)])


def _model_faults(model: CalculonModel, e: CalculonExecution, source: str) -> Iterator[Fault]:
    for field in ("hidden", "feedforward", "attn_heads"):
        size = getattr(model, field)
        if size % e.tensor_par:
            problem = f"must divide the model's {field} {size}"
            yield Fault.of("tensor_par", e.tensor_par, problem, source)
    tokens = e.microbatch_size * model.seq_size
    if e.tensor_par_comm_type != "ar" and tokens % e.tensor_par:
        problem = (
            f"must divide microbatch_size x seq_size = {tokens} "
            f"for tensor_par_comm_type {e.tensor_par_comm_type!r}"
        )
        yield Fault.of("tensor_par", e.tensor_par, problem, source)
    if problem := too_large(model, e.microbatch_size):
        yield Fault.of("microbatch_size", e.microbatch_size, problem, source)


def too_large(model: CalculonModel, sequences: int) -> str:
    """Return the problem of a block whose tensors are too large to count exactly, or ""."""
    widest = max(model.hidden, model.feedforward, 3 * model.attn_heads * model.attn_size)
    if widest * max(model.hidden, sequences * model.seq_size) <= _MOST_ELEMENTS:
        return ""
    return "a block of this model has tensors of more than 2^53 elements"


def _system_faults(system: CalculonSystem, e: CalculonExecution, source: str) -> Iterator[Fault]:
    for engine, table in (("matrix", system.matrix), ("vector", system.vector)):
        if e.datatype not in table:
            hint = nearest(e.datatype, table) or f"; {allowed_words(e.datatype, table)}"
            problem = f"is not in the system's {engine} table{hint}"
            yield Fault.of("datatype", e.datatype, problem, source)
    last = len(system.networks) - 1
    for field in ("tensor_par_net", "pipeline_par_net", "data_par_net"):
        if getattr(e, field) > last:
            problem = f"the system has networks 0 to {last}" if last else "the system has network 0"
            yield Fault.of(field, getattr(e, field), problem, source)


Kind = Literal["model", "system", "execution"]
# Keys of an execution that other files may have, too.
_COMMON = {
    "num_procs",
    "batch_size",
    "microbatch_size",
    "datatype",
    "fused_activation",
    "attention_type",
    "training",
}
# Keys that no shardwise file and no Hugging Face model has, and how many of them identify the file,
# so that it is recognized, and its other faults are reported, though half of it is missing.
_IDENTIFYING: tuple[tuple[Kind, int, frozenset[str]], ...] = (
    ("model", 2, frozenset({"feedforward", "attn_heads", "attn_size", "num_blocks"})),
    ("system", 2, frozenset({"mem1", "mem2", "processing_mode", "networks"})),
    ("system", 3, frozenset({"matrix", "vector", "networks"})),
    ("execution", 3, frozenset(CalculonExecution.model_fields) - _COMMON),
)


def looks_like(data: Mapping[str, Any]) -> Kind | None:
    """Return which of Calculon's files a mapping is by its keys, or None."""
    found = (
        kind for kind, least, identifying in _IDENTIFYING if len(data.keys() & identifying) >= least
    )
    return next(found, None)
